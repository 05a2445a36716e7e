"""Syntax tree of a filter expression."""

import msgspec


class Selector(msgspec.Struct, frozen=True):
    """A path to a value: names of fields, keys of maps, indexes of lists."""

    path: tuple[str, ...]
    separator: str = "."  # "/" for a JSON pointer

    def __str__(self) -> str:
        """Return the path as text: for messages, and as the value of a bare word."""
        return self.separator.join(self.path)


class Comparison(msgspec.Struct, frozen=True):
    """A comparison of the value at a selector: `equal`, `in`, `empty`, `nil` or `matches`."""

    selector: Selector
    operator: str
    value: str = ""
    negated: bool = False


class Not(msgspec.Struct, frozen=True):
    """Negation."""

    node: "Node"


class And(msgspec.Struct, frozen=True):
    """Conjunction."""

    nodes: tuple["Node", ...]


class Or(msgspec.Struct, frozen=True):
    """Disjunction."""

    nodes: tuple["Node", ...]


class CollectionMatch(msgspec.Struct, frozen=True):
    """`any` or `all` over the items of a list or map, with one or two bound names."""

    every: bool
    selector: Selector
    node: "Node"
    name: str = ""  # a map's key or a list's item
    index: str = ""
    item: str = ""


Node = Comparison | Not | And | Or | CollectionMatch
