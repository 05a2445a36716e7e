"""The explanation: why what a job lacks is not running."""

from enum import StrEnum

from storage.records.base import Record


class Cause(StrEnum):
    """What keeps something of a job from running."""

    STOPPED = "stopped"  # the job was stopped
    CLOCK = "clock"  # it runs at the slots of its clock
    DISPATCH = "dispatch"  # it runs when it is dispatched
    CHILDREN = "children"  # as many children of its parent are at work as may be
    TURN = "turn"  # the scheduler has not looked yet
    PLACE = "place"  # no node has room for it, or none suits it
    NODE = "node"  # no node that it may run on is open for new work
    PREEMPTED = "preempted"  # it made room for a job that matters more
    DELAY = "delay"  # it failed and is tried again later
    LIMIT = "limit"  # it failed and is not tried again
    DEPLOYMENT = "deployment"  # a deployment holds it back
    START = "start"  # it has a place and is about to start


class Reason(Record, frozen=True, kw_only=True):
    """Why so many allocations of a group are not running, in one sentence.

    `until` is when that ends by itself (nanoseconds since the epoch), 0 when nobody knows.
    """

    cause: Cause
    message: str
    task_group: str = ""  # empty: the whole job
    missing: int = 0
    allocation_id: str = ""
    until: int = 0


class Explanation(Record, frozen=True, kw_only=True):
    """Why what a job lacks is not running; without reasons, nothing is missing."""

    job_id: str
    namespace: str
    status: str
    running: int
    reasons: list[Reason]


class Retry(Record, frozen=True, kw_only=True):
    """How often an allocation was tried, and when it is tried again, or why not.

    `attempts` is how often it was placed, with those in whose place it came; `restarts` how often
    its tasks were started again where they are; `next_time` (nanoseconds since the epoch) is 0 when
    there is no next time, or nobody knows it.
    """

    attempts: int
    restarts: int
    message: str
    next_time: int = 0
