"""Durations in the format of Go: `1m0s`, `232.075167ms`, `0s`. No I/O."""

import re

from storage.records.base import HOUR, MINUTE, SECOND
from storage.records.numbers import parse_integer, shorten

_UNITS = {"ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": SECOND, "m": MINUTE, "h": HOUR}
_LONGEST = 2**63  # nanoseconds
# A part never begins within a number, so the search takes linear time.
_PART = re.compile(r"(?<![\d.])(\d++(?:\.\d*+)?|\.\d++)(ns|us|µs|ms|s|m|h)")


def text(nanoseconds: int) -> str:
    """Format a duration as Go does: in a single unit if it is shorter than one second.

    >>> text(232_075_167), text(60 * SECOND), text(4_410_933_804)
    ('232.075167ms', '1m0s', '4.410933804s')
    """
    if nanoseconds < 0:
        return f"-{text(-nanoseconds)}"
    if nanoseconds == 0:
        return "0s"
    if nanoseconds < SECOND:
        unit = next(name for name in ("ms", "µs", "ns") if nanoseconds >= _UNITS[name])
        return f"{_decimal(nanoseconds, _UNITS[unit])}{unit}"
    hours, rest = divmod(nanoseconds, HOUR)
    minutes, rest = divmod(rest, MINUTE)
    before = f"{hours}h{minutes}m" if hours else f"{minutes}m" if minutes else ""
    return f"{before}{_decimal(rest, SECOND)}s"


def _decimal(value: int, unit: int) -> str:
    whole, rest = divmod(value, unit)
    digits = len(str(unit)) - 1
    return f"{whole}.{rest:0{digits}}".rstrip("0").rstrip(".") if rest else str(whole)


def nanoseconds(span: str) -> int:
    """Parse a duration such as `1h30m` or `250ms` to nanoseconds. Raises `ValueError`."""
    if span == "0":
        return 0
    if not span or _PART.sub("", span):
        raise ValueError(f"{span!r} is not a duration such as 250ms or 1h30m")
    spans = [float(number) * _UNITS[unit] for number, unit in _PART.findall(span)]
    if sum(spans) >= _LONGEST:
        raise ValueError(f"{shorten(span)} is longer than 292 years")
    return sum(map(round, spans))


_DAYS = re.compile(r"\d{1,6}d")


def seconds(value: object) -> int | None:
    """Return a duration of the Vault API in seconds; None if it is invalid.

    A number without a unit is in seconds. A string can also have units, such as `90m` or `30d`.

    >>> seconds(90), seconds("90"), seconds("1.5h"), seconds("30d"), seconds("soon")
    (90, 90, 5400, 2592000, None)
    """
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return int(value)
    if not isinstance(value, str):
        return None
    sign, text = (-1, value.strip()[1:]) if value.strip()[:1] == "-" else (1, value.strip())
    if text.isdecimal() or not text:
        return sign * parse_integer(text or "0")
    if _DAYS.fullmatch(text):
        return sign * int(text[:-1]) * 24 * HOUR // SECOND
    try:
        return sign * (nanoseconds(text) // SECOND)
    except ValueError:
        return None
