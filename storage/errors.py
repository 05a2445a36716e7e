"""What can go wrong, by meaning. `daemon/web/reply.py` alone knows which status that is.

StewardError
├── Malformed       the request cannot be read: syntax, types, parameters
├── Invalid         the object breaks a rule of its own
├── Refused         the present state forbids it
│   ├── Conflict    the state moved on since the caller looked
│   └── LoginRefused    somebody is not who a role asks for
├── Denied          the caller may not
│   └── UnknownToken    the caller shows a token that is nobody's
│       └── UnusableToken   the token is real, but it may not be used now or from here
├── NotFound        there is no such object
├── TooLarge        more than a limit allows
├── TooOften        what may fail sometimes has failed too often
├── Unsealable      a secret cannot be opened with the keys at hand
└── StorageError    the file cannot be read or written
    ├── StorageUnavailable  no write is possible at this moment: retry
    │   ├── StorageFull     the disk has no room
    │   ├── StorageBusy     another program holds the write lock
    │   └── StorageDamaged  a page of the file is corrupt: no write until a snapshot is restored
    ├── StorageLocked   another daemon has the file
    └── StorageUnusable not our file, of a newer version, damaged, or not writable
"""

from collections.abc import Iterator


class StewardError(Exception):
    """Base of all errors that are answers, not defects."""


class Malformed(StewardError):
    """The request cannot be read: its syntax, a type, a parameter."""


class Invalid(StewardError):
    """The object breaks a rule of its own, whatever the state."""


class Refused(StewardError):
    """The request is sound, but the present state forbids it."""


class Conflict(Refused):
    """The state moved on since the caller looked."""


class LoginRefused(Refused):
    """Somebody is not who a role asks for; `reason` names the rule, for the audit."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class Denied(StewardError):
    """The caller may not do this, whether or not there is something to do it to."""

    def __init__(self, message: str = "Permission denied") -> None:
        super().__init__(message)


class UnknownToken(Denied):
    """The caller shows a token that is nobody's, or none where one is needed.

    `reason` says more than the refusal does; it never holds the token.
    """

    def __init__(self, reason: str = "Permission denied") -> None:
        super().__init__()
        self.reason = reason


class UnusableToken(UnknownToken):
    """The caller shows a real token that may not be used: from this address, or not any more."""


class NotFound(StewardError):
    """There is no such object; `index` is the state's index at which it was looked for."""

    def __init__(self, message: str, *, index: int | None = None) -> None:
        super().__init__(message)
        self.index = index


class TooLarge(StewardError):
    """The request is larger than a limit allows."""


class Unsealable(StewardError):
    """A secret of the store cannot be opened with the keys at hand."""


class TooOften(StewardError):
    """What may fail sometimes has failed too often: the caller is to wait."""


class StorageError(StewardError):
    """The file cannot be read or written."""


class StorageUnavailable(StorageError):
    """No write is possible at this moment; the same write may succeed later."""


class StorageFull(StorageUnavailable):
    """The disk has no room for a write; what was acknowledged is kept."""


class StorageBusy(StorageUnavailable):
    """Another program has held the write lock of the file for longer than a write waits."""


class StorageDamaged(StorageUnavailable):
    """A page of the file is corrupt. Reads of other pages go on, and no write is accepted."""


class StorageLocked(StorageError):
    """Another daemon works on this file."""


class StorageUnusable(StorageError):
    """The file is not ours, is of a newer version, is damaged, or cannot be written."""


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors of a group, and of the groups in it."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error
