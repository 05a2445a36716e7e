"""What can be seen of an allocation's files, and that nothing else can be (golden: client-files-logs)."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon.launcher.beneath import without_links
from daemon.runner import beneath
from daemon.runner.beneath import Escapes, inner, open_beneath
from daemon.runner.files import Files, Prohibited, kind_of, mode_text
from daemon.runner.logs import TaskLog
from storage.records.task import LogConfig

MEGABYTE = 1024 * 1024


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return the directory of an allocation, with something to find beside it."""
    for name in ("alloc/logs", "alloc/data", "main/local", "main/secrets", "main/private"):
        (tmp_path / "a" / name).mkdir(parents=True)
    (tmp_path / "outside").write_text("not yours")
    (tmp_path / "a/main/local/f.txt").write_text("data\n")
    (tmp_path / "a/main/secrets/token").write_text("secret")
    (tmp_path / "a/.claim.main.0").write_text("the daemon's")
    return tmp_path / "a"


@pytest.fixture
def files(root: Path) -> Files:
    log = TaskLog(str(root), "main", "stdout", LogConfig(max_files=2, max_file_size_mb=1))
    return Files(str(root), {"main.stdout": log})


@pytest.fixture
def seeing(root: Path) -> Files:
    """Return the files as a caller sees them who may see secrets."""
    return Files(str(root), {}, sees_secrets=True)


