"""Input files: pieces, interruptions, limits, verification, use by jobs, and collection."""

import errno
import hashlib
import os
import tracemalloc
from functools import partial
from pathlib import Path

import pytest
import trio

from daemon.config.data_directory import payload_dir
from daemon.evals.gc import RetentionLimits, collect_input_files
from daemon.jobs import payload_files as tested
from daemon.jobs.dispatch import DispatchRequestData, dispatch_job
from daemon.jobs.payload_files import (
    MAX_PIECE,
    MOST_FILES,
    OffsetConflict,
    PayloadFiles,
    PayloadLimits,
)
from daemon.jobs.stop import stop_job
from storage.errors import Malformed, NotFound, StorageFull, TooLarge
from storage.queries import namespaces, payload_files
from storage.records.base import HOUR
from storage.records.job import Parameterized
from storage.records.namespace import Namespace
from storage.store import Store
from tests.parts.evals.cluster import Cluster
from tests.samples import NOW, job

CONTENT = bytes(range(256)) * 8
DIGEST = hashlib.sha256(CONTENT).hexdigest()
NO_LIMITS = PayloadLimits(file=0, namespace=0)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "payloads"


@pytest.fixture
async def files(store: Store, root: Path) -> PayloadFiles:
    await store.write(lambda tx: namespaces.put(tx, Namespace(name="other")))
    return PayloadFiles(store, str(root), NO_LIMITS)


async def send(
    files: PayloadFiles,
    content: bytes = CONTENT,
    *,
    step: int = 1000,
    begin: int = 0,
    digest: str = "",
    namespace: str = "default",
) -> bool:
    """Send a file in chunks; return whether it is complete."""
    digest = digest or hashlib.sha256(content).hexdigest()
    done = False
    for offset in range(begin, len(content), step):
        piece = content[offset : offset + step]
        state = await files.receive(
            namespace, digest, piece, size=len(content), offset=offset, now=NOW
        )
        assert state.received == offset + len(piece)
        done = state.is_complete
    return done


def stored(root: Path, namespace: str = "default", digest: str = DIGEST) -> Path:
    return Path(payload_dir(str(root), namespace)) / digest


async def test_file_sent_in_chunks_is_complete_with_its_last_chunk(
    files: PayloadFiles, store: Store, root: Path
) -> None:
    assert await send(files)
    assert stored(root).read_bytes() == CONTENT
    assert stored(root).stat().st_mode & 0o777 == 0o600
    assert stored(root).parent.stat().st_mode & 0o777 == 0o700
    state = store.read(lambda db: files.state(db, "default", DIGEST))
    assert (state.size, state.received, state.is_complete) == (len(CONTENT), len(CONTENT), True)


async def test_interrupted_upload_continues_after_a_restart(
    files: PayloadFiles, store: Store, root: Path
) -> None:
    for offset in range(0, 1000, 100):  # interrupted ten times
        again = PayloadFiles(store, str(root), NO_LIMITS)
        piece = CONTENT[offset : offset + 100]
        await again.receive("default", DIGEST, piece, size=len(CONTENT), offset=offset, now=NOW)
        state = store.read(lambda db: files.state(db, "default", DIGEST))
        assert (state.received, state.is_complete) == (offset + 100, False)
    assert await send(files, begin=1000)
    assert stored(root).read_bytes() == CONTENT


@pytest.mark.parametrize("offset", [0, 999, 1001])
async def test_chunk_at_a_wrong_offset_is_refused_with_the_expected_offset(
    files: PayloadFiles, offset: int
) -> None:
    await files.receive("default", DIGEST, CONTENT[:1000], size=len(CONTENT), offset=0, now=NOW)
    with pytest.raises(OffsetConflict, match="continue at 1000"):
        await files.receive("default", DIGEST, b"x", size=len(CONTENT), offset=offset, now=NOW)


