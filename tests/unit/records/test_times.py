"""Points in time as text."""

from datetime import UTC, tzinfo
from zoneinfo import ZoneInfo

import pytest

from storage.records.base import SECOND
from storage.records.times import nanoseconds, rfc3339


@pytest.mark.parametrize("moment", [0, -1, 1795225201636343439, 253402300799 * SECOND])
def test_time_survives_a_round_trip(moment: int) -> None:
    assert nanoseconds(rfc3339(moment)) == moment


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(300_000_000_000, "9999-12-31T23:59:59Z"), (-(10**12), "0001-01-01T00:00:00Z")],
)
def test_time_outside_of_four_digit_years_is_clamped(seconds: int, text: str) -> None:
    assert rfc3339(seconds * SECOND) == text


@pytest.mark.parametrize(
    ("zone", "text"),
    [
        (UTC, "2026-11-21T01:40:01.5Z"),
        (ZoneInfo("Europe/London"), "2026-11-21T01:40:01.5Z"),
        (ZoneInfo("Europe/Berlin"), "2026-11-21T02:40:01.5+01:00"),
        (ZoneInfo("America/New_York"), "2026-11-20T20:40:01.5-05:00"),
        (ZoneInfo("Asia/Kathmandu"), "2026-11-21T07:25:01.5+05:45"),
    ],
)
def test_time_is_independent_of_the_time_zone(zone: tzinfo, text: str) -> None:
    moment = 1795225201500000000
    assert rfc3339(moment, zone) == text
    assert nanoseconds(text) == moment
