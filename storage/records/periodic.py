"""The schedule of a periodic job, and its slots with their outcomes."""

from enum import StrEnum

from storage.records.base import Record


class SlotOutcome(StrEnum):
    """The outcome of a slot."""

    LAUNCHED = "launched"
    CAUGHT_UP = "caught-up"
    SKIPPED = "skipped"


class Slot(Record, frozen=True, kw_only=True):
    """The outcome of a slot, or of several missed slots; times in nanoseconds."""

    slot: int  # the first of them
    slots: int = 1
    decided_at: int
    outcome: SlotOutcome
    reason: str = ""
    child_id: str = ""
    create_index: int = 0


class ScheduledLaunch(Record, frozen=True, kw_only=True):
    """The next launch of a periodic job (RFC 3339), unless the schedule is paused."""

    job_id: str
    namespace: str
    paused: bool
    next_launch: str


class PeriodicSchedule(Record, frozen=True, kw_only=True):
    """Whether the schedule is paused, and the next launches (RFC 3339)."""

    job_id: str
    namespace: str
    paused: bool
    next_launches: list[str]
