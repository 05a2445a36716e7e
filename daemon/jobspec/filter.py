"""Filter expressions over wire documents, which select objects of a listing.

A record defines the fields and their types. The type of a field determines the type of the value
that it is compared with. An unknown field is an error; a missing map key is not. As in Nomad, these
errors occur at the first object (recorded from Nomad: list-jobs).
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar

import msgspec

from storage.errors import Malformed
from storage.loop_share import spend

if TYPE_CHECKING:
    from daemon.jobspec.filters.conditions import Conditions

_CHARACTER = 1  # µs of CPU time to read one, without attempts at forms

Item = TypeVar("Item", bound=msgspec.Struct)


class Filter:
    """A predicate on the wire documents of a record.

    The constructor and the call raise `Malformed` with the listing's error text.
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

    def __call__(self, document: object) -> bool:
        """Return whether a document matches."""
        try:
            return self._look(document, self._shape).at(self._node, ())
        except Malformed as error:
            raise Malformed(f"failed to read result page: {error}") from error

    def conditions(self, columns: Mapping[str, str]) -> "Conditions":
        """Return conditions that the store can apply. The caller must still check each object."""
        from daemon.jobspec.filters.conditions import Conditions

        return Conditions(self._node, columns)


def compile_filter(text: str, record: type[msgspec.Struct]) -> Filter:
    """Compile a filter. Raises `Malformed`."""
    return Filter(text, record)


def only_wanted(items: Iterable[Item], text: str, record: type[Item]) -> list[Item]:
    """Return the records that match a filter; all records if its text is empty."""
    if not text:
        return list(items)
    wanted = compile_filter(text, record)
    return [item for item in items if wanted(msgspec.to_builtins(item))]
