"""Calendars: whether a time is open, the reason if it is not, and the next opening.

Local times follow the wall clock of the calendar's zone. An hour that a clock change skips is not
open, and an hour that occurs twice is open twice. All times are in nanoseconds since the epoch.

Many calendars may refer to the same calendar. Each computation examines a calendar once, and has a
limit on its steps.
"""

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import lru_cache
from itertools import islice

import msgspec

from daemon.jobspec import cron
from daemon.text.go_format import quote
from storage.errors import Invalid
from storage.records.base import HOUR, SECOND
from storage.records.calendar import Calendar
from storage.records.periodic import CLOSED_REASON
from storage.records.times import nanoseconds

WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
DAY_NAMES = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")

MAX_DAYS = 2000  # number of holidays, and also of extra days
MAX_BLACKOUTS = 500
MAX_HOURS = 24  # periods of a day
MAX_PARTS = 16  # calendars that one calendar refers to, directly or through others
MAX_DEPTH = 5  # calendars in a chain of references, without the first
MAX_NAME_LENGTH = 200  # characters of the name of a day, or of a reason
MAX_DESCRIPTION = 256
MAX_FAULTS = 20  # errors to report
YEARS = range(1970, 2200)  # supported years
HORIZON = 5 * 366  # days in which an opening is searched
MAX_STEPS = 400_000  # steps of one computation (see `Steps`), which take about two seconds

_DAY = 24 * HOUR
_MAX_SHOWN = 100  # characters of an invalid value in a message
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_MOMENT = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(Z|[+-]\d{2}:\d{2})")
_HOURS = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d:[0-5]\d|2[0-3]:[0-5]\d|24:00)")
_FIRST_STEP, _LONGEST_STEP = 2, 64  # days of one search
_SPANS_OF_STEP = 8  # spans that are compared in one step

Span = tuple[int, int]  # includes the first time, but not the second


# --- parsing ---


def is_name(text: str) -> bool:
    """Return whether a string can name a calendar."""
    return _NAME.fullmatch(text) is not None


def faults(calendar: Calendar) -> Iterator[str]:
    """Yield the first errors of a calendar, each with the field, the value and the fix.

    Lists and texts beyond their limits are not read further, so that the work is limited.
    """
    return islice(_faults(calendar), MAX_FAULTS)


def _faults(calendar: Calendar) -> Iterator[str]:
    if not is_name(calendar.name):
        yield f"Name is {quote(calendar.name[:200])}: use 1 to 128 letters, digits, - and _"
    if len(calendar.description) > MAX_DESCRIPTION:
        yield f"Description has {len(calendar.description)} characters; the maximum is {MAX_DESCRIPTION}"
    try:
        zone = cron.zone(calendar.time_zone[:_MAX_SHOWN])
    except Invalid:
        zone = UTC
        yield f"TimeZone is {quote(calendar.time_zone[:_MAX_SHOWN])}: use a name such as Europe/Berlin or UTC"
    for name in calendar.weekdays or ():
        if name not in WEEKDAYS:
            yield f"Weekdays has {quote(name[:_MAX_SHOWN])}: use {', '.join(WEEKDAYS)}"
    if len(calendar.hours or ()) > MAX_HOURS:
        yield f"Hours has {len(calendar.hours or ())} periods; the maximum is {MAX_HOURS}"
    for text in (calendar.hours or ())[:MAX_HOURS]:
        if _hours(text) is None:
            yield f"Hours has {quote(text[:_MAX_SHOWN])}: use a period such as 08:00-18:00, within one day"
    yield from _day_faults("Holidays", calendar.holidays)
    yield from _day_faults("ExtraDays", calendar.extra_days)
    yield from _blackout_faults(calendar, zone)
    yield from _part_faults(calendar)


def _day_faults(field: str, days: Mapping[str, str] | None) -> Iterator[str]:
    if len(days or ()) > MAX_DAYS:
        yield f"{field} has {len(days or ())} days; the maximum is {MAX_DAYS}"
        return
    for text, name in (days or {}).items():
        if _date(text) is None:
            yield f"{field} has {quote(text[:40])}: use a date such as 2026-12-25, of the years 1970 to 2199"
        if len(name) > MAX_NAME_LENGTH:
            yield f"{field}[{text[:40]}] has {len(name)} characters; the maximum is {MAX_NAME_LENGTH}"


