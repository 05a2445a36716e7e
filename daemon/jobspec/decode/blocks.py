"""Decoding of bodies to documents, driven by the block schemas.

The decoder records each problem and continues with the next argument or block.
"""

from collections.abc import Iterator, Mapping

from daemon.jobspec.decode.bodies import BodyContents, contents
from daemon.jobspec.decode.dynamic import DYNAMIC, expanded
from daemon.jobspec.decode.freeform import free_form
from daemon.jobspec.decode.schema import (
    BlockForm,
    BlockSchema,
    ChildBlock,
    DecodedBlock,
    FieldSpec,
    FreeForm,
    TextMap,
)
from daemon.jobspec.decode.types import BadDuration, duration, text_map
from daemon.jobspec.hcl.evaluate import evaluate
from daemon.jobspec.hcl.scope import BudgetExceeded, Scope
from daemon.jobspec.hcl.source import Diagnostic, HclError
from daemon.jobspec.hcl.tree import (
    Argument,
    Block,
    Body,
    Expression,
    ObjectExpr,
    TemplateExpr,
    key_text,
    opening,
)
from daemon.jobspec.hcl.values import ConversionError
from storage.records.codec import Document

STEPS_PER_BLOCK = 10  # budget units: a block uses memory even if it is empty


class _Wrong(Exception):
    """An argument is invalid; its problem is already recorded."""


