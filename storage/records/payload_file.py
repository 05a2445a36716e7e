"""The upload of an input file of a job."""

from storage.records.base import Record


class UploadState(Record, frozen=True, kw_only=True):
    """The state of an upload: the next chunk begins at `received`. Sizes are in bytes."""

    digest: str = ""
    size: int = 0
    received: int = 0
    is_complete: bool = False
