"""The schedule of a periodic job, and its slots with their outcomes."""

from enum import StrEnum

from storage.records.base import Record
from storage.records.job import Job

CLOSED_REASON = "closed: "  # begins the reason of a slot at which the calendar of its job is closed

# Keys of job meta that name a calendar: of the job, and of a group.
OF_JOB = "steward_run_calendar"
OF_GROUP = "steward_calendar"


class SlotOutcome(StrEnum):
    """The outcome of a slot."""

    LAUNCHED = "launched"
    CAUGHT_UP = "caught-up"
    SKIPPED = "skipped"


class Slot(Record, frozen=True, kw_only=True):
    """The outcome of a slot, or of several missed slots; times in nanoseconds."""

    slot: int  # the first slot, if the outcome is that of several
    slots: int = 1
    decided_at: int
    outcome: SlotOutcome
    reason: str = ""
    child_id: str = ""
    create_index: int = 0


class ScheduledLaunch(Record, frozen=True, kw_only=True):
    """The next launch of a periodic job (RFC 3339). If `paused`, the launch does not happen."""

    job_id: str
    namespace: str
    paused: bool
    next_launch: str


class PeriodicSchedule(Record, frozen=True, kw_only=True):
    """The state of a job's schedule: paused or not, and the next launches (RFC 3339)."""

    job_id: str
    namespace: str
    paused: bool
    next_launches: list[str]


def calendars_of(job: Job) -> frozenset[str]:
    """Return the names of the calendars that a job uses."""
    metas = [(OF_JOB, job.meta), *((OF_GROUP, group.meta) for group in job.task_groups or ())]
    return frozenset(name.strip() for key, meta in metas if (name := (meta or {}).get(key, "")))
