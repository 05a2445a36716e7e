"""Access to the store in a child process that runs as the store's owner.

Some commands that root runs read files that the daemon's user has written. That user can have
replaced these files with links, or with data that attacks a parser. So a command of root switches
to the daemon's user before it opens such a file.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from daemon.launcher.hardening import disable_core_dumps
from daemon.process.service_account import ROOT, ServiceAccount, become, of_owner
from storage.errors import (
    Invalid,
    Refused,
    StewardError,
    StorageDamaged,
    StorageFull,
    StorageLocked,
    StorageUnusable,
    Unsealable,
    leaf_errors,
)

T = TypeVar("T")
_MOST = 16 * 1024 * 1024  # maximum bytes of a result
_KINDS = {
    error_type.__name__: error_type
    for error_type in (
        *(Invalid, Refused, Unsealable),
        *(StorageDamaged, StorageFull, StorageLocked, StorageUnusable),
    )
}


class _Said(msgspec.Struct):
    """The output of the child process: a result in JSON, or the kind and the text of an error."""

    result: msgspec.Raw = msgspec.Raw(b"null")
    error: str = ""
    text: str = ""


def owner_of(directory: Path) -> ServiceAccount | None:
    """Return the owner of a directory, or None if no change of user is needed or possible."""
    try:
        metadata = os.stat(directory)
    except OSError:
        return None
    return None if os.geteuid() != ROOT or metadata.st_uid == ROOT else of_owner(metadata)


def as_user(account: ServiceAccount | None, work: Callable[[], T], kind: type[T]) -> T:
    """Run `work` in a child process as a user, and return its result.

    If `account` is None, run `work` in this process. Raises `StewardError`.
    """
    if account is None:
        return work()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os._exit(_as_child(account, work, writing))
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        data = pipe.read(_MOST)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        answer = msgspec.json.decode(data, type=_Said)
        if not answer.error:
            return msgspec.json.decode(answer.result, type=kind)
    except msgspec.DecodeError as error:
        raise StewardError(
            f"the process of user {account.name} failed with status {status}"
        ) from error
    raise _KINDS.get(answer.error, StewardError)(answer.text)


def _as_child(account: ServiceAccount, work: Callable[[], object], writing: int) -> int:
    answer, status = _Said(error="StewardError", text="it failed"), 1
    try:
        become(account)
        disable_core_dumps()
        answer, status = _Said(result=msgspec.Raw(msgspec.json.encode(work()))), 0
    except* StewardError as group:
        first = next(leaf_errors(group))
        answer = _Said(error=type(first).__name__, text=str(first))
    except* Exception as group:
        first = next(leaf_errors(group))
        answer = _Said(error="StewardError", text=str(first) or type(first).__name__)
    with os.fdopen(writing, "wb") as pipe:
        pipe.write(msgspec.json.encode(answer))
    return status
