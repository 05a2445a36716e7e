"""`job run --wait`: wait for the end of the job, print its output, and use its exit code.

One thread follows the allocations, and each log has a thread that reads it. One nursery owns all
these threads. After a timeout or an interrupt, the command waits for none of them.
"""

import signal
import sys
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from typing import BinaryIO

import trio

from daemon.cli.commands.logs import LogPosition, frames, position
from daemon.cli.core import flow_runs
from daemon.cli.core.follow import (
    EXIT_FAILED,
    EXIT_NOT_PLACED,
    FollowResult,
    current_allocations,
    follow_run,
)
from daemon.cli.core.http_client import (
    ApiClient,
    DaemonUnreachable,
    RequestRejected,
    is_of_a_restart,
    segment,
)
from daemon.cli.core.output import ProgressDisplay, Screen
from daemon.cli.core.responses import AllocationItem
from storage.errors import StewardError
from storage.records.allocation import TIME_LIMIT_EVENT, TaskPhase, TaskStateWithEvents

EXIT_TIMED_OUT = 124  # as in timeout(1)
_LONGEST = 64 * 1024  # bytes of an incomplete line that are buffered
_SIGNALLED = 128  # a shell adds the signal's number
_ENDED = "Terminated"


def wait_for_end(
    client: ApiClient,
    screen: Screen,
    progress: ProgressDisplay,
    eval_id: str,
    *,
    logs: bool,
    seconds: float,
) -> FollowResult | None:
    """Return the result of an evaluation's allocations; None after a timeout.

    With `logs`, the output of the tasks is printed in the meantime. Raises `KeyboardInterrupt`,
    `BrokenPipeError` if the reader closed the output, and the errors of the client.
    """
    watch = _Watch(client, screen, progress, eval_id, logs=logs)
    trio.run(watch.run, seconds)
    if watch.fault is not None:
        raise watch.fault
    return watch.ending


def exit_status(ending: FollowResult) -> int:
    """Return 0 for success, the exit code of the task that failed first, or 124 for a timeout.

    For a workflow, return the exit status of its run, because a run may allow tasks to fail.
    """
    if ending.status == EXIT_NOT_PLACED:
        return EXIT_NOT_PLACED
    if ending.run is not None:
        return flow_runs.exit_status(ending.run)
    lines = current_allocations(ending.allocations)
    states = [state for line in lines for state in (line.task_states or {}).values()]
    if any(event.type == TIME_LIMIT_EVENT for state in states for event in state.events or ()):
        return EXIT_TIMED_OUT
    failed = sorted(_end(state) for state in states if state.failed)
    return failed[0][1] if failed else ending.status


def _end(state: TaskStateWithEvents) -> tuple[int, int]:
    """Return the time at which a failed task ended, and its exit code.

    The exit code is 1 if the task never ran.
    """
    ends = [event for event in state.events or () if event.type == _ENDED]
    if not ends:
        return sys.maxsize, EXIT_FAILED
    last = ends[-1]
    by_signal = _SIGNALLED + last.signal if last.signal else 0
    return last.time, last.exit_code or by_signal or EXIT_FAILED


