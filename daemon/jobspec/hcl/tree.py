"""What a text is made of: bodies of arguments and blocks, and expressions.

Every node knows its place as offsets. Chains of operators and of steps are flat, so that the
depth of a tree is that of its brackets, which is bounded.
"""

import msgspec

from daemon.jobspec.hcl.values import Value


class Expression(msgspec.Struct, frozen=True, gc=False):
    """Something with a value; `start` and `end` are offsets into the text."""

    start: int
    end: int


class Literal(Expression, frozen=True, gc=False):
    """A value that is written out."""

    value: Value


class Template(Expression, frozen=True, gc=False):
    """Text with holes."""

    parts: tuple[Expression, ...]


class Hole(Expression, frozen=True, gc=False):
    """A template that is a single interpolation: its value keeps its type.

    `text` is what stands between the brackets, blanks included: the whole of a reference that
    only makes sense when a task runs.
    """

    inner: Expression
    text: str


class Interpolation(Expression, frozen=True, gc=False):
    """A part of a template that is computed; `text` as for a hole."""

    inner: Expression
    text: str


class Choice(Expression, frozen=True, gc=False):
    """`%{ if }` of a template."""

    condition: Expression
    then: Template
    otherwise: Template


class Repetition(Expression, frozen=True, gc=False):
    """`%{ for }` of a template."""

    key_name: str
    value_name: str
    collection: Expression
    each: Template


class Element(Expression, frozen=True, gc=False):
    """The element at hand, within a splat."""


class Attr(msgspec.Struct, frozen=True, gc=False):
    """A step to an attribute."""

    start: int
    end: int
    name: str


class Lookup(msgspec.Struct, frozen=True, gc=False):
    """A step to an index, in brackets or as a number behind a dot."""

    start: int
    end: int
    key: Expression


Step = Attr | Lookup


class Reference(Expression, frozen=True, gc=False):
    """A name and literal steps from it; `text` is how it is written."""

    root: str
    steps: tuple[Step, ...]
    text: str


class Path(Expression, frozen=True, gc=False):
    """Steps from the value of an expression."""

    base: Expression
    steps: tuple[Step, ...]


class Splat(Expression, frozen=True, gc=False):
    """What becomes of each element of a sequence; the mark is `[*]` or `.*`."""

    base: Expression
    mark_start: int
    mark_end: int
    each: Expression


class Call(Expression, frozen=True, gc=False):
    """A function call; with `expands` the last argument stands for many."""

    name: str
    name_end: int
    open_end: int
    arguments: tuple[Expression, ...]
    expands: bool
    close: int


class Prefixed(Expression, frozen=True, gc=False):
    """`!` or `-` before an operand."""

    operator: str
    operand: Expression


class Chain(Expression, frozen=True, gc=False):
    """Operands with operators of one rank between them, applied from the left."""

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


class Tuple(Expression, frozen=True, gc=False):
    """`[a, b]`."""

    items: tuple[Expression, ...]


class Object(Expression, frozen=True, gc=False):
    """`{ key = value }`."""

    items: tuple[tuple[Expression, Expression], ...]


class For(Expression, frozen=True, gc=False):
    """`[for …]`, or `{for …}` when it has a key."""

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
    """A block of a body; `start` is that of its type."""

    kind: str
    start: int
    kind_end: int
    labels: tuple[Label, ...]
    body: "Body | Object"

    @property
    def end(self) -> int:
        """Return where the type ends: errors about a block point at it."""
        return self.kind_end

    @property
    def head_end(self) -> int:
        """Return where type and labels end."""
        return self.labels[-1].end if self.labels else self.kind_end


class Body(msgspec.Struct, frozen=True, gc=False):
    """Arguments by name and blocks in order; `start` is the brace that opens it."""

    start: int
    arguments: dict[str, Argument]
    blocks: tuple[Block, ...]


def opening(node: Expression) -> tuple[int, int]:
    """Return the part of an expression at which the peer points when its value does not fit."""
    match node:
        case Template(parts=(first, *_)):
            return opening(first)
        case Chain(operands=(first, *_)):
            return opening(first)
        case Conditional():
            return opening(node.condition)
        case Path():
            return opening(node.base)
        case Splat():
            return node.mark_start, node.mark_end
        case Call():
            return node.start, node.open_end
        case Tuple() | Object() | For() | Prefixed():
            return node.start, node.start + 1
        case _:
            return node.start, node.end


def key_text(node: Expression) -> str | None:
    """Return the text that a key of an object writes out; None for one that is computed."""
    match node:
        case Literal(value=str(name)) | Template(parts=(Literal(value=str(name)),)):
            return name
        case _:
            return None
