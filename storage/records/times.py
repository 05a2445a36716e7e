"""Points in time: integer nanoseconds since the epoch inside, RFC 3339 text where the wire wants it."""

from datetime import UTC, datetime, tzinfo

from storage.records.base import SECOND

ZERO_TIME = "0001-01-01T00:00:00Z"
_DATE, _SECONDS = len("2026-11-21"), len("2026-11-21T01:40:01")
_FIRST, _LAST = -62_135_596_800, 253_402_300_799  # seconds: all that has a year of four digits


def rfc3339(nanoseconds: int, zone: tzinfo = UTC) -> str:
    """Return a point in time as text, with as many decimals as it needs, in a time zone.

    What lies beyond the years 1 to 9999, as a task may say of its files, is told as their end.

    >>> rfc3339(1795225201636343439)
    '2026-11-21T01:40:01.636343439Z'
    """
    seconds, rest = divmod(nanoseconds, SECOND)
    seconds = min(max(seconds, _FIRST), _LAST)
    text = datetime.fromtimestamp(seconds, zone).isoformat()
    local, offset = text[:_SECONDS], text[_SECONDS:]
    return f"{local}.{rest:09}".rstrip("0").rstrip(".") + ("Z" if offset == "+00:00" else offset)


def nanoseconds(text: str) -> int:
    """Return the nanoseconds since the epoch of a text like those of `rfc3339`."""
    plain, offset = (text[:-1], "") if text.endswith("Z") else _split(text)
    whole, _, decimals = plain.partition(".")
    seconds = int(datetime.fromisoformat(whole + (offset or "+00:00")).timestamp())
    return seconds * SECOND + int(decimals.ljust(9, "0")[:9] or 0)


def _split(text: str) -> tuple[str, str]:
    """Return a time and its offset from UTC, which may be missing."""
    at = max(text.find("+", _DATE), text.find("-", _DATE))
    return (text[:at], text[at:]) if at > 0 else (text, "")
