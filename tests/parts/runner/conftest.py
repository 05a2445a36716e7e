"""Fixtures of the runner tests: a node, and both mechanisms that group the processes of a task."""

import os
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from daemon.config.data_directory import alloc_dir
from daemon.launcher.client import Launcher
from daemon.launcher.secrets_tmpfs import mounted
from daemon.runner.drivers import cgroup_v2
from daemon.runner.drivers.mock import MockDriver
from daemon.runner.drivers.process_group import ProcessGroups
from daemon.runner.drivers.process_scan import ProcessScanner
from daemon.runner.drivers.raw_exec import RawExecDriver
from storage.store import Store
from tests import launchers
from tests.parts.runner.world import Pipe, World, open_world


@pytest.fixture
def data_dir(tmp_path: Path) -> Iterator[Path]:
    """Return a directory; kill the processes that a test leaves in it."""
    yield tmp_path
    end_all_of(tmp_path)
    discard(tmp_path / "alloc")
    unmount_all_below(tmp_path)
    shutil.rmtree(tmp_path, ignore_errors=True)


def end_all_of(data_dir: Path) -> None:
    """Kill every process that names the directory in its environment."""
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            if f"={data_dir}/".encode() in Path(f"/proc/{name}/environ").read_bytes():
                os.kill(int(name), 9)
        except OSError:
            continue


def unmount_all_below(data_dir: Path) -> None:
    """Unmount the mounts that a runner has left for the next one."""
    for place in mounted(str(data_dir)):
        subprocess.run(["umount", "-l", place], check=True)


def discard(owner: Path) -> None:
    """Remove the control groups of a directory, once their killed processes have ended."""
    groups = cgroup_v2.find(owner)
    for _ in range(100):
        if groups is None or groups.release():
            return
        time.sleep(0.01)


@pytest.fixture
async def launcher(data_dir: Path) -> AsyncIterator[Launcher]:
    """A launcher for the data directory."""
    async with launchers.open_launcher(alloc_dir(data_dir)) as opened:
        yield opened


@pytest.fixture
async def world(store: Store, data_dir: Path, launcher: Launcher) -> AsyncIterator[World]:
    """A node with the host's drivers and a mock driver."""
    groups = cgroup_v2.find(data_dir) or ProcessScanner()
    drivers = {"raw_exec": RawExecDriver(groups, {}, launcher), "mock_driver": MockDriver()}
    async with open_world(store, data_dir, drivers=drivers) as opened:
        yield opened
    end_all_of(data_dir)
    discard(data_dir)


@pytest.fixture(params=["cgroup", "scan"])
def groups(request: pytest.FixtureRequest, data_dir: Path) -> Iterator[ProcessGroups]:
    """Both mechanisms that group the processes of a task."""
    found = cgroup_v2.find(data_dir) if request.param == "cgroup" else ProcessScanner()
    if found is None:
        pytest.skip("this host permits no new control groups")
    yield found
    end_all_of(data_dir)
    discard(data_dir)


@pytest.fixture
async def held_world(
    store: Store, data_dir: Path, groups: ProcessGroups, launcher: Launcher
) -> AsyncIterator[World]:
    """A node with each of the mechanisms that `groups` provides."""
    drivers = {"raw_exec": RawExecDriver(groups, {}, launcher)}
    async with open_world(store, data_dir, drivers=drivers) as opened:
        yield opened


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[Pipe]:
    """A pipe from a task to the test."""
    opened = Pipe(tmp_path / "pipe")
    yield opened
    opened.close()


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
