"""Visible files of an allocation; all others stay hidden (recorded: client-files-logs)."""

import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from daemon.launcher import safe_open
from daemon.launcher.safe_open import without_links
from daemon.runner.core.safe_open import PathEscape, relative_path
from daemon.runner.core.task_log import TaskLog
from daemon.runner.logs import alloc_files
from daemon.runner.logs.alloc_files import (
    AllocFiles,
    FileAccessDenied,
    FileMetadata,
    kind_of,
    mode_text,
)
from storage.errors import Refused
from storage.records.task import LogConfig
from tests.launchers import Direct
from tests.task_logs import add, log_in, now, path_of

MEGABYTE = 1024 * 1024


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return an allocation's directory, with a file next to it that must stay hidden."""
    for name in ("alloc/logs", "alloc/data", "main/local", "main/secrets", "main/private"):
        (tmp_path / "a" / name).mkdir(parents=True)
    (tmp_path / "outside").write_text("not yours")
    (tmp_path / "a/main/local/f.txt").write_text("data\n")
    (tmp_path / "a/main/secrets/token").write_text("secret")
    (tmp_path / "a/.claim.main.0").write_text("the daemon's")
    return tmp_path / "a"


class Shown:
    """The files of an allocation, read in the process of the test."""

    def __init__(self, files: AllocFiles) -> None:
        self._files = files

    def entries(self, path: str) -> list[FileMetadata]:
        return now(self._files.entries(path))

    def info(self, path: str) -> FileMetadata:
        return now(self._files.open(path)).info

    def read(self, path: str, offset: int, most: int) -> bytes:
        return now(self._files.open(path)).read(offset, most)


def files_in(root: Path, logs: dict[str, TaskLog], *, sees_secrets: bool = False) -> Shown:
    files = AllocFiles(Direct(root.parent), root.name, str(root), logs, sees_secrets=sees_secrets)
    return Shown(files)


@pytest.fixture
def files(root: Path) -> Shown:
    log = log_in(root, config=LogConfig(max_files=2, max_file_size_mb=1))
    return files_in(root, {"main.stdout": log})


@pytest.fixture
def seeing(root: Path) -> Shown:
    """Return the files as seen by a caller with access to secrets."""
    return files_in(root, {}, sees_secrets=True)


