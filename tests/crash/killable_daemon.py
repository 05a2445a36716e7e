"""A daemon that can be killed at any of its points, forked by its own server (`fork_server.py`)."""

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import BinaryIO

import trio

from daemon.config.data_directory import alloc_dir
from daemon.launcher.client import LauncherGone
from daemon.process.main import EXIT_FAILURE
from tests import forks
from tests.crash.point_counters import PointCounters
from tests.forks import Forked, ForkServer, environment
from tests.service.daemon import Steward, _environ
from tests.time_limits import HAPPENS_WITHIN

ID_SIZE = 36  # characters of an allocation ID
_COUNTERS = "points"


class KillableDaemon(Steward):
    """A daemon that can be killed at any of its points."""

    def __init__(
        self,
        directory: Path,
        config: tuple[str, ...],
        server: ForkServer,
        variables: Mapping[str, str],
    ) -> None:
        self.all_flags = ("--dev", "--acl", *config)
        super().__init__(directory, self.all_flags)
        self.config = config
        self.counters = PointCounters(directory / _COUNTERS)
        self._server, self._variables = server, variables

    async def _run(self, words: list[str], log: BinaryIO, before: tuple[str, ...] = ()) -> Forked:
        return await forks.open_process(
            words,
            env=environment(**self._variables),
            stdout=forks.PIPE,
            stderr=log,
            origin=lambda: self._server,
        )

    async def start_with(self, flags: tuple[str, ...]) -> bool:
        """Restart the daemon with other arguments; return whether it became ready."""
        await self.stop()
        self.flags = flags
        return await self.start_or_die()

    async def start_or_die(self) -> bool:
        """Start the daemon, unless it has died at its point; return whether it became ready."""
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
        """Return whether the daemon runs, or has died but was not reaped yet."""
        return self._process is not None

    async def bury(self) -> None:
        """Reap the daemon, and check that it was killed."""
        assert self._process is not None
        with trio.fail_after(HAPPENS_WITHIN):
            status = await self._process.wait()
        log = self.log.read_text()[-5000:]
        # The kill may have hit its launcher. Then the daemon exits and logs the reason.
        is_left_alone = status == EXIT_FAILURE and str(LauncherGone()) in log
        assert status == -9 or is_left_alone, f"the daemon ended without a kill; its log:\n{log}"
        await self.kill()


@asynccontextmanager
async def open_fork_server(
    directory: Path, variables: Mapping[str, str]
) -> AsyncIterator[ForkServer]:
    """Run a fork server with these variables while the block runs."""
    counters = directory / _COUNTERS
    PointCounters(counters)
    server = ForkServer("tests.crash.fork_server", str(counters), env=environment(**variables))
    try:
        yield server
    finally:
        server.close()
