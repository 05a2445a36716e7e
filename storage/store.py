"""The store: read, write and watch the database.

A read sees a consistent snapshot. A write returns after its changes are on disk. To wait for
changes, watch a topic first, then read, then wait.
"""

import fcntl
import logging
import os
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    nullcontext,
    suppress,
)
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import TypeVar

import trio

from storage import garbage, request_context, schema
from storage.account import CostedBlock, present
from storage.errors import (
    StorageDamaged,
    StorageError,
    StorageLocked,
    StorageUnavailable,
    StorageUnreadable,
    StorageUnusable,
    leaf_errors,
)
from storage.loop_share import LongRead
from storage.read_pool import ReadSnapshot, SnapshotReader
from storage.wal_watermark import MARK_NAME, WalWatermark
from storage.watch import TopicSet, Watch
from storage.writer import Transaction, Writer, storage_error

T = TypeVar("T")

FILE_NAME = "steward.db"
LOCK_NAME = "steward.lock"
_LOCK_TRIES, _LOCK_PAUSE = 200, 0.01  # attempts, and seconds between them
# A value of the current request, which all its code can read without a parameter.
_NOTE: ContextVar[Callable[[Transaction], None] | None] = ContextVar("note", default=None)
# The connection of this thread's long read; nested reads also use it.
_LONG: ContextVar[SnapshotReader | None] = ContextVar("long", default=None)
_FULL_PAUSE = 1.0  # seconds between retries while writes are not possible
_DAMAGED_PAUSE = 60.0  # seconds between retries while only a restored snapshot can help
_LONG_READS = 2  # concurrent; more would only wait for the interpreter lock

_log = logging.getLogger("steward.store")