@pytest.fixture(params=["kernel", "no links"])
def resolver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Resolve paths in each of the two ways."""
    if request.param == "no links":
        monkeypatch.setattr(safe_open, "resolver", lambda **_: without_links)
    return


def content(root: Path, path: str) -> bytes:
    return files_in(root, {}).read(path, 0, 100)


def test_undecodable_file_name_is_partly_shown(root: Path, files: Shown) -> None:
    Path(os.fsdecode(os.fsencode(root) + b"/main/local/a\xff")).touch()
    assert [entry.name for entry in files.entries("main/local")] == ["a\ufffd", "f.txt"]


# ---- opening ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("resolver")
@pytest.mark.parametrize("path", ["main/local/f.txt", "/main/local/f.txt", "//main/./local//f.txt"])
def test_path_below_the_directory_is_opened(root: Path, path: str) -> None:
    assert content(root, path) == b"data\n"


@pytest.mark.usefixtures("resolver")
@pytest.mark.parametrize(
    "path", ["..", "/../", "/../../", "../outside", "main/../../outside", "/main/local/../../../x"]
)
def test_path_that_escapes_the_directory_is_refused(root: Path, path: str) -> None:
    with pytest.raises(PathEscape, match=r"^Path escapes the alloc directory$"):
        content(root, path)


@pytest.mark.usefixtures("resolver")
@pytest.mark.parametrize(
    "target", ["/etc/passwd", "../../../outside", "/", "../../..", "/proc/self/root/etc/passwd"]
)
@pytest.mark.parametrize("below", ["", "/passwd", "/x/y"])
def test_link_that_escapes_the_directory_is_not_followed(
    root: Path, target: str, below: str
) -> None:
    (root / "main/local/link").symlink_to(target)
    with pytest.raises((PathEscape, OSError)):
        content(root, f"main/local/link{below}")


@pytest.mark.usefixtures("resolver")
@pytest.mark.parametrize("place", ["main", "main/local", "alloc"])
def test_moved_directory_is_not_entered(root: Path, place: str) -> None:
    (root / place).rename(root.parent / "moved")
    (root / place).symlink_to(root.parent / "moved")
    with pytest.raises((PathEscape, OSError)):
        content(root, f"{place}/x")


def test_link_within_the_directory_is_followed(root: Path) -> None:
    (root / "alloc/data/link").symlink_to("../../main/local/f.txt")
    assert content(root, "alloc/data/link") == b"data\n"


def test_kernel_without_openat2_follows_no_link(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safe_open, "resolver", lambda **_: without_links)
    (root / "alloc/data/link").symlink_to("../../main/local/f.txt")
    with pytest.raises(OSError, match="symbolic links"):
        content(root, "alloc/data/link")


@pytest.mark.parametrize("path", ["a\0b", "x" * 300, "y/" * 3000])
def test_impossible_path_is_a_system_error(root: Path, path: str) -> None:
    with pytest.raises(OSError, match=r"Invalid|too long|No such"):
        content(root, path)


@pytest.mark.parametrize(("path", "shortest"), [("", ""), ("/", ""), ("a//b/../c/", "a/c")])
def test_a_path_is_shortened(path: str, shortest: str) -> None:
    assert relative_path(path) == shortest


# ---- listing -------------------------------------------------------------------------------------


def test_internal_files_of_the_daemon_are_hidden(files: Shown) -> None:
    assert [info.name for info in files.entries("/")] == ["alloc", "main"]


@pytest.mark.parametrize("path", [".claim.main.0", "/.claim.main.0", "main/../.claim.main.0", "l"])
def test_internal_files_of_the_daemon_cannot_be_requested(
    files: Shown, root: Path, path: str
) -> None:
    (root / "l").symlink_to(".claim.main.0")
    for ask in (files.info, lambda path: files.read(path, 0, 10)):
        with pytest.raises(FileNotFoundError, match=f"No such file or directory: '{path}'"):
            ask(path)


@pytest.mark.parametrize("path", [".logs", "main/local/l"])
def test_a_directory_of_the_daemon_cannot_be_listed(files: Shown, root: Path, path: str) -> None:
    (root / ".logs").mkdir()
    (root / "main/local/l").symlink_to("../../.logs")
    with pytest.raises(FileNotFoundError):
        files.entries(path)


def test_task_can_have_files_with_internal_names(files: Shown, root: Path) -> None:
    (root / "main/local/.profile").write_text("x")
    assert files.read("main/local/.profile", 0, 10) == b"x"


def test_a_file_has_name_size_and_kind(files: Shown) -> None:
    info = files.info("/main/local/f.txt")
    assert (info.name, info.size, info.kind) == ("f.txt", 5, "text/plain; charset=utf-8")
    assert not info.is_directory
    assert files.info("/main").is_directory


def test_a_part_of_a_file_is_read(files: Shown) -> None:
    assert files.read("/main/local/f.txt", 1, 2) == b"at"
    assert files.read("/main/local/f.txt", 9, 2) == b""


@pytest.mark.parametrize("place", ["main/secrets/token", "main/local/link"])
def test_secret_file_is_not_readable_through_any_link(files: Shown, root: Path, place: str) -> None:
    (root / "main/local/link").symlink_to("../secrets/token")
    with pytest.raises(FileAccessDenied, match=f"Reading secret file prohibited: {place}"):
        files.read(place, 0, 100)


SECRET_PLACES = [
    *("main/secrets", "main/secrets/token", "main/secrets/none", "main/secrets/none/deeper"),
    *("main/private", "main/private/x", "/main/local/../secrets/token", "main//secrets/"),
    *("main/local/link", "main/local/dir", "main/local/dir/token", "main/local/dir/none"),
    *("main/local/dir/out", "main/local/dir/none/deeper", "main/secrets/back"),
]


@pytest.mark.usefixtures("resolver")
@pytest.mark.parametrize("verb", ["entries", "info", "read"])
@pytest.mark.parametrize("place", SECRET_PLACES)
def test_response_does_not_reveal_the_existence_of_a_secret_file(
    files: Shown, root: Path, verb: str, place: str
) -> None:
    (root / "main/secrets/out").symlink_to("/etc/passwd")
    (root / "main/secrets/back").symlink_to("../local/f.txt")
    asked = {"read": (0, 100)}.get(verb, ())
    if safe_open.resolver(follows=True) is not without_links:
        (root / "main/local/link").symlink_to("../secrets/token")
        (root / "main/local/dir").symlink_to("../secrets")
    elif "local/" in place and ".." not in place:
        with pytest.raises((PathEscape, OSError)):  # no link is followed at all
            getattr(files, verb)(place, *asked)
        return
    with pytest.raises(FileAccessDenied, match=f"^Reading secret file prohibited: {place}$"):
        getattr(files, verb)(place, *asked)


def test_secret_directories_are_left_out_of_listings(files: Shown, seeing: Shown) -> None:
    assert [entry.name for entry in files.entries("main")] == ["local"]
    assert [entry.name for entry in seeing.entries("main")] == ["local", "private", "secrets"]


def test_task_named_secrets_is_listed(root: Path, files: Shown) -> None:
    (root / "secrets/local").mkdir(parents=True)
    assert "secrets" in [entry.name for entry in files.entries("")]
    assert [entry.name for entry in files.entries("secrets")] == ["local"]


def test_caller_with_secrets_permission_gets_names_and_sizes_but_no_contents(seeing: Shown) -> None:
    assert [(entry.name, entry.size) for entry in seeing.entries("main/secrets")] == [("token", 6)]
    assert seeing.info("main/secrets/token").size == 6
    with pytest.raises(FileAccessDenied):
        seeing.read("main/secrets/token", 0, 100)


def test_pipe_blocks_no_request(files: Shown, root: Path) -> None:
    os.mkfifo(root / "main/local/pipe")
    assert files.read("main/local/pipe", 0, 100) == b""
    assert not files.info("main/local/pipe").is_regular


def test_logs_are_listed_as_the_latest_numbered_files(files: Shown, root: Path) -> None:
    (root / "alloc/logs/main.stdout.0").write_bytes(b"a" * MEGABYTE + b"b" * MEGABYTE + b"c" * 10)
    (root / "alloc/logs/other").write_text("a task's own")
    found = {info.name: info.size for info in files.entries("alloc/logs")}
    assert found == {"main.stdout.1": MEGABYTE, "main.stdout.2": 10, "other": 12}
    assert files.info("/alloc/logs/main.stdout.2").size == 10
    assert files.read("/alloc/logs/main.stdout.2", 8, 100) == b"cc"
    assert files.read("/alloc/logs/main.stdout.1", MEGABYTE - 1, 100) == b"b"
    with pytest.raises(FileNotFoundError):
        files.read("/alloc/logs/main.stdout.0", 0, 1)


# ---- words -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "text"),
    [
        (stat.S_IFREG | 0o644, "-rw-r--r--"),
        (stat.S_IFDIR | 0o777, "drwxrwxrwx"),
        (stat.S_IFDIR | stat.S_ISVTX | 0o777, "dtrwxrwxrwx"),
        (stat.S_IFLNK | 0o777, "Lrwxrwxrwx"),
        (stat.S_IFIFO | 0o600, "prw-------"),
        (stat.S_IFCHR | 0o666, "Dcrw-rw-rw-"),
        (stat.S_IFREG | stat.S_ISUID | 0o755, "urwxr-xr-x"),
    ],
)
def test_mode_is_formatted_like_in_nomad(mode: int, text: str) -> None:
    assert mode_text(mode) == text


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b"", "application/octet-stream"),
        (b"words\n", "text/plain; charset=utf-8"),
        ("größer".encode(), "text/plain; charset=utf-8"),
        (b"\x00\x01", "application/octet-stream"),
        (b"  <!DOCTYPE html><p>", "text/html; charset=utf-8"),
        (b"\x89PNG\r\n\x1a\n\x00", "image/png"),
        (b"\x1f\x8b\x08\x00", "application/x-gzip"),
    ],
)
def test_content_type_is_detected_from_the_first_bytes(head: bytes, kind: str) -> None:
    assert kind_of(head) == kind


# ---- large directories -----------------------------------------------------------------------------


def test_directory_with_too_many_entries_is_refused(
    root: Path, files: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alloc_files, "MOST_ENTRIES", 3)
    for number in range(2):
        (root / f"main/local/{number}").touch()
    assert len(files.entries("main/local")) == 3
    (root / "main/local/4").touch()
    with pytest.raises(Refused, match='directory "main/local" has more than 3 entries'):
        files.entries("main/local")


async def test_large_directory_does_not_hold_the_daemon(root: Path) -> None:
    for number in range(alloc_files.FEW_ENTRIES):
        (root / f"main/local/{number:03}").touch()
    files = AllocFiles(Direct(root.parent), root.name, str(root), {})
    own, used = threading.get_ident(), set[int]()

    class Watched(AllocFiles):
        def _sorted(self, *given: Any) -> list[FileMetadata]:
            used.add(threading.get_ident())
            return super()._sorted(*given)

    files.__class__ = Watched
    names = [entry.name for entry in await files.entries("main/local")]
    assert len(names) == alloc_files.FEW_ENTRIES + 1
    assert names == sorted(names)
    assert own not in used


async def test_log_that_a_task_enlarges_by_a_hole_does_not_hold_the_daemon(root: Path) -> None:
    log = log_in(root, config=LogConfig(max_files=10**9, max_file_size_mb=1))
    add(log, b"begin")
    numbers = 10 * alloc_files.MOST_ENTRIES
    os.truncate(path_of(log), numbers * MEGABYTE)
    files = AllocFiles(Direct(root.parent), root.name, str(root), {"main.stdout": log})
    assert now(log.current()).numbers() == range(numbers)
    last = await files.open(f"alloc/logs/main.stdout.{numbers - 1}")
    assert last.info.size == MEGABYTE
    for missing in (f"main.stdout.{numbers}", "main.stdout.01", "main.stdout.٣"):
        with pytest.raises(FileNotFoundError):
            await files.open(f"alloc/logs/{missing}")
    with pytest.raises(Refused, match="has more than"):
        await files.entries("alloc/logs")
