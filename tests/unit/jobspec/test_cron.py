"""Cron expressions, and the times at which they match."""

import json
from bisect import bisect_left
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any
from zoneinfo import available_timezones

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.jobspec import cron
from storage.errors import Invalid
from storage.records.base import SECOND
from tests.unit.jobspec.recorded import GOLDEN

CASES = json.loads((GOLDEN / "hcl" / "cron-next.json").read_text())["cases"]


def moment(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp()) * SECOND


def times(spec: str, after: str, zone: str = "UTC", count: int = 6) -> list[str]:
    """Return the next times at which an expression matches, as local times."""
    found: list[str] = []
    time_zone, at = cron.zone(zone), moment(after)
    while len(found) < count and (following := cron.next_after(spec, at, time_zone)) is not None:
        at = following
        found.append(datetime.fromtimestamp(at / SECOND, time_zone).isoformat())
    return found


# ---- recorded -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if "next" in case],
    ids=lambda case: f"{case['cron']} {case['zone']} {case['after']}",
)
def test_expressions_match_at_recorded_times(case: dict[str, Any]) -> None:
    wanted = [text.replace("Z", "+00:00") for text in case["next"]]
    assert times(case["cron"], case["after"], case["zone"], len(wanted) or 1) == wanted


@pytest.mark.parametrize(
    ("spec", "problem"),
    sorted({case["cron"]: case["error"] for case in CASES if "error" in case}.items()),
)
def test_invalid_expressions_have_recorded_errors(spec: str, problem: str) -> None:
    with pytest.raises(Invalid) as raised:
        cron.parse(spec)
    assert str(raised.value) == problem


def test_recorded_times_exist() -> None:
    assert len(CASES) >= 270


# ---- reading ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ("", "missing field(s)"),
        ("* * * *", "missing field(s)"),
        ("@reboot", "missing field(s)"),
        ("60 * * * *", "syntax error in minute field: '60'"),
        ("* 24 * * *", "syntax error in hour field: '24'"),
        ("* * 0 * *", "syntax error in day-of-month field: '0'"),
        ("* * 32 * *", "syntax error in day-of-month field: '32'"),
        ("* * 32W * *", "syntax error in day-of-month field: '32W'"),
        ("* * * 13 *", "syntax error in month field: '13'"),
        ("* * * ja *", "syntax error in month field: 'ja'"),
        ("* * * * 8", "syntax error in day-of-week field: '8'"),
        ("* * * * 2#6", "syntax error in day-of-week field: '2#6'"),
        ("* * * * LW", "syntax error in day-of-week field: 'LW'"),
        ("* * * * * 1969", "syntax error in year field: '1969'"),
        ("* * * * * 2100", "syntax error in year field: '2100'"),
        ("60 * * * * * *", "syntax error in second field: '60'"),
        ("001 * * * *", "syntax error in minute field: '001'"),
        ("1,x * * * *", "syntax error in minute field: 'x'"),
        ("1- * * * *", "syntax error in minute field: '1-'"),
        ("*/x * * * *", "syntax error in minute field: '*/x'"),
        ("+1 * * * *", "syntax error in minute field: '+1'"),
        ("\u0661 * * * *", "syntax error in minute field: '\u0661'"),
        (", * * * *", "minute field: missing directive"),
        ("*/0 * * * *", "invalid interval */0"),
        ("*/60 * * * *", "invalid interval */60"),
        ("* */24 * * *", "invalid interval */24"),
        ("1-9/100 * * * *", "invalid interval 1-9/100"),
    ],
)
def test_unreadable_expression_has_a_reason(spec: str, problem: str) -> None:
    with pytest.raises(Invalid) as raised:
        cron.parse(spec)
    assert str(raised.value) == problem


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("@daily", "0 0 * * *"),
        ("@hourly", "0 * * * *"),
        ("@weekly", "0 0 * * 0"),
        ("@monthly", "0 0 1 * *"),
        ("@yearly", "0 0 1 1 *"),
        ("@annually", "0 0 1 1 *"),
        ("? * * * *", "* * * * *"),
        ("5/20 * * * *", "5,25,45 * * * *"),
        ("0-10/5 * * * *", "0,5,10 * * * *"),
        ("*/30 * * * *", "0,30 * * * *"),
        ("00 01 * * *", "0 1 * * *"),
        ("0 0 * jan,FEB,March *", "0 0 * 1-3 *"),
        ("0 0 * * mon-Fri", "0 0 * * 1-5"),
        ("0 0 * * sunday", "0 0 * * 0"),
        ("0 0 * * mon-sun", "0 0 * * 1-6"),  # as Nomad, which ends a week on Saturday
        ("0 0 * * sun-sat", "0 0 * * 0-6"),
        ("0 0 * * 7", "0 0 * * 0"),
        ("1,,2, * * * *", "1,2 * * * *"),
        ("0 0 * * * * *", "0 * * * *"),
        ("0 0 * * * 1970-2099", "0 0 * * *"),
        ("0 0 * * * * * what comes eighth does not count", "0 * * * *"),
        ("\t0  0 * * * ", "0 0 * * *"),
    ],
)
def test_equivalent_expressions_have_equal_times(left: str, right: str) -> None:
    assert times(left, "2026-11-21T13:07:33Z") == times(right, "2026-11-21T13:07:33Z")


