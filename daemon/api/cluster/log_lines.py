"""Lines of one log with their times, and the sections of its attempts.

A log contains no times. If a line begins with a timestamp with a time zone, this is the line's
time. The time of any other line is the second in which Steward first saw the line. If Steward was
not watching the log then, the time is the end of the attempt. So the time of a line is never
earlier than the moment at which the task wrote it.
"""

import re
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from daemon.runner.core.task_log import Stream, TaskLog
from storage.queries import allocations
from storage.read_pool import ReadSnapshot
from storage.records.allocation import Allocation, TaskPhase
from storage.records.times import nanoseconds

_LONGEST = 64 * 1024  # bytes of an incomplete line that are buffered; a longer line is split
MOST_LINES = 500  # lines of one pull: about 1 ms, and about 130 bytes each besides their text
_STAMP = re.compile(
    rb"\W{0,2}(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?)\s?(Z|[+-]\d\d:?\d\d)"
)
_STAMP_WITHIN = 48  # bytes of a line that are searched for a timestamp
_EVENTS = 300  # latest events of a task that are searched for the ends of its attempts
_TERMINATED = "Terminated"


class MergedLogLine(NamedTuple):
    """A line without its line break, and its time (nanoseconds since the epoch)."""

    time: int
    text: bytes


class LogSection(NamedTuple):
    """A section of a log between two positions.

    If `end` is None, the section reaches to the end of the log, even while the log grows.
    """

    begin: int
    end: int | None


class LogAttempt(NamedTuple):
    """One attempt of a task: its allocation, and its section of a log."""

    alloc_id: str
    stretch: LogSection


class LineTimes:
    """For each byte of a log, the latest time at which it can have been written."""

    def __init__(self, marks: Iterable[tuple[int, int]], at_end: int) -> None:
        """Take `marks`, each a time and the length of the log at that time.

        `at_end` is the time of the bytes after the last mark.
        """
        ordered = sorted((end, time) for time, end in marks)
        self._ends = [end for end, _ in ordered]
        self._times = [time for _, time in ordered]
        self._at_end = at_end

    def at(self, position: int) -> int:
        """Return the latest time at which the byte before a position can have been written."""
        index = bisect_left(self._ends, position)
        return self._times[index] if index < len(self._times) else self._at_end

    def since(self, time: int) -> int:
        """Return a position before which every whole line is older than a time."""
        ended = (end for end, seen in zip(self._ends, self._times, strict=True) if seen < time)
        return max(0, max(ended, default=0) - _LONGEST)


def stamp(line: bytes) -> int | None:
    """Return the timestamp at the beginning of a line, in nanoseconds, or None.

    >>> stamp(b"[2026-11-24T12:00:00.5Z] ready")
    1795521600500000000
    """
    match = _STAMP.match(line[:_STAMP_WITHIN])
    if match is None:
        return None
    try:
        return nanoseconds(b"".join(match.groups()).replace(b",", b".").decode())
    except ValueError:
        return None


