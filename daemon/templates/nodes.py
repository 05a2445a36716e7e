"""What a template is made of: plain text, actions, and the pipelines in them. Pure."""

from collections.abc import Mapping

import msgspec


class Dot(msgspec.Struct, frozen=True):
    """The value that is meant at the moment."""


class Constant(msgspec.Struct, frozen=True):
    """A value that is written down."""

    value: object


class Variable(msgspec.Struct, frozen=True):
    """A variable; `$` is what the template was given."""

    name: str


class Function(msgspec.Struct, frozen=True):
    """A function by its name."""

    name: str


class Chain(msgspec.Struct, frozen=True):
    """Fields of a value, one of the other."""

    of: "Operand"
    names: tuple[str, ...]


class Command(msgspec.Struct, frozen=True):
    """An operand, or a function with its arguments."""

    operands: tuple["Operand", ...]


class Pipe(msgspec.Struct, frozen=True):
    """Commands, of which each gets the result of the one before it; and who keeps the result."""

    line: int
    commands: tuple[Command, ...]
    variables: tuple[str, ...] = ()
    declares: bool = True  # the variables are new


class Plain(msgspec.Struct, frozen=True):
    """Text outside of actions."""

    text: str


class Show(msgspec.Struct, frozen=True):
    """Writes the result of a pipeline, unless a variable keeps it."""

    pipe: Pipe


class If(msgspec.Struct, frozen=True):
    """One of two bodies."""

    pipe: Pipe
    body: "Body"
    otherwise: "Body"


class With(msgspec.Struct, frozen=True):
    """A body for a value that is not empty, and one without it."""

    pipe: Pipe
    body: "Body"
    otherwise: "Body"


class Range(msgspec.Struct, frozen=True):
    """A body for each of several values, and one for none."""

    pipe: Pipe
    body: "Body"
    otherwise: "Body"


class Call(msgspec.Struct, frozen=True):
    """Another template, with a value."""

    line: int
    name: str
    pipe: Pipe | None


class Leave(msgspec.Struct, frozen=True):
    """Ends a loop, or this turn of it."""

    ends: bool


class Program(msgspec.Struct, frozen=True):
    """A template and those that it defines."""

    body: "Body"
    templates: Mapping[str, "Body"]


Operand = Dot | Constant | Variable | Function | Chain | Pipe
Node = Plain | Show | If | With | Range | Call | Leave
Body = tuple[Node, ...]
