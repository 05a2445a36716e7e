"""In a delegated unit the daemon moves to a subgroup, so that the unit's commands can run.

The test creates a group as systemd does for a unit with `Delegate=yes`. A process in it looks for
the groups of tasks, as the daemon does at its start.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon.runner.drivers import cgroup_v2

LOOKS = """
import sys
from pathlib import Path
from daemon.runner.drivers import cgroup_v2 as cgroup
found = cgroup.find(Path("/data"))
print(cgroup.own_path(Path("/proc/self/cgroup").read_text()), found.parent)
found.of("alloc", "task").prepare()
"""


@pytest.fixture
def unit() -> Iterator[Path]:
    """Yield a group of version 2 that belongs to the test."""
    mount = cgroup_v2.mount_point(Path("/proc/self/mountinfo").read_text())
    if mount is None:
        pytest.skip("needs control groups of version 2")
    made = mount / f"steward-test-{os.getpid()}.service"
    try:
        made.mkdir()
    except OSError as error:
        pytest.skip(f"needs permission to create control groups: {error}")
    yield made
    for place, _, _ in os.walk(made, topdown=False):
        os.rmdir(place)


def looks_from(unit: Path) -> list[str]:
    """Return the group of a daemon of this unit, and the group for its tasks."""
    enter = f'echo 0 >"{unit}/cgroup.procs" && exec "$@"'
    words = ["sh", "-c", enter, "sh", sys.executable, "-c", LOOKS]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()


def test_launcher_moves_to_a_subgroup_with_its_daemon(unit: Path) -> None:
    try:
        os.setxattr(unit, "trusted.delegate", b"1")
    except OSError as error:
        pytest.skip(f"needs permission to set a `trusted` attribute: {error}")
    with_launcher = f"from daemon.launcher.fork import begin\nchannel = begin()\n{LOOKS}"
    enter = f'echo 0 >"{unit}/cgroup.procs" && exec "$@"'
    told = f"{with_launcher}\nprint(Path(sys.argv[1]).read_text().split())"
    words = ["sh", "-c", enter, "sh", sys.executable, "-c", told, str(unit / "cgroup.procs")]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def commands_find_room(unit: Path) -> bool:
    """Return whether systemd could add a unit command's process to the group."""
    beside = unit / ".control"
    beside.mkdir()
    return (
        subprocess.run(["sh", "-c", f'echo 0 >"{beside}/cgroup.procs"'], capture_output=True)
    ).returncode == 0


def test_daemon_in_a_delegated_unit_moves_to_a_subgroup(unit: Path) -> None:
    try:
        os.setxattr(unit, "trusted.delegate", b"1")
    except OSError as error:
        pytest.skip(f"needs permission to set a `trusted` attribute: {error}")
    for _ in range(2):  # the second run is that of a restarted daemon
        own, tasks = looks_from(unit)
        assert own == f"/{unit.name}/main"
        assert tasks.startswith(f"{own}/steward-")
    assert commands_find_room(unit)


def test_daemon_without_delegation_stays_in_its_cgroup(unit: Path) -> None:
    own, tasks = looks_from(unit)
    assert own == f"/{unit.name}"
    assert tasks.startswith(f"{own}/steward-")


def test_daemon_does_not_move_next_to_threaded_cgroups(unit: Path) -> None:
    looks_from(unit)  # leaves the group of a task, as an older daemon did
    try:
        os.setxattr(unit, "trusted.delegate", b"1")
    except OSError as error:
        pytest.skip(f"needs permission to set a `trusted` attribute: {error}")
    own, tasks = looks_from(unit)
    assert own == f"/{unit.name}"
    assert tasks.startswith(f"{own}/steward-")
