"""Import of iCalendar files (RFC 5545): whole-day events become holidays.

The library that parses the files is imported at the first use, in a thread. One limit applies to
the days of all events, together with the days that are searched for repetitions. Days are counted
before they are processed, so a file cannot cause more work than the limit.
"""

import re
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from itertools import chain
from typing import TYPE_CHECKING, Any

from daemon.flow.repetitions import FREQUENCIES, Repetition, occurrences, weekday
from daemon.jobs.calendars import ImportedDays
from daemon.text.go_format import quote
from storage.errors import Invalid, Malformed

if TYPE_CHECKING:
    from icalendar import Component, vRecur

MAX_SIZE = 1024 * 1024  # bytes
MAX_EVENTS = 2000
MAX_YEARS = 20
MAX_HOLIDAYS = 2000
_MOST_DAYS = 500_000  # days of all events and rules; examining them takes about two seconds
_MOST_OF_EVENT = 366  # days of one event
_MOST_SKIPPED = 50  # skipped events that the response lists
_MAX_RULE_PARTS = 400  # numbers in one rule
_MAX_TEXT = 200
_MOST_INTERVAL = 1000
_FOLDED = re.compile(rb"(?<![\r\n])(?:\r?\n)++[ \t]")
# The begin or end of a component, also with parameters.
_COMPONENT = re.compile(rb"(BEGIN|END)(?:;[^\r\n]*)?:[ \t]*+([A-Za-z-]+)[ \t]*+", re.IGNORECASE)
_READ_KEYS = ("DTSTART", "DTEND", "DURATION", "RRULE", "RDATE", "EXDATE", "RECURRENCE-ID")
_RULE_KEYS = frozenset(
    {
        *("FREQ", "INTERVAL", "COUNT", "UNTIL", "WKST"),
        *("BYMONTH", "BYMONTHDAY", "BYDAY", "BYSETPOS"),
    }
)


def read(content: bytes, first: int, last: int) -> ImportedDays:
    """Return the whole-day events of a file in the years `first` to `last`. May take a second.

    Raises `Malformed`.
    """
    if len(content) > MAX_SIZE:
        raise Malformed(f"the file has {len(content)} bytes; the maximum is {MAX_SIZE}")
    if not 1970 <= first <= last < 2200 or last - first >= MAX_YEARS:
        raise Malformed(
            f"the years are {first} to {last}: choose up to {MAX_YEARS} years from 1970 to 2199"
        )
    return _Import(first, last).read(_without_zones(content))


def _without_zones(content: bytes) -> bytes:
    """Return a file without its time zones, with unfolded lines. Raises `Malformed`.

    Whole days need no zones. The library computes and keeps each zone of a file, which takes time
    and memory without a limit.
    """
    kept_lines, zones, begins = [], 0, 0
    for line in _FOLDED.sub(b"", content).splitlines():
        match = _COMPONENT.fullmatch(line)
        keyword, component = (part.upper() for part in match.groups()) if match else (b"", b"")
        if component == b"VTIMEZONE":
            zones = max(0, zones + (1 if keyword == b"BEGIN" else -1))
        elif not zones:
            begins += (keyword, component) == (b"BEGIN", b"VEVENT")
            kept_lines.append(line)
    if begins > MAX_EVENTS:
        raise Malformed(f"the file has {begins} events; the maximum is {MAX_EVENTS}")
    return b"\r\n".join(kept_lines)


class _Skipped(Exception):
    """An event cannot be imported as a holiday; the message is the reason."""