class Decoder:
    """Decodes bodies; `problems` collects the problems."""

    def __init__(self) -> None:
        self.problems: list[Diagnostic] = []

    def document(
        self,
        shape: BlockSchema,
        block: Block,
        scope: Scope,
        labels: Mapping[str, str] | None = None,
    ) -> Document:
        """Return the document of a block. `labels` maps field names to labels."""
        body = block.body
        document = shape.empty()
        label_counts = {**shape.labels, DYNAMIC: 1}
        body_contents = contents(body, scope.source, shape.arguments, label_counts)
        self.problems += body_contents.problems
        self._set_fields(document, shape, body_contents, body, scope)
        document.update(labels or {})
        self._set_blocks(document, shape, body_contents, label_counts, scope)
        if shape.finish is not None:
            shape.finish(
                DecodedBlock(
                    document=document,
                    arguments=body_contents.arguments,
                    source=scope.source,
                    block=block,
                    problems=self.problems,
                )
            )
        return document

    def _problem(self, summary: str, detail: str, start: int, end: int, scope: Scope) -> None:
        self.problems.append(
            Diagnostic(summary=summary, detail=detail, source=scope.source, start=start, end=end)
        )

    # --- arguments ---

    def _set_fields(
        self,
        document: Document,
        shape: BlockSchema,
        body_contents: BodyContents,
        body: Body | ObjectExpr,
        scope: Scope,
    ) -> None:
        for name, argument in body_contents.arguments.items():
            field = shape.fields.get(name) or FieldSpec(shape.blocks[name].wire, text_map)
            try:
                document[field.wire] = self._value(argument, field, scope)
            except _Wrong:
                continue
        for name, field in shape.fields.items():
            if field.is_required and name not in body_contents.arguments:
                detail = f'The argument "{name}" is required, but no definition was found.'
                self._problem("Missing required argument", detail, body.start, body.start, scope)

    def _value(self, argument: Argument, field: FieldSpec, scope: Scope) -> object:
        """Return the document value of an argument. Raises `_Wrong`."""
        node = argument.value
        try:
            value = evaluate(node, scope)
        except BudgetExceeded:
            raise
        except HclError as error:
            self.problems += error.diagnostics
            if not isinstance(node, TemplateExpr):
                self._note(node, "Unsuitable value: value must be known", scope, is_echo=True)
            raise _Wrong from error
        try:
            if value is not None:
                return field.kind(value)
        except BadDuration as error:
            self._note(node, f"Unsuitable duration value: {error}", scope)
            raise _Wrong from error
        except ConversionError as error:
            self._note(node, f"Unsuitable value: {error}", scope)
            raise _Wrong from error
        if field.kind is duration:
            self._note(node, "Unsuitable duration value: nil", scope)
            raise _Wrong
        if field.unset is not None:
            self._note(node, "Unsuitable value: null value is not allowed", scope)
            raise _Wrong
        return None

    def _note(self, node: Expression, detail: str, scope: Scope, *, is_echo: bool = False) -> None:
        start, end = opening(node)
        self.problems.append(
            Diagnostic(
                summary="Unsuitable value type",
                detail=detail,
                source=scope.source,
                start=start,
                end=end,
                is_echo=is_echo,
            )
        )

    # --- blocks ---

    def _set_blocks(
        self,
        document: Document,
        shape: BlockSchema,
        body_contents: BodyContents,
        label_counts: Mapping[str, int],
        scope: Scope,
    ) -> None:
        seen: dict[str, Block] = {}  # blocks that can appear only once
        for block, inner in self._expanded(body_contents.blocks, label_counts, scope):
            inner.spend(block, STEPS_PER_BLOCK)
            child = shape.blocks[block.kind]
            if isinstance(child, ChildBlock):
                self._put(document, child, block, seen, inner)
            elif self._is_first(block, block.kind, seen, scope) and self._is_alone(
                block, body_contents.arguments, scope
            ):
                decode = self._text_map if isinstance(child, TextMap) else self._free_form
                document[child.wire] = decode(child, block, inner)

    def _expanded(
        self, blocks: list[Block], label_counts: Mapping[str, int], scope: Scope
    ) -> Iterator[tuple[Block, Scope]]:
        """Yield blocks, with each dynamic block replaced by the blocks that it generates."""
        for block in blocks:
            if block.kind != DYNAMIC:
                yield block, scope
                continue
            try:
                yield from expanded(block, label_counts, scope)
            except BudgetExceeded:
                raise
            except HclError as error:
                self.problems += error.diagnostics

    def _put(
        self,
        document: Document,
        child: ChildBlock,
        block: Block,
        seen: dict[str, Block],
        scope: Scope,
    ) -> None:
        labels = [label.text for label in block.labels]
        if child.form is BlockForm.ONE and not self._is_first(block, block.kind, seen, scope):
            return
        if child.form is BlockForm.ONE_EACH and not self._is_first(
            block, f'{block.kind} "{labels[0]}"', seen, scope
        ):
            return
        inner = self.document(
            child.shape, block, scope, dict(zip(child.labels, labels, strict=True))
        )
        if child.form is BlockForm.ONE:
            document[child.wire] = inner
        elif child.form is BlockForm.BY_LABEL:
            document[child.wire] = document[child.wire] or {}
            document[child.wire][labels[0]] = inner
        else:
            document[child.wire] = document[child.wire] or []
            document[child.wire].append(inner)

    def _is_first(
        self, block: Block, description: str, seen: dict[str, Block], scope: Scope
    ) -> bool:
        before = seen.setdefault(description, block)
        if before is block:
            return True
        where = Diagnostic(
            summary="", source=scope.source, start=before.start, end=before.head_end
        ).where
        self._problem(
            f"Duplicate {description} block",
            f'Only one block of type "{block.kind}" is allowed. '
            f"Previous definition was at {where}.",
            block.start,
            block.head_end,
            scope,
        )
        return False

    def _is_alone(self, block: Block, arguments: Mapping[str, Argument], scope: Scope) -> bool:
        """Return whether no argument has the name of the block; otherwise, record an error."""
        before = arguments.get(block.kind)
        if before is None:
            return True
        where = Diagnostic(
            summary="", source=scope.source, start=before.start, end=before.value.end
        ).where
        self._problem(
            f"Duplicate {block.kind} block",
            f"{block.kind} may not be defined more than once. Another definition is defined at "
            f"{where}.",
            block.start,
            block.kind_end,
            scope,
        )
        return False

    def _text_map(self, child: TextMap | FreeForm, block: Block, scope: Scope) -> Document:
        body_contents = _all_contents(block.body, scope)
        kind = child.kind if isinstance(child, TextMap) else text_map
        field = FieldSpec("", kind, unset="")
        document: Document = {}
        for name, argument in body_contents.arguments.items():
            try:
                document[name] = self._value(argument, field, scope)
            except _Wrong:
                continue
        for inner in body_contents.blocks:
            detail = "Unsuitable value: string required, but have tuple"
            start = inner.body.start
            self._problem("Unsuitable value type", detail, start, start + 1, scope)
        return document

    def _free_form(self, child: TextMap | FreeForm, block: Block, scope: Scope) -> Document:
        try:
            return free_form(block.body, scope)
        except BudgetExceeded:
            raise
        except HclError as error:
            self.problems += error.diagnostics
            return {}


def _all_contents(body: Body | ObjectExpr, scope: Scope) -> BodyContents:
    """Return all contents of a body that allows any names of arguments and blocks."""
    if isinstance(body, Body):
        return BodyContents(body.arguments, list(body.blocks), [])
    names = [name for key, _ in body.items if (name := key_text(key)) is not None]
    return contents(body, scope.source, frozenset(names), {})