class Store:
    """The open database, created by `open_store`."""

    def __init__(self, path: Path, writer: Writer, topics: TopicSet) -> None:
        self.path = path
        self._writer = writer
        self._topics = topics
        self.unreadable_rows = writer.unreadable_rows
        self._reader = SnapshotReader(path, self.unreadable_rows)
        self._idle: list[SnapshotReader] = []
        self._limiter = trio.CapacityLimiter(_LONG_READS)
        self._long_read_ends = trio.Event()

    def read(self, work: Callable[[ReadSnapshot], T]) -> T:
        """Return the result of `work` on the current snapshot.

        `work` runs on the event loop, so it must take well below a millisecond (a lookup by key
        takes 5 µs).
        """
        try:
            return (_LONG.get() or self._reader).read(work)
        except StorageUnreadable as error:
            self.unreadable_rows.note(error)
            raise
        except sqlite3.DatabaseError as error:
            if _LONG.get() is not None:  # in a thread, as set by `read_long`
                raise
            raise self._error(error) from error

    def read_short(self, work: Callable[[ReadSnapshot], T]) -> T:
        """Return the result of `work` on the current snapshot, within the limits of a short read.

        Raises `LongRead` when the limits are exceeded: then a thread must start the read again.
        """
        try:
            return self._reader.read_short(work)
        except StorageUnreadable as error:
            self.unreadable_rows.note(error)
            raise
        except sqlite3.DatabaseError as error:
            raise self._error(error) from error

    async def read_long(self, work: Callable[[ReadSnapshot], T]) -> T:
        """Return the result of `work` on the current snapshot, run in a thread."""
        async with self._limiter:
            reader = self._idle.pop() if self._idle else self._new_reader()
            try:
                return await garbage.without_cycles(partial(_read_long, reader, work))
            except StorageUnreadable as error:
                self.unreadable_rows.note(error)
                raise
            except sqlite3.DatabaseError as error:
                raise self._error(error) from error
            finally:
                self._idle.append(reader)
                self._long_read_ends.set()
                self._long_read_ends = trio.Event()

    def _new_reader(self) -> SnapshotReader:
        return SnapshotReader(self.path, self.unreadable_rows)

    @property
    def damage(self) -> str:
        """Return the reason why writes are rejected; empty while no corrupt page is known."""
        return self._writer.damage

    @property
    def full(self) -> str:
        """Return the error of the last write if the disk was full; otherwise an empty string."""
        return self._writer.full

    def _error(self, error: sqlite3.DatabaseError) -> StorageError:
        """Return the storage error for an SQLite error. If a page is corrupt, reject all writes."""
        storage_failure = storage_error(error)
        if isinstance(storage_failure, StorageDamaged):
            self._writer.stop(storage_failure)
        return storage_failure

    async def report_damage(self, reporting: trio.CancelScope) -> None:
        """Wait until a corrupt page is found, then log all corrupt pages."""
        with reporting:
            await self._writer.damaged.wait()
            # Imported late, because an intact store never needs it.
            from storage.damage import damaged_places

            _log.critical("%s", self._writer.damage)
            find_damage = partial(damaged_places, self.path)
            for damage in await trio.to_thread.run_sync(find_damage, abandon_on_cancel=True):
                _log.critical("the store is damaged: %s", damage)

    async def read_any(self, work: Callable[[ReadSnapshot], T]) -> T:
        """Return the result of `work`: on the event loop if it is short, otherwise in a thread.

        `work` must have no side effects, because it may be started twice.
        """
        with suppress(LongRead):  # it continues in a thread
            return self.read_short(work)
        return await self.read_long(work)

    async def long_read_ends(self) -> None:
        """Wait until the next long read ends."""
        await self._long_read_ends.wait()

    async def write(self, work: Callable[[Transaction], T], *, is_long: bool = False) -> T:
        """Run `work` in a transaction and return its result once it is on disk.

        `work` may run queries and pure functions; it must not read the clock or await. `work` may
        be started twice: if it exceeds its time limit on the event loop, a thread starts it again.
        With `is_long`, `work` runs in a thread immediately. Raises the exception of `work`, or a
        `StorageError`; nothing is stored then.
        """
        if (recorder := request_context.TRACING.recorder) is not None:
            with recorder.span("write"):
                return await self._write(work, is_long=is_long)
        return await self._write(work, is_long=is_long)

    async def _write(self, work: Callable[[Transaction], T], *, is_long: bool) -> T:
        note, request_id = _NOTE.get(), request_context.origin()
        person = request_context.person()
        if note is None and not request_id and not person:
            return await self._writer.submit(work, is_long=is_long)

        def noted(tx: Transaction) -> T:
            tx.request_id, tx.person = request_id, person
            before = tx.changes
            result = work(tx)
            if note is not None and tx.changes != before:
                note(tx)
            return result

        return await self._writer.submit(noted, is_long=is_long)

    def watch(self, *topics: str) -> Watch:
        """Return a watch on topics: enter it, read, then `await watch.wait()`."""
        return self._topics.watch(topics)

    @property
    def commits(self) -> int:
        """Return a number that increases each time committed changes become visible to readers."""
        return self._topics.published

    @property
    def change_number(self) -> int | None:
        """Return a number that is different after every change; None while a change is in progress.

        Values computed from the database are valid as long as the number is the same.
        """
        return None if self._writer.is_committing else self._writer.index

    def wake_all(self) -> None:
        """Wake all watchers, so that they check their conditions again."""
        self._topics.wake_all()

    def close(self) -> None:
        """Close the read connections."""
        self._reader.close()
        for reader in self._idle:
            reader.close()


def _read_long(reader: SnapshotReader, work: Callable[[ReadSnapshot], T]) -> T:
    with request_context.RequestScope(_LONG, reader), garbage.paused(), CostedBlock(present()):
        return reader.read(work)


def write_hook(note: Callable[[Transaction], None]) -> AbstractContextManager[None]:
    """Return a context manager that adds `note` to writes.

    In its block, each write that changes data also runs `note`.
    """
    return request_context.RequestScope(_NOTE, note)


@asynccontextmanager
async def tolerate_disk_full(action: str) -> AsyncIterator[None]:
    """Run the block. If writes are not possible, log `action` with the error, and pause.

    Use it for work that the daemon retries, so that neither a full disk nor another program's write
    lock ends the work.
    """
    try:
        yield
    except* StorageUnavailable as errors:
        _log.warning("%s: %s", action, next(leaf_errors(errors)))
        is_damaged = errors.subgroup(StorageDamaged) is not None
        await trio.sleep(_DAMAGED_PAUSE if is_damaged else _FULL_PAUSE)


