"""The calendar of a job's runs: a year by days, and one day by minutes. No I/O."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

import msgspec

from daemon.ui.formatting import format_duration
from storage.records.base import SECOND

CELL = 13  # units from one cell to the next
LEFT, TOP = 30, 16  # units for the names of weekdays and months
WEEKS = 53
DAY = 1440  # minutes; a day with a clock change has up to 60 more or less
_BAD = ("failed", "failing", "blocked")
_MANY, _SOME = 20, 5  # numbers of runs from which a day's cell is darkest, or darker than usual
_NARROWEST = 3  # minimum width of a bar in minutes


class DayCell(msgspec.Struct, frozen=True, kw_only=True):
    """A day: its position, its class, and its text. If `has_runs` is true, it links to its runs."""

    date: str
    x: int
    y: int
    kind: str  # `none`, `good`, `mixed`, `bad` or `missed`
    level: int  # 1 to 3, by the number of runs
    text: str
    has_runs: bool


class YearMap(msgspec.Struct, frozen=True, kw_only=True):
    """A year of runs; `spoken` is the text alternative."""

    cells: list[DayCell]
    months: list[tuple[int, str]]
    width: int
    height: int
    spoken: str


def year_map(calendar: Mapping[str, Any]) -> YearMap:
    """Return the year that ends today; each column is a week that begins on Monday."""
    today = date.fromisoformat(calendar["Today"])
    monday = today - timedelta(days=today.weekday() + 7 * (WEEKS - 1))
    days = {day["Date"]: day for day in calendar["Days"]}
    days_shown = [monday + timedelta(days=number) for number in range((today - monday).days + 1)]
    return YearMap(
        cells=[
            _cell(day, number, days.get(day.isoformat())) for number, day in enumerate(days_shown)
        ],
        months=[
            (LEFT + CELL * (number // 7), day.strftime("%b"))
            for number, day in enumerate(days_shown)
            if day.day <= 7 and day.weekday() == 0
        ],
        width=LEFT + CELL * WEEKS,
        height=TOP + CELL * 7,
        spoken=_text_alternative(days.values()),
    )


def _cell(day: date, number: int, line: Mapping[str, Any] | None) -> DayCell:
    results: Mapping[str, int] = line["Results"] if line else {}
    total = sum(results.values())
    return DayCell(
        date=day.isoformat(),
        x=LEFT + CELL * (number // 7),
        y=TOP + CELL * (number % 7),
        kind=_kind(results, line),
        level=3 if total >= _MANY else 2 if total >= _SOME else 1,
        text=f"{day.isoformat()}: {', '.join(_parts(line)) or 'no runs'}",
        has_runs=line is not None,
    )


def _kind(results: Mapping[str, int], line: Mapping[str, Any] | None) -> str:
    bad_count = sum(results.get(word, 0) for word in _BAD)
    if bad_count:
        return "bad" if 2 * bad_count >= sum(results.values()) else "mixed"
    if line and (line["Skipped"] or line["CaughtUp"] or line["Late"]):
        return "missed"
    return "good" if results else "none"


def _parts(line: Mapping[str, Any] | None) -> list[str]:
    if line is None:
        return []
    counts = [f"{number} {word}" for word, number in sorted(line["Results"].items())]
    misses = (("Skipped", "skipped"), ("CaughtUp", "caught up"), ("Late", "late"))
    slots = [f"{line[key]} {words}" for key, words in misses if line[key]]
    return [
        *counts,
        *(f"{slot} slots" if not slot.startswith("1 ") else f"{slot} slot" for slot in slots),
    ]


def _text_alternative(days: Iterable[Mapping[str, Any]]) -> str:
    totals: dict[str, int] = {}
    missed = 0
    for day in days:
        missed += day["Skipped"]
        for word, number in day["Results"].items():
            totals[word] = totals.get(word, 0) + number
    parts = [f"{number} {word}" for word, number in sorted(totals.items())]
    if missed:
        parts.append(f"{missed} skipped slots")
    return f"Runs of the last year by day: {', '.join(parts) or 'none'}"


class DayMark(msgspec.Struct, frozen=True, kw_only=True):
    """A run or a slot of a day: its position in minutes, its class and its text."""

    x: float
    width: float
    kind: str
    text: str


class DayMap(msgspec.Struct, frozen=True, kw_only=True):
    """One day: its runs as bars, and its slots; `previous` and `next` are dates."""

    date: str
    runs: list[DayMark]
    slots: list[DayMark]
    previous: str
    next: str
    spoken: str


def day_map(
    day: date, zone_name: str, runs: Sequence[Mapping[str, Any]], slots: Sequence[Mapping[str, Any]]
) -> DayMap:
    """Return the map of one day in a time zone. `runs` are the runs of that day.

    `slots` may include slots of other days, which are left out.
    """
    zone: tzinfo = UTC if zone_name in ("", "UTC") else ZoneInfo(zone_name)
    begin = datetime(day.year, day.month, day.day, tzinfo=zone)

    def minute(nanos: int) -> float:
        return round((datetime.fromtimestamp(nanos / SECOND, zone) - begin).total_seconds() / 60, 1)

    within = [slot for slot in slots if 0 <= minute(slot["Slot"]) < DAY]
    return DayMap(
        date=day.isoformat(),
        runs=[_run_mark(run, minute(run["Started"]), zone) for run in runs if run["Started"]],
        slots=[
            DayMark(
                x=minute(slot["Slot"]), width=0, kind=_slot_kind(slot), text=_slot_text(slot, zone)
            )
            for slot in within
        ],
        previous=(day - timedelta(days=1)).isoformat(),
        next=(day + timedelta(days=1)).isoformat(),
        spoken=f"{day.isoformat()}: {len(runs)} runs, {len(within)} slots",
    )


def _run_mark(run: Mapping[str, Any], x: float, zone: tzinfo) -> DayMark:
    length = max(_NARROWEST, run["Duration"] / SECOND / 60)
    duration = f", {format_duration(run['Duration'])}" if run["Ended"] else ""
    text = f"{_clock(run['Started'], zone)} {run['ID']}: {run['Result']}{duration}"
    return DayMark(x=x, width=round(min(length, DAY - x), 1), kind=run["Result"], text=text)


def _slot_kind(slot: Mapping[str, Any]) -> str:
    is_late = slot["DecidedAt"] - slot["Slot"] > 60 * SECOND
    return "late" if slot["Outcome"] == "launched" and is_late else str(slot["Outcome"])


def _slot_text(slot: Mapping[str, Any], zone: tzinfo) -> str:
    late = slot["DecidedAt"] - slot["Slot"]
    delay = f", {format_duration(late)} late" if _slot_kind(slot) == "late" else ""
    reason = f": {slot['Reason']}" if slot["Reason"] else ""
    return f"slot {_clock(slot['Slot'], zone)} {slot['Outcome']}{delay}{reason}"


def _clock(nanos: int, zone: tzinfo) -> str:
    return datetime.fromtimestamp(nanos // SECOND, zone).strftime("%H:%M:%S")
