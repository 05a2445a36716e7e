"""Cron expressions: parsing, and the next matching time in a time zone.

Five fields are minute, hour, day of month, month and day of week. A sixth field is the year. With
seven fields, the first field is the second. Days can be `L`, `LW`, `15W`, `5L` and `2#3`. Months
and days of the week can be names. Macros such as `@daily` replace a whole expression. If both day
fields are restricted, a day needs to match only one of them. At a DST change, a skipped local time
never fires, and a repeated local time fires twice (source: Nomad's recorded responses
`hcl/cron-next`).

The only I/O is reading the time zone database.
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
    """Value range of a field: the numbers from `least` to `most`, and optional names."""

    name: str
    least: int
    most: int
    names: tuple[str, ...] = ()  # in numeric order, from `least`
    sunday: str = ""  # another spelling of `least`

    def number(self, text: str) -> int | None:
        """Return the value of a number or name; None if it is unknown or out of range."""
        for index, name in enumerate(self.names):
            if text in (name, name[:3]):
                return self.least + index
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


class MonthDays(msgspec.Struct, frozen=True, kw_only=True):
    """Days selected by their number in the month."""

    restricted: bool  # false: the field matches any day
    plain: frozenset[int]
    last: bool  # L
    last_workday: bool  # LW
    near: frozenset[int]  # 15W: the workday nearest to the 15th


class Weekdays(msgspec.Struct, frozen=True, kw_only=True):
    """Days selected by their day of the week; 0 is Sunday."""

    restricted: bool  # false: the field matches any day
    plain: frozenset[int]
    last: frozenset[int]  # 5L: the last Friday of the month
    nth: frozenset[tuple[int, int]]  # 2#3: the third Tuesday


class CronSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """A cron expression as sorted lists of matching values."""

    seconds: tuple[int, ...]
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    dates: MonthDays
    months: tuple[int, ...]
    weekdays: Weekdays
    years: tuple[int, ...]

    @property
    def possible(self) -> bool:
        """Return whether the expression can ever match; a reversed range matches nothing."""
        return all((self.seconds, self.minutes, self.hours, self.months, self.years))


# --- parsing ---


@lru_cache(maxsize=256)
def parse(text: str) -> CronSchedule:
    """Parse a cron expression. Raises `Invalid` with Nomad's text."""
    for name, meaning in _SHORTHANDS.items():
        text = text.replace(name, meaning)
    fields = text.split()[:7]
    if len(fields) < 5:
        raise Invalid("missing field(s)")
    seconds = fields.pop(0) if len(fields) == 7 else "0"
    years = fields[5] if len(fields) == 6 else "*"
    minutes, hours, days, months, weekdays = fields[:5]
    return CronSchedule(
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
    for entry, entry_values in _read(text, field):
        if entry in _WILDCARDS:
            return tuple(range(field.least, field.most + 1))
        if entry_values is None:
            raise _syntax_error(entry, field)
        values.update(entry_values)
    return tuple(sorted(values))


def _read(text: str, field: _Field) -> list[tuple[str, range | None]]:
    """Return the entries of a field with their numbers; None for an entry such as `L` or `15W`."""
    return [(entry, _range(entry, field)) for entry in _entries(text, field)]


def _entries(text: str, field: _Field) -> list[str]:
    entries = [entry for entry in text.split(",") if entry]
    if not entries:
        raise Invalid(f"{field.name} field: missing directive")
    return entries


class WrongField(Invalid):
    """A field of a cron expression has an invalid value; the message is Nomad's."""

    def __init__(self, entry: str, field: _Field) -> None:
        super().__init__(f"syntax error in {field.name} field: '{entry}'")
        self.entry, self.field = entry, field

    def message(self) -> str:
        """Return the error with the field, the value and the valid range."""
        field = self.field
        names = (
            f" or {', '.join(sorted(field.names, key=field.names.index))}" if field.names else ""
        )
        return (
            f"{self.entry!r} in the {field.name} field is not allowed: "
            f"write {field.least}-{field.most}{names}, *, or lists, ranges and steps of these values"
        )


def _syntax_error(entry: str, field: _Field) -> Invalid:
    return WrongField(entry, field)


def _range(entry: str, field: _Field) -> range | None:
    """Return the numbers of an entry; None if the entry is not a plain number or range."""
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
        most = field.most  # as in Nomad: a range that ends on Sunday means up to Saturday
    if not slash:
        return range(least, most + 1)
    if not _NUMBER.fullmatch(step):
        return None
    # Nomad accepts steps of one or two digits.
    if not _STEP.fullmatch(step) or int(step) > field.most:
        raise Invalid(f"invalid interval {text}")
    return range(least, most + 1, int(step))


def _dates_of_month(text: str) -> MonthDays:
    days: set[int] = set()
    near_days: set[int] = set()
    specials: set[str] = set()
    for entry, entry_values in _read(text, _DAY_OF_MONTH):
        if entry_values is not None:
            days.update(entry_values)
        elif entry.lower() in ("l", "lw"):
            specials.add(entry.lower())
        else:
            near_days.add(_near_workday(entry))
    return MonthDays(
        restricted=_is_restricted(text),
        plain=frozenset(days),
        last="l" in specials,
        last_workday="lw" in specials,
        near=frozenset(near_days),
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
    for entry, entry_values in _read(text, _DAY_OF_WEEK):
        if entry_values is not None:
            plain.update(entry_values)
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


# --- days of a month ---


def _days_of_month(schedule: CronSchedule, year: int, month: int) -> list[int]:
    """Return the matching days of a month in order."""
    length = calendar.monthrange(year, month)[1]
    if not schedule.dates.restricted and not schedule.weekdays.restricted:
        return list(range(1, length + 1))
    matching_days: set[int] = set()
    if schedule.dates.restricted:
        matching_days.update(_by_date(schedule.dates, year, month, length))
    if schedule.weekdays.restricted:
        matching_days.update(_by_weekday(schedule.weekdays, year, month, length))
    return sorted(matching_days)


def _by_date(days: MonthDays, year: int, month: int, length: int) -> Iterator[int]:
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
    """Return the workday nearest to a day of the month, within the same month."""
    match _weekday(year, month, day):
        case 6:
            return day - 1 if day > 1 else day + 2
        case 0:
            return day + 1 if day < length else day - 2
        case _:
            return day


# --- next match ---


def zone(name: str) -> tzinfo:
    """Return the time zone with this name in the zone database. Raises `Invalid`."""
    if name in ("", "UTC"):
        return UTC
    from zoneinfo import ZoneInfo  # few jobs need this slow import

    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError) as error:
        raise Invalid(f"unknown time zone {name}") from error


def next_after(spec: str, after: int, time_zone: tzinfo = UTC) -> int | None:
    """Return the first matching time after `after`, or None if no later time matches.

    Times are in nanoseconds since the epoch. Raises `Invalid` if `spec` is not a cron expression.
    """
    schedule = parse(spec)
    if not schedule.possible:
        return None
    earliest = after // SECOND + 1
    start = datetime.fromtimestamp(earliest, time_zone).date()
    # A clock that is set back across midnight repeats an evening. So the day before can still
    # match.
    days = _dates(schedule, start - timedelta(days=1))
    for day in days:
        matching_time = _first_on(schedule, day, earliest, time_zone)
        if matching_time is None:
            continue
        if _clock_changes(_midnight(day, time_zone)) and (following := next(days, None)):
            # The next day can begin before the repeated evening.
            later = _first_on(schedule, following, earliest, time_zone)
            matching_time = matching_time if later is None else min(matching_time, later)
        return matching_time * SECOND
    return None


def _dates(schedule: CronSchedule, start: date) -> Iterator[date]:
    """Yield the matching days from `start` on, in order."""
    for year in schedule.years[bisect_left(schedule.years, start.year) :]:
        for month in schedule.months:
            if (year, month) < (start.year, start.month):
                continue
            for day in _days_of_month(schedule, year, month):
                if (matching_date := date(year, month, day)) >= start:
                    yield matching_date


def _first_on(schedule: CronSchedule, day: date, earliest: int, time_zone: tzinfo) -> int | None:
    """Return the first matching time of a day from `earliest` on, in seconds since the epoch."""
    first = _midnight(day, time_zone)
    if _clock_changes(first):
        return _first_of_changing(schedule, first, earliest)
    begin = int(first.timestamp())
    second_of_day = _second_of_day(schedule, max(0, earliest - begin))
    return None if second_of_day is None else begin + second_of_day


def _midnight(day: date, time_zone: tzinfo) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=time_zone)


