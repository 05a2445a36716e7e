# ruff: noqa: ANN401  # a wire document holds anything; its shape says what
"""Looking at a document: what an expression's selectors lead to, and whether it is true."""

from typing import Any

import msgspec

from daemon.jobspec.filters.operators import OPERATORS, integer
from daemon.jobspec.filters.shapes import ANY, INT, INVALID, STRING, Shape
from daemon.jobspec.filters.tree import And, Collection, Match, Node, Not, Or, Selector
from daemon.jobspec.gotext import quote
from storage.errors import Malformed


class Name(msgspec.Struct, frozen=True):
    """A name bound by `any` or `all`: to a path in the document, or to a key or index."""

    name: str
    path: tuple[str, ...] = ()
    value: object = None
    shape: Shape = STRING


Names = tuple[Name, ...]
_Found = tuple[Any, Shape]  # a value, and how it looks


class _Missing(Exception):
    """A map has no such key, or a record no such field."""


class Look:
    """One document, looked at."""

    forgiving = False  # whether what is inside of nothing is nothing, instead of an error

    def __init__(self, document: object, shape: Shape) -> None:
        self.document, self.shape = document, shape

    def at(self, node: Node, names: Names) -> bool:
        """Tell whether an expression is true of the document."""
        match node:
            case Not(inner):
                return not self.at(inner, names)
            case And(nodes):
                return all(self.at(one, names) for one in nodes)
            case Or(nodes):
                return any(self.at(one, names) for one in nodes)
            case Collection():
                return self.collection(node, names)
            case Match():
                return self.match(node, names)

    def match(self, node: Match, names: Names) -> bool:
        """Tell whether a comparison holds."""
        found = self.find(node.selector, names)
        if found is None:  # nothing equals, contains or matches a missing key, and it is empty
            return (node.operator in ("empty", "nil")) is not node.negated
        return OPERATORS[node.operator](node, *found) is not node.negated

    def collection(self, node: Collection, names: Names) -> bool:
        """Tell whether any, or all, of the items of a list or a map are as wanted."""
        found = self.find(node.selector, names)
        if found is None:
            return node.every
        value, shape = found
        if shape.kind not in ("slice", "map"):
            raise Malformed(f"{node.selector} is not a list or a map")
        _, path = resolved(node.selector.path, names)
        for key in value if shape.kind == "map" else range(len(value or ())):
            if node.index and node.index == node.item:
                raise Malformed(
                    f"{quote(node.index)} cannot be used as a placeholder for both the index "
                    "and the value"
                )
            bound = (*names, *_bound(node, (*path, str(key)), key, shape))
            if self.at(node.node, bound) is not node.every:
                return not node.every
        return node.every

    # ---- finding values

    def find(self, selector: Selector, names: Names) -> _Found | None:
        """Return the value at a selector; None when a map lacks the key. Raises `Malformed`."""
        bound, path = resolved(selector.path, names)
        if bound is None:
            return self.walk(path)
        if len(path) == 1:
            return bound.value, bound.shape
        raise Malformed(
            f"{_pointer(path[:1])} references a {bound.shape.name} so {_pointer(path)} is invalid"
        )

    def walk(self, path: tuple[str, ...]) -> _Found | None:
        """Return what a path in the document leads to."""
        value, shape = self.document, self.shape
        for number, part in enumerate(path):
            value, shape = shape.dynamic(value)
            if shape is INVALID and self.forgiving:
                return None
            try:
                value, shape = _inside(value, shape, part, path, number)
            except _Missing as error:
                if shape.kind == "map" and number == len(path) - 1 and number > 0:
                    return None
                raise Malformed(
                    f"error finding value in datum: {_pointer(path)} at part {number}: {error}"
                ) from error
        return shape.dynamic(value)


def resolved(path: tuple[str, ...], names: Names) -> tuple[Name | None, tuple[str, ...]]:
    """Return a path in the document for one that may begin with a bound name.

    A name bound to a key or index is no path: it is returned along with what was left of it.
    """
    for name in reversed(names):
        if path[0] == name.name:
            if not name.path:
                return name, path
            path = (*name.path, *path[1:])
    return None, path


def _bound(node: Collection, path: tuple[str, ...], key: object, shape: Shape) -> tuple[Name, ...]:
    of_map = shape.kind == "map"
    key_shape = STRING if of_map else INT
    bound: list[Name] = []
    if node.name and of_map:
        bound.append(Name(node.name, value=key, shape=key_shape))
    elif node.name:
        bound.append(Name(node.name, path))
    if node.index:
        bound.append(Name(node.index, value=key, shape=key_shape))
    if node.item:
        bound.append(Name(node.item, path))
    return tuple(bound)


def _inside(value: Any, shape: Shape, part: str, path: tuple[str, ...], number: int) -> _Found:
    """Return what a field, key or index leads to. Raises `_Missing` or `Malformed`."""
    match shape.kind:
        case "struct":
            field = shape.fields.get(part)
            if field is None:
                raise _Missing(f"couldn't find key: struct field with name {quote(part)}")
            return value.get(field.name, field.empty), field.shape
        case "map":
            if part not in value:
                raise _Missing(f"couldn't find key {quote(part)}")
            return value[part], shape.item or ANY
        case "slice":
            return value[_index(part, len(value), path, number)], shape.item or ANY
        case kind:
            raise Malformed(
                f"error finding value in datum: {_pointer(path)}: at part {number}, "
                f"invalid value kind: {kind}"
            )


def _index(part: str, length: int, path: tuple[str, ...], number: int) -> int:
    where = f"error finding value in datum: {_pointer(path)} at part {number}"
    index = integer(part or "0")
    if index is None:
        raise Malformed(f"{where}: couldn't convert value {quote(part)} to type int")
    if not 0 <= index < length:
        raise Malformed(f"{where}: index {index} is out of range (length = {length})")
    return index


def _pointer(path: tuple[str, ...]) -> str:
    return "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in path)
