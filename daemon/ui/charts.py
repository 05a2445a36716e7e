"""Charts of usage over time: the geometry of their SVG, and their text. No I/O.

A chart is one unit wide for each value and 100 units high. The template stretches the chart to
the available width. Lines keep their width, and all text is outside of the picture, so that neither
is distorted.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from daemon.ui.formatting import format_size
from storage.records.base import SECOND

HEIGHT = 100
_ROOM = 1.08  # the highest value stays below the upper edge
_ROWS = 12  # rows of the table of values
_BYTES = 1024
_PARTS = (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10)

Value = float | None
Format = Callable[[float], str]


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a chart: its name, its path, and the path of the area below it."""

    name: str
    path: str
    area: str
    kind: str  # class of the color


class HoverBar(msgspec.Struct, frozen=True):
    """The part of a chart that shows the text of one value."""

    x: int
    text: str


class Chart(msgspec.Struct, frozen=True, kw_only=True):
    """A chart: its parts in the units of its picture, and its text."""

    title: str
    width: int
    lines: list[Line]
    limit: float | None  # its distance from the upper edge
    restarts: list[HoverBar]
    bars: list[HoverBar]
    top: str  # value at the upper edge
    now: str
    summary: str  # texts of the highest value and the limit
    spoken: str  # the text alternative
    rows: list[tuple[int, list[str]]]  # times in nanoseconds with the value of each line


def percent(value: float) -> str:
    """Format a CPU usage in percent of one core."""
    return f"{value:.0f} %" if value >= 10 else f"{value:.1f} %"


def per_second(value: float) -> str:
    """Format a rate in bytes per second."""
    return f"{format_size(value)}/s"


def count(value: float) -> str:
    """Format a number of objects."""
    return f"{value:.0f}"


def charts_of(history: Mapping[str, Any], task: str = "") -> list[Chart]:
    """Return the charts of an object, or of one of its tasks, for the available measurements."""
    series = next((sample for sample in history["Series"] if sample["Task"] == task), None)
    if series is None:
        return []
    limits: Mapping[str, Any] = next(
        (limit for limit in history["Limits"] if limit["Task"] == task), {}
    )

    def of(title: str, format_value: Format, *names: str, **labels: str) -> Chart | None:
        lines = {labels.get(name, name): series[name] for name in names if _is_known(series[name])}
        if not lines:
            return None
        limit = limits.get(names[0]) or 0
        return chart(history, title, lines, format_value, limit, series["Restarts"])

    charts = (
        of("CPU", percent, "CPUPercent", CPUPercent="CPU"),
        of("Memory", format_size, "Memory"),
        of("Network", per_second, "Received", "Sent"),
        of("Disk", format_size, "Disk"),
        of("Allocations", count, "Allocations"),
    )
    return [drawn for drawn in charts if drawn is not None]


def _is_known(values: Iterable[Value]) -> bool:
    return any(value is not None for value in values)


def chart(
    history: Mapping[str, Any],
    title: str,
    lines: Mapping[str, Sequence[Value]],
    format_value: Format,
    limit: float,
    restarts: Sequence[Value],
) -> Chart:
    """Return a chart of several lines with the same unit; a `limit` of 0 means no limit."""
    base = 1 if format_value is percent or format_value is count else _BYTES
    present_values = [value for values in lines.values() for value in values if value is not None]
    highest = max(present_values)
    # A limit far above all values would flatten the line to nothing, so the page only names it.
    is_near = 0 < limit <= 4 * highest
    top = rounded_up(max(highest, limit if is_near else 0) * _ROOM, base) or 1
    width = max(len(values) for values in lines.values())
    first, step = history["From"], history["Step"] * SECOND
    summary = [
        f"highest {format_value(highest)}",
        *([f"limit {format_value(limit)}"] if limit else []),
    ]
    latest = {name: _latest(values) for name, values in lines.items()}
    now = ", ".join(
        (f"{name.lower()} " if len(lines) > 1 else "") + format_value(value)
        for name, value in latest.items()
        if value is not None
    )
    return Chart(
        title=title,
        width=width,
        lines=[
            Line(name=name, path=_path(values, top), area=_area(values, top), kind=kind)
            for (name, values), kind in zip(lines.items(), ("one", "two"), strict=False)
        ],
        limit=_height(limit, top) if is_near else None,
        restarts=[
            HoverBar(index, f"{_clock(first + index * step)}: {number:.0f} restarts")
            for index, number in enumerate(restarts)
            if number
        ],
        bars=[
            HoverBar(index, text)
            for index in range(width)
            if (text := _describe_place(lines, index, format_value, first + index * step))
        ],
        top=format_value(top),
        now=now,
        summary=" · ".join(summary),
        spoken=f"{title} from {_clock(first)} to {_clock(history['To'])}: {', '.join(summary)}, "
        f"mean {format_value(sum(present_values) / len(present_values))}, latest {now}",
        rows=_rows(lines, format_value, first, step),
    )


