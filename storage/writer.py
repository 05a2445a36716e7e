"""The writer: executes all changes of the database in order.

Callers submit a function. Functions that wait at the same time share a transaction (group commit),
so a burst of dispatches costs one fsync. Each function has its own savepoint. If a function raises,
only its changes are undone, and only its caller gets the exception. Callers and watchers are
notified after COMMIT has returned.

The functions run on the event loop's thread; only COMMIT, which waits for the disk, runs in another
thread. If two threads ran Python code, they would pass the interpreter lock to each other every
5 ms, which would cost more than the fsync. A function has a time limit on the event loop, like a
read. Beyond the limit, its changes are undone, and a thread starts it again, in the same
transaction. Waiting for another program's write lock also happens in a thread, with a timeout.
"""

import logging
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Generic, TypeVar

import outcome
import trio

from storage import garbage
from storage.account import CostedBlock, present
from storage.errors import (
    StewardError,
    StorageBusy,
    StorageDamaged,
    StorageError,
    StorageFull,
    StorageUnavailable,
    StorageUnreadable,
    StorageUnusable,
)
from storage.loop_share import LongRead, limited
from storage.read_pool import ROWS, STEPS, Parameters, ReadSnapshot, UnreadableRows, connect
from storage.wal_watermark import WalWatermark
from storage.watch import TopicSet

T = TypeVar("T")

_log = logging.getLogger("steward.store")

# Maximum writes per transaction. More would block readers on the event loop for longer than a
# single write takes (bench/writes.py).
MAX_BATCH = 64

# Nanoseconds of CPU time for a write on the event loop, and for all writes in one turn.
SHARE = 1_500_000
_TURN = 1_000_000

# Milliseconds to wait for another program, such as a backup, to release the write lock.
BUSY_WAIT = 5000

_NEXT_INDEX = "SELECT last_index FROM store"
_KEEP_INDEX = "UPDATE store SET last_index = :index"
_TOUCH = """
    INSERT INTO table_indexes (name, last_index) VALUES (:name, :index)
    ON CONFLICT (name) DO UPDATE SET last_index = excluded.last_index
"""


