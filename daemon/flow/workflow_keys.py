"""The keys that make a batch job a workflow."""

from daemon.jobspec.steward_meta import (
    FAILURES_ALLOWED,
    GATE,
    GATE_NUMBER,
    IF,
    NEEDS,
    ON_FAILURE,
    PARALLEL,
    WHEN,
)
from storage.records.group import TaskGroup
from storage.records.job import Job, JobType

KEYS = tuple(
    one.name for one in (NEEDS, WHEN, IF, PARALLEL, FAILURES_ALLOWED, ON_FAILURE, GATE, GATE_NUMBER)
)


def is_workflow(job: Job) -> bool:
    """Return whether a job is a workflow."""
    return job.type == JobType.BATCH and any(map(has_keys, job.task_groups or ()))


def has_keys(group: TaskGroup) -> bool:
    """Return whether a group has a workflow key."""
    return any(key in (group.meta or ()) for key in KEYS)
