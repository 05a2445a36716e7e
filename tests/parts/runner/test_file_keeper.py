"""The keeper of files: it trusts nothing in the launcher's stream, and is safe from crashes."""

import hashlib
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from daemon.config.data_directory import payload_dir
from daemon.jobs.payload_files import PayloadFiles, PayloadLimits
from daemon.launcher.file_collector import LENGTH
from daemon.launcher.messages import FilePart
from daemon.runner.setup.file_keeper import MOST_FILES, FileKeeper, KeptFiles
from storage.queries import allocations, jobs, kept_files, payload_files
from storage.records.base import HOUR
from storage.store import Store
from storage.writer import Transaction
from tests.samples import NOW, job
from tests.unit.runner.placements import placed

ALLOC = "5f3a2a40-0000-4000-8000-000000000001"
END = bytes(LENGTH)


class Stream:
    """A stream of a task's files that contains any data that a hostile child could send."""

    def __init__(self, *pieces: bytes, error: OSError | None = None) -> None:
        self.allocation, self.task = ALLOC, "main"
        self.staging_name = "main"
        self._pieces, self._error = pieces, error
        self.total = -1

    async def collect(
        self, patterns: Sequence[str], stream: int, *, size: int, total: int, count: int
    ) -> None:
        del patterns, size, count
        self.total = total
        for piece in self._pieces:
            os.write(stream, piece)
        if self._error is not None:
            raise self._error


def part(path: bytes, data: bytes = b"", *, is_end: bool = True, reason: str = "") -> bytes:
    content = msgspec.msgpack.encode(FilePart(path=path, data=data, is_end=is_end, reason=reason))
    return len(content).to_bytes(LENGTH) + content


@pytest.fixture
async def payloads(store: Store, tmp_path: Path) -> PayloadFiles:
    def work(tx: Transaction) -> None:
        one = jobs.append_version(tx, job())
        allocations.add(tx, placed(one, "n", ALLOC), NOW)

    await store.write(work)
    return PayloadFiles(store, f"{tmp_path}/payloads", PayloadLimits(file=1000, namespace=2500))


async def kept(store: Store, payloads: PayloadFiles, tmp_path: Path, stream: Any) -> KeptFiles:
    keeper = FileKeeper(store, payloads, f"{tmp_path}/staging")
    found = await keeper.keep(stream, "default", ["*"], NOW)
    assert os.listdir(tmp_path / "staging") == []
    return found


def names(store: Store) -> list[str]:
    return [kept_file.path for kept_file in store.read(lambda db: list(kept_files.page(db, ALLOC)))]


async def test_equal_contents_are_stored_once(
    store: Store, payloads: PayloadFiles, tmp_path: Path
) -> None:
    pieces = (
        part(b"main/a", b"one ", is_end=False),
        part(b"main/a", b"two"),
        part(b"alloc/data/b", b"one two"),
        part(b"main/empty"),
        END,
    )
    found = await kept(store, payloads, tmp_path, Stream(*pieces))
    assert found == KeptFiles(number=3, size=14)
    assert names(store) == ["a", "alloc/data/b", "empty"]
    stored = Path(payload_dir(f"{tmp_path}/payloads", "default"))
    digest = hashlib.sha256(b"one two").hexdigest()
    assert sorted(os.listdir(stored)) == sorted([digest, hashlib.sha256(b"").hexdigest()])
    assert (stored / digest).read_bytes() == b"one two"
    # A later end of the same task replaces the files.
    await kept(store, payloads, tmp_path, Stream(part(b"main/c", b"3"), END))
    assert names(store) == ["c"]


@pytest.mark.parametrize(
    ("pieces", "reason"),
    [
        (
            (b"\xff\xff\xff\xff",),
            "the files cannot be kept: a part of the stream has 4294967295 bytes",
        ),
        ((b"\0\0\0\x02ab",), "the files cannot be kept: a part of the stream is invalid: "),
        ((), "the files cannot be kept: the launcher ended the stream early"),
        ((part(b"main/a", b"x", is_end=False),), "ended the stream early"),
        ((part(b"main/a", b"x", is_end=False), END), "the files cannot be kept: a is incomplete"),
        (
            (part(b"main/a", b"x", is_end=False), part(b"main/b", b"x"), END),
            "the files cannot be kept: a is incomplete",
        ),
        ((part(b"main/a", bytes(1001)), END), "a is larger than announced"),
        (
            (part(b"main/../../etc/x", b"x"), END),
            "../../etc/x: its path has an empty, '.' or '..' component",
        ),
        ((part(b"main//x", b"x"), END), "/x: its path has an empty, '.' or '..' component"),
        ((part(b"main/\xff", b"x"), END), "its name is not UTF-8"),
        ((part(b"main/a\nb", b"x"), END), "its name has unprintable characters"),
        ((part(b"main/a", reason="it is a link"), END), "a: it is a link"),
        ((part(b"", reason="more than 3 files match"), END), "more than 3 files match"),
    ],
)
async def test_hostile_stream_is_not_stored(
    store: Store, payloads: PayloadFiles, tmp_path: Path, pieces: Any, reason: str
) -> None:
    found = await kept(store, payloads, tmp_path, Stream(*pieces))
    assert found.number == 0
    (told,) = found.reasons
    assert reason in told
    assert names(store) == []


