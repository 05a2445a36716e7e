"""Triggers between jobs: the ledger of ended runs and their effects on followers."""

from enum import StrEnum

from storage.records.base import Record
from storage.records.flow import TriggerJoin, TriggerWhen

MOST_FOLLOWERS = 100  # of a source: the write that stores the end of its run adds a row for each
MOST_DEPTH = 32  # of a chain of jobs
MOST_WAITING = 10_000  # ended runs that wait at a follower


class TriggerState(StrEnum):
    """The effect of an ended run on a follower. The last five are final."""

    ARRIVED = "arrived"  # nothing is decided yet
    WAITING = "waiting"  # the ended run waits for the other sources
    FIRED = "fired"  # the follower has dispatched a child
    IGNORED = "ignored"  # the follower does not start after such a result
    REFUSED = "refused"  # the dispatch was not possible
    REPLACED = "replaced"  # a newer run of the same source waits instead
    EXPIRED = "expired"  # the other sources did not end in time

    @property
    def is_final(self) -> bool:
        """Return whether the state is final."""
        return self not in (TriggerState.ARRIVED, TriggerState.WAITING)


class JobTrigger(Record, frozen=True, kw_only=True):
    """An ended run of a source, and its effect on a follower.

    `job_id` is the follower. `source_id` is the job that the follower names, and `run_job_id` is
    that job or its child. `number` and `attempt` identify the run. For a job without workflow, the
    number is the job's version, and the attempt counts the ends of this version. `status` is
    `succeeded`, `failed` or `canceled`. `value` is the value of the meta key that separates joins.
    `depth` counts the runs of the chain, from 1. Times are in nanoseconds since the epoch;
    `decided` and `expires` are 0 if unset.
    """

    id: int
    namespace: str
    job_id: str
    source_namespace: str
    source_id: str
    run_job_id: str
    number: int
    version: int
    attempt: int
    status: str
    state: TriggerState
    reason: str = ""
    value: str = ""
    child_id: str = ""
    depth: int = 1
    ended: int
    decided: int = 0
    expires: int = 0
    create_index: int = 0
    modify_index: int = 0


class SourceLine(Record, frozen=True, kw_only=True):
    """A source of a follower; `waiting` counts its ended runs that wait for other sources."""

    namespace: str
    job_id: str
    exists: bool
    waiting: int


class FollowerLine(Record, frozen=True, kw_only=True):
    """A follower of a job."""

    namespace: str
    job_id: str
    when: TriggerWhen


class JobLinks(Record, frozen=True, kw_only=True):
    """The jobs that a job follows, and the jobs that follow it."""

    job_id: str
    namespace: str
    when: TriggerWhen
    join: TriggerJoin
    sources: list[SourceLine]
    followers: list[FollowerLine]
