"""Errors by meaning. Only `reply.py` and `vault_envelope.py` map them to HTTP statuses.

StewardError
├── Malformed       the request cannot be parsed: syntax, types, parameters
├── Invalid         the object is invalid, regardless of the state
├── Refused         the current state does not permit the request
│   ├── Conflict    the state has changed since the caller read it
│   ├── LoginRefused    the login does not match the role's bindings
│   └── CredentialRejected  the credential of a login cannot be verified
├── Denied          the caller has no permission
│   └── UnknownToken    the token does not exist
│       └── UnusableToken   the token exists but is not valid now, or not from this address
├── NotFound        the object does not exist
├── TooLarge        a limit is exceeded
├── TooOften        a rate limit is exceeded
├── Unavailable     a part of the daemon does not respond now: retry
├── Unsealable      a secret cannot be decrypted with the available keys
└── StorageError    the database cannot be read or written
    ├── StorageUnavailable  writes are temporarily not possible: retry
    │   ├── StorageFull     the disk is full
    │   ├── StorageBusy     another program holds the write lock
    │   └── StorageDamaged  a page is corrupt: no writes until a snapshot is restored
    ├── StorageUnreadable   a row cannot be decoded; other rows can be read
    ├── StorageLocked   another daemon uses the file
    └── StorageUnusable not a Steward store, a newer version, damaged, or not writable
"""

import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
_NO_DESCRIPTOR_TEXTS = tuple(map(os.strerror, _NO_DESCRIPTOR))


class StewardError(Exception):
    """The base of all errors that become responses. Any other exception is a defect of Steward."""


class Malformed(StewardError):
    """The request cannot be parsed: its syntax, a type, or a parameter."""


class Invalid(StewardError):
    """The object is invalid, regardless of the state."""


class Refused(StewardError):
    """The request is valid, but the current state does not permit it."""


class Conflict(Refused):
    """The state has changed since the caller read it."""


class LoginRefused(Refused):
    """The login does not match the role's bindings; `reason` is for the audit log."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class CredentialRejected(Refused):
    """The credential of a login to the jobs API cannot be verified."""


class Denied(StewardError):
    """The caller has no permission, whether or not the object exists."""

    def __init__(self, message: str = "Permission denied") -> None:
        super().__init__(message)


class UnknownToken(Denied):
    """The token does not exist, or a required token is missing.

    `reason` has more detail than the response; it never contains the token.
    """

    def __init__(self, reason: str = "Permission denied") -> None:
        super().__init__()
        self.reason = reason


class UnusableToken(UnknownToken):
    """The token exists, but it has expired or is not valid from this address."""


class NotFound(StewardError):
    """The object does not exist; `index` is the index of the state that was searched."""

    def __init__(self, message: str, *, index: int | None = None) -> None:
        super().__init__(message)
        self.index = index


class TooLarge(StewardError):
    """The request exceeds a size limit."""


class Unsealable(StewardError):
    """A secret in the store cannot be decrypted with the available keys."""


class TooOften(StewardError):
    """A rate limit is exceeded.

    `retry_after` is the time in seconds that the caller must wait; 0 if it is unknown.
    """

    def __init__(self, text: str = "", *, retry_after: int = 0) -> None:
        super().__init__(text)
        self.retry_after = retry_after


class Unavailable(StewardError):
    """A part of the daemon does not respond now; the same request may succeed later."""


class StorageError(StewardError):
    """The database cannot be read or written."""


class StorageUnavailable(StorageError):
    """Writes are temporarily not possible; the same write may succeed later."""


class StorageFull(StorageUnavailable):
    """The disk is full; acknowledged writes are safe."""


class StorageBusy(StorageUnavailable):
    """A write has waited too long for the write lock, which another program holds."""


class StorageDamaged(StorageUnavailable):
    """A page is corrupt. Reads of other pages continue, and writes are rejected."""


class StorageUnreadable(StorageError):
    """A value in a row cannot be decoded, because another program changed it.

    Other rows can be read.

    `table` is the table of the row, and `key` the values of the row's key columns. Both are empty
    if the row is not known.
    """

    def __init__(self, message: str, *, table: str = "", key: tuple[object, ...] = ()) -> None:
        super().__init__(message)
        self.table, self.key = table, key

    @classmethod
    def of_row(cls, table: str, key: tuple[object, ...], reason: object) -> "StorageUnreadable":
        """Return the error about an unreadable row whose key is known."""
        # A column of the key may be damaged too.
        name = "/".join(map(str, key)).encode(errors="backslashreplace").decode()
        return cls(
            f"the row {name} of the table {table} cannot be read: {reason}; write or delete its "
            "object, or restore a snapshot with `steward operator snapshot restore`; `steward "
            "operator check` lists all such rows",
            table=table,
            key=key,
        )


class StorageLocked(StorageError):
    """Another daemon uses the file."""


class StorageUnusable(StorageError):
    """The file is not a Steward store, has a newer version, is damaged, or cannot be written."""


def leaf_errors(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors of a group, including nested groups."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaf_errors(inner)
    else:
        yield error


def is_descriptor_shortage(error: BaseException | None) -> bool:
    """Return whether an error means that this process or the host has no free file descriptor.

    The errors of a group count, and so do the errors that caused an error.
    """
    pending, seen = [error], set[int]()
    while pending:
        if (error := pending.pop()) is None or id(error) in seen:
            continue
        seen.add(id(error))
        if isinstance(error, OSError) and error.errno in _NO_DESCRIPTOR:
            return True
        # An import of a module in C reports the error of the linker only as text.
        if isinstance(error, ImportError) and any(
            text in str(error) for text in _NO_DESCRIPTOR_TEXTS
        ):
            return True
        if isinstance(error, BaseExceptionGroup):
            pending += error.exceptions
        pending += (error.__cause__, error.__context__)
    return False


def describe_error(error: BaseException) -> str:
    """Format an error with its type. For an exception group, format the errors in the group.

    >>> describe_error(ExceptionGroup("in a nursery", [OSError("disk"), ExceptionGroup("", [KeyError("a")])]))
    "OSError('disk'); KeyError('a')"
    """
    return "; ".join(dict.fromkeys(repr(leaf) for leaf in leaf_errors(error)))


_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


@contextmanager
def reporting_full_disk(content: str) -> Iterator[None]:
    """Raise `StorageFull` if a write in the block fails because the disk is full.

    `content` names the files on this disk, for the message.
    """
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
