"""The audit log: requests that changed something or were refused."""

from storage.records.base import Record


class AuditEntry(Record, frozen=True, kw_only=True):
    """A request that changed something, or was refused.

    `accessor` identifies the token. If the token is unknown, `secret_hash` is the hash of its
    secret. `time` is in nanoseconds. `status` is the HTTP status of the response. `reason` is the
    reason for a refusal.
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
