"""Files of cgroups: the launcher writes a task to them, so that the task enters its cgroups."""

import pytest

from daemon.launcher.cgroups import is_list

ABOVE = ("/cg/steward-1", "/cg/cpuset/steward-1")


def allowed(file: str, *others: str) -> bool:
    return is_list(file, ABOVE, "a", "main", others)


@pytest.mark.parametrize(
    "file",
    [
        "/cg/steward-1/a.main/cgroup.threads",
        "/cg/steward-1/shared/a.main/cgroup.procs",
        "/cg/cpuset/steward-1/shared/tasks",
        "/cg/cpuset/steward-1/a.main/tasks",
    ],
)
def test_own_and_shared_cgroups_are_entered(file: str) -> None:
    assert allowed(file)


@pytest.mark.parametrize(
    "file",
    [
        "/cg/cgroup.procs",
        "/cg/steward-1/cgroup.procs",
        "/cg/steward-1/b.main/cgroup.procs",
        "/cg/steward-1/a.main/memory.max",
        "/cg/steward-1/a.main/../b.main/cgroup.procs",
        "/cg/steward-1/../a.main/cgroup.procs",
        "/cg/steward-2/a.main/cgroup.procs",
        "/cg/shared/tasks",
        "/etc/a.main/tasks",
        "tasks",
    ],
)
def test_other_files_are_not_written_to(file: str) -> None:
    assert not allowed(file)


def test_cgroup_named_by_a_claim_is_entered() -> None:
    assert allowed("/old/a.main/cgroup.procs", "/old/a.main")
    assert not allowed("/old/a.main/cgroup.kill", "/old/a.main")
