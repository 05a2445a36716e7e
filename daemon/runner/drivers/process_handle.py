"""Watch the shim of a task that runs as a local process, and kill all processes of the task."""

import logging
import os
import signal as signals

import msgspec
import trio

from daemon.launcher.client import Launcher
from daemon.launcher.messages import (
    MOST_OUTPUTS,
    EndedAttempt,
    FinishAttempt,
    GetProcessInfo,
    ReadFile,
    SendSignal,
)
from daemon.runner.core.driver import ExitResult, find_signal
from daemon.runner.core.resource_usage import CpuAccount, UsageReading, sample_of, samples
from daemon.runner.drivers import claim_file
from daemon.runner.drivers.claim_file import ClaimRecord
from daemon.runner.drivers.limits import LimitEnforcer
from daemon.runner.drivers.process_group import ProcessGroup

SOON = 0.002  # seconds between two polls for a shim's first or last line
# Measures one task at a time, so that a burst of measurements does not block the event loop.
_READING = trio.CapacityLimiter(1)
_AGAIN = 0.05  # seconds between two attempts to signal a task that has not begun yet

_FOR_SHIM = 2.0  # seconds for a shim to start its task, or to record the end of a killed task

_LOGS = ("stdout", "stderr")
_OOM = "OOM Killed"  # Nomad's message

_log = logging.getLogger("steward.runner")


class LimitedTask(msgspec.Struct, frozen=True):
    """The limit enforcement of one task."""

    bounds: LimitEnforcer
    alloc_id: str
    task: str

    def killed(self) -> bool:
        """Return whether the kernel killed a process for exceeding the memory limit."""
        return self.bounds.killed(self.alloc_id, self.task)

    def account(self) -> CpuAccount | None:
        """Return the total CPU and memory usage; None if it is not measured."""
        return self.bounds.account(self.alloc_id, self.task)

    def remove(self) -> None:
        """Release the cgroups after the task has ended."""
        self.bounds.remove(self.alloc_id, self.task)


class StartedTask(msgspec.Struct, frozen=True, kw_only=True):
    """A started attempt: its name, claim file, cgroups, and the process ID of its shim.

    `outputs` names the outputs file of the task, if it has one.
    """

    alloc_id: str
    task: str
    number: int
    path: str
    group: ProcessGroup
    bounded: LimitedTask
    shim: int
    outputs: ReadFile | None


