"""The calendar of runs: a year by days, and a day by minutes."""

from datetime import date
from typing import Any

import pytest

from daemon.ui.heatmap import day_map, year_map

HOUR = 3600 * 10**9
MIDNIGHT = 1_795_219_200_000_000_000  # 2026-11-21T00:00:00Z, a Saturday


def line(day: str, *, skipped: int = 0, late: int = 0, **results: int) -> dict[str, Any]:
    return {"Date": day, "Results": results, "Skipped": skipped, "CaughtUp": 0, "Late": late}


def calendar(*days: dict[str, Any]) -> dict[str, Any]:
    return {"Zone": "UTC", "Today": "2026-11-21", "Days": list(days), "Since": ""}


def test_year_ends_today_and_its_weeks_start_on_monday() -> None:
    found = year_map(calendar())
    assert (found.cells[0].date, found.cells[-1].date) == ("2025-11-17", "2026-11-21")
    assert found.cells[0].y == min(cell.y for cell in found.cells)
    assert len({cell.x for cell in found.cells}) == 53
    assert [name for _, name in found.months][:2] == ["Dec", "Jan"]


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (line("2026-11-20", complete=3), "good"),
        (line("2026-11-20", complete=3, failed=1), "mixed"),
        (line("2026-11-20", complete=1, failed=1), "bad"),
        (line("2026-11-20", complete=3, late=1), "missed"),
        (line("2026-11-20", skipped=1), "missed"),
        (line("2026-11-20", stopped=1), "good"),
    ],
)
def test_class_of_a_day_follows_from_its_results(given: dict[str, Any], kind: str) -> None:
    cell = next(cell for cell in year_map(calendar(given)).cells if cell.date == "2026-11-20")
    assert (cell.kind, cell.has_runs) == (kind, True)


def test_text_of_a_day_counts_results_and_slots() -> None:
    found = year_map(calendar(line("2026-11-21", complete=3, failed=1, skipped=1, late=2)))
    assert found.cells[-1].text == (
        "2026-11-21: 3 complete, 1 failed, 1 skipped slot, 2 late slots"
    )
    assert found.cells[-2].text == "2026-11-20: no runs"
    assert found.spoken == ("Runs of the last year by day: 3 complete, 1 failed, 1 skipped slots")


def test_day_has_runs_and_slots_at_their_minutes() -> None:
    run = {
        "ID": "web/periodic-1",
        "Result": "failed",
        "Started": MIDNIGHT + HOUR,
        "Duration": HOUR // 2,
        "Ended": MIDNIGHT + HOUR + HOUR // 2,
    }
    slot = {"Slot": MIDNIGHT, "DecidedAt": MIDNIGHT + HOUR, "Outcome": "launched", "Reason": ""}
    other = {**slot, "Slot": MIDNIGHT + 24 * HOUR}
    found = day_map(date(2026, 11, 21), "UTC", [run], [slot, other])
    (bar,) = found.runs
    assert (bar.x, bar.width, bar.kind) == (60, 30, "failed")
    assert bar.text == "01:00:00 web/periodic-1: failed, 30 min"
    (mark,) = found.slots
    assert (mark.x, mark.kind) == (0, "late")
    assert mark.text == "slot 00:00:00 launched, 1 h late"
    assert (found.previous, found.next) == ("2026-11-20", "2026-11-22")


def test_day_follows_the_time_zone() -> None:
    slot = {
        "Slot": MIDNIGHT - HOUR,
        "DecidedAt": MIDNIGHT - HOUR,
        "Outcome": "skipped",
        "Reason": "x",
    }
    (mark,) = day_map(date(2026, 11, 21), "Europe/Berlin", [], [slot]).slots
    assert (mark.x, mark.text) == (0, "slot 00:00:00 skipped: x")


def test_run_over_midnight_ends_at_the_edge() -> None:
    run = {
        "ID": "a",
        "Result": "complete",
        "Ended": 1,
        "Started": MIDNIGHT + 23 * HOUR,
        "Duration": 5 * HOUR,
    }
    (bar,) = day_map(date(2026, 11, 21), "UTC", [run], []).runs
    assert (bar.x, bar.width) == (1380, 60)
