"""The state of a job and its child jobs, as the API shows them.

These are extensions of Steward, which Nomad's clients ignore.
"""

from msgspec import UNSET, UnsetType

from storage.records.base import Record
from storage.records.failure import TaskError


class Run(Record, frozen=True, kw_only=True):
    """A child of a periodic or parameterized job, or a run of a workflow.

    Times and durations are in nanoseconds.

    `result` is the state of the child in one word; `ended` and `duration` are 0 while it is
    running.
    """

    id: str
    namespace: str
    result: str
    reason: str = ""
    exit_code: int | None = None
    submitted: int = 0
    started: int = 0
    ended: int = 0
    duration: int = 0
    slot: int = 0  # the slot that launched the run; 0 for a dispatched or forced run
    meta: dict[str, str] = {}  # the meta of the dispatch
    payload_size: int = 0  # bytes
    error: TaskError | None = None
    # Only for a run of a workflow without children:
    number: int | UnsetType = UNSET
    version: int | UnsetType = UNSET


class RunDay(Record, frozen=True, kw_only=True):
    """The ended children of one day by result, and the numbers of skipped and late slots."""

    date: str  # in the time zone of the schedule, such as 2026-11-21
    results: dict[str, int] = {}
    skipped: int = 0
    caught_up: int = 0
    late: int = 0


class RunCalendar(Record, frozen=True, kw_only=True):
    """The days with children or slots, oldest first; `since` is the first day with complete data.

    `since` is empty if the data of all days are complete.
    """

    zone: str
    today: str
    days: list[RunDay]
    since: str = ""


class RunsLine(Record, frozen=True, kw_only=True):
    """A summary of a job's children; `recent` holds the results of the last ten, newest first.

    If requested, `strip` holds the results of the last fifty children, including stopped children.
    """

    last_result: str = ""
    last_run_id: str = ""
    last_reason: str = ""
    last_ended: int = 0
    last_duration: int = 0
    recent: list[str] = []
    active: int = 0
    kept: int = 0
    next_launch: int = 0
    strip: list[str] | UnsetType = UNSET


class StateLine(Record, frozen=True, kw_only=True):
    """The state of a job in one word, the reason in one sentence, and a summary of its children.

    `error` is the newest error of a failing job, or of its last child; listings omit it.
    """

    state: str
    reason: str = ""
    runs: RunsLine | None = None
    error: TaskError | UnsetType | None = UNSET
