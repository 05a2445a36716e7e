"""Arguments and blocks of a body, in either syntax.

In JSON job files an argument and a block are both properties of an object. Only the block's schema
distinguishes them.
"""

from collections.abc import Iterator, Mapping

import msgspec

from daemon.jobspec.hcl.source import Diagnostic, SourceText, did_you_mean
from daemon.jobspec.hcl.tree import (
    Argument,
    Block,
    Body,
    Expression,
    Label,
    Literal,
    ObjectExpr,
    TupleExpr,
    key_text,
)


class BodyContents(msgspec.Struct, frozen=True):
    """Arguments and blocks that the schema allows. `problems` lists all other contents."""

    arguments: dict[str, Argument]
    blocks: list[Block]
    problems: list[Diagnostic]


def contents(
    body: Body | ObjectExpr,
    source: SourceText,
    arguments: frozenset[str],
    blocks: Mapping[str, int],
) -> BodyContents:
    """Return the contents of a body. `blocks` gives the number of labels for each block type."""
    if isinstance(body, ObjectExpr):
        return _properties(body, source, arguments, blocks)
    kept_arguments: dict[str, Argument] = {}
    problems: list[Diagnostic] = []
    for name, argument in body.arguments.items():
        if name in arguments:
            kept_arguments[name] = argument
        else:
            problems.append(_unknown_argument(argument, source, arguments, blocks))
    kept_blocks = []
    for block in body.blocks:
        if block.kind not in blocks:
            problems.append(_unknown_block(block, source, arguments, blocks))
        elif (problem := _label_problem(block, source, blocks[block.kind])) is not None:
            problems.append(problem)
        else:
            kept_blocks.append(block)
    return BodyContents(kept_arguments, kept_blocks, problems)


def _unknown_argument(
    argument: Argument, source: SourceText, arguments: frozenset[str], blocks: Mapping[str, int]
) -> Diagnostic:
    hint = did_you_mean(argument.name, arguments)
    if argument.name in blocks:
        hint = f' Did you mean to define a block of type "{argument.name}"?'
    return Diagnostic(
        summary="Unsupported argument",
        detail=f'An argument named "{argument.name}" is not expected here.{hint}',
        source=source,
        start=argument.start,
        end=argument.name_end,
    )


def _unknown_block(
    block: Block, source: SourceText, arguments: frozenset[str], blocks: Mapping[str, int]
) -> Diagnostic:
    hint = did_you_mean(block.kind, blocks)
    if block.kind in arguments:
        hint = (
            f' Did you mean to define argument "{block.kind}"? If so, use the equals sign to '
            "assign it a value."
        )
    return Diagnostic(
        summary="Unsupported block type",
        detail=f'Blocks of type "{block.kind}" are not expected here.{hint}',
        source=source,
        start=block.start,
        end=block.kind_end,
    )


def _label_problem(block: Block, source: SourceText, label_count: int) -> Diagnostic | None:
    kind, labels = block.kind, block.labels
    if len(labels) < label_count:
        return Diagnostic(
            summary=f"Missing name for {kind}",
            detail=f"All {kind} blocks must have {label_count} labels (name).",
            source=source,
            start=block.body.start,
            end=block.body.start + 1,
        )
    if len(labels) > label_count:
        only = (
            f"Only {label_count} labels (name) are expected"
            if label_count
            else "No labels are expected"
        )
        return Diagnostic(
            summary=f"Extraneous label for {kind}",
            detail=f"{only} for {kind} blocks.",
            source=source,
            start=labels[label_count].start,
            end=labels[label_count].end,
        )
    return None


# --- JSON form ---

_COMMENT = "//"


def properties(
    body: ObjectExpr, source: SourceText, problems: list[Diagnostic]
) -> dict[str, Argument]:
    """Return the arguments of a JSON object with arbitrary names.

    Add an error to `problems` for each repeated name.
    """
    names = frozenset(name for key, _ in body.items if (name := key_text(key)) is not None)
    body_contents = _properties(body, source, names, {})
    problems += body_contents.problems
    return body_contents.arguments


def _repeated(argument: Argument, first: Argument, source: SourceText) -> Diagnostic:
    before = Diagnostic(summary="", source=source, start=first.start, end=first.value.end)
    return Diagnostic(
        summary="Duplicate argument",
        detail=f'The argument "{argument.name}" was already set at {before.where}.',
        source=source,
        start=argument.start,
        end=argument.name_end,
    )


def _properties(
    body: ObjectExpr, source: SourceText, arguments: frozenset[str], blocks: Mapping[str, int]
) -> BodyContents:
    body_contents = BodyContents({}, [], [])
    for key, value in body.items:
        name = key_text(key) or ""
        if name == _COMMENT:
            continue
        if name in arguments:
            argument = Argument(name, key.start, key.end, value)
            if (first := body_contents.arguments.setdefault(name, argument)) is not argument:
                body_contents.problems.append(_repeated(argument, first, source))
        elif name in blocks:
            for labels, inner in _unwrapped(value, blocks[name]):
                if isinstance(inner, ObjectExpr):
                    body_contents.blocks.append(Block(name, key.start, key.end, labels, inner))
                else:
                    body_contents.problems.append(_no_object(inner, source))
        else:
            hint = did_you_mean(name, [*arguments, *blocks])
            body_contents.problems.append(
                Diagnostic(
                    summary="Extraneous JSON object property",
                    detail=f'No argument or block type is named "{name}".{hint}',
                    source=source,
                    start=key.start,
                    end=key.end,
                )
            )
    return body_contents


def _unwrapped(
    value: Expression, depth: int, labels: tuple[Label, ...] = ()
) -> Iterator[tuple[tuple[Label, ...], Expression]]:
    """Yield the labels and the body of each block in a value.

    An object maps labels to blocks, and a list contains several blocks.
    """
    if isinstance(value, TupleExpr):
        for element in value.items:
            yield from _unwrapped(element, depth, labels)
    elif depth and isinstance(value, ObjectExpr):
        for key, inner in value.items:
            label = Label(key_text(key) or "", key.start, key.end)
            yield from _unwrapped(inner, depth - 1, (*labels, label))
    elif not isinstance(value, Literal) or value.value is not None:
        yield labels, value


def _no_object(value: Expression, source: SourceText) -> Diagnostic:
    return Diagnostic(
        summary="Incorrect JSON value type",
        detail="A JSON object is required here, to define arguments and blocks.",
        source=source,
        start=value.start,
        end=value.end,
    )
