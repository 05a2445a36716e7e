"""Formatting for people: states, times, sizes, and URLs of pages. No I/O."""

import re
import shlex
from collections.abc import Mapping
from urllib.parse import quote, urlencode

from storage.records.base import SECOND

_SPANS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
_EXACT = 10 * SECOND  # from this length on, a time axis shows whole seconds
_MILLISECOND = 1_000_000  # nanoseconds
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
SHORT = 8  # characters of a shortened identifier
BAR = (
    "running",
    "pending",
    "complete",
    "failed",
    "lost",
    "unknown",
)  # in the order of a status bar


def address(*pieces: str, **query: object) -> str:
    """Return the URL of a page. Every second argument is a name, and is escaped."""
    path = "".join(quote(part, safe="") if index % 2 else part for index, part in enumerate(pieces))
    filled = {name: value for name, value in query.items() if value not in ("", None)}
    return f"{path}?{urlencode(filled)}" if filled else path


def is_internal_url(target: str) -> bool:
    """Return whether a URL, possibly untrusted, is an internal UI page."""
    is_plain = target.isascii() and target.isprintable() and "\\" not in target
    return is_plain and target.startswith("/ui/")


def command(*words: object) -> str:
    """Return the command line that calls `steward` with these words."""
    return shlex.join(["steward", *(str(word) for word in words if word not in ("", None))])


def short(identifier: str) -> str:
    """Return the first characters of an identifier, as pages show it."""
    return identifier[:SHORT]


def person(name: str) -> str:
    """Return the name of a person, or the prefix of an accessor if the token has no name.

    >>> person("a7415a5a-4ff1-4305-a8c9-fc9b2a797016"), person("ann@example.org")
    ('a7415a5a', 'ann@example.org')
    """
    return short(name) if _UUID.fullmatch(name) else name


def format_size(count: float) -> str:
    """Format a number of bytes in a suitable unit."""
    value, unit = float(count), 0
    while value >= 1024 and unit + 1 < len(_SIZES):
        value, unit = value / 1024, unit + 1
    return (
        f"{value:.0f} {_SIZES[unit]}" if unit == 0 or value >= 10 else f"{value:.1f} {_SIZES[unit]}"
    )


def format_duration(nanoseconds: int) -> str:
    """Format a duration in its two largest units; below a second, in milliseconds."""
    left = abs(nanoseconds) // SECOND
    if not left and nanoseconds:
        return f"{abs(nanoseconds) // _MILLISECOND} ms"
    parts: list[str] = []
    for seconds, unit in _SPANS:
        if left >= seconds and len(parts) < 2:
            parts.append(f"{left // seconds} {unit}")
            left %= seconds
        elif parts:
            break
    return " ".join(parts) or "0 s"


def format_length(nanoseconds: int) -> str:
    """Format a duration on a time axis: below ten seconds, with tenths of a second.

    >>> format_length(1_420_000_000), format_length(1_893_000_000)
    ('1.4 s', '1.9 s')
    """
    if SECOND <= nanoseconds < _EXACT:
        return f"{nanoseconds / SECOND:.1f} s"
    return (
        f"{nanoseconds // _MILLISECOND} ms"
        if nanoseconds < SECOND
        else format_duration(nanoseconds)
    )


def relative_time(now: int, then: int | None) -> str:
    """Format the time between `now` and `then`, such as `3 min ago`."""
    if not then:
        return "-"
    if abs(now - then) < SECOND:
        return "now"
    return (
        f"{format_duration(now - then)} ago" if then < now else f"in {format_duration(then - now)}"
    )


def counts(numbers: Mapping[str, int]) -> dict[str, int]:
    """Return the number of allocations in each status, in the order of a status bar."""
    return {status: numbers[status] for status in BAR if status in numbers}