@pytest.mark.parametrize(
    "spec", ["30-10 * * * *", "* 20-4 * * *", "* * 31 2 *", "* * 30-1 * *", "* * * * * 1999"]
)
def test_some_expressions_never_match(spec: str) -> None:
    assert cron.next_after(spec, moment("2026-11-21T00:00:00Z")) is None


def test_next_time_is_later_than_the_given_time() -> None:
    midnight = moment("2026-11-21T00:00:00Z")
    assert cron.next_after("@hourly", midnight - 1) == midnight
    assert cron.next_after("@hourly", midnight) == midnight + 3600 * SECOND
    assert cron.next_after("* * * * * * *", midnight + 1) == midnight + SECOND


@pytest.mark.parametrize("name", ["Nowhere", "../etc/passwd", "/etc/localtime", "a\0b", "Local"])
def test_a_zone_that_is_not_in_the_database_is_refused(name: str) -> None:
    with pytest.raises(Invalid, match="unknown time zone"):
        cron.zone(name)


@pytest.mark.parametrize("name", ["", "UTC"])
def test_utc_needs_no_database(name: str) -> None:
    assert cron.zone(name) is UTC


# ---- days and clocks ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("days", "found"),
    [
        ("L * *", ["01-31", "02-28", "03-31"]),
        ("LW * *", ["01-30", "02-27", "03-31"]),
        ("15W * *", ["01-15", "02-16", "03-16"]),  # the 15th of February is a Sunday
        ("1W * *", ["01-01", "02-02", "03-02"]),
        ("31W * *", ["01-30", "03-31", "05-29"]),
        ("* * 5L", ["01-30", "02-27", "03-27"]),
        ("* * friL", ["01-30", "02-27", "03-27"]),
        ("* * 2#3", ["01-20", "02-17", "03-17"]),
        ("* * 4#5", ["01-29", "04-30", "07-30"]),
        ("13 * 5", ["01-02", "01-09", "01-13"]),  # the 13th, or a Friday
        ("29 2 *", ["02-29", "02-29", "02-29"]),
    ],
)
def test_days_can_be_selected_by_position(days: str, found: list[str]) -> None:
    shown = times(f"0 0 {days}", "2025-12-31T23:59:59Z", count=3)
    assert [text[5:10] for text in shown] == found


@pytest.mark.parametrize(
    ("spec", "after", "found"),
    [
        # The clock goes from 2:00 to 3:00.
        ("30 2 * * *", "2026-03-28T12:00:00Z", ["2026-03-30T02:30:00+02:00"]),
        ("0 3 * * *", "2026-03-28T12:00:00Z", ["2026-03-29T03:00:00+02:00"]),
        # It goes back from 3:00 to 2:00.
        (
            "30 2 * * *",
            "2026-10-24T12:00:00Z",
            ["2026-10-25T02:30:00+02:00", "2026-10-25T02:30:00+01:00"],
        ),
        (
            "0,30 2 * * *",
            "2026-10-25T00:10:00Z",
            [
                "2026-10-25T02:30:00+02:00",
                "2026-10-25T02:00:00+01:00",
                "2026-10-25T02:30:00+01:00",
            ],
        ),
    ],
)
def test_times_skipped_or_repeated_by_daylight_saving(
    spec: str, after: str, found: list[str]
) -> None:
    assert times(spec, after, "Europe/Berlin", len(found)) == found


