"""A daemon that can be killed at any of its points, started by the fork server (`fork_server.py`)."""

import array
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, BinaryIO

import trio

from daemon.config.data_directory import alloc_dir
from daemon.launcher.client import LauncherGone
from daemon.process.main import EXIT_FAILURE
from tests.crash.point_counters import PointCounters
from tests.service.daemon import Steward, _environ, environment
from tests.time_limits import HAPPENS_WITHIN

ID_SIZE = 36  # characters of an allocation ID
_COUNTERS = "points"
_ANSWER = 64  # maximum bytes of a launcher's response


class Forked:
    """A daemon forked by the launcher, with the part of a process interface that tests need."""

    def __init__(self, pid: int, output: int, orders: trio.socket.SocketType) -> None:
        self.pid, self._orders = pid, orders
        self.stdout = trio.lowlevel.FdStream(output)
        self._descriptor = os.pidfd_open(pid)
        self._status: int | None = None

    def send_signal(self, number: int) -> None:
        if self._status is None:
            signal.pidfd_send_signal(self._descriptor, number)

    async def wait(self) -> int:
        """Return its exit status, or the negated signal number."""
        if self._status is None:
            await trio.lowlevel.wait_readable(self._descriptor)
            os.close(self._descriptor)
            await self._orders.send(json.dumps({"reap": self.pid}).encode())
            self._status = json.loads(await self._orders.recv(_ANSWER))
        return self._status


class KillableDaemon(Steward):
    """A daemon that can be killed at any of its points."""

    def __init__(
        self, directory: Path, config: tuple[str, ...], orders: trio.socket.SocketType
    ) -> None:
        self.all_flags = ("--dev", "--acl", *config)
        super().__init__(directory, self.all_flags)
        self.config = config
        self.counters = PointCounters(directory / _COUNTERS)
        self._orders = orders

    async def _run(self, words: list[str], log: BinaryIO, before: tuple[str, ...] = ()) -> Any:
        reading, writing = os.pipe()
        order = json.dumps({"words": words}).encode()
        rights = array.array("i", [writing, log.fileno()])
        await self._orders.sendmsg([order], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        os.close(writing)
        return Forked(json.loads(await self._orders.recv(_ANSWER)), reading, self._orders)

    async def start_with(self, flags: tuple[str, ...]) -> bool:
        """Restart it with other arguments; return whether it became ready."""
        await self.stop()
        self.flags = flags
        return await self.start_or_die()

    async def start_or_die(self) -> bool:
        """Start it, unless it has died at its point; return whether it became ready."""
        if self.counters.has_fired:
            return False
        try:
            await self.start()
        except AssertionError:
            if not self.counters.has_fired:
                raise
            await self.bury()
            return False
        return True

    def allocations_at_work(self) -> set[str]:
        """Return the allocations that have at least one process."""
        mark = os.fsencode(alloc_dir(self.data_dir)) + b"/"
        found = set()
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                _, is_of_us, rest = _environ(entry).partition(mark)
                if is_of_us:
                    found.add(rest[:ID_SIZE].decode(errors="replace"))
        return found

    @property
    def is_running(self) -> bool:
        """Return whether a daemon runs, or a dead one has not been reaped yet."""
        return self._process is not None

    async def bury(self) -> None:
        """Reap it, and check that it died by the kill."""
        assert self._process is not None
        with trio.fail_after(HAPPENS_WITHIN):
            status = await self._process.wait()
        log = self.log.read_text()[-5000:]
        # The kill may have hit its launcher. Then the daemon exits and logs the reason.
        is_left_alone = status == EXIT_FAILURE and str(LauncherGone()) in log
        assert status == -9 or is_left_alone, f"it ended by itself; its log:\n{log}"
        await self.kill()


@asynccontextmanager
async def open_launcher(
    directory: Path, variables: Mapping[str, str]
) -> AsyncIterator[trio.socket.SocketType]:
    """Start the fork server; yield its socket for orders."""
    PointCounters(directory / _COUNTERS)
    ours, theirs = trio.socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    words = [
        sys.executable,
        "-m",
        "tests.crash.fork_server",
        str(directory / _COUNTERS),
        str(theirs.fileno()),
    ]
    with ours:
        process = await trio.lowlevel.open_process(
            words, env=environment(**variables), pass_fds=[theirs.fileno()]
        )
        theirs.close()
        try:
            yield ours
        finally:
            ours.close()
            with trio.CancelScope(shield=True):
                await process.wait()
