"""Parser of bodies: arguments and blocks.

After an error the parser continues with the next argument or block, so one result reports all
errors. HCL1 syntax allows three more forms. Names can be quoted, and commas can separate blocks.
Blocks can be arguments (`config = { … }`, `template = [{ … }, { … }]`). The parser converts all of
them to blocks.
"""

from daemon.jobspec.hcl.cursor import HclSyntaxError
from daemon.jobspec.hcl.expressions import Expressions
from daemon.jobspec.hcl.lexer import (
    CLOSE_HOLE,
    CONTROL,
    END,
    HOLE,
    IDENT,
    NEWLINE,
    OPEN_QUOTE,
    STRING,
    tokenize,
)
from daemon.jobspec.hcl.source import MAX_SHOWN, HclError, SourceText
from daemon.jobspec.hcl.strings import unescape
from daemon.jobspec.hcl.tree import (
    Argument,
    Block,
    Body,
    Expression,
    Label,
    ObjectExpr,
    TupleExpr,
    key_text,
)

_REQUIRED = "An argument or block definition is required here."
_TO_SET = ' To set an argument, use the equals sign "=" to introduce the argument value.'
_OPENS_BLOCK = frozenset({"{", STRING, OPEN_QUOTE, IDENT})
_DEPTHS = {"{": 1, HOLE: 1, CONTROL: 1, "}": -1, CLOSE_HOLE: -1}


def read_body(source: SourceText, *, is_v1: bool = False) -> Body:
    """Parse the body in a text. Raises `HclError` with all its errors."""
    reader = _Reader(tokenize(source))
    reader.may_be_v1 = is_v1
    body = reader.body()
    if reader.problems:
        raise HclError(reader.problems)
    return body


def read_expression(source: SourceText) -> Expression:
    """Parse the expression in a text. Raises `HclError`."""
    reader = _Reader(tokenize(source))
    try:
        expression = reader.whole_expression()
    except HclSyntaxError as mistake:
        raise HclError([*reader.problems, mistake.diagnostic]) from None
    if reader.problems:
        raise HclError(reader.problems)
    return expression


def read_template(source: SourceText, start: int) -> Expression:
    """Parse a text from an offset to its end as a template. Raises `HclError`."""
    reader = _Reader(tokenize(source, start))
    try:
        template = reader.bare()
    except HclSyntaxError as mistake:
        raise HclError([*reader.problems, mistake.diagnostic]) from None
    if reader.problems:
        raise HclError(reader.problems)
    return template


