"""Repetition rules, compared with those of an independent library."""

from datetime import date, datetime
from itertools import islice

import pytest
from dateutil.rrule import rrulestr
from hypothesis import given
from hypothesis import strategies as st

from daemon.flow.repetitions import Repetition, occurrences, weekday
from storage.errors import Invalid

NAMES = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
LAST = date(2032, 12, 31)


@st.composite
def rules(draw: st.DrawFn) -> Repetition:
    frequency = draw(st.sampled_from(["YEARLY", "MONTHLY", "WEEKLY", "DAILY"]))
    numbered = frequency in ("YEARLY", "MONTHLY")
    # That library finds nothing for weekdays with and without numbers in one rule.
    numbers = st.sampled_from([1, 2, -1] if numbered and draw(st.booleans()) else [0])
    weekdays = draw(st.frozensets(st.tuples(st.integers(0, 6), numbers), max_size=2))
    month_days = draw(st.frozensets(st.sampled_from([1, 13, 29, 31, -1, -2]), max_size=2))
    # Together with days of the month, numbered weekdays are ambiguous, so only plain weekdays are
    # used.
    if month_days:
        weekdays = frozenset((name, 0) for name, _ in weekdays)
    has_set = bool(weekdays or month_days)
    return Repetition(
        frequency=frequency,
        interval=draw(st.integers(1, 4)),
        count=draw(st.none() | st.integers(1, 20)),
        months=draw(st.frozensets(st.sampled_from([1, 2, 11, 12]), max_size=2)),
        month_days=frozenset() if frequency == "WEEKLY" else month_days,
        weekdays=weekdays,
        positions=draw(st.frozensets(st.sampled_from([1, 2, -1]), max_size=2))
        if has_set and numbered
        else frozenset(),
        week_start=draw(st.sampled_from([0, 6])),
    )


def written(rule: Repetition) -> str:
    days = ",".join(f"{number or ''}{NAMES[name]}" for name, number in sorted(rule.weekdays))
    pieces = {
        "FREQ": rule.frequency,
        "INTERVAL": str(rule.interval),
        "WKST": NAMES[rule.week_start],
        "BYMONTH": ",".join(map(str, sorted(rule.months))),
        "BYMONTHDAY": ",".join(map(str, sorted(rule.month_days))),
        "BYDAY": days,
        "BYSETPOS": ",".join(map(str, sorted(rule.positions))),
    }
    return ";".join(f"{key}={text}" for key, text in pieces.items() if text)


@given(rules(), st.sampled_from([date(2024, 2, 29), date(2026, 1, 1), date(2027, 12, 31)]))
def test_days_match_another_library(rule: Repetition, start: date) -> None:
    begin = datetime(start.year, start.month, start.day)  # noqa: DTZ001  # days have no time zone
    found = list(occurrences(rule, start, LAST))
    # Where nothing matches, that library searches up to the year 9999.
    wanted = islice(rrulestr(written(rule), dtstart=begin), len(found))
    assert found == [item.date() for item in wanted]


def test_a_rule_without_occurrences_ends() -> None:
    never = Repetition(frequency="DAILY", months=frozenset({2}), month_days=frozenset({30}))
    assert list(occurrences(never, date(2020, 1, 1), LAST)) == []


def test_a_rule_ends_with_its_last_day() -> None:
    rule = Repetition(frequency="WEEKLY", until=date(2026, 11, 20))
    assert list(occurrences(rule, date(2026, 11, 6), LAST)) == [
        date(2026, 11, 6),
        date(2026, 11, 13),
        date(2026, 11, 20),
    ]


@pytest.mark.parametrize("text", ["", "XX", "xMO", "-", "123MO", "1.5TU"])
def test_an_unknown_weekday_is_refused(text: str) -> None:
    with pytest.raises(Invalid):
        weekday(text)


@pytest.mark.parametrize(
    ("text", "found"),
    [("MO", (0, 0)), ("-1SU", (6, -1)), ("+2tu", (1, 2)), ("53FR", (4, 53)), ("-20we", (2, -20))],
)
def test_weekday_has_its_number(text: str, found: tuple[int, int]) -> None:
    assert weekday(text) == found


@pytest.mark.parametrize(
    ("frequency", "months", "entry", "days"),
    [
        ("YEARLY", (), (0, 20), ["2026-05-18", "2027-05-17"]),  # the 20th Monday of the year
        ("YEARLY", (), (6, -1), ["2026-12-27", "2027-12-26"]),
        ("YEARLY", (), (3, 1), ["2026-01-01", "2027-01-07"]),
        ("YEARLY", (), (3, -53), ["2026-01-01"]),  # 2027 has only 52 Thursdays
        ("YEARLY", (11,), (3, 4), ["2026-11-26", "2027-11-25"]),
        ("YEARLY", (11,), (0, -1), ["2026-11-30", "2027-11-29"]),
        ("MONTHLY", (1, 2), (4, 2), ["2026-01-09", "2026-02-13", "2027-01-08", "2027-02-12"]),
        ("MONTHLY", (2,), (4, -4), ["2026-02-06", "2027-02-05"]),
        ("MONTHLY", (1,), (3, 5), ["2026-01-29"]),  # January 2027 has four Thursdays
    ],
)
def test_numbered_weekday_is_counted_in_its_month_or_year(
    frequency: str, months: tuple[int, ...], entry: tuple[int, int], days: list[str]
) -> None:
    rule = Repetition(frequency=frequency, months=frozenset(months), weekdays=frozenset({entry}))
    found = occurrences(rule, date(2026, 1, 1), date(2027, 12, 31))
    assert [day.isoformat() for day in found] == days


def test_a_count_includes_only_days_from_the_start() -> None:
    rule = Repetition(frequency="MONTHLY", month_days=frozenset({1, 2, 3}), count=4)
    found = list(occurrences(rule, date(2026, 11, 2), LAST))
    assert found == [date(2026, 11, 2), date(2026, 11, 3), date(2026, 12, 1), date(2026, 12, 2)]