def _blackout_faults(calendar: Calendar, zone: tzinfo) -> Iterator[str]:
    if len(calendar.blackouts or ()) > MAX_BLACKOUTS:
        yield f"Blackouts has {len(calendar.blackouts or ())}; the maximum is {MAX_BLACKOUTS}"
        return
    for number, blackout in enumerate(calendar.blackouts or ()):
        where = f"Blackouts[{number}]"
        begin = _moment(blackout.begin, zone, is_end=False)
        end = _moment(blackout.end, zone, is_end=True)
        for field, text, parsed in (("Begin", blackout.begin, begin), ("End", blackout.end, end)):
            if parsed is None:
                yield (
                    f"{where}.{field} is {quote(text[:40])}: use a date such as 2026-12-24, or a "
                    "time such as 2026-12-24T18:00:00Z"
                )
        if begin is not None and end is not None and end <= begin:
            yield f"{where}.End is {quote(blackout.end)}, which is not after Begin, {quote(blackout.begin)}"
        if len(blackout.reason) > MAX_NAME_LENGTH:
            yield f"{where}.Reason has {len(blackout.reason)} characters; the maximum is {MAX_NAME_LENGTH}"


def _part_faults(calendar: Calendar) -> Iterator[str]:
    names = [*(calendar.only or ()), *(calendar.except_ or ())]
    if len(names) > MAX_PARTS:
        yield f"Only and Except have {len(names)} names; the maximum is {MAX_PARTS}"
        return
    if calendar.name in names:
        yield f"Only and Except cannot have {quote(calendar.name)}, the calendar itself"
    for name in sorted(part_name for part_name, number in Counter(names).items() if number > 1):
        yield f"Only and Except have {quote(name)} twice"


def _date(text: str) -> date | None:
    """Return the date in a text; None if the text is not a date in a supported year."""
    if not _DATE.fullmatch(text) or int(text[:4]) not in YEARS:
        return None
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None


def _hours(text: str) -> tuple[int, int] | None:
    """Return a period of a day as minutes after midnight; None if the text is not a period."""
    match = _HOURS.fullmatch(text)
    if match is None:
        return None
    first, last = (int(time_text[:2]) * 60 + int(time_text[3:]) for time_text in text.split("-"))
    return (first, last) if first < last else None


def _moment(text: str, zone: tzinfo, *, is_end: bool) -> int | None:
    """Return the time in a text, or None if the text is neither a time nor a date.

    For a date, return the start of the day; with `is_end`, return the end of the day.
    """
    if (day := _date(text)) is not None:
        return _start_of(day + timedelta(days=1) if is_end else day, zone)
    if not _MOMENT.fullmatch(text) or int(text[:4]) not in YEARS:
        return None
    try:
        return nanoseconds(text)
    except ValueError:
        return None


# --- days ---


def _start_of(day: date, zone: tzinfo) -> int:
    """Return the start of a local day."""
    return int(datetime.combine(day, time(), zone).timestamp()) * SECOND


