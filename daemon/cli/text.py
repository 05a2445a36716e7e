"""Words and numbers for people: short identifiers, ages, sizes, aligned columns. Pure."""

from collections.abc import Iterable, Sequence

from storage.errors import Invalid
from storage.records import durations
from storage.records.base import HOUR, MINUTE, SECOND
from storage.records.times import nanoseconds, rfc3339

NOTHING = "<none>"
_SHORT = 8  # digits of an identifier that people see; unique enough on one machine
_DAY = 24 * HOUR
_AGES = ((_DAY, "d"), (HOUR, "h"), (MINUTE, "m"), (SECOND, "s"))


def short(identifier: str, *, verbose: bool = False) -> str:
    """Return the beginning of an identifier, or all of it."""
    return identifier if verbose else identifier[:_SHORT]


def moment(at: int) -> str:
    """Return a point in time (nanoseconds since the epoch), to the second."""
    return rfc3339(at // SECOND * SECOND) if at else "N/A"


def moment_of(text: str | None) -> str:
    """Return a point in time that the wire gives as text, to the second."""
    if not text or text.startswith("0001-"):
        return "N/A"
    if text.endswith("Z"):
        return moment(nanoseconds(text))
    whole, _, rest = text.partition(".")  # in another time zone, which stays
    return whole + rest.lstrip("0123456789")


def span(length: int) -> str:
    """Return a length of time (nanoseconds) in its two largest units.

    >>> span(3_723_000_000_000)
    '1h2m'
    """
    for place, (unit, letter) in enumerate(_AGES):
        count, rest = divmod(max(length, 0), unit)
        if not count:
            continue
        finer = _AGES[place + 1 : place + 2]
        tail = [f"{rest // size}{name}" for size, name in finer if rest >= size]
        return "".join([f"{count}{letter}", *tail])
    return "0s"


def ago(at: int, now: int) -> str:
    """Return how long ago a point in time was."""
    return f"{span(now - at)} ago" if at else "N/A"


def padded(rows: Iterable[Sequence[str]]) -> list[list[str]]:
    """Return rows whose cells are as wide as the widest of their column."""
    table = [list(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in table]


def columns(rows: Iterable[Sequence[str]]) -> list[str]:
    """Return rows as lines whose columns begin below each other, without blanks at their ends."""
    return ["  ".join(row).rstrip() for row in padded(rows)]


def facts(pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Return names and values as lines with the equal signs below each other."""
    width = max((len(name) for name, _ in pairs), default=0)
    return [f"{name.ljust(width)} = {value or NOTHING}" for name, value in pairs]


def seconds(option: str, given: str, *words: str) -> float:
    """Return a length of time such as `1m30s`. Raises `Invalid`, which names the words beside it."""
    try:
        return durations.nanoseconds(given) / SECOND
    except ValueError:
        known = " nor ".join(["a time like 10s", *(f'"{word}"' for word in words)])
        wrong = "neither" if words else "not"
        raise Invalid(f"{option} {given!r} is {wrong} {known}") from None
