"""The keys that make a batch job a workflow."""

from daemon.jobspec.steward_meta.job_keys import (
    RUN_ON_FAILURE,
    RUN_PARALLEL,
    RUN_QUEUE,
    RUN_TIMEOUT,
    RUN_UPDATE,
)
from daemon.jobspec.steward_meta.step_keys import (
    CALENDAR,
    FAILURES_ALLOWED,
    FOR_EACH,
    GATE,
    GATE_BY,
    GATE_ELSE,
    GATE_NOT_SELF,
    GATE_NUMBER,
    GATE_WITHIN,
    IF,
    MATRIX,
    NEEDS,
    NOT_AFTER,
    NOT_BEFORE,
    ON_FAILURE,
    OUTPUTS,
    PARALLEL,
    REDO,
    RETRY_EXIT_CODES,
    STEP_QUEUES,
    STEP_SLOTS,
    TIME_ZONE,
    WHEN,
)
from storage.records.group import TaskGroup
from storage.records.job import Job, JobType

KEYS = tuple(
    key.name
    for key in (
        *(NEEDS, WHEN, IF, PARALLEL, FAILURES_ALLOWED, ON_FAILURE),
        *(GATE, GATE_NUMBER, GATE_BY, GATE_NOT_SELF, GATE_WITHIN, GATE_ELSE),
        *(NOT_BEFORE, NOT_AFTER, TIME_ZONE),
        *(OUTPUTS, RETRY_EXIT_CODES, FOR_EACH, MATRIX, REDO),
        *(CALENDAR, STEP_QUEUES, STEP_SLOTS),
    )
)
# Keys of the job with the same effect.
JOB_KEYS = frozenset(
    key.name for key in (RUN_QUEUE, RUN_TIMEOUT, RUN_PARALLEL, RUN_ON_FAILURE, RUN_UPDATE)
)
_KEYS = frozenset(KEYS)


def is_workflow(job: Job) -> bool:
    """Return whether a job is a workflow: a group or the job itself has a workflow key."""
    if job.type != JobType.BATCH:
        return False
    return has_job_keys(job) or any(map(has_keys, job.task_groups or ()))


def has_job_keys(job: Job) -> bool:
    """Return whether the keys of the job itself make it a workflow."""
    return not JOB_KEYS.isdisjoint(job.meta or ())


def has_keys(group: TaskGroup) -> bool:
    """Return whether a group has a workflow key."""
    return not _KEYS.isdisjoint(group.meta or ())