class ProcessHandle:
    """A started attempt and the pidfd of its shim; no pidfd means that the shim has exited."""

    is_walled = False

    def __init__(self, launcher: Launcher, started: StartedTask, descriptor: int | None) -> None:
        self._launcher, self._started = launcher, started
        self._path, self._shim = started.path, started.shim
        self._group, self._bounded = started.group, started.bounded
        self._descriptor = descriptor
        self._ended = trio.Event()
        self._trouble = ""
        # The next attempt uses the same process group, and may start as soon as `wait` returns.
        # No process of this group may be killed for this attempt after that.
        self._clearing = trio.Lock()

    @property
    def handle(self) -> bytes:
        """Return the process ID of the shim, for users.

        The driver itself needs only the claim file.
        """
        return msgspec.json.encode({"claim": self._path, "shim": self._shim})

    async def wait(self) -> ExitResult:
        """Wait for the shim to exit, kill the remaining processes, and return the exit result."""
        is_seen = self._descriptor is not None
        if self._descriptor is not None:
            await trio.lowlevel.wait_readable(self._descriptor)
            self.release()
        async with self._clearing:
            return await self._cleared(is_seen=is_seen)

    async def _cleared(self, *, is_seen: bool) -> ExitResult:
        """Kill the remaining processes, and return the exit result.

        `is_seen` means that this handle has seen the exit of the shim.
        """
        # Read first, because the counter disappears with the cgroup.
        killed = self._bounded.killed()
        self._trouble = await self._clear()
        # Requested only when no process is left, because the answer has the final sizes of the
        # logs.
        ended = await self._finish()
        trace = claim_file.completed(
            claim_file.parse(ended.claim.decode(errors="replace")), ended.status
        )
        self._bounded.remove()
        if self._trouble:
            _log.warning(
                "cannot kill all processes of the attempt with claim file %s: %s",
                *(self._path, self._trouble),
            )
        self._ended.set()
        is_final = ended.logs is not None and not self._trouble
        end = msgspec.structs.replace(
            self._end(trace),
            at=0 if is_seen or trace.status is None else ended.at,
            log_sizes=dict(zip(_LOGS, ended.logs or (), strict=True)) if is_final else {},
            # If the outputs may be longer than the answer, the file is read later.
            outputs=ended.outputs if len(ended.outputs or b"") < MOST_OUTPUTS else None,
        )
        if killed:
            return msgspec.structs.replace(end, oom_killed=True, message=end.message or _OOM)
        return end

    async def _finish(self) -> EndedAttempt:
        started = self._started
        try:
            return await self._launcher.finish(
                FinishAttempt(
                    allocation=started.alloc_id,
                    task=started.task,
                    attempt=started.number,
                    outputs=started.outputs,
                )
            )
        # For example, the allocation directory is being deleted.
        except (OSError, ValueError) as error:
            _log.warning("cannot read the result in %s: %s", self._path, error)
            return EndedAttempt(claim=b"", at=0, status=-1)

    def _end(self, trace: ClaimRecord) -> ExitResult:
        return trace.end

    async def _clear(self) -> str:
        """Kill all processes in the group; return the error or an empty string."""
        try:
            return await self._group.clear(self._launcher, self._started.number)
        except (OSError, ValueError) as error:
            return f"processes cannot be ended: {error}"

    async def signal(self, name: str) -> None:
        """Send a signal to the main process; an unknown name means SIGINT."""
        with trio.move_on_after(_FOR_SHIM):
            await self._send_when_started(signal_number(name))

    async def _send_when_started(self, number: signals.Signals) -> None:
        """Send a signal to the main process, after waiting until the shim has started it."""
        # Nothing signals the start of the main process.
        while not await self._send(number) and not self._ended.is_set():  # noqa: ASYNC110
            await trio.sleep(SOON)

    async def _send(self, number: signals.Signals, *, to_shim: bool = False) -> bool:
        """Send a signal; return whether it was sent. An error is logged and counts as sent.

        While the main process is still the shim's child shell, only SIGKILL is sent to it.
        """
        if self._descriptor is None:
            return False
        started = self._started
        request = SendSignal(
            allocation=started.alloc_id,
            task=started.task,
            attempt=started.number,
            signal=number.name,
            is_walled=self.is_walled,
            to_shim=to_shim,
        )
        try:
            return await self._launcher.signal(request)
        except (OSError, ValueError) as error:
            _log.warning(
                "%s cannot be sent to the task with claim file %s: %s",
                number.name,
                self._path,
                error,
            )
            return True

    async def stop(self, signal: str, grace: float) -> str:
        """Signal the main process, and kill all processes after `grace` seconds."""
        with trio.move_on_after(grace):
            await self._wake()
            await self._send_when_started(signal_number(signal))
            await self._ended.wait()
            return self._trouble
        return await self._force()

    async def _force(self) -> str:
        """Kill all processes; return the error or an empty string.

        The main process is killed even if it has left the group. A shim that then stays alive
        without a task is killed too.
        """
        patience = trio.current_time() + _FOR_SHIM
        while not self._ended.is_set():
            await self._send(signals.SIGKILL)
            async with self._clearing:
                problem = "" if self._ended.is_set() else await self._clear()
            if problem:
                return problem
            await self._wake()
            # The launcher does not kill a shim whose task is alive.
            if trio.current_time() > patience:
                await self._send(signals.SIGKILL, to_shim=True)
            with trio.move_on_after(_AGAIN):
                await self._ended.wait()
        return self._trouble

    async def _wake(self) -> None:
        """Resume a shim that its task has stopped, because the shim must record the exit status."""
        await self._send(signals.SIGCONT, to_shim=True)

    async def usage(self) -> UsageReading:
        """Return the current usage by process ID."""
        started = self._started
        members = await self._group.members(self._launcher, started.number)
        async with _READING:
            process_samples = samples(members)
        if members and not process_samples:  # hidepid hides processes of other users
            request = GetProcessInfo(
                allocation=started.alloc_id, task=started.task, attempt=started.number
            )
            texts = await self._launcher.usage(request)
            for status, stat in zip(texts[::2], texts[1::2], strict=True):
                process_samples |= sample_of(status, stat)
        return UsageReading(process_samples, self._bounded.account())

    async def pause(self) -> None:
        """Pause all processes."""
        await self._group.pause(self._launcher, self._started.number)

    async def resume(self) -> None:
        """Resume all processes."""
        await self._group.resume(self._launcher, self._started.number)

    def release(self) -> None:
        """Stop watching the shim."""
        if self._descriptor is not None:
            trio.lowlevel.notify_closing(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None


def signal_number(name: str) -> signals.Signals:
    """Return a signal by name, with or without the prefix SIG; SIGINT if the name is unknown."""
    return find_signal(name) or signals.SIGINT
