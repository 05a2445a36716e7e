"""The only door to the file: read, write, watch.

Reads see one moment of the file. A write returns only after its change is on disk. Whoever wants
to know of a change watches a topic first, reads, and waits.
"""

import fcntl
import logging
import os
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import TypeVar

import trio

from storage import garbage, origin, schema
from storage.errors import (
    StorageDamaged,
    StorageError,
    StorageLocked,
    StorageUnavailable,
    StorageUnusable,
    leaves,
)
from storage.mark import MARK_NAME, Mark
from storage.readers import LongRead, Reader, Snapshot
from storage.watch import Topics, Watch
from storage.writer import Transaction, Writer, storage_error

T = TypeVar("T")

FILE_NAME = "steward.db"
LOCK_NAME = "steward.lock"
_LOCK_TRIES, _LOCK_PAUSE = 200, 0.01  # seconds between them
# What belongs to a request, not to the place where something is written.
_NOTE: ContextVar[Callable[[Transaction], None] | None] = ContextVar("note", default=None)
# The connection of the long read that this thread does: what it calls reads from it, too.
_LONG: ContextVar[Reader | None] = ContextVar("long", default=None)
_FULL_PAUSE = 1.0  # seconds between attempts to write while no write is possible
_DAMAGED_PAUSE = 60.0  # seconds between attempts that only a restored snapshot lets succeed
_LONG_READS = 2  # at a time; more would only wait for the interpreter lock

_log = logging.getLogger("steward.store")


class Store:
    """The open file. Made by `open_store`."""

    def __init__(self, path: Path, writer: Writer, topics: Topics) -> None:
        self.path = path
        self._writer = writer
        self._topics = topics
        self._reader = Reader(path)
        self._idle: list[Reader] = []
        self._limiter = trio.CapacityLimiter(_LONG_READS)
        self._long_read_ends = trio.Event()

    def read(self, work: Callable[[Snapshot], T]) -> T:
        """Return what `work` makes of the file as it is now.

        Runs on the event loop: for what takes well under a millisecond (a point read is 5 µs).
        """
        try:
            return (_LONG.get() or self._reader).read(work)
        except sqlite3.DatabaseError as error:
            if _LONG.get() is not None:  # in a thread: `read_long` notes it
                raise
            raise self._error(error) from error

    def read_short(self, work: Callable[[Snapshot], T]) -> T:
        """Return what `work` makes of the file as it is now, if that is little.

        Raises `LongRead` when it is not: then nothing has come of it, and a thread has to do it.
        """
        try:
            return self._reader.read_short(work)
        except sqlite3.DatabaseError as error:
            raise self._error(error) from error

    async def read_long(self, work: Callable[[Snapshot], T]) -> T:
        """Return what `work` makes of the file as it is now, without holding up anything else."""
        async with self._limiter:
            reader = self._idle.pop() if self._idle else Reader(self.path)
            try:
                return await trio.to_thread.run_sync(_read_long, reader, work)
            except sqlite3.DatabaseError as error:
                raise self._error(error) from error
            finally:
                self._idle.append(reader)
                self._long_read_ends.set()
                self._long_read_ends = trio.Event()

    @property
    def damage(self) -> str:
        """Return why no write is accepted; empty while no page is known to be corrupt."""
        return self._writer.damage

    def _error(self, error: sqlite3.DatabaseError) -> StorageError:
        """Return the meaning of an error of a read; a corrupt page ends all writes."""
        found = storage_error(error)
        if isinstance(found, StorageDamaged):
            self._writer.stop(found)
        return found

    async def report_damage(self, reporting: trio.CancelScope) -> None:
        """Log which pages are corrupt, once one has been met."""
        with reporting:
            await self._writer.damaged.wait()
            from storage.damage import damaged_places  # no sound store needs it

            _log.critical("%s", self._writer.damage)
            places = partial(damaged_places, self.path)
            for place in await trio.to_thread.run_sync(places, abandon_on_cancel=True):
                _log.critical("the store is damaged: %s", place)

    async def look(self, work: Callable[[Snapshot], T]) -> T:
        """Return what `work` makes of the file: here if that is little, else in a thread.

        `work` has no effects, because it may be begun twice.
        """
        with suppress(LongRead):
            return self.read_short(work)
        return await self.read_long(work)

    async def long_read_ends(self) -> None:
        """Return when a long read, whoever asked for it, has come to its end."""
        await self._long_read_ends.wait()

    async def write(self, work: Callable[[Transaction], T]) -> T:
        """Run `work` in a transaction and return what it returned, once that is on disk.

        `work` may run queries and pure functions; it reads no clock, makes no identifiers and
        never awaits. Raises what it raised, or a `StorageError`; then nothing was kept.
        """
        note, request_id = _NOTE.get(), origin.current()
        if note is None and not request_id:
            return await self._writer.submit(work)

        def noted(tx: Transaction) -> T:
            tx.request_id = request_id
            before = tx.changes
            result = work(tx)
            if note is not None and tx.changes != before:
                note(tx)
            return result

        return await self._writer.submit(noted)

    def watch(self, *topics: str) -> Watch:
        """Return a watch on these topics: enter it, read, then `await watch.wait()`."""
        return self._topics.watch(topics)

    @property
    def commits(self) -> int:
        """Return a number that grows whenever others may see something new."""
        return self._topics.published

    @property
    def moment(self) -> int | None:
        """Return a number that is another one after every change; None while one is being made.

        What was worked out from the file holds as long as the moment is the same.
        """
        return None if self._writer.is_committing else self._writer.index

    def wake_all(self) -> None:
        """Wake everyone who watches anything: they look again."""
        self._topics.wake_all()

    def close(self) -> None:
        """Close the connections for reading."""
        self._reader.close()
        for reader in self._idle:
            reader.close()


