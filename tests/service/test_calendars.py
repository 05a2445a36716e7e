"""Calendars of a real daemon: closed slots stay closed across a kill, and a change opens them."""

from pathlib import Path
from typing import Any

from tests.service.daemon import Steward

HOLIDAYS = b"""BEGIN:VCALENDAR\r
BEGIN:VEVENT\r
UID:1\r
SUMMARY:Christmas\r
DTSTART;VALUE=DATE:20001225\r
RRULE:FREQ=YEARLY\r
END:VEVENT\r
END:VCALENDAR\r
"""
CLOSED = {"Blackouts": [{"Begin": "2020-01-01", "End": "2199-01-01", "Reason": "moving"}]}
EVERY_SECOND = {
    "ID": "tick",
    "Type": "batch",
    "Meta": {"steward_run_calendar": "business", "steward_frequent_launches": "true"},
    "Periodic": {"Specs": ["* * * * * * *"], "SpecType": "cron", "Enabled": True},
    "TaskGroups": [
        {
            "Name": "g",
            "Tasks": [{"Name": "t", "Driver": "raw_exec", "Config": {"command": "/bin/true"}}],
        }
    ],
}


async def slots_until(steward: Steward, outcome: str) -> list[Any]:
    """Return the slots, oldest first, once the newest one has an outcome."""
    found = await steward.until(
        "/v1/job/tick/periodic/slots", lambda slots: bool(slots) and slots[0]["Outcome"] == outcome
    )
    return list(reversed(found))


async def test_closed_calendar_delays_slots_across_a_kill(steward: Steward) -> None:
    refused = await steward.request("POST", "/v1/jobs", {"Job": EVERY_SECOND})
    assert (refused.status_code, refused.text) == (
        500,
        '1 error occurred:\n\t* unknown calendar "business"\n\n',
    )
    await steward.post("/v1/calendar/business", CLOSED)
    await steward.register(EVERY_SECOND)
    before = await slots_until(steward, "skipped")
    reason = 'closed: calendar "business" version 1: blackout (moving)'
    assert [item["Reason"] for item in before] == [reason]
    await steward.kill_and_restart()
    index = (await steward.get("/v1/calendar/business"))["ModifyIndex"]
    used = await steward.request("DELETE", "/v1/calendar/business")
    assert (used.status_code, used.text) == (
        409,
        'calendar "business" is used by jobs "tick": change or stop them first',
    )
    assert (await steward.get("/v1/job/tick/periodic"))["NextLaunches"] == []
    await steward.post("/v1/calendar/business", {}, cas=index)
    after = await slots_until(steward, "launched")
    launched = [item for item in after if item["Outcome"] == "launched"]
    closed = [item for item in after if item["Outcome"] == "skipped"]
    assert {item["Reason"] for item in closed} == {reason}
    assert min(slot["Slot"] for slot in launched) > max(slot["Slot"] for slot in closed)
    children = await steward.get("/v1/jobs", prefix="tick/")
    assert len(children) >= len(launched)


async def test_holidays_are_imported_and_shown(steward: Steward, tmp_path: Path) -> None:
    file = tmp_path / "holidays.ics"
    file.write_bytes(HOLIDAYS)
    years = ("-first-year", "2026", "-last-year", "2027")
    shown = await steward.cli("calendar", "import", "business", str(file), *years)
    assert shown.stdout.decode().splitlines() == [
        "Day         Holiday",
        "2026-12-25  Christmas",
        "2027-12-25  Christmas",
        'calendar "business" is at version 1; 2 days were added',
    ]
    shown = await steward.cli("calendar", "status", "business", "-from", "2026-12-24", "-days", "2")
    assert shown.stdout.decode().splitlines()[-2:] == [
        "2026-12-24  2026-12-24T00:00:00Z to 2026-12-25T00:00:00Z",
        "2026-12-25  closed (Christmas)",
    ]
    document = tmp_path / "business.json"
    document.write_bytes((await steward.cli("calendar", "init", "business")).stdout)
    shown = await steward.cli("calendar", "apply", "business", str(document))
    assert shown.stdout.decode() == 'calendar "business" is at version 2\n'
    listed = (await steward.cli("calendar", "list")).stdout.decode().splitlines()
    assert listed[1].split() == ["business", "default", "UTC", "2"]
    history = (await steward.cli("calendar", "history", "business")).stdout.decode().splitlines()
    assert [line.split()[0] for line in history[1:]] == ["2", "1"]
    await steward.cli("calendar", "delete", "business")
    assert await steward.get("/v1/calendars") == []
