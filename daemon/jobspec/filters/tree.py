"""A filter expression as a tree."""

import msgspec


class Selector(msgspec.Struct, frozen=True):
    """The way to a value: names of fields, keys of maps, indexes of lists."""

    path: tuple[str, ...]
    separator: str = "."  # "/" when it was written as a JSON pointer

    def __str__(self) -> str:
        """Return the way as it is shown, and as a bare word stands for itself."""
        return self.separator.join(self.path)


class Match(msgspec.Struct, frozen=True):
    """A comparison of the value at a selector: `equal`, `in`, `empty`, `nil` or `matches`."""

    selector: Selector
    operator: str
    value: str = ""
    negated: bool = False


class Not(msgspec.Struct, frozen=True):
    """The opposite."""

    node: "Node"


class And(msgspec.Struct, frozen=True):
    """All of them."""

    nodes: tuple["Node", ...]


class Or(msgspec.Struct, frozen=True):
    """At least one of them."""

    nodes: tuple["Node", ...]


class Collection(msgspec.Struct, frozen=True):
    """`any` or `all` of the items of a list or map, each under one or two names."""

    every: bool
    selector: Selector
    node: "Node"
    name: str = ""  # the key of a map, the item of a list
    index: str = ""
    item: str = ""


Node = Match | Not | And | Or | Collection
