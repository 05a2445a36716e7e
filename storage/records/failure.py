"""Task errors with the details that a user needs."""

import msgspec

from storage.records.base import Record


class TaskError(Record, frozen=True, kw_only=True):
    """The newest error of a task.

    `kind` is the type of the task event, and `signal` the name of the signal that ended the task.
    `stderr` holds the last lines of the attempt's standard error, and `stderr_end` the length of
    that log in bytes at the end of the attempt. `summary` states all of this in one sentence.
    `time` is in nanoseconds.
    """

    allocation_id: str
    task_group: str
    task: str
    time: int
    kind: str
    message: str = ""
    exit_code: int = 0
    signal: str = ""
    oom_killed: bool = msgspec.field(default=False, name="OOMKilled")
    restarts: int = 0
    stderr: str = ""
    stderr_end: int = 0
    fails_task: bool = False
    summary: str = ""


class LastError(Record, frozen=True, kw_only=True):
    """The newest error of an allocation; None if none of its tasks has failed."""

    error: TaskError | None
