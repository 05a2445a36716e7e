"""Cron expressions: what they say, and when they come true next in a time zone.

Five fields are minute, hour, day of month, month and day of week; a sixth is the year, and with
seven the first is the second. Days may be given as `L`, `LW`, `15W`, `5L` and `2#3`, months and
days of the week by name; `@daily` and its like stand for whole expressions. When both day fields
are restricted, either may match. A local time that a change of clocks skips does not come true, one
that is repeated comes true twice (golden: hcl/cron-next).

Reading the zone database is the only input or output here.
"""

import calendar
import re
from bisect import bisect_left
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import lru_cache

import msgspec

from storage.errors import Invalid
from storage.records.base import SECOND

LAST_YEAR = 2099
_HOUR_LONG = 3600  # seconds


class _Field(msgspec.Struct, frozen=True):
    """The values that a field can have: numbers from `least` to `most`, and names for some."""

    name: str
    least: int
    most: int
    names: tuple[str, ...] = ()  # in the order of the numbers, from `least`
    sunday: str = ""  # another way to write `least`

    def number(self, text: str) -> int | None:
        """Return the value of a number or a name; None when it is neither, or out of range."""
        for at, name in enumerate(self.names):
            if text in (name, name[:3]):
                return self.least + at
        if text == self.sunday and text:
            return self.least
        if not _NUMBER.fullmatch(text) or len(text) > max(2, len(str(self.most))):
            return None
        value = int(text)
        return value if self.least <= value <= self.most else None


_WILDCARDS = frozenset({"*", "?"})
_NUMBER = re.compile(r"[0-9]+")
_STEP = re.compile(r"0?[1-9]|[1-5][0-9]")
_MONTHS = tuple(name.lower() for name in calendar.month_name[1:])
_DAYS = ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday")

_SECOND_FIELD = _Field("second", 0, 59)
_MINUTE = _Field("minute", 0, 59)
_HOUR = _Field("hour", 0, 23)
_DAY_OF_MONTH = _Field("day-of-month", 1, 31)
_MONTH = _Field("month", 1, 12, _MONTHS)
_DAY_OF_WEEK = _Field("day-of-week", 0, 6, _DAYS, "7")
_YEAR = _Field("year", 1970, LAST_YEAR)

_SHORTHANDS = {
    "@yearly": "0 0 0 1 1 * *",
    "@annually": "0 0 0 1 1 * *",
    "@monthly": "0 0 0 1 * * *",
    "@weekly": "0 0 0 * * 0 *",
    "@daily": "0 0 0 * * * *",
    "@hourly": "0 0 * * * * *",
}


class Dates(msgspec.Struct, frozen=True, kw_only=True):
    """Which days are meant by their number in the month."""

    restricted: bool  # false: any day will do
    plain: frozenset[int]
    last: bool  # L
    last_workday: bool  # LW
    near: frozenset[int]  # 15W: the workday nearest to the 15th


class Weekdays(msgspec.Struct, frozen=True, kw_only=True):
    """Which days are meant by their place in the week; 0 is Sunday."""

    restricted: bool  # false: any day will do
    plain: frozenset[int]
    last: frozenset[int]  # 5L: the last Friday of the month
    nth: frozenset[tuple[int, int]]  # 2#3: the third Tuesday


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A cron expression as sorted lists of the values that match."""

    seconds: tuple[int, ...]
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    dates: Dates
    months: tuple[int, ...]
    weekdays: Weekdays
    years: tuple[int, ...]

    @property
    def possible(self) -> bool:
        """Tell whether no field excludes everything, as a reversed range does."""
        return all((self.seconds, self.minutes, self.hours, self.months, self.years))


# ---- reading ------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def parse(text: str) -> Schedule:
    """Return what a cron expression says. Raises `Invalid` with the peer's text."""
    for name, meaning in _SHORTHANDS.items():
        text = text.replace(name, meaning)
    fields = text.split()[:7]
    if len(fields) < 5:
        raise Invalid("missing field(s)")
    seconds = fields.pop(0) if len(fields) == 7 else "0"
    years = fields[5] if len(fields) == 6 else "*"
    minutes, hours, days, months, weekdays = fields[:5]
    return Schedule(
        seconds=_values(seconds, _SECOND_FIELD),
        minutes=_values(minutes, _MINUTE),
        hours=_values(hours, _HOUR),
        dates=_dates_of_month(days),
        months=_values(months, _MONTH),
        weekdays=_weekdays(weekdays),
        years=_values(years, _YEAR),
    )


def _values(text: str, field: _Field) -> tuple[int, ...]:
    values: set[int] = set()
    for entry, found in _read(text, field):
        if entry in _WILDCARDS:
            return tuple(range(field.least, field.most + 1))
        if found is None:
            raise _syntax_error(entry, field)
        values.update(found)
    return tuple(sorted(values))