@asynccontextmanager
async def open_store(
    directory: Path,
    *,
    cluster_id: str,
    now: int,
    is_locked: bool = False,
    before_migration: Callable[[], None] = lambda: None,
) -> AsyncIterator[Store]:
    """Open the store in `directory`, or create it with this cluster ID.

    Writes submitted before the block ends are stored before the file is closed. With `is_locked`
    the caller holds the lock. `before_migration` can refuse the migration of an older store by
    raising an error. Raises `StorageLocked`, `StorageFull` or `StorageUnusable`.
    """
    path = directory / FILE_NAME
    with nullcontext() if is_locked else lock(directory):
        mark = WalWatermark(directory)
        is_log_lost = mark.was_open and not path.with_name(f"{FILE_NAME}-wal").exists()
        schema.prepare(path, cluster_id=cluster_id, now=now, before_migration=before_migration)
        topics = TopicSet()
        try:
            writer = Writer(path, topics, mark)
            store = Store(path, writer, topics)
        except sqlite3.DatabaseError as error:
            raise storage_error(error) from error
        try:
            _compare(directory, mark, store, is_log_lost=is_log_lost)
            async with trio.open_nursery() as nursery:
                reporting = trio.CancelScope()
                nursery.start_soon(writer.run)
                nursery.start_soon(store.report_damage, reporting)
                try:
                    yield store
                finally:
                    reporting.cancel()
                    writer.close()
        finally:
            store.close()
            writer.disconnect()
            mark.end(writer.index)


def _compare(directory: Path, mark: WalWatermark, store: Store, *, is_log_lost: bool) -> None:
    """Raise `StorageUnusable` if the store is older than its watermark; else write a new watermark.

    If the write-ahead log is missing, the database file may still be complete: another program may
    have checkpointed the log when it closed the database.
    """
    index = store.read(ReadSnapshot.last_index)
    lost = "confirmed writes are missing" if index < mark.index else ""
    if is_log_lost and not lost:
        lost = next(iter(store.read(_damage)), "")
    if lost:
        raise StorageUnusable(
            f"{directory / FILE_NAME} has lost data: {lost} (it is at index {index}, and was "
            f"at {mark.index}); its write-ahead log was removed or cut, or an older file replaced it. "
            "Put back the right files, or restore a snapshot with `steward operator snapshot "
            f"restore`; to continue with the present files, remove {directory / MARK_NAME}"
        )
    try:
        mark.begin(index)
    except OSError as error:
        raise StorageUnusable(f"cannot write to the data directory {directory}: {error}") from error


def _damage(db: ReadSnapshot) -> list[str]:
    from storage.queries import invariants  # imported late, because a start rarely needs them

    pages = [row[0] for row in db.all("PRAGMA integrity_check") if row[0] != "ok"]
    return pages or list(invariants.find_violations(db))


def _lock(file: int, directory: Path) -> None:
    """Acquire the lock. Raises `StorageLocked`.

    If a daemon is killed during a fork, the child briefly holds the lock until it has called exec.
    """
    for _ in range(_LOCK_TRIES):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(file, 32, 0).decode(errors="replace").strip() or "unknown"
        else:
            return
        if Path(f"/proc/{holder}").exists():
            break
        time.sleep(_LOCK_PAUSE)
    raise StorageLocked(
        f"another daemon (pid {holder}) uses {directory}: stop it first, or name another "
        "directory with --data-dir"
    )


@contextmanager
def lock(directory: Path) -> Iterator[None]:
    """Lock the data directory against a second daemon. The kernel releases the lock at exit."""
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        file = os.open(directory / LOCK_NAME, flags, 0o600)
    except OSError as error:
        raise StorageUnusable(f"cannot write to the data directory {directory}: {error}") from error
    try:
        _lock(file, directory)
        try:
            os.truncate(file, 0)
            os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:
            raise StorageUnusable(
                f"cannot write to {directory / LOCK_NAME}: {error.strerror}; free some space on the "
                "file system of the data directory, then start again"
            ) from error
        yield
    finally:
        os.close(file)