async def test_response_of_the_launcher_is_the_reason(
    store: Store, payloads: PayloadFiles, tmp_path: Path
) -> None:
    stream = Stream(part(b"main/a", b"x"), error=OSError(5, "timeout after 60 s"))
    found = await kept(store, payloads, tmp_path, stream)
    assert found.number == 1
    assert found.reasons == ("the files cannot be kept: [Errno 5] timeout after 60 s",)


async def test_limits_of_number_and_namespace_are_reported(
    store: Store, payloads: PayloadFiles, tmp_path: Path
) -> None:
    pieces = [part(b"main/%d" % number, b"%d" % number) for number in range(MOST_FILES + 30)]
    found = await kept(store, payloads, tmp_path, Stream(*pieces, END))
    assert found.number == len(names(store)) == MOST_FILES
    assert found.reasons[0] == f"{MOST_FILES}: more than {MOST_FILES} files match"
    assert len(found.reasons) == 21
    large = [part(b"main/%d" % number, bytes([number]) * 900) for number in range(3)]
    found = await kept(store, payloads, tmp_path, Stream(*large, END))
    assert found.number == 2
    assert "larger than announced" in found.reasons[0]


async def test_upload_is_limited_to_the_remaining_space_of_its_namespace(
    store: Store, payloads: PayloadFiles, tmp_path: Path
) -> None:
    first = Stream(part(b"main/a", bytes(900)), part(b"main/b", b"x" * 900), END)
    assert (await kept(store, payloads, tmp_path, first)).number == 2
    written: list[int] = []
    move = PayloadFiles.take_in

    async def take_in(*given: Any, size: int, **named: Any) -> None:
        written.append(size)
        await move(*given, size=size, **named)

    second = Stream(part(b"main/c", b"c" * 700), part(b"main/d", b"d"), END)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PayloadFiles, "take_in", take_in)
        found = await kept(store, payloads, tmp_path, second)
    assert (first.total, second.total) == (2500, 700)
    assert written == [700]  # the second file is refused before it is written
    assert (found.number, names(store)) == (1, ["c"])
    assert found.reasons == ("the files cannot be kept: d is larger than announced",)


async def test_files_that_were_stored_before_a_crash_count_once(
    store: Store, payloads: PayloadFiles, tmp_path: Path
) -> None:
    contents = {b"a": b"a" * 900, b"b": b"b" * 900, b"c": b"c" * 700}
    pieces = [part(b"main/" + name, content) for name, content in contents.items()]
    keeper: Any = FileKeeper(store, payloads, f"{tmp_path}/staging")

    class _Killed(BaseException):
        pass

    def fail(*_: Any, **__: Any) -> None:
        raise _Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept_files, "replace", fail)
        with pytest.raises(_Killed):
            await keeper.keep(Stream(*pieces, END), "default", ["*"], NOW)
    assert names(store) == []
    again = Stream(*pieces, END)
    found = await kept(store, payloads, tmp_path, again)
    assert (again.total, found) == (2500, KeptFiles(number=3, size=2500))
    third = Stream(END)
    await kept(store, payloads, tmp_path, third)
    assert third.total == 0  # the task has ended: its files count


class _Waiting(Stream):
    """Files that arrive only when the test allows it."""

    def __init__(self) -> None:
        super().__init__(part(b"main/a", b"x"), END)
        self.began, self.may_go_on = trio.Event(), trio.Event()

    async def collect(self, *given: Any, **named: Any) -> None:
        self.began.set()
        await self.may_go_on.wait()
        await super().collect(*given, **named)


async def test_one_namespace_does_not_block_another(
    store: Store, payloads: PayloadFiles, tmp_path: Path
) -> None:
    keeper = FileKeeper(store, payloads, f"{tmp_path}/staging")
    many: list[Any] = [_Waiting() for _ in range(8)]
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for item in many:
                nursery.start_soon(keeper.keep, item, "default", ["*"], NOW)
            await trio.testing.wait_all_tasks_blocked()
            assert sum(item.began.is_set() for item in many) == 1
            other: Any = Stream(END)
            other.task = other.staging_name = "other"
            assert await keeper.keep(other, "other", ["*"], NOW) == KeptFiles()
            for item in many:
                item.may_go_on.set()
    assert all(item.began.is_set() for item in many)


async def test_files_are_deleted_after_their_allocation(
    store: Store, payloads: PayloadFiles, tmp_path: Path
) -> None:
    await kept(store, payloads, tmp_path, Stream(part(b"main/a", b"x"), END))
    digest = hashlib.sha256(b"x").hexdigest()
    assert await payloads.collect(NOW + 100 * HOUR) == 0
    assert store.read(partial(payloads.content, namespace="default", digest=digest)) is not None
    await store.write(lambda tx: tx.execute("DELETE FROM allocations", {}))
    assert names(store) == []
    assert await payloads.collect(NOW + HOUR) == 0  # files are deleted a day after their last use
    assert await payloads.collect(NOW + 25 * HOUR) == 1
    assert store.read(partial(payload_files.find, namespace="default", digest=digest)) is None
    assert os.listdir(payload_dir(f"{tmp_path}/payloads", "default")) == []


async def test_files_of_a_purged_allocation_are_not_recorded(
    store: Store, payloads: PayloadFiles, tmp_path: Path
) -> None:
    await store.write(lambda tx: tx.execute("DELETE FROM allocations", {}))
    await kept(store, payloads, tmp_path, Stream(part(b"main/a", b"x"), END))
    assert names(store) == []
    assert await payloads.collect(NOW + 25 * HOUR) == 1