class _Reader(Expressions):
    may_be_v1 = False  # the text may be a job in HCL1 syntax

    def whole_expression(self) -> Expression:
        """Return the only expression of a text."""
        expression = self.expression()
        while self.accept(NEWLINE):
            pass
        if self.kind != END:
            raise self.error(
                "Extra characters after expression", "The expression has already ended."
            )
        return expression

    def body(self, opener: int | None = None) -> Body:
        """Return the body at this position. `opener` is the offset of a block's brace."""
        arguments: dict[str, Argument] = {}
        blocks: list[Block] = []
        while not self._is_end_of_body(opener):
            if self.accept(NEWLINE):
                continue
            first, depth = self.at, self.depth
            try:
                self._item(arguments, blocks)
            except HclSyntaxError as mistake:
                self.depth = depth
                self.problems.append(mistake.diagnostic)
                self._recover(first)
        return Body(opener or 0, arguments, tuple(blocks))

    def _is_end_of_body(self, opener: int | None) -> bool:
        if self.kind == "}":
            return opener is not None
        if self.kind == END and opener is not None and not self.problems:
            raise self.error_at(
                opener,
                opener + 1,
                "Unclosed configuration block",
                "There is no closing brace for this block before the end of the file. This may "
                "be caused by incorrect brace nesting elsewhere in this file.",
            )
        return self.kind == END

    def _recover(self, first: int) -> None:
        """Skip to the end of the item that begins at token `first`, or to the end of its body."""
        if len(self.problems) > MAX_SHOWN:
            self.at = len(self.kinds) - 1
        depth = sum([_DEPTHS.get(kind, 0) for kind in self.kinds[first : self.at]])
        while self.kind != END:
            if depth <= 0 and self.kind in (NEWLINE, "}"):
                break
            depth += _DEPTHS.get(self.kind, 0)
            self.at += 1
        if self.kind == "}" and self.at == first:  # top level: no open bracket
            self.at += 1

    # --- items ---

    def _item(self, arguments: dict[str, Argument], blocks: list[Block]) -> None:
        start, end = self.starts[self.at], self.ends[self.at]
        name = self._item_name()
        if self.accept("="):
            definition = self._after_equals(name, start, end)
            if isinstance(definition, Argument):
                self._put(definition, arguments)
            else:
                blocks.extend(definition)
            noun = "argument"
        elif self.kind in _OPENS_BLOCK:
            blocks.append(self._block(name, start, end))
            noun = "block"
        else:
            detail = _REQUIRED + _TO_SET
            raise self.error_at(start, end, "Argument or block definition required", detail)
        if self.kind in (NEWLINE, END) or (self.is_v1 and self._ends_v1_item()):
            return
        article = "An" if noun == "argument" else "A"
        raise self.error(
            f"Missing newline after {noun}", f"{article} {noun} definition must end with a newline."
        )

    def _ends_v1_item(self) -> bool:
        """Return whether an item ends here. In HCL1 the next item may follow on the same line."""
        return self.accept(",") or self.kind in ("}", IDENT, STRING)

    def _item_name(self) -> str:
        if self.kind == IDENT:
            return self.take()
        if self.kind in (STRING, OPEN_QUOTE):
            if self.kind == STRING and self.may_be_v1:
                return self._quoted_label().text
            raise self.error_at(
                self.start,
                self.start + 1,
                "Invalid argument name",
                "Argument names must not be quoted.",
            )
        raise self.error("Argument or block definition required", _REQUIRED)

    def _put(self, argument: Argument, arguments: dict[str, Argument]) -> None:
        before = arguments.get(argument.name)
        if before is None:
            arguments[argument.name] = argument
            return
        where = self.diagnostic("", "", before.start, before.name_end).where
        self.problems.append(
            self.diagnostic(
                "Attribute redefined",
                f'The argument "{argument.name}" was already set at {where}. '
                "Each argument may be set only once.",
                argument.start,
                argument.name_end,
            )
        )

    def _after_equals(self, name: str, start: int, end: int) -> Argument | list[Block]:
        if self.is_v1 and self.kind == "{":
            return [self._braced(name, start, end, ())]
        value = self.expression()
        if self.is_v1 and isinstance(value, TupleExpr) and _holds_objects(value):
            return [
                Block(name, start, end, (), _as_body(element))
                for element in value.items
                if isinstance(element, ObjectExpr)
            ]
        return Argument(name, start, end, value)

    # --- blocks ---

    def _block(self, kind: str, start: int, kind_end: int) -> Block:
        labels: list[Label] = []
        while self.kind != "{":
            labels.append(self._label())
        return self._braced(kind, start, kind_end, tuple(labels))

    def _braced(self, kind: str, start: int, kind_end: int, labels: tuple[Label, ...]) -> Block:
        opener = self.start
        self.at += 1
        was_v1 = self.is_v1
        self.is_v1 = was_v1 or (self.may_be_v1 and kind == "job")
        if self.kind == NEWLINE or self.is_v1:
            body = self.body(opener)
        else:
            body = self._one_line_body(opener)
        self.is_v1 = was_v1
        if self.kind == "}":
            self.at += 1
        return Block(kind, start, kind_end, labels, body)

    def _label(self) -> Label:
        if self.kind == IDENT:
            start = self.start
            return Label(self.take(), start, self.last_end)
        if self.kind == STRING:
            return self._quoted_label()
        if self.kind == OPEN_QUOTE:
            self._refuse_holes()
        if self.kind == NEWLINE:
            detail = (
                'A block definition must have block content delimited by "{" and "}", starting '
                "on the same line as the block header."
            )
        elif self.kind == "=":
            detail = (
                'The equals sign "=" indicates an argument definition, and must not be used when '
                "defining a block."
            )
        else:
            detail = (
                'Either a quoted string block label or an opening brace ("{") is expected here.'
            )
        raise self.error("Invalid block definition", detail)

    def _quoted_label(self) -> Label:
        start, end = self.starts[self.at], self.ends[self.at]
        self.at += 1
        return Label(unescape(self.source, start + 1, end - 1, self.problems.append), start, end)

    def _refuse_holes(self) -> None:
        """Raise an error if a label contains an interpolation."""
        while self.kind not in (HOLE, CONTROL, END, NEWLINE):
            self.at += 1
        if self.kind in (HOLE, CONTROL):
            sign = self.word()[0]
            raise self.error(
                "Invalid string literal",
                "Template sequences are not allowed in this string. "
                f'To include a literal "{sign}", double it (as "{sign}{sign}") to escape it.',
            )

    def _one_line_body(self, opener: int) -> Body:
        """Return the body of a single-line block, which has at most one argument."""
        if self.kind == "}":
            return Body(opener, {}, ())
        if self.kind == END:
            return self.body(opener)
        start, end = self.starts[self.at], self.ends[self.at]
        name = self._item_name()
        if not self.accept("="):
            raise self._no_single_argument(name, start, end)
        argument = Argument(name, start, end, self.expression())
        if self.kind == ",":
            raise self.error(
                "Invalid single-argument block definition",
                "Single-line block syntax can include only one argument definition. To define "
                "multiple arguments, use the multi-line block syntax with one argument definition "
                "per line.",
            )
        if self.kind != "}":
            raise self.error(
                "Invalid single-argument block definition",
                "A single-line block definition must end with a closing brace immediately after "
                "its single argument definition.",
            )
        return Body(opener, {name: argument}, ())

    def _no_single_argument(self, name: str, start: int, end: int) -> HclSyntaxError:
        if self.kind in _OPENS_BLOCK:
            # Nomad treats a label's opening quotation mark as a separate token.
            is_quoted = self.word()[0] == '"'
            return self.error_at(
                start,
                self.starts[self.at] + 1 if is_quoted else self.ends[self.at],
                "Argument definition required",
                "A single-line block definition can contain only a single argument. If you meant "
                f'to define argument "{name}", use an equals sign to assign it a value. To define '
                "a nested block, place it on a line of its own within its parent block.",
            )
        detail = _REQUIRED + _TO_SET
        return self.error_at(start, end, "Argument or block definition required", detail)


def _holds_objects(value: TupleExpr) -> bool:
    return bool(value.items) and all(isinstance(element, ObjectExpr) for element in value.items)


def _as_body(node: ObjectExpr) -> Body:
    """Return an HCL1 object as the equivalent body."""
    arguments: dict[str, Argument] = {}
    blocks: list[Block] = []
    for key, value in node.items:
        name = key_text(key) or ""
        if isinstance(value, ObjectExpr):
            blocks.append(Block(name, key.start, key.end, (), _as_body(value)))
        else:
            arguments[name] = Argument(name, key.start, key.end, value)
    return Body(node.start, arguments, tuple(blocks))
