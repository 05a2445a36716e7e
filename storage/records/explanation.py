"""The reasons why parts of a job are not running."""

from enum import StrEnum

from storage.records.base import Record
from storage.records.state import StateLine


class Cause(StrEnum):
    """The reason why a part of a job is not running."""

    STOPPED = "stopped"  # the job was stopped
    CLOCK = "clock"  # the job launches children by its schedule
    DISPATCH = "dispatch"  # the job launches children on dispatch
    CHILDREN = "children"  # the limit of the job's parent on active children is reached
    FREEZE = "freeze"  # a freeze holds the job
    TURN = "turn"  # the scheduler has not processed the job yet
    PLACE = "place"  # no node is feasible or has capacity
    NODE = "node"  # all feasible nodes are ineligible
    PREEMPTED = "preempted"  # a job with a higher priority has preempted the allocation
    DELAY = "delay"  # the allocation failed and will be retried
    LIMIT = "limit"  # the allocation failed and will not be retried
    DEPLOYMENT = "deployment"  # a deployment holds the job back
    BROKEN = "broken"  # the daemon's own processing failed
    TRIGGER = "trigger"  # the job starts after other jobs
    STEP = "step"  # a step of a workflow waits, was skipped, or has ended
    START = "start"  # the allocation is placed and about to start


class Reason(Record, frozen=True, kw_only=True):
    """A reason why allocations of a group are not running. `missing` is their number.

    `message` is one sentence. `until` is the time at which the reason ends automatically, in
    nanoseconds since the epoch; 0 means unknown.
    """

    cause: Cause
    message: str
    task_group: str = ""  # empty: the whole job
    missing: int = 0
    allocation_id: str = ""
    until: int = 0


class Explanation(Record, frozen=True, kw_only=True):
    """The reasons why parts of a job are not running. Without reasons, all parts are running.

    `state` has the newest error of a failing job, with its exit code and last error lines.
    """

    job_id: str
    namespace: str
    status: str
    running: int
    reasons: list[Reason]
    state: StateLine | None = None  # set in every response
