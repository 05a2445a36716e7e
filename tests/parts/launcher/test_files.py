"""File access of the launcher where tasks can create links, with the task user's permissions."""

import errno
import os
import stat
from pathlib import Path
from typing import Any

import msgspec
import pytest

from daemon.launcher.channel import close, read_sealed, receive, sealed
from daemon.launcher.messages import (
    MOST_PAYLOAD,
    Done,
    FileStatus,
    NoteText,
    NumberedReply,
    OperationFailed,
    ReadFile,
    ReadNote,
    RefusedReply,
    WriteFile,
    WriteNote,
)
from tests import launchers
from tests.parts.launcher.conftest import ALLOCATION, Talk
from tests.parts.launcher.test_directories import (
    NOBODY,
    PREVIOUS,
    facts,
    laid_out,
    needs_root,
    room,
    swapping,
)

OURS = os.geteuid()


class Task:
    """A task of an allocation whose directories a launcher has made."""

    def __init__(self, talk: Talk, home: Path) -> None:
        self.talk, self.home = talk, home

    def write(self, path: str, content: bytes = b"new", **fields: Any) -> Any:
        """Return the answer to a request to write a file at this path."""
        given = {"mode": 0o600, "is_new": False, "owner": None, **fields}
        request = WriteFile(allocation=ALLOCATION, task="main", path=path, **given)
        passed = sealed(content)
        try:
            return self.talk.ask(request, passed).body
        finally:
            os.close(passed)

    def read(self, path: str, most: int = 100) -> Any:
        """Return the content of a file, or the reason why it cannot be read."""
        request = ReadFile(allocation=ALLOCATION, task="main", path=path, most=most)
        self.talk.send(1, 0, request)
        data, received = receive(self.talk.channel)
        try:
            body = msgspec.msgpack.decode(data, type=NumberedReply).body
            return body if not received else read_sealed(received[0], most)
        finally:
            close(received)


@pytest.fixture
def mine(greeted: Talk, tmp_path: Path) -> Task:
    """A task of the test's user."""
    laid_out(greeted, room())
    return Task(greeted, tmp_path / ALLOCATION)


@pytest.fixture(params=["seen", "walled"])
def theirs(greeted: Talk, tmp_path: Path, request: pytest.FixtureRequest) -> Task:
    """A task of another user; in the sandbox its directory belongs to root."""
    if OURS != 0:
        pytest.skip("only root can act as another user")
    laid_out(greeted, room(user="nobody", is_seen=request.param == "seen"))
    return Task(greeted, tmp_path / ALLOCATION)


def number_of(answer: Any) -> int:
    assert isinstance(answer, OperationFailed)
    return answer.number


@pytest.mark.parametrize("path", ["main/local/f", "main/secrets/a/b/f", "main/f", "alloc/data/f"])
def test_file_is_written_completely_with_its_folders(mine: Task, path: str) -> None:
    assert mine.write(path, b"text", mode=0o640) == Done()
    assert (mine.home / path).read_bytes() == b"text"
    assert stat.S_IMODE((mine.home / path).stat().st_mode) == 0o640
    assert mine.read(path) == b"text"


@pytest.mark.parametrize("path", ["main/local/a/f", "main/secrets/f", "main/f", "alloc/data/a/f"])
def test_a_file_belongs_to_the_user_of_its_task(theirs: Task, path: str) -> None:
    assert theirs.write(path) == Done()
    found = (theirs.home / path).stat()
    assert (found.st_uid, found.st_gid) == (NOBODY, NOBODY)
    assert theirs.read(path) == b"new"


def test_folders_belong_to_the_task_and_are_readable(theirs: Task) -> None:
    theirs.write("main/local/a/f")
    found = (theirs.home / "main/local/a").stat()
    assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (NOBODY, 0o755)


def test_file_owner_can_be_another_user(theirs: Task) -> None:
    theirs.write("main/local/f", owner=(7, -1))
    found = (theirs.home / "main/local/f").stat()
    assert (found.st_uid, found.st_gid) == (7, NOBODY)


@needs_root
@pytest.mark.parametrize("owner", [(0, -1), (1, -1), (7, -1), (-1, 7), (0, 0)])
def test_file_owner_cannot_be_a_user_forbidden_to_tasks(
    talk: Talk, tmp_path: Path, owner: tuple[int, int]
) -> None:
    closed = {"permits_root": False, "owner": 1, "denied_uids": [(7, 7)], "denied_gids": [(7, 7)]}
    talk.greet(tmp_path, msgspec.structs.replace(launchers.EVERYTHING, **closed))
    laid_out(talk, room(user="nobody"))
    task = Task(talk, tmp_path / ALLOCATION)
    assert isinstance(task.write("main/local/f", owner=owner), RefusedReply)
    assert not (task.home / "main/local/f").exists()


def test_file_replaces_another_unless_required_to_be_new(mine: Task) -> None:
    mine.write("main/local/f", b"1")
    mine.write("main/local/f", b"2", is_new=True)
    assert mine.read("main/local/f") == b"1"
    mine.write("main/local/f", b"3")
    assert mine.read("main/local/f") == b"3"


def test_failed_template_write_leaves_no_file(mine: Task) -> None:
    (mine.home / "main/local/f").mkdir()
    assert number_of(mine.write("main/local/f")) == errno.EISDIR
    assert [path.name for path in (mine.home / "main/local").iterdir()] == ["f"]


