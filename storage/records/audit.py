"""The audit: who did what, or was refused it."""

from storage.records.base import Record


class AuditEntry(Record, frozen=True, kw_only=True):
    """A request that changed something, or was refused.

    `accessor` names the token; `secret_hash` stands for a shown secret that is none of ours.
    `time` is in nanoseconds, `status` that of the answer, `reason` why it was refused.
    """

    number: int = 0
    time: int
    accessor: str = ""
    secret_hash: str = ""
    address: str = ""
    method: str
    path: str
    query: str = ""
    namespace: str = ""
    status: int = 200
    reason: str = ""
