"""The clock of a periodic job, and the slot: a time at which a periodic job was to launch a child, and what became of it."""

from enum import StrEnum

from storage.records.base import Record


class SlotOutcome(StrEnum):
    """What became of a slot."""

    LAUNCHED = "launched"
    CAUGHT_UP = "caught-up"
    SKIPPED = "skipped"


class Slot(Record, frozen=True, kw_only=True):
    """What became of a slot, or of several that passed while nobody looked; nanoseconds."""

    slot: int  # the first of them
    slots: int = 1
    decided_at: int
    outcome: SlotOutcome
    reason: str = ""
    child_id: str = ""
    create_index: int = 0


class Launch(Record, frozen=True, kw_only=True):
    """When a periodic job launches its next child (RFC 3339), unless slots are skipped at present."""

    job_id: str
    namespace: str
    paused: bool
    next_launch: str


class Clock(Record, frozen=True, kw_only=True):
    """Whether slots are skipped at present, and when children are launched next (RFC 3339)."""

    job_id: str
    namespace: str
    paused: bool
    next_launches: list[str]
