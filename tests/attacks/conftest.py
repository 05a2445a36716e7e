"""Fixtures of the attacks: a node that runs as root, and a file that belongs to root."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from daemon.launcher.client import Launcher
from daemon.runner.drivers import cgroup_v2
from daemon.runner.drivers.exec import ExecDriver
from daemon.runner.drivers.process_scan import ProcessScanner
from daemon.runner.drivers.raw_exec import RawExecDriver
from storage.store import Store
from tests.parts.runner.conftest import data_dir, discard, end_all_of, launcher
from tests.parts.runner.test_artifacts import site
from tests.parts.runner.world import World, open_world

__all__ = ["data_dir", "launcher", "site"]
CONTENT = "nobody but root writes here\n"


def is_untouched(victim: Path) -> bool:
    """Return whether a victim's file still has the content that root wrote."""
    return victim.read_text() == CONTENT


@pytest.fixture
async def node(store: Store, data_dir: Path, launcher: Launcher) -> AsyncIterator[World]:
    """A node with `exec` and `raw_exec`."""
    groups = cgroup_v2.find(data_dir) or ProcessScanner()
    drivers = {
        "exec": ExecDriver(groups, {}, launcher),
        "raw_exec": RawExecDriver(groups, {}, launcher),
    }
    async with open_world(store, data_dir, drivers=drivers) as opened:
        yield opened
    end_all_of(data_dir)
    discard(data_dir)


@pytest.fixture
def walls(launcher: Launcher) -> None:
    """Skip the test if the host does not permit the sandbox of `exec`."""
    if trouble := ExecDriver(ProcessScanner(), {}, launcher).fingerprint().trouble:
        pytest.skip(f"exec: {trouble}")


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """Return a file named `resolv.conf` that belongs to root, as its directory does."""
    file = tmp_path / "victim" / "resolv.conf"
    file.parent.mkdir()
    file.write_text(CONTENT)
    return file
