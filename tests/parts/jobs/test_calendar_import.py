"""iCalendar files: whole-day events become holidays, and the other events are listed."""

import time

import pytest

from daemon.jobs import calendar_import, calendars
from daemon.jobs.calendar_import import read
from storage.errors import Malformed
from storage.queries import calendars as stored
from storage.store import Store
from tests.samples import NOW


def event(*lines: str) -> str:
    return "\r\n".join(["BEGIN:VEVENT", *lines, "END:VEVENT", ""])


def file(*events: str) -> bytes:
    head = "BEGIN:VCALENDAR\r\nVERSION:2.0\r\nPRODID:-//test//\r\n"
    return f"{head}{''.join(events)}END:VCALENDAR\r\n".encode()


CHRISTMAS = event(
    "UID:1", "SUMMARY:Christmas", "DTSTART;VALUE=DATE:20201225", "DTEND;VALUE=DATE:20201227",
    "RRULE:FREQ=YEARLY", "EXDATE;VALUE=DATE:20271225",
)  # fmt: skip


def test_full_days_are_holidays_in_each_year() -> None:
    thanksgiving = event(
        "UID:2", "SUMMARY:Thanksgiving", "DTSTART;VALUE=DATE:19901122",
        "RRULE:FREQ=YEARLY;BYMONTH=11;BYDAY=4TH",
    )  # fmt: skip
    found = read(file(CHRISTMAS, thanksgiving), 2026, 2027)
    assert found.holidays == {
        "2026-11-26": "Thanksgiving",
        "2026-12-25": "Christmas",
        "2026-12-26": "Christmas",
        "2027-11-25": "Thanksgiving",
    }
    assert found.skipped == []


def test_leap_day_repeats_every_fourth_year() -> None:
    leap = event("UID:1", "SUMMARY:Leap", "DTSTART;VALUE=DATE:20000229", "RRULE:FREQ=YEARLY")
    assert list(read(file(leap), 2026, 2033).holidays) == ["2028-02-29", "2032-02-29"]


def test_a_single_occurrence_can_be_moved() -> None:
    rule = event(
        "UID:1", "SUMMARY:Outing", "DTSTART;VALUE=DATE:20260105", "RRULE:FREQ=MONTHLY;COUNT=3"
    )
    moved = event(
        "UID:1",
        "SUMMARY:Outing",
        "RECURRENCE-ID;VALUE=DATE:20260205",
        "DTSTART;VALUE=DATE:20260209",
    )
    assert list(read(file(rule, moved), 2026, 2026).holidays) == [
        "2026-01-05",
        "2026-02-09",
        "2026-03-05",
    ]


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (
            ["DTSTART:20260105T100000Z"],
            "it has a time of day, but only whole-day events are imported",
        ),
        (["DTSTART;VALUE=DATE:20260105", "STATUS:CANCELLED"], "it is canceled"),
        (["STATUS:CONFIRMED"], "it has no start (DTSTART)"),
        (
            ["DTSTART;VALUE=DATE:20260105", "DTEND;VALUE=DATE:20260105"],
            "it has 0 days; only 1 to 366 days are allowed",
        ),
        (
            ["DTSTART;VALUE=DATE:20260105", "RRULE:FREQ=SECONDLY"],
            "its rule (RRULE): FREQ=SECONDLY: use YEARLY, MONTHLY, WEEKLY, DAILY",
        ),
        (
            ["DTSTART;VALUE=DATE:20260105", "RRULE:FREQ=YEARLY;BYWEEKNO=20"],
            "its rule (RRULE): BYWEEKNO is not supported",
        ),
    ],
)
def test_events_that_are_no_holidays_are_skipped_with_a_reason(
    lines: list[str], reason: str
) -> None:
    found = read(file(event("UID:1", "SUMMARY:Party", *lines), CHRISTMAS), 2026, 2026)
    assert found.skipped == [f'"Party": {reason}']
    assert list(found.holidays) == ["2026-12-25", "2026-12-26"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not an iCalendar file"),
        (b"no calendar", "not an iCalendar file"),
        (b"\xff\xfe\x00", "not an iCalendar file"),
        (file(), r"the file has no events \(VEVENT\)"),
        (b"x" * (calendar_import.MAX_SIZE + 1), "has 1048577 bytes; the maximum is 1048576"),
        (b"BEGIN:VEVENT\r\n" * 2001, "has 2001 events; the maximum is 2000"),
    ],
)
def test_file_in_another_format_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(Malformed, match=message):
        read(content, 2026, 2026)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("DTSTART;VALUE=DATE:20260230", 'its DTSTART cannot be read: "20260230"'),
        ("DTEND;VALUE=DATE:20260230", 'its DTEND cannot be read: "20260230"'),
        ("DURATION:long", 'its DURATION cannot be read: "long"'),
        ("RRULE:UNTIL=never", 'its RRULE cannot be read: "UNTIL=never"'),
        ("RDATE;VALUE=DATE:20260230", 'its RDATE cannot be read: "20260230"'),
        ("EXDATE;VALUE=DATE:20260101,2026", 'its EXDATE cannot be read: "20260101,2026"'),
        ("RECURRENCE-ID;VALUE=DATE:x", 'its RECURRENCE-ID cannot be read: "x"'),
    ],
)
def test_event_with_an_unreadable_value_is_skipped(line: str, reason: str) -> None:
    start = () if line.startswith("DTSTART") else ("DTSTART;VALUE=DATE:20260101",)
    broken = event("UID:2", "SUMMARY:Broken", *start, line)
    found = read(file(CHRISTMAS, broken), 2026, 2026)
    assert list(found.holidays) == ["2026-12-25", "2026-12-26"]
    assert found.skipped == [f'"Broken": {reason}']


