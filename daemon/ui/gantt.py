"""The timeline of an allocation's tasks: their phases, derived from task events. No I/O."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from daemon.text.task_failure import plain_reason
from daemon.ui.formatting import format_duration, format_length
from storage.records.base import SECOND
from storage.records.times import nanoseconds

WIDTH = 1000  # units of the whole axis
_NARROWEST = 4  # units, so that a phase of milliseconds is visible
_TICKS = 4

# The phase that begins with an event. Other events do not change the phase.
_PHASES = {
    "Received": "pending",
    "Task Setup": "setup",
    "Downloading Artifacts": "artifacts",
    "Started": "running",
    "Killing": "stopping",
    "Restart Signaled": "stopping",
    "Waiting for shutdown delay": "stopping",
    "Restarting": "waiting",
    "Terminated": "",
    "Killed": "",
    "Not Restarting": "",
    "Driver Failure": "",
    "Setup Failure": "",
    "Failed Artifact Download": "",
    "Failed Validation": "",
}
_FAILURES = frozenset(
    {"Driver Failure", "Setup Failure", "Failed Artifact Download", "Failed Validation"}
)
PHASES = {
    "pending": "pending",
    "setup": "setup",
    "artifacts": "artifacts",
    "running": "running",
    "stopping": "stopping",
    "waiting": "waiting for the restart",
}


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """A phase as a bar: its position on the axis, and its text."""

    kind: str
    x: float
    width: float
    text: str


class Mark(msgspec.Struct, frozen=True):
    """A mark on the time axis for a failure or a kill."""

    x: float
    text: str


class TaskLine(msgspec.Struct, frozen=True, kw_only=True):
    """The phases of one task; `spoken` is the text alternative."""

    name: str
    hook: str  # prestart, poststart, poststop, or empty for a main task
    sidecar: bool
    phases: list[Phase]
    marks: list[Mark]
    spoken: str


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """The tasks of an allocation, in the order in which they began."""

    lines: list[TaskLine]
    ticks: list[str]
    kinds: list[tuple[str, str]]  # the phases that occur, in the order of a task
    begin: int
    end: int


class _Span(msgspec.Struct, frozen=True):
    kind: str
    begin: int
    end: int


def timeline(
    states: Mapping[str, Mapping[str, Any]],
    lifecycles: Mapping[str, Mapping[str, Any] | None],
    created: int,
    now: int,
) -> Timeline | None:
    """Return the timeline of the tasks; None before the first event.

    `created` is the time at which the allocation was placed. Times are in nanoseconds.
    """
    events = {name: sorted(state["Events"] or (), key=_time) for name, state in states.items()}
    times = [event["Time"] for of_task in events.values() for event in of_task]
    if not times:
        return None
    ends = [_finished(state) for state in states.values()]
    end = now if 0 in ends else max(*ends, *times)
    begin = min(created or end, *times)
    axis = _Axis(begin, max(end, begin + 1))
    lines = [
        _line(name, states[name], task_events, lifecycles.get(name) or {}, axis)
        for name, task_events in sorted(events.items(), key=lambda pair: _began(pair[1]))
    ]
    kinds_used = {phase.kind for line in lines for phase in line.phases}
    return Timeline(
        lines=lines,
        ticks=axis.ticks(),
        kinds=[(kind, words) for kind, words in PHASES.items() if kind in kinds_used],
        begin=begin,
        end=end,
    )


def _time(event: Mapping[str, Any]) -> int:
    return int(event["Time"])


def _began(events: Sequence[Mapping[str, Any]]) -> int:
    """Return a sort key: the start time of a task's first attempt.

    Tasks without an attempt come last.
    """
    starts = [_time(event) for event in events if event["Type"] == "Started"]
    return min(starts, default=2**63)


def _finished(state: Mapping[str, Any]) -> int:
    text = state["FinishedAt"]
    if state["State"] != "dead" or not text or text.startswith("0001-"):
        return 0
    return nanoseconds(text)


class _Axis:
    """The time axis, from `begin` to `end`."""

    def __init__(self, begin: int, end: int) -> None:
        self.begin, self.end = begin, end

    def place(self, time: int) -> float:
        part = (min(max(time, self.begin), self.end) - self.begin) / (self.end - self.begin)
        return round(WIDTH * part, 1)

    def ticks(self) -> list[str]:
        span = self.end - self.begin
        return [f"+{format_length(span * number // _TICKS)}" for number in range(_TICKS + 1)]


def _line(
    name: str,
    state: Mapping[str, Any],
    events: Sequence[Mapping[str, Any]],
    lifecycle: Mapping[str, Any],
    axis: _Axis,
) -> TaskLine:
    spans = _spans(events, axis.begin, _finished(state) or axis.end)
    return TaskLine(
        name=name,
        hook=str(lifecycle.get("Hook") or ""),
        sidecar=bool(lifecycle.get("Sidecar")),
        phases=[_bar(span, axis) for span in spans],
        marks=[
            Mark(
                axis.place(_time(event)),
                f"{_clock(_time(event))}: {event['Type']}, {_message(event)}",
            )
            for event in events
            if _is_failure(event)
        ],
        spoken=_text_alternative(name, spans, events),
    )


def _spans(events: Sequence[Mapping[str, Any]], begin: int, end: int) -> list[_Span]:
    """Return the phases in order. A task is pending until it is received.

    The oldest events may be deleted. The time before the first known event is then left out.
    """
    is_whole = not events or events[0]["Type"] == "Received"
    spans, kind, since = [], "pending" if is_whole else "", begin
    for event in events:
        phase = _PHASES.get(event["Type"])
        if phase is None or phase == kind:
            continue
        spans.append(_Span(kind, since, _time(event)))
        kind, since = phase, _time(event)
    spans.append(_Span(kind, since, max(since, end)))
    return [span for span in spans if span.kind and span.end > span.begin]


def _bar(span: _Span, axis: _Axis) -> Phase:
    x = axis.place(span.begin)
    width = max(_NARROWEST, axis.place(span.end) - x)
    length = span.end - span.begin
    duration = format_duration(length) if length >= SECOND else f"{length // 1_000_000} ms"
    text = f"{PHASES[span.kind]} for {duration}, from {_clock(span.begin)}"
    return Phase(kind=span.kind, x=min(x, WIDTH - width), width=round(width, 1), text=text)


def _is_failure(event: Mapping[str, Any]) -> bool:
    if event["Type"] == "Terminated":
        return bool(event.get("ExitCode") or event.get("Signal"))
    return event["Type"] in _FAILURES


def _message(event: Mapping[str, Any]) -> str:
    return plain_reason(str(event.get("DisplayMessage") or ""))


def _text_alternative(
    name: str, spans: Iterable[_Span], events: Sequence[Mapping[str, Any]]
) -> str:
    totals: dict[str, int] = {}
    for span in spans:
        totals[span.kind] = totals.get(span.kind, 0) + span.end - span.begin
    parts = [f"{PHASES[kind]} {format_duration(length)}" for kind, length in totals.items()]
    failures = sum(map(_is_failure, events))
    if failures:
        parts.append(f"{failures} failed attempts" if failures > 1 else "1 failed attempt")
    return f"{name}: {', '.join(parts)}"


def _clock(nanos: int) -> str:
    return datetime.fromtimestamp(nanos // SECOND, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
