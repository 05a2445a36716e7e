"""The explanation of why parts of a job are not running."""

from enum import StrEnum

from storage.records.base import Record
from storage.records.state import StateLine


class Cause(StrEnum):
    """The reason why a part of a job is not running."""

    STOPPED = "stopped"  # the job was stopped
    CLOCK = "clock"  # the job launches children by its schedule
    DISPATCH = "dispatch"  # the job launches children on dispatch
    CHILDREN = "children"  # its parent's limit on active children is reached
    FREEZE = "freeze"  # a freeze holds it
    TURN = "turn"  # the scheduler has not processed it yet
    PLACE = "place"  # no node is feasible or has capacity
    NODE = "node"  # all feasible nodes are ineligible
    PREEMPTED = "preempted"  # it was preempted by a job with a higher priority
    DELAY = "delay"  # it failed and will be retried
    LIMIT = "limit"  # it failed and will not be retried
    DEPLOYMENT = "deployment"  # a deployment holds it back
    BROKEN = "broken"  # the daemon's own processing failed
    TRIGGER = "trigger"  # it starts after other jobs
    STEP = "step"  # a step of a workflow waits, was skipped, or has ended
    START = "start"  # it is placed and about to start


class Reason(Record, frozen=True, kw_only=True):
    """Why a number of allocations of a group are not running, in one sentence.

    `until` is when the reason ends automatically (nanoseconds since the epoch), 0 if unknown.
    """

    cause: Cause
    message: str
    task_group: str = ""  # empty: the whole job
    missing: int = 0
    allocation_id: str = ""
    until: int = 0


class Explanation(Record, frozen=True, kw_only=True):
    """Why parts of a job are not running; without reasons, nothing is missing.

    `state` has the newest error of a failing job, with its exit code and last error lines.
    """

    job_id: str
    namespace: str
    status: str
    running: int
    reasons: list[Reason]
    state: StateLine | None = None  # set in every response
