"""Limits by control groups of version 2, on a tree of files that behaves like the kernel's."""

from errno import EBUSY, ENOENT
from pathlib import Path

import msgspec
import pytest

from daemon.runner.drivers.cgroup_v2_limits import CgroupFiles, CgroupMount, CgroupV2Enforcer, find
from daemon.runner.drivers.limits import limits_of
from storage.records.task import Resources

MEGABYTE = 1024 * 1024
MOUNT = "/sys/fs/cgroup"
UNIT = f"{MOUNT}/system.slice/steward.service"
LIMITS = limits_of(Resources(cpu=500, memory_mb=64, memory_max_mb=96), processes=4096)
OF = {
    "cpu": {"cpu.weight": "100"},
    "cpuset": {"cpuset.cpus": "", "cpuset.cpus.effective": "0-3\n"},
    "memory": {
        "memory.max": "max",
        "memory.low": "0",
        "memory.swap.max": "max",
        "memory.current": "0",
        "memory.events": "oom 0\noom_kill 0\n",
        "memory.stat": "anon 0\nfile 0\n",
    },
    "pids": {"pids.max": "max"},
}


class Kernel(CgroupFiles):
    """The tree: a group has the files of the controllers that its parent delegates."""

    def __init__(self, controllers: str = "cpu cpuset memory pids") -> None:
        self.files: dict[str, str] = {}
        self.delegated: set[str] = set()
        self.inhabited: set[str] = set()
        self._new(MOUNT, controllers.split())

    def _new(self, path: str, controllers: list[str]) -> None:
        self.files[f"{path}/cgroup.controllers"] = " ".join(controllers)
        self.files[f"{path}/cgroup.subtree_control"] = ""
        self.files[f"{path}/cgroup.procs"] = ""
        if path != MOUNT:
            self.files[f"{path}/cgroup.type"] = "domain"
            for name in controllers:
                self.files |= {f"{path}/{file}": text for file, text in OF[name].items()}

    def read(self, path: str) -> str:
        return self.files.get(path, "")

    def exists(self, path: str) -> bool:
        return path in self.files or f"{path}/cgroup.procs" in self.files

    def make(self, path: str) -> None:
        above = path.rpartition("/")[0]
        if not self.exists(above):
            raise FileNotFoundError(ENOENT, "No such file or directory")
        if not self.exists(path):
            self._new(path, self.files[f"{above}/cgroup.subtree_control"].split())

    def make_all(self, path: str) -> None:
        """Create a group as the owner of the tree, with every controller."""
        for place in reversed([path, *(str(parent) for parent in Path(path).parents)]):
            if place.startswith(f"{MOUNT}/"):
                self.make(place)
                controllers = self.files[f"{MOUNT}/cgroup.controllers"]
                self._new(place, controllers.split())
                if place != path:
                    self.files[f"{place}/cgroup.subtree_control"] = controllers

    def remove(self, path: str) -> None:
        below = [
            file for file in self.files if file.startswith(f"{path}/") and "cgroup.procs" in file
        ]
        if below == [f"{path}/cgroup.procs"] and path not in self.inhabited:
            self.files = {k: v for k, v in self.files.items() if not k.startswith(f"{path}/")}

    def write(self, path: str, text: str) -> None:
        if path not in self.files:
            raise FileNotFoundError(ENOENT, "No such file or directory")
        group, _, file = path.rpartition("/")
        if file != "cgroup.subtree_control":
            self.files[path] = text
            return
        name = text.removeprefix("+")
        if group in self.inhabited and group != MOUNT:
            raise OSError(EBUSY, "Device or resource busy")
        if name not in self.files[f"{group}/cgroup.controllers"].split():
            raise FileNotFoundError(ENOENT, "No such file or directory")
        self.files[path] = " ".join([*self.files[path].split(), name])

    def groups(self, path: str) -> list[str]:
        marks = [
            file.removesuffix("/cgroup.procs") for file in self.files if "cgroup.procs" in file
        ]
        return [mark for mark in marks if mark.rpartition("/")[0] == path]

    def is_delegated(self, path: str) -> bool:
        return path in self.delegated


def delegated(controllers: str = "cpu cpuset memory pids") -> Kernel:
    """Return a tree with a unit that systemd has delegated, and the daemon in a subgroup."""
    kernel = Kernel(controllers)
    kernel.make_all(UNIT)
    kernel.make(f"{UNIT}/daemon")
    kernel.delegated.add(UNIT)
    kernel.inhabited.add(f"{UNIT}/daemon")
    return kernel


def opened(kernel: Kernel, own: str = "/system.slice/steward.service/daemon") -> CgroupV2Enforcer:
    found = find(Path("/data"), "", CgroupMount(MOUNT, own), kernel)
    assert isinstance(found, CgroupV2Enforcer), found
    return found


