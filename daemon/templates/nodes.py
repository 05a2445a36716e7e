"""Syntax tree of a template: plain text, actions and pipelines. No I/O."""

from collections.abc import Mapping

import msgspec


class DotNode(msgspec.Struct, frozen=True):
    """The current value, `.`."""


class ConstantNode(msgspec.Struct, frozen=True):
    """A literal."""

    value: object


class VariableNode(msgspec.Struct, frozen=True):
    """A variable; `$` is the value passed to the template."""

    name: str


class FunctionNode(msgspec.Struct, frozen=True):
    """A function, by name."""

    name: str


class FieldChainNode(msgspec.Struct, frozen=True):
    """A chain of fields of a value."""

    of: "Operand"
    names: tuple[str, ...]


class CommandNode(msgspec.Struct, frozen=True):
    """An operand, or a function with its arguments."""

    operands: tuple["Operand", ...]


class PipeNode(msgspec.Struct, frozen=True):
    """A chain of commands, and the variables for its result.

    Each command receives the previous result as its last argument.
    """

    line: int
    commands: tuple[CommandNode, ...]
    variables: tuple[str, ...] = ()
    declares: bool = True  # the variables are declared here


class TextNode(msgspec.Struct, frozen=True):
    """Text outside of actions."""

    text: str


class OutputNode(msgspec.Struct, frozen=True):
    """Output of a pipeline's result, unless a variable receives it."""

    pipe: PipeNode


class IfNode(msgspec.Struct, frozen=True):
    """A conditional with two bodies."""

    pipe: PipeNode
    body: "Body"
    otherwise: "Body"


class WithNode(msgspec.Struct, frozen=True):
    """A `with` block: a body for a non-empty value, and a body for an empty value."""

    pipe: PipeNode
    body: "Body"
    otherwise: "Body"


class RangeNode(msgspec.Struct, frozen=True):
    """A `range` block: a body for each item, and a body for an empty collection."""

    pipe: PipeNode
    body: "Body"
    otherwise: "Body"


class TemplateCallNode(msgspec.Struct, frozen=True):
    """A call of another template with a value."""

    line: int
    name: str
    pipe: PipeNode | None


class BreakNode(msgspec.Struct, frozen=True):
    """A `break` or `continue`: the end of a loop, or of its current iteration."""

    ends: bool


class ParsedTemplate(msgspec.Struct, frozen=True):
    """A template with the templates that it defines."""

    body: "Body"
    templates: Mapping[str, "Body"]


Operand = DotNode | ConstantNode | VariableNode | FunctionNode | FieldChainNode | PipeNode
Node = TextNode | OutputNode | IfNode | WithNode | RangeNode | TemplateCallNode | BreakNode
Body = tuple[Node, ...]
