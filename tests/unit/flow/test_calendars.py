"""Calendars: days, hours, clock changes, blackouts, other calendars, and days of the month."""

import time
from collections.abc import Mapping
from datetime import date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.flow.calendars import (
    MAX_FAULTS,
    MAX_PARTS,
    CompiledCalendar,
    Openings,
    Steps,
    TooManySteps,
    UnknownCalendar,
    compiled,
    faults,
    local_date,
)
from storage.records.base import HOUR, MINUTE, SECOND
from storage.records.calendar import Blackout, Calendar

WORKDAYS = ["mon", "tue", "wed", "thu", "fri"]
ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Sao_Paulo"]
NAMES = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"]


def moment(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp()) * SECOND


def text(at: int | None, zone: str = "UTC") -> str:
    assert at is not None
    return datetime.fromtimestamp(at // SECOND, ZoneInfo(zone)).isoformat()


def made(*others: Calendar, **fields: Any) -> CompiledCalendar:
    """Return a calendar named `own`, which may refer to others."""
    every = [Calendar(name="own", version=3, **fields), *others]
    return compiled("own", {item.name: msgspec.json.encode(item) for item in every})


def why(calendar: CompiledCalendar, at: str) -> str:
    return Openings(calendar).why_closed(moment(at))


# --- one point in time ---


@pytest.mark.parametrize(
    ("at", "reason"),
    [
        ("2026-11-26T11:00:00Z", ""),
        ("2026-11-28T11:00:00Z", "Saturday"),
        ("2026-12-25T11:00:00Z", "Christmas Day"),
        ("2026-12-26T11:00:00Z", ""),  # a Saturday, and an extra day
        ("2026-11-26T07:59:59Z", "outside of 08:00-12:00, 13:00-18:00"),
        ("2026-11-26T12:30:00Z", "outside of 08:00-12:00, 13:00-18:00"),
        ("2026-11-26T18:00:00Z", "outside of 08:00-12:00, 13:00-18:00"),
        ("2026-12-22T11:00:00Z", "blackout (year end)"),
        ("2026-12-23T17:59:59Z", "blackout (year end)"),  # a blackout includes its last date
        ("2026-12-24T11:00:00Z", ""),
    ],
)
def test_closed_time_has_its_reason(at: str, reason: str) -> None:
    calendar = made(
        weekdays=WORKDAYS,
        hours=["08:00-12:00", "13:00-18:00"],
        holidays={"2026-12-25": "Christmas Day"},
        extra_days={"2026-12-26": "stocktaking"},
        blackouts=[Blackout(begin="2026-12-22", end="2026-12-23", reason="year end")],
    )
    wanted = f'closed: calendar "own" version 3: {reason}' if reason else ""
    assert why(calendar, at) == wanted


def test_hours_follow_the_local_time_of_the_zone() -> None:
    berlin = made(time_zone="Europe/Berlin", hours=["08:00-09:00"])
    assert why(berlin, "2026-07-01T06:30:00Z") == ""
    assert why(berlin, "2026-12-01T07:30:00Z") == ""
    assert why(berlin, "2026-12-01T06:30:00Z") != ""


def test_hour_skipped_by_daylight_saving_is_not_open() -> None:
    berlin = made(time_zone="Europe/Berlin", hours=["02:15-02:45"])
    assert berlin.day_spans(date(2026, 3, 29)) == []
    assert berlin.day_spans(date(2026, 3, 30)) != []
    longer = made(time_zone="Europe/Berlin", hours=["01:30-03:30"])
    assert longer.day_spans(date(2026, 3, 29)) == [
        (moment("2026-03-29T00:30:00Z"), moment("2026-03-29T01:30:00Z"))
    ]


def test_hour_repeated_by_daylight_saving_is_open_twice() -> None:
    berlin = made(time_zone="Europe/Berlin", hours=["02:15-02:45"])
    assert berlin.day_spans(date(2026, 10, 25)) == [
        (moment("2026-10-25T00:15:00Z"), moment("2026-10-25T00:45:00Z")),
        (moment("2026-10-25T01:15:00Z"), moment("2026-10-25T01:45:00Z")),
    ]


def test_day_without_midnight_starts_after_the_gap() -> None:
    sao_paulo = made(time_zone="America/Sao_Paulo")
    assert sao_paulo.day_spans(date(2018, 11, 4)) == [
        (moment("2018-11-04T03:00:00Z"), moment("2018-11-05T02:00:00Z"))
    ]


def test_other_calendars_can_restrict_and_exclude() -> None:
    team = Calendar(name="team", weekdays=["mon", "tue"])
    upkeep = Calendar(name="upkeep", hours=["02:00-04:00"])
    calendar = made(team, upkeep, only=["team"], except_=["upkeep"])
    assert why(calendar, "2026-11-23T01:00:00Z") == ""
    assert why(calendar, "2026-11-23T02:00:00Z").endswith('calendar "upkeep" is open')
    assert why(calendar, "2026-11-25T01:00:00Z").endswith('calendar "team" is closed (Wednesday)')


def test_a_missing_calendar_and_a_cycle_are_named() -> None:
    with pytest.raises(UnknownCalendar, match='calendar "team" does not exist'):
        made(only=["team"])
    with pytest.raises(UnknownCalendar, match="own -> team -> own"):
        made(Calendar(name="team", except_=["own"]), only=["team"])


# --- many references ---


class Documents(dict[str, bytes]):
    """Stored calendars, and the number of those that were read."""

    reads = 0

    def __getitem__(self, name: str) -> bytes:
        self.reads += 1
        return super().__getitem__(name)


def ladder(number: int, **fields: Any) -> Documents:
    """Return calendars `c0`, `c1` …; each refers to the `MAX_PARTS` before it."""
    every = [
        Calendar(
            name=f"c{number}",
            only=[f"c{part}" for part in range(max(number - MAX_PARTS, 0), number)],
            **fields,
        )
        for number in range(number)
    ]
    return Documents({calendar.name: msgspec.json.encode(calendar) for calendar in every})


def test_each_calendar_is_checked_once() -> None:
    documents = ladder(MAX_PARTS + 1)
    found = compiled("c16", documents)
    assert documents.reads == MAX_PARTS + 1
    steps = Steps()
    assert found.why_closed(moment("2026-11-26T11:00:00Z"), steps) == ""
    assert steps.number == 2 * (MAX_PARTS + 1)  # the day, and its one period
    steps = Steps()
    first = moment("2026-11-26T00:00:00Z")
    assert found.day_spans(date(2026, 11, 26), steps) == [(first, first + 24 * HOUR)]
    comparisons = MAX_PARTS * (MAX_PARTS + 1) // 2
    assert steps.number == 2 * (MAX_PARTS + 1) + comparisons


def test_stored_calendars_beyond_the_limit_are_refused_early() -> None:
    documents = ladder(64)
    with pytest.raises(
        UnknownCalendar, match=r'of calendar "c63" refer to more than 16 calendars, directly or'
    ):
        compiled("c63", documents)
    assert documents.reads <= MAX_PARTS + 1


def test_calendar_query_has_a_limited_number_of_steps() -> None:
    found = compiled("c16", ladder(MAX_PARTS + 1))
    with pytest.raises(TooManySteps, match="its calendar needs more than 20 steps: give it fewer"):
        found.spans(moment("2026-11-01T00:00:00Z"), moment("2026-11-30T00:00:00Z"), Steps(20))


@pytest.mark.parametrize("days", [(), (1,)])
def test_a_search_ends_at_its_limit_of_steps(days: tuple[int, ...]) -> None:
    never = made(Calendar(name="always"), except_=["always"])
    openings, at = Openings(never, days, most_steps=500), moment("2026-11-26T00:00:00Z")
    assert openings.next_open(at) is None
    assert openings.is_limited
    assert at < openings.searched_until < at + 366 * 24 * HOUR


def test_second_search_continues_at_the_end_of_the_first() -> None:
    never = made(Calendar(name="always"), except_=["always"])
    openings, at = Openings(never, most_steps=20_000), moment("2026-11-26T00:00:00Z")
    for hour in range(1000):  # the first search takes about 8000 steps
        assert openings.next_open(at + hour * HOUR) is None
    assert not openings.is_limited
    assert openings.searched_until == at + (5 * 366 * 24 + 999) * HOUR


def test_search_from_an_earlier_time_starts_again() -> None:
    openings = Openings(made(weekdays=["mon"]))
    assert text(openings.next_open(moment("2026-12-01T00:00:00Z")))[:10] == "2026-12-07"
    assert text(openings.next_open(moment("2026-11-24T00:00:00Z")))[:10] == "2026-11-30"
    assert text(openings.next_open(moment("2026-12-01T00:00:00Z")))[:10] == "2026-12-07"


# --- openings ---


@pytest.mark.parametrize(
    ("fields", "at", "opening"),
    [
        ({"weekdays": WORKDAYS}, "2026-11-27T23:59:00Z", "2026-11-27T23:59:00+00:00"),
        ({"weekdays": WORKDAYS}, "2026-11-28T10:00:00Z", "2026-11-30T00:00:00+00:00"),
        (
            {"weekdays": WORKDAYS, "hours": ["08:00-18:00"]},
            "2026-11-27T18:00:00Z",
            "2026-11-30T08:00:00+00:00",
        ),
        (
            {"blackouts": [Blackout(begin="2026-11-01", end="2028-02-28")]},
            "2026-11-27T18:00:00Z",
            "2028-02-29T00:00:00+00:00",
        ),
    ],
)
def test_the_next_opening_is_found(fields: Mapping[str, Any], at: str, opening: str) -> None:
    assert text(Openings(made(**fields)).next_open(moment(at))) == opening


def test_permanently_closed_calendar_has_no_opening() -> None:
    calendar = made(blackouts=[Blackout(begin="2020-01-01", end="2199-12-30")])
    assert Openings(calendar).next_open(moment("2026-11-26T00:00:00Z")) is None


@pytest.mark.parametrize(
    ("days", "opening"),
    [
        ((1,), "2026-12-01T00:00:00+00:00"),
        ((-1,), "2026-11-30T00:00:00+00:00"),
        ((2, 3), "2026-12-02T00:00:00+00:00"),
        ((21, -22), "2026-11-30T00:00:00+00:00"),  # 21 business days in November, 22 in December
        ((31,), None),  # no month has so many business days
    ],
)
def test_business_days_are_counted_in_their_month(
    days: tuple[int, ...], opening: str | None
) -> None:
    found = Openings(made(weekdays=WORKDAYS), days).next_open(moment("2026-11-28T00:00:00Z"))
    assert found is None if opening is None else text(found) == opening


def test_days_of_the_month_need_no_calendar() -> None:
    openings = Openings(None, (-1,), ZoneInfo("Europe/Berlin"))
    assert (
        openings.why_closed(moment("2028-02-28T12:00:00Z"))
        == "closed: it is not day -1 of the month"
    )
    assert text(openings.next_open(moment("2028-02-10T00:00:00Z")), "Europe/Berlin") == (
        "2028-02-29T00:00:00+01:00"
    )


CALENDARS = st.builds(
    Calendar,
    name=st.just("own"),
    time_zone=st.sampled_from(ZONES),
    weekdays=st.lists(st.sampled_from(NAMES), unique=True),
    hours=st.lists(
        st.sampled_from(["00:00-02:30", "02:15-02:45", "01:30-03:30", "22:00-24:00"]), max_size=2
    ),
    holidays=st.dictionaries(
        st.sampled_from(["2024-02-29", "2024-03-31", "2024-11-03"]), st.just("a day")
    ),
    extra_days=st.dictionaries(st.sampled_from(["2024-10-27", "2024-10-06"]), st.just("a day")),
    blackouts=st.lists(
        st.just(Blackout(begin="2024-03-10", end="2024-03-10T09:00:00Z", reason="r")), max_size=1
    ),
)
# Around February 29, and the clock changes of the zones in 2024.
MOMENTS = st.sampled_from(
    [
        "2024-02-28",
        "2024-03-09",
        "2024-03-30",
        "2024-04-06",
        "2024-10-05",
        "2024-10-26",
        "2024-11-02",
    ]
).flatmap(
    lambda day: st.integers(0, 3 * 24 * 4).map(
        lambda quarters: moment(f"{day}T00:00:00Z") + quarters * 15 * MINUTE
    )
)


def model(calendar: Calendar, at: int) -> bool:
    """Return whether a calendar is open at a time, from its local time alone."""
    local = datetime.fromtimestamp(at // SECOND, ZoneInfo(calendar.time_zone))
    day, minutes = local.date(), local.hour * 60 + local.minute
    is_open = day.isoformat() in (calendar.extra_days or {}) or (
        NAMES[day.weekday()] in (calendar.weekdays or NAMES)
        and day.isoformat() not in (calendar.holidays or {})
    )
    periods = [hour.split("-") for hour in calendar.hours or ["00:00-24:00"]]
    numbers = [[int(item[:2]) * 60 + int(item[3:]) for item in pair] for pair in periods]
    blackout = calendar.blackouts and (
        datetime(2024, 3, 10, tzinfo=local.tzinfo).timestamp() * SECOND
        <= at
        < moment("2024-03-10T09:00:00Z")
    )
    return is_open and any(first <= minutes < last for first, last in numbers) and not blackout


@given(CALENDARS, MOMENTS)
def test_time_is_open_by_its_local_time(calendar: Calendar, at: int) -> None:
    found = compiled("own", {"own": msgspec.json.encode(calendar)})
    assert (Openings(found).why_closed(at) == "") == model(calendar, at)
    assert any(begin <= at < end for begin, end in found.spans(at - HOUR, at + HOUR)) == model(
        calendar, at
    )


@given(CALENDARS, MOMENTS)
def test_no_time_is_open_before_the_next_opening(calendar: Calendar, at: int) -> None:
    found = compiled("own", {"own": msgspec.json.encode(calendar)})
    opening = Openings(found).next_open(at)
    assert opening is not None
    assert model(calendar, opening)
    quarters = range(at, min(opening, at + 72 * HOUR), 15 * MINUTE)
    assert not [quarter for quarter in quarters if model(calendar, quarter)]


@given(CALENDARS, st.integers(1, 23), st.sampled_from(["2024-02-10", "2024-03-30", "2023-10-28"]))
def test_nth_day_matches_a_count(calendar: Calendar, number: int, day: str) -> None:
    found = compiled("own", {"own": msgspec.json.encode(calendar)})
    month = day[:7]
    first = date.fromisoformat(f"{month}-01")
    every = [first + timedelta(days=number) for number in range(31)]
    open_days = [item for item in every if item.isoformat()[:7] == month and found.day_spans(item)]
    begin = found.day_spans(open_days[number - 1])[0][0] if number <= len(open_days) else None
    opening = Openings(found, (number,)).next_open(moment(f"{month}-01T00:00:00Z") - 15 * HOUR)
    assert begin is None or (opening is not None and opening <= begin)
    assert opening is None or model(calendar, opening)
    if begin is not None:
        assert Openings(found, (number,)).why_closed(begin) == ""
        assert local_date(begin, found.zone) == open_days[number - 1]


# --- errors ---


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"name": "a b"}, 'Name is "a b": use 1 to 128 letters, digits, - and _'),
        ({"time_zone": "Mars"}, 'TimeZone is "Mars": use a name such as Europe/Berlin or UTC'),
        ({"weekdays": ["monday"]}, 'Weekdays has "monday": use mon, tue, wed, thu, fri, sat, sun'),
        (
            {"hours": ["18:00-08:00"]},
            'Hours has "18:00-08:00": use a period such as 08:00-18:00, within one day',
        ),
        (
            {"holidays": {"2026-02-29": "none"}},
            'Holidays has "2026-02-29": use a date such as 2026-12-25, of the years 1970 to 2199',
        ),
        (
            {"extra_days": {"2200-01-01": ""}},
            'ExtraDays has "2200-01-01": use a date such as 2026-12-25, of the years 1970 to 2199',
        ),
        (
            {"blackouts": [Blackout(begin="now", end="2026-01-01")]},
            'Blackouts[0].Begin is "now": use a date such as 2026-12-24, or a time such as '
            "2026-12-24T18:00:00Z",
        ),
        (
            {"blackouts": [Blackout(begin="2026-01-02", end="2026-01-01")]},
            'Blackouts[0].End is "2026-01-01", which is not after Begin, "2026-01-02"',
        ),
        ({"only": ["own"]}, 'Only and Except cannot have "own", the calendar itself'),
        ({"only": ["a"], "except_": ["a"]}, 'Only and Except have "a" twice'),
        (
            {
                "holidays": {
                    f"{year}-01-{day:02}": "" for year in range(1970, 2040) for day in range(1, 32)
                }
            },
            "Holidays has 2170 days; the maximum is 2000",
        ),
    ],
)
def test_invalid_calendar_is_refused_with_field_and_value(
    fields: dict[str, Any], fault: str
) -> None:
    assert list(faults(Calendar(**{"name": "own", **fields}))) == [fault]


