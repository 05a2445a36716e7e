"""Reading: connections that cannot write, and calls that see one moment of the file."""

import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
Parameters = Mapping[str, object]
_STATEMENTS = 512  # prepared statements a connection keeps; the whole program has fewer

# The share of a read on the event loop. A decoded row takes up to 40 µs, a KiB of JSON up to 5 µs, so
# that a handler which uses up its share has held the loop for 2 to 4 ms.
_SHARE = 192 * 1024  # bytes of rows
_ROW = 2 * 1024  # bytes that each row counts besides its own
_SEARCH = 1_500_000  # nanoseconds of CPU time within which SQLite finds the rows
_STEPS = 2_000  # instructions of SQLite between two looks at the time: some 50 µs


class LongRead(Exception):
    """A read has used up its share of the event loop: a thread has to do it from the start."""


class Snapshot:
    """One moment of the file: what a read sees, and what a write sees with its own changes."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.left: int | None = None  # bytes that may still be read; None: any number

    @property
    def is_short(self) -> bool:
        """Tell whether this read has only a share of the event loop, not a thread of its own."""
        return self.left is not None

    def one(self, sql: str, parameters: Parameters = {}) -> sqlite3.Row | None:  # noqa: B006  # never changed
        """Return the first row, or None."""
        try:
            row: sqlite3.Row | None = self._connection.execute(sql, parameters).fetchone()
        except OverflowError:  # a number with more bits than any that is stored
            return None
        if row is not None and self.left is not None:
            self._count(row)
        return row

    def all(self, sql: str, parameters: Parameters = {}) -> list[sqlite3.Row]:  # noqa: B006  # never changed
        """Return every row."""
        try:
            rows = self._connection.execute(sql, parameters)
        except OverflowError:
            return []
        if self.left is None:
            return rows.fetchall()
        return [self._count(row) for row in rows]

    def each(self, sql: str, parameters: Parameters = {}) -> Iterator[sqlite3.Row]:  # noqa: B006  # never changed
        """Yield row after row: for more of them than should be in memory at once."""
        rows = self._connection.execute(sql, parameters)
        if self.left is None:
            yield from rows
        else:
            yield from map(self._count, rows)

    def _count(self, row: sqlite3.Row) -> sqlite3.Row:
        """Return a row of a short read. Raises `LongRead` when the share is used up."""
        texts = sum(len(value) for value in row if isinstance(value, str | bytes))
        self.left = (self.left or 0) - _ROW - texts
        if self.left < 0:
            raise LongRead
        return row

    def last_index(self) -> int:
        """Return the index of the last write of all."""
        row = self.one("SELECT last_index FROM store")
        return int(row["last_index"]) if row else 0

    def table_index(self, name: str) -> int:
        """Return the index of the last write that touched this kind of object."""
        row = self.one(_TABLE_INDEX, {"name": name})
        return int(row["last_index"]) if row else 0


def selection(
    select: str, filters: Mapping[str, str], given: Mapping[str, object], order: str
) -> str:
    """Return a SELECT with only the conditions for which a value is given.

    All of it is constant text: so SQLite can choose the index that suits the conditions.
    """
    conditions = " AND ".join(filters[name] for name in given)
    where = f" WHERE {conditions}" if conditions else ""
    return f"{select}{where} ORDER BY {order}"


_TABLE_INDEX = "SELECT last_index FROM table_indexes WHERE name = :name"


def connect(path: Path, *, read_only: bool) -> sqlite3.Connection:
    """Open the file. Transactions are begun and ended by the caller alone."""
    mode = "ro" if read_only else "rw"
    connection = sqlite3.connect(
        f"file:{_quoted(path)}?mode={mode}",
        uri=True,
        isolation_level=None,
        # Trio's worker threads come and go; the owner of a connection uses it from one at a time.
        check_same_thread=False,
        cached_statements=_STATEMENTS,
    )
    connection.row_factory = sqlite3.Row
    connection.execute("PRAGMA foreign_keys = ON")
    # Only a checkpoint or a snapshot from outside can hold the lock; neither takes seconds.
    connection.execute("PRAGMA busy_timeout = 5000")
    if read_only:
        connection.execute("PRAGMA query_only = ON")
    return connection


def _quoted(path: Path) -> str:
    """Return a path as part of a file URI."""
    return str(path.absolute()).replace("%", "%25").replace("?", "%3f").replace("#", "%23")


class Reader:
    """A connection for reads: each call of `read` sees one moment, whole."""

    def __init__(self, path: Path) -> None:
        self._connection = connect(path, read_only=True)
        self._snapshot = Snapshot(self._connection)
        self._longest = self._connection.getlimit(sqlite3.SQLITE_LIMIT_LENGTH)

    def read(self, work: Callable[[Snapshot], T]) -> T:
        """Return what `work` makes of the file as it is now; a read within a read sees the same."""
        if self._connection.in_transaction:
            return work(self._snapshot)
        self._connection.execute("BEGIN")
        try:
            return work(self._snapshot)
        finally:
            self._connection.execute("COMMIT")

    def read_short(self, work: Callable[[Snapshot], T]) -> T:
        """Return what `work` makes of the file as it is now. Raises `LongRead` if that is too much."""
        if self._connection.in_transaction:
            return work(self._snapshot)
        # The end of the transaction is outside the share: an interrupted COMMIT would leave it open,
        # and all later reads would see this moment.
        return self.read(lambda db: self._within_share(db, work))

    def _within_share(self, db: Snapshot, work: Callable[[Snapshot], T]) -> T:
        with self._share():
            return work(db)

    @contextmanager
    def _share(self) -> Iterator[None]:
        """Bound what is read in this block: the rows, the length of each text, the time of the search."""
        until = time.thread_time_ns() + _SEARCH
        self._connection.set_progress_handler(lambda: time.thread_time_ns() > until, _STEPS)
        self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _SHARE)
        self._snapshot.left = _SHARE
        try:
            yield
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) in (
                sqlite3.SQLITE_INTERRUPT,
                sqlite3.SQLITE_TOOBIG,
            ):
                raise LongRead from error
            raise
        finally:
            self._snapshot.left = None
            self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, self._longest)
            self._connection.set_progress_handler(None, 0)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