class _Watch:
    def __init__(
        self,
        client: ApiClient,
        screen: Screen,
        progress: ProgressDisplay,
        eval_id: str,
        *,
        logs: bool,
    ) -> None:
        self.ending: FollowResult | None = None
        self.fault: BaseException | None = None
        self._client, self._screen, self._progress = client, screen, progress
        self._eval_id = eval_id
        self._wants_logs = logs
        self._shown: set[tuple[str, str]] = set()
        self._warned = False
        self._watching = trio.CancelScope()

    async def run(self, seconds: float) -> None:
        """Wait until all tasks have ended and their output is printed.

        A timeout or an interrupt ends the wait.
        """
        with self._watching:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._heed_interrupts)
                with trio.move_on_after(seconds):
                    async with trio.open_nursery() as readers:
                        await trio.to_thread.run_sync(self._follow, readers, abandon_on_cancel=True)
                nursery.cancel_scope.cancel()

    async def _heed_interrupts(self) -> None:
        with trio.open_signal_receiver(signal.SIGINT) as interrupts:
            async for _ in interrupts:
                self._give_up(KeyboardInterrupt())

    def _give_up(self, fault: BaseException) -> None:
        self.fault = fault
        self._watching.cancel()

    def _follow(self, readers: trio.Nursery) -> None:
        def begin(lines: Sequence[AllocationItem]) -> None:
            for key in _started_tasks(lines):
                if self._wants_logs and key not in self._shown:
                    self._shown.add(key)
                    trio.from_thread.run_sync(self._start_printing, readers, *key)

        try:
            self.ending = follow_run(
                self._client, self._progress, self._eval_id, until_ended=True, tell=begin
            )
        except StewardError as error:
            self.fault = error

    def _start_printing(self, readers: trio.Nursery, alloc_id: str, task: str) -> None:
        path = f"/v1/client/fs/logs/{segment(alloc_id)}"
        for kind, out in (("stdout", sys.stdout.buffer), ("stderr", sys.stderr.buffer)):
            readers.start_soon(self._print, LogPosition(path, task, kind), out)

    async def _print(self, log: LogPosition, out: BinaryIO) -> None:
        try:
            await trio.to_thread.run_sync(self._copy, log, out, abandon_on_cancel=True)
        except BrokenPipeError as error:
            self._give_up(error)
        except StewardError as error:
            self._warn_about_missing_output(error)

    def _copy(self, log: LogPosition, out: BinaryIO) -> None:
        """Copy a log until its task has ended.

        A daemon that stops ends the stream as if the log were complete. Only the answer to another
        request shows whether more output follows. Raises `DaemonUnreachable`.
        """
        copied, attempts = 0, 0
        with ApiClient(self._client.connection) as own_client:
            own_client.await_restarts(is_quiet=True)
            while True:
                attempts, size = attempts + 1, 0
                query = log.query(plain=True, follow=True, offset=copied)
                try:
                    with own_client.stream(log.path, **query) as chunks:
                        for lines in _whole(chunks):
                            out.write(lines)
                            out.flush()
                            size += len(lines)
                except DaemonUnreachable as error:
                    if not is_of_a_restart(error) or (attempts > 1 and not size):
                        raise
                if attempts > 1 and not size:
                    break
                copied += size
            if own_client.has_awaited_restart and _has_lost_lines(own_client, log):
                raise DaemonUnreachable("the log was rotated, and the daemon was restarted")

    def _warn_about_missing_output(self, error: StewardError) -> None:
        """Warn once that output is missing; a log that does not exist causes no warning."""
        if isinstance(error, RequestRejected) and error.status == HTTPStatus.NOT_FOUND:
            return
        if not self._warned:
            self._warned = True
            self._screen.warn(f"the output of the tasks is incomplete: {error}")


def _started_tasks(lines: Sequence[AllocationItem]) -> Iterator[tuple[str, str]]:
    """Yield the tasks that may have output."""
    for line in lines:
        for name, state in (line.task_states or {}).items():
            if state.state != TaskPhase.PENDING:
                yield line.id, name


def _has_lost_lines(client: ApiClient, log: LogPosition) -> bool:
    """Return whether the log no longer has its beginning, so that no byte has a known offset."""
    with client.stream(log.path, **log.query()) as chunks:
        first = next(frames(chunks), None)
    return first is not None and position(first)[0] > 0


def _whole(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield whole lines, so that lines of several tasks do not mix.

    An incomplete line is yielded when its buffer is full.
    """
    rest = b""
    for chunk in chunks:
        lines, end, rest = (rest + chunk).rpartition(b"\n")
        if len(rest) > _LONGEST:
            lines, end, rest = lines + end, rest, b""
        if end:
            yield lines + end
    if rest:
        yield rest