def test_valid_calendar_has_no_error() -> None:
    blackout = Blackout(begin="2026-12-24", end="2026-12-24", reason="r")
    calendar = Calendar(name="own", hours=["00:00-24:00"], blackouts=[blackout])
    assert list(faults(calendar)) == []


@pytest.mark.parametrize(
    "fields",
    [
        {"only": ["x"] * 50_000},
        {"weekdays": ["no"] * 50_000},
        {"hours": ["no"] * 50_000},
        {"holidays": {str(number): "" for number in range(50_000)}},
        {"blackouts": [Blackout(begin="no", end="no")] * 50_000},
        {"time_zone": "x" * 1_000_000},
        {"description": "x" * 1_000_000},
    ],
)
def test_errors_of_a_large_calendar_take_limited_work(fields: dict[str, Any]) -> None:
    before = time.thread_time()
    found = list(faults(Calendar(name="large", **fields)))
    assert time.thread_time() - before < 0.1  # seconds of CPU; each took 0.5 s or more
    assert 0 < len(found) <= MAX_FAULTS
    assert sum(map(len, found)) < 10_000


def test_maximum_number_of_periods_is_accepted() -> None:
    hours = [f"{hour:02}:00-{hour:02}:30" for hour in range(24)]
    assert list(faults(Calendar(name="own", hours=hours))) == []
    assert list(faults(Calendar(name="own", hours=[*hours, "23:40-23:50"]))) == [
        "Hours has 25 periods; the maximum is 24"
    ]


