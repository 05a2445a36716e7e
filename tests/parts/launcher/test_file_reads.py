"""Files that the launcher opens and lists for the daemon: only the allocation's, no secrets."""

import errno
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from daemon.launcher import safe_open
from daemon.launcher.channel import close, read_sealed, receive
from daemon.launcher.messages import (
    MOST_PAYLOAD,
    SECRET,
    ConnectPodman,
    DirectoryEntries,
    DirectoryPart,
    Done,
    FileStatus,
    ListDirectory,
    NumberedReply,
    NumberedRequest,
    OpenFile,
    OpenLog,
    OperationFailed,
    RefusedReply,
)
from daemon.launcher.safe_open import without_links
from daemon.launcher.server import Server
from tests.launchers import EVERYTHING
from tests.parts.launcher.conftest import ALLOCATION, Talk
from tests.parts.launcher.test_directories import NOBODY, laid_out, needs_root, room, swapping
from tests.parts.launcher.test_file_collector import collected
from tests.parts.launcher.test_unpacking import framed, member, unpacked


class Looker:
    """A client that queries a launcher about an allocation with one task."""

    def __init__(self, talk: Talk, home: Path) -> None:
        self.talk, self.home = talk, home

    def _ask(self, request: Any) -> tuple[Any, list[int]]:
        self.talk.send(1, 0, request)
        data, received = receive(self.talk.channel)
        return msgspec.msgpack.decode(data, type=NumberedReply).body, received

    def open(self, path: str, *, sees_secrets: bool = False) -> Any:
        """Return the content of a file, the status of a directory, or the number of the error."""
        body, received = self._ask(
            OpenFile(allocation=ALLOCATION, path=path, sees_secrets=sees_secrets)
        )
        try:
            if isinstance(body, OperationFailed):
                return body.number
            assert isinstance(body, FileStatus)
            return os.pread(received[0], 100, 0) if received else body
        finally:
            close(received)

    def page(self, path: str, position: int = 0, *, sees_secrets: bool = False) -> Any:
        """Return names and the next position, or the number of the error."""
        body, received = self._ask(
            ListDirectory(
                allocation=ALLOCATION, path=path, sees_secrets=sees_secrets, position=position
            )
        )
        try:
            if isinstance(body, OperationFailed):
                return body.number
            assert isinstance(body, DirectoryPart)
            content = read_sealed(received[0], MOST_PAYLOAD)
            found = msgspec.msgpack.decode(content, type=DirectoryEntries).entries
            return [entry.name.decode() for entry in found], body.position
        finally:
            close(received)

    def names(self, path: str, *, sees_secrets: bool = False) -> Any:
        """Return all names, or the number of the error."""
        names, position = [], 0
        while position >= 0:
            page = self.page(path, position, sees_secrets=sees_secrets)
            if isinstance(page, int):
                return page
            names += page[0]
            position = page[1]
        return sorted(names)

    def log(self, purpose: str = "log", kind: str = "stdout") -> Any:
        """Return a descriptor of a log, or the number of the error."""
        body, received = self._ask(
            OpenLog(allocation=ALLOCATION, task="main", kind=kind, purpose=purpose)
        )
        if isinstance(body, OperationFailed):
            return body.number
        assert body == Done()
        return received[0]


@pytest.fixture
def looker(greeted: Talk, tmp_path: Path) -> Looker:
    laid_out(greeted, room())
    home = tmp_path / ALLOCATION
    (home / "main/local/f").write_text("data")
    (home / "main/secrets/token").write_text("secret")
    (home / "main/private/p").write_text("private")
    (home / ".claim.main.0").write_text("group -")
    return Looker(greeted, home)


@pytest.fixture(params=["kernel", "no links"])
def here(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, looker: Looker
) -> Iterator[Looker]:
    """The same client without a launcher process, for each of the two ways to resolve paths."""
    if request.param == "no links":
        monkeypatch.setattr(safe_open, "resolver", lambda **_: without_links)
    server = Server(None)  # no test sends to it
    server._directory = str(looker.home.parent)

    def ask(asked: Any) -> Any:
        return server._answer(NumberedRequest(number=1, descriptors=0, body=asked), [])

    looker._ask = ask
    return looker


def test_a_file_is_opened_to_be_read(looker: Looker) -> None:
    assert looker.open("main/local/f") == b"data"
    body, (descriptor,) = looker._ask(
        OpenFile(allocation=ALLOCATION, path="main/local/f", sees_secrets=False)
    )
    found = (looker.home / "main/local/f").stat()
    assert body == FileStatus(
        inode=found.st_ino, size=4, modified=found.st_mtime_ns, mode=found.st_mode
    )
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.write(descriptor, b"x")
    os.close(descriptor)


def test_link_within_the_directory_is_followed(looker: Looker) -> None:
    (looker.home / "alloc/data/link").symlink_to("../../main/local/f")
    assert looker.open("alloc/data/link") == b"data"


