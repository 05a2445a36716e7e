"""Words and numbers for people: short identifiers, ages, sizes, aligned columns. No I/O."""

from collections.abc import Iterable, Sequence

from daemon.text.control_characters import visible
from storage.errors import Invalid
from storage.records import durations
from storage.records.base import HOUR, MINUTE, SECOND
from storage.records.times import nanoseconds, rfc3339

NOTHING = "<none>"
_SHORT = 8  # digits of a short identifier, enough to be unique on one host
_DAY = 24 * HOUR
_AGES = ((_DAY, "d"), (HOUR, "h"), (MINUTE, "m"), (SECOND, "s"))


def short(identifier: str, *, verbose: bool = False) -> str:
    """Return the short prefix of an identifier; with `verbose`, the whole identifier."""
    return identifier if verbose else identifier[:_SHORT]


def format_time(time: int) -> str:
    """Format a time (nanoseconds since the epoch) to the second."""
    return rfc3339(time // SECOND * SECOND) if time else "N/A"


def format_api_time(text: str | None) -> str:
    """Format a time from the API to the second."""
    if not text or text.startswith("0001-"):
        return "N/A"
    if text.endswith("Z"):
        return format_time(nanoseconds(text))
    whole, _, rest = text.partition(".")  # a time zone other than UTC stays
    return whole + rest.lstrip("0123456789")


def format_duration(length: int) -> str:
    """Format a duration (nanoseconds) in its two largest units.

    >>> format_duration(3_723_000_000_000)
    '1h2m'
    """
    for index, (unit, letter) in enumerate(_AGES):
        count, remainder = divmod(max(length, 0), unit)
        if not count:
            continue
        finer = _AGES[index + 1 : index + 2]
        tail = [f"{remainder // size}{name}" for size, name in finer if remainder >= size]
        return "".join([f"{count}{letter}", *tail])
    return "0s"


def relative_time(time: int, now: int) -> str:
    """Format the age of a time."""
    return f"{format_duration(now - time)} ago" if time else "N/A"


def padded(rows: Iterable[Sequence[str]]) -> list[list[str]]:
    """Return rows with cells padded to the width of their columns, without control characters."""
    table = [[visible(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in table]


def columns(rows: Iterable[Sequence[str]]) -> list[str]:
    """Return rows as lines with aligned columns, without trailing spaces."""
    return ["  ".join(row).rstrip() for row in padded(rows)]


def key_value_lines(pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Return names and values as lines with aligned equal signs."""
    width = max((len(name) for name, _ in pairs), default=0)
    return [f"{name.ljust(width)} = {visible(value) or NOTHING}" for name, value in pairs]


def seconds(option: str, text: str, *words: str) -> float:
    """Parse a duration such as `1m30s`. Raises `Invalid`, which names the option.

    The error also lists `words`, the other permitted values of the option.
    """
    try:
        return durations.nanoseconds(text) / SECOND
    except ValueError:
        expected = " nor ".join(["a duration such as 10s", *(f'"{word}"' for word in words)])
        wrong = "neither" if words else "not"
        raise Invalid(f"{option} {text!r} is {wrong} {expected}") from None


def time_of(option: str, text: str, now: int) -> int:
    """Parse a time (RFC 3339), or an age such as `10m`.

    Return nanoseconds since the epoch, or 0 for an empty string. Raises `Invalid`, which names the
    option.
    """
    if not text:
        return 0
    try:
        if "T" in text:
            return nanoseconds(text)
        return now - durations.nanoseconds(text)
    except ValueError:
        raise Invalid(
            f"{option} {text!r} is neither a time such as 2026-11-21T01:40:00Z nor a duration such as 10m"
        ) from None
