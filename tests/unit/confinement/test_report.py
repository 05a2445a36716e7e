"""What the texts of the kernel say about a process."""

import pytest

from daemon.confinement import report

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
        ("/var/lib/steward/tasks", "/var/lib/steward/tasks is mounted so"),
        ("/var/lib/steward/tasks/alloc", "/var/lib/steward/tasks/alloc is mounted so"),
        (
            "/var/lib/steward/tasks2",
            "/var/lib/steward/tasks2 is mounted without nosuid and nodev",
        ),
        ("/home", "/home is mounted without nosuid and nodev"),
    ],
)
def test_the_mount_nearest_to_a_place_decides(place: str, reason: str) -> None:
    finding = report.mount_flags(place, MOUNTS)
    assert finding == ("nosuid", "without" not in reason, reason)


def test_a_mount_over_another_decides() -> None:
    over = "27 22 0:25 / /var/lib/steward/tasks rw,nosuid - tmpfs tmpfs rw\n"
    finding = report.mount_flags("/var/lib/steward/tasks", MOUNTS + over)
    assert finding.reason == "/var/lib/steward/tasks is mounted without nodev"


def test_loose_mounts_are_writable_and_run_set_user_id_files() -> None:
    assert report.loose_mounts(MOUNTS) == ["/", "/with space"]
