"""Queues: named groups of runs or steps. The slots of a queue limit how many may be active."""

from enum import StrEnum

import msgspec

from storage.records.base import Record
from storage.records.flow import Beyond

MOST_SLOTS = 10_000
MOST_QUEUES = (
    1000  # of a namespace; separate limits for queues with runs, of steps, and with a slot limit
)
LONGEST_NAME = 128  # characters
MAX_NOTE = 1000  # characters


class SlotState(StrEnum):
    """The state of a request for slots, made by a run or a step."""

    WAITING = "waiting"
    HOLDING = "holding"


class RunQueue(msgspec.Struct, frozen=True, kw_only=True):
    """The queue that the runs of a job enter."""

    name: str
    slots: int
    beyond: Beyond


class QueueEntry(Record, frozen=True, kw_only=True):
    """A run, or a `step` of a run, that holds slots of a queue or waits for slots.

    A step can hold slots for some elements and wait for others, and then has two entries. `arrived`
    is the index of the write in which the run or step requested slots. `since` is the time at which
    the entry reached its state, in nanoseconds since the epoch.
    """

    namespace: str
    name: str
    job_id: str
    parent_id: str
    number: int
    slots: int
    state: SlotState
    priority: int
    beyond: Beyond
    arrived: int
    since: int
    step: str = ""


class QueueLine(Record, frozen=True, kw_only=True):
    """A queue: its number of slots, how many of them are in use, and how many runs or steps wait.

    Without its own limit (`exists` is false), a queue has 1 slot.
    """

    namespace: str
    name: str
    slots: int
    in_use: int
    waiting: int
    exists: bool
    note: str = ""
    modify_index: int = 0


class QueueView(QueueLine, frozen=True, kw_only=True):
    """A queue with the runs or steps that hold its slots, and the first runs or steps that wait.

    Both lists are in the order of the queue.
    """

    holders: list[QueueEntry]
    waiters: list[QueueEntry]
