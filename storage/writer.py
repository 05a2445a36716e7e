"""The one writer: every change to the file passes through here, in order.

Callers hand over a function. Functions that wait at the same moment share one
transaction (group commit), so a burst of dispatches costs one fsync. Each runs in
its own savepoint: one that raises is undone alone, and its caller alone hears of
it. Nobody is answered or woken before COMMIT has returned.

The functions run on the event loop's thread and only COMMIT, which waits for the disk, runs in
another: two threads that both run Python take turns of 5 ms at the interpreter lock, which would
cost a write more than its fsync. The wait for a write lock that another program holds is in a
thread as well, and it is bounded.
"""

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Generic, TypeVar

import outcome
import trio

from storage.errors import (
    StewardError,
    StorageBusy,
    StorageDamaged,
    StorageError,
    StorageFull,
    StorageUnavailable,
    StorageUnusable,
)
from storage.mark import Mark
from storage.readers import Snapshot, connect
from storage.watch import Topics

T = TypeVar("T")

# How many writes share a transaction at most: beyond this the loop is kept from readers for
# longer than a lone write takes (bench/writes.py).
MAX_BATCH = 64

# Milliseconds that a write waits for another program, for example a backup, to release the write lock.
BUSY_WAIT = 5000

_NEXT_INDEX = "SELECT last_index FROM store"
_KEEP_INDEX = "UPDATE store SET last_index = :index"
_TOUCH = """
    INSERT INTO table_indexes (name, last_index) VALUES (:name, :index)
    ON CONFLICT (name) DO UPDATE SET last_index = excluded.last_index
"""


class Transaction(Snapshot):
    """What a write may do: read, change rows, and say what it has changed."""

    def __init__(self, connection: sqlite3.Connection, index: int) -> None:
        super().__init__(connection)
        self.index = index
        self.request_id = ""  # of the request that this goes back to
        self.touched: dict[str, None] = {}
        self.topics: dict[str, None] = {}

    @property
    def changes(self) -> int:
        """Return a number that is another one after any row has changed."""
        return self._connection.total_changes

    def execute(self, sql: str, parameters: Mapping[str, object]) -> int:
        """Change rows; return how many."""
        return self._connection.execute(sql, parameters).rowcount

    def touch(self, table: str, *topics: str) -> None:
        """Note that objects of this kind have changed, and wake who watches these topics."""
        self.touched[table] = None
        self.publish(*topics)

    def publish(self, *topics: str) -> None:
        """Wake who watches these topics once this is written."""
        for topic in topics:
            self.topics[topic] = None


Work = Callable[[Transaction], T]


class _Pending(Generic[T]):
    """A write on its way: what to run, what came of it, and when that holds."""

    def __init__(self, work: Work[T]) -> None:
        self.work = work
        self.result: outcome.Outcome[T] | None = None
        self.topics: tuple[str, ...] = ()
        self.done = trio.Event()


