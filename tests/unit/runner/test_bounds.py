"""Where the kernel keeps groups that bound tasks, and what a node says of them."""

from pathlib import Path

from daemon.runner.drivers.bounds import Bounds, memberships, mounts
from storage.records.task import Resources

MOUNTS = """\
30 20 0:26 / /sys/fs/cgroup/unified rw shared:9 - cgroup2 cgroup2 rw
31 20 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
32 20 0:28 / /sys/fs/cgroup/my\\040memory rw - cgroup cgroup rw,memory
33 20 0:29 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids
"""


def test_groups_are_where_their_kind_is_mounted() -> None:
    memory, pids = Path("/sys/fs/cgroup/my memory"), Path("/sys/fs/cgroup/pids")
    assert mounts(MOUNTS) == {"memory": memory, "pids": pids}
    assert mounts("30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw") == {}


def test_a_process_has_a_group_of_each_kind() -> None:
    found = memberships("4:memory:/a/b\n2:cpu,cpuacct:/c\n0::/d\n")
    assert found == {"memory": "/a/b", "cpu": "/c", "cpuacct": "/c", "": "/d"}


def test_a_task_has_the_larger_of_its_bounds(tmp_path: Path) -> None:
    bounds = Bounds({"memory": tmp_path})
    assert bounds.enter("a", "main", Resources(memory_mb=64, memory_max_mb=128)) == []
    written = (tmp_path / "a.main/memory.limit_in_bytes").read_text()
    assert written == str(128 * 1024 * 1024)


def test_the_kernel_says_whether_it_has_killed(tmp_path: Path) -> None:
    bounds = Bounds({"memory": tmp_path})
    assert not bounds.killed("a", "main")
    (tmp_path / "a.main").mkdir()
    said = tmp_path / "a.main/memory.oom_control"
    said.write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 0\n")
    assert not bounds.killed("a", "main")
    said.write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    assert bounds.killed("a", "main")


def test_nothing_is_bounded_where_there_are_no_groups() -> None:
    bounds = Bounds({})
    assert bounds.enter("a", "main", Resources()) == []
    assert not bounds.killed("a", "main")
