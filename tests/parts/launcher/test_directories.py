"""What the launcher makes for an allocation, and what it leaves alone, whoever asks."""

import errno
import fcntl
import itertools
import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from daemon.launcher.channel import sealed
from daemon.launcher.messages import Failed, LaidOut, LayOut, Layout, Room
from tests.parts.launcher.conftest import ALLOCATION, Talk

PREVIOUS = "1b8a1c52-1c7e-4b6e-8f43-0123456789ab"
NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has other users")


def room(task: str = "main", owner: tuple[int, int] | None = None, *, is_seen: bool = True) -> Room:
    return Room(task=task, owner=owner, is_seen=is_seen)


def laid_out(talk: Talk, *rooms: Room, allocation: str = ALLOCATION, previous: Any = None) -> Any:
    """Return the answer to a request for an allocation of these tasks."""
    layout = Layout(rooms=[*rooms], about=b"{}")
    passed = sealed(msgspec.msgpack.encode(layout))
    try:
        return talk.ask(LayOut(allocation=allocation, previous=previous), passed).body
    finally:
        os.close(passed)


def owners(directory: Path) -> dict[str, tuple[int, str]]:
    """Return user and mode of all that lies in a directory."""
    found = {one.name: one.lstat() for one in directory.iterdir()}
    return {name: (one.st_uid, stat.filemode(one.st_mode)) for name, one in found.items()}


@contextmanager
def swapping(path: Path, target: Path) -> Iterator[None]:
    """Put a link in the place of a directory and the directory back, as fast as can be."""
    over = threading.Event()

    def swap() -> None:
        for number in itertools.count():
            aside = path.with_name(f".aside.{number}")
            with suppress(OSError):  # the launcher has made one in between
                path.rename(aside)
                path.symlink_to(target)
            if path.is_symlink():
                path.unlink()
            with suppress(OSError):
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
    """Return all that could be changed of a tree."""
    every = [directory, *sorted(directory.rglob("*"))]
    found = [(str(one), one.lstat()) for one in every]
    return [(name, one.st_ino, one.st_mode, one.st_uid, one.st_mtime_ns) for name, one in found]


def test_directories_of_our_own_user_are_closed_to_others(greeted: Talk, tmp_path: Path) -> None:
    assert laid_out(greeted, room()) == LaidOut(troubles={})
    us = (os.geteuid(), "drwx------")
    root = tmp_path / ALLOCATION
    about = (os.geteuid(), "-rw-r--r--")
    assert owners(root) == {"alloc": us, "main": us, ".about": about}
    assert owners(root / "main") == dict.fromkeys(("local", "private", "secrets", "tmp"), us)
    assert owners(root / "alloc") == dict.fromkeys(("data", "logs", "tmp"), us)


@needs_root
def test_a_task_gets_what_is_its_own_and_no_more(greeted: Talk, tmp_path: Path) -> None:
    shown, walled = room("shown", (NOBODY, NOBODY)), room("walled", (7, 7), is_seen=False)
    assert laid_out(greeted, shown, walled) == LaidOut(troubles={})
    root = tmp_path / ALLOCATION
    assert owners(root / "shown")["private"] == owners(root / "walled")["private"]
    assert owners(root / "shown")["private"] == (0, "drwx------")
    assert owners(root / "shown")["local"] == (NOBODY, "drwx------")
    assert owners(root / "walled")["secrets"] == (7, "drwx------")
    assert (owners(root)["shown"][0], owners(root)["walled"][0]) == (NOBODY, 0)
    assert owners(root / "alloc")["data"] == (0, "drwxrwxrwt")


def test_a_second_request_leaves_all_as_it_is(greeted: Talk, tmp_path: Path) -> None:
    laid_out(greeted, room())
    (tmp_path / ALLOCATION / "main/local/file").write_text("kept")
    before = facts(tmp_path / ALLOCATION)
    assert laid_out(greeted, room()) == LaidOut(troubles={})
    assert facts(tmp_path / ALLOCATION) == before


def test_data_of_an_allocation_that_has_ended_is_taken_over(greeted: Talk, tmp_path: Path) -> None:
    laid_out(greeted, room(), allocation=PREVIOUS)
    for place in ("alloc/data", "main/local", "main/secrets"):
        (tmp_path / PREVIOUS / place / "f").write_text(place)
    (tmp_path / PREVIOUS / ".claim.main.0").write_text("group -\nshim 2\n")
    assert laid_out(greeted, room(), previous=PREVIOUS) == LaidOut(troubles={})
    root = tmp_path / ALLOCATION
    assert [(root / place / "f").exists() for place in ("alloc/data", "main/local")] == [True] * 2
    assert not (root / "main/secrets/f").exists()


def test_data_of_an_allocation_at_work_is_not_taken_over(greeted: Talk, tmp_path: Path) -> None:
    laid_out(greeted, room(), allocation=PREVIOUS)
    with (tmp_path / PREVIOUS / ".claim.main.0").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        answer = laid_out(greeted, room(), previous=PREVIOUS)
    assert isinstance(answer, Failed)
    assert answer.number == errno.EBUSY
    assert (tmp_path / PREVIOUS / "main/local").is_dir()
    assert not (tmp_path / ALLOCATION).exists()