def test_delegated_unit_enforces_all_limits() -> None:
    found = opened(delegated())
    assert sorted(found.held) == ["cores", "cpu", "memory", "processes"]
    assert found.missing == {}
    assert found.parent.startswith("/system.slice/steward.service/steward-limits-")


def test_task_is_limited_to_its_resources() -> None:
    kernel = delegated()
    found = opened(kernel)
    resources = Resources(memory_mb=64, memory_max_mb=96)
    found.prepare("a", "main", limits_of(resources, (1, 3), 6000, 4096))
    group = f"{MOUNT}{found.parent}/a.main"
    assert kernel.files[f"{group}/cpu.weight"] == "600"
    assert kernel.files[f"{group}/cpuset.cpus"] == "1,3"
    assert kernel.files[f"{group}/memory.max"] == str(96 * MEGABYTE)
    assert kernel.files[f"{group}/memory.low"] == str(64 * MEGABYTE)
    assert kernel.files[f"{group}/memory.swap.max"] == "0"
    assert kernel.files[f"{group}/pids.max"] == "4096"
    assert found.of("a", "main").label == group
    assert found.entries("a", "main", LIMITS) == []  # the group that kills the task also limits it


def test_task_without_exclusive_cores_runs_on_all() -> None:
    kernel = delegated()
    found = opened(kernel)
    found.prepare("a", "main", LIMITS)
    shared = f"{MOUNT}{found.parent}/shared"
    assert kernel.files[f"{shared}/a.main/cpuset.cpus"] == ""
    assert kernel.files[f"{shared}/cpuset.cpus"] == "0,1,2,3"


def test_tasks_without_exclusive_cores_avoid_those_of_others() -> None:
    kernel = delegated()
    found = opened(kernel)
    shared = f"{MOUNT}{found.parent}/shared"

    def prepare(name: str, *cores: int) -> str:
        found.prepare(name, "main", limits_of(Resources(), cores))
        return found.of(name, "main").label

    def end(name: str) -> None:
        kernel.remove(found.of(name, "main").label)
        found.remove(name, "main")

    assert prepare("a") == f"{shared}/a.main"
    assert prepare("b", 1) == f"{MOUNT}{found.parent}/b.main"
    assert kernel.files[f"{shared}/cpuset.cpus"] == "0,2,3"
    prepare("c", 0, 3)
    assert kernel.files[f"{shared}/cpuset.cpus"] == "2"
    # If all cores are reserved, tasks without reserved cores share all of them.
    prepare("d", 2)
    assert kernel.files[f"{shared}/cpuset.cpus"] == "0,1,2,3"
    end("b")
    end("d")
    assert kernel.files[f"{shared}/cpuset.cpus"] == "1,2"
    # The next daemon takes over the existing groups.
    again = opened(kernel)
    again.prepare("e", "main", limits_of(Resources(), (1,)))
    assert kernel.files[f"{shared}/cpuset.cpus"] == "2"
    assert again.of("a", "main").label == f"{shared}/a.main"
    for name in ("a", "c", "e"):
        end(name)
    assert not kernel.exists(MOUNT + found.parent)


def test_all_tasks_have_the_same_parent_without_a_cpuset() -> None:
    kernel = delegated("cpu pids")
    found = opened(kernel)
    found.prepare("a", "main", LIMITS)
    assert found.of("a", "main").label == f"{MOUNT}{found.parent}/a.main"


def test_missing_controllers_enforce_nothing_and_are_reported() -> None:
    kernel = delegated("cpu pids")
    found = opened(kernel)
    assert found.held["cpu"] == "cgroup v2 (cpu)"
    assert found.held["memory"].startswith("rlimit")
    assert set(found.missing) == {"cores"}
    found.prepare("a", "main", LIMITS)
    assert found.account("a", "main") is None


def test_top_cgroup_is_removed_with_the_last_task_and_recreated_with_the_next() -> None:
    kernel = delegated()
    found = opened(kernel)
    base = f"{MOUNT}{found.parent}"
    assert not kernel.exists(base)
    for name in ("a", "b"):
        found.prepare(name, "main", LIMITS)
    kernel.remove(found.of("a", "main").label)
    found.remove("a", "main")
    assert kernel.exists(base)
    kernel.remove(found.of("b", "main").label)
    found.remove("b", "main")
    assert not kernel.exists(base)
    found.prepare("c", "main", LIMITS)
    assert kernel.files[f"{base}/shared/c.main/pids.max"] == "4096"


