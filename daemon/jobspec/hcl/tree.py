"""Syntax tree: bodies of arguments and blocks, and expressions.

Every node holds its position as offsets. Chains of operators and of traversal steps are flat. So
the depth of a tree is the depth of its brackets, which is limited.
"""

import msgspec

from daemon.jobspec.hcl.values import Value


class Expression(msgspec.Struct, frozen=True, gc=False):
    """An expression; `start` and `end` are offsets into the text."""

    start: int
    end: int


class Literal(Expression, frozen=True, gc=False):
    """A literal value."""

    value: Value


class TemplateExpr(Expression, frozen=True, gc=False):
    """Text with interpolations."""

    parts: tuple[Expression, ...]


class PropertyName(Expression, frozen=True, gc=False):
    """The key of a JSON object: in a body, literal text; in an expression, a template."""

    text: str
    template: Expression


class TemplateWrap(Expression, frozen=True, gc=False):
    """A template that is a single interpolation; its value keeps its type.

    `text` is the text between `${` and `}`, including spaces. It preserves a reference that is
    resolved only when the task starts.
    """

    inner: Expression
    text: str


class Interpolation(Expression, frozen=True, gc=False):
    """A computed part of a template; `text` has the same meaning as in `TemplateWrap`."""

    inner: Expression
    text: str


class TemplateIf(Expression, frozen=True, gc=False):
    """`%{ if }` of a template."""

    condition: Expression
    then: TemplateExpr
    otherwise: TemplateExpr


class TemplateFor(Expression, frozen=True, gc=False):
    """`%{ for }` of a template."""

    key_name: str
    value_name: str
    collection: Expression
    each: TemplateExpr


class IndexStep(Expression, frozen=True, gc=False):
    """The current element within a splat."""


class AttrStep(msgspec.Struct, frozen=True, gc=False):
    """An attribute access."""

    start: int
    end: int
    name: str


class IndexExpr(msgspec.Struct, frozen=True, gc=False):
    """An index access, in brackets or as a number after a dot."""

    start: int
    end: int
    key: Expression


Step = AttrStep | IndexExpr


class VariableRef(Expression, frozen=True, gc=False):
    """A name with its literal traversal; `text` is its source text."""

    root: str
    steps: tuple[Step, ...]
    text: str


class Path(Expression, frozen=True, gc=False):
    """A traversal that starts at the value of an expression."""

    base: Expression
    steps: tuple[Step, ...]


class Splat(Expression, frozen=True, gc=False):
    """An expression applied to each element of a sequence; the marker is `[*]` or `.*`."""

    base: Expression
    mark_start: int
    mark_end: int
    each: Expression


class CallExpr(Expression, frozen=True, gc=False):
    """A function call. With `expands`, the last argument's elements are additional arguments."""

    name: str
    name_end: int
    open_end: int
    arguments: tuple[Expression, ...]
    expands: bool
    close: int


class UnaryOp(Expression, frozen=True, gc=False):
    """`!` or `-` before an operand."""

    operator: str
    operand: Expression


class BinaryOp(Expression, frozen=True, gc=False):
    """Operands with operators of equal precedence, applied from the left."""

    operands: tuple[Expression, ...]
    operators: tuple[str, ...]


class Conditional(Expression, frozen=True, gc=False):
    """`condition ? then : otherwise`."""

    condition: Expression
    then: Expression
    otherwise: Expression


class Parenthesized(Expression, frozen=True, gc=False):
    """An expression in parentheses."""

    inner: Expression


class TupleExpr(Expression, frozen=True, gc=False):
    """`[a, b]`."""

    items: tuple[Expression, ...]


class ObjectExpr(Expression, frozen=True, gc=False):
    """`{ key = value }`."""

    items: tuple[tuple[Expression, Expression], ...]


class For(Expression, frozen=True, gc=False):
    """`[for …]`, or `{for …}` if it has a key."""

    key_name: str
    value_name: str
    collection: Expression
    key: Expression | None
    value: Expression
    condition: Expression | None
    groups: bool


class Argument(msgspec.Struct, frozen=True, gc=False):
    """`name = value` of a body."""

    name: str
    start: int
    name_end: int
    value: Expression


class Label(msgspec.Struct, frozen=True, gc=False):
    """A label of a block."""

    text: str
    start: int
    end: int


class Block(msgspec.Struct, frozen=True, gc=False):
    """A block of a body; `start` is the offset of its type."""

    kind: str
    start: int
    kind_end: int
    labels: tuple[Label, ...]
    body: "Body | ObjectExpr"

    @property
    def end(self) -> int:
        """Return the end offset of the block type, at which errors about a block point."""
        return self.kind_end

    @property
    def head_end(self) -> int:
        """Return the end offset of the block type and its labels."""
        return self.labels[-1].end if self.labels else self.kind_end


class Body(msgspec.Struct, frozen=True, gc=False):
    """Arguments by name and blocks in order; `start` is the offset of the opening brace."""

    start: int
    arguments: dict[str, Argument]
    blocks: tuple[Block, ...]


def opening(node: Expression) -> tuple[int, int]:
    """Return the start and end of the part of an expression that Nomad's type errors point at."""
    match node:
        case TemplateExpr(parts=(first, *_)):
            return opening(first)
        case BinaryOp(operands=(first, *_)):
            return opening(first)
        case Conditional():
            return opening(node.condition)
        case Path():
            return opening(node.base)
        case Splat():
            return node.mark_start, node.mark_end
        case CallExpr():
            return node.start, node.open_end
        case TupleExpr() | ObjectExpr() | For() | UnaryOp():
            return node.start, node.start + 1
        case _:
            return node.start, node.end


def key_text(node: Expression) -> str | None:
    """Return the literal text of an object's key; None for a computed key."""
    match node:
        case Literal(value=str(name)) | TemplateExpr(parts=(Literal(value=str(name)),)):
            return name
        case PropertyName(text=name):
            return name
        case _:
            return None
