"""Calendars: the days and hours in which jobs may begin."""

from storage.records.base import Record


class Blackout(Record, frozen=True, kw_only=True):
    """A period in which a calendar is closed, with its reason.

    `begin` and `end` are times (RFC 3339) or dates. A date as `end` includes that day.
    """

    begin: str = ""
    end: str = ""
    reason: str = ""


class Calendar(Record, frozen=True, kw_only=True):
    """A calendar of a namespace. Days and hours are local times in `time_zone`.

    A day is open if its weekday is in `weekdays` (`mon` to `sun`; empty means all) and the day is
    not a holiday. An extra day is always open. `holidays` and `extra_days` map dates to names. On
    an open day, the calendar is open during `hours` (such as `08:00-18:00`; empty means all day).
    It is closed in a blackout, while a calendar in `only` is closed, and while one in `except` is
    open.
    """

    name: str = ""
    namespace: str = ""
    description: str = ""
    time_zone: str = "UTC"
    weekdays: list[str] | None = None
    hours: list[str] | None = None
    holidays: dict[str, str] | None = None
    extra_days: dict[str, str] | None = None
    blackouts: list[Blackout] | None = None
    only: list[str] | None = None
    except_: list[str] | None = None
    version: int = 0
    create_index: int = 0
    modify_index: int = 0


class CalendarListing(Record, frozen=True, kw_only=True):
    """A calendar in a list."""

    name: str
    namespace: str
    description: str
    time_zone: str
    version: int
    create_index: int
    modify_index: int


class CalendarVersion(Record, frozen=True, kw_only=True):
    """A version of a calendar, its author, and its time (nanoseconds since the epoch)."""

    version: int
    person: str
    time: int
    calendar: Calendar


class OpenDay(Record, frozen=True, kw_only=True):
    """A day of a calendar: its opening times (RFC 3339), or the reason why it is closed.

    Each element of `spans` is a begin and an end.
    """

    date: str
    is_open: bool
    reason: str
    spans: list[list[str]]


class CalendarDays(Record, frozen=True, kw_only=True):
    """Days of a calendar, and whether the calendar is open now.

    `next_opening` (RFC 3339) is empty if the calendar is open. It is also empty if a search up to
    the time `searched_until` found no opening.
    """

    name: str
    namespace: str
    version: int
    is_open: bool
    reason: str
    next_opening: str
    searched_until: str = ""
    days: list[OpenDay]


class CalendarImport(Record, frozen=True, kw_only=True):
    """The result of an import: the added holidays, and the skipped events with the reasons."""

    added: dict[str, str]
    skipped: list[str]
    version: int
    index: int
