"""The variable: a small set of named values at a path, and the lock by which one holds it."""

from msgspec import UNSET, UnsetType

from storage.records.base import Record, SparseRecord


class Lock(SparseRecord, frozen=True, kw_only=True):
    """The lock of a variable that is held; spans as `15s`. Not everybody is shown the id."""

    id: str = ""
    ttl: str = ""
    lock_delay: str = ""


class VariableMetadata(Record, frozen=True, kw_only=True):
    """What a listing shows of a variable: everything but its values. Times are nanoseconds."""

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
    """A lock as it is asked for; spans as `15s` or as nanoseconds."""

    id: str = ""
    ttl: object = ""
    lock_delay: object = ""


class SubmittedVariable(Record, frozen=True, kw_only=True):
    """A variable as it is sent."""

    namespace: str = ""
    path: str = ""
    items: dict[str, str] | None = None
    lock: SubmittedLock | None = None