async def test_different_content_is_refused_and_deleted(
    files: PayloadFiles, store: Store, root: Path
) -> None:
    other = CONTENT[:-1] + b"x"
    with pytest.raises(Malformed, match=f"not {DIGEST}"):
        await send(files, other, digest=DIGEST)
    with pytest.raises(NotFound):
        store.read(lambda db: files.state(db, "default", DIGEST))
    assert [*stored(root).parent.iterdir()] == []
    assert await send(files)  # a new upload begins at offset 0


async def test_repeated_upload_of_a_complete_file_changes_nothing(files: PayloadFiles) -> None:
    await send(files)
    state = await files.receive("default", DIGEST, b"x", size=len(CONTENT), offset=0, now=NOW)
    assert state.is_complete


async def test_lost_file_can_be_uploaded_again(
    files: PayloadFiles, store: Store, root: Path
) -> None:
    await send(files)
    stored(root).unlink()  # a snapshot has the row, but not the file
    state = store.read(lambda db: files.state(db, "default", DIGEST))
    assert (state.received, state.is_complete) == (0, False)
    assert await send(files)
    assert stored(root).read_bytes() == CONTENT


async def test_empty_file_is_complete_immediately(files: PayloadFiles) -> None:
    digest = hashlib.sha256(b"").hexdigest()
    state = await files.receive("default", digest, b"", size=0, offset=0, now=NOW)
    assert state.is_complete


async def test_namespaces_do_not_share_files(files: PayloadFiles, store: Store) -> None:
    await send(files, namespace="other")
    with pytest.raises(NotFound):
        store.read(lambda db: files.state(db, "default", DIGEST))


@pytest.mark.parametrize("digest", ["", "a" * 63, "A" * 64, "../" + "a" * 61, "a" * 64 + "\n"])
async def test_invalid_digest_is_refused(files: PayloadFiles, digest: str) -> None:
    with pytest.raises(Malformed, match="SHA-256"):
        await files.receive("default", digest, b"x", size=1, offset=0, now=NOW)


@pytest.mark.parametrize(
    ("piece", "size", "offset", "text"),
    [
        (b"xx", 1, 0, "exceed size 1"),
        (b"x", 4, 4, "exceed size 4"),
        (b"", 4, 0, "the body is empty"),
        (b"", 4, 3, "the body is empty"),
        (b"x", 2**62, 0, "size"),
    ],
)
async def test_oversized_chunk_is_refused(
    files: PayloadFiles, piece: bytes, size: int, offset: int, text: str
) -> None:
    with pytest.raises(Malformed, match=text):
        await files.receive("default", DIGEST, piece, size=size, offset=offset, now=NOW)


async def test_chunks_files_and_namespaces_have_limits(
    files: PayloadFiles, store: Store, root: Path
) -> None:
    files = PayloadFiles(store, str(root), PayloadLimits(file=3000, namespace=5000))
    with pytest.raises(TooLarge, match=f"at most {MAX_PIECE}"):
        await files.receive(
            "default", DIGEST, bytes(MAX_PIECE + 1), size=MAX_PIECE + 1, offset=0, now=NOW
        )
    with pytest.raises(TooLarge, match="payload_max_mb"):
        await files.receive("default", DIGEST, b"x", size=3001, offset=0, now=NOW)
    await send(files)
    unfinished = hashlib.sha256(b"other").hexdigest()
    await files.receive("default", unfinished, b"x", size=2900, offset=0, now=NOW)
    with pytest.raises(TooLarge, match="payload_namespace_mb"):
        await files.receive("default", "a" * 64, b"x", size=100, offset=0, now=NOW)
    assert await send(files, namespace="other")


async def test_memory_usage_is_independent_of_the_file_size(files: PayloadFiles) -> None:
    content = os.urandom(MAX_PIECE)
    whole = hashlib.sha256()
    for _ in range(32):
        whole.update(content)
    digest, size = whole.hexdigest(), 32 * MAX_PIECE
    tracemalloc.start()
    try:
        for offset in range(0, size, MAX_PIECE):
            state = await files.receive(
                "default", digest, content, size=size, offset=offset, now=NOW
            )
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert state.is_complete
    assert most < 4 * MAX_PIECE