def test_an_allocation_without_a_previous_directory_begins_empty(
    greeted: Talk, tmp_path: Path
) -> None:
    assert laid_out(greeted, room(), previous=PREVIOUS) == LaidOut(troubles={})
    assert (tmp_path / ALLOCATION / "main/local").is_dir()


def test_the_directory_that_tasks_share_is_no_tasks(greeted: Talk, tmp_path: Path) -> None:
    answer = laid_out(greeted, room("alloc"), room("main"))
    assert list(answer.troubles) == ["alloc"]
    assert (tmp_path / ALLOCATION / "main/local").is_dir()
    assert not (tmp_path / ALLOCATION / "alloc/local").exists()


def test_a_name_that_is_too_long_for_the_machine_is_a_trouble(greeted: Talk) -> None:
    answer = laid_out(greeted, room("ü" * 200))
    assert "too long" in answer.troubles["ü" * 200]


@needs_root
def test_a_directory_of_somebody_else_is_not_taken(greeted: Talk, tmp_path: Path) -> None:
    laid_out(greeted, room())
    os.chown(tmp_path / ALLOCATION / "main/secrets", 7, 7)
    answer = laid_out(greeted, room(owner=(NOBODY, NOBODY)))
    assert "user 7 owns it" in answer.troubles["main"]
    assert (tmp_path / ALLOCATION / "main/secrets").stat().st_uid == 7


@pytest.mark.parametrize("name", ["", "alloc", "alloc/logs", "main", "main/local", "main/secrets"])
def test_a_link_on_the_way_is_not_followed(greeted: Talk, tmp_path: Path, name: str) -> None:
    laid_out(greeted, room())
    moved = (tmp_path / ALLOCATION / name).rename(tmp_path / "elsewhere")
    (tmp_path / ALLOCATION / name).symlink_to(moved)
    moved.chmod(0o750)
    before = facts(moved)
    answer = laid_out(greeted, room())
    assert isinstance(answer, Failed) or "main" in answer.troubles
    assert facts(moved) == before


@pytest.mark.parametrize("name", ["main/local", "main/private", "main/secrets", "main"])
def test_a_link_that_is_swapped_in_leads_nowhere(greeted: Talk, tmp_path: Path, name: str) -> None:
    outside = tmp_path / "outside"
    for inner in ("local", "secrets", "private", "tmp"):
        (outside / inner).mkdir(parents=True)
    for one in outside.rglob("*"):
        one.chmod(0o750)
    laid_out(greeted, room())
    before = facts(outside)
    with swapping(tmp_path / ALLOCATION / name, outside):
        for _ in range(500):
            laid_out(greeted, room(owner=(NOBODY, NOBODY) if os.geteuid() == 0 else None))
    assert facts(outside) == before


def asked(body: list[Any]) -> Callable[[Talk], bool]:
    def ask(talk: Talk) -> bool:
        passed = sealed(msgspec.msgpack.encode(Layout(rooms=[], about=b"")))
        talk.send(1, 1, body, descriptors=(passed,))
        os.close(passed)
        return talk.has_ended()

    return ask


@pytest.mark.parametrize(
    "name", ["", "..", "../" + "a" * 33, "/" * 36, "a" * 35 + "\0", "A" * 36, "a" * 300]
)
def test_a_name_that_is_no_allocation_ends_the_launcher(
    talk: Talk, tmp_path: Path, name: str
) -> None:
    talk.greet(tmp_path)
    before = facts(tmp_path)
    assert asked([20, name, None])(talk)
    assert facts(tmp_path) == before


@pytest.mark.parametrize("name", ["", "..", ".x", "a/b", "/", "a\0", "x" * 300])
@pytest.mark.parametrize("field", ["task", "previous"])
def test_a_name_that_is_no_place_ends_the_launcher(
    greeted: Talk, tmp_path: Path, name: str, field: str
) -> None:
    rooms = [[name if field == "task" else "main", None, True]]
    passed = sealed(msgspec.msgpack.encode([rooms, b""]))
    previous = name if field == "previous" else None
    greeted.send(1, 1, [20, ALLOCATION, previous], descriptors=(passed,))
    os.close(passed)
    assert greeted.has_ended()
    assert not (tmp_path / ALLOCATION).exists()


@pytest.mark.parametrize("owner", [[-2, 0], [0, 2**32 - 1], [0], 0, [0, 0, 0]])
def test_an_owner_that_is_none_ends_the_launcher(greeted: Talk, owner: Any) -> None:
    passed = sealed(msgspec.msgpack.encode([[["main", owner, True]], b""]))
    greeted.send(1, 1, [20, ALLOCATION, None], descriptors=(passed,))
    os.close(passed)
    assert greeted.has_ended()