def test_calendar_at_its_limits_is_accepted() -> None:
    days = {str(date(2026, 1, 1) + timedelta(days=number)): "n" * 200 for number in range(2000)}
    blackouts = [Blackout(begin="2026-01-01", end="2026-01-01", reason="r" * 200)] * 500
    names = [f"c{number}" for number in range(16)]
    calendar = Calendar(
        name="n" * 128,
        description="d" * 256,
        holidays=days,
        extra_days=days,
        blackouts=blackouts,
        only=names[:8],
        except_=names[8:],
    )
    assert list(faults(calendar)) == []
    longer = msgspec.structs.replace(
        calendar,
        name="n" * 129,
        description="d" * 257,
        holidays={"2026-01-01": "n" * 201},
        extra_days={"1969-12-31": ""},
        blackouts=[*blackouts, blackouts[0]],
        except_=[*names[8:], "more"],
    )
    assert [text.partition(";")[0] for text in faults(longer)] == [
        f'Name is "{"n" * 129}": use 1 to 128 letters, digits, - and _',
        "Description has 257 characters",
        "Holidays[2026-01-01] has 201 characters",
        'ExtraDays has "1969-12-31": use a date such as 2026-12-25, of the years 1970 to 2199',
        "Blackouts has 501",
        "Only and Except have 17 names",
    ]


