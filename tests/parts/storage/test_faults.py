"""The store after disk failures: rejected or repaired, and never silently wrong."""

import errno
import logging
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
import trio

from storage.check import check
from storage.errors import StorageFull, StorageUnusable
from storage.snapshot import restore, save
from storage.store import FILE_NAME, open_store
from storage.wal_watermark import MARK_NAME, WalWatermark
from tests.parts.storage.test_writer import add, names
from tests.samples import NOW
from tests.time_limits import HAPPENS_WITHIN

LOG = f"{FILE_NAME}-wal"
FAULTY = Path(__file__).parent.parent.parent / "fakes/faulty.c"
COMPILER = shutil.which("cc") or shutil.which("gcc")
HEADER, FRAME = 32, 24 + 4096  # bytes of the log's header, and of each frame with a page
EVERY = int(os.environ.get("TEST_TORN_EVERY", "499"))  # bytes between two cuts; 1 tries them all
PARTS = 1 + 3 * FRAME // EVERY // 1000  # number of tests; each has a time limit


async def look(directory: Path) -> set[str]:
    """Open a store, and return its contents."""
    async with open_store(directory, cluster_id="c", now=NOW) as store:
        return names(store)


async def crashed(directory: Path, *written: str) -> list[int]:
    """Leave the files of a store that crashed after these writes.

    Return the length of the write-ahead log after each write.
    """
    sizes = []
    async with open_store(directory / "at work", cluster_id="c", now=NOW) as store:
        for name in written:
            await store.write(add(name))
            sizes.append((directory / "at work" / LOG).stat().st_size)
        for name in (FILE_NAME, LOG, MARK_NAME):
            shutil.copy(directory / "at work" / name, directory / name)
    return sizes


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "at work").mkdir()
    return tmp_path


async def test_crash_preserves_every_committed_write(work: Path) -> None:
    await crashed(work, "a", "b")
    assert await look(work) == {"default", "a", "b"}


# ---- the log -------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", range(PARTS))
async def test_truncated_wal_gives_whole_writes_or_is_refused(work: Path, part: int) -> None:
    sizes = await crashed(work, "a", "b", "c")
    whole = (work / LOG).read_bytes()
    first = max(len(whole) - 3 * FRAME, sizes[0])
    edges = {size + near for size in sizes for near in range(-FRAME - 2, -FRAME + 26)}
    cuts = {*range(first, len(whole), EVERY), *edges, *(size - 1 for size in sizes)}
    for cut in sorted(number for number in cuts if first <= number < len(whole))[part::PARTS]:
        with pytest.raises(StorageUnusable, match="confirmed writes are missing"):
            await opened_at(work, whole[:cut])
        # An operator who accepts the loss gets all complete writes.
        (work / MARK_NAME).unlink()
        kept = sum(size <= cut for size in sizes)
        assert await opened_at(work, whole[:cut]) == {"default", *"abc"[:kept]}
        assert check(work) == []
        shutil.copy(work / "at work" / MARK_NAME, work / MARK_NAME)


async def opened_at(work: Path, log: bytes) -> set[str]:
    """Restore the database file as of the crash with this write-ahead log, and open the store."""
    if not (work / "file").exists():
        shutil.copy(work / FILE_NAME, work / "file")
    shutil.copy(work / "file", work / FILE_NAME)
    (work / f"{FILE_NAME}-shm").unlink(missing_ok=True)
    (work / LOG).write_bytes(log)
    return await look(work)


async def test_write_torn_before_its_response_is_dropped(work: Path) -> None:
    await crashed(work, "a")
    with (work / LOG).open("ab") as log:
        log.write(os.urandom(FRAME - 7))
    assert await look(work) == {"default", "a"}


async def test_removed_wal_is_detected(work: Path) -> None:
    await crashed(work, "a")
    (work / LOG).unlink()
    with pytest.raises(StorageUnusable, match=f"remove .*{MARK_NAME}"):
        await look(work)
    (work / MARK_NAME).unlink()
    assert await look(work) == {"default"}