class Writer:
    """The queue of writes and the task that empties it."""

    def __init__(self, path: Path, topics: Topics, mark: Mark) -> None:
        self._log = path.with_name(f"{path.name}-wal")
        self._mark = mark
        self._connection = connect(path, read_only=False)
        # A restored snapshot has no log of its own yet.
        self._connection.execute("PRAGMA journal_mode = WAL")
        # FULL: a write that was answered survives the loss of power. A write-ahead log larger
        # than this is cut back at the next checkpoint.
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute("PRAGMA journal_size_limit = 67108864")
        self._connection.execute("PRAGMA temp_store = MEMORY")
        self._connection.execute("PRAGMA busy_timeout = 0")  # only `_begin` waits, in a thread
        self._topics = topics
        self._waiting: list[_Pending[object]] = []
        self._work_arrived = trio.Event()
        self._closing = False
        self._ended = False
        self.damage = ""  # why no write is accepted
        self.damaged = trio.Event()
        # Then what readers see may be another thing from one look to the next.
        self.is_committing = False
        self.index = int(self._connection.execute(_NEXT_INDEX).fetchone()["last_index"])
        self._log_number = self._log.stat().st_ino

    async def submit(self, work: Work[T]) -> T:
        """Return what `work` returned, once that is on disk.

        A cancelled caller stops waiting; the write goes on. Raises what `work` raised, or
        a `StorageError` when the file could not be written (`StorageBusy` when another program
        holds its write lock, `StorageDamaged` when a page is corrupt): then nothing of it was kept; and
        `trio.ClosedResourceError` when the writer has ended.
        """
        if self._ended:
            raise trio.ClosedResourceError("the store is closed")
        if self.damage:
            raise StorageDamaged(self.damage)
        pending = _Pending(work)
        self._waiting.append(pending)  # type: ignore[arg-type]  # the queue does not care for T
        self._work_arrived.set()
        await pending.done.wait()
        assert pending.result is not None  # noqa: S101  # set before done
        return pending.result.unwrap()

    async def run(self) -> None:
        """Commit batch after batch until `close`; the last batch is not lost.

        Raises `StorageUnusable` when somebody has removed the write-ahead log; what was in it is
        in the file then.
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
            self._keep_log()

    def close(self) -> None:
        """Let `run` return once everything that waits is written."""
        self._closing = True
        self._work_arrived.set()

    def stop(self, damage: StorageDamaged) -> None:
        """Accept no more writes: each could destroy more of the file."""
        self.damage = self.damage or str(damage)
        self.damaged.set()

    def disconnect(self) -> None:
        """Close the connection; folds the write-ahead log into the file."""
        self._connection.close()

    async def _commit(self, batch: list[_Pending[object]]) -> None:
        try:
            with _meaning():
                await self._begin()
                index = self._run_all(batch)
                await trio.to_thread.run_sync(self._connection.execute, "COMMIT")
            self.index = index
            self._mark.note(index)
        except StorageError as error:
            if isinstance(error, StorageDamaged):
                self.stop(error)
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            await self._take_back(error)
            if isinstance(error, StorageBusy):
                # The others have waited as long; each batch after the other would wait in vain.
                batch, self._waiting = [*batch, *self._waiting], []
            for pending in batch:
                # What failed by itself keeps its own error; what seemed to succeed was undone.
                if isinstance(pending.result, outcome.Error) and isinstance(
                    pending.result.error, StewardError
                ):
                    continue
                pending.result, pending.topics = outcome.Error(error), ()
        for pending in batch:
            self._topics.publish(pending.topics)
            pending.done.set()

    async def _begin(self) -> None:
        """Begin a transaction; while another program holds the write lock, wait in a thread.

        Raises `sqlite3.OperationalError` (SQLITE_BUSY) after `BUSY_WAIT`.
        """
        try:
            self._connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if not _is_busy(error):
                raise
            await trio.to_thread.run_sync(self._begin_patiently)

    def _begin_patiently(self) -> None:
        self._connection.execute(f"PRAGMA busy_timeout = {BUSY_WAIT}")
        try:
            self._connection.execute("BEGIN IMMEDIATE")
        finally:
            self._connection.execute("PRAGMA busy_timeout = 0")

    async def _take_back(self, error: StorageError) -> None:
        """See that nothing of a commit that failed is in the log, where a crash would bring it back.

        It may be there whole when only the wait for the disk failed. The next commit takes its
        place; so one is made at once. If that fails, too, nothing is known and the daemon ends.
        """
        if isinstance(error, StorageUnavailable | StorageUnusable):
            return  # nothing whole can have been written
        with _meaning():
            await self._begin()
            # Another index: what would change nothing would not be written.
            self._connection.execute(_KEEP_INDEX, {"index": self.index + 1})
            self._connection.execute("COMMIT")
        self.index += 1

    def _keep_log(self) -> None:
        """Raise `StorageUnusable` if the log is gone: whoever opens the file now would miss all of it."""
        with suppress(OSError):
            if self._log.stat().st_ino == self._log_number:
                return
        with _meaning():
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        raise StorageUnusable(
            f"{self._log} was removed while the daemon was at work; everything in it was saved: start again"
        )

    def _run_all(self, batch: list[_Pending[object]]) -> int:
        """Run each write in a savepoint of its own; return the index of the last one."""
        index, touched = self.index, {}
        for pending in batch:
            transaction = Transaction(self._connection, index + 1)
            changes = self._connection.total_changes
            self._connection.execute("SAVEPOINT one")
            pending.result = outcome.capture(pending.work, transaction)
            if isinstance(pending.result, outcome.Error):
                if _is_fatal(pending.result.error):
                    raise pending.result.error
                self._connection.execute("ROLLBACK TO one")
            elif self._connection.total_changes != changes:
                index = transaction.index
                touched.update(dict.fromkeys(transaction.touched, index))
                pending.topics = tuple(transaction.topics)
            self._connection.execute("RELEASE one")
        if index != self.index:
            self._connection.execute(_KEEP_INDEX, {"index": index})
            for name, last in touched.items():
                self._connection.execute(_TOUCH, {"name": name, "index": last})
        return index


def _is_fatal(error: BaseException) -> bool:
    """Tell whether the transaction, not only this write, is lost: the disk, not the statement."""
    return isinstance(error, sqlite3.Error) and not isinstance(
        error, sqlite3.IntegrityError | sqlite3.ProgrammingError | sqlite3.InterfaceError
    )


def _is_busy(error: sqlite3.Error) -> bool:
    return (getattr(error, "sqlite_errorname", "") or "").startswith("SQLITE_BUSY")


@contextmanager
def _meaning() -> Iterator[None]:
    """Turn what SQLite says of the file into an error with a meaning."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        raise storage_error(error) from error


def storage_error(error: sqlite3.DatabaseError) -> StorageError:
    """Return what an error of SQLite means for who wanted to read or write."""
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
    if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN")):
        return StorageUnusable(f"the store cannot be used: {error} ({name})")
    return StorageError(f"the store cannot be read or written: {error} ({name or 'unknown'})")