async def test_changed_size_restarts_the_upload(files: PayloadFiles, root: Path) -> None:
    await files.receive("default", DIGEST, CONTENT[:-1], size=len(CONTENT), offset=0, now=NOW)
    with pytest.raises(Malformed, match="not"):
        await files.receive("default", DIGEST, b"", size=0, offset=0, now=NOW)
    assert [*stored(root).parent.iterdir()] == []
    await files.receive("default", DIGEST, CONTENT[:-1], size=len(CONTENT), offset=0, now=NOW)
    state = await files.receive("default", DIGEST, b"x", size=9, offset=0, now=NOW)
    assert state.received == 1
    (part,) = stored(root).parent.iterdir()
    assert part.stat().st_size == 1


async def test_number_of_files_of_a_namespace_has_a_limit(
    files: PayloadFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tested, "MOST_IN_NAMESPACE", 2)
    for number in range(2):
        await files.receive("default", f"{number:064}", b"x", size=9, offset=0, now=NOW)
    with pytest.raises(TooLarge, match="has 2 files"):
        await files.receive("default", DIGEST, b"x", size=9, offset=0, now=NOW)
    state = await files.receive("default", "0" * 64, b"x", size=9, offset=1, now=NOW)
    assert state.received == 2
    assert await send(files, namespace="other")


async def test_namespace_must_exist(files: PayloadFiles, root: Path) -> None:
    with pytest.raises(NotFound, match="namespace 'none' does not exist"):
        await send(files, namespace="none")
    assert not stored(root, "none").parent.exists()


async def test_upload_interrupted_before_its_verification_is_verified_again(
    files: PayloadFiles, store: Store, root: Path
) -> None:
    size = len(CONTENT)
    await files.receive("default", DIGEST, CONTENT[:-1], size=size, offset=0, now=NOW)
    with (root / stored(root).with_suffix(".part")).open("ab") as file:  # as before a crash
        file.write(CONTENT[-1:])
    state = store.read(lambda db: files.state(db, "default", DIGEST))
    assert (state.received, state.is_complete) == (size, False)
    state = await files.receive("default", DIGEST, b"", size=size, offset=size, now=NOW)
    assert state.is_complete
    assert stored(root).read_bytes() == CONTENT


@pytest.mark.parametrize(("piece", "offset"), [(b"", len(CONTENT)), (CONTENT, 0)])
async def test_upload_interrupted_before_its_marker_is_marked(
    files: PayloadFiles, store: Store, root: Path, piece: bytes, offset: int
) -> None:
    size = len(CONTENT)
    await files.receive("default", DIGEST, CONTENT[:-1], size=size, offset=0, now=NOW)
    stored(root).with_suffix(".part").unlink()
    stored(root).write_bytes(CONTENT)
    state = store.read(lambda db: files.state(db, "default", DIGEST))
    assert (state.received, state.is_complete) == (size, False)
    state = await files.receive("default", DIGEST, piece, size=size, offset=offset, now=NOW)
    assert state.is_complete
    assert [*stored(root).parent.iterdir()] == [stored(root)]


@pytest.mark.parametrize("last", [CONTENT[-1:], b"\0"])
async def test_concurrent_uploads_of_one_file_do_not_interfere(
    files: PayloadFiles, store: Store, root: Path, last: bytes
) -> None:
    size, outcomes = len(CONTENT), list[str]()
    await files.receive("default", DIGEST, CONTENT[:-1], size=size, offset=0, now=NOW)

    async def finish() -> None:
        again = PayloadFiles(store, str(root), NO_LIMITS)  # each request creates its own object
        try:
            done = await again.receive("default", DIGEST, last, size=size, offset=size - 1, now=NOW)
        except (Malformed, OffsetConflict) as error:
            outcomes.append(type(error).__name__)
        else:
            outcomes.append(str(done.is_complete))

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(finish)
    wrong = ["Malformed", "OffsetConflict", "OffsetConflict"]
    assert sorted(outcomes) == (["True"] * 3 if last == CONTENT[-1:] else wrong)


