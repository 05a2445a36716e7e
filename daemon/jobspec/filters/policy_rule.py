"""Policy rules: filter expressions with ordered comparisons and traversal of lists.

    all TaskGroups.Tasks as task { task.Resources.MemoryMB <= 4096 }

A rule is parsed once and used many times. So the parser checks that fields exist and that compared
values have the type of their field. Any field of a null object is null. A job without a block
therefore fails a limit on that block.
"""

from collections.abc import Iterator, Mapping

import msgspec

from daemon.jobspec.filters.evaluate import FilterEvaluation, Names, resolved
from daemon.jobspec.filters.operators import check_value
from daemon.jobspec.filters.shapes import ANY, DRIVER, INT, STRING, DocumentShape, shape_of
from daemon.jobspec.filters.syntax import parse
from daemon.jobspec.filters.tree import And, CollectionMatch, Comparison, Node, Not, Or, Selector
from daemon.text.go_format import quote
from daemon.text.hints import closest
from storage.errors import Malformed
from storage.records.driver import spellings

_Bound = Mapping[str, DocumentShape]  # values of the names that `any` and `all` bind


class PolicyFilter:
    """A rule over the documents of a record."""

    def __init__(self, text: str, record: type[msgspec.Struct]) -> None:
        """Raise `Malformed` if the rule cannot apply to any document of the record."""
        self.node = parse(text, of_policy=True)
        self._shape = shape_of(record)
        _check(self.node, self._shape, {})

    def matches(self, document: object, most: int | None = None) -> bool:
        """Return whether a document satisfies the rule.

        Raises `Malformed` if the rule cannot be evaluated for this document, or if this takes more
        than `most` steps; None means no limit.
        """
        return _Inspection(document, self._shape, most).at(self.node, ())


def selectors(node: Node) -> Iterator[tuple[str, ...]]:
    """Yield the paths of all values that a rule compares or traverses."""
    match node:
        case Not(inner):
            yield from selectors(inner)
        case And(nodes) | Or(nodes):
            for operand in nodes:
                yield from selectors(operand)
        case Comparison():
            yield node.selector.path
        case CollectionMatch():
            yield node.selector.path
            yield from selectors(node.node)


def equalities(node: Node) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the path and the text of each value that a rule compares for equality.

    The path of a value in an item of `any` or `all` has three parts: the path of the collection,
    `*` for the item, and the path within the item.
    """
    match node:
        case Not(inner):
            yield from equalities(inner)
        case And(nodes) | Or(nodes):
            for operand in nodes:
                yield from equalities(operand)
        case Comparison():
            if node.operator == "equal":
                yield node.selector.path, node.value
        case CollectionMatch():
            bound = {name for name in (node.name, node.item) if name}
            for path, value in equalities(node.node):
                is_bound = path[0] in bound
                yield (*node.selector.path, "*", *path[1:]) if is_bound else path, value


def has_nested_collections(node: Node, *, is_inside: bool = False) -> bool:
    """Return whether a rule has an `any` or `all` inside another `any` or `all`."""
    match node:
        case Not(inner):
            return has_nested_collections(inner, is_inside=is_inside)
        case And(nodes) | Or(nodes):
            return any(has_nested_collections(node, is_inside=is_inside) for node in nodes)
        case CollectionMatch():
            return is_inside or has_nested_collections(node.node, is_inside=True)
        case Comparison():
            return False


# --- evaluation ---


class _Inspection(FilterEvaluation):
    """Evaluation that traverses lists: `TaskGroups.Tasks` selects the tasks of all groups."""

    forgiving = True

    def match(self, node: Comparison, names: Names) -> bool:
        """Return whether a comparison is true. A driver matches if any of its aliases matches."""
        value_and_shape = self.find(node.selector, names)
        if value_and_shape is None or value_and_shape[1] is not DRIVER:
            return super().match(node, names)
        aliases = spellings(value_and_shape[0])
        return any(self.apply(node, spelling, STRING) for spelling in aliases) is not node.negated

    def collection(self, node: CollectionMatch, names: Names) -> bool:
        """Return whether any, or all, items of all selected lists satisfy the condition."""
        bound, path = resolved(node.selector.path, names)
        if bound is not None:
            return super().collection(node, names)
        lists = (
            super(_Inspection, self).collection(
                msgspec.structs.replace(node, selector=Selector(pair)), names
            )
            for pair in self._lists(path)
        )
        return all(lists) if node.every else any(lists)

    def _lists(self, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        """Yield the path with its omitted list indexes, once for each combination of indexes."""
        self.step()
        for number, part in enumerate(path):
            value_and_shape = self.walk(path[:number])
            if value_and_shape is None:
                return
            value, shape = value_and_shape
            if shape.kind == "slice" and not part.isdecimal():
                for index in range(len(value)):
                    yield from self._lists((*path[:number], str(index), *path[number:]))
                return
        yield path


# --- checks of a rule ---


def _check(node: Node, shape: DocumentShape, names: _Bound) -> None:
    """Raise `Malformed` if a rule refers to a field or value that documents cannot have."""
    match node:
        case Not(inner):
            _check(inner, shape, names)
        case And(nodes) | Or(nodes):
            for operand in nodes:
                _check(operand, shape, names)
        case Comparison():
            document_shape = _shape_at(node.selector, shape, names, through_lists=False)
            if document_shape is not ANY:
                check_value(node, document_shape)
        case CollectionMatch():
            document_shape = _shape_at(node.selector, shape, names, through_lists=True)
            if document_shape is not ANY and document_shape.kind not in ("slice", "map"):
                raise Malformed(f"{node.selector} is neither a list nor a map")
            _check(node.node, shape, {**names, **_bound(node, document_shape)})


def _bound(node: CollectionMatch, shape: DocumentShape) -> _Bound:
    item_shape = shape.item or ANY
    key = STRING if shape.kind == "map" else INT
    bindings = {
        node.name: key if shape.kind == "map" else item_shape,
        node.index: key,
        node.item: item_shape,
    }
    return {name: value for name, value in bindings.items() if name}


def _shape_at(
    selector: Selector, shape: DocumentShape, names: _Bound, *, through_lists: bool
) -> DocumentShape:
    first, *rest = selector.path
    path = rest if first in names else [first, *rest]
    current_shape = names.get(first, shape)
    for part in path:
        if current_shape.kind == "slice" and not part.isdecimal():
            if not through_lists:
                raise Malformed(
                    f"{selector} goes through a list: write `any` or `all` before {quote(part)}"
                )
            current_shape = current_shape.item or ANY
        current_shape = _member_shape(current_shape, part, selector)
    return current_shape


def _member_shape(shape: DocumentShape, part: str, selector: Selector) -> DocumentShape:
    match shape.kind:
        case "struct":
            field = shape.fields.get(part)
            if field is None:
                close = closest(part, shape.fields)
                hint = f"; did you mean {close}?" if close else ""
                raise Malformed(f"{selector}: there is no field {quote(part)}{hint}")
            return field.shape
        case "map" | "slice":
            return shape.item or ANY
        case "interface":
            return ANY
        case kind:
            raise Malformed(f"{selector}: a {kind} has no fields")
