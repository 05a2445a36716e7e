"""Filter expressions over wire documents: which objects of a listing a client wants to see.

A record says which fields there are and of what type: the value of an expression is read as the
type of the field it is compared with, a field that does not exist is an error, a key that a map
does not have is not. Such errors come up when the first object is looked at, as the peer has it
(golden: list-jobs).
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar

import msgspec

from storage.errors import Malformed

if TYPE_CHECKING:
    from daemon.jobspec.filters.conditions import Conditions

Item = TypeVar("Item", bound=msgspec.Struct)


class Filter:
    """A function that tells whether a wire document of a record is wanted.

    Both the making and the call raise `Malformed`, with what a listing answers.
    """

    def __init__(self, text: str, record: type[msgspec.Struct]) -> None:
        # Few listings are filtered.
        from daemon.jobspec.filters.look import Look
        from daemon.jobspec.filters.shapes import shape_of
        from daemon.jobspec.filters.syntax import parse

        try:
            self._node = parse(text)
        except Malformed as error:
            raise Malformed(
                f"failed to create result paginator: failed to read filter expression: {error}"
            ) from error
        self._look, self._shape = Look, shape_of(record)

    def __call__(self, document: object) -> bool:
        """Tell whether a document is wanted."""
        try:
            return self._look(document, self._shape).at(self._node, ())
        except Malformed as error:
            raise Malformed(f"failed to read result page: {error}") from error

    def conditions(self, columns: Mapping[str, str]) -> "Conditions":
        """Return what the store can leave out by itself; the rest has to be looked at all the same."""
        from daemon.jobspec.filters.conditions import Conditions

        return Conditions(self._node, columns)


def compile_filter(text: str, record: type[msgspec.Struct]) -> Filter:
    """Return a filter. Raises `Malformed`."""
    return Filter(text, record)


def only_wanted(items: Iterable[Item], text: str, record: type[Item]) -> list[Item]:
    """Return those of the records that a filter wants; all of them when its text is empty."""
    if not text:
        return list(items)
    wanted = compile_filter(text, record)
    return [item for item in items if wanted(msgspec.to_builtins(item))]
