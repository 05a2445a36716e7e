"""Cgroups of version 1 that limit tasks: their paths and contents."""

import os
import shutil
from pathlib import Path

from daemon.runner.drivers.cgroup_v1 import CgroupV1, memberships, mounts
from daemon.runner.drivers.limits import ResourceLimits, limits_of
from storage.records.task import Resources

MOUNTS = """\
30 20 0:26 / /sys/fs/cgroup/unified rw shared:9 - cgroup2 cgroup2 rw
31 20 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
32 20 0:28 / /sys/fs/cgroup/my\\040memory rw - cgroup cgroup rw,memory
33 20 0:29 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids
"""
MEGABYTE = 1024 * 1024


def groups(*controllers: str, at: Path) -> CgroupV1:
    """Return groups of controllers, each in a directory of its name."""
    return CgroupV1({name: at / name for name in controllers}, {})


def test_cgroup_v1_mounts_are_found_per_controller() -> None:
    memory, pids = Path("/sys/fs/cgroup/my memory"), Path("/sys/fs/cgroup/pids")
    shared = Path("/sys/fs/cgroup/cpu,cpuacct")
    assert mounts(MOUNTS) == {"memory": memory, "pids": pids, "cpu": shared, "cpuacct": shared}
    assert mounts("30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw") == {}


def test_process_has_a_cgroup_of_each_controller() -> None:
    found = memberships("4:memory:/a/b\n2:cpu,cpuacct:/c\n0::/d\n")
    assert found == {"memory": "/a/b", "cpu": "/c", "cpuacct": "/c", "": "/d"}


def test_task_has_the_larger_of_its_memory_limits(tmp_path: Path) -> None:
    bounds = groups("memory", at=tmp_path)
    limits = limits_of(Resources(memory_mb=64, memory_max_mb=128), ())
    bounds.prepare("a", "main", limits)
    written = (tmp_path / "memory/a.main/memory.limit_in_bytes").read_text()
    assert written == str(128 * MEGABYTE)
    assert bounds.entries("a", "main", limits) == [f"{tmp_path}/memory/a.main/tasks"]
    assert bounds.present("a", "main") == []  # the kernel would have made the file


def test_task_has_its_cpu_share_and_process_limit(tmp_path: Path) -> None:
    bounds = groups("cpu", "pids", at=tmp_path)
    bounds.prepare("a", "main", limits_of(Resources(cpu=250), processes=4096))
    assert (tmp_path / "cpu/a.main/cpu.shares").read_text() == "250"
    assert (tmp_path / "pids/a.main/pids.max").read_text() == "4096"


def cpusets(root: Path, *names: str) -> CgroupV1:
    """Return cpuset groups with the files that the kernel creates; the root has four cores."""
    for place in (root, root / "cpuset", *(root / "cpuset" / name for name in names)):
        place.mkdir()
        for name, text in (("cpuset.cpus", "0-3\n"), ("cpuset.mems", "0\n")):
            (place / name).write_text(text if place == root else "\n")
    return groups("cpuset", at=root)


def test_task_is_pinned_to_its_reserved_cores(tmp_path: Path) -> None:
    bounds = cpusets(tmp_path / "root", "a.main")
    limits = limits_of(Resources(cores=2), (1, 3), mhz=4000)
    bounds.prepare("a", "main", limits)
    group = tmp_path / "root/cpuset/a.main"
    assert (group / "cpuset.cpus").read_text() == "1,3"
    assert (group / "cpuset.mems").read_text() == "0\n"
    assert limits.shares == 4000
    assert bounds.entries("a", "main", limits) == [f"{group}/tasks"]


