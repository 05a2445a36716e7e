"""Directories that the launcher creates for an allocation, and paths that it never changes."""

import errno
import fcntl
import itertools
import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from daemon.launcher.alloc_dir import permit_traversal
from daemon.launcher.channel import sealed
from daemon.launcher.messages import (
    AllocDirLayout,
    CreateAllocDir,
    LaidOut,
    OperationFailed,
    TaskDirLayout,
)
from tests import launchers
from tests.parts.launcher.conftest import ALLOCATION, Talk

PREVIOUS = "1b8a1c52-1c7e-4b6e-8f43-0123456789ab"
NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


def room(task: str = "main", user: str = "", *, is_seen: bool = True) -> TaskDirLayout:
    """Return the layout of a `raw_exec` task."""
    return TaskDirLayout(task=task, driver="raw_exec", user=user, is_seen=is_seen)


def laid_out(
    talk: Talk, *task_dir_layout: TaskDirLayout, allocation: str = ALLOCATION, previous: Any = None
) -> Any:
    """Return the answer to a request for an allocation of tasks with these layouts."""
    layout = AllocDirLayout(rooms=[*task_dir_layout], about=b"{}")
    passed = sealed(msgspec.msgpack.encode(layout))
    try:
        return talk.ask(CreateAllocDir(allocation=allocation, previous=previous), passed).body
    finally:
        os.close(passed)


def owners(directory: Path) -> dict[str, tuple[int, str]]:
    """Return user and mode of each entry of a directory."""
    found = {path.name: path.lstat() for path in directory.iterdir()}
    return {name: (one.st_uid, stat.filemode(one.st_mode)) for name, one in found.items()}


@contextmanager
def swapping(path: Path, target: Path) -> Iterator[None]:
    """Swap a directory with a link and back, as fast as possible."""
    over = threading.Event()

    def swap() -> None:
        for number in itertools.count():
            aside = path.with_name(f".aside.{number}")
            with suppress(OSError):  # the launcher has just created the path
                path.rename(aside)
                path.symlink_to(target)
            with suppress(OSError):  # the launcher changes the same paths
                if path.is_symlink():
                    path.unlink()
            with suppress(OSError):  # the launcher changes the same paths
                aside.rename(path)
            if over.is_set():
                return

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def facts(directory: Path) -> list[tuple[str, int, int, int, int]]:
    """Return all changeable properties of a tree."""
    every = [directory, *sorted(directory.rglob("*"))]
    found = [(str(path), path.lstat()) for path in every]
    return [(name, one.st_ino, one.st_mode, one.st_uid, one.st_mtime_ns) for name, one in found]


def test_directories_of_the_daemon_user_are_closed_to_others(greeted: Talk, tmp_path: Path) -> None:
    assert laid_out(greeted, room()) == LaidOut(troubles={})
    us = (os.geteuid(), "drwx------")
    root = tmp_path / ALLOCATION
    about = (os.geteuid(), "-rw-r--r--")
    assert owners(root) == {"alloc": us, "main": us, ".about": about}
    assert owners(root / "main") == dict.fromkeys(("local", "private", "secrets", "tmp"), us)
    assert owners(root / "alloc") == dict.fromkeys(("data", "logs", "tmp"), us)


@needs_root
@pytest.mark.parametrize(
    ("policy", "user"),
    [
        ({"users": []}, "daemon"),
        ({"permits_root": False}, "root"),
        ({"owner": 1}, "daemon"),
        ({"denied_uids": [(1, 1)]}, "daemon"),
        ({}, "nosuchuser"),
    ],
)
def test_directory_is_not_assigned_to_a_user_forbidden_to_tasks(
    talk: Talk, tmp_path: Path, policy: dict[str, Any], user: str
) -> None:
    talk.greet(tmp_path, msgspec.structs.replace(launchers.EVERYTHING, **policy))
    assert laid_out(talk, room(user=user)) == LaidOut(troubles={})
    assert owners(tmp_path / ALLOCATION / "main")["local"] == (0, "drwx------")


@needs_root
def test_exec_task_without_a_user_belongs_to_its_allocation(talk: Talk, tmp_path: Path) -> None:
    (tmp_path / "uids").mkdir()
    (tmp_path / "uids" / ALLOCATION).symlink_to("81234")
    (tmp_path / "alloc" / ALLOCATION).mkdir(parents=True)
    policy = msgspec.structs.replace(launchers.EVERYTHING, own_uids=(80000, 89999))
    talk.greet(tmp_path / "alloc", policy)
    task_dir_layout = TaskDirLayout(task="main", driver="exec", user="", is_seen=False)
    two = TaskDirLayout(task="other", driver="raw_exec", user="", is_seen=True)
    assert laid_out(talk, task_dir_layout, two) == LaidOut(troubles={})
    found = tmp_path / "alloc" / ALLOCATION
    assert owners(found / "main")["local"] == (81234, "drwx------")
    assert owners(found / "other")["local"] == (0, "drwx------")


