"""The graph of a run by levels, and its steps on a time axis. No I/O."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import msgspec

from daemon.ui.formatting import format_length
from storage.records.base import SECOND

MOST_DRAWN = 300  # steps of a graph; a larger graph would be unreadable
MOST_LINES = 2000  # curves for needs
MOST_BARS = 200  # steps on the time axis
WIDTH = 1000  # units of the whole axis
_BOX = (150, 40)  # units of a step
_GAP = (46, 14)  # units between levels, and between steps of a level
_SPARE = 4
_LETTERS = 19  # characters of a name that fit in a box
_NARROWEST = 4  # units, so that a step of milliseconds is visible
_TICKS = 4
_ENDS = frozenset({"succeeded", "failed", "skipped", "canceled"})
SIGNS = {  # shapes of the states of a step, so that color is not the only cue
    "waiting": "wait",
    "held": "pause",
    "open": "wait",
    "running": "dot",
    "succeeded": "ok",
    "failed": "bad",
    "skipped": "skip",
    "canceled": "stop",
}


class StepBox(msgspec.Struct, frozen=True, kw_only=True):
    """A step as a box of the graph: its upper left corner, and its texts."""

    name: str
    label: str
    state: str
    sign: str
    x: int
    y: int
    about: str
    text: str


class NeedLine(msgspec.Struct, frozen=True):
    """A need of a step, drawn as a curve.

    `kind` is `bad` for a need that failed, `chain` for a need in the highlighted chain, or `plain`.
    """

    path: str
    kind: str
    text: str


class FlowPicture(msgspec.Struct, frozen=True, kw_only=True):
    """The graph: boxes in levels from left to right. `spoken` is the text alternative."""

    width: int
    height: int
    boxes: list[StepBox]
    lines: list[NeedLine]
    spoken: str


class StepBar(msgspec.Struct, frozen=True, kw_only=True):
    """A step on the time axis."""

    name: str
    state: str
    x: float
    width: float
    is_longest: bool
    text: str


class FlowTimeline(msgspec.Struct, frozen=True, kw_only=True):
    """The steps that have begun, ordered by start time.

    `chain` names the steps that determined the end of the run (`longest_chain`).
    """

    bars: list[StepBar]
    more: int
    chain: list[str]
    chain_time: str
    ticks: list[str]
    begin: int


def picture(steps: Sequence[Mapping[str, Any]], chain: Sequence[str] = ()) -> FlowPicture | None:
    """Return the graph of the steps of a run; None above `MOST_DRAWN` steps."""
    if not steps or len(steps) > MOST_DRAWN:
        return None
    positions = _step_positions(steps)
    boxes = {step["Name"]: _box(step, *positions[step["Name"]]) for step in steps}
    lines = list(_lines(steps, boxes, {*pairwise(chain)}))
    columns, rows = (1 + max(coordinates) for coordinates in zip(*positions.values(), strict=True))
    return FlowPicture(
        width=columns * (_BOX[0] + _GAP[0]) - _GAP[0] + 2 * _SPARE,
        height=rows * (_BOX[1] + _GAP[1]) - _GAP[1] + 2 * _SPARE,
        boxes=list(boxes.values()),
        lines=lines if len(lines) <= MOST_LINES else [],
        spoken=f"{len(steps)} steps in {columns} levels. The table has the same steps as text.",
    )


def _step_positions(steps: Sequence[Mapping[str, Any]]) -> dict[str, tuple[int, int]]:
    """Return the level and the row of each step. The row is near the rows of the steps it needs."""
    levels: dict[int, list[Mapping[str, Any]]] = {}
    for step in steps:
        levels.setdefault(step["Level"], []).append(step)
    positions: dict[str, tuple[int, int]] = {}
    for level in sorted(levels):
        rows = {}
        for number, step in enumerate(levels[level]):
            above = [positions[need][1] for need in step["Needs"] or () if need in positions]
            rows[step["Name"]] = (sum(above) / len(above) if above else number, number)
        for row, name in enumerate(sorted(rows, key=lambda name: rows[name])):
            positions[name] = (level, row)
    return positions


def _box(step: Mapping[str, Any], level: int, row: int) -> StepBox:
    name, state = step["Name"], step["State"]
    progress = f"{step['Good']}/{step['Total']} {state}" if step["Total"] > 1 else state
    reason = f": {step['Reason']}" if step["Reason"] else ""
    return StepBox(
        name=name,
        label=name if len(name) <= _LETTERS else f"{name[: _LETTERS - 1]}…",
        state=state,
        sign=SIGNS.get(state, "none"),
        x=_SPARE + level * (_BOX[0] + _GAP[0]),
        y=_SPARE + row * (_BOX[1] + _GAP[1]),
        about=progress,
        text=f"{name}: {progress}{reason}",
    )


def _lines(
    steps: Sequence[Mapping[str, Any]],
    boxes: Mapping[str, StepBox],
    chain: set[tuple[str, str]],
) -> Iterable[NeedLine]:
    outcomes = {step["Name"]: step["Outcome"] for step in steps}
    for step in steps:
        for need in step["Needs"] or ():
            source, target = boxes[need], boxes[step["Name"]]
            x1, y1 = source.x + _BOX[0], source.y + _BOX[1] // 2
            x2, y2 = target.x, target.y + _BOX[1] // 2
            half = max((x2 - x1) // 2, 10)
            kind = "chain" if (need, step["Name"]) in chain else "plain"
            if outcomes[need] == "bad":
                kind = "bad"
            path = f"M{x1},{y1}C{x1 + half},{y1} {x2 - half},{y2} {x2},{y2}"
            yield NeedLine(path, kind, f"{step['Name']} needs {need}")


def longest_chain(steps: Sequence[Mapping[str, Any]], now: int) -> list[str]:
    """Return the chain of steps that determined the end of a run, from first to last.

    The chain ends with the step that ended last. Of the steps that a step needs, the one that
    ended last comes before it in the chain.
    """
    begun = {step["Name"]: step for step in steps if _begin(step)}
    if not begun:
        return []
    end = {name: _end(step, now) for name, step in begun.items()}
    chain = [max(begun, key=lambda name: (end[name], begun[name]["Level"]))]
    while needs := [need for need in begun[chain[-1]]["Needs"] or () if need in begun]:
        chain.append(max(needs, key=lambda name: end[name]))
    return chain[::-1]


def timeline(steps: Sequence[Mapping[str, Any]], now: int) -> FlowTimeline | None:
    """Return the timeline of a run; None before the first step. Times are in nanoseconds.

    A step that is held before its first attempt has a bar from the time since which it is held.
    """
    begun = sorted((step for step in steps if _begin(step)), key=_begin)
    if not begun:
        return None
    begin = _begin(begun[0])
    end = max(*(_end(step, now) for step in begun), begin + 1)
    chain = longest_chain(steps, now)
    on_chain = set(chain)
    # If there are too many steps, those of the chain and those that ended last are shown.
    weights = {step["Name"]: (step["Name"] in on_chain, _end(step, now)) for step in begun}
    shown_steps = begun
    if len(begun) > MOST_BARS:
        kept_names = set(sorted(weights, key=lambda name: weights[name])[-MOST_BARS:])
        shown_steps = [step for step in begun if step["Name"] in kept_names]
    last = next(step for step in begun if step["Name"] == chain[-1])
    first = next(step for step in begun if step["Name"] == chain[0])
    return FlowTimeline(
        bars=[
            _bar(step, begin, end, now, is_longest=step["Name"] in on_chain) for step in shown_steps
        ],
        more=len(begun) - len(shown_steps),
        chain=chain,
        chain_time=format_length(_end(last, now) - _begin(first)),
        ticks=[format_length((end - begin) * number // _TICKS) for number in range(_TICKS + 1)],
        begin=begin,
    )


def _begin(step: Mapping[str, Any]) -> int:
    """Return the time at which a step was opened or held; 0 for a waiting step."""
    return int(step["Opened"] or (step["Since"] if step["State"] == "held" else 0))


def _end(step: Mapping[str, Any], now: int) -> int:
    return max(int(step["Since"] if step["State"] in _ENDS else now), _begin(step))


def _bar(step: Mapping[str, Any], begin: int, end: int, now: int, *, is_longest: bool) -> StepBar:
    scale = WIDTH / (end - begin)
    length = _end(step, now) - _begin(step)
    width = min(max(length * scale, _NARROWEST), WIDTH)
    x = min((_begin(step) - begin) * scale, WIDTH - width)
    clock = datetime.fromtimestamp(_begin(step) // SECOND, UTC).strftime("%H:%M:%S UTC")
    attempt = f", attempt {step['Attempt']}" if step["Attempt"] > 1 else ""
    return StepBar(
        name=step["Name"],
        state=step["State"],
        x=round(x, 1),
        width=round(width, 1),
        is_longest=is_longest,
        text=f"{step['Name']}: {step['State']}, {format_length(length)} from {clock}{attempt}",
    )
