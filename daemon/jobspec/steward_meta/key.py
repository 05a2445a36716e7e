"""A meta key of Steward, and the parsers of values that keys of several levels share."""

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Generic, TypeVar

import msgspec

from daemon.jobspec.durations import read_duration
from daemon.text.go_format import duration, quote
from storage.errors import Invalid
from storage.records.base import SECOND

PREFIX = "steward_"

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)
Meta = Mapping[str, str] | None


class MetaExtension(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """A meta key, the levels at which it is allowed, and its parser.

    `place` contains the levels, such as `task group or task`. `read` parses a value, and raises
    `Invalid` with the required format. `check` also raises `Invalid`, but is called only at
    registration. So it does not affect the jobs that an older version of Steward stored.
    """

    name: str
    place: str
    read: Callable[[str], T]
    default: T
    check: Callable[[str], None] | None = None

    def of(self, meta: Meta) -> T:
        """Return the value in meta; the default if it is missing or invalid."""
        # The most frequent case; an exception would be slower.
        if not meta or self.name not in meta:
            return self.default
        try:
            return self.read(meta[self.name])
        except (KeyError, Invalid):  # registration rejects invalid values
            return self.default


def flag(text: str) -> bool:
    """Parse `true` or `false`."""
    if text not in ("true", "false"):
        raise Invalid("must be true or false")
    return text == "true"


def one_of(kind: type[E]) -> Callable[[str], E]:
    """Return a parser that converts a value to a member of an enumeration."""

    def read(text: str) -> E:
        try:
            return kind(text)
        except ValueError:
            raise Invalid(f"must be {' or '.join(kind)}") from None

    return read


def number(least: int, most: int) -> Callable[[str], int]:
    """Return a parser for an integer in a range."""

    def read(text: str) -> int:
        if not (text.isascii() and text.isdecimal() and len(text) <= len(str(most))):
            raise Invalid(f"must be a whole number from {least} to {most}")
        if not least <= int(text) <= most:
            raise Invalid(f"must be from {least} to {most}")
        return int(text)

    return read


def span(most: int) -> Callable[[str], int]:
    """Return a parser for a duration up to a maximum, in nanoseconds."""

    def read(text: str) -> int:
        try:
            value = read_duration(text)
        except ValueError as error:
            raise Invalid(f"{error}: must be a duration like 30s or 1h") from None
        if not 0 <= value <= most:
            raise Invalid(f"must be from 0s to {duration(most)}")
        return value

    return read


def least_span(least: int, most: int) -> Callable[[str], int]:
    """Return a parser for a duration with a minimum and a maximum, in nanoseconds."""

    def read(text: str) -> int:
        value = span(most)(text)
        if value < least:
            raise Invalid(f"must be from {duration(least)} to {duration(most)}")
        return value

    return read


MAX_NEEDS_LENGTH = 64 * 1024  # bytes


def names(text: str) -> tuple[str, ...]:
    """Parse a list of distinct names, separated by commas."""
    if len(text) > MAX_NEEDS_LENGTH:
        raise Invalid(f"must be at most {MAX_NEEDS_LENGTH} bytes long")
    entries = tuple(part.strip() for part in text.split(","))
    if not all(entries):
        raise Invalid("must be names separated by commas")
    seen = set[str]()
    for entry in entries:
        if entry in seen:
            raise Invalid(f"names {quote(entry)} twice")
        seen.add(entry)
    return entries


SHOWN = 80  # characters of an invalid text in an error


def moment(text: str) -> int:
    """Parse a date and time such as `2026-12-24T18:00:00Z` to nanoseconds since the epoch."""
    try:
        date_time = datetime.fromisoformat(text) if len(text) <= _LONGEST_MOMENT else None
    except ValueError:
        date_time = None
    if date_time is None or date_time.tzinfo is None or date_time.year not in range(1970, 2200):
        raise Invalid(
            "must be a time of day such as 22:00, a date and time such as 2026-12-24T18:00:00Z, "
            "or a delay such as +15m"
        )
    return int(date_time.timestamp()) * SECOND


_LONGEST_MOMENT = 40  # characters


def calendar_name(text: str) -> str:
    """Check the name of a calendar, and return the name. Raises `Invalid`."""
    if not _CALENDAR_NAME.fullmatch(text):
        raise Invalid("must be the name of a calendar: 1 to 128 letters, digits, - and _")
    return text


_CALENDAR_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")

LONGEST_QUEUE = 128  # characters
QUEUE_LETTERS = re.compile(r"[A-Za-z0-9_.-]{1,128}")


def queue_name(text: str) -> str:
    """Check the name of a queue, and return the name. Raises `Invalid`.

    The name cannot contain references.
    """
    if not QUEUE_LETTERS.fullmatch(text):
        raise Invalid(
            f"must have 1 to {LONGEST_QUEUE} characters, each a letter, a digit, -, _ or ."
        )
    return text