@needs_root
@pytest.mark.parametrize("text", ["0", "1", "999", "65534", "none", "-1", "../x", "9" * 30])
def test_number_of_an_account_is_no_allocation_user_id(
    talk: Talk, tmp_path: Path, text: str
) -> None:
    (tmp_path / "uids").mkdir()
    (tmp_path / "uids" / ALLOCATION).symlink_to(text)
    (tmp_path / "alloc" / ALLOCATION).mkdir(parents=True)
    policy = msgspec.structs.replace(launchers.EVERYTHING, own_uids=(80000, 89999))
    talk.greet(tmp_path / "alloc", policy)
    laid_out(talk, TaskDirLayout(task="main", driver="exec", user="", is_seen=False))
    found = tmp_path / "alloc" / ALLOCATION / "main"
    assert owners(found)["local"] == (NOBODY, "drwx------")


@needs_root
def test_task_gets_only_its_own_directories(greeted: Talk, tmp_path: Path) -> None:
    shown, walled = room("shown", "nobody"), room("walled", "7", is_seen=False)
    assert laid_out(greeted, shown, walled) == LaidOut(troubles={})
    root = tmp_path / ALLOCATION
    assert owners(root / "shown")["private"] == owners(root / "walled")["private"]
    assert owners(root / "shown")["private"] == (0, "drwx------")
    assert owners(root / "shown")["local"] == (NOBODY, "drwx------")
    assert owners(root / "walled")["secrets"] == (7, "drwx------")
    assert (owners(root)["shown"][0], owners(root)["walled"][0]) == (NOBODY, 0)
    assert owners(root / "alloc")["data"] == (0, "drwxrwxrwt")


def test_repeated_request_changes_nothing(greeted: Talk, tmp_path: Path) -> None:
    laid_out(greeted, room())
    (tmp_path / ALLOCATION / "main/local/file").write_text("kept")
    before = facts(tmp_path / ALLOCATION)
    assert laid_out(greeted, room()) == LaidOut(troubles={})
    assert facts(tmp_path / ALLOCATION) == before


def test_data_of_an_ended_allocation_is_moved(greeted: Talk, tmp_path: Path) -> None:
    laid_out(greeted, room(), allocation=PREVIOUS)
    for place in ("alloc/data", "main/local", "main/secrets"):
        (tmp_path / PREVIOUS / place / "f").write_text(place)
    (tmp_path / PREVIOUS / ".claim.main.0").write_text("group -\nshim 2\n")
    assert laid_out(greeted, room(), previous=PREVIOUS) == LaidOut(troubles={})
    root = tmp_path / ALLOCATION
    assert [(root / place / "f").exists() for place in ("alloc/data", "main/local")] == [True] * 2
    assert not (root / "main/secrets/f").exists()


def test_data_of_a_running_allocation_is_not_moved(greeted: Talk, tmp_path: Path) -> None:
    laid_out(greeted, room(), allocation=PREVIOUS)
    with (tmp_path / PREVIOUS / ".claim.main.0").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        answer = laid_out(greeted, room(), previous=PREVIOUS)
    assert isinstance(answer, OperationFailed)
    assert answer.number == errno.EBUSY
    assert (tmp_path / PREVIOUS / "main/local").is_dir()
    assert not (tmp_path / ALLOCATION).exists()


def test_allocation_without_a_previous_directory_starts_empty(
    greeted: Talk, tmp_path: Path
) -> None:
    assert laid_out(greeted, room(), previous=PREVIOUS) == LaidOut(troubles={})
    assert (tmp_path / ALLOCATION / "main/local").is_dir()


def test_shared_directory_belongs_to_no_task(greeted: Talk, tmp_path: Path) -> None:
    answer = laid_out(greeted, room("alloc"), room("main"))
    assert list(answer.troubles) == ["alloc"]
    assert (tmp_path / ALLOCATION / "main/local").is_dir()
    assert not (tmp_path / ALLOCATION / "alloc/local").exists()


def test_overlong_name_is_reported_as_a_problem(greeted: Talk) -> None:
    answer = laid_out(greeted, room("ü" * 200))
    assert "too long" in answer.troubles["ü" * 200]