def test_day_has_the_reason_at_the_beginning_of_its_hours() -> None:
    calendar = made(
        weekdays=WORKDAYS,
        hours=["08:00-09:00", "20:00-21:00"],
        blackouts=[Blackout(begin="2026-11-26T08:00:00Z", end="2026-11-26T10:00:00Z", reason="r")],
    )
    assert calendar.why_closed_on(date(2026, 11, 28)) == "Saturday"
    assert calendar.why_closed_on(date(2026, 11, 26)) == "blackout (r)"
    assert calendar.why_closed_on(date(2026, 11, 27)) == ""
    skipped = made(time_zone="Europe/Berlin", hours=["02:15-02:45"])
    assert skipped.why_closed_on(date(2026, 3, 29)) == "a clock change skips its hours on this day"


def test_steps_are_days_periods_and_comparisons_of_spans() -> None:
    calendar = made(
        Calendar(name="other", hours=[f"{hour:02}:00-{hour:02}:30" for hour in range(24)]),
        weekdays=WORKDAYS,
        hours=["08:00-09:00", "20:00-21:00"],
        only=["other"],
    )
    steps = Steps()
    assert calendar.day_spans(date(2026, 11, 28), steps) == []
    assert steps.number == 1  # a closed day
    steps = Steps()
    assert len(calendar.day_spans(date(2026, 11, 27), steps)) == 2
    # Two periods of a day, 24 of the other calendar; 2 spans with 13 between 08:00 and 21:00.
    assert steps.number == (1 + 2) + (1 + 24) + (1 + (2 + 13) // 8)