def test_recurrence_rules_skip_a_limited_number_of_days() -> None:
    never = event(
        "UID:1", "DTSTART;VALUE=DATE:19700101", "RRULE:FREQ=DAILY;BYMONTH=2;BYMONTHDAY=30"
    )
    with pytest.raises(Malformed, match="cover more than 500000 days in total"):
        read(file(*[never] * 30), 2026, 2026)


def test_long_events_are_counted_per_occurrence(monkeypatch: pytest.MonkeyPatch) -> None:
    added = []
    add = calendar_import._Import._add
    monkeypatch.setattr(
        calendar_import._Import,
        "_add",
        lambda self, day, name: (added.append(day), add(self, day, name)),
    )
    daily = event(
        "UID:1", "DTSTART;VALUE=DATE:20260101", "DTEND;VALUE=DATE:20270101", "RRULE:FREQ=DAILY"
    )
    with pytest.raises(
        Malformed, match=r"rules \(RRULE, RDATE\) of the file cover more than 500000"
    ):
        read(file(*[daily] * 273), 2026, 2030)
    assert len(added) < 500_000


@pytest.mark.parametrize("is_long", [False, True])
def test_extra_dates_are_counted(is_long: bool) -> None:
    dates = ",".join(["20260101"] * 2000)
    extra = event(
        "UID:1",
        "DTSTART;VALUE=DATE:20260101",
        *(["DTEND;VALUE=DATE:20270101"] if is_long else []),
        f"RDATE;VALUE=DATE:{dates}",
    )
    if is_long:
        with pytest.raises(Malformed, match="cover more than 500000 days in total"):
            read(file(extra), 2026, 2026)
    else:
        assert list(read(file(extra), 2026, 2026).holidays) == ["2026-01-01"]


@pytest.mark.parametrize("years", [(1969, 1970), (2026, 2025), (2026, 2046), (2199, 2200)])
def test_the_years_are_limited(years: tuple[int, int]) -> None:
    with pytest.raises(Malformed, match="choose up to 20 years from 1970 to 2199"):
        read(file(CHRISTMAS), *years)


async def test_import_keeps_the_existing_holidays_of_the_calendar(store: Store) -> None:
    found = read(file(CHRISTMAS), 2026, 2026)
    first = await calendars.import_holidays(store, "default", "business", found, now=NOW)
    assert (first.version, list(first.added)) == (1, ["2026-12-25", "2026-12-26"])
    again = await calendars.import_holidays(store, "default", "business", found, now=NOW)
    assert (again.version, again.added) == (1, {})
    more = read(file(CHRISTMAS), 2028, 2028)
    await calendars.import_holidays(store, "default", "business", more, now=NOW)
    calendar = store.read(lambda db: stored.find(db, "default", "business"))
    assert calendar is not None
    assert list(calendar.holidays or ()) == [
        "2026-12-25",
        "2026-12-26",
        "2028-12-25",
        "2028-12-26",
    ]


_MANY_TIMES = "RRULE:FREQ=DAILY;BYHOUR={};BYMINUTE={};BYSECOND={}".format(
    *(",".join(map(str, range(number))) for number in (24, 60, 60))
)


@pytest.mark.parametrize(
    "begin",
    [
        *("BEGIN:VTIMEZONE", "begin:vtimezone", "BEGIN;X=1:VTIMEZONE", "BEGIN: VTIMEZONE "),
        *("BEGIN:VTIME\r\n ZONE", "BEGIN:VTIME\n\n\tZONE", "BE\r\n GIN:VTIMEZONE"),
    ],
)
def test_custom_time_zones_of_a_file_are_not_evaluated(begin: str) -> None:
    """For this rule, the library would compute and keep 86,400 transitions."""
    rule = f"BEGIN:STANDARD\r\nDTSTART:19700101T000000\r\n{_MANY_TIMES}\r\nEND:STANDARD\r\n"
    zone = f"{begin}\r\nTZID:{begin[-4:]}\r\n{rule * 20}END:VTIMEZONE\r\n"
    before = time.thread_time()
    found = read(file(zone, CHRISTMAS), 2026, 2026)
    assert time.thread_time() - before < 1  # seconds of CPU; the zone takes more than 5
    assert found.holidays == {"2026-12-25": "Christmas", "2026-12-26": "Christmas"}


def test_event_names_are_case_insensitive() -> None:
    with pytest.raises(Malformed, match="has 3000 events; the maximum is 2000"):
        read(file("begin:vevent\r\nUID:1\r\nEND:VEVENT\r\n" * 3000), 2026, 2026)
