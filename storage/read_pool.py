"""Read-only connections, and calls that see a consistent snapshot of the database."""

import logging
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeVar

from storage.errors import StorageUnreadable, StorageUnusable
from storage.loop_share import LongRead, limited

T = TypeVar("T")
RowName = tuple[str, tuple[object, ...]]  # a table, and the values of the key
Parameters = Mapping[str, object]
_STATEMENTS = 512  # prepared statements cached per connection, more than the program has

# Limits of a read on the event loop. Decoding takes up to 40 µs per row and 5 µs per KiB of JSON. A
# handler that reaches its limits has blocked the loop for 2 to 4 ms.
ROWS = 192 * 1024  # bytes of rows
_ROW = 2 * 1024  # bytes added per row
_SEARCH = 1_500_000  # nanoseconds of CPU time for SQLite to find the rows
STEPS = 2_000  # SQLite instructions between two checks of the time, about 50 µs

_MOST_UNREADABLE = 1000  # rows that are remembered; a damaged disk can cause more
_NO_TEXT = "Could not decode to UTF-8"  # Python's error, which has no code

_SIZED = frozenset((str, bytes))  # types of values that have a length
_OVER = (sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_TOOBIG)

_log = logging.getLogger("steward.store")


class UnreadableRows:
    """The unreadable rows that reads have encountered. Any thread may call `note`."""

    def __init__(self) -> None:
        self._found: dict[RowName, None] = {}

    def note(self, error: StorageUnreadable) -> None:
        """Add the row of an error, and log a row that is new."""
        name = (error.table, error.key)
        if not error.table or name in self._found or len(self._found) >= _MOST_UNREADABLE:
            return
        self._found[name] = None
        _log.error("%s", str(error))  # a log record must not hold the frames of the error

    def forget(self, name: RowName) -> None:
        """Remove a row that can be read again or was deleted."""
        self._found.pop(name, None)

    def rows(self) -> list[RowName]:
        """Return the table and key of each unreadable row, in the order of their first reads."""
        return list(self._found)

    def by_table(self) -> Counter[str]:
        """Return the number of unreadable rows in each table."""
        return Counter(table for table, _ in self.rows())


class ReadSnapshot:
    """A consistent snapshot of the database; in a write, it includes the write's own changes."""

    def __init__(
        self, connection: sqlite3.Connection, unreadable_rows: UnreadableRows | None = None
    ) -> None:
        self._connection = connection
        self.unreadable_rows = unreadable_rows or UnreadableRows()
        self._cursors: list[sqlite3.Cursor] = []  # of `each`, open until the end of the read
        self.left: int | None = None  # bytes that may still be read; None means no limit

    @property
    def is_short(self) -> bool:
        """Return whether this read runs on the event loop with limits."""
        return self.left is not None

    def one(self, sql: str, parameters: Parameters = {}) -> sqlite3.Row | None:  # noqa: B006  # never changed
        """Return the first row of a query, or None."""
        try:
            cursor = self._connection.execute(sql, parameters)
            try:
                row: sqlite3.Row | None = cursor.fetchone()
            except sqlite3.OperationalError as error:
                if _NO_TEXT not in str(error):
                    raise
                row = self._damaged(cursor)
            finally:
                cursor.close()
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
        """Return all rows of a query."""
        try:
            with closing(self._connection.execute(sql, parameters)) as cursor:
                rows = self._decoded(cursor)
                return list(rows if self.left is None else map(self._count, rows))
        except OverflowError:
            return []
        except sqlite3.Error as error:
            if self._is_over(error):
                raise LongRead from error
            raise

    def each(self, sql: str, parameters: Parameters = {}) -> Iterator[sqlite3.Row]:  # noqa: B006  # never changed
        """Yield the rows one by one, so that not all of them are in memory."""
        try:
            self._cursors.append(self._connection.execute(sql, parameters))
            rows = self._decoded(self._cursors[-1])
            if self.left is None:
                yield from rows
            else:
                yield from map(self._count, rows)
        except sqlite3.Error as error:
            if self._is_over(error):
                raise LongRead from error
            raise

    def close_cursors(self) -> None:
        """Close the cursors of `each`: an open cursor would keep its snapshot after the COMMIT."""
        while self._cursors:
            self._cursors.pop().close()

    def _decoded(self, rows: sqlite3.Cursor) -> Iterator[sqlite3.Row]:
        """Yield the rows of a cursor.

        A damaged text is decoded with surrogates, so it cannot be parsed as JSON.
        """
        while True:
            try:
                # `yield from` would close the cursor, also of a closed connection.
                for row in rows:  # noqa: UP028
                    yield row
            except sqlite3.OperationalError as error:
                if _NO_TEXT not in str(error):
                    raise
                yield self._damaged(rows)
            else:
                return

    def _damaged(self, rows: sqlite3.Cursor) -> sqlite3.Row:
        """Return the current row, with surrogates in place of the bytes that are not UTF-8."""
        self._connection.text_factory = _escaped
        try:
            row: sqlite3.Row = next(rows)
            return row
        finally:
            self._connection.text_factory = str

    def _is_over(self, error: sqlite3.Error) -> bool:
        """Return whether an error means that the limit was exceeded."""
        return self.left is not None and getattr(error, "sqlite_errorcode", 0) in _OVER

    def _count(self, row: sqlite3.Row) -> sqlite3.Row:
        """Return `row` and count its bytes. Raises `LongRead` when a read exceeds its limit."""
        left = (self.left or 0) - _ROW
        for value in row:  # a generator with `isinstance` would take four times as long
            if type(value) in _SIZED:
                left -= len(value)
        self.left = left
        if left < 0:
            raise LongRead
        return row

    def uncount(self, text: str) -> None:
        """Undo the counting of a text that need not be decoded."""
        if self.left is not None:
            self.left += len(text)

    def last_index(self) -> int:
        """Return the index of the last write."""
        row = self.one("SELECT last_index FROM store")
        return int(row["last_index"]) if row else 0

    def table_index(self, name: str) -> int:
        """Return the index of the last write to this table."""
        row = self.one(_TABLE_INDEX, {"name": name})
        return int(row["last_index"]) if row else 0


_TABLE_INDEX = "SELECT last_index FROM table_indexes WHERE name = :name"


def _escaped(text: bytes) -> str:
    return text.decode(errors="surrogateescape")


def connect(path: Path, *, read_only: bool) -> sqlite3.Connection:
    """Open the database. Only the caller begins and ends transactions."""
    mode = "ro" if read_only else "rw"
    connection = sqlite3.connect(
        f"file:{path_of_uri(path)}?mode={mode}",
        uri=True,
        isolation_level=None,
        # A connection moves between worker threads, but its owner never uses it in two threads at
        # once.
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


def path_of_uri(path: Path) -> str:
    """Return a path, quoted for a file URI."""
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

    def __init__(self, path: Path, unreadable_rows: UnreadableRows | None = None) -> None:
        self._connection = connect(path, read_only=True)
        self._snapshot = ReadSnapshot(self._connection, unreadable_rows)
        self._longest = self._connection.getlimit(sqlite3.SQLITE_LIMIT_LENGTH)

    def read(self, work: Callable[[ReadSnapshot], T]) -> T:
        """Run `work` on the current snapshot; nested reads see the same snapshot."""
        if self._connection.in_transaction:
            return work(self._snapshot)
        self._connection.execute("BEGIN")
        try:
            return work(self._snapshot)
        finally:
            self._snapshot.close_cursors()
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
        """Limit the bytes of rows, the length of each text, and the CPU time of the block."""
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