def _read_long(reader: Reader, work: Callable[[Snapshot], T]) -> T:
    with origin.Bound(_LONG, reader), garbage.put_off():
        return reader.read(work)


def noting(note: Callable[[Transaction], None]) -> AbstractContextManager[None]:
    """Have every write of this block that changes something do `note` as well, as a part of it."""
    return origin.Bound(_NOTE, note)


@asynccontextmanager
async def unless_full(what: str) -> AsyncIterator[None]:
    """Run the block; if no write is possible now, log that `what` waits, and pause for a moment.

    For work that the daemon repeats by itself: neither a full disk nor a write lock that another
    program holds may end it.
    """
    try:
        yield
    except* StorageUnavailable as errors:
        _log.warning("%s: %s", what, next(leaves(errors)))
        is_damaged = errors.subgroup(StorageDamaged) is not None
        await trio.sleep(_DAMAGED_PAUSE if is_damaged else _FULL_PAUSE)


@asynccontextmanager
async def open_store(directory: Path, *, cluster_id: str, now: int) -> AsyncIterator[Store]:
    """Open the store in `directory`, creating it with this cluster id when there is none.

    What was submitted before the block ends is written before the file is closed. Raises
    `StorageLocked` or `StorageUnusable`.
    """
    path = directory / FILE_NAME
    with lock(directory):
        mark = Mark(directory)
        is_log_lost = mark.was_open and not path.with_name(f"{FILE_NAME}-wal").exists()
        schema.prepare(path, cluster_id=cluster_id, now=now)
        topics = Topics()
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


def _compare(directory: Path, mark: Mark, store: Store, *, is_log_lost: bool) -> None:
    """Raise `StorageUnusable` when the file is not as far as it was; else let the mark begin.

    Without its log it may be whole all the same: another program that closes it folds the log in.
    """
    index = store.read(Snapshot.last_index)
    lost = "writes that were answered are missing" if index < mark.index else ""
    if is_log_lost and not lost:
        lost = next(iter(store.read(_damage)), "")
    if lost:
        raise StorageUnusable(
            f"{directory / FILE_NAME} is not as it was: {lost} (it is at index {index}, and was "
            f"at {mark.index}); its write-ahead log was removed or cut, or an older file took its place. "
            "Put back what belongs there, or restore a snapshot with `steward operator snapshot "
            f"restore`; to go on with what there is, remove {directory / MARK_NAME}"
        )
    try:
        mark.begin(index)
    except OSError as error:
        raise StorageUnusable(f"cannot write to the data directory {directory}: {error}") from error


def _damage(db: Snapshot) -> list[str]:
    from storage.queries import invariants  # hardly a start needs them

    pages = [row[0] for row in db.all("PRAGMA integrity_check") if row[0] != "ok"]
    return pages or list(invariants.broken(db))


def _take(file: int, directory: Path) -> None:
    """Take the lock. Raises `StorageLocked`.

    A daemon that is killed while it starts a task leaves the lock to the unfinished child for the
    moment until that has become another program.
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
        f"another daemon (pid {holder}) works on {directory}: stop it first, or name another "
        "directory with --data-dir"
    )


@contextmanager
def lock(directory: Path) -> Iterator[None]:
    """Hold the directory: no second daemon may work on its file. The kernel lets go at our end."""
    try:
        file = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise StorageUnusable(f"cannot write to the data directory {directory}: {error}") from error
    try:
        _take(file, directory)
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