class _Import:
    """One import: the days so far, and the number of days that may still be examined."""

    def __init__(self, first: int, last: int) -> None:
        self._first, self._last = date(first, 1, 1), date(last, 12, 31)
        self._days = 0  # counted so far
        self._holidays: dict[str, str] = {}

    def read(self, content: bytes) -> ImportedDays:
        from icalendar import Calendar  # imported late: it takes 200 ms

        try:
            calendar = Calendar.from_ical(content)
            events = list(calendar.walk("VEVENT"))
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            raise Malformed(
                f"the file is not an iCalendar file: {str(error)[:_MAX_TEXT]}"
            ) from error
        if not events:
            raise Malformed("the file has no events (VEVENT)")
        replaced = {
            (str(event.get("UID", "")), _day_of(event["RECURRENCE-ID"]))
            for event in events
            if "RECURRENCE-ID" in event and not _unreadable(event)
        }
        skipped = []
        for event in events:
            name = _name_of(event)
            try:
                for day in self._days_of(event, replaced):
                    self._add(day, name)
            except _Skipped as reason:
                skipped.append(f"{quote(name)}: {reason}")
        if len(skipped) > _MOST_SKIPPED:
            number = len(skipped) - _MOST_SKIPPED
            skipped = [*skipped[:_MOST_SKIPPED], f"and {number} more"]
        return ImportedDays(dict(sorted(self._holidays.items())), skipped)

    def _add(self, day: date, name: str) -> None:
        if not self._first <= day <= self._last:
            return
        key = day.isoformat()
        before = self._holidays.get(key)
        if before is None:
            self._holidays[key] = name
        elif name not in before.split(", "):
            self._holidays[key] = f"{before}, {name}"[:_MAX_TEXT]
        if len(self._holidays) > MAX_HOLIDAYS:
            raise Malformed(f"the file has more than {MAX_HOLIDAYS} days: choose fewer years")

    def _days_of(self, event: "Component", replaced: set[tuple[str, date]]) -> Iterator[date]:
        """Yield the days of an event and of its repetitions.

        `replaced` are the repetitions that another event of the file replaces, by UID and day.
        """
        if str(event.get("STATUS", "")).upper() == "CANCELLED":
            raise _Skipped("it is canceled")
        if key := _unreadable(event):
            raise _Skipped(f"its {key} cannot be read: {quote(str(event[key])[:_MAX_TEXT])}")
        start, length = _whole_days(event)
        excluded = set(_dates(event, "EXDATE"))
        uid = str(event.get("UID", ""))
        for first in chain(self._repetitions(event, start), _dates(event, "RDATE")):
            self._count(1)
            if first in excluded:
                continue
            if "RECURRENCE-ID" not in event and (uid, first) in replaced:
                continue
            self._count(length)
            for number in range(length):
                yield first + timedelta(days=number)

    def _repetitions(self, event: "Component", start: date) -> Iterator[date]:
        rule = event.get("RRULE")
        if rule is None or "RECURRENCE-ID" in event:
            yield start
            return
        if isinstance(rule, list):
            raise _Skipped("it has several rules (RRULE)")
        try:
            rule_text = _repetition(rule)
        except (Invalid, ValueError, TypeError) as error:
            raise _Skipped(f"its rule (RRULE): {str(error)[:_MAX_TEXT]}") from error
        start = _later(rule_text, start, self._first)
        self._count(max((self._last - start).days, 0))
        yield from occurrences(rule_text, start, self._last)

    def _count(self, days: int) -> None:
        """Count days against the limit before they are processed.

        Raises `Malformed` beyond the limit.
        """
        self._days += days
        if self._days > _MOST_DAYS:
            raise Malformed(
                "the events and rules (RRULE, RDATE) of the file cover more than "
                f"{_MOST_DAYS} days in total: choose fewer years, or import a smaller file"
            )