async def test_wal_checkpointed_by_another_program_is_accepted(work: Path) -> None:
    await crashed(work, "a")
    with closing(sqlite3.connect(work / FILE_NAME)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    (work / LOG).unlink(missing_ok=True)
    assert await look(work) == {"default", "a"}


async def test_wal_removed_under_a_running_store_loses_nothing(tmp_path: Path) -> None:
    with pytest.RaisesGroup(pytest.RaisesExc(StorageUnusable, match="was deleted while")):
        async with open_store(tmp_path, cluster_id="c", now=NOW) as store:
            await store.write(add("a"))
            (tmp_path / LOG).unlink()
            await store.write(add("b"))
            await trio.sleep_forever()
    assert await look(tmp_path) == {"default", "a", "b"}
    assert check(tmp_path) == []


# ---- the file ------------------------------------------------------------------------------------


async def test_older_file_instead_of_the_store_is_refused(tmp_path: Path) -> None:
    async with open_store(tmp_path, cluster_id="c", now=NOW) as store:
        await store.write(add("a"))
        save(tmp_path, tmp_path / "snapshot")
        await store.write(add("b"))
    shutil.copy(tmp_path / "snapshot", tmp_path / FILE_NAME)
    with pytest.raises(StorageUnusable, match="an older file replaced it"):
        await look(tmp_path)
    restore(tmp_path / "snapshot", tmp_path)
    assert await look(tmp_path) == {"default", "a"}


# ---- the disk ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that makes system calls fail."""
    if COMPILER is None:
        pytest.skip("there is no C compiler")
    target = tmp_path_factory.mktemp("faulty") / "faulty.so"
    subprocess.run([COMPILER, "-shared", "-fPIC", "-o", target, FAULTY, "-ldl"], check=True)
    return target


def write_while_it_fails(library: Path, directory: Path, *words: object) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.parts.storage.faults", directory, *map(str, words)],
        env={**os.environ, "LD_PRELOAD": str(library)},
        cwd=Path(__file__).parent.parent.parent.parent,
        capture_output=True,
        timeout=HAPPENS_WITHIN,
        check=False,
    )
    assert not done.stderr, done.stderr.decode()
    return done.stdout.decode().splitlines()


@pytest.mark.parametrize(
    ("call", "number", "kind"),
    [
        ("pwrite", errno.EIO, "StorageError"),
        ("sync", errno.EIO, "StorageError"),
        ("pwrite", errno.ENOSPC, "StorageFull"),
        ("pwrite", errno.EROFS, "StorageError"),
    ],
)
@pytest.mark.parametrize("goes_on", ["on", "ends"])
async def test_failed_write_has_no_later_effect(
    faulty: Path, tmp_path: Path, call: str, number: int, kind: str, goes_on: str
) -> None:
    said, shown = write_while_it_fails(faulty, tmp_path, call, number, 1, goes_on)
    after = ["after"] if goes_on == "on" else []
    assert said.split()[0] == kind
    assert shown.split() == [*after, "before", "default"]
    assert await look(tmp_path) == {"default", "before", *after}
    assert check(tmp_path) == []


@pytest.mark.parametrize(("call", "number"), [("sync", errno.EIO), ("pwrite", errno.EROFS)])
async def test_permanent_disk_error_ends_the_daemon(
    faulty: Path, tmp_path: Path, call: str, number: int
) -> None:
    *_, said = write_while_it_fails(faulty, tmp_path, call, number, 1000)
    assert said.startswith("ended: ")
    assert {"default", "before"} <= await look(tmp_path)
    assert check(tmp_path) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of a few megabytes."""
    place = tmp_path / "small"
    place.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", place], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("no file systems can be mounted here")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def remount(place: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", place], check=True)


async def test_full_disk_preserves_acknowledged_writes_and_later_writes_succeed(
    small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "steward.store")
    kept = []
    async with open_store(small_disk, cluster_id="c", now=NOW) as store:
        (small_disk / "others").write_bytes(bytes(1_000_000))
        with suppress(StorageFull):  # until the disk is full
            for number in range(1000):
                await store.write(add(f"{number}" + "x" * 20_000))
                kept.append(f"{number}" + "x" * 20_000)
        assert len(kept) < 1000
        assert names(store) == {"default", *kept}
        with suppress(StorageFull):  # the disk is still full
            await store.write(add("again" + "x" * 20_000))
        assert "is full" in store.full
        assert caplog.text.count("writes are refused until there is space") == 1
        (small_disk / "others").unlink()
        await store.write(add("after"))
        assert store.full == ""
        assert caplog.text.count("the store has space again") == 1
    assert await look(small_disk) == {"default", *kept, "after"}
    assert check(small_disk) == []


async def test_store_without_space_for_its_watermark_starts_and_writes_the_watermark_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, is_full = os.pwrite, True

    def pwrite(file: int, data: bytes, place: int) -> int:
        if is_full and data.startswith(b"open"):
            raise OSError(errno.ENOSPC, "no room")
        return write(file, data, place)

    await look(tmp_path)
    (tmp_path / MARK_NAME).unlink()
    monkeypatch.setattr(os, "pwrite", pwrite)
    async with open_store(tmp_path, cluster_id="c", now=NOW) as store:
        assert WalWatermark(tmp_path).index == 0
        is_full = False
        index = await store.write(lambda tx: (add("a")(tx), tx.index)[1])
        assert WalWatermark(tmp_path).was_open
        assert WalWatermark(tmp_path).index == index
    assert await look(tmp_path) == {"default", "a"}


async def test_read_only_disk_is_refused_at_the_start(small_disk: Path) -> None:
    await look(small_disk)
    remount(small_disk, "ro")
    with pytest.raises(StorageUnusable, match="cannot write to the data directory"):
        await look(small_disk)
    remount(small_disk, "rw")
    assert await look(small_disk) == {"default"}