@needs_root
def test_directory_of_another_user_is_not_used(greeted: Talk, tmp_path: Path) -> None:
    laid_out(greeted, room())
    os.chown(tmp_path / ALLOCATION / "main/secrets", 7, 7)
    answer = laid_out(greeted, room(user="nobody"))
    assert "unexpected owner: user 7" in answer.troubles["main"]
    assert (tmp_path / ALLOCATION / "main/secrets").stat().st_uid == 7


@pytest.mark.parametrize("name", ["", "alloc", "alloc/logs", "main", "main/local", "main/secrets"])
def test_link_in_the_path_is_not_followed(greeted: Talk, tmp_path: Path, name: str) -> None:
    laid_out(greeted, room())
    moved = (tmp_path / ALLOCATION / name).rename(tmp_path / "elsewhere")
    (tmp_path / ALLOCATION / name).symlink_to(moved)
    moved.chmod(0o750)
    before = facts(moved)
    answer = laid_out(greeted, room())
    assert isinstance(answer, OperationFailed) or "main" in answer.troubles
    assert facts(moved) == before


@pytest.mark.parametrize("name", ["main/local", "main/private", "main/secrets", "main"])
def test_link_swapped_in_for_a_directory_is_not_followed(
    greeted: Talk, tmp_path: Path, name: str
) -> None:
    outside = tmp_path / "outside"
    for inner in ("local", "secrets", "private", "tmp"):
        (outside / inner).mkdir(parents=True)
    for path in outside.rglob("*"):
        path.chmod(0o750)
    laid_out(greeted, room())
    before = facts(outside)
    with swapping(tmp_path / ALLOCATION / name, outside):
        for _ in range(500):
            laid_out(greeted, room(user="nobody" if os.geteuid() == 0 else ""))
    assert facts(outside) == before


def asked(body: list[Any]) -> Callable[[Talk], bool]:
    def ask(talk: Talk) -> bool:
        passed = sealed(msgspec.msgpack.encode(AllocDirLayout(rooms=[], about=b"")))
        talk.send(1, 1, body, descriptors=(passed,))
        os.close(passed)
        return talk.has_ended()

    return ask


@pytest.mark.parametrize(
    "name",
    [
        *("", "..", "../" + "a" * 33, "/" * 36, "a" * 35 + "\0", "A" * 36, "a" * 300),
        *("-" * 36, "a" * 36, f"-{ALLOCATION[1:]}", f"{ALLOCATION}\n", ALLOCATION.upper()),
    ],
)
def test_invalid_allocation_name_stops_the_launcher(talk: Talk, tmp_path: Path, name: str) -> None:
    talk.greet(tmp_path)
    before = facts(tmp_path)
    assert asked([20, name, None])(talk)
    assert facts(tmp_path) == before


@pytest.mark.parametrize("name", ["", "..", ".x", "a/b", "/", "a\0", "x" * 300])
@pytest.mark.parametrize("field", ["task", "previous"])
def test_invalid_directory_name_stops_the_launcher(
    greeted: Talk, tmp_path: Path, name: str, field: str
) -> None:
    rooms = [[name if field == "task" else "main", "raw_exec", "", True]]
    passed = sealed(msgspec.msgpack.encode([rooms, b""]))
    previous = name if field == "previous" else None
    greeted.send(1, 1, [20, ALLOCATION, previous], descriptors=(passed,))
    os.close(passed)
    assert greeted.has_ended()
    assert not (tmp_path / ALLOCATION).exists()


@pytest.mark.parametrize(
    ("driver", "user"),
    [("podman", ""), ("", ""), (0, ""), ("exec", 0), ("exec", [0, 0]), ("exec", "x" * 4097)],
)
def test_malformed_user_stops_the_launcher(greeted: Talk, driver: Any, user: Any) -> None:
    passed = sealed(msgspec.msgpack.encode([[["main", driver, user, True]], b""]))
    greeted.send(1, 1, [20, ALLOCATION, None], descriptors=(passed,))
    os.close(passed)
    assert greeted.has_ended()


@pytest.mark.parametrize(
    ("code", "mode"), [(errno.ENOTSUP, 0o711), (errno.EPERM, 0o711), (errno.EIO, None)]
)
def test_all_users_traverse_a_directory_only_if_it_cannot_have_an_acl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, mode: int | None
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "setxattr", refuse)
    tmp_path.chmod(0o700)
    directory = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(OSError, match=os.strerror(code)) if mode is None else nullcontext():
            permit_traversal(directory, {1234})
        assert stat.S_IMODE(tmp_path.stat().st_mode) == (mode or 0o700)
    finally:
        os.close(directory)
