"""Filter expressions over wire documents: which objects of a listing a client wants to see.

A record says which fields there are and of what type: the value of an expression is read as the
type of the field it is compared with, a field that does not exist is an error, a key that a map
does not have is not. Such errors come up when the first object is looked at, as the peer has it
(golden: list-jobs).
"""

from collections.abc import Callable, Iterable
from typing import TypeVar

import msgspec

from storage.errors import Malformed

Predicate = Callable[[object], bool]
Item = TypeVar("Item", bound=msgspec.Struct)


def compile_filter(text: str, record: type[msgspec.Struct]) -> Predicate:
    """Return a function that tells whether a wire document of a record is wanted.

    Both the compilation and the function raise `Malformed`, with what a listing answers.
    """
    # Few listings are filtered.
    from daemon.jobspec.filters.look import Look
    from daemon.jobspec.filters.shapes import shape_of
    from daemon.jobspec.filters.syntax import parse

    try:
        node = parse(text)
    except Malformed as error:
        raise Malformed(
            f"failed to create result paginator: failed to read filter expression: {error}"
        ) from error
    shape = shape_of(record)

    def wanted(document: object) -> bool:
        try:
            return Look(document, shape).at(node, ())
        except Malformed as error:
            raise Malformed(f"failed to read result page: {error}") from error

    return wanted


def only_wanted(items: Iterable[Item], text: str, record: type[Item]) -> list[Item]:
    """Return those of the records that a filter wants; all of them when its text is empty."""
    if not text:
        return list(items)
    wanted = compile_filter(text, record)
    return [item for item in items if wanted(msgspec.to_builtins(item))]
