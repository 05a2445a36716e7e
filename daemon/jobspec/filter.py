"""Filter expressions over wire documents, which select objects of a listing.

A record defines the fields and their types. The type of a field determines the type of the value
that it is compared with. An unknown field is an error; a missing map key is not. As in Nomad, the
check of the first object raises these errors, so an empty listing has none (source: Nomad's
recorded responses `list-jobs`).
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeVar

import msgspec

from storage.errors import Malformed
from storage.loop_share import spend
from storage.request_context import mask_view

if TYPE_CHECKING:
    from daemon.jobspec.filters.conditions import Conditions
    from daemon.jobspec.filters.tree import Node

_CHARACTER = 1  # µs of CPU time to parse a character, not counting the attempts to match a form
_FREE_STEPS = 100  # free steps for each object: they take less time than reading the object
MAX_STEPS = 2_000_000  # beyond the free steps, for all objects of a request: 6 s of CPU time

Item = TypeVar("Item", bound=msgspec.Struct)


class Filter:
    """A predicate on the wire documents of a record, for the objects of one request.

    The constructor and the call raise `Malformed` with the listing's error text. The first steps of
    each object's check are free. Only its further steps count towards the limit for the request, so
    a list may have any length.
    """

    def __init__(self, text: str, record: type[msgspec.Struct]) -> None:
        # Few listings have a filter.
        from daemon.jobspec.filters.evaluate import FilterEvaluation
        from daemon.jobspec.filters.shapes import shape_of
        from daemon.jobspec.filters.syntax import parse

        spend(_CHARACTER * len(text))
        try:
            self._node = parse(text)
        except Malformed as error:
            raise Malformed(
                f"failed to create result paginator: failed to read filter expression: {error}"
            ) from error
        self._look, self._shape = FilterEvaluation, shape_of(record)
        self._view = mask_view()
        self._left = MAX_STEPS

    def __call__(self, document: object) -> bool:
        """Return whether a document matches."""
        if self._view is not None:
            document = self._view.document(document)
        evaluation = self._look(document, self._shape)
        try:
            is_match = evaluation.at(self._node, ())
            self._left -= max(evaluation.taken - _FREE_STEPS, 0)
            if self._left < 0:
                raise Malformed(  # noqa: TRY301  # one text for all errors of the filter
                    f"the filter takes too long: more than {MAX_STEPS} steps for all objects, "
                    f"in addition to {_FREE_STEPS} for each; use shorter patterns, use `any` and "
                    "`all` less often, or limit the list by prefix or namespace"
                )
        except Malformed as error:
            raise Malformed(f"failed to read result page: {error}") from error
        return is_match

    @property
    def names(self) -> frozenset[str]:
        """Return the names of the fields that the filter reads, and names that `any` binds."""
        return frozenset(_first_names(self._node))

    def conditions(self, columns: Mapping[str, str]) -> "Conditions":
        """Return conditions that the store can apply. The caller must still check each object."""
        from daemon.jobspec.filters.conditions import Conditions

        # The columns of the store are not masked.
        return Conditions(self._node, columns if self._view is None else {})


def _first_names(node: "Node") -> Iterator[str]:
    from daemon.jobspec.filters.tree import And, CollectionMatch, Not, Or

    match node:
        case Not(inner):
            yield from _first_names(inner)
        case And(nodes) | Or(nodes):
            for inner in nodes:
                yield from _first_names(inner)
        case CollectionMatch():
            yield node.selector.path[0]
            yield from _first_names(node.node)
        case _:
            yield node.selector.path[0]


def compile_filter(text: str, record: type[msgspec.Struct]) -> Filter:
    """Compile a filter. Raises `Malformed`."""
    return Filter(text, record)


def matching_records(items: Iterable[Item], text: str, record: type[Item]) -> list[Item]:
    """Return the records that match a filter; all records if its text is empty."""
    if not text:
        return list(items)
    matches = compile_filter(text, record)
    return [candidate for candidate in items if matches(msgspec.to_builtins(candidate))]