def test_memory_kills_and_usage_are_read_from_the_kernel() -> None:
    kernel = delegated()
    found = opened(kernel)
    found.prepare("a", "main", LIMITS)
    group = found.of("a", "main").label
    assert not found.killed("a", "main")
    kernel.files |= {
        f"{group}/memory.events": "low 0\nhigh 0\nmax 3\noom 1\noom_kill 1\n",
        f"{group}/memory.current": "8192\n",
        f"{group}/memory.peak": "9000\n",
        f"{group}/memory.stat": "anon 4096\nfile 2048\nkernel 512\n",
        f"{group}/cpu.stat": "usage_usec 7\nuser_usec 5\nsystem_usec 2\n",
    }
    assert found.killed("a", "main")
    account = found.account("a", "main")
    assert account is not None
    assert (account.user, account.system) == (5000, 2000)
    memory = account.memory
    assert (memory.rss, memory.cache, memory.usage, memory.max_usage) == (4096, 2048, 8192, 9000)
    assert (memory.kernel_usage, memory.swap) == (512, 0)
    del kernel.files[f"{group}/memory.peak"]  # as in a kernel before 5.19
    older = found.account("a", "main")
    assert older is not None
    assert older.memory == msgspec.structs.replace(memory, max_usage=0)


# ---- hosts without limits ----------------------------------------------------------------------


def test_cgroup_that_contains_the_daemon_cannot_be_divided() -> None:
    kernel = Kernel()
    kernel.make_all(UNIT)
    kernel.inhabited.add(UNIT)
    kernel.delegated.add(UNIT)
    found = find(Path("/data"), "", CgroupMount(MOUNT, "/system.slice/steward.service"), kernel)
    assert isinstance(found, str)
    assert "DelegateSubgroup" in found
    # An explicit setting gets an error that states why it is impossible.
    named = find(Path("/data"), "/system.slice/steward.service", CgroupMount(MOUNT, "/"), kernel)
    assert isinstance(named, str)
    assert "the cgroup contains processes" in named
    assert [file for file in kernel.files if "steward-limits" in file] == []


def test_cgroup_can_be_named() -> None:
    kernel = Kernel()
    kernel.make_all(f"{MOUNT}/tasks.slice")
    found = find(Path("/data"), "/tasks.slice", CgroupMount(MOUNT, "/user.slice/x.scope"), kernel)
    assert isinstance(found, CgroupV2Enforcer)
    assert found.parent.startswith("/tasks.slice/steward-limits-")
    missing = find(Path("/data"), "none.slice", CgroupMount(MOUNT, "/"), kernel)
    assert isinstance(missing, str)
    assert f"{MOUNT}/none.slice" in missing


@pytest.mark.parametrize(
    "own", ["/system.slice/steward.service", "/system.slice/steward.service/main"]
)
def test_task_unit_next_to_the_daemon_unit_is_found(own: str) -> None:
    kernel = Kernel()
    kernel.make_all(UNIT)
    kernel.inhabited.add(UNIT)
    beside = f"{UNIT.removesuffix('.service')}-tasks.service"
    kernel.make_all(f"{beside}/holder")
    kernel.inhabited.add(f"{beside}/holder")
    kernel.delegated |= {UNIT, beside}
    found = opened(kernel, own)
    assert found.parent.startswith("/system.slice/steward-tasks.service/steward-limits-")
    assert sorted(found.held) == ["cores", "cpu", "memory", "processes"]


def test_unit_that_contained_the_daemon_delegates_no_controllers() -> None:
    kernel = Kernel()
    kernel.make_all(f"{UNIT}/main")
    kernel.inhabited.add(f"{UNIT}/main")
    kernel.delegated.add(UNIT)
    found = find(
        Path("/data"), "", CgroupMount(MOUNT, "/system.slice/steward.service/main"), kernel
    )
    assert isinstance(found, str)


def test_undelegated_cgroup_is_not_used() -> None:
    kernel = Kernel()
    kernel.make_all(UNIT)
    kernel.make_all(f"{UNIT.removesuffix('.service')}-tasks.service")
    found = find(Path("/data"), "", CgroupMount(MOUNT, "/system.slice/steward.service"), kernel)
    assert isinstance(found, str)


def test_real_root_cgroup_can_be_divided() -> None:
    kernel = Kernel()
    kernel.inhabited.add(MOUNT)
    assert opened(kernel, "/").parent.startswith("/steward-limits-")
    kernel.files[f"{MOUNT}/cgroup.type"] = "domain"  # only the namespace root of a container
    assert isinstance(find(Path("/data"), "", CgroupMount(MOUNT, "/"), kernel), str)


@pytest.mark.parametrize("controllers", ["", "hugetlb"])
def test_cgroup_tree_without_controllers_enforces_nothing(controllers: str) -> None:
    kernel = Kernel("")
    kernel.files[f"{MOUNT}/cgroup.controllers"] = controllers
    found = find(Path("/data"), "", CgroupMount(MOUNT, "/"), kernel)
    assert found == f"cgroup v2 has none of the controllers cpu, cpuset, memory, pids at {MOUNT}"
    assert find(Path("/data"), "", None, kernel) == "no cgroup v2 is mounted"


def test_child_cgroups_are_the_directories(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    (tmp_path / "cgroup.procs").touch()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    files = CgroupFiles()
    assert sorted(files.groups(str(tmp_path))) == [f"{tmp_path}/a", f"{tmp_path}/b"]
    assert files.groups(f"{tmp_path}/none") == []