async def test_full_disk_is_reported_and_the_upload_continues(
    files: PayloadFiles, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = len(CONTENT)
    await files.receive("default", DIGEST, CONTENT[:9], size=size, offset=0, now=NOW)
    write = os.pwrite

    def full(descriptor: int, data: bytes, offset: int) -> int:
        if offset > 9:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data[:5], offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(StorageFull, match="No space left"):
            await files.receive("default", DIGEST, CONTENT[9:], size=size, offset=9, now=NOW)
    assert stored(root).with_suffix(".part").read_bytes() == CONTENT[:9]
    assert await send(files, begin=9)


async def test_full_disk_during_the_verification_is_reported_and_retried(
    files: PayloadFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    size = len(CONTENT)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StorageFull, match="quota"):
            await files.receive("default", DIGEST, CONTENT, size=size, offset=0, now=NOW)
    state = await files.receive("default", DIGEST, b"", size=size, offset=size, now=NOW)
    assert state.is_complete


async def test_directory_entry_of_a_complete_file_is_synced(
    files: PayloadFiles, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = list[Path]()
    monkeypatch.setattr(tested, "fsync_path", synced.append)
    await send(files)
    assert synced == [stored(root).parent, root]


# --- use ---


@pytest.fixture
async def cluster(store: Store) -> Cluster:
    made = Cluster(store)
    await made.register(job("each", type="batch", parameterized_job=Parameterized()))
    return made


async def dispatch(cluster: Cluster, files: dict[str, str], token: str = "") -> str:
    done = await dispatch_job(
        cluster.store,
        "default",
        "each",
        DispatchRequestData(payload=b"", meta={}, files=files, token=token),
        now=NOW,
        ids=cluster.ids,
        suffix=next(cluster.ids),
    )
    return done.job_id


def digest_of(store: Store, job_id: str, name: str) -> str:
    look = partial(payload_files.digest_of, namespace="default", job_id=job_id, name=name)
    return store.read(look)


async def test_child_has_the_files_of_its_dispatch(cluster: Cluster, files: PayloadFiles) -> None:
    await send(files)
    child = await dispatch(cluster, {"in.csv": DIGEST})
    assert digest_of(cluster.store, child, "in.csv") == DIGEST
    assert digest_of(cluster.store, child, "other") == ""
    assert digest_of(cluster.store, "each", "in.csv") == ""


async def test_repeated_dispatch_has_the_files_of_the_first(
    cluster: Cluster, files: PayloadFiles
) -> None:
    await send(files)
    child = await dispatch(cluster, {"a": DIGEST}, "once")
    assert await dispatch(cluster, {"b": DIGEST}, "once") == child
    assert digest_of(cluster.store, child, "a") == DIGEST


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"a": "b" * 64}, "upload the file first"),
        ({"a": "b"}, "SHA-256"),
        ({"a/b": DIGEST}, "is not a name"),
        ({"": DIGEST}, "is not a name"),
        ({".": DIGEST}, "is not a name"),
        ({f"n{number}": DIGEST for number in range(MOST_FILES + 1)}, "at most"),
    ],
)
async def test_dispatch_with_an_invalid_file_is_refused(
    cluster: Cluster, files: PayloadFiles, given: dict[str, str], text: str
) -> None:
    await send(files)
    with pytest.raises(Malformed, match=text):
        await dispatch(cluster, given)


async def test_dispatch_with_an_incomplete_file_is_refused(
    cluster: Cluster, files: PayloadFiles
) -> None:
    await files.receive("default", DIGEST, b"\0", size=len(CONTENT), offset=0, now=NOW)
    with pytest.raises(Malformed, match="upload the file first"):
        await dispatch(cluster, {"a": DIGEST})


