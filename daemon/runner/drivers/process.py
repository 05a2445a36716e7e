"""A process of this machine that runs a task: watched through its shim, ended with all it started."""

import logging
import os
import signal as signals

import msgspec
import trio

from daemon.launcher.client import Launcher
from daemon.launcher.messages import Ended, Finish, Signal
from daemon.runner.drivers import claim
from daemon.runner.drivers.claim import Trace
from daemon.runner.drivers.driver import Exit
from daemon.runner.drivers.group import Group
from daemon.runner.drivers.limits import Bounds
from daemon.runner.drivers.scan import children
from daemon.runner.usage import Account, Use, samples

SOON = 0.002  # seconds until the next look for a shim's first or last step, which is about to come
_AGAIN = 0.05  # seconds until a task that was killed before it had begun is killed again

_FOR_SHIM = 2.0  # seconds that a shim has to say how its task ended, once that is killed

_OOM = "OOM Killed"  # the peer's word

_log = logging.getLogger("steward.runner")


def open_process(pid: int) -> int | None:
    """Return a descriptor of a process, or None when there is none of that number."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


class Bounded(msgspec.Struct, frozen=True):
    """What holds one task to its limits."""

    bounds: Bounds
    alloc_id: str
    task: str

    def killed(self) -> bool:
        """Tell whether the kernel has killed something of it for its memory."""
        return self.bounds.killed(self.alloc_id, self.task)

    def account(self) -> Account | None:
        """Return what all of it has used, where that is known."""
        return self.bounds.account(self.alloc_id, self.task)

    def remove(self) -> None:
        """Let go of it: nothing of the task is left."""
        self.bounds.remove(self.alloc_id, self.task)


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt that was started: its name, its claim file, its groups, and the pid of its shim."""

    alloc_id: str
    task: str
    number: int
    path: str
    group: Group
    bounded: Bounded
    shim: int


class Process:
    """An attempt that was started, by its shim. Without a descriptor the shim is gone already."""

    is_walled = False

    def __init__(self, launcher: Launcher, started: Started, descriptor: int | None) -> None:
        self._launcher, self._started = launcher, started
        self._path, self._shim = started.path, started.shim
        self._group, self._bounded = started.group, started.bounded
        self._descriptor = descriptor
        self._ended = trio.Event()
        self._trouble = ""

    @property
    def handle(self) -> bytes:
        """Return what says where the shim is, for people: the driver needs only the claim."""
        return msgspec.json.encode({"claim": self._path, "shim": self._shim})

    async def wait(self) -> Exit:
        """Return how the task ended, once the shim has written it down and nothing is left."""
        is_seen = self._descriptor is not None
        if self._descriptor is not None:
            await trio.lowlevel.wait_readable(self._descriptor)
            self.release()
        ended = await self._finish()
        trace = claim.completed(claim.parse(ended.claim.decode(errors="replace")), ended.status)
        killed = self._bounded.killed()  # what says so may go with the group
        self._trouble = await self._group.clear(trace)
        self._bounded.remove()
        if self._trouble:
            _log.warning("%s: %s", self._path, self._trouble)
        self._ended.set()
        at = 0 if is_seen or trace.status is None else ended.at
        end = msgspec.structs.replace(self._end(trace), at=at)
        if killed:
            return msgspec.structs.replace(end, oom_killed=True, message=end.message or _OOM)
        return end

    async def _finish(self) -> Ended:
        one = self._started
        try:
            return await self._launcher.finish(
                Finish(allocation=one.alloc_id, task=one.task, attempt=one.number)
            )
        except (OSError, ValueError) as error:  # such as a directory that is on its way out
            _log.warning("%s: %s", self._path, error)
            return Ended(claim=b"", at=0, status=-1)

    def _end(self, trace: Trace) -> Exit:
        return trace.end

    async def signal(self, name: str) -> None:
        """Send a signal to the task's main process; an unknown name means SIGINT."""
        await self._send(signal_number(name))

    async def _send(self, number: signals.Signals, *, to_shim: bool = False) -> None:
        if self._descriptor is None:
            return
        one = self._started
        request = Signal(
            allocation=one.alloc_id,
            task=one.task,
            attempt=one.number,
            signal=number.name,
            is_walled=self.is_walled,
            to_shim=to_shim,
        )
        try:
            await self._launcher.signal(request)
        except (OSError, ValueError) as error:
            _log.warning("%s: %s cannot be sent: %s", self._path, number.name, error)

    def _main(self) -> list[int]:
        """Return the shim's only child: the task's main process."""
        if self._descriptor is None:
            return []
        return children(self._shim)

    def _has_begun(self) -> bool:
        """Tell whether the main process has left the shell, which would swallow a signal."""
        return any(_leads_its_session(pid) for pid in self._main())

    async def stop(self, signal: str, grace: float) -> str:
        """Signal the main process, and kill every process after `grace` seconds."""
        with trio.move_on_after(grace):
            await self._wake()
            while not self._has_begun() and not self._ended.is_set():  # noqa: ASYNC110  # the shim is about to
                await trio.sleep(SOON)
            await self.signal(signal)
            await self._ended.wait()
            return self._trouble
        return await self._force()

    async def _force(self) -> str:
        """Kill every process, the main one wherever it has gone, and at last a shim without a task."""
        patience = trio.current_time() + _FOR_SHIM
        while not self._ended.is_set():
            await self.signal("SIGKILL")
            if trouble := await self._group.clear(claim.read(self._path)):
                return trouble
            await self._wake()
            if trio.current_time() > patience:  # the launcher spares it while its task lives
                await self._send(signals.SIGKILL, to_shim=True)
            with trio.move_on_after(_AGAIN):
                await self._ended.wait()
        return self._trouble

    async def _wake(self) -> None:
        """Let the shim go on, if its task has stopped it: it is to say how the task ended."""
        await self._send(signals.SIGCONT, to_shim=True)

    async def usage(self) -> Use:
        """Return what it uses at this moment, its processes by their numbers."""
        members = await self._group.members(claim.read(self._path))
        return Use(samples(members), self._bounded.account())

    async def pause(self) -> None:
        """Hold every process still."""
        await self._group.pause(claim.read(self._path))

    async def resume(self) -> None:
        """Let every process go on."""
        await self._group.resume(claim.read(self._path))

    def release(self) -> None:
        """Stop watching the shim."""
        if self._descriptor is not None:
            trio.lowlevel.notify_closing(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None


def _leads_its_session(pid: int) -> bool:
    try:
        return os.getsid(pid) == pid
    except ProcessLookupError:
        return False


def signal_number(name: str) -> signals.Signals:
    """Return the signal of that name, with or without SIG; SIGINT when there is none (the peer's)."""
    wanted = name.upper().removeprefix("SIG")
    found = signals.Signals.__members__.get(f"SIG{wanted}")
    return found or signals.SIGINT