def test_tasks_without_exclusive_cores_avoid_those_of_others(tmp_path: Path) -> None:
    bounds = cpusets(tmp_path / "root", "a.main", "b.main", "shared")
    shared = tmp_path / "root/cpuset/shared"
    cores = shared / "cpuset.cpus"
    bounds.prepare("c", "main", ResourceLimits())
    assert bounds.entries("c", "main", ResourceLimits()) == [f"{shared}/tasks"]
    assert (cores.read_text(), (shared / "cpuset.mems").read_text()) == ("0-3\n", "0\n")
    bounds.prepare("a", "main", ResourceLimits(cores=(1,)))
    assert cores.read_text() == "0,2,3"
    bounds.prepare("b", "main", ResourceLimits(cores=(0, 2)))
    assert cores.read_text() == "3"
    (tmp_path / "root/cpuset/b.main/cpuset.cpus").write_text("0,2-3")
    # If all cores are reserved, tasks without reserved cores share all of them.
    bounds.prepare("d", "main", ResourceLimits())
    assert cores.read_text() == "0,1,2,3"
    shutil.rmtree(tmp_path / "root/cpuset/b.main")  # as the kernel does
    bounds.remove("b", "main")
    assert cores.read_text() == "0,2,3"


def test_delegated_cpuset_accepts_processes(tmp_path: Path) -> None:
    bounds = cpusets(tmp_path / "root")
    bounds.delegate((os.getuid(), os.getgid()))
    base = tmp_path / "root/cpuset"
    assert (base / "cpuset.cpus").read_text() == "0-3\n"
    assert (base / "cpuset.mems").read_text() == "0\n"


def test_controllers_with_a_common_mount_are_entered_once(tmp_path: Path) -> None:
    bounds = CgroupV1({"cpu": tmp_path, "cpuacct": tmp_path}, {})
    assert bounds.entries("a", "main", ResourceLimits()) == [f"{tmp_path}/a.main/tasks"]


def test_memory_kills_are_read_from_the_kernel(tmp_path: Path) -> None:
    bounds = groups("memory", at=tmp_path)
    assert not bounds.killed("a", "main")
    (tmp_path / "memory/a.main").mkdir(parents=True)
    said = tmp_path / "memory/a.main/memory.oom_control"
    said.write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 0\n")
    assert not bounds.killed("a", "main")
    said.write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    assert bounds.killed("a", "main")


def test_resource_usage_is_read_from_the_kernel(tmp_path: Path) -> None:
    bounds = groups("memory", "cpuacct", at=tmp_path)
    assert bounds.account("a", "main") is None
    for name, text in (
        ("cpuacct/a.main/cpuacct.usage_user", "7000\n"),
        ("cpuacct/a.main/cpuacct.usage_sys", "500\n"),
        ("memory/a.main/memory.usage_in_bytes", "4096\n"),
        ("memory/a.main/memory.max_usage_in_bytes", "8192\n"),
        ("memory/a.main/memory.stat", "cache 1\ntotal_rss 2048\ntotal_cache 1024\n"),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    account = bounds.account("a", "main")
    assert account is not None
    assert (account.user, account.system) == (7000, 500)
    memory = account.memory
    assert (memory.rss, memory.cache, memory.usage, memory.max_usage) == (2048, 1024, 4096, 8192)


def test_host_without_cgroups_enforces_nothing() -> None:
    bounds = groups(at=Path())
    bounds.prepare("a", "main", ResourceLimits())
    assert bounds.entries("a", "main", ResourceLimits()) == []
    assert not bounds.killed("a", "main")
    assert bounds.account("a", "main") is None


def test_shared_cores_follow_the_allocations(tmp_path: Path) -> None:
    bounds = cpusets(tmp_path / "root", "b.main", "shared")
    cores = tmp_path / "root/cpuset/shared/cpuset.cpus"
    bounds.prepare("a", "main", ResourceLimits())
    bounds.prepare("b", "main", ResourceLimits(cores=(0, 2)))
    assert cores.read_text() == "1,3"
    shutil.rmtree(tmp_path / "root/cpuset/b.main")  # as the kernel does
    bounds.remove_all("b")
    assert cores.read_text() == "0,1,2,3"
    for file in cores.parent.iterdir():
        file.unlink()
    bounds.remove_all("a")  # the last task without reserved cores
    assert not cores.parent.exists()
