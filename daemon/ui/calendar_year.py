"""The year of a calendar as a picture, and as text. No I/O."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import date, timedelta
from itertools import groupby
from typing import Any

import msgspec

_CELL = 13  # units from one cell to the next
_LEFT, _TOP = 30, 16  # units for the names of weekdays and months
_WEEKENDS = ("Saturday", "Sunday")


class YearCell(msgspec.Struct, frozen=True, kw_only=True):
    """A day: its position, its class (`open`, `part`, `weekend` or `closed`), and its text."""

    x: int
    y: int
    kind: str
    text: str
    is_today: bool


class CalendarYear(msgspec.Struct, frozen=True, kw_only=True):
    """A year of a calendar; `spoken` is the text alternative."""

    cells: list[YearCell]
    months: list[tuple[int, str]]
    width: int
    height: int
    spoken: str


class Closing(msgspec.Struct, frozen=True, kw_only=True):
    """Successive days that are closed for the same reason."""

    first: str
    last: str
    reason: str


def year_map(days: Sequence[Mapping[str, Any]], *, today: str) -> CalendarYear:
    """Return a year; each column is a week that begins on Monday."""
    first = date.fromisoformat(days[0]["Date"])
    monday = first - timedelta(days=first.weekday())
    cells, months = [], []
    for described in days:
        day = date.fromisoformat(described["Date"])
        week, weekday = divmod((day - monday).days, 7)
        kind = _kind(described)
        text = f"{described['Date']}: {_describe_day(described)}"
        cells.append(
            YearCell(
                x=_LEFT + _CELL * week,
                y=_TOP + _CELL * weekday,
                kind=kind,
                text=text,
                is_today=described["Date"] == today,
            )
        )
        if day.day == 1:
            months.append((_LEFT + _CELL * week, day.strftime("%b")))
    number = sum(day["IsOpen"] for day in days)
    return CalendarYear(
        cells=cells,
        months=months,
        width=_LEFT + _CELL * 54,
        height=_TOP + _CELL * 7,
        spoken=f"{number} of {len(days)} days are open",
    )


def _kind(day: Mapping[str, Any]) -> str:
    if not day["IsOpen"]:
        return "weekend" if day["Reason"] in _WEEKENDS else "closed"
    return "open" if len(day["Spans"]) == 1 and _is_whole(day["Spans"][0]) else "part"


def _is_whole(span: Sequence[str]) -> bool:
    """Return whether a span begins and ends at midnight, so it covers whole days."""
    return all(moment[11:16] == "00:00" for moment in span)


def _describe_day(day: Mapping[str, Any]) -> str:
    if not day["IsOpen"]:
        return f"closed ({day['Reason']})"
    if _kind(day) == "open":
        return "open"
    return "open " + ", ".join(f"{begin[11:16]}-{end[11:16]}" for begin, end in day["Spans"])


def closings(days: Sequence[Mapping[str, Any]]) -> Iterator[Closing]:
    """Yield the periods that are closed for a reason other than a weekend."""
    for reason, same in groupby(days, key=lambda day: "" if day["IsOpen"] else day["Reason"]):
        closed_days = list(same)
        if reason and reason not in _WEEKENDS:
            yield Closing(first=closed_days[0]["Date"], last=closed_days[-1]["Date"], reason=reason)
