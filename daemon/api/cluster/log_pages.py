"""Logs by lines: pages before or after a position, and searches with context.

A line is identified by the position of its first byte in the whole stream, across all rotated
files. So this position stays valid while the log grows and rotates. Every function reads a limited
number of bytes and runs in a thread.
"""

from collections.abc import Iterable, Iterator

import msgspec

from daemon.runner.core.task_log import Stream
from storage.records.base import SparseRecord

MOST_LINES = 1000  # lines per page
_PAGE_BYTES = 256 * 1024  # bytes of all streams of a page together
_LEAST_BYTES = 16 * 1024  # bytes per stream, if there are many
_LONGEST = 16 * 1024  # bytes shown of a line
_BLOCK = 1024 * 1024  # bytes per read of a search
_AROUND = 8 * 1024  # bytes around a match that are searched for context lines
MOST_SEARCHED = 64 * 1024 * 1024  # bytes per search request; the next request continues
MOST_FOUND = 200


class LogLine(SparseRecord, frozen=True, kw_only=True):
    """A line of a log: its position, the position after it, and its text without the line break.

    `unfinished` means that no newline follows yet. `cut` means that the text is truncated,
    `matches` that the line matches the search, and `gap` that lines before it are omitted. `time`
    (nanoseconds since the epoch) is the time of the line, as defined in `log_lines.py`. `stream` is
    stdout or stderr. In the log of a whole job, a line also has `allocation`, `task` and `log`.
    `log` is then the name of the line's stream in cursors.
    """

    at: int
    end: int
    text: str
    stream: str = ""
    log: str = ""
    allocation: str = ""
    task: str = ""
    time: int = 0
    unfinished: bool = False
    cut: bool = False
    matches: bool = False
    gap: bool = False