@pytest.mark.parametrize(
    "path",
    [
        *("", "main", "alloc", "/", "/etc/x", "main/", "main//f", "main/./f", "main/../../f"),
        *(
            "main/..",
            "side/local/f",
            ".claim.main.0",
            "../main/f",
            "main/a\0b",
            f"main/{'x' * 256}",
        ),
    ],
)
@pytest.mark.parametrize("way", ["write", "read"])
def test_path_outside_the_task_is_refused(mine: Task, path: str, way: str) -> None:
    before = facts(mine.home.parent)
    assert number_of(mine.write(path) if way == "write" else mine.read(path)) == errno.EPERM
    assert facts(mine.home.parent) == before


@pytest.mark.parametrize("mode", [0o4755, 0o2755, 0o1777, -1])
def test_file_gets_no_set_uid_bit(mine: Task, mode: int) -> None:
    passed = sealed(b"")
    fields = [21, ALLOCATION, "main", "main/local/f", mode, False, None]
    mine.talk.send(1, 1, fields, descriptors=(passed,))
    os.close(passed)
    assert mine.talk.has_ended()
    assert not (mine.home / "main/local/f").exists()


def test_mutable_content_stops_the_launcher(mine: Task, tmp_path: Path) -> None:
    descriptor = os.memfd_create("open", os.MFD_ALLOW_SEALING)
    fields = [21, ALLOCATION, "main", "main/local/f", 0o600, False, None]
    mine.talk.send(1, 1, fields, descriptors=(descriptor,))
    os.close(descriptor)
    assert mine.talk.has_ended()


@needs_root
@pytest.mark.parametrize("target", ["/etc/shadow", "/root", "../../../outside", "../.."])
def test_link_is_followed_only_with_the_permissions_of_the_task(
    theirs: Task, tmp_path: Path, target: str
) -> None:
    (tmp_path / "outside").mkdir(mode=0o700)
    link = theirs.home / "main/local/link"
    link.symlink_to(target)
    os.chown(link, NOBODY, NOBODY, follow_symlinks=False)
    before = facts(tmp_path / "outside")
    for path in ("main/local/link", "main/local/link/f"):
        assert isinstance(theirs.read(path), OperationFailed)
    assert isinstance(theirs.write("main/local/link/f"), OperationFailed)
    assert theirs.write("main/local/link") == Done()  # the file replaces the link
    assert not link.is_symlink()
    assert facts(tmp_path / "outside") == before


def test_pipe_does_not_block(mine: Task) -> None:
    os.mkfifo(mine.home / "main/local/pipe")
    assert number_of(mine.read("main/local/pipe")) == errno.EINVAL


def test_directory_has_attributes_and_no_content(mine: Task) -> None:
    assert number_of(mine.read("main/local")) == errno.EINVAL
    found = (mine.home / "main/local").stat()
    expected = FileStatus(
        inode=found.st_ino,
        size=found.st_size,
        modified=found.st_mtime_ns,
        mode=found.st_mode,
    )
    assert mine.read("main/local", 0) == expected


def test_read_is_limited_to_the_requested_size(mine: Task) -> None:
    mine.write("main/local/f", b"0123456789")
    assert mine.read("main/local/f", 4) == b"0123"
    mine.talk.send(1, 0, [22, ALLOCATION, "main", "main/local/f", MOST_PAYLOAD + 1])
    assert mine.talk.has_ended()


@needs_root
def test_file_unreadable_for_the_task_is_refused(theirs: Task) -> None:
    secret = theirs.home / "main/local/f"
    secret.write_text("root's")
    secret.chmod(0o600)
    assert number_of(theirs.read("main/local/f")) == errno.EACCES


@needs_root
@pytest.mark.parametrize("name", ["main/local/a", "main/local", "alloc/data/a"])
def test_link_swapped_in_during_a_write_is_not_followed(
    theirs: Task, tmp_path: Path, name: str
) -> None:
    outside = tmp_path / "outside"
    (outside / "a").mkdir(parents=True)
    theirs.write(f"{name}/f")
    before = facts(outside)
    with swapping(theirs.home / name, outside):
        for _ in range(1000):
            theirs.write(f"{name}/f")
    assert facts(outside) == before


@needs_root
def test_launcher_returns_to_root_after_each_file(theirs: Task) -> None:
    theirs.write("main/local/f")
    theirs.write("main/local/link/../f")
    theirs.read("main/local/none")
    assert laid_out(theirs.talk, room(user="8"), allocation=PREVIOUS).troubles == {}
    assert (theirs.home.parent / PREVIOUS / "main/local").stat().st_uid == 8


# ---- file `note` ---------------------------------------------------------------------------------


def test_note_is_stored_and_removed(mine: Task) -> None:
    recall = ReadNote(allocation=ALLOCATION, task="main", kind="token")
    note = WriteNote(allocation=ALLOCATION, task="main", kind="token", text="abc")
    assert mine.talk.ask(recall).body == NoteText(text=None)
    assert mine.talk.ask(note).body == Done()
    assert mine.talk.ask(recall).body == NoteText(text="abc")
    removal = msgspec.structs.replace(note, text=None)
    assert [mine.talk.ask(removal).body for _ in range(2)] == [Done()] * 2
    assert mine.talk.ask(recall).body == NoteText(text=None)


@pytest.mark.parametrize("kind", ["claim", "", "../x", "about"])
def test_invalid_note_type_stops_the_launcher(mine: Task, kind: str) -> None:
    mine.talk.send(1, 0, [23, ALLOCATION, "main", kind, "x"])
    assert mine.talk.has_ended()
