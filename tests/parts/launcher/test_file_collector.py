"""Kept files: a child reads them as the task's user, and sends no other files."""

import os
from pathlib import Path

import msgspec
import pytest

from daemon.launcher.file_collector import LENGTH
from daemon.launcher.messages import CollectFiles, Done, FilePart, OperationFailed
from tests.parts.launcher.conftest import ALLOCATION, Talk
from tests.parts.launcher.test_directories import NOBODY, laid_out, needs_root, room, swapping


def parts(data: bytes) -> list[FilePart]:
    """Return the parts of a complete stream."""
    found, at = [], 0
    while length := int.from_bytes(data[at : at + LENGTH]):
        at += LENGTH
        found.append(msgspec.msgpack.decode(data[at : at + length], type=FilePart))
        at += length
    assert data[at:] == bytes(LENGTH)
    return found


def collected(
    talk: Talk, tmp_path: Path, *patterns: str, **most: int
) -> tuple[dict[str, bytes], list[str]]:
    """Return the content of the files by path, and the reasons why others were not collected."""
    bounds = {"most_bytes": 1000, "most_total": 10**9, "most_files": 10, **most}
    request = CollectFiles(allocation=ALLOCATION, task="main", patterns=[*patterns], **bounds)
    stream = tmp_path.parent / f"{tmp_path.name}-stream"
    with stream.open("w+b") as file:
        answer = talk.ask(request, file.fileno()).body
        assert answer == Done()
    contents, files, reasons = dict[str, bytes](), dict[str, bytes](), []
    for part in parts(stream.read_bytes()):
        path = os.fsdecode(part.path)
        if part.reason:
            reasons.append(f"{path}: {part.reason}")
            continue
        contents[path] = contents.get(path, b"") + part.data
        if part.is_end:
            files[path] = contents[path]
    stream.unlink()
    return files, reasons


@pytest.fixture
def root(greeted: Talk, tmp_path: Path) -> Path:
    """An allocation directory whose task has its own user, if the host has other users."""
    laid_out(greeted, room(user="nobody" if os.geteuid() == 0 else ""))
    return tmp_path / ALLOCATION


def put(root: Path, path: str, content: bytes = b"x") -> Path:
    """Write a file as the task would."""
    place = root / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content)
    if os.geteuid() == 0:
        os.chown(place, NOBODY, NOBODY)
    return place


def test_patterns_select_files(greeted: Talk, root: Path, tmp_path: Path) -> None:
    put(root, "main/local/a.csv", b"A")
    put(root, "main/local/b.txt", b"B")
    put(root, "main/local/deep/er/c.csv", b"C" * 700_000)
    put(root, "main/local/.d.csv", b"D")
    put(root, "alloc/data/e.csv", b"E")
    ask = lambda *patterns: collected(greeted, tmp_path, *patterns, most_bytes=10**6)  # noqa: E731  # used below
    assert ask("main/local/*.csv") == ({"main/local/a.csv": b"A"}, [])
    assert ask("main/local/?.[ct]*") == (
        {"main/local/a.csv": b"A", "main/local/b.txt": b"B"},
        [],
    )
    assert ask("main/local/.*") == ({"main/local/.d.csv": b"D"}, [])
    assert ask("alloc/data/*", "alloc/*/e.csv") == ({"alloc/data/e.csv": b"E"}, [])
    files, reasons = ask("main/**/*.csv")
    assert files == {"main/local/a.csv": b"A", "main/local/deep/er/c.csv": b"C" * 700_000}
    assert reasons == []
    assert ask("main/local/*.bin") == ({}, [": no file matches local/*.bin"])


def test_links_pipes_and_hard_links_are_refused(greeted: Talk, root: Path, tmp_path: Path) -> None:
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    outside.write_bytes(b"root's")
    local = root / "main/local"
    (local / "link").symlink_to(outside)
    (local / "folder").symlink_to(tmp_path.parent)
    os.mkfifo(local / "pipe")
    put(root, "main/local/good", b"G")
    files, reasons = collected(
        greeted, tmp_path, "main/local/*", f"main/local/folder/{outside.name}"
    )
    assert files == {"main/local/good": b"G"}
    assert reasons == [
        "main/local/folder: it is a link, and links are not followed",
        "main/local/link: it is a link, and links are not followed",
        "main/local/pipe: it is not a regular file",
        f": no file matches local/folder/{outside.name}",
    ]
    outside.unlink()


@needs_root
def test_files_unreadable_for_the_task_are_refused(
    greeted: Talk, root: Path, tmp_path: Path
) -> None:
    locked = put(root, "main/local/locked")
    os.chown(locked, 0, 0)
    locked.chmod(0o600)
    assert collected(greeted, tmp_path, "main/local/locked") == (
        {},
        ["main/local/locked: Permission denied"],
    )


@pytest.mark.parametrize(
    "pattern",
    [
        "main/secrets/token",
        "main/private/x",
        "main/../other/x",
        "main//x",
        "other/local/x",
        ".launcher/x",
        "/etc/passwd",
        "main",
    ],
)
def test_other_directories_are_refused(
    greeted: Talk, root: Path, tmp_path: Path, pattern: str
) -> None:
    del root
    with (tmp_path / "stream").open("wb") as file:
        request = CollectFiles(
            allocation=ALLOCATION,
            task="main",
            patterns=[pattern],
            most_bytes=9,
            most_total=9,
            most_files=9,
        )
        assert isinstance(greeted.ask(request, file.fileno()).body, OperationFailed)
        assert file.tell() == 0


def test_secrets_match_no_pattern(greeted: Talk, root: Path, tmp_path: Path) -> None:
    put(root, "main/secrets/token", b"hidden")
    files, _ = collected(greeted, tmp_path, "main/**/*", "main/*/token")
    assert files == {}


def test_limits_are_reported(greeted: Talk, root: Path, tmp_path: Path) -> None:
    for number in range(4):
        put(root, f"main/local/{number}")
    put(root, "main/local/0", b"x" * 20)
    files, reasons = collected(greeted, tmp_path, "main/local/*", most_bytes=19, most_files=3)
    assert [*files] == ["main/local/1", "main/local/2"]
    assert reasons == [
        "main/local/0: it has 20 bytes, more than 19",
        ": more than 3 files match",
    ]


def test_all_files_share_a_limit_checked_before_sending(
    greeted: Talk, root: Path, tmp_path: Path
) -> None:
    put(root, "main/local/0", b"x" * 20)
    with put(root, "main/local/1", b"").open("r+b") as sparse:
        sparse.truncate(400)
    put(root, "main/local/2", b"x" * 30)
    put(root, "main/local/3", b"x")
    files, reasons = collected(greeted, tmp_path, "main/local/*", most_total=50)
    assert [*files] == ["main/local/0", "main/local/2"]
    assert reasons == [
        "main/local/1: it has 400 bytes, more than the 30 that are left in its namespace",
        "main/local/3: it has 1 bytes, more than the 0 that are left in its namespace",
    ]


def test_path_replaced_by_a_link_reveals_nothing(greeted: Talk, root: Path, tmp_path: Path) -> None:
    outside = tmp_path.parent / f"{tmp_path.name}-elsewhere"
    outside.mkdir()
    (outside / "f").write_bytes(b"root's")
    put(root, "main/local/d/f", b"own")
    (root / "main/local/e").symlink_to(outside)
    with swapping(root / "main/local/d", root / "main/local/e"):
        for _ in range(200):
            files, _ = collected(greeted, tmp_path, "main/local/*/f")
            assert b"root's" not in files.values()