def rounded_up(value: float, base: int = 1) -> float:
    """Return the next higher round number; `base` is the factor between units, such as 1024.

    >>> [rounded_up(one) for one in (0, 0.7, 13, 4200)], rounded_up(3000, 1024)
    ([0, 0.8, 15, 5000], 3072)
    """
    if value <= 0:
        return 0
    if value >= base > 1:
        return base * rounded_up(value / base, base)
    power = 1.0
    while power > value:
        power /= 10
    while power * 10 < value:
        power *= 10
    rounded = next(part * power for part in _PARTS if part * power >= value * (1 - 1e-9))
    return int(rounded) if rounded == int(rounded) else round(rounded, 6)


def _latest(values: Sequence[Value]) -> Value:
    return next((value for value in reversed(values) if value is not None), None)


def _height(value: float, top: float) -> float:
    return round(HEIGHT * (1 - min(value / top, 1)), 1)


def _runs(values: Sequence[Value]) -> list[list[tuple[int, float]]]:
    """Split the values at the gaps; return each unbroken series, each value with its position."""
    runs: list[list[tuple[int, float]]] = [[]]
    for index, value in enumerate(values):
        if value is not None:
            runs[-1].append((index, value))
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def _points(run: Sequence[tuple[int, float]], top: float) -> str:
    """Return the SVG coordinates of a run of values.

    The line begins at the left edge of the first value, and ends at the right edge of the last
    value. So a single value is also visible.
    """
    (first, begin), (last, end) = run[0], run[-1]
    inner = " ".join(f"{index + 0.5:g},{_height(value, top):g}" for index, value in run)
    return f"{first},{_height(begin, top):g} {inner} {last + 1},{_height(end, top):g}"


def _path(values: Sequence[Value], top: float) -> str:
    return " ".join(f"M{_points(run, top)}" for run in _runs(values))


def _area(values: Sequence[Value], top: float) -> str:
    return " ".join(
        f"M{run[0][0]},{HEIGHT} {_points(run, top)} {run[-1][0] + 1},{HEIGHT}Z"
        for run in _runs(values)
    )


def _clock(nanos: int) -> str:
    return datetime.fromtimestamp(nanos // SECOND, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _describe_place(
    lines: Mapping[str, Sequence[Value]], index: int, format_value: Format, time: int
) -> str:
    """Return the time and the values of one position as text; empty without values."""
    parts = [
        (f"{name} " if len(lines) > 1 else "") + format_value(value)
        for name, values in lines.items()
        if index < len(values) and (value := values[index]) is not None
    ]
    return f"{_clock(time)}: {', '.join(parts)}" if parts else ""


def _rows(
    lines: Mapping[str, Sequence[Value]], format_value: Format, first: int, step: int
) -> list[tuple[int, list[str]]]:
    """Return rows of the table of values, newest first.

    Each row shows the highest values within its period.
    """
    width = max(len(values) for values in lines.values())
    stride = max(1, -(-width // _ROWS))
    rows = []
    for start in range(0, width, stride):
        parts = [
            [value for value in values[start : start + stride] if value is not None]
            for values in lines.values()
        ]
        if any(parts):
            cells = [format_value(max(part)) if part else "-" for part in parts]
            rows.append((first + start * step, cells))
    return rows[::-1]