def _read(text: str, field: _Field) -> list[tuple[str, range | None]]:
    """Return the entries of a field, and the numbers that they mean where they are plain ones."""
    return [(entry, _range(entry, field)) for entry in _entries(text, field)]


def _entries(text: str, field: _Field) -> list[str]:
    entries = [entry for entry in text.split(",") if entry]
    if not entries:
        raise Invalid(f"{field.name} field: missing directive")
    return entries


def _syntax_error(entry: str, field: _Field) -> Invalid:
    return Invalid(f"syntax error in {field.name} field: '{entry}'")


def _range(entry: str, field: _Field) -> range | None:
    """Return the numbers that an entry means; None when it is not a plain one."""
    text = entry.lower()
    if text in _WILDCARDS:
        return range(field.least, field.most + 1)
    span, slash, step = text.partition("/")
    first, dash, last = span.partition("-")
    least = field.least if span == "*" else field.number(first)
    if least is None:
        return None
    most = field.number(last) if dash else field.most if slash else least
    if most is None:
        return None
    if dash and field.sunday and most == field.least:
        most = field.most  # as the peer has it: a week that ends on Sunday ends on Saturday
    if not slash:
        return range(least, most + 1)
    if not _NUMBER.fullmatch(step):
        return None
    # The peer knows steps of one or two digits.
    if not _STEP.fullmatch(step) or int(step) > field.most:
        raise Invalid(f"invalid interval {text}")
    return range(least, most + 1, int(step))


def _dates_of_month(text: str) -> Dates:
    days: set[int] = set()
    near: set[int] = set()
    specials: set[str] = set()
    for entry, found in _read(text, _DAY_OF_MONTH):
        if found is not None:
            days.update(found)
        elif entry.lower() in ("l", "lw"):
            specials.add(entry.lower())
        else:
            near.add(_near_workday(entry))
    return Dates(
        restricted=_is_restricted(text),
        plain=frozenset(days),
        last="l" in specials,
        last_workday="lw" in specials,
        near=frozenset(near),
    )


def _is_restricted(text: str) -> bool:
    return _WILDCARDS.isdisjoint(text.split(","))


def _near_workday(entry: str) -> int:
    text = entry.lower()
    day = _DAY_OF_MONTH.number(text.removesuffix("w"))
    if not text.endswith("w") or day is None:
        raise _syntax_error(entry, _DAY_OF_MONTH)
    return day


def _weekdays(text: str) -> Weekdays:
    plain: set[int] = set()
    last: set[int] = set()
    nth: set[tuple[int, int]] = set()
    for entry, found in _read(text, _DAY_OF_WEEK):
        if found is not None:
            plain.update(found)
            continue
        name, mark, week = entry.lower().partition("#")
        day = _DAY_OF_WEEK.number(name if mark else name.removesuffix("l"))
        if day is None or (mark and week not in ("1", "2", "3", "4", "5")):
            raise _syntax_error(entry, _DAY_OF_WEEK)
        if mark:
            nth.add((day, int(week)))
        else:
            last.add(day)
    return Weekdays(
        restricted=_is_restricted(text),
        plain=frozenset(plain),
        last=frozenset(last),
        nth=frozenset(nth),
    )


# ---- the days of a month ------------------------------------------------------------------------


def _days_of_month(schedule: Schedule, year: int, month: int) -> list[int]:
    """Return the matching days of a month, in order."""
    length = calendar.monthrange(year, month)[1]
    if not schedule.dates.restricted and not schedule.weekdays.restricted:
        return list(range(1, length + 1))
    found: set[int] = set()
    if schedule.dates.restricted:
        found.update(_by_date(schedule.dates, year, month, length))
    if schedule.weekdays.restricted:
        found.update(_by_weekday(schedule.weekdays, year, month, length))
    return sorted(found)


def _by_date(days: Dates, year: int, month: int, length: int) -> Iterator[int]:
    yield from (day for day in days.plain if day <= length)
    if days.last:
        yield length
    if days.last_workday:
        yield _workday(year, month, length, length)
    yield from (_workday(year, month, day, length) for day in days.near if day <= length)


def _by_weekday(days: Weekdays, year: int, month: int, length: int) -> Iterator[int]:
    for day in range(1, length + 1):
        weekday = _weekday(year, month, day)
        if (
            weekday in days.plain
            or (weekday in days.last and day + 7 > length)
            or (weekday, (day + 6) // 7) in days.nth
        ):
            yield day


def _weekday(year: int, month: int, day: int) -> int:
    return date(year, month, day).isoweekday() % 7


def _workday(year: int, month: int, day: int, length: int) -> int:
    """Return the day from Monday to Friday nearest to a day, in the same month."""
    match _weekday(year, month, day):
        case 6:
            return day - 1 if day > 1 else day + 2
        case 0:
            return day + 1 if day < length else day - 2
        case _:
            return day


# ---- the next time ------------------------------------------------------------------------------


def zone(name: str) -> tzinfo:
    """Return a time zone by its name in the zone database. Raises `Invalid`."""
    if name in ("", "UTC"):
        return UTC
    from zoneinfo import ZoneInfo  # loads much, and few jobs name a zone

    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError) as error:
        raise Invalid(f"unknown time zone {name}") from error