def _clock_changes(first: datetime) -> bool:
    """Return whether a DST change occurs on this day. Midnight may then occur twice."""
    return first.utcoffset() != _end(first).utcoffset()


def _end(first: datetime) -> datetime:
    """Return the midnight at the end of a day; if it occurs twice, its later occurrence."""
    return (first + timedelta(days=1)).replace(fold=1)


def _offset(local: datetime) -> int:
    """Return the offset of local time from UTC in seconds."""
    return int(local.replace(tzinfo=UTC).timestamp()) - int(local.timestamp())


def _second_of_day(schedule: CronSchedule, least: int) -> int | None:
    """Return the first matching second of a 24-hour day that is not before second `least`.

    Seconds are counted from 0 at midnight. Return None if no such second matches.
    """
    for hour in schedule.hours[bisect_left(schedule.hours, least // _HOUR_LONG) :]:
        remaining = max(0, least - hour * _HOUR_LONG)
        for minute in schedule.minutes[bisect_left(schedule.minutes, remaining // 60) :]:
            second = _second_from(schedule.seconds, remaining - minute * 60)
            if second is not None:
                return hour * _HOUR_LONG + minute * 60 + second
    return None


def _first_of_changing(schedule: CronSchedule, first: datetime, earliest: int) -> int | None:
    """Return the first matching time of a day with a DST change, in seconds since the epoch."""
    best: int | None = None
    offsets = [_offset(first), _offset(_end(first))]
    midnight = int(first.replace(tzinfo=UTC).timestamp())
    for hour in schedule.hours:
        local_time = midnight + hour * _HOUR_LONG  # minus the UTC offset at that time
        if local_time + _HOUR_LONG - min(offsets) <= earliest:
            continue
        if best is not None and best < local_time - max(offsets):
            break
        for minute in schedule.minutes:
            for start in _instants(first.replace(hour=hour, minute=minute)):
                second = _second_from(schedule.seconds, earliest - start)
                if second is not None and (best is None or start + second < best):
                    best = start + second
    return best


def _instants(local: datetime) -> Iterator[int]:
    """Yield the instants of a local time: none if it is skipped, two if it is repeated."""
    moments = {int(local.replace(fold=fold).timestamp()) for fold in (0, 1)}
    for moment in sorted(moments):
        if datetime.fromtimestamp(moment, local.tzinfo).replace(tzinfo=None, fold=0) == (
            local.replace(tzinfo=None, fold=0)
        ):
            yield moment


def _second_from(seconds: tuple[int, ...], least: int) -> int | None:
    index = bisect_left(seconds, least)
    return seconds[index] if index < len(seconds) else None
