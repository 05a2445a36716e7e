"""Reports about a process from the kernel's texts."""

import os
from collections.abc import Callable

import pytest

from daemon.confinement import report
from daemon.launcher.hardening import called, disable_core_dumps

_SET_DUMPABLE = 4  # linux/prctl.h

MOUNTS = """\
22 1 0:20 / / rw,relatime - ext4 /dev/vda rw
23 22 0:21 / /proc rw,nosuid,nodev,noexec - proc proc rw
24 22 0:22 / /var/lib/steward/tasks rw,nosuid,nodev,relatime shared:1 - ext4 /dev/vda rw
25 22 0:23 / /usr ro,relatime - ext4 /dev/vda rw
26 22 0:24 / /with\\040space rw,relatime - ext4 /dev/vda rw
"""


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("/var/lib/steward/tasks", "/var/lib/steward/tasks is mounted with nosuid and nodev"),
        (
            "/var/lib/steward/tasks/alloc",
            "/var/lib/steward/tasks/alloc is mounted with nosuid and nodev",
        ),
        (
            "/var/lib/steward/tasks2",
            "/var/lib/steward/tasks2 is mounted without nosuid and nodev",
        ),
        ("/home", "/home is mounted without nosuid and nodev"),
    ],
)
def test_innermost_mount_of_a_path_decides(place: str, reason: str) -> None:
    finding = report.mount_flags(place, MOUNTS)
    assert finding == ("nosuid", "without" not in reason, reason)


def test_upper_mount_of_the_same_path_decides() -> None:
    over = "27 22 0:25 / /var/lib/steward/tasks rw,nosuid - tmpfs tmpfs rw\n"
    finding = report.mount_flags("/var/lib/steward/tasks", MOUNTS + over)
    assert finding.reason == "/var/lib/steward/tasks is mounted without nodev"


def test_permissive_mounts_are_reported() -> None:
    assert report.loose_mounts(MOUNTS) == ["/", "/with space"]


def allow_debuggers() -> None:
    called("prctl", _SET_DUMPABLE, 1, 0, 0, 0)


@pytest.mark.parametrize(
    ("prepare", "holds"), [(disable_core_dumps, True), (allow_debuggers, False)]
)
def test_memory_of_a_launcher_of_another_user_is_reported(
    prepare: Callable[[], None], *, holds: bool
) -> None:
    ready, tell = os.pipe()
    wait, let_go = os.pipe()
    if (pid := os.fork()) == 0:
        os.close(let_go)
        if os.geteuid() == 0:
            os.setresuid(65534, 65534, 65534)
        prepare()
        os.write(tell, b"x")
        os.read(wait, 1)
        os._exit(0)
    try:
        os.read(ready, 1)
        found = {finding.rule: finding.holds for finding in report.of_launcher(pid)}
    finally:
        for one in (ready, tell, wait, let_go):
            os.close(one)
        os.waitpid(pid, 0)
    assert found["memory"] == holds
