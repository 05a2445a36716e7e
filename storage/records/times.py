"""Times: integer nanoseconds since the epoch internally, RFC 3339 text on the wire."""

from datetime import UTC, datetime, tzinfo

from storage.records.base import SECOND

ZERO_TIME = "0001-01-01T00:00:00Z"
_DATE, _SECONDS = len("2026-11-21"), len("2026-11-21T01:40:01")
_FIRST, _LAST = -62_135_596_800, 253_402_300_799  # seconds: all times with a four-digit year


def rfc3339(nanoseconds: int, zone: tzinfo = UTC) -> str:
    """Format a time in a time zone, with as many decimals as needed.

    Times outside the years 1 to 9999 are clamped. The files of a task can have such times.

    >>> rfc3339(1795225201636343439)
    '2026-11-21T01:40:01.636343439Z'
    """
    seconds, rest = divmod(nanoseconds, SECOND)
    seconds = min(max(seconds, _FIRST), _LAST)
    text = datetime.fromtimestamp(seconds, zone).isoformat()
    local, offset = text[:_SECONDS], text[_SECONDS:]
    return f"{local}.{rest:09}".rstrip("0").rstrip(".") + ("Z" if offset == "+00:00" else offset)


def nanoseconds(text: str) -> int:
    """Parse a text in the format of `rfc3339` to nanoseconds since the epoch."""
    plain, offset = (text[:-1], "") if text.endswith("Z") else _split(text)
    whole, _, decimals = plain.partition(".")
    seconds = int(datetime.fromisoformat(whole + (offset or "+00:00")).timestamp())
    return seconds * SECOND + int(decimals.ljust(9, "0")[:9] or 0)


def _split(text: str) -> tuple[str, str]:
    """Split an RFC 3339 text into the local time and the offset from UTC, which may be empty."""
    split_at = max(text.find("+", _DATE), text.find("-", _DATE))
    return (text[:split_at], text[split_at:]) if split_at > 0 else (text, "")


_UNITS = ((86_400, "days"), (3_600, "h"), (60, "min"))


def span(length: int) -> str:
    """Format a duration in nanoseconds approximately, for a sentence.

    >>> [span(seconds * SECOND) for seconds in (5, 750, 5400, 2 * 86_400)]
    ['5 s', '12 min', '90 min', '2 days']
    """
    seconds = max(length, 0) // SECOND
    for unit, name in _UNITS:
        if seconds >= 2 * unit:
            return f"{seconds // unit} {name}"
    return f"{seconds} s"
