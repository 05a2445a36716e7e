"""Points in time: integer nanoseconds since the epoch inside, RFC 3339 text where the wire wants it."""

from datetime import UTC, datetime

from storage.records.base import SECOND

ZERO_TIME = "0001-01-01T00:00:00Z"
_FIRST, _LAST = -62_135_596_800, 253_402_300_799  # seconds: all that has a year of four digits


def rfc3339(nanoseconds: int) -> str:
    """Return a point in time as text, with as many decimals as it needs.

    What lies beyond the years 1 to 9999, as a task may say of its files, is told as their end.

    >>> rfc3339(1795225201636343439)
    '2026-11-21T01:40:01.636343439Z'
    """
    seconds, rest = divmod(nanoseconds, SECOND)
    seconds = min(max(seconds, _FIRST), _LAST)
    text = datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None).isoformat()
    return f"{text}.{rest:09}".rstrip("0").rstrip(".") + "Z"


def nanoseconds(text: str) -> int:
    """Return the nanoseconds since the epoch that `rfc3339` turned into `text`."""
    whole, _, decimals = text.removesuffix("Z").partition(".")
    seconds = int(datetime.fromisoformat(whole).replace(tzinfo=UTC).timestamp())
    return seconds * SECOND + int(decimals.ljust(9, "0")[:9] or 0)
