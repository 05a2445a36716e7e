# ruff: noqa: ANN401  # a wire document may hold any value; its shape has the type
"""Evaluation of a filter expression against a document: selectors and conditions."""

from typing import Any

import msgspec

from daemon.jobspec.filters.operators import OPERATORS, integer, match_cost
from daemon.jobspec.filters.shapes import ANY, INT, INVALID, STRING, DocumentShape
from daemon.jobspec.filters.tree import And, CollectionMatch, Comparison, Node, Not, Or, Selector
from daemon.text.go_format import quote
from storage.errors import Malformed
from storage.loop_share import spend


class BoundName(msgspec.Struct, frozen=True):
    """A name that `any` or `all` binds to a path in the document, or to a key or index."""

    name: str
    path: tuple[str, ...] = ()
    value: object = None
    shape: DocumentShape = STRING


Names = tuple[BoundName, ...]
_STEP = 3  # µs of CPU time
_SHOWN = 40  # characters of a pattern
MAX_STEPS = 20_000  # for one document: nested `any` and `all` multiply their items
_Found = tuple[Any, DocumentShape]  # a value and its shape


class _Missing(Exception):
    """The map has no such key, or the record no such field."""


class FilterEvaluation:
    """Evaluation of an expression against one document.

    The number of steps is limited; None means no limit. A step evaluates one part of the expression
    for one item. The search for a pattern counts as one step for each 3 µs that it may take.
    """

    forgiving = False  # whether a field of null is null, instead of an error

    def __init__(
        self, document: object, shape: DocumentShape, most: int | None = MAX_STEPS
    ) -> None:
        self.document, self.shape = document, shape
        self._most, self.taken = most, 0  # `taken`: the steps so far

    def step(self) -> None:
        """Count a step. Raises `Malformed` after too many."""
        spend(_STEP)
        self._take(1, "use fewer nested any and all")

    def _take(self, steps: int, fix: str) -> None:
        self.taken += steps
        if self._most is not None and self.taken > self._most:
            raise Malformed(
                f"the condition takes too long: more than {self._most} steps for one object; {fix}"
            )

    def apply(self, node: Comparison, value: object, shape: DocumentShape) -> bool:
        """Return the result of a comparison's operator for a value, before any negation.

        Raises `Malformed` if the operator cannot be applied to the value, or takes too many steps.
        """
        if cost := match_cost(node, value, shape):
            fix = f"use a shorter pattern than {quote(node.value[:_SHOWN])}, or one with less repetition"
            self._take(cost // _STEP, fix)
        return OPERATORS[node.operator](node, value, shape)

    def at(self, node: Node, names: Names) -> bool:
        """Return whether an expression is true for the document. Raises `Malformed`."""
        self.step()
        match node:
            case Not(inner):
                return not self.at(inner, names)
            case And(nodes):
                return all(self.at(node, names) for node in nodes)
            case Or(nodes):
                return any(self.at(node, names) for node in nodes)
            case CollectionMatch():
                return self.collection(node, names)
            case Comparison():
                return self.match(node, names)

    def match(self, node: Comparison, names: Names) -> bool:
        """Return whether a comparison is true."""
        value_and_shape = self.find(node.selector, names)
        # A missing key counts as empty and nil. No other operator is true for it.
        if value_and_shape is None:
            return (node.operator in ("empty", "nil")) is not node.negated
        return self.apply(node, *value_and_shape) is not node.negated

    def collection(self, node: CollectionMatch, names: Names) -> bool:
        """Return whether any, or all, items of a list or a map satisfy the condition."""
        value_and_shape = self.find(node.selector, names)
        if value_and_shape is None:
            return node.every
        value, shape = value_and_shape
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

    # --- value lookup ---

    def find(self, selector: Selector, names: Names) -> _Found | None:
        """Return the value at a selector; None if a map lacks the key. Raises `Malformed`."""
        bound, path = resolved(selector.path, names)
        if bound is None:
            return self.walk(path)
        if len(path) == 1:
            return bound.value, bound.shape
        raise Malformed(
            f"{_pointer(path[:1])} references a {bound.shape.name} so {_pointer(path)} is invalid"
        )

    def walk(self, path: tuple[str, ...]) -> _Found | None:
        """Return the value at a path in the document."""
        value, shape = self.document, self.shape
        for number, part in enumerate(path):
            value, shape = shape.dynamic(value)
            if shape is INVALID and self.forgiving:
                return None
            try:
                value, shape = _member(value, shape, part, path, number)
            except _Missing as error:
                if shape.kind == "map" and number == len(path) - 1 and number > 0:
                    return None
                raise Malformed(
                    f"error finding value in datum: {_pointer(path)} at part {number}: {error}"
                ) from error
        return shape.dynamic(value)


def resolved(path: tuple[str, ...], names: Names) -> tuple[BoundName | None, tuple[str, ...]]:
    """Resolve a path that may begin with a bound name.

    Returns None and the path in the document. If the name is bound to a key or index, returns that
    `BoundName` and the path, which still begins with the name.
    """
    for name in reversed(names):
        if path[0] == name.name:
            if not name.path:
                return name, path
            path = (*name.path, *path[1:])
    return None, path


def _bound(
    node: CollectionMatch, path: tuple[str, ...], key: object, shape: DocumentShape
) -> tuple[BoundName, ...]:
    of_map = shape.kind == "map"
    key_shape = STRING if of_map else INT
    bound: list[BoundName] = []
    if node.name and of_map:
        bound.append(BoundName(node.name, value=key, shape=key_shape))
    elif node.name:
        bound.append(BoundName(node.name, path))
    if node.index:
        bound.append(BoundName(node.index, value=key, shape=key_shape))
    if node.item:
        bound.append(BoundName(node.item, path))
    return tuple(bound)


def _member(
    value: Any, shape: DocumentShape, part: str, path: tuple[str, ...], number: int
) -> _Found:
    """Return the value of a field, key or index. Raises `_Missing` or `Malformed`."""
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
