"""Task output with its secrets masked, for callers who may not see it unmasked.

A mask is as long as its secret, so positions, sizes and cursors are the same as in the files. Each
read also searches the bytes before and after the requested bytes. So it finds a secret that is only
partly in the requested bytes. At the end of a growing log, up to the first seven bytes of a secret
can be visible.
"""

from functools import partial

import msgspec

from daemon.app.context import OutputMasks
from daemon.runner.core.opened_files import OpenedFile
from daemon.runner.core.task_log import LogChunk, Logs, LogSegment, Stream, TaskLog
from daemon.text.masking import Matcher
from storage import garbage
from storage.records.task import LogConfig

READ_RAW_LOGS = "read-raw-logs"  # the capability to see output as the task wrote it
_CHUNK = 64 * 1024  # bytes per read, as in other logs


class MaskedLog(TaskLog):
    """One stream of a task's output, masked."""

    def __init__(
        self, logs: Logs, place_of_log: tuple[str, str, str], config: LogConfig, masks: OutputMasks
    ) -> None:
        super().__init__(logs, place_of_log, config)
        self._masks = masks

    async def current(self) -> Stream:
        """Return the current stream, masked if the tasks of the allocation received secrets."""
        opened = await self._logs.reading(self.place)
        return MaskedStream(self, opened, await self.matcher())

    async def matcher(self) -> Matcher | None:
        """Return the current matcher, or None if there is nothing to mask."""
        return await self._masks.matcher(self.place[0])


class MaskedStream(Stream):
    """The content of a log, masked.

    `matcher` finds the secrets that the tasks had received when the stream was opened.
    """

    def __init__(self, log: MaskedLog, present: OpenedFile | None, matcher: Matcher | None) -> None:
        super().__init__(log, present)
        self._masked, self._matcher = log, matcher

    def read(self, position: int, most: int = _CHUNK) -> LogChunk | None:
        """Return the masked data at an offset; see `Stream.read`. Called in a thread."""
        if self._matcher is None:
            return super().read(position, most)
        window = self._window(position, most, self._matcher.longest)
        return None if window is None else window.masked(self._matcher)

    async def fetch(self, position: int, most: int = _CHUNK) -> LogChunk | None:
        """Return the data at an offset; every secret that the task may have received is masked."""
        if self._matcher is None:
            plain = super().read(position, most)
            self._matcher = await self._masked.matcher()
            if self._matcher is None or plain is None:
                return plain
        while True:
            matcher = self._matcher
            window = self._window(position, most, matcher.longest)
            # A secret is stored before its task receives it. So it is known after the data was read.
            self._matcher = await self._masked.matcher() or matcher
            if self._matcher is matcher:
                break
        if window is None:
            return None
        if matcher.is_quick and not matcher.may_match(window.data):
            return window.masked(matcher)
        return await garbage.in_thread(partial(window.masked, matcher))

    def _window(self, position: int, most: int, around: int) -> "_Window | None":
        """Return the data at an offset with bytes around it; None at the end."""
        segments, limit = self.pieces(), self._masked.limit
        first = self.first(segments)
        position = max(position, first)
        most = min(most, limit - position % limit)
        begin, data = self._between(
            segments, max(first, position - around), position, most + around
        )
        size = min(most, len(data) - (position - begin))
        if size <= 0:
            return None
        return _Window(
            name=self._masked.name(position),
            offset=position % limit + size,
            end=position + size,
            data=data,
            begin=position - begin,
            stop=position - begin + size,
            at_start=begin <= first,
            at_end=begin + len(data) < position + most + around,
        )

    def _between(
        self, segments: list[LogSegment], begin: int, position: int, most: int
    ) -> tuple[int, bytes]:
        """Return the position of the first byte, and the bytes from there up to `position + most`.

        The first byte is at `begin`, or later (at most at `position`) if bytes were deleted.
        """
        stop, parts, offset = position + most, list[bytes](), begin
        for segment in segments:
            if offset < segment.start <= position:  # the bytes before it were deleted
                begin = offset = segment.start
                parts.clear()
            if offset >= stop or not segment.start <= offset < segment.end:
                continue
            parts.append(self.content(segment, offset - segment.start, stop - offset))
            offset += len(parts[-1])
        return begin, parts[0] if len(parts) == 1 else b"".join(parts)


class _Window(msgspec.Struct, frozen=True):
    """The bytes of a chunk, from `begin` to `stop` in `data`, with bytes around them.

    `name`, `offset` and `end` describe the chunk. `at_start` means that `data` begins at the start
    of the log, and `at_end` that it reaches to the end.
    """

    name: str
    offset: int
    end: int
    data: bytes
    begin: int
    stop: int
    at_start: bool
    at_end: bool

    def masked(self, matcher: Matcher) -> LogChunk:
        """Return the chunk with its secrets masked."""
        masked = matcher.mask_part(
            self.data, self.begin, self.stop, at_start=self.at_start, at_end=self.at_end
        )
        return LogChunk(self.name, self.offset, masked, self.end)
