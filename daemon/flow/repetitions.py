"""Repetition rules of calendar events (RFC 5545, RRULE), for events of whole days.

A search examines a limited number of days. Libraries do not guarantee that: for a rule without
occurrences, such as February 30 of each year, they search until their last year.
"""

import calendar
from collections.abc import Iterable, Iterator
from datetime import date, timedelta

import msgspec

from storage.errors import Invalid

FREQUENCIES = ("YEARLY", "MONTHLY", "WEEKLY", "DAILY")
_WEEKDAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")


class Repetition(msgspec.Struct, frozen=True, kw_only=True):
    """A repetition rule. `weekdays` are pairs of a weekday and a number, as in RFC 5545.

    The pair (0, 2) is the second Monday of a month or year. The number 0 stands for every such
    weekday.
    """

    frequency: str
    interval: int = 1
    count: int | None = None
    until: date | None = None
    months: frozenset[int] = frozenset()
    month_days: frozenset[int] = frozenset()
    weekdays: frozenset[tuple[int, int]] = frozenset()
    positions: frozenset[int] = frozenset()
    week_start: int = 0


def weekday(text: str) -> tuple[int, int]:
    """Parse a weekday with an optional number, such as `MO` or `-1SU`. Raises `Invalid`."""
    name, digits = text[-2:].upper(), text[:-2]
    number = digits.removeprefix("+").removeprefix("-")
    if name not in _WEEKDAYS or (digits and not (number.isascii() and number.isdecimal())):
        raise Invalid(f"{text[:20]!r} is not a weekday such as MO or -1SU")
    if len(number) > 2:
        raise Invalid(f"{text[:20]!r} has a number above 53, the maximum")
    return _WEEKDAYS.index(name), (-1 if digits.startswith("-") else 1) * int(number or 0)


def occurrences(rule: Repetition, start: date, last: date) -> Iterator[date]:
    """Yield the days of a rule from `start` to `last`, in order."""
    complete = _complete(rule, start)
    number = 0
    for period in _periods(complete, start, last):
        days = [candidate for candidate in period if _matches(complete, candidate)]
        for day in _positioned(days, complete.positions):
            if day < start:
                continue
            number += 1
            is_over = rule.count is not None and number > rule.count
            if is_over or day > last or (rule.until is not None and day > rule.until):
                return
            yield day


def _complete(rule: Repetition, start: date) -> Repetition:
    """Return the rule, with missing parts filled in from the start date."""
    if rule.month_days or rule.weekdays:
        return rule
    match rule.frequency:
        case "YEARLY":
            months = rule.months or frozenset({start.month})
            return msgspec.structs.replace(rule, months=months, month_days=frozenset({start.day}))
        case "MONTHLY":
            return msgspec.structs.replace(rule, month_days=frozenset({start.day}))
        case "WEEKLY":
            return msgspec.structs.replace(rule, weekdays=frozenset({(start.weekday(), 0)}))
    return rule


def _periods(rule: Repetition, start: date, last: date) -> Iterator[Iterable[date]]:
    """Yield the days of each period up to `last`. A period is a year, a month, a week or a day."""
    match rule.frequency:
        case "YEARLY":
            for year in range(start.year, last.year + 1, rule.interval):
                yield _days(date(year, 1, 1), 366 if calendar.isleap(year) else 365)
        case "MONTHLY":
            first = start.year * 12 + start.month - 1
            for number in range(first, last.year * 12 + last.month, rule.interval):
                year, month = divmod(number, 12)
                yield _days(date(year, month + 1, 1), calendar.monthrange(year, month + 1)[1])
        case "WEEKLY":
            day = start - timedelta(days=(start.weekday() - rule.week_start) % 7)
            while day <= last:
                yield _days(day, 7)
                day += timedelta(days=7 * rule.interval)
        case _:
            day = start
            while day <= last:
                yield (day,)
                day += timedelta(days=rule.interval)


def _days(first: date, number: int) -> Iterator[date]:
    return (first + timedelta(days=offset) for offset in range(number))


def _matches(rule: Repetition, day: date) -> bool:
    if rule.months and day.month not in rule.months:
        return False
    if rule.month_days and day.day not in rule.month_days:
        length = calendar.monthrange(day.year, day.month)[1]
        if day.day - length - 1 not in rule.month_days:
            return False
    return not rule.weekdays or any(
        _is_on(rule, day, wanted_weekday) for wanted_weekday in rule.weekdays
    )


def _is_on(rule: Repetition, day: date, weekday: tuple[int, int]) -> bool:
    """Return whether a day matches an entry of `weekdays` in its month or year."""
    name, number = weekday
    if day.weekday() != name:
        return False
    if not number or rule.frequency in ("WEEKLY", "DAILY"):
        return True
    if rule.frequency == "MONTHLY" or rule.months:
        position, length = day.day, calendar.monthrange(day.year, day.month)[1]
    else:
        position, length = day.timetuple().tm_yday, 366 if calendar.isleap(day.year) else 365
    return number == ((position - 1) // 7 + 1 if number > 0 else -((length - position) // 7 + 1))


def _positioned(days: list[date], positions: frozenset[int]) -> list[date]:
    """Return the days at the given positions of a list; negative positions count from the end."""
    if not positions:
        return days
    chosen = {position - 1 if position > 0 else len(days) + position for position in positions}
    return [day for index, day in enumerate(days) if index in chosen]