def next_after(spec: str, after: int, time_zone: tzinfo = UTC) -> int | None:
    """Return the first time after a moment at which a cron expression comes true; None: never.

    Times are nanoseconds since the epoch. Raises `Invalid` when `spec` is no cron expression.
    """
    schedule = parse(spec)
    if not schedule.possible:
        return None
    earliest = after // SECOND + 1
    start = datetime.fromtimestamp(earliest, time_zone).date()
    # A clock that is put back over midnight repeats an evening: the day before may still count.
    days = _dates(schedule, start - timedelta(days=1))
    for day in days:
        found = _first_on(schedule, day, earliest, time_zone)
        if found is None:
            continue
        if _clock_changes(_midnight(day, time_zone)) and (following := next(days, None)):
            # The next day may have begun before the evening was repeated.
            other = _first_on(schedule, following, earliest, time_zone)
            found = found if other is None else min(found, other)
        return found * SECOND
    return None


def _dates(schedule: Schedule, start: date) -> Iterator[date]:
    """Yield the matching days from `start` on, in order."""
    for year in schedule.years[bisect_left(schedule.years, start.year) :]:
        for month in schedule.months:
            if (year, month) < (start.year, start.month):
                continue
            for day in _days_of_month(schedule, year, month):
                if (found := date(year, month, day)) >= start:
                    yield found


def _first_on(schedule: Schedule, day: date, earliest: int, time_zone: tzinfo) -> int | None:
    """Return the first matching second of a day that is not before `earliest`."""
    first = _midnight(day, time_zone)
    if _clock_changes(first):
        return _first_of_changing(schedule, first, earliest)
    begin = int(first.timestamp())
    found = _second_of_day(schedule, max(0, earliest - begin))
    return None if found is None else begin + found


def _midnight(day: date, time_zone: tzinfo) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=time_zone)


def _clock_changes(first: datetime) -> bool:
    """Whether clocks are changed between a midnight and the next, which they may show twice."""
    return first.utcoffset() != _end(first).utcoffset()


def _end(first: datetime) -> datetime:
    """Return the midnight after another, the later one if clocks show it twice."""
    return (first + timedelta(days=1)).replace(fold=1)


def _offset(local: datetime) -> int:
    """Return how many seconds a local time is ahead of universal time."""
    return int(local.replace(tzinfo=UTC).timestamp()) - int(local.timestamp())


def _second_of_day(schedule: Schedule, least: int) -> int | None:
    """Return the first matching second of a day of 24 hours, `least` or later."""
    for hour in schedule.hours[bisect_left(schedule.hours, least // _HOUR_LONG) :]:
        rest = max(0, least - hour * _HOUR_LONG)
        for minute in schedule.minutes[bisect_left(schedule.minutes, rest // 60) :]:
            second = _second_from(schedule.seconds, rest - minute * 60)
            if second is not None:
                return hour * _HOUR_LONG + minute * 60 + second
    return None


def _first_of_changing(schedule: Schedule, first: datetime, earliest: int) -> int | None:
    """Return the first matching second of a day on which clocks are changed."""
    best: int | None = None
    offsets = [_offset(first), _offset(_end(first))]
    midnight = int(first.replace(tzinfo=UTC).timestamp())
    for hour in schedule.hours:
        shown = midnight + hour * _HOUR_LONG  # less the offset that the clock then has
        if shown + _HOUR_LONG - min(offsets) <= earliest:
            continue
        if best is not None and best < shown - max(offsets):
            break
        for minute in schedule.minutes:
            for start in _instants(first.replace(hour=hour, minute=minute)):
                second = _second_from(schedule.seconds, earliest - start)
                if second is not None and (best is None or start + second < best):
                    best = start + second
    return best


def _instants(local: datetime) -> Iterator[int]:
    """Yield the moments at which clocks show a local time: none when it is skipped, or two."""
    moments = {int(local.replace(fold=fold).timestamp()) for fold in (0, 1)}
    for moment in sorted(moments):
        if datetime.fromtimestamp(moment, local.tzinfo).replace(tzinfo=None, fold=0) == (
            local.replace(tzinfo=None, fold=0)
        ):
            yield moment


def _second_from(seconds: tuple[int, ...], least: int) -> int | None:
    at = bisect_left(seconds, least)
    return seconds[at] if at < len(seconds) else None
