"""Names of jobs, tasks and processes that could break format strings or parsers of `/proc`."""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from daemon.confinement import report
from daemon.launcher import cgroups, secrets_tmpfs
from daemon.runner import fingerprint, nosuid_mount
from daemon.runner.core import resource_usage
from daemon.runner.drivers import cgroup_v1, cgroup_v2
from daemon.scheduler.alloc_names import AllocNameIndex
from tests.parts.launcher.test_directories import needs_root

_DETACH = 2
_ODD = "\r\x0b\x1c\x85\u2028\xa0end"  # separators for Python, but not for the kernel
_LINES = f"""\
30 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
31 30 0:50 / /{_ODD} rw,nosuid,relatime - tmpfs steward rw
32 30 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw
33 30 0:27 / /sys/fs/cgroup/cpu rw,nosuid - cgroup cgroup rw,cpu
"""


@pytest.mark.parametrize("name", ["{", "{0.__class__}", "{:>99999999999}", "{x}", "}"])
def test_job_name_is_not_used_as_a_format_string(name: str) -> None:
    names = AllocNameIndex(name, name, [])
    assert names.next() == f"{name}.{name}[0]"
    assert names.canaries(1, existing=[], to_replace=[]) == [f"{name}.{name}[1]"]


def test_mount_points_may_have_any_characters() -> None:
    assert fingerprint.volume(_LINES, Path("/var")) == "/dev/vda"
    assert fingerprint.volume(_LINES, Path(f"/{_ODD}/x")) == "steward"
    assert cgroup_v2.mount_point(_LINES) == Path("/sys/fs/cgroup")
    assert cgroup_v1.mounts(_LINES)["cpu"] == Path("/sys/fs/cgroup/cpu")
    assert report.loose_mounts(_LINES) == ["/"]


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """Mount a tmpfs of Steward in the directory of a task with an odd name."""
    place = tmp_path / f"{_ODD}/secrets"
    place.mkdir(parents=True)
    library = ctypes.CDLL(None, use_errno=True)
    if library.mount(b"steward", os.fsencode(place), b"tmpfs", 0, None):
        pytest.skip(f"this host permits no mounts: {os.strerror(ctypes.get_errno())}")
    yield place
    library.umount2(os.fsencode(place), _DETACH)


@needs_root
def test_mount_below_a_task_with_any_name_hides_no_other_mount(mounted: Path) -> None:
    assert secrets_tmpfs.mounted(str(mounted.parent.parent)) == [str(mounted)]
    assert str(mounted) in {mount.place for mount in nosuid_mount.mounts()}
    assert report.mounts()


@pytest.fixture(params=[b"a\xff", b"a\rTgid:\t1", b"\x85Tgid:\t1"])
def process(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program whose process has an odd name."""
    program = os.fsencode(tmp_path) + b"/" + request.param
    shutil.copy("/bin/sleep", program)
    with subprocess.Popen([program, "1000"]) as running:
        try:
            yield running
        finally:
            running.kill()


def test_process_with_any_name_is_measured(process: subprocess.Popen[bytes]) -> None:
    found = resource_usage.sample(process.pid)
    assert found is not None
    assert found.rss > 0


def test_process_with_any_name_is_killed(process: subprocess.Popen[bytes]) -> None:
    with closing(open(f"/proc/{process.pid}/cgroup", encoding="utf-8")) as lines:
        own = next((line[3:].rstrip("\n") for line in lines if line.startswith("0::")), None)
    if own is None:
        pytest.skip("this host has no cgroup v2")
    cgroups._kill(str(process.pid), f"/sys/fs/cgroup{own}")
    assert process.wait(timeout=30) == -9