class Tail:
    """A reader of one log in whole lines; `queue` holds lines that were not taken yet.

    A pull adds a limited number of lines, because many short lines need far more time and memory
    than one long line of the same size.
    """

    def __init__(
        self,
        *,
        label: bytes,
        log: TaskLog,
        section: LogSection,
        contains: bytes,
        since: int,
        dates: LineTimes,
        is_over: Callable[[], bool],
    ) -> None:
        self.is_over = is_over
        self.queue: deque[MergedLogLine] = deque()
        self._label, self._contains, self._since = label, contains, since
        self._log, self._dates = log, dates
        self._position, self._end = section
        self._line_ends = self._position  # the position after the last line
        self._rest = b""  # bytes that were read, but are not in the queue yet
        self._has_lines = False  # whether the rest may contain whole lines
        self._latest = 0

    async def pull(self, most: int, *, is_last: bool, lines: int = MOST_LINES) -> bool:
        """Add up to `lines` lines to the queue; return whether there may be more.

        If no whole line is left from the last read, up to `most` bytes are read. With `is_last`, an
        incomplete last line is included.
        """
        if self._has_lines:
            self._split(lines)
            return True
        if self._end is not None:
            most = min(most, self._end - self._position)
        stream = await self._log.current()
        chunk = await stream.fetch(self._position, most) if most > 0 else None
        if chunk is None:
            if is_last and self._rest:
                self._add(self._rest)
                self._rest = b""
            return False
        if chunk.end - len(chunk.data) > self._position:  # the bytes in between were rotated away
            self._rest, self._line_ends = b"", chunk.end - len(chunk.data)
        self._position = chunk.end
        self._rest += chunk.data
        self._split(lines)
        return True

    def _split(self, most: int) -> None:
        """Move up to `most` whole lines of the buffered bytes into the queue."""
        *lines, self._rest = self._rest.split(b"\n", most)
        for line in lines:
            self._add(line)
        self._has_lines = len(lines) == most
        if not self._has_lines and len(self._rest) > _LONGEST:
            self._add(self._rest)
            self._rest = b""

    def _add(self, line: bytes) -> None:
        self._line_ends += len(line) + 1
        if self._contains not in line:
            return
        at_the_latest = self._dates.at(self._line_ends)
        stamped = stamp(line)
        time = at_the_latest if stamped is None else min(stamped, at_the_latest)
        self._latest = max(self._latest, time)  # lines of a log stay in their order
        if self._latest >= self._since:
            self.queue.append(MergedLogLine(self._latest, line))

    def take(self, until: int | None = None) -> bytes:
        """Return the queued lines whose time is at most `until`, each with the label of its log.

        If `until` is None, return all queued lines.
        """
        taken = []
        while self.queue and (until is None or self.queue[0].time <= until):
            taken.append(b"%b%b\n" % (self._label, self.queue.popleft().text))
        return b"".join(taken)


# --- attempts ---


def attempt_ends(db: ReadSnapshot, alloc_id: str, task: str, kind: str) -> list[tuple[int, int]]:
    """Return the known end times of a task's attempts, with the log's length at each."""
    events = allocations.newest_stored_events(db, alloc_id, task, _EVENTS)
    return [
        (event.time, event.steward_log_ends[kind])
        for event in events
        if event.type == _TERMINATED and kind in event.steward_log_ends
    ]


def attempt_before(
    db: ReadSnapshot, allocation: Allocation, task: str, kind: str
) -> LogAttempt | None:
    """Return the previous attempt, possibly of the previous allocation, or None.

    The last attempt of an ended task counts as its current attempt.
    """
    ends = [end for _, end in attempt_ends(db, allocation.id, task, kind)]
    state = (allocation.client.task_states or {}).get(task)
    if ends and state is not None and state.state == TaskPhase.DEAD:
        ends.pop()
    alloc_id = allocation.id
    if not ends and allocation.desired.previous_allocation:
        alloc_id = allocation.desired.previous_allocation
        ends = [end for _, end in attempt_ends(db, alloc_id, task, kind)]
    if not ends:
        return None
    return LogAttempt(alloc_id, LogSection(ends[-2] if len(ends) > 1 else 0, ends[-1]))


def ended_before(allocation: Allocation, task: str, time: int) -> bool:
    """Return whether a task ended permanently before a time (nanoseconds)."""
    state = (allocation.client.task_states or {}).get(task)
    if state is None or state.state != TaskPhase.DEAD or not state.finished_at:
        return False
    return nanoseconds(state.finished_at) < time


def dates(ends: Iterable[tuple[int, int]], log: TaskLog, stream: Stream, now: int) -> LineTimes:
    """Return the times at which the bytes of a log were written.

    They are computed from `ends` (the end time of each attempt, with the log's length then) and
    from the recorded marks of the log.
    """
    marks = log.marks
    facts = stream.facts
    at_end = min(facts.st_mtime_ns, now) if facts else now
    return LineTimes([*ends, *zip(marks.times, marks.ends, strict=True)], at_end)