def _repetition(rule: "vRecur") -> Repetition:
    """Return the repetition rule of an event. Raises `Invalid`, `ValueError` or `TypeError`."""
    if unknown := sorted(rule.keys() - _RULE_KEYS):
        raise Invalid(f"{unknown[0]} is not supported")
    if sum(len(_listed(rule_value)) for rule_value in rule.values()) > _MAX_RULE_PARTS:
        raise Invalid(f"it has more than {_MAX_RULE_PARTS} parts")
    frequency = str(_one(rule, "FREQ", "")).upper()
    if frequency not in FREQUENCIES:
        raise Invalid(f"FREQ={frequency[:20]}: use {', '.join(FREQUENCIES)}")
    interval, count = int(_one(rule, "INTERVAL", 1)), _one(rule, "COUNT", None)
    if not 1 <= interval <= _MOST_INTERVAL:
        raise Invalid(f"INTERVAL={interval}: use 1 to {_MOST_INTERVAL}")
    until = _one(rule, "UNTIL", None)
    return Repetition(
        frequency=frequency,
        interval=interval,
        count=None if count is None else int(count),
        until=until.date() if isinstance(until, datetime) else until,
        months=_numbers(rule, "BYMONTH"),
        month_days=_numbers(rule, "BYMONTHDAY"),
        weekdays=frozenset(weekday(str(day)) for day in _listed(rule.get("BYDAY", []))),
        positions=_numbers(rule, "BYSETPOS"),
        week_start=weekday(str(_one(rule, "WKST", "MO")))[0],
    )


def _listed(value: Any) -> list[Any]:  # noqa: ANN401 - values of the library
    return list(value) if isinstance(value, list | tuple) else [value]


def _one(rule: "vRecur", key: str, default: Any) -> Any:  # noqa: ANN401 - values of the library
    return _listed(rule[key])[0] if rule.get(key) else default


def _numbers(rule: "vRecur", key: str) -> frozenset[int]:
    return frozenset(int(number) for number in _listed(rule.get(key, [])))


def _later(rule: Repetition, start: date, first: date) -> date:
    """Return a start date for a rule, as close to `first` as possible.

    With a later start, fewer days are examined. Only the start of a simple yearly rule can be moved
    without a change of the occurrences from `first` on.
    """
    if rule.frequency != "YEARLY" or rule.interval != 1 or rule.count is not None:
        return start
    for year in range(first.year - 1, max(start.year, first.year - 10), -1):
        try:
            return start.replace(year=year)
        except ValueError:  # February 29
            continue
    return start


def _unreadable(event: "Component") -> str:
    """Return the first property with a value that the library cannot read, or an empty string."""
    for key in _READ_KEYS:
        for value in _listed(event.get(key)):
            if getattr(value, "parse_error", None) is not None:
                return key
    return ""


def _name_of(event: "Component") -> str:
    return " ".join(str(event.get("SUMMARY", "")).split())[:_MAX_TEXT] or "a holiday"


def _whole_days(event: "Component") -> tuple[date, int]:
    """Return the first day of an event, and its number of days. Raises `_Skipped`."""
    if "DTSTART" not in event:
        raise _Skipped("it has no start (DTSTART)")
    start = getattr(event["DTSTART"], "dt", None)
    if not isinstance(start, date) or isinstance(start, datetime):
        raise _Skipped("it has a time of day, but only whole-day events are imported")
    length = timedelta(days=1)
    if "DTEND" in event:
        end = getattr(event["DTEND"], "dt", None)
        if not isinstance(end, date) or isinstance(end, datetime):
            raise _Skipped("its end (DTEND) has a time of day")
        length = end - start
    elif "DURATION" in event:
        length = getattr(event["DURATION"], "dt", length)
    if not 1 <= length.days <= _MOST_OF_EVENT:
        raise _Skipped(f"it has {length.days} days; only 1 to {_MOST_OF_EVENT} days are allowed")
    return start, length.days


def _dates(event: "Component", key: str) -> Iterator[date]:
    """Yield the days in a property, which may have several values and several lines."""
    values = event.get(key, [])
    for line in values if isinstance(values, list) else [values]:
        for occurrence in getattr(line, "dts", []):
            if isinstance(occurrence.dt, date):
                yield occurrence.dt.date() if isinstance(occurrence.dt, datetime) else occurrence.dt


def _day_of(value: object) -> date:
    day = getattr(value, "dt", None)
    if isinstance(day, datetime):
        return day.date()
    return day if isinstance(day, date) else date.min
