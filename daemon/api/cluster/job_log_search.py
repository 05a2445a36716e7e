"""The newest matches of a search in several logs, up to a maximum number and total size.

Each log is searched separately, from its end. Older matches are dropped. The cursor of a log points
to its first match in the response, so the next request finds the dropped matches.
"""

import heapq
from typing import NamedTuple

import msgspec

from daemon.api.cluster.log_pages import LogLine, Search, with_gaps
from daemon.api.cluster.log_views import OpenedStream, dated

_MOST_TEXT = 512 * 1024  # bytes of all lines of an answer


class _Match(NamedTuple):
    """A matching line, and the index of the log that contains it."""

    place: int
    line: LogLine


class _Searched(msgspec.Struct):
    """A searched log: its number of matches, the end of the last match, and the next position."""

    search: Search
    number: int
    end: int
    reached: int


class NewestMatches:
    """The newest matches of several logs. Its methods run in a thread."""

    def __init__(self, opened: list[OpenedStream], most: int) -> None:
        self._opened, self._most = opened, most
        self._matches: list[_Match] = []  # oldest first
        self._searched: list[_Searched] = []

    def add(self, search: Search, reached: int) -> None:
        """Add the matches of the next log, and drop all but the newest matches of all logs.

        `reached` is the position at which the search in this log stopped.
        """
        index = len(self._searched)
        log_lines = dated(self._opened[index], search.found)
        end = log_lines[-1].end if log_lines else 0
        self._searched.append(_Searched(search, len(log_lines), end, reached))
        own = [_Match(index, line) for line in log_lines]
        merged = [*heapq.merge(self._matches, own, key=lambda match: match.line.time)]
        self._matches = []
        left = _MOST_TEXT
        for match in reversed(merged[-self._most :]):
            left -= _size(match.line)
            if left < 0:
                break
            self._matches.insert(0, match)

    @property
    def searched(self) -> int:
        """Return the number of bytes read."""
        return sum(searched.search.searched for searched in self._searched)

    def lines(self) -> tuple[list[list[LogLine]], list[int]]:
        """Return, by log, the matches with context, and the position at which to search next.

        The position is 0 if the log has no earlier lines to search.
        """
        by_log: list[list[LogLine]] = [[] for _ in self._opened]
        context_by_log: list[dict[int, LogLine]] = [{} for _ in self._opened]
        left = _MOST_TEXT
        for index, line in reversed(self._matches):
            around = {
                near_line.at: near_line
                for near_line in self._searched[index].search.near(self._opened[index].stream, line)
                if near_line.at not in context_by_log[index]
            }
            left -= _size(line, *around.values())
            if left < 0 and any(by_log):
                break
            by_log[index].insert(0, line)
            context_by_log[index] |= around
        log_lines = [
            dated(log, with_gaps(lines, context.values()))
            for log, lines, context in zip(self._opened, by_log, context_by_log, strict=True)
        ]
        return log_lines, [self._next(index, lines) for index, lines in enumerate(by_log)]

    def _next(self, index: int, log_lines: list[LogLine]) -> int:
        searched = self._searched[index]
        if len(log_lines) == searched.number:
            position = searched.reached
        else:
            position = log_lines[0].at if log_lines else searched.end
        return position if position > self._opened[index].stream.span()[0] else 0


def _size(*lines: LogLine) -> int:
    return sum(len(line.text.encode()) for line in lines)