class Transaction(ReadSnapshot):
    """The context of a write: read, change rows, and publish topics.

    If the write exceeds its time limit, methods raise `LongRead`, and a thread starts the write
    again.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        index: int,
        write: object = None,
        share: int | None = None,
        unreadable_rows: UnreadableRows | None = None,
    ) -> None:
        """Start an attempt at a write.

        `write` is the same object for all attempts at one write. `share` is the time limit in
        nanoseconds of CPU time, or None.
        """
        super().__init__(connection, unreadable_rows)
        self.index = index
        self.write = write
        self._until, self.is_over = None, False  # the time limit
        self._earliest = 0  # time of the clock before which the limit cannot be exceeded
        if share is not None:
            self._until, self.left = time.thread_time_ns() + share, ROWS
            self._earliest = time.perf_counter_ns() + share
        self.request_id = ""  # of the request that caused the write, and its trace
        self.person = ""  # of that request
        self.touched: dict[str, None] = {}
        self.topics: dict[str, None] = {}

    def is_over_time(self) -> bool:
        """Return whether the time limit is exceeded.

        A thread cannot use more CPU time than has elapsed. So the elapsed time is checked first.
        Reading it needs no system call, and takes a tenth as long as reading the CPU time.
        """
        if self._until is None or time.perf_counter_ns() < self._earliest:
            return self.is_over
        left = self._until - time.thread_time_ns()
        if left < 0:
            self.is_over = True
        else:
            self._earliest = time.perf_counter_ns() + left
        return self.is_over

    def _count(self, row: sqlite3.Row) -> sqlite3.Row:
        try:
            return super()._count(row)
        except LongRead:
            self.is_over = True
            raise

    def _check_share(self) -> None:
        if self.is_over_time():
            raise LongRead

    def one(self, sql: str, parameters: Parameters = {}) -> sqlite3.Row | None:  # noqa: B006  # never changed
        """Return the first row, or None."""
        self._check_share()
        return super().one(sql, parameters)

    def all(self, sql: str, parameters: Parameters = {}) -> list[sqlite3.Row]:  # noqa: B006  # never changed
        """Return all rows."""
        self._check_share()
        return super().all(sql, parameters)

    def each(self, sql: str, parameters: Parameters = {}) -> Iterator[sqlite3.Row]:  # noqa: B006  # never changed
        """Yield rows one by one."""
        for row in super().each(sql, parameters):
            self._check_share()
            yield row

    @property
    def changes(self) -> int:
        """Return a number that is different after each change of a row."""
        return self._connection.total_changes

    def execute(self, sql: str, parameters: Mapping[str, object]) -> int:
        """Change rows; return their number."""
        self._check_share()
        return self._connection.execute(sql, parameters).rowcount

    def touch(self, table: str, *topics: str) -> None:
        """Record that objects of a table have changed, and wake the watchers of these topics."""
        self.touched[table] = None
        self.publish(*topics)

    def publish(self, *topics: str) -> None:
        """Wake the watchers of these topics after the commit."""
        for topic in topics:
            self.topics[topic] = None


Work = Callable[[Transaction], T]


class _Pending(Generic[T]):
    """A submitted write: its function, its result, and the event of its completion."""

    def __init__(self, work: Work[T], *, is_long: bool = False) -> None:
        self.work, self.is_long = work, is_long
        self.account = present()
        self.result: outcome.Outcome[T] | None = None
        self.topics: tuple[str, ...] = ()
        self.done = trio.Event()


class Writer:
    """The queue of writes, and the task that processes it."""

    def __init__(self, path: Path, topics: TopicSet, mark: WalWatermark) -> None:
        self._log = path.with_name(f"{path.name}-wal")
        self._mark = mark
        self._connection = connect(path, read_only=False)
        # A restored snapshot has no write-ahead log yet.
        self._connection.execute("PRAGMA journal_mode = WAL")
        # FULL: an acknowledged write survives a power failure. A larger write-ahead log is
        # truncated at the next checkpoint.
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute("PRAGMA journal_size_limit = 67108864")
        self._connection.execute("PRAGMA temp_store = MEMORY")
        self._connection.execute("PRAGMA busy_timeout = 0")  # only `_begin` waits, in a thread
        self._topics = topics
        self._waiting: list[_Pending[object]] = []
        self._work_arrived = trio.Event()
        self._closing = False
        self._ended = False
        self.unreadable_rows = UnreadableRows()
        self.damage = ""  # why writes are rejected
        self.full = ""  # why the last write failed, while the disk is full
        self.damaged = trio.Event()
        # During a commit, readers may see different states between two reads.
        self.is_committing = False
        self.index = int(self._connection.execute(_NEXT_INDEX).fetchone()["last_index"])
        self._log_number = self._log.stat().st_ino

    async def submit(self, work: Work[T], *, is_long: bool = False) -> T:
        """Run `work` in a write, and return its result once it is on disk.

        With `is_long`, a thread runs `work`. If the caller is cancelled, the write still happens.
        Raises the exception of `work`, or a `StorageError` when the file cannot be written:
        `StorageBusy` for another program's lock, `StorageDamaged` for a corrupt page. Nothing is
        stored then. Raises `trio.ClosedResourceError` when the writer has ended.
        """
        if self._ended:
            raise trio.ClosedResourceError("the store is closed")
        if self.damage:
            raise StorageDamaged(self.damage)
        pending = _Pending(work, is_long=is_long)
        self._waiting.append(pending)  # type: ignore[arg-type]  # the queue is untyped
        self._work_arrived.set()
        await pending.done.wait()
        assert pending.result is not None  # noqa: S101  # set before the event
        return pending.result.unwrap()

    async def run(self) -> None:
        """Commit batches until `close` is called and all queued writes are committed.

        Raises `StorageUnusable` when the write-ahead log was deleted, after saving its content to
        the database.
        """
        while True:
            if not self._waiting:
                if self._closing:
                    self._ended = True
                    return
                self._work_arrived = trio.Event()
                await self._work_arrived.wait()
                continue
            batch, self._waiting = self._waiting[:MAX_BATCH], self._waiting[MAX_BATCH:]
            with trio.CancelScope(shield=True):
                self.is_committing = True
                await self._commit(batch)
                self.is_committing = False
            self._check_log()

    def close(self) -> None:
        """Let `run` return after it has committed all queued writes."""
        self._closing = True
        self._work_arrived.set()

    def stop(self, damage: StorageDamaged) -> None:
        """Reject further writes, because each could damage the file more."""
        self.damage = self.damage or str(damage)
        self.damaged.set()

    def disconnect(self) -> None:
        """Close the connection, which checkpoints the write-ahead log."""
        self._connection.close()

    async def _commit(self, batch: list[_Pending[object]]) -> None:
        try:
            with _as_storage_errors():
                index = await self._run_all(batch)
                await trio.to_thread.run_sync(self._connection.execute, "COMMIT")
            self.index = index
            self._mark.record(index)
        except StorageError as error:
            if isinstance(error, StorageDamaged):
                self.stop(error)
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            await self._take_back(error)
            if isinstance(error, StorageBusy):
                # All other writes would wait again as long for the same lock, batch by batch.
                batch, self._waiting = [*batch, *self._waiting], []
            for pending in batch:
                # A write that failed keeps its own error. The successful writes were undone.
                if isinstance(pending.result, outcome.Error) and isinstance(
                    pending.result.error, StewardError
                ):
                    continue
                pending.result, pending.topics = outcome.Error(error), ()
        self._note_space(batch)
        for pending in batch:
            self._topics.publish(pending.topics)
            pending.done.set()

    def _note_space(self, batch: list[_Pending[object]]) -> None:
        """Log when the disk becomes full and when writes succeed again."""
        results = [pending.result for pending in batch]
        errors = [result.error for result in results if isinstance(result, outcome.Error)]
        full = next((str(error) for error in errors if isinstance(error, StorageFull)), "")
        if full and not self.full:
            _log.warning("%s; writes are refused until there is space", full)
        elif self.full and not full and len(errors) < len(batch):
            _log.info("the store has space again")
        else:
            return
        self.full = full

    async def _begin(self) -> None:
        """Begin a transaction; wait in a thread while another program holds the write lock.

        Raises `sqlite3.OperationalError` (SQLITE_BUSY) after `BUSY_WAIT`.
        """
        try:
            self._connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if not _is_busy(error):
                raise
            await trio.to_thread.run_sync(self._begin_when_unlocked)

    def _begin_when_unlocked(self) -> None:
        self._connection.execute(f"PRAGMA busy_timeout = {BUSY_WAIT}")
        try:
            self._connection.execute("BEGIN IMMEDIATE")
        finally:
            self._connection.execute("PRAGMA busy_timeout = 0")

    async def _take_back(self, error: StorageError) -> None:
        """Ensure that the log does not contain a failed commit, which a crash would restore.

        The commit may be complete in the log if only fsync failed. The next commit overwrites the
        failed one in the log, so make another commit immediately. If that also fails, the state is
        unknown and the daemon ends.
        """
        if isinstance(error, StorageUnavailable | StorageUnusable):
            return  # nothing complete can have been written
        with _as_storage_errors():
            await self._begin()
            # Change the index, because SQLite does not write a transaction without changes.
            self._connection.execute(_KEEP_INDEX, {"index": self.index + 1})
            self._connection.execute("COMMIT")
        self.index += 1

    def _check_log(self) -> None:
        """Raise `StorageUnusable` if the write-ahead log was deleted.

        Other programs would not see the content of a deleted log.
        """
        with suppress(OSError):  # it was deleted; the file is checked below
            if self._log.stat().st_ino == self._log_number:
                return
        with _as_storage_errors():
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        raise StorageUnusable(
            f"{self._log} was deleted while the daemon was running; its content was saved: start the daemon again"
        )

    async def _run_all(self, batch: list[_Pending[object]]) -> int:
        """Run each write in its own savepoint; return the index of the last write."""
        await self._begin()
        try:
            index, touched = await self._run_each(batch, SHARE)
        except _UndoneError:
            await self._begin()
            index, touched = await self._run_each(batch, None)
        if index != self.index:
            self._connection.execute(_KEEP_INDEX, {"index": index})
            for name, last in touched.items():
                self._connection.execute(_TOUCH, {"name": name, "index": last})
        return index

    async def _run_each(
        self, batch: list[_Pending[object]], share: int | None
    ) -> tuple[int, dict[str, int]]:
        """Run the writes; return the last index, and the last index of each changed table.

        Without a `share`, a thread runs all writes. With a `share`, the event loop runs each write
        up to this time limit, and other tasks run in between. A thread runs long writes, and
        repeats writes that exceed the limit. Raises `_UndoneError`.
        """
        index, touched, turn = self.index, dict[str, int](), time.thread_time_ns() + _TURN
        for pending in batch:
            if time.thread_time_ns() > turn:
                await trio.lowlevel.checkpoint()
                turn = time.thread_time_ns() + _TURN
            changes = self._connection.total_changes
            self._connection.execute("SAVEPOINT one")
            transaction = Transaction(
                self._connection, index + 1, pending, share, self.unreadable_rows
            )
            is_long = share is None or pending.is_long
            if not is_long:
                self._try(pending, transaction)
            if is_long or transaction.is_over:
                self._connection.execute("ROLLBACK TO one")
                transaction = Transaction(
                    self._connection, index + 1, pending, unreadable_rows=self.unreadable_rows
                )
                await trio.to_thread.run_sync(_run_when_unlocked, pending, transaction)
            if isinstance(pending.result, outcome.Error):
                if _is_fatal(pending.result.error):
                    raise pending.result.error
                self._connection.execute("ROLLBACK TO one")
            elif self._connection.total_changes != changes:
                index = transaction.index
                touched.update(dict.fromkeys(transaction.touched, index))
                pending.topics = tuple(transaction.topics)
            self._connection.execute("RELEASE one")
        return index, touched

    def _try(self, pending: _Pending[object], transaction: Transaction) -> None:
        """Run a write within its time limit on the event loop.

        Raises `_UndoneError` when SQLite has rolled back the whole transaction, as it does when a
        change of rows is interrupted.
        """
        self._connection.set_progress_handler(transaction.is_over_time, STEPS)
        try:
            with CostedBlock(pending.account), limited():
                pending.result = outcome.capture(pending.work, transaction)
            if isinstance(pending.result, outcome.Error):
                transaction.is_over |= isinstance(pending.result.error, LongRead)
        finally:
            self._connection.set_progress_handler(None, 0)
        if transaction.is_over and not self._connection.in_transaction:
            raise _UndoneError


class _UndoneError(Exception):
    """SQLite has rolled back the transaction, so all writes of the batch must run again."""


def _run_when_unlocked(pending: _Pending[object], transaction: Transaction) -> None:
    garbage.free_in_thread(pending.work)
    with garbage.paused(), CostedBlock(pending.account):
        pending.result = outcome.capture(pending.work, transaction)


def _is_fatal(error: BaseException) -> bool:
    """Return whether an error loses the whole transaction, as a disk error does."""
    return isinstance(error, sqlite3.Error) and not isinstance(
        error, sqlite3.IntegrityError | sqlite3.ProgrammingError | sqlite3.InterfaceError
    )


def _is_busy(error: sqlite3.Error) -> bool:
    return (getattr(error, "sqlite_errorname", "") or "").startswith("SQLITE_BUSY")


@contextmanager
def _as_storage_errors() -> Iterator[None]:
    """Convert SQLite errors into storage errors."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        raise storage_error(error) from error


def storage_error(error: sqlite3.DatabaseError) -> StorageError:
    """Return the storage error for an error of SQLite."""
    name = getattr(error, "sqlite_errorname", "") or ""
    if name.startswith("SQLITE_FULL"):
        return StorageFull(f"the disk that holds the store is full: {error}")
    if _is_busy(error):
        return StorageBusy(
            "another program holds the write lock of the store: end its transaction, or retry later"
        )
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return StorageDamaged(
            f"the store is damaged, and no write is accepted: {error} ({name}); run `steward operator "
            "check`, then restore a snapshot with `steward operator snapshot restore`"
        )
    # Python's decoding of a text has no SQLite error code.
    if "malformed JSON" in str(error) or (not name and "decode to UTF-8" in str(error)):
        return StorageUnreadable(
            f"a row of the store cannot be read: {error}; run `steward operator check` to find it"
        )
    if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN")):
        return StorageUnusable(f"the store cannot be used: {error} ({name})")
    return StorageError(f"the store cannot be read or written: {error} ({name or 'unknown'})")