@pytest.fixture(params=["kernel", "no links"])
def resolver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Resolve paths in each of the two ways."""
    if request.param == "no links":
        monkeypatch.setattr(beneath, "resolver", lambda **_: without_links)
    return


def content(root: Path, path: str) -> bytes:
    descriptor = open_beneath(str(root), path, os.O_RDONLY)
    try:
        return os.read(descriptor, 100)
    finally:
        os.close(descriptor)


def test_a_name_that_is_no_text_is_told_as_far_as_it_is(root: Path, files: Files) -> None:
    Path(os.fsdecode(os.fsencode(root) + b"/main/local/a\xff")).touch()
    assert [one.name for one in files.entries("main/local")] == ["a\ufffd", "f.txt"]


# ---- opening ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("resolver")
@pytest.mark.parametrize("path", ["main/local/f.txt", "/main/local/f.txt", "//main/./local//f.txt"])
def test_what_lies_below_is_opened(root: Path, path: str) -> None:
    assert content(root, path) == b"data\n"


@pytest.mark.usefixtures("resolver")
@pytest.mark.parametrize(
    "path", ["..", "/../", "/../../", "../outside", "main/../../outside", "/main/local/../../../x"]
)
def test_a_path_that_leads_out_is_refused(root: Path, path: str) -> None:
    with pytest.raises(Escapes, match=r"^Path escapes the alloc directory$"):
        content(root, path)


@pytest.mark.usefixtures("resolver")
@pytest.mark.parametrize(
    "target", ["/etc/passwd", "../../../outside", "/", "../../..", "/proc/self/root/etc/passwd"]
)
@pytest.mark.parametrize("below", ["", "/passwd", "/x/y"])
def test_a_link_that_leads_out_is_not_followed(root: Path, target: str, below: str) -> None:
    (root / "main/local/link").symlink_to(target)
    with pytest.raises((Escapes, OSError)):
        content(root, f"main/local/link{below}")


@pytest.mark.usefixtures("resolver")
@pytest.mark.parametrize("place", ["main", "main/local", "alloc"])
def test_a_directory_that_was_put_elsewhere_is_not_entered(root: Path, place: str) -> None:
    (root / place).rename(root.parent / "moved")
    (root / place).symlink_to(root.parent / "moved")
    with pytest.raises((Escapes, OSError)):
        open_beneath(str(root), f"{place}/x", os.O_RDONLY)


def test_a_link_that_stays_below_is_followed(root: Path) -> None:
    (root / "alloc/data/link").symlink_to("../../main/local/f.txt")
    assert content(root, "alloc/data/link") == b"data\n"


def test_a_kernel_without_the_call_follows_no_link(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beneath, "resolver", lambda **_: without_links)
    (root / "alloc/data/link").symlink_to("../../main/local/f.txt")
    with pytest.raises(OSError, match="symbolic links"):
        content(root, "alloc/data/link")


@pytest.mark.parametrize("path", ["a\0b", "x" * 300, "y/" * 3000])
def test_a_path_that_cannot_be_is_an_error_of_the_system(root: Path, path: str) -> None:
    with pytest.raises(OSError, match=r"Invalid|too long|No such"):
        content(root, path)


@pytest.mark.parametrize(("path", "shortest"), [("", ""), ("/", ""), ("a//b/../c/", "a/c")])
def test_a_path_is_shortened(path: str, shortest: str) -> None:
    assert inner(path) == shortest


# ---- looking ---------------------------------------------------------------------------------------


def test_what_the_daemon_keeps_for_itself_does_not_show(files: Files) -> None:
    assert [info.name for info in files.entries("/")] == ["alloc", "main"]


@pytest.mark.parametrize("path", [".claim.main.0", "/.claim.main.0", "main/../.claim.main.0", "l"])
def test_what_the_daemon_keeps_for_itself_cannot_be_asked_for(
    files: Files, root: Path, path: str
) -> None:
    (root / "l").symlink_to(".claim.main.0")
    for ask in (files.info, lambda path: files.read(path, 0, 10)):
        with pytest.raises(FileNotFoundError, match=f"No such file or directory: '{path}'"):
            ask(path)


@pytest.mark.parametrize("path", [".logs", "main/local/l"])
def test_a_directory_of_the_daemon_cannot_be_listed(files: Files, root: Path, path: str) -> None:
    (root / ".logs").mkdir()
    (root / "main/local/l").symlink_to("../../.logs")
    with pytest.raises(FileNotFoundError):
        files.entries(path)


def test_a_task_may_have_files_with_such_names(files: Files, root: Path) -> None:
    (root / "main/local/.profile").write_text("x")
    assert files.read("main/local/.profile", 0, 10) == b"x"


def test_a_file_has_name_size_and_kind(files: Files) -> None:
    info = files.info("/main/local/f.txt")
    assert (info.name, info.size, info.kind) == ("f.txt", 5, "text/plain; charset=utf-8")
    assert not info.is_directory
    assert files.info("/main").is_directory


def test_a_part_of_a_file_is_read(files: Files) -> None:
    assert files.read("/main/local/f.txt", 1, 2) == b"at"
    assert files.read("/main/local/f.txt", 9, 2) == b""


@pytest.mark.parametrize("place", ["main/secrets/token", "main/local/link"])
def test_what_is_secret_is_not_read_whatever_link_leads_there(
    files: Files, root: Path, place: str
) -> None:
    (root / "main/local/link").symlink_to("../secrets/token")
    with pytest.raises(Prohibited, match=f"Reading secret file prohibited: {place}"):
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
def test_nothing_tells_whether_a_secret_file_exists(
    files: Files, root: Path, verb: str, place: str
) -> None:
    (root / "main/secrets/out").symlink_to("/etc/passwd")
    (root / "main/secrets/back").symlink_to("../local/f.txt")
    asked = {"read": (0, 100)}.get(verb, ())
    if beneath.resolver(follows=True) is not without_links:
        (root / "main/local/link").symlink_to("../secrets/token")
        (root / "main/local/dir").symlink_to("../secrets")
    elif "local/" in place and ".." not in place:
        with pytest.raises((Escapes, OSError)):  # no link is followed at all
            getattr(files, verb)(place, *asked)
        return
    with pytest.raises(Prohibited, match=f"^Reading secret file prohibited: {place}$"):
        getattr(files, verb)(place, *asked)


def test_secret_directories_are_left_out_of_listings(files: Files, seeing: Files) -> None:
    assert [one.name for one in files.entries("main")] == ["local"]
    assert [one.name for one in seeing.entries("main")] == ["local", "private", "secrets"]


def test_task_named_secrets_is_listed(root: Path, files: Files) -> None:
    (root / "secrets/local").mkdir(parents=True)
    assert "secrets" in [one.name for one in files.entries("")]
    assert [one.name for one in files.entries("secrets")] == ["local"]


def test_caller_who_may_see_secrets_gets_names_and_sizes_but_no_contents(seeing: Files) -> None:
    assert [(one.name, one.size) for one in seeing.entries("main/secrets")] == [("token", 6)]
    assert seeing.info("main/secrets/token").size == 6
    with pytest.raises(Prohibited):
        seeing.read("main/secrets/token", 0, 100)


def test_a_pipe_keeps_nobody_waiting(files: Files, root: Path) -> None:
    os.mkfifo(root / "main/local/pipe")
    assert files.read("main/local/pipe", 0, 100) == b""
    assert not files.info("main/local/pipe").is_regular


def test_logs_show_as_numbered_files_of_which_the_last_are_kept(files: Files, root: Path) -> None:
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
def test_a_mode_reads_as_with_the_peer(mode: int, text: str) -> None:
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
def test_the_kind_of_a_file_is_seen_in_its_beginning(head: bytes, kind: str) -> None:
    assert kind_of(head) == kind
