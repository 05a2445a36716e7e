"""`job dispatch --from`: many children from a file of JSON lines, in several requests.

A request has at most a thousand lines. So a file may have any length. It may also be a pipe, and
another program may still write to the pipe.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import BinaryIO

import msgspec

from daemon.cli.core.http_client import ApiClient, DaemonUnreachable, decode, segment
from daemon.cli.core.output import ProgressDisplay, ProgressRow, Screen
from daemon.cli.core.responses import JobListItem
from storage.errors import Invalid, StewardError
from storage.records.bulk_dispatch import BulkDispatchAnswer

EXIT_LINE_FAILED = 2
EXIT_INTERRUPTED = 130
LINES = 1000  # lines per request
BYTES = 8 * 1024 * 1024  # bytes per request
_STEP = 100  # answers between two changes of the progress bar


class LineBlock(msgspec.Struct, frozen=True):
    """The lines of one request; `first` is the number of its first line in the file."""

    first: int
    body: bytes
    count: int  # lines that are not empty


class BulkRun(msgspec.Struct, kw_only=True):
    """A bulk dispatch, with the number of answers of each kind so far."""

    client: ApiClient
    screen: Screen
    job: JobListItem
    token: str
    size: int = 0  # size of the file in bytes; 0 for a pipe
    sent: int = 0  # size of the earlier blocks in bytes
    dispatched: int = 0
    queued: int = 0
    existed: int = 0
    failed: int = 0

    def dispatch(self, block: LineBlock, progress: ProgressDisplay) -> None:
        """Send one block, and report each answer as it arrives."""
        for answered, line in enumerate(self._answers(block), 1):
            answer = decode(line, BulkDispatchAnswer)
            self.count(answer)
            self._report(line, answer)
            if not answered % _STEP or answered == block.count:
                done = self.sent + len(block.body) * answered // block.count
                progress.show([self._row(done)])
        self.sent += len(block.body)

    def _answers(self, block: LineBlock) -> Iterator[bytes]:
        """Yield the answers to a block. Raises `DaemonUnreachable` if an answer is missing."""
        path = f"/v1/job/{segment(self.job.id)}/dispatch/bulk"
        answered, rest = 0, b""
        with self.client.stream_answers(
            path,
            block.body,
            namespace=self.job.namespace,
            first_line=block.first,
            idempotency_token=self.token,
        ) as chunks:
            for chunk in chunks:
                *lines, rest = (rest + chunk).split(b"\n")
                answered += len(lines)
                yield from lines
        if answered < block.count:
            raise DaemonUnreachable(
                f"the response ended after {answered} of {block.count} lines: the others may have "
                "been dispatched; with --idempotency-token this command is safe to repeat"
            )

    def count(self, answer: BulkDispatchAnswer) -> None:
        """Count an answer by its kind."""
        if answer.error:
            self.failed += 1
        elif answer.existed:
            self.existed += 1
        else:
            self.dispatched += 1
            self.queued += not answer.eval_id

    def _report(self, line: bytes, answer: BulkDispatchAnswer) -> None:
        if self.screen.wants_document:
            self.screen.document_line(line)
            return
        prefix = f"line {answer.line}: "
        if answer.error:
            field = f"{answer.field}: " if answer.field else ""
            self.screen.warn(f"{prefix}{field}{answer.error}")
        for warning in answer.warnings:
            self.screen.warn(f"{prefix}warning: {warning}")

    def _row(self, done: int) -> ProgressRow:
        """Return the progress bar, which shows no total for a pipe."""
        total = max(self.size, done) if self.size else 0
        return ProgressRow("Dispatch", self.job.id, "", "", self.summary(), done, total)

    def summary(self) -> str:
        """Return a text with the number of answers of each kind."""
        parts = (
            f"{self.dispatched} dispatched",
            f"{self.queued} of them queued" if self.queued else "",
            f"{self.existed} dispatched before" if self.existed else "",
            f"{self.failed} failed" if self.failed else "",
        )
        return ", ".join(filter(None, parts))


def dispatch_file(
    client: ApiClient, screen: Screen, job: JobListItem, source: str, token: str
) -> int:
    """Dispatch each line of a file, print errors and a summary, and return the exit status.

    Raises `Invalid` for an unreadable file, and the errors of the client.
    """
    run = BulkRun(client=client, screen=screen, job=job, token=token)
    try:
        with _open(source) as lines, screen.bar() as progress:
            run.size = _size(lines)
            for block in read_blocks(lines):
                run.dispatch(block, progress)
    except KeyboardInterrupt:
        screen.warn(f"\ninterrupted: {run.summary()}; the children continue")
        return EXIT_INTERRUPTED
    except StewardError:
        screen.warn(f"so far: {run.summary()}")
        raise
    if not screen.wants_document:
        screen.line(f'job "{job.id}": {run.summary()}')
    screen.hint(f"See the children with: steward job status {job.id}")
    return EXIT_LINE_FAILED if run.failed else 0


def _open(source: str) -> AbstractContextManager[BinaryIO]:
    """Open a file, or standard input for `-`. Raises `Invalid`."""
    if source == "-":
        return nullcontext(sys.stdin.buffer)
    try:
        return Path(source).open("rb")
    except OSError as error:
        raise Invalid(f"cannot read the lines of {source}: {error.strerror}") from error


def _size(lines: BinaryIO) -> int:
    """Return the size of a file in bytes; 0 for a pipe."""
    try:
        return os.fstat(lines.fileno()).st_size
    except OSError:  # not a real file
        return 0


def read_blocks(lines: BinaryIO) -> Iterator[LineBlock]:
    """Yield lines in blocks. Raises `Invalid` for a line that is too long for any request."""
    number = 0
    block: list[bytes] = []
    size = 0
    while line := lines.readline(BYTES):
        number += 1
        if len(line) == BYTES:
            raise Invalid(f"line {number} has more than {BYTES} bytes: write one dispatch per line")
        if len(block) == LINES or size + len(line) > BYTES:
            yield from _block(number, block)
            block, size = [], 0
        block.append(line)
        size += len(line)
    yield from _block(number + 1, block)


def _block(end: int, lines: list[bytes]) -> Iterator[LineBlock]:
    """Yield a block of these lines, or nothing if all of them are blank.

    `end` is the number of the line that follows the block.
    """
    if count := sum(not line.isspace() for line in lines):
        yield LineBlock(end - len(lines), b"".join(lines), count)
