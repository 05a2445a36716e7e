"""Durations in job files, such as `1h30m` or `250ms`, with Go's error messages."""

import re

from daemon.text.go_format import quote
from storage.records.base import HOUR, MINUTE, SECOND

_UNITS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,  # U+00B5, the micro sign
    "μs": 1_000,  # U+03BC, the Greek letter
    "ms": 1_000_000,
    "s": SECOND,
    "m": MINUTE,
    "h": HOUR,
}
_PART = re.compile(r"(\d*)(?:\.(\d*))?([^\d.]*)", re.ASCII)
_LONGEST = 2**63  # nanoseconds: 292 years


def read_duration(text: str) -> int:
    """Parse a duration to nanoseconds. Raises `ValueError` with the reason."""
    rest = text[1:] if text[:1] in ("+", "-") else text
    if rest == "0":
        return 0
    total = 0
    if not rest or len(rest) > 100:
        raise ValueError(f"time: invalid duration {quote(text[:100])}")
    while rest:
        match = _PART.match(rest)
        digits, fraction, unit = match.groups(default="") if match else ("", "", "")
        if not digits and not fraction:
            raise ValueError(f"time: invalid duration {quote(text)}")
        if not unit:
            raise ValueError(f"time: missing unit in duration {quote(text)}")
        if unit not in _UNITS:
            raise ValueError(f"time: unknown unit {quote(unit)} in duration {quote(text)}")
        total += int(digits or 0) * _UNITS[unit]
        total += int(fraction or 0) * _UNITS[unit] // 10 ** len(fraction)
        rest = rest[match.end() :] if match else ""
    if total >= _LONGEST:
        raise ValueError(f"time: invalid duration {quote(text)}")
    return -total if text.startswith("-") else total
