"""Cgroups of version 2: their processes, and their removal, with directories as cgroups."""

import os
from errno import EMFILE, ENFILE
from pathlib import Path
from typing import Any, cast

import pytest
import trio

from daemon.launcher.client import Launcher
from daemon.launcher.messages import KillAttempt
from daemon.runner.drivers import cgroup_v2
from daemon.runner.drivers.cgroup_v2 import CgroupV2


class KillingLauncher:
    """A launcher whose second kill ends all processes of a cgroup."""

    def __init__(self, group: Path) -> None:
        self.group, self.requests = group, list[KillAttempt]()

    async def end(self, request: KillAttempt) -> None:
        self.requests.append(request)
        if len(self.requests) == 2:
            for file in self.group.rglob("cgroup.threads"):
                file.unlink()


def populated(group: Path, *threads: int) -> Path:
    group.mkdir(parents=True)
    (group / "cgroup.threads").write_text("".join(f"{thread}\n" for thread in threads))
    return group


async def test_cgroup_is_removed_with_its_children_when_its_processes_have_ended(
    tmp_path: Path, autojump_clock: Any
) -> None:
    group = populated(tmp_path / "a1.main", 3, 4)
    populated(group / "child/grandchild", 5)
    launcher = KillingLauncher(group)
    assert await CgroupV2(str(group)).clear(cast(Launcher, launcher), 2) == ""
    assert launcher.requests == [KillAttempt(allocation="a1", task="main", attempt=2)] * 2
    assert not group.exists()
    assert await CgroupV2(str(group)).clear(cast(Launcher, launcher)) == ""
    assert len(launcher.requests) == 2


async def test_processes_that_do_not_end_are_named(tmp_path: Path, autojump_clock: Any) -> None:
    group = populated(tmp_path / "a1.main", 3, 4)
    populated(group / "child", 5)
    other = KillingLauncher(tmp_path / "other")
    began = trio.current_time()
    fault = await CgroupV2(str(group)).clear(cast(Launcher, other))
    assert trio.current_time() == began + 10.0
    assert fault == "these processes do not end: 3 4 5"
    assert await CgroupV2(str(group)).members(cast(Launcher, other), 1) == [3, 4, 5]
    assert await CgroupV2(f"{group}/none").members(cast(Launcher, other), 1) == []


@pytest.mark.parametrize(("threaded", "entry"), [(False, "cgroup.procs"), (True, "cgroup.threads")])
def test_processes_enter_a_cgroup_through_its_file(
    tmp_path: Path, threaded: bool, entry: str
) -> None:
    assert CgroupV2("/g", threaded=threaded).entry == f"/g/{entry}"


def test_cgroup_is_populated_as_the_kernel_reports(tmp_path: Path) -> None:
    group = CgroupV2(str(tmp_path))
    assert not group.is_populated()
    (tmp_path / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    assert group.is_populated()
    (tmp_path / "cgroup.events").write_text("populated 0\nfrozen 0\n")
    assert not group.is_populated()


def test_missing_parent_is_created_unless_another_daemon_gave_it(tmp_path: Path) -> None:
    CgroupV2(f"{tmp_path}/parent/a1.main").prepare()
    assert os.listdir(tmp_path / "parent") == ["a1.main"]
    with pytest.raises(FileNotFoundError):
        CgroupV2(f"{tmp_path}/other/a1.main", is_given=True).prepare()
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("content", "is_threaded"), [(None, False), ("domain\n", False), ("threaded\n", True)]
)
def test_cgroup_of_an_earlier_daemon_may_be_threaded(
    tmp_path: Path, content: str | None, is_threaded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroup_v2, "_write", lambda path, text: False)  # the kernel refuses
    if content is not None:
        (tmp_path / "cgroup.type").write_text(content)
    assert cgroup_v2._make_threaded(str(tmp_path)) == is_threaded


@pytest.mark.parametrize("number", [EMFILE, ENFILE])
def test_shortage_of_descriptors_is_no_answer(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(path: object) -> str:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "read_text", read)
    monkeypatch.setattr(cgroup_v2, "_read", read)
    with pytest.raises(OSError, match=os.strerror(number)):
        cgroup_v2._make_threaded(str(tmp_path))
    with pytest.raises(OSError, match=os.strerror(number)):
        CgroupV2(str(tmp_path)).is_populated()


def test_removed_cgroup_counts_as_frozen(tmp_path: Path) -> None:
    assert cgroup_v2._has_event(f"{tmp_path}/none", "frozen 1") is True
    (tmp_path / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    assert not cgroup_v2._has_event(str(tmp_path), "frozen 1")
    assert cgroup_v2._has_event(str(tmp_path), "frozen 0")
