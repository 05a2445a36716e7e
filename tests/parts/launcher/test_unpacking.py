"""Artifacts: a child unpacks them as the task's user, whatever the stream contains."""

import os
import stat
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest

from daemon.launcher.messages import ArchiveMember, Done, OperationFailed, UnpackStream
from tests.parts.launcher.conftest import ALLOCATION, Talk
from tests.parts.launcher.test_directories import (
    NOBODY,
    facts,
    laid_out,
    needs_root,
    room,
    swapping,
)


def member(path: str, kind: str = "file", target: str = "", **fields: Any) -> ArchiveMember:
    given = {"mode": 0o644, "size": 1, **fields}
    return ArchiveMember(path=os.fsencode(path), kind=kind, target=os.fsencode(target), **given)


def framed(*members: Any, end: bytes = bytes(4)) -> bytes:
    """Return a stream of members, each with as many bytes as its `size`, and `end` at its end."""
    pieces = []
    for item in members:
        data = msgspec.msgpack.encode(item)
        size = item.size if isinstance(item, ArchiveMember) and item.kind == "file" else 0
        pieces += [len(data).to_bytes(4), data, b"x" * size]
    return b"".join([*pieces, end])


def unpacked(talk: Talk, stream: bytes, path: str = "main/local", **most: int) -> Any:
    """Return the answer to a request to unpack a stream."""
    bounds = {"most_bytes": 1000, "most_members": 10, **most}
    with tempfile.TemporaryFile() as file:
        file.write(stream)
        file.seek(0)
        request = UnpackStream(allocation=ALLOCATION, task="main", path=path, **bounds)
        return talk.ask(request, file.fileno()).body


@pytest.fixture
def root(greeted: Talk, tmp_path: Path) -> Path:
    """An allocation directory whose task has its own user, if the host has other users."""
    laid_out(greeted, room(user="nobody" if os.geteuid() == 0 else ""))
    return tmp_path / ALLOCATION


def test_files_folders_and_links_are_created(greeted: Talk, root: Path) -> None:
    stream = framed(
        member("a/b", "folder"), member("a/c/f", mode=0o755), member("a/l", "link", "c/f")
    )
    assert unpacked(greeted, stream, "main/local/x/y") == Done()
    made = root / "main/local/x/y/a"
    assert sorted(os.listdir(made)) == ["b", "c", "l"]
    assert stat.S_IMODE((made / "c/f").stat().st_mode) == 0o755
    assert os.readlink(made / "l") == "c/f"
    owners = {(path.lstat().st_uid, path.lstat().st_gid) for path in root.glob("main/local/**/*")}
    assert owners == {(NOBODY, NOBODY) if os.geteuid() == 0 else (os.geteuid(), os.getegid())}


@pytest.mark.parametrize("kind", ["file", "link"])
def test_existing_files_are_replaced_but_not_directories(
    greeted: Talk, root: Path, kind: str
) -> None:
    first = framed(member("d/f"), member("g"))
    assert unpacked(greeted, first) == Done()
    assert unpacked(greeted, framed(member("g", kind, "d"))) == Done()
    answer = unpacked(greeted, framed(member("d", kind, "g")))
    assert isinstance(answer, OperationFailed)
    assert "cannot replace a directory" in answer.text
    assert sorted(os.listdir(root / "main/local")) == ["d", "g"]


@pytest.mark.parametrize(
    "stream",
    [
        framed(member("../f")),
        framed(member("/f")),
        framed(member("a//f")),
        framed(member("a/../../f")),
        framed(member("")),
        framed(member("..", "folder")),
        framed(member("x" * 256)),
        framed(member("a\0b")),
        framed(member("l", "link", "/etc/shadow")),
        framed(member("l", "link", "../../../x")),
        framed(member("a/l", "link", "../../x")),
        framed(member("l", "link", "")),
        framed(member("f", mode=0o4755)),
        framed(member("f", "device")),
        framed(member("f", size=-1)),
        framed(member("f", "link", "x", size=2**64 - 1)),
        framed(["f"]),
        framed(member("f"), end=b""),
        framed(member("f", size=5))[:-7],
        b"\xff\xff\xff\xff",
        b"\0\0\0\5abcde",
        b"",
    ],
)
def test_unexpected_archive_member_is_refused(greeted: Talk, root: Path, stream: bytes) -> None:
    before = facts(root.parent)
    answer = unpacked(greeted, stream)
    assert isinstance(answer, OperationFailed)
    made = {path.name for path in root.glob("main/local/*")}
    assert made <= {"f", "a"}  # members before the refused one
    changed = {name for name, *_ in {*facts(root.parent)} ^ {*before}}
    assert all(f"{ALLOCATION}/main/local" in name for name in changed)


@pytest.mark.parametrize("most", [{"most_bytes": 5}, {"most_members": 2}])
def test_archive_is_limited_in_number_and_size(
    greeted: Talk, root: Path, most: dict[str, int]
) -> None:
    stream = framed(*(member(str(number), size=2) for number in range(3)))
    answer = unpacked(greeted, stream, **most)
    assert isinstance(answer, OperationFailed)
    assert answer.text.startswith("more than")
    assert len(os.listdir(root / "main/local")) == 2


@pytest.mark.parametrize(
    "path",
    [
        "",
        "main",
        "main/",
        "main/private",
        "main/x",
        "alloc",
        "alloc/logs",
        "alloc/tmp",
        "other/local",
        *("main/local/..", "main/local/../private", "main/local//x", "../main/local"),
        "/main/local",
    ],
)
def test_archive_is_unpacked_only_into_task_directories(
    greeted: Talk, root: Path, path: str
) -> None:
    before = facts(root)
    assert isinstance(unpacked(greeted, framed(member("f")), path), OperationFailed)
    assert facts(root) == before


@pytest.mark.parametrize("place", ["main/local", "main/local/d", "main/local/d/f", "alloc/data"])
def test_a_link_is_not_followed(greeted: Talk, root: Path, tmp_path: Path, place: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o777)
    outside.chmod(0o777)
    (outside / "f").write_text("whole")
    before = facts(outside)
    assert unpacked(greeted, framed(member("d/f"))) == Done()
    assert unpacked(greeted, framed(member("d/f")), "alloc/data") == Done()
    (root / place).rename(tmp_path / "aside")
    (root / place).symlink_to(outside / "f" if place.endswith("f") else outside)
    for path in ("main/local", "alloc/data"):
        unpacked(greeted, framed(member("d/f"), member("d/g")), path)
    assert facts(outside) == before


def test_link_swapped_in_during_unpacking_is_not_followed(
    greeted: Talk, root: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    (outside / "d").mkdir(parents=True)
    outside.chmod(0o777)
    (outside / "d").chmod(0o777)
    before = facts(outside)
    unpacked(greeted, framed(member("d/f")))
    with swapping(root / "main/local/d", outside):
        for _ in range(150):
            unpacked(greeted, framed(member("d/f"), member("d/d/g")))
    assert facts(outside) == before


@needs_root
def test_archive_is_not_unpacked_into_directories_of_other_users(greeted: Talk, root: Path) -> None:
    (root / "main/local/d").mkdir(mode=0o755)  # root's
    answer = unpacked(greeted, framed(member("d/f")))
    assert isinstance(answer, OperationFailed)
    assert os.listdir(root / "main/local/d") == []
