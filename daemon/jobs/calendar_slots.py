"""Slots of jobs with a calendar: which of them launch a child, and when.

A slot at which the calendar is closed launches nothing. With the setting to move launches, all
closed slots before an opening become one launch at the opening. This module is imported with the
first job that needs it.
"""

from collections.abc import Callable, Iterable, Iterator

import msgspec

from daemon.flow.calendars import Openings, TooManySteps, UnknownCalendar, compiled
from daemon.jobspec import cron
from daemon.jobspec.steward_meta.job_keys import (
    RUN_CALENDAR,
    RUN_CALENDAR_ELSE,
    RUN_DAY,
    ClosedPolicy,
)
from storage.errors import Invalid
from storage.queries import calendars, periodic
from storage.read_pool import ReadSnapshot
from storage.records.job import Job

_MOST_LOOKS = 2000  # slots that the search for a launch examines
_LIMITED = "no opening was found within the limit of the search"


class JobOpenings(msgspec.Struct, frozen=True):
    """The openings of a job: the times at which its calendar and its days of the month permit runs.

    `versions` are the versions of the calendars from which the openings were computed. If `moves`
    is true, all closed slots before an opening launch one child at the opening.
    """

    openings: Openings
    name: str
    days: tuple[int, ...]
    moves: bool
    namespace: str
    versions: dict[str, tuple[int, int]]

    def is_current(self, db: ReadSnapshot, job: Job) -> bool:
        """Return whether neither the calendar keys of the job nor the calendars have changed."""
        if (self.name, self.days) != (RUN_CALENDAR.of(job.meta), RUN_DAY.of(job.meta)):
            return False
        if self.moves != (RUN_CALENDAR_ELSE.of(job.meta) == ClosedPolicy.NEXT):
            return False
        return calendars.has_versions(db, self.namespace, self.versions)


def load_openings(db: ReadSnapshot, job: Job) -> JobOpenings:
    """Return the openings of a job. If its calendar does not exist, there are no openings."""
    name, days = RUN_CALENDAR.of(job.meta), RUN_DAY.of(job.meta)
    try:
        zone = cron.zone(job.periodic.time_zone if job.periodic else "")
    except Invalid:  # stored before a validation rule became stricter
        zone = cron.zone("")
    documents = calendars.documents(db, job.namespace, name) if name else None
    calendar, fault = None, ""
    if documents is not None:
        try:
            calendar = compiled(name, documents.documents)
        except UnknownCalendar as error:
            fault = str(error)
    return JobOpenings(
        openings=Openings(calendar, days, zone, fault=fault),
        name=name,
        days=days,
        moves=RUN_CALENDAR_ELSE.of(job.meta) == ClosedPolicy.NEXT,
        namespace=job.namespace,
        versions=dict(documents.versions) if documents else {},
    )


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """Successive slots with one outcome: a launch at the time `at`, or no launch if `at` is None.

    `reason` says why there is no launch, or why the launch was moved to an opening. It is empty
    for a launch that was not moved.
    """

    first: int
    last: int
    slots: int = 1
    at: int | None
    reason: str = ""


def planned(slots: Iterable[int], job_openings: JobOpenings) -> list[Launch]:
    """Return the outcomes of slots; the slots must be in ascending order. Raises `TooManySteps`."""
    launches: list[Launch] = []
    for slot in slots:
        before = launches[-1] if launches else None
        decision = _planned(slot, job_openings, before)
        if before is not None and _are_one(before, decision):
            launches[-1] = msgspec.structs.replace(before, last=slot, slots=before.slots + 1)
        else:
            launches.append(decision)
    return launches


def _planned(slot: int, job_openings: JobOpenings, before: Launch | None) -> Launch:
    reason = job_openings.openings.why_closed(slot)
    if not reason:
        return Launch(first=slot, last=slot, at=slot)
    launch_time = None
    if job_openings.moves:
        if before is not None and before.at is not None and before.at >= slot:
            launch_time = before.at  # nothing opens in between
        else:
            launch_time = job_openings.openings.next_open(slot)
            if launch_time is None and job_openings.openings.is_limited:
                reason = f"{reason}; {_LIMITED}"
    return Launch(first=slot, last=slot, at=launch_time, reason=reason)


def _are_one(before: Launch, launch: Launch) -> bool:
    if before.at is None or launch.at is None:
        return before.at == launch.at and before.reason == launch.reason
    return before.at == launch.at


def launches_after(
    slot_after: Callable[[int], int | None], job_openings: JobOpenings, after: int
) -> Iterator[int]:
    """Yield the times of launches after a time, without examining each closed slot.

    Raises `TooManySteps`.
    """
    newest = None
    for _ in range(_MOST_LOOKS):
        slot = slot_after(after)
        if slot is None:
            return
        if not job_openings.openings.why_closed(slot):
            if slot != newest:
                yield slot
            newest = after = slot
            continue
        opening = job_openings.openings.next_open(slot)
        if opening is None:
            return
        if job_openings.moves and opening != newest:
            yield opening
        if job_openings.moves:
            newest = after = opening
        else:
            after = opening - 1


def _launch_after(
    slot_after: Callable[[int], int | None], job_openings: JobOpenings, after: int
) -> int | None:
    """Return the time of the first launch after a time.

    The result is `NEVER` if there is no further launch, and None if the search takes too long.
    """
    try:
        launch = next(launches_after(slot_after, job_openings, after), periodic.NEVER)
    except TooManySteps:
        return None
    return None if launch == periodic.NEVER and job_openings.openings.is_limited else launch


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """The outcomes of the due slots of a job.

    If the calendar is closed now, `closed` is the reason, and `reopens` is the time of the next
    opening. `next_launch` is the first launch after the present: `NEVER` if there is none, None if
    unknown.
    """

    found: JobOpenings
    launches: list[Launch]
    closed: str
    reopens: int | None
    next_launch: int | None


def forecast(
    job_openings: JobOpenings,
    slots: Iterable[int],
    slot_after: Callable[[int], int | None],
    *,
    until: int,
    now: int,
) -> Forecast:
    """Return the outcomes of slots up to `until`. May take long.

    Raises `TooManySteps`, and any exception of `slot_after`.
    """
    launches = planned(slots, job_openings)
    closed = job_openings.openings.why_closed(now)
    coming = next(
        (launch.at for launch in launches if launch.at is not None and launch.at > until), None
    )
    if coming is None:
        coming = _launch_after(slot_after, job_openings, until)
    return Forecast(
        found=job_openings,
        launches=launches,
        closed=closed,
        reopens=job_openings.openings.next_open(now) if closed else None,
        next_launch=coming,
    )
