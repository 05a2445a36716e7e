"""Requests that make root act where it must not, or that stop or block the launcher."""

import os
import signal
import stat
from pathlib import Path

import msgspec
import pytest

from daemon.launcher.channel import receive, sealed
from daemon.launcher.messages import (
    Done,
    MakeVolume,
    OperationFailed,
    ProbeSandbox,
    ProcessStarted,
    ReadFile,
    RefusedReply,
    SandboxSupport,
    UnpackStream,
    WriteFile,
)
from tests.attacks.test_launcher_requests import SESSION, START, closed
from tests.parts.launcher.conftest import (
    ALLOCATION,
    Place,
    Talk,
    greeted,
    ordered,
    passed,
    place,
    talk,
)
from tests.parts.launcher.test_directories import laid_out, room
from tests.parts.runner.conftest import needs_root

__all__ = ["closed", "greeted", "place", "talk"]
NOBODY = 65534


@pytest.mark.usefixtures("place")
def test_name_that_is_not_text_is_refused_and_the_launcher_continues(greeted: Talk) -> None:
    order = ordered("/none", command=b"/none/\xff\n", env={b"PATH": b"/\xff"})
    answer = greeted.ask(START, passed(order)).body
    assert isinstance(answer, RefusedReply)
    assert "could not be found" in answer.text
    assert isinstance(greeted.ask(START, passed(ordered("/bin/true"))).body, ProcessStarted)


@needs_root
def test_stopped_child_of_the_launcher_is_killed(greeted: Talk, tmp_path: Path) -> None:
    laid_out(greeted, room(user="nobody"))
    request = UnpackStream(
        allocation=ALLOCATION, task="main", path="main/local", most_bytes=9, most_members=9
    )
    reader, writer = os.pipe()
    greeted.send(7, 1, request, descriptors=(reader,))
    while not (found := _of_nobody()):
        os.sched_yield()
    for pid in found:
        os.kill(pid, signal.SIGSTOP)
    data, _ = receive(greeted.channel)
    os.close(writer)
    os.close(reader)
    assert b"child exit status: -9" in data


def _of_nobody() -> list[int]:
    """Return the child processes of launchers that run as the user `nobody`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/status"):
        try:
            text = path.read_text()
        except OSError:
            continue
        if text.startswith("Name:\tsteward-launch\n") and f"Uid:\t{NOBODY}\t{NOBODY}" in text:
            found.append(int(path.parent.name))
    return found


@needs_root
def test_shared_directory_is_not_addressable_as_a_task(greeted: Talk, tmp_path: Path) -> None:
    laid_out(greeted, room(user="nobody"))
    shared = tmp_path / ALLOCATION / "alloc"
    write = WriteFile(
        allocation=ALLOCATION,
        task="alloc",
        path="alloc/data/f",
        mode=0o644,
        is_new=False,
        owner=None,
    )
    assert isinstance(greeted.ask(write, sealed(b"x")).body, OperationFailed)
    read = ReadFile(allocation=ALLOCATION, task="alloc", path="alloc/data/f", most=9)
    assert isinstance(greeted.ask(read).body, OperationFailed)
    for request in (START, SESSION):
        named = msgspec.structs.replace(request, task="alloc")
        assert isinstance(greeted.ask(named, passed(ordered("/bin/true"))).body, RefusedReply)
    assert [*(shared / "data").iterdir()] == []


@needs_root
def test_directories_replaceable_by_a_task_are_not_passed_to_the_task(
    closed: Talk, place: Place
) -> None:
    found = closed.ask(ProbeSandbox()).body
    if not isinstance(found, SandboxSupport) or found.walls:
        pytest.skip(f"exec: {found}")
    (place.root / "alloc/data").mkdir()
    answer = closed.ask(START, passed(ordered("/bin/true", driver="exec"))).body
    assert isinstance(answer, ProcessStarted)
    facts = (place.root / "main").stat()
    assert (facts.st_uid, facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH)) == (0, 0)


@needs_root
def test_volume_cannot_belong_to_a_user_forbidden_to_tasks(closed: Talk, tmp_path: Path) -> None:
    for owner in ((0, 0), (1, 1)):
        request = MakeVolume(volume=ALLOCATION, mode=0o777, owner=owner)
        assert isinstance(closed.ask(request).body, RefusedReply)
    assert closed.ask(MakeVolume(volume=ALLOCATION, mode=0o700, owner=(-1, -1))).body == Done()