@pytest.mark.parametrize(
    "path",
    [
        "..",
        "/",
        "/etc/passwd",
        "main/../..",
        "main/../main/local/f",
        "./main",
        "main//local",
        "a\0b",
    ],
)
def test_malformed_path_is_refused(here: Looker, path: str) -> None:
    assert here.open(path) == errno.EPERM
    assert here.page(path) == errno.EPERM


@pytest.mark.parametrize(
    "target", ["/etc/shadow", "../../../outside", "/", "../../..", "/proc/self/root/etc/passwd"]
)
@pytest.mark.parametrize("below", ["", "/passwd"])
def test_link_that_escapes_the_directory_is_not_followed(
    here: Looker, tmp_path: Path, target: str, below: str
) -> None:
    (tmp_path / "outside").mkdir()
    (here.home / "main/local/link").symlink_to(target)
    for path in (f"main/local/link{below}", f"main/local/link{below}/x"):
        assert isinstance(here.open(path), int)
        assert isinstance(here.page(path), int)


@pytest.mark.parametrize("name", ["pipe", "socket", "folder"])
def test_special_file_has_only_attributes(looker: Looker, name: str) -> None:
    place = looker.home / "main/local" / name
    if name == "folder":
        place.mkdir()
    else:
        os.mknod(place, 0o600 | (stat.S_IFIFO if name == "pipe" else stat.S_IFSOCK))
    assert looker.open(f"main/local/{name}").mode == place.stat().st_mode


SECRET_PATHS = [
    *("main/secrets", "main/secrets/token", "main/secrets/none", "main/secrets/none/deeper"),
    *("main/private", "main/private/p", "main/private/none"),
]
LED_PATHS = [
    *("main/local/link", "main/local/dir", "main/local/dir/token", "main/local/dir/none"),
    *("main/local/dir/none/deeper", "main/local/dir/out"),
]


@pytest.mark.parametrize("path", SECRET_PATHS)
def test_secrets_are_hidden_without_permission(here: Looker, path: str) -> None:
    assert here.open(path) == SECRET
    assert here.page(path) == SECRET


@pytest.mark.parametrize("path", LED_PATHS)
def test_links_do_not_reveal_secrets(looker: Looker, path: str) -> None:
    (looker.home / "main/local/link").symlink_to("../secrets/token")
    (looker.home / "main/local/dir").symlink_to("../secrets")
    (looker.home / "main/secrets/out").symlink_to("/etc/passwd")
    assert looker.open(path) == SECRET
    assert looker.page(path) == SECRET


def test_secrets_reader_gets_attributes_and_never_a_descriptor(looker: Looker) -> None:
    (looker.home / "main/local/link").symlink_to("../secrets/token")
    for path in ("main/secrets/token", "main/local/link", "main/private/p"):
        assert looker.open(path, sees_secrets=True).size > 0
    assert looker.names("main/secrets", sees_secrets=True) == ["token"]
    assert looker.names("main", sees_secrets=True) == ["local", "private", "secrets", "tmp"]
    assert looker.names("main") == ["local", "tmp"]


@pytest.mark.parametrize("path", [".claim.main.0", ".logs", ".none"])
def test_internal_files_next_to_tasks_are_hidden(looker: Looker, path: str) -> None:
    (looker.home / "main/local/link").symlink_to(f"../../{path}")
    for name in (path, "main/local/link"):
        assert looker.open(name, sees_secrets=True) == errno.ENOENT
        assert looker.page(name) == errno.ENOENT
    assert looker.names("") == ["alloc", "main"]


def test_log_owner_is_read_only_from_the_log_itself(looker: Looker) -> None:
    (looker.home / "main/local/link").symlink_to("../../.about")
    assert looker.open(".about") == b"{}"
    assert looker.open("main/local/link") == errno.ENOENT


def test_a_directory_is_listed_in_pages(looker: Looker) -> None:
    wanted = {f"{number}-{'x' * 100}" for number in range(700)}
    for name in wanted:
        (looker.home / "main/local" / name).touch()
    names, position = looker.page("main/local")
    assert 0 < len(names) <= 500
    assert position > 0
    assert {*looker.names("main/local")} == wanted | {"f"}


@pytest.mark.parametrize("position", [1, 7, 2**31, 2**62 + 12345, 2**63 - 1])
def test_unissued_list_position_reveals_nothing(looker: Looker, position: int) -> None:
    page = looker.page("main/local", position)
    assert isinstance(page, int) or {*page[0]} <= {"f"}
    assert looker.names("main/local") == ["f"]


@pytest.mark.parametrize("position", [-1, 2**63])
def test_impossible_list_position_stops_the_launcher(looker: Looker, position: int) -> None:
    looker.talk.send(1, 0, [51, ALLOCATION, "main/local", False, position])
    assert looker.talk.has_ended()


@needs_root
def test_hard_link_to_a_file_of_another_user_is_not_opened(greeted: Talk, tmp_path: Path) -> None:
    laid_out(greeted, room(user="nobody"))
    looker = Looker(greeted, tmp_path / ALLOCATION)
    other = tmp_path / "roots"
    other.write_text("root's")
    (looker.home / "main/local/hard").hardlink_to(other)
    assert looker.open("main/local/hard") == errno.EPERM
    os.chown(other, NOBODY, NOBODY)
    assert looker.open("main/local/hard") == b"root's"


