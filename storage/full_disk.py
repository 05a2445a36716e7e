"""Errors of a full disk, by any library, as one error of the store."""

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from storage.errors import StorageFull

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


@contextmanager
def reporting_full_disk(content: str) -> Iterator[None]:
    """Raise `StorageFull` if a file of the block finds no space; `content` is on that disk."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise StorageFull(f"the disk that holds {content} is full: {error.strerror}") from error
    except sqlite3.DatabaseError as error:
        if not (getattr(error, "sqlite_errorname", "") or "").startswith("SQLITE_FULL"):
            raise
        raise StorageFull(f"the disk that holds {content} is full: {error}") from error
