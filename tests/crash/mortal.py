"""A daemon that may be killed at any of its points, and what becomes one (`launcher.py`)."""

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

from daemon.datadir import alloc_dir
from daemon.launcher.client import LauncherGone
from daemon.main import EXIT_FAILURE
from tests.crash.tally import Tally
from tests.patience import HAPPENS_WITHIN
from tests.service.daemon import Steward, _environ, environment

ID_SIZE = 36  # characters of an allocation's name
_TALLY = "points"
_ANSWER = 64  # bytes that an answer of the launcher has at most


class Forked:
    """A daemon that the launcher has become: as much of a process as is asked for here."""

    def __init__(self, pid: int, output: int, orders: trio.socket.SocketType) -> None:
        self.pid, self._orders = pid, orders
        self.stdout = trio.lowlevel.FdStream(output)
        self._descriptor = os.pidfd_open(pid)
        self._status: int | None = None

    def send_signal(self, number: int) -> None:
        if self._status is None:
            signal.pidfd_send_signal(self._descriptor, number)

    async def wait(self) -> int:
        """Return its exit status, or minus the signal that ended it."""
        if self._status is None:
            await trio.lowlevel.wait_readable(self._descriptor)
            os.close(self._descriptor)
            await self._orders.send(json.dumps({"reap": self.pid}).encode())
            self._status = json.loads(await self._orders.recv(_ANSWER))
        return self._status


class Mortal(Steward):
    """A daemon that may end at any of its points."""

    def __init__(
        self, directory: Path, config: tuple[str, ...], orders: trio.socket.SocketType
    ) -> None:
        self.all_flags = ("--dev", "--acl", *config)
        super().__init__(directory, self.all_flags)
        self.config = config
        self.tally = Tally(directory / _TALLY)
        self._orders = orders

    async def _run(self, words: list[str], log: BinaryIO) -> Any:
        reading, writing = os.pipe()
        order = json.dumps({"words": words}).encode()
        rights = array.array("i", [writing, log.fileno()])
        await self._orders.sendmsg([order], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        os.close(writing)
        return Forked(json.loads(await self._orders.recv(_ANSWER)), reading, self._orders)

    async def start_with(self, flags: tuple[str, ...]) -> bool:
        """Stop it, and start it with others; tell whether it has come to be ready."""
        await self.stop()
        self.flags = flags
        return await self.start_or_die()

    async def start_or_die(self) -> bool:
        """Start it, unless it has ended where it was to end; tell whether it has come to be ready."""
        if self.tally.has_fired:
            return False
        try:
            await self.start()
        except AssertionError:
            if not self.tally.has_fired:
                raise
            await self.bury()
            return False
        return True

    def allocations_at_work(self) -> set[str]:
        """Return the allocations that have a process of any kind."""
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
        """Whether there is a daemon, or one that nobody has buried."""
        return self._process is not None

    async def bury(self) -> None:
        """Take note of its death, which must be that of a crash."""
        assert self._process is not None
        with trio.fail_after(HAPPENS_WITHIN):
            status = await self._process.wait()
        log = self.log.read_text()[-5000:]
        # The victim may have been its launcher: then it ends by itself, and says why.
        is_left_alone = status == EXIT_FAILURE and str(LauncherGone()) in log
        assert status == -9 or is_left_alone, f"it ended by itself; its log:\n{log}"
        await self.kill()


@asynccontextmanager
async def open_launcher(
    directory: Path, variables: Mapping[str, str]
) -> AsyncIterator[trio.socket.SocketType]:
    """Run what becomes daemons; yields where it takes orders."""
    Tally(directory / _TALLY)
    ours, theirs = trio.socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    words = [
        sys.executable,
        "-m",
        "tests.crash.launcher",
        str(directory / _TALLY),
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