def test_evening_can_be_repeated_over_midnight() -> None:
    # There clocks go back from one o'clock to midnight.
    found = times("30 0 * * *", "2026-10-24T12:00:00Z", "Atlantic/Azores", 2)
    assert found == ["2026-10-25T00:30:00+00:00", "2026-10-25T00:30:00-01:00"]


# ---- every change of every clock ------------------------------------------------------------------

TEN_DAYS = 10 * 24 * 3600  # seconds
SINCE, UNTIL = (int(datetime(year, 1, 1, tzinfo=UTC).timestamp()) for year in (2015, 2031))


def changes(local: tzinfo) -> Iterator[tuple[int, int, int]]:
    """Return each change of a zone's clock: (seconds since epoch, offset before, offset after)."""

    def offset(at: int) -> int:
        found = datetime.fromtimestamp(at, local).utcoffset()
        assert found is not None
        return found // timedelta(seconds=1)

    for low in range(SINCE, UNTIL, TEN_DAYS):  # no zone reverts a change sooner
        before, after = offset(low), offset(low + TEN_DAYS)
        if before != after:
            seconds = range(low, low + TEN_DAYS)
            yield low + bisect_left(seconds, 1, key=lambda at: offset(at) == after), before, after


def came_true(spec: str, window: range, local: tzinfo) -> list[int]:
    """Return the times in a window at which an expression matches, in seconds since the epoch."""
    found, at = [], window.start - 1
    while (following := cron.next_after(spec, at * SECOND, local) or 0) < window.stop * SECOND:
        at = following // SECOND
        found.append(at)
    return found


def test_every_clock_change_skips_and_repeats_like_the_local_time() -> None:
    found = {}  # zones with the same change count once
    for name in available_timezones():
        local = cron.zone(name)
        found.update(dict.fromkeys(changes(local), local))
    assert len(found) > 300
    for (at, before, after), local in found.items():
        window = range(at - 3 * 3600, at + 3 * 3600, 60)
        shown = {now: datetime.fromtimestamp(now, local) for now in window}
        # A time of day that is skipped, or shown twice.
        odd = datetime.fromtimestamp(at + (before + after) // 2, UTC)
        often = came_true("*/30 * * * *", window, local)
        assert often == [now for now, one in shown.items() if one.minute % 30 == 0], (at, local)
        once = came_true(f"{odd.minute} {odd.hour} * * *", window, local)
        assert once == [
            now for now, one in shown.items() if (one.hour, one.minute) == (odd.hour, odd.minute)
        ], (at, local)


_FIELDS = (
    st.integers(0, 59).map(str) | st.just("*") | st.just("*/7"),
    st.integers(0, 23).map(str) | st.just("*") | st.just("8-17"),
    st.integers(1, 28).map(str) | st.just("*") | st.just("L") | st.just("15W"),
    st.integers(1, 12).map(str) | st.just("*"),
    st.integers(0, 7).map(str) | st.just("*") | st.just("1-5") | st.just("2#2"),
)


@given(
    st.tuples(*_FIELDS).map(" ".join),
    st.integers(0, 4_000_000_000),
    st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"]),
)
def test_times_are_increasing_and_match_the_expression(spec: str, after: int, zone: str) -> None:
    time_zone = cron.zone(zone)
    first = cron.next_after(spec, after * SECOND, time_zone)
    assert first is not None
    assert first > after * SECOND
    assert cron.next_after(spec, first - 1, time_zone) == first
    local = datetime.fromtimestamp(first // SECOND, time_zone)
    schedule = cron.parse(spec)
    assert (local.second, local.minute in schedule.minutes) == (0, True)
    assert local.hour in schedule.hours
    assert local.month in schedule.months
