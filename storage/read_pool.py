"""Read-only connections, and calls that see a consistent snapshot of the database."""

import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from storage.errors import StorageUnusable
from storage.loop_share import LongRead, limited

T = TypeVar("T")
Parameters = Mapping[str, object]
_STATEMENTS = 512  # prepared statements cached per connection, more than the program has

# Limits of a read on the event loop. Decoding takes up to 40 µs per row and 5 µs per KiB of JSON. A
# handler that uses its limits has blocked the loop for 2 to 4 ms.
ROWS = 192 * 1024  # bytes of rows
_ROW = 2 * 1024  # bytes added per row
_SEARCH = 1_500_000  # nanoseconds of CPU time for SQLite to find the rows
STEPS = 2_000  # SQLite instructions between two checks of the time, about 50 µs


_OVER = (sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_TOOBIG)


class ReadSnapshot:
    """A consistent snapshot of the database; in a write, it includes the write's own changes."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.left: int | None = None  # bytes that may still be read; None means no limit

    @property
    def is_short(self) -> bool:
        """Return whether this read runs on the event loop with limits."""
        return self.left is not None

    def one(self, sql: str, parameters: Parameters = {}) -> sqlite3.Row | None:  # noqa: B006  # never changed
        """Return the first row, or None."""
        try:
            row: sqlite3.Row | None = self._connection.execute(sql, parameters).fetchone()
        except OverflowError:  # an integer of more than 64 bits, which is never stored
            return None
        except sqlite3.Error as error:
            if self._is_over(error):
                raise LongRead from error
            raise
        if row is not None and self.left is not None:
            self._count(row)
        return row

    def all(self, sql: str, parameters: Parameters = {}) -> list[sqlite3.Row]:  # noqa: B006  # never changed
        """Return all rows."""
        try:
            rows = self._connection.execute(sql, parameters)
            if self.left is None:
                return rows.fetchall()
            return [self._count(row) for row in rows]
        except OverflowError:
            return []
        except sqlite3.Error as error:
            if self._is_over(error):
                raise LongRead from error
            raise

    def each(self, sql: str, parameters: Parameters = {}) -> Iterator[sqlite3.Row]:  # noqa: B006  # never changed
        """Yield rows one by one, if they should not be in memory together."""
        try:
            rows = self._connection.execute(sql, parameters)
            if self.left is None:
                yield from rows
            else:
                yield from map(self._count, rows)
        except sqlite3.Error as error:
            if self._is_over(error):
                raise LongRead from error
            raise

    def _is_over(self, error: sqlite3.Error) -> bool:
        """Return whether an error means that the limit was exceeded."""
        return self.left is not None and getattr(error, "sqlite_errorcode", 0) in _OVER

    def _count(self, row: sqlite3.Row) -> sqlite3.Row:
        """Return a row of a limited read. Raises `LongRead` when the limit is exceeded."""
        texts = sum(len(value) for value in row if isinstance(value, str | bytes))
        self.left = (self.left or 0) - _ROW - texts
        if self.left < 0:
            raise LongRead
        return row

    def last_index(self) -> int:
        """Return the index of the last write."""
        row = self.one("SELECT last_index FROM store")
        return int(row["last_index"]) if row else 0

    def table_index(self, name: str) -> int:
        """Return the index of the last write to this table."""
        row = self.one(_TABLE_INDEX, {"name": name})
        return int(row["last_index"]) if row else 0


_TABLE_INDEX = "SELECT last_index FROM table_indexes WHERE name = :name"


def connect(path: Path, *, read_only: bool) -> sqlite3.Connection:
    """Open the database. Only the caller begins and ends transactions."""
    mode = "ro" if read_only else "rw"
    connection = sqlite3.connect(
        f"file:{_quoted(path)}?mode={mode}",
        uri=True,
        isolation_level=None,
        # Worker threads change, but the owner of a connection uses it from one at a time.
        check_same_thread=False,
        cached_statements=_STATEMENTS,
    )
    connection.row_factory = sqlite3.Row
    connection.execute("PRAGMA foreign_keys = ON")
    # Only an external checkpoint or snapshot can hold the lock, and neither takes seconds.
    connection.execute("PRAGMA busy_timeout = 5000")
    if read_only:
        connection.execute("PRAGMA query_only = ON")
    return connection


def _quoted(path: Path) -> str:
    """Quote a path for a file URI."""
    return str(path.absolute()).replace("%", "%25").replace("?", "%3f").replace("#", "%23")


def read_once(path: Path, work: Callable[[ReadSnapshot], T]) -> T:
    """Run `work` on a file that is not open in this process. Raises `StorageUnusable`."""
    try:
        reader = SnapshotReader(path)
        try:
            return reader.read(work)
        finally:
            reader.close()
    except sqlite3.DatabaseError as error:
        raise StorageUnusable(f"{path} cannot be read: {error}") from error


class SnapshotReader:
    """A read-only connection; each call of `read` sees one consistent snapshot."""

    def __init__(self, path: Path) -> None:
        self._connection = connect(path, read_only=True)
        self._snapshot = ReadSnapshot(self._connection)
        self._longest = self._connection.getlimit(sqlite3.SQLITE_LIMIT_LENGTH)

    def read(self, work: Callable[[ReadSnapshot], T]) -> T:
        """Run `work` on the current snapshot; nested reads see the same snapshot."""
        if self._connection.in_transaction:
            return work(self._snapshot)
        self._connection.execute("BEGIN")
        try:
            return work(self._snapshot)
        finally:
            self._connection.execute("COMMIT")

    def read_short(self, work: Callable[[ReadSnapshot], T]) -> T:
        """Run `work` on the current snapshot. Raises `LongRead` when it exceeds its limits."""
        if self._connection.in_transaction:
            return work(self._snapshot)
        # The transaction ends outside the limits. An interrupted COMMIT would leave it open, and
        # all later reads would see this snapshot.
        return self.read(lambda db: self._within_share(db, work))

    def _within_share(self, db: ReadSnapshot, work: Callable[[ReadSnapshot], T]) -> T:
        with self._share(), limited():
            return work(db)

    @contextmanager
    def _share(self) -> Iterator[None]:
        """Limit the reads of this block: rows, text length, and search time."""
        until = time.thread_time_ns() + _SEARCH
        self._connection.set_progress_handler(lambda: time.thread_time_ns() > until, STEPS)
        self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, ROWS)
        self._snapshot.left = ROWS
        try:
            yield
        finally:
            self._snapshot.left = None
            self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, self._longest)
            self._connection.set_progress_handler(None, 0)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