def bytes_per_stream(streams: int) -> int:
    """Return how many bytes of each stream a page reads, given the number of streams."""
    return max(_LEAST_BYTES, _PAGE_BYTES // max(1, streams))


def before(
    stream: Stream, position: int | None, number: int, most_bytes: int = _PAGE_BYTES
) -> list[LogLine]:
    """Return the last lines before a position; without a position, the last lines of the log."""
    first, end = stream.span()
    stop = end if position is None else min(max(position, first), end)
    begin = max(first, stop - most_bytes)
    begin, data = _whole_lines(_read(stream, begin, stop), begin, first)
    begun = _last_lines(data, number)
    return list(_split(data[begun:], begin + begun, end))


def after(
    stream: Stream, position: int, number: int, most_bytes: int = _PAGE_BYTES
) -> list[LogLine]:
    """Return the lines from a position on, which must be the start of a line."""
    first, end = stream.span()
    begin = min(max(position, first), end)
    stop = min(end, begin + most_bytes)
    lines = list(_split(_read(stream, begin, stop), begin, end))
    if stop < end and len(lines) > 1:
        lines.pop()  # the end of the last line was not read
    return lines[:number]


class Search:
    """A search from a position towards the start; each step reads a block."""

    def __init__(self, text: str, *, context: int, most: int) -> None:
        self._wanted = text.encode().lower()
        self._context, self._most = context, most
        self._found: list[LogLine] = []
        self._read = 0

    def step(self, stream: Stream, position: int) -> int | None:
        """Search the block before a position; return the next position, or None at the start."""
        first, end = stream.span()
        stop = min(position, end)
        if stop <= first:
            return None
        begin = max(first, stop - _BLOCK)
        self._read += stop - begin
        begin, data = _whole_lines(_read(stream, begin, stop), begin, first)
        self._found[:0] = self._matching(data, begin, end)
        if len(self._found) > self._most:
            self._found = self._found[-self._most :]
            return self._found[0].at
        return begin if begin > first else None

    def _matching(self, data: bytes, begin: int, end: int) -> list[LogLine]:
        """Return the last matching lines.

        If more lines match than the limit, the result has one line more than the limit.
        """
        matching: list[LogLine] = []
        lowered, stop = data.lower(), len(data)
        while len(matching) <= self._most and (hit := lowered.rfind(self._wanted, 0, stop)) >= 0:
            start, newline = data.rfind(b"\n", 0, hit) + 1, data.find(b"\n", hit)
            behind = newline + 1 if newline >= 0 else len(data)
            if hit + len(self._wanted) > behind:  # the match spans two lines
                stop = behind
                continue
            matching += _split(data[start:behind], begin + start, end)
            stop = start
        return matching[::-1]

    @property
    def searched(self) -> int:
        """Return the number of bytes read."""
        return self._read

    @property
    def is_full(self) -> bool:
        """Return whether there are enough matches, or the limit of bytes is reached."""
        return len(self._found) >= self._most or self._read >= MOST_SEARCHED

    @property
    def found(self) -> list[LogLine]:
        """Return the matches, oldest first."""
        return self._found

    def lines(self, stream: Stream) -> list[LogLine]:
        """Return the matches with their context lines."""
        context = (near_line for line in self._found for near_line in self.near(stream, line))
        return with_gaps(self._found, context)

    def near(self, stream: Stream, line: LogLine) -> list[LogLine]:
        """Return the context lines of a match."""
        if not self._context:
            return []
        first, end = stream.span()
        begin, stop = max(first, line.at - _AROUND), min(end, line.end + _AROUND)
        earlier = _lines(stream, begin, line.at, first=first, end=end)
        later = list(_split(_read(stream, line.end, stop), line.end, end))
        if stop < end and later:
            later.pop()
        return [*earlier[-self._context :], *later[: self._context]]


def with_gaps(matches: Iterable[LogLine], context: Iterable[LogLine]) -> list[LogLine]:
    """Return matches and context lines by position, with marks where lines are left out."""
    by_position = {line.at: line for line in context}
    by_position |= {line.at: msgspec.structs.replace(line, matches=True) for line in matches}
    return list(_gaps(by_position))


def _gaps(lines: dict[int, LogLine]) -> Iterator[LogLine]:
    """Yield lines by position, with marks where lines are left out."""
    reached: int | None = None
    for position in sorted(lines):
        line = lines[position]
        yield line if reached in (None, position) else msgspec.structs.replace(line, gap=True)
        reached = line.end


def _lines(stream: Stream, begin: int, stop: int, *, first: int, end: int) -> list[LogLine]:
    """Return the lines in the bytes from `begin` to `stop`, which may begin inside a line.

    `first` is the position of the first stored byte; `end` is the end of the log.
    """
    begin, data = _whole_lines(_read(stream, begin, stop), begin, first)
    return list(_split(data, begin, end))


def _whole_lines(data: bytes, begin: int, first: int) -> tuple[int, bytes]:
    """Return the position of the first line start in `data`, and the bytes from there on."""
    if begin > first:  # this is the middle of a line, unless it is the start of the log
        cut = data.find(b"\n") + 1
        if 0 < cut < len(data):
            return begin + cut, data[cut:]
    return begin, data


def _last_lines(data: bytes, number: int) -> int:
    """Return the position in `data` at which the last `number` lines begin."""
    begun = len(data)
    while number > 0 and begun > 0:
        begun, number = data.rfind(b"\n", 0, begun - 1) + 1, number - 1
    return begun


def _read(stream: Stream, begin: int, stop: int) -> bytes:
    """Return the bytes from `begin` to `stop`; fewer if the log was rotated in the meantime."""
    parts: list[bytes] = []
    position = begin
    while position < stop and (chunk := stream.read(position, stop - position)) is not None:
        if chunk.end - len(chunk.data) != position:  # the bytes there were rotated away
            break
        parts.append(chunk.data)
        position = chunk.end
    return b"".join(parts)


def _split(data: bytes, begin: int, end: int) -> Iterator[LogLine]:
    """Yield the lines in bytes that begin with a line; `end` is the end of the log."""
    position = 0
    while position < len(data):
        newline = data.find(b"\n", position)
        stop = len(data) if newline < 0 else newline
        after = stop if newline < 0 else newline + 1
        yield LogLine(
            at=begin + position,
            end=begin + after,
            text=data[position : min(stop, position + _LONGEST)].decode(errors="replace"),
            unfinished=newline < 0 and begin + after >= end,
            cut=stop - position > _LONGEST,
        )
        position = after
