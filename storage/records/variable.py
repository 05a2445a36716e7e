"""The variable: named values at a path, and its lock."""

from msgspec import UNSET, UnsetType

from storage.records.base import Record, SparseRecord


class Lock(SparseRecord, frozen=True, kw_only=True):
    """The lock of a variable, while a caller holds it. Durations are text, such as `15s`.

    `id` is empty unless the client holds the lock or has a management token.
    """

    id: str = ""
    ttl: str = ""
    lock_delay: str = ""


class VariableMetadata(Record, frozen=True, kw_only=True):
    """A variable in a listing, without its values. Times are in nanoseconds."""

    create_index: int
    create_time: int
    lock: Lock | UnsetType = UNSET
    modify_index: int
    modify_time: int
    namespace: str
    path: str


class Variable(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A variable with its values, if it has any."""

    create_index: int
    create_time: int
    items: dict[str, str] = {}
    lock: Lock | UnsetType = UNSET
    modify_index: int
    modify_time: int
    namespace: str
    path: str


class SubmittedLock(Record, frozen=True, kw_only=True):
    """A lock in a request. A duration is a text such as `15s`, or a number of nanoseconds."""

    id: str = ""
    ttl: object = ""
    lock_delay: object = ""


class SubmittedVariable(Record, frozen=True, kw_only=True):
    """A submitted variable."""

    namespace: str = ""
    path: str = ""
    items: dict[str, str] | None = None
    lock: SubmittedLock | None = None