@needs_root
def test_renamed_launcher_directory_gives_a_task_no_root_access(
    greeted: Talk, tmp_path: Path
) -> None:
    laid_out(greeted, room(user="nobody"))
    looker = Looker(greeted, tmp_path / ALLOCATION)
    other = tmp_path / "roots"
    other.write_text("root's")
    main = looker.home / "main"
    (main / "tmp/hard").hardlink_to(other)
    # The task's user can rename both directories, because it owns their parent.
    (main / "local").rename(main / "before")
    (main / "private").rename(main / "local")
    assert (main / "local").stat().st_uid == 0
    assert looker.open("main/tmp/hard") == errno.EPERM
    assert unpacked(greeted, framed(member("f"))) != Done()
    assert os.listdir(main / "local") == []
    (main / "tmp/closed").write_text("root's")
    (main / "tmp/closed").chmod(0o600)
    found, reasons = collected(greeted, tmp_path, "main/tmp/closed")
    assert (found, reasons) == ({}, ["main/tmp/closed: Permission denied"])


@needs_root
def test_link_swapped_in_during_an_open_is_not_followed(greeted: Talk, tmp_path: Path) -> None:
    laid_out(greeted, room(user="nobody"))
    looker = Looker(greeted, tmp_path / ALLOCATION)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "f").write_text("outside")
    (looker.home / "main/local/a").mkdir()
    (looker.home / "main/local/a/f").write_text("inside")
    with swapping(looker.home / "main/local/a", outside):
        found = {repr(looker.open("main/local/a/f")) for _ in range(1000)}
    assert repr(b"outside") not in found


# ---- logs ----------------------------------------------------------------------------------------


def test_log_is_created_for_writing_and_opened_for_reading(looker: Looker) -> None:
    assert looker.log() == errno.ENOENT
    written = looker.log("rotate")
    os.write(written, b"one")
    os.write(written, b"two")
    read = looker.log()
    assert os.pread(read, 100, 0) == b"onetwo"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.write(read, b"x")
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.read(written, 1)
    os.ftruncate(written, 0)
    close([read, written])
    assert (looker.home / "alloc/logs/main.stdout.0").stat().st_size == 0


@pytest.mark.parametrize("kind", ["file", "link", "pipe", "folder", "hard"])
def test_file_other_than_a_log_is_neither_read_nor_truncated(
    looker: Looker, tmp_path: Path, kind: str
) -> None:
    place, victim = looker.home / "alloc/logs/main.stdout.0", tmp_path / "victim"
    victim.write_text("kept")
    match kind:
        case "link":
            place.symlink_to(victim)
        case "pipe":
            os.mkfifo(place)
        case "folder":
            place.mkdir()
        case "hard":
            place.hardlink_to(victim)
        case _:
            if os.geteuid() != 0:
                pytest.skip("only root can act as another user")
            place.write_text("planted")
            os.chown(place, NOBODY, NOBODY)
    assert looker.log() in (errno.EEXIST, errno.ELOOP)
    if kind != "folder":
        descriptor = looker.log("rotate")  # creates a new file
        os.ftruncate(descriptor, 0)
        os.close(descriptor)
    assert victim.read_text() == "kept"


@pytest.mark.parametrize(
    "fields",
    [
        ["main", "stdin", "rotate"],
        ["main", "stdout", "read"],
        ["../main/local/f", "stdout", "rotate"],
        [".about", "stdout", "rotate"],
    ],
)
def test_invalid_log_name_stops_the_launcher(looker: Looker, fields: list[str]) -> None:
    looker.talk.send(1, 0, [52, ALLOCATION, *fields])
    assert looker.talk.has_ended()


# ---- podman --------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_allowed", [True, False])
def test_podman_of_root_is_accessible_only_if_configured(
    talk: Talk, tmp_path: Path, is_allowed: bool
) -> None:
    place = str(tmp_path / "podman.sock")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(place)
        listening.listen()
        policy = msgspec.structs.replace(EVERYTHING, podman=place if is_allowed else "")
        talk.greet(tmp_path / "alloc", policy)
        talk.send(1, 0, ConnectPodman())
        data, received = receive(talk.channel)
        answer = msgspec.msgpack.decode(data, type=NumberedReply).body
        close(received)
        if is_allowed:
            assert (answer, len(received)) == (Done(), 1)
            listening.accept()[0].close()
        else:
            assert (answer, received) == (RefusedReply(text="podman_root is off"), [])


def test_moved_logs_are_found(talk: Talk, tmp_path: Path) -> None:
    (tmp_path / "tasks").mkdir()
    talk.greet(tmp_path / "tasks/alloc")
    kept = tmp_path / "tasks/logs" / ALLOCATION / "alloc/logs"
    kept.mkdir(parents=True)
    (kept / "main.stdout.0").write_text("out")
    looker = Looker(talk, kept)
    descriptor = looker.log()
    assert os.read(descriptor, 10) == b"out"
    os.close(descriptor)
    assert looker.names("alloc/logs") == ["main.stdout.0"]
