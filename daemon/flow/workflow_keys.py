"""The keys that make a batch job a workflow."""

from daemon.jobspec.steward_meta import (
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
    ON_FAILURE,
    OUTPUTS,
    PARALLEL,
    REDO,
    RETRY_EXIT_CODES,
    RUN_QUEUE,
    STEP_QUEUES,
    STEP_SLOTS,
    WHEN,
)
from storage.records.group import TaskGroup
from storage.records.job import Job, JobType

KEYS = tuple(
    one.name
    for one in (
        *(NEEDS, WHEN, IF, PARALLEL, FAILURES_ALLOWED, ON_FAILURE),
        *(GATE, GATE_NUMBER, GATE_BY, GATE_NOT_SELF, GATE_WITHIN, GATE_ELSE),
        *(OUTPUTS, RETRY_EXIT_CODES, FOR_EACH, MATRIX, REDO),
        *(STEP_QUEUES, STEP_SLOTS),
    )
)
RUN_QUEUE_KEY = RUN_QUEUE.name  # of the job
_KEYS = frozenset(KEYS)


def is_workflow(job: Job) -> bool:
    """Return whether a job is a workflow: a group has a key, or its runs have a queue."""
    if job.type != JobType.BATCH:
        return False
    return RUN_QUEUE.name in (job.meta or ()) or any(map(has_keys, job.task_groups or ()))


def has_keys(group: TaskGroup) -> bool:
    """Return whether a group has a workflow key."""
    return not _KEYS.isdisjoint(group.meta or ())
