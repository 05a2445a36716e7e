"""Sandboxes for git on this host, for tests."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from daemon.config.data_directory import alloc_dir
from daemon.runner.drivers import cgroup_v2
from daemon.runner.drivers.exec import ExecDriver
from daemon.runner.drivers.process_scan import ProcessScanner
from daemon.runner.setup.artifacts.git_sandbox import GitSandbox
from tests import launchers
from tests.parts.runner.conftest import discard, end_all_of
from tests.parts.runner.world import unique_ids

UIDS = range(81_000, 81_010)


class Sandboxes(GitSandbox):
    """Opens sandboxes; `present` are those that are open, and `alloc_dir` has their directories."""

    present: set[str]
    alloc_dir: Path


@asynccontextmanager
async def sandboxes(data_dir: Path, *, seconds: float = 600) -> AsyncIterator[Sandboxes]:
    """Open a factory of sandboxes in a directory; skip the test on a host without sandboxes."""
    directory = alloc_dir(data_dir)
    own = (UIDS.start, UIDS.stop - 1) if os.geteuid() == 0 else None
    policy = msgspec.structs.replace(launchers.EVERYTHING, own_uids=own, users=[], usual="nobody")
    async with launchers.open_launcher(directory, policy) as launcher:
        if launcher.walls.walls:
            pytest.skip(launcher.walls.walls)
        driver = ExecDriver(cgroup_v2.find(data_dir) or ProcessScanner(), {}, launcher)
        present: set[str] = set()
        made = Sandboxes(launcher, driver, str(directory), unique_ids(), present, seconds=seconds)
        made.present, made.alloc_dir = present, directory
        yield made
    end_all_of(data_dir)
    discard(data_dir)
