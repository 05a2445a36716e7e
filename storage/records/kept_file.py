"""A file of an ended task that Steward keeps."""

from storage.records.base import Record


class KeptFile(Record, frozen=True, kw_only=True):
    """A kept file. `path` is below the task directory, or below `alloc/`; `size` is in bytes."""

    task: str
    path: str
    size: int = 0
    digest: str = ""
