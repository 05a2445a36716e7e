"""Files that block their reader, created by a task of raw_exec where the launcher works.

These files are pipes, and files of a file system that never answers.

Only the user that mounted a FUSE file system can enter it. Root can enter it only if the mount has
the option `allow_other`, which users may set only if `/etc/fuse.conf` permits it. The launcher
enters only its own mounts, so it does not wait.
"""

import ctypes
import errno
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from daemon.launcher.channel import sealed
from daemon.launcher.messages import (
    DirectoryPart,
    FileStatus,
    ListAllocations,
    ListDirectory,
    MeasureDirectory,
    Message,
    OpenFile,
    OpenLog,
    OperationFailed,
    ReadFile,
    RefusedReply,
    RemoveDirectory,
    RetainLogs,
    StartTask,
    UnpackStream,
    WriteFile,
)
from tests.parts.launcher.conftest import ALLOCATION, Talk, payload, talk
from tests.parts.launcher.test_directories import NOBODY, laid_out, needs_root, room

__all__ = ["talk"]
_SECONDS = 10  # timeout of each answer
_LOCKED = 6  # sys/mount.h: no set-user-ID bits, no devices
_DETACH = 2
# Mount points in the task's own directory.
PLACES = ("main/local", "main/local/deeper", "main/tmp", "main/secrets", "alloc/data")


def named(**fields: Any) -> dict[str, Any]:
    return {"allocation": ALLOCATION, "task": "main", **fields}


def asked(path: str) -> Iterator[tuple[Message, bytes | None]]:
    """Yield each request that accesses files at or below `path`, with its arguments."""
    seen = {"allocation": ALLOCATION, "sees_secrets": True}
    for inner in (path, f"{path}/x", f"{path}/x/y"):
        yield WriteFile(**named(path=inner, mode=0o600, is_new=True, owner=None)), b"text"
        yield WriteFile(**named(path=inner, mode=0o600, is_new=False, owner=None)), b"text"
        yield ReadFile(**named(path=inner, most=0)), None
        yield ReadFile(**named(path=inner, most=10)), None
        yield OpenFile(path=inner, **seen), None
        yield ListDirectory(path=inner, position=0, **seen), None
    yield OpenLog(**named(kind="stdout", purpose="rotate")), None
    yield MeasureDirectory(allocation=ALLOCATION, is_kept=False), None
    yield ListAllocations(is_kept=False), None


@pytest.fixture
def root(talk: Talk, tmp_path: Path) -> Path:
    talk.greet(tmp_path)
    laid_out(talk, room(user="nobody"))
    talk.channel.settimeout(_SECONDS)
    return tmp_path / ALLOCATION


def answers(talk: Talk, path: str) -> list[Any]:
    """Send all requests of `asked(path)`; return the answers. Raises `TimeoutError` on a block."""
    found = []
    for request, content in asked(path):
        passed = [] if content is None else [sealed(content)]
        found.append(talk.ask(request, *passed).body)
        for item in passed:
            os.close(item)
    return found


@pytest.fixture
def held() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def mount_silent(place: Path, exit_stack: ExitStack, more: str = "") -> None:
    """Mount a file system that answers no request, as `fusermount` does for the task's user.

    `more` has further mount options. With `,allow_other` root can enter the file system, so that
    root waits for an answer.
    """
    try:
        server = os.open("/dev/fuse", os.O_RDWR)
    except OSError as error:
        pytest.skip(f"this host has no FUSE: {error}")
    exit_stack.callback(os.close, server)
    options = f"fd={server},rootmode=40000,user_id={NOBODY},group_id={NOBODY}{more}".encode()
    library = ctypes.CDLL(None, use_errno=True)
    if library.mount(b"fuse", os.fsencode(place), b"fuse", _LOCKED, options):
        pytest.skip(f"FUSE file systems cannot be mounted here: {os.strerror(ctypes.get_errno())}")
    mounted = os.open(place, os.O_PATH)  # the mount stays reachable after its parent is renamed
    exit_stack.callback(os.close, mounted)
    exit_stack.callback(library.umount2, b"/proc/self/fd/%d" % mounted, _DETACH)


@needs_root
@pytest.mark.parametrize("place", PLACES)
def test_unresponsive_file_system_blocks_no_request(
    talk: Talk, root: Path, place: str, held: ExitStack
) -> None:
    (root / "main/local/deeper").mkdir()
    mount_silent(root / place, held)
    found = answers(talk, place)
    assert all(isinstance(answer, OperationFailed | RefusedReply) for answer in found[6:18])
    assert errno.EXDEV in {
        answer.number for answer in found[6:18] if isinstance(answer, OperationFailed)
    }
    words = payload("/bin/true")
    start = StartTask(**named(attempt=0, group="-", is_logged=True))
    talk.ask(start, words)
    os.close(words)
    talk.ask(RetainLogs(allocation=ALLOCATION))
    removed = talk.ask(RemoveDirectory(allocation=ALLOCATION, is_kept=False)).body
    assert isinstance(removed, OperationFailed)  # the mount stays, and the launcher reports it


@needs_root
@pytest.mark.parametrize("place", PLACES)
def test_unresponsive_file_system_that_root_can_enter_blocks_no_request(
    talk: Talk, root: Path, place: str, held: ExitStack
) -> None:
    (root / "main/local/deeper").mkdir()
    mount_silent(root / place, held, ",allow_other")
    found = answers(talk, place)
    assert all(isinstance(answer, OperationFailed | RefusedReply) for answer in found[6:18])
    above = ListDirectory(
        path=place.rpartition("/")[0], position=0, allocation=ALLOCATION, sees_secrets=True
    )
    assert isinstance(talk.ask(above).body, DirectoryPart)
    sizes = {"most_bytes": 10, "most_members": 1}
    unpack = UnpackStream(**named(path=place, **sizes))
    null = os.open(os.devnull, os.O_RDONLY)
    held.callback(os.close, null)
    assert isinstance(talk.ask(unpack, null).body, OperationFailed | RefusedReply)
    removed = talk.ask(RemoveDirectory(allocation=ALLOCATION, is_kept=False)).body
    assert isinstance(removed, OperationFailed)  # the mount stays, and the launcher reports it


def test_pipes_block_no_request(talk: Talk, root: Path) -> None:
    for place in ("main/local/x", "main/tmp/x", "alloc/data/x"):
        os.mkfifo(root / place)
    os.mkfifo(root / "alloc/logs/main.stdout.0")
    for place in ("main/local", "main/tmp", "alloc/data"):
        found = answers(talk, place)
        assert any(isinstance(answer, FileStatus) for answer in found)