async def test_file_is_deleted_a_day_after_its_last_job(
    cluster: Cluster, files: PayloadFiles, root: Path
) -> None:
    await send(files)
    await files.receive("default", "a" * 64, b"x", size=9, offset=0, now=NOW)
    child = await dispatch(cluster, {"in": DIGEST})
    assert await files.collect(NOW + 23 * HOUR) == 0
    await collect_input_files(cluster.store, NOW + 23 * HOUR, RetentionLimits(payloads=str(root)))
    assert await files.collect(NOW + 25 * HOUR) == 1  # the unfinished upload
    assert stored(root).exists()
    await stop_job(
        cluster.store,
        "default",
        child,
        purge=True,
        eval_priority=0,
        no_shutdown_delay=False,
        now=NOW,
        eval_id=next(cluster.ids),
    )
    later = NOW + 25 * HOUR
    await collect_input_files(cluster.store, later, RetentionLimits(payloads=str(root)))
    assert await files.collect(later) == 0
    assert [*stored(root).parent.iterdir()] == []


async def test_wrong_content_for_a_lost_job_file_leaves_the_file_incomplete(
    cluster: Cluster, files: PayloadFiles, root: Path
) -> None:
    await send(files)
    child = await dispatch(cluster, {"in": DIGEST})
    stored(root).unlink()
    with pytest.raises(Malformed, match="upload the file first"):
        await dispatch(cluster, {"in": DIGEST})
    with pytest.raises(Malformed, match=f"not {DIGEST}"):
        await send(files, CONTENT[:-1] + b"x", digest=DIGEST)
    state = cluster.store.read(lambda db: files.state(db, "default", DIGEST))
    assert (state.received, state.is_complete) == (0, False)
    assert digest_of(cluster.store, child, "in") == DIGEST
    assert await send(files)


async def test_each_chunk_restarts_the_retention_of_a_file(files: PayloadFiles, root: Path) -> None:
    size = len(CONTENT)
    await files.receive("default", DIGEST, CONTENT[:9], size=size, offset=0, now=NOW)
    later = NOW + 23 * HOUR
    await files.receive("default", DIGEST, CONTENT[9:], size=size, offset=9, now=later)
    assert await files.collect(NOW + 25 * HOUR) == 0
    again = NOW + 46 * HOUR  # complete files also stay
    await files.receive("default", DIGEST, CONTENT, size=size, offset=0, now=again)
    assert await files.collect(NOW + 48 * HOUR) == 0
    assert stored(root).exists()
    assert await files.collect(NOW + 71 * HOUR) == 1


@pytest.mark.parametrize("use", ["dispatch", "upload"])
async def test_reused_file_is_not_deleted(
    cluster: Cluster, files: PayloadFiles, root: Path, monkeypatch: pytest.MonkeyPatch, use: str
) -> None:
    await send(files)
    looked: list[object] = []
    later = NOW + 25 * HOUR
    read = cluster.store.read_long

    async def then_used(work: object) -> object:
        """Let the file be used between the search and the deletion."""
        result = await read(work)
        if result == [("default", DIGEST)] and not looked:
            looked.append(True)
            if use == "dispatch":
                await dispatch(cluster, {"in": DIGEST})
            else:
                size = len(CONTENT)
                await files.receive("default", DIGEST, b"", size=size, offset=size, now=later)
        return result

    monkeypatch.setattr(cluster.store, "read_long", then_used)
    assert await files.collect(later) == 0
    assert looked
    assert stored(root).read_bytes() == CONTENT
    assert cluster.store.read(lambda db: files.state(db, "default", DIGEST)).is_complete


async def test_files_without_a_row_are_deleted(files: PayloadFiles, root: Path) -> None:
    await send(files)
    strays = [
        stored(root, digest="a" * 64),
        stored(root, digest="b" * 64).with_suffix(".part"),
        stored(root, "other"),  # the file is only in another namespace
    ]
    for stray in strays:
        stray.parent.mkdir(exist_ok=True)
        stray.write_bytes(b"x")
    assert await files.collect(NOW) == 3
    assert not any(stray.exists() for stray in strays)
    assert stored(root).read_bytes() == CONTENT
