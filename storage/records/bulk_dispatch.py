"""The records of a bulk dispatch: many children of one job in one request."""

from storage.records.base import SparseRecord

MAX_CHILDREN = 10_000  # per request


class BulkDispatchAnswer(SparseRecord, frozen=True, kw_only=True):
    """The response to one line of a bulk dispatch: the child, or the error.

    `line` counts from 1. `field` is the field that caused the error, or empty. A queued child has
    no evaluation. If `existed` is true, an earlier dispatch with the same token created the child.
    """

    line: int
    dispatched_job_id: str = ""
    eval_id: str = ""
    eval_create_index: int = 0
    job_create_index: int = 0
    index: int = 0
    existed: bool = False
    field: str = ""
    error: str = ""
    warnings: tuple[str, ...] = ()