def _offset(timestamp: int, zone: tzinfo) -> int:
    """Return the offset from UTC at a time, in nanoseconds."""
    offset = datetime.fromtimestamp(timestamp // SECOND, zone).utcoffset()
    return int(offset.total_seconds()) * SECOND if offset else 0


def local_date(timestamp: int, zone: tzinfo) -> date:
    """Return the local date of a time."""
    return datetime.fromtimestamp(timestamp // SECOND, zone).date()


def _segments(first: int, last: int, zone: tzinfo) -> Iterator[tuple[int, int, int]]:
    """Yield parts of a period, each with a constant offset from UTC: begin, end and offset."""
    before, after = _offset(first, zone), _offset(last, zone)
    while before != after:
        low, high = first // SECOND, last // SECOND
        while high - low > 1:  # the first second with another offset than `before`
            middle = (low + high) // 2
            if _offset(middle * SECOND, zone) == before:
                low = middle
            else:
                high = middle
        yield first, high * SECOND, before
        first, before = high * SECOND, _offset(high * SECOND, zone)
    yield first, last, before


def _local_spans(day: date, periods: Sequence[tuple[int, int]], zone: tzinfo) -> list[Span]:
    """Return the spans of a local day that are in `periods`, pairs of minutes after midnight."""
    start = _start_of(day, zone)
    midnight = int(datetime.combine(day, time(), UTC).timestamp()) * SECOND
    spans = []
    # A clock that is set back across midnight repeats a part of the evening.
    for first, last, offset in _segments(start - 4 * HOUR, start + _DAY + 4 * HOUR, zone):
        for begin, end in periods:
            span = (
                max(first, midnight + begin * 60 * SECOND - offset),
                min(last, midnight + end * 60 * SECOND - offset),
            )
            if span[0] < span[1]:
                spans.append(span)
    return _joined(spans)


def _joined(spans: list[Span]) -> list[Span]:
    """Return the spans in order, and merge spans that touch or overlap."""
    joined: list[Span] = []
    for begin, end in sorted(spans):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((begin, end))
    return joined


def _common(first: list[Span], second: list[Span]) -> list[Span]:
    """Return the spans of the times that both lists cover."""
    spans, first_index, second_index = [], 0, 0
    while first_index < len(first) and second_index < len(second):
        begin = max(first[first_index][0], second[second_index][0])
        end = min(first[first_index][1], second[second_index][1])
        if begin < end:
            spans.append((begin, end))
        if first[first_index][1] < second[second_index][1]:
            first_index += 1
        else:
            second_index += 1
    return spans


def _subtract_spans(first: list[Span], removed: list[Span]) -> list[Span]:
    """Return the spans of the times that `first` covers and `removed` does not cover."""
    if not first or not removed:
        return first
    gaps, gap_begin = [], first[0][0]
    for begin, end in removed:
        gaps.append((gap_begin, begin))
        gap_begin = max(gap_begin, end)
    gaps.append((gap_begin, max(gap_begin, first[-1][1])))
    return _common(first, [span for span in gaps if span[0] < span[1]])


# --- calendars ---


class TooManySteps(Exception):
    """A computation about calendars needs more steps than permitted."""


class Steps:
    """Counts the steps of a computation, up to `most`.

    Each day is a step, and so is each period of a day.
    """

    def __init__(self, most: int = MAX_STEPS) -> None:
        self.most, self.number = most, 0

    def spend(self, number: int) -> None:
        """Count `number` further steps in advance. Raises `TooManySteps`."""
        self.number += number
        if self.number > self.most:
            raise TooManySteps(
                f"its calendar needs more than {self.most} steps: give it fewer Hours, or fewer "
                "calendars in Only and Except"
            )


class CompiledCalendar(msgspec.Struct, frozen=True, kw_only=True):
    """A calendar compiled for lookups, with the calendars that it refers to."""

    name: str
    version: int
    zone: tzinfo
    weekdays: frozenset[int]
    holidays: Mapping[date, str]
    extra_days: Mapping[date, str]
    periods: tuple[tuple[int, int], ...]
    blackouts: tuple[tuple[int, int, str], ...]
    blocked: tuple[Span, ...]  # the blackouts, joined
    only: tuple["CompiledCalendar", ...]
    excluded: tuple["CompiledCalendar", ...]

    def spans(self, first: int, last: int, steps: Steps | None = None) -> list[Span]:
        """Return the spans of a period in which the calendar is open. Raises `TooManySteps`."""
        return _Period(first, last, steps or Steps()).open_spans(self)

    def day_spans(self, day: date, steps: Steps | None = None) -> list[Span]:
        """Return the spans in which the calendar is open on a local day. Raises `TooManySteps`."""
        steps = steps or Steps()
        own = self.hours_of(day, steps)
        return _Period(own[0][0], own[-1][1], steps).restricted(self, own) if own else []

    def why_closed(self, timestamp: int, steps: Steps | None = None) -> str:
        """Return why the calendar is closed at a time; empty if the calendar is open.

        Raises `TooManySteps`.
        """
        return _Moment(timestamp, steps or Steps()).why_closed(self)

    def why_closed_on(self, day: date) -> str:
        """Return why a local day is closed.

        If the day has hours, return why the calendar is closed at their beginning.
        """
        if reason := self.closed_day(day):
            return reason
        own = _local_spans(day, self.periods, self.zone)
        return self.why_closed(own[0][0]) if own else "a clock change skips its hours on this day"

    def hours_of(self, day: date, steps: Steps) -> list[Span]:
        """Return the open hours of a local day, ignoring blackouts and other calendars."""
        if self.closed_day(day):
            steps.spend(1)
            return []
        steps.spend(1 + len(self.periods))
        return _local_spans(day, self.periods, self.zone)

    def blocked_within(self, first: int, last: int) -> Sequence[Span]:
        """Return the blackouts that touch a period."""
        begin = bisect_right(self.blocked, first, key=lambda span: span[1])
        return self.blocked[begin : bisect_left(self.blocked, last, key=lambda span: span[0])]

    def closed_day(self, day: date) -> str:
        """Return why a whole day is closed, ignoring blackouts and other calendars."""
        if day in self.extra_days:
            return ""
        if (name := self.holidays.get(day)) is not None:
            return name or "a holiday"
        return "" if day.weekday() in self.weekdays else DAY_NAMES[day.weekday()]


class _Period:
    """Computes the open spans of calendars in one period, each calendar once."""

    def __init__(self, first: int, last: int, steps: Steps) -> None:
        self._first, self._last, self._steps = first, last, steps
        self._spans_by_name: dict[str, list[Span]] = {}

    def open_spans(self, calendar: CompiledCalendar) -> list[Span]:
        if calendar.name not in self._spans_by_name:
            self._spans_by_name[calendar.name] = self.restricted(
                calendar, self._own_spans(calendar)
            )
        return self._spans_by_name[calendar.name]

    def _own_spans(self, calendar: CompiledCalendar) -> list[Span]:
        day, until = (
            local_date(self._first, calendar.zone),
            local_date(self._last - 1, calendar.zone),
        )
        spans: list[Span] = []
        while day <= until:
            spans += calendar.hours_of(day, self._steps)
            day += timedelta(days=1)
        return _common(_joined(spans), [(self._first, self._last)])

    def restricted(self, calendar: CompiledCalendar, spans: list[Span]) -> list[Span]:
        """Return the parts of spans that no blackout covers and that the other calendars permit."""
        if spans and calendar.blocked:
            blocked = calendar.blocked_within(spans[0][0], spans[-1][1])
            spans = self._compare(_subtract_spans, spans, list(blocked))
        for part in calendar.only:
            if spans:
                spans = self._compare(_common, spans, self.open_spans(part))
        for part in calendar.excluded:
            if spans:
                spans = self._compare(_subtract_spans, spans, self.open_spans(part))
        return spans

    def _compare(
        self,
        work: Callable[[list[Span], list[Span]], list[Span]],
        own_spans: list[Span],
        other_spans: list[Span],
    ) -> list[Span]:
        self._steps.spend(1 + (len(own_spans) + len(other_spans)) // _SPANS_OF_STEP)
        return work(own_spans, other_spans)


class _Moment:
    """Computes why calendars are closed at one time, each calendar once."""

    def __init__(self, timestamp: int, steps: Steps) -> None:
        self._at, self._steps = timestamp, steps
        self._reasons: dict[str, str] = {}

    def why_closed(self, calendar: CompiledCalendar) -> str:
        if calendar.name not in self._reasons:
            self._reasons[calendar.name] = self._why_closed(calendar)
        return self._reasons[calendar.name]

    def _why_closed(self, calendar: CompiledCalendar) -> str:
        moment, day = self._at, local_date(self._at, calendar.zone)
        own = calendar.hours_of(day, self._steps)
        if reason := calendar.closed_day(day):
            return reason
        if not any(begin <= moment < end for begin, end in own):
            return f"outside of {', '.join(map(_shown_period, calendar.periods))}"
        if calendar.blocked_within(moment, moment + 1):
            for begin, end, reason in calendar.blackouts:
                if begin <= moment < end:
                    return f"blackout{f' ({reason})' if reason else ''}"
        for part in calendar.only:
            if reason := self.why_closed(part):
                return f"calendar {quote(part.name)} is closed ({reason})"
        for part in calendar.excluded:
            if not self.why_closed(part):
                return f"calendar {quote(part.name)} is open"
        return ""


def _shown_period(period: tuple[int, int]) -> str:
    (first, first_minute), (last, last_minute) = (divmod(minute, 60) for minute in period)
    return f"{first:02}:{first_minute:02}-{last:02}:{last_minute:02}"


class UnknownCalendar(Exception):
    """A calendar does not exist, or its references are missing, circular or too many."""


def compiled(name: str, documents: Mapping[str, bytes]) -> CompiledCalendar:
    """Return a calendar with all calendars that it refers to, from their stored documents.

    Calendars that an earlier release stored may refer to more than `MAX_PARTS` calendars. Raises
    `UnknownCalendar`.
    """
    return _Compilation(documents).compiled(name, ())


class _Compilation:
    """Compiles calendars, each once."""

    def __init__(self, documents: Mapping[str, bytes]) -> None:
        self._documents = documents
        self._compiled: dict[str, CompiledCalendar] = {}
        self._begun = 0

    def compiled(self, name: str, above: tuple[str, ...]) -> CompiledCalendar:
        if name in self._compiled:
            return self._compiled[name]
        if name not in self._documents:
            raise UnknownCalendar(f"calendar {quote(name)} does not exist")
        if name in above:
            chain = " -> ".join((*above[above.index(name) :], name))
            raise UnknownCalendar(f"calendars refer to each other: {chain}")
        self._begun += 1
        if self._begun > MAX_PARTS + 1:
            raise UnknownCalendar(
                f"Only and Except of calendar {quote(above[0])} refer to more than {MAX_PARTS} "
                "calendars, directly or through others: remove some of them"
            )
        calendar, only, excluded = _compile_single(self._documents[name])
        self._compiled[name] = msgspec.structs.replace(
            calendar,
            only=tuple(self.compiled(part, (*above, name)) for part in only),
            excluded=tuple(self.compiled(part, (*above, name)) for part in excluded),
        )
        return self._compiled[name]


@lru_cache(maxsize=64)
def _compile_single(document: bytes) -> tuple[CompiledCalendar, list[str], list[str]]:
    """Return a calendar without the calendars in its `only` and `except`, and these two lists."""
    calendar = msgspec.json.decode(document, type=Calendar)
    zone = cron.zone(calendar.time_zone)
    days = frozenset(map(WEEKDAYS.index, calendar.weekdays or WEEKDAYS))
    periods = [_hours(text) for text in calendar.hours or ["00:00-24:00"]]
    blackouts = [
        (
            _moment(entry.begin, zone, is_end=False) or 0,
            _moment(entry.end, zone, is_end=True) or 0,
            entry.reason,
        )
        for entry in calendar.blackouts or ()
    ]
    alone = CompiledCalendar(
        name=calendar.name,
        version=calendar.version,
        zone=zone,
        weekdays=days,
        holidays={date.fromisoformat(day): name for day, name in (calendar.holidays or {}).items()},
        extra_days={
            date.fromisoformat(day): name for day, name in (calendar.extra_days or {}).items()
        },
        periods=tuple(sorted(entry for entry in periods if entry)),
        blackouts=tuple(sorted(blackouts)),
        blocked=tuple(_joined([(begin, end) for begin, end, _ in blackouts])),
        only=(),
        excluded=(),
    )
    return alone, calendar.only or [], calendar.except_ or []


_ALWAYS = CompiledCalendar(
    name="",
    version=0,
    zone=UTC,
    weekdays=frozenset(range(7)),
    holidays={},
    extra_days={},
    periods=((0, 24 * 60),),
    blackouts=(),
    blocked=(),
    only=(),
    excluded=(),
)


# --- openings ---


class Openings:
    """The times at which a job may start: while its calendar is open, on its days of the month.

    `days` are numbers of open days of a month, counted from its end if negative; empty means all
    days. Without a calendar, every day is open, and days are local days in `zone`. All searches
    together may take `most_steps` steps, and all other lookups together as many. Several objects
    can share one `searches`; its limit then applies to all their searches together.
    """

    def __init__(
        self,
        calendar: CompiledCalendar | None,
        days: Sequence[int] = (),
        zone: tzinfo = UTC,
        *,
        fault: str = "",
        most_steps: int = MAX_STEPS,
        searches: Steps | None = None,
    ) -> None:
        self.days, self._fault = tuple(days), fault
        self._calendar = calendar or msgspec.structs.replace(_ALWAYS, zone=zone)
        self._chosen: dict[tuple[int, int], frozenset[date]] = {}
        self._lookup_steps, self._searches = Steps(most_steps), searches or Steps(most_steps)
        self._begun = self.searched_until = 0  # the period that the last search found to be closed
        self.is_limited = False

    @property
    def name(self) -> str:
        """Return the name of the calendar; empty if there is no calendar."""
        return self._calendar.name

    def why_closed(self, timestamp: int) -> str:
        """Return why a time is closed; empty if it is open. Raises `TooManySteps`."""
        if self._fault:
            return f"{CLOSED_REASON}{self._fault}"
        calendar = self._calendar
        of_calendar = (
            f"calendar {quote(calendar.name)} version {calendar.version}: " if calendar.name else ""
        )
        if reason := calendar.why_closed(timestamp, self._lookup_steps):
            return f"{CLOSED_REASON}{of_calendar}{reason}"
        day = local_date(timestamp, calendar.zone)
        if self.days and day not in self._days_of(day, self._lookup_steps):
            numbers = ", ".join(map(str, self.days))
            kind = "open day" if calendar.name else "day"
            return f"{CLOSED_REASON}{of_calendar}it is not {kind} {numbers} of the month"
        return ""

    def next_open(self, timestamp: int) -> int | None:
        """Return the first open time at or after a time; None if the next five years are closed.

        The result is also None if the searches need too many steps; then `is_limited` is set.
        Nothing opens before `searched_until`.
        """
        if self._fault:
            return None
        if not self._begun <= timestamp <= self.searched_until:
            self._begun = self.searched_until = timestamp
        end, step = timestamp + HORIZON * _DAY, _FIRST_STEP
        while self.searched_until < end:
            begin = self.searched_until
            until = min(begin + step * _DAY, end)
            try:
                opening = self._first_open(begin, until)
            except TooManySteps:
                self.is_limited = True
                return None
            self.searched_until = until if opening is None else opening
            if opening is not None:
                return opening
            step = min(2 * step, _LONGEST_STEP)
        return None

    def _first_open(self, begin: int, until: int) -> int | None:
        """Return the first open time of a period. Raises `TooManySteps`."""
        if self.days:
            return self._by_days(begin, until)
        return next(iter(self._calendar.spans(begin, until, self._searches)), (None,))[0]

    def _by_days(self, timestamp: int, until: int) -> int | None:
        """Return the first open time of a period that is on a permitted day of its month."""
        zone = self._calendar.zone
        day, last = local_date(timestamp, zone), local_date(until - 1, zone)
        while day <= last:
            self._searches.spend(1)
            if day in self._days_of(day, self._searches):
                for begin, end in self._calendar.day_spans(day, self._searches):
                    if timestamp < end and max(begin, timestamp) < until:
                        return max(begin, timestamp)
            day += timedelta(days=1)
        return None

    def _days_of(self, day: date, steps: Steps) -> frozenset[date]:
        """Return the permitted days in the month of a day."""
        key = (day.year, day.month)
        if key not in self._chosen:
            first = day.replace(day=1)
            in_month = [
                month_day
                for number in range(31)
                if (month_day := first + timedelta(days=number)).month == day.month
                and self._calendar.day_spans(month_day, steps)
            ]
            numbers = [number - 1 if number > 0 else number for number in self.days]
            length = len(in_month)
            self._chosen[key] = frozenset(
                in_month[number] for number in numbers if -length <= number < length
            )
        return self._chosen[key]
