"""Periodic jobs: each slot of the schedule launches a child job, or records why not.

One write decides a slot: the overlap check, the launch, the record, and the next slot. No slot
launches twice, and a crash loses none, because due slots are in the store and the loop has no
state.

A job may name a calendar. Slots at which the calendar is closed launch nothing, or are replaced by
one launch at the next opening (`daemon/jobs/calendar_slots.py`).

Slots may be missed while the daemon is down or the host is suspended. A single launch makes up for
all missed slots, as in Nomad (source: Nomad's recorded responses `periodic`, `periodic-tick`). The
job's meta can instead select no launch, or one launch for each slot (docs/extensions.md).
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import tzinfo
from functools import cache, partial
from hashlib import blake2b
from heapq import heapify, heappop, heapreplace
from itertools import islice, takewhile
from typing import TYPE_CHECKING

import msgspec
import trio

from daemon.clock import Clock, wait_until
from daemon.fences import TOPIC, Fences
from daemon.jobs.evaluate import new_evaluation
from daemon.jobspec.budgets import DEFAULTS, Budgets
from daemon.jobspec.steward_meta.job_keys import (
    CATCH_UP,
    CATCH_UP_MOST,
    JITTER,
    RUN_CALENDAR,
    RUN_DAY,
    CatchUpPolicy,
    queue_of,
)
from storage.errors import Invalid, Malformed, NotFound, Refused
from storage.queries import evaluations, faults, freezes, job_status, jobs, notifications, periodic
from storage.read_pool import ReadSnapshot
from storage.records.base import MINUTE, SECOND
from storage.records.evaluation import Trigger
from storage.records.freeze import Freeze, Strength
from storage.records.job import Job, JobStatus, Periodic
from storage.records.notification import NotifyEvent, notify_settings
from storage.records.periodic import CLOSED_REASON, Slot, SlotOutcome
from storage.records.times import rfc3339 as moment
from storage.store import Store, tolerate_disk_full
from storage.writer import Transaction

if TYPE_CHECKING:
    from daemon.jobs.calendar_slots import Forecast, JobOpenings, Launch

log = logging.getLogger("steward.periodic")

_AT_ONCE = 32  # decisions that share a commit
_LATE = MINUTE  # an older slot counts as missed
_MOST_COUNTED = 1000  # slots counted in one record
# Evaluations of cron expressions (40 µs each) per decision; a job that needs more is skipped.
_MOST_LOOKS = 4000
_LOOKS_AT_EACH = 4  # evaluations per expression, if many expressions are allowed

_CLOSED_LINES = 30  # records about slots that were missed while a calendar was closed
_SHOWN = 10  # upcoming launches shown to users

_PAUSED = "the job is paused"
_BUSY = "a child is still active and overlap is prohibited"
_TAKEN = "a child was launched by hand in the same second"
_FENCED = faults.CLOCK

_ON_PURPOSE = (_PAUSED, _TAKEN)  # deliberate outcomes, which do not count as missed


class ForcedLaunch(msgspec.Struct, frozen=True, kw_only=True):
    """The evaluation of a child launched on request."""

    eval_id: str
    index: int


# --- schedules ---


def next_slot(block: Periodic, after: int) -> int | None:
    """Return the first slot after a time, or None if there is no further slot."""
    return next(each_slot(block, after), None)


def next_launches(
    job: Job,
    after: int,
    openings: "JobOpenings | None" = None,
    holding: Sequence[Freeze] = (),
) -> list[int]:
    """Return the times of the next ten launches, in nanoseconds; empty without a schedule.

    Slots during the freezes in `holding` launch nothing. The end of such a freeze launches a child
    that makes up for these slots, unless the job does not catch up or follows a calendar. May take
    long for a job with `openings`.
    """
    if job.periodic is None or not periodic.is_followed(job):
        return []
    return [*islice(_launches_with_freezes(job, job.periodic, after, openings, holding), _SHOWN)]


def next_launch(db: ReadSnapshot, job: Job, now: int) -> int | None:
    """Return the time of the next launch, in nanoseconds; None without a further launch.

    The time is the first of `next_launches`. May take long for a job with a calendar.
    """
    if job.periodic is None or not periodic.is_followed(job):
        return None
    after = decided_until(db, job, now)
    openings, holding = openings_of(db, job), holding_freezes(db, job)
    return next(_launches_with_freezes(job, job.periodic, after, openings, holding), None)


def upcoming(
    db: ReadSnapshot,
    namespace: str,
    now: int,
    start: tuple[int, str, str] | None = None,
    *,
    reverse: bool = False,
) -> Iterator[periodic.DueLaunch]:
    """Yield the jobs with an upcoming launch in a namespace, or in all (`*`), earliest first.

    `start` is the time, the namespace and the ID of the first job. A freeze moves launches, so it
    changes the order: all launches are then computed first. May take long.
    """
    if not freezes.any_open(db):
        yield from periodic.upcoming(db, namespace, start, reverse=reverse)
        return
    holding = cache(partial(_holding, db))
    moved = [
        item
        for due in periodic.followed(db, namespace)
        if (item := _moved(db, due, holding(due.namespace), now))
    ]

    def place(item: periodic.DueLaunch) -> tuple[int, str, str]:
        return item.launch or 0, item.namespace, item.job_id

    for item in sorted(moved, key=place, reverse=reverse):
        if start is None or (place(item) <= start if reverse else place(item) >= start):
            yield item


def _moved(
    db: ReadSnapshot, due: periodic.DueLaunch, holding: Iterable[Freeze], now: int
) -> periodic.DueLaunch | None:
    """Return the next launch of a job, as freezes move it; None without a further launch.

    `holding` has the freezes of the namespace that hold slots. Most jobs need no look at the job
    itself: no freeze covers their next slot.
    """
    stored = due.launch
    if stored is None:
        return None
    covering = [freeze for freeze in holding if freeze.covers(due.job_id, "", freeze.queue)]
    is_unknown = stored == periodic.NEVER and bool(covering)  # perhaps waits for the end of one
    if not is_unknown and not _is_held(stored, covering):
        return None if stored == periodic.NEVER else due
    job = jobs.current(db, due.namespace, due.job_id)
    time = None if job is None else next_launch(db, job, now)
    return None if time is None else msgspec.structs.replace(due, next_launch=time)


def _launches_with_freezes(
    job: Job,
    block: Periodic,
    after: int,
    openings: "JobOpenings | None",
    holding: Sequence[Freeze],
) -> Iterator[int]:
    """Yield the times of launches after a time, including those at the ends of freezes."""
    late = launch_jitter(job)
    catches_up = openings is None and CATCH_UP.of(job.meta) != CatchUpPolicy.NONE
    start = after - late
    while True:
        held = None
        for slot in each_launch(block, openings, start):
            if _is_held(slot + late, holding):
                held = slot + late
                break
            yield slot + late
        end = None if held is None else _end_of_hold(held, holding)
        if end is None:
            return
        if catches_up:
            yield end
        # The child at the end of the freeze also stands for a slot at this time.
        start = end - late - (not catches_up)


def _is_held(time: int, holding: Sequence[Freeze]) -> bool:
    return any(freeze.holds_at(time) for freeze in holding)


def _end_of_hold(time: int, holding: Sequence[Freeze]) -> int | None:
    """Return the time at which the freezes that hold a launch have ended; None without an end."""
    while held := [freeze for freeze in holding if freeze.holds_at(time)]:
        if not all(freeze.end for freeze in held):
            return None
        time = max(freeze.end for freeze in held)
    return time


def holding_freezes(db: ReadSnapshot, job: Job) -> list[Freeze]:
    """Return the present and future freezes that hold the slots of a job."""
    queue = queue_of(job)
    return [freeze for freeze in _holding(db, job.namespace) if freeze.covers(job.id, "", queue)]


def _holding(db: ReadSnapshot, namespace: str) -> list[Freeze]:
    """Return the present and future freezes in a namespace that hold slots."""
    open_freezes = freezes.not_ended(db, namespace)
    return [freeze for freeze in open_freezes if freeze.strength != Strength.CHANGES]


def has_openings(job: Job) -> bool:
    """Return whether a job launches only in the openings of a calendar or on days of the month."""
    return bool(RUN_CALENDAR.of(job.meta) or RUN_DAY.of(job.meta))


def openings_of(db: ReadSnapshot, job: Job) -> "JobOpenings | None":
    """Return the openings of a job; None if it may be launched at any time."""
    if not has_openings(job):
        return None
    from daemon.jobs.calendar_slots import load_openings  # imported late: few jobs need it

    return load_openings(db, job)


def each_launch(block: Periodic, job_openings: "JobOpenings | None", after: int) -> Iterator[int]:
    """Yield the times of launches after a time: the slots, as changed by a calendar."""
    if job_openings is None:
        yield from each_slot(block, after)
        return
    from daemon.flow.calendars import TooManySteps
    from daemon.jobs.calendar_slots import launches_after

    limit = CronEvaluationLimit(_MOST_LOOKS)
    try:
        yield from launches_after(
            lambda time: next(each_slot(block, time, limit), None), job_openings, after
        )
    except (TooManyExpressions, TooManySteps):
        return


def zone_of(job: Job) -> tzinfo:
    """Return the time zone for displaying a job's launches."""
    from daemon.jobspec import cron

    return cron.zone(job.periodic.time_zone if job.periodic else "")


class TooMuchWork(Exception):
    """The schedule of a job needs more work than permitted."""


class TooManyExpressions(TooMuchWork):
    """The schedule of a job needs more evaluations of cron expressions than permitted."""


class CronEvaluationLimit:
    """Counts evaluations of cron expressions up to `most`; None means no limit."""

    def __init__(self, most: int | None = None) -> None:
        self.most, self.number = most, 0

    def next_after(self, spec: str, after: int, zone: tzinfo) -> int | None:
        """Return the next time at which an expression fires. Raises `TooManyExpressions`."""
        self.number += 1
        if self.most is not None and self.number > self.most:
            raise TooManyExpressions(
                f"its schedule needs more than {self.most} evaluations of cron expressions: "
                "give it fewer Specs"
            )
        from daemon.jobspec import cron

        return cron.next_after(spec, after, zone)


def each_slot(
    block: Periodic, after: int, limit: CronEvaluationLimit | None = None
) -> Iterator[int]:
    """Yield the slots after a time, in order.

    After each slot, every cron expression that fired at the slot is evaluated again. Raises
    `TooManyExpressions` if the evaluations exceed `limit`.
    """
    from daemon.jobspec import cron  # imported late: many daemons have no periodic jobs

    limit = limit or CronEvaluationLimit()
    try:
        zone = cron.zone(block.time_zone)
        coming = [
            (slot, spec)
            for spec in set(block.specs or [block.spec])
            if (slot := limit.next_after(spec, after, zone)) is not None
        ]
    except Invalid as error:  # stored before a validation rule became stricter
        log.warning("no more launches: %s", error)
        return
    heapify(coming)
    while coming:
        slot = coming[0][0]
        yield slot
        while coming and coming[0][0] == slot:
            spec = coming[0][1]
            following = limit.next_after(spec, slot, zone)
            if following is None:
                heappop(coming)
            else:
                heapreplace(coming, (following, spec))


class Slots:
    """The undecided slots of a schedule.

    With many expressions or missed slots, computing them may take long. A thread computes them
    (`precompute`), and the transaction that decides uses the results. `first` is the next slot, if
    it is already known.
    """

    def __init__(self, block: Periodic, followed_to: int, first: Sequence[int | None] = ()) -> None:
        self.block, self.followed_to = block, followed_to
        self.forecast: Forecast | None = None  # only for a job with a calendar
        self._after: dict[int, int | None] = dict(zip([followed_to], first, strict=False))

    def after(self, time: int, limit: CronEvaluationLimit | None = None) -> int | None:
        """Return the first slot after a time, or None if there is no further slot."""
        if time not in self._after:
            self._after[time] = next(each_slot(self.block, time, limit), None)
        return self._after[time]

    def missed(self, first: int, now: int) -> int:
        """Return the number of computed slots from `first` to now."""
        return sum(1 for _ in self.known(first, now))

    def known(self, first: int, now: int) -> Iterator[int]:
        """Yield the computed slots from `first` to now, up to a limit."""
        slot: int | None = first
        for _ in range(_MOST_COUNTED):
            if slot is None or slot > now:
                return
            yield slot
            slot = self._after.get(slot)

    def precompute(self, until: int, most: int | None = None) -> int:
        """Compute the slots to decide now, and the next slot.

        Return how many times a cron expression was evaluated. Raises `TooManyExpressions` if this
        number exceeds `most`. Close to `most`, the method stops early, and `missed` does not count
        the remaining slots.
        """
        limit = CronEvaluationLimit(most)
        last = self.after(self.followed_to, limit)
        if last is None or last > until:
            return limit.number
        launches_per_spec = len(set(self.block.specs or [self.block.spec]))
        enough = None if most is None else most - 2 * launches_per_spec
        for slot in islice(each_slot(self.block, last, limit), _MOST_COUNTED):
            self._after[last] = slot
            last = slot
            if slot > until:
                self._after[until] = slot
                break
            if enough is not None and limit.number > enough:
                break
        else:
            self.after(last, limit)
        self.after(until, limit)
        return limit.number


def launch_jitter(job: Job) -> int:
    """Return the delay of a job's launches after their slots, constant per job."""
    longest = JITTER.of(job.meta)
    if not longest:
        return 0
    drawn = blake2b(f"{job.namespace}/{job.id}".encode(), digest_size=8).digest()
    return int.from_bytes(drawn) % (longest // SECOND + 1) * SECOND


def decided_until(db: ReadSnapshot, job: Job, now: int) -> int:
    """Return the time after which slots can still launch children of a job, in nanoseconds.

    This is `now`, unless the clock was set back: Steward decides no slot twice.
    """
    due = periodic.of_job(db, job.namespace, job.id)
    return now if due is None else max(now, due.followed_to + launch_jitter(job))


# --- decisions ---


def precompute_slots(
    db: ReadSnapshot, due_launches: Iterable[periodic.DueLaunch], now: int, most: int | None = None
) -> dict[tuple[str, str], Slots]:
    """Compute the slots that are needed to decide due launches. May take long.

    Return the slots by namespace and job ID. Raises `TooMuchWork`.
    """
    computed = {}
    for due_launch in due_launches:
        job = jobs.current(db, due_launch.namespace, due_launch.job_id)
        if job is not None and job.periodic is not None:
            late = launch_jitter(job)
            found_openings = openings_of(db, job)
            # With a calendar, a decision may be due at another time than the slot.
            first = () if found_openings else _known(due_launch, late)
            slots = Slots(job.periodic, due_launch.followed_to, first)
            slots.precompute(now - late, most)
            if found_openings is not None:
                slots.forecast = _forecast(slots, found_openings, until=now - late, now=now)
            computed[due_launch.namespace, due_launch.job_id] = slots
    return computed


def _forecast(slots: Slots, openings: "JobOpenings", *, until: int, now: int) -> "Forecast":
    """Return the outcomes of the slots of a job with a calendar. Raises `TooMuchWork`."""
    from daemon.flow.calendars import TooManySteps
    from daemon.jobs.calendar_slots import forecast

    limit = CronEvaluationLimit(_MOST_LOOKS)

    def slot_after(time: int) -> int | None:
        try:
            return slots.after(time, limit)
        except TooManyExpressions:
            return None

    first = slots.after(slots.followed_to)
    due = () if first is None else slots.known(first, until)
    try:
        decisions = forecast(openings, due, slot_after, until=until, now=now)
    except TooManySteps as error:
        raise TooMuchWork(str(error)) from error
    for launch in decisions.launches:
        slots.after(launch.last, limit)
        if launch.at is not None and launch.at <= until:
            slots.after(launch.at, limit)
    return decisions


def _known(due_launch: periodic.DueLaunch, late: int) -> Sequence[int | None]:
    """Return the stored next slot as the only item; return no item if none is stored yet.

    The item None means that the schedule has no further slot. `late` is the launch delay. The
    stored time includes this delay.
    """
    if due_launch.next_slot is None:
        return ()
    return [None if due_launch.next_slot == periodic.NEVER else due_launch.next_slot - late]


def decide_slot(
    tx: Transaction,
    namespace: str,
    job_id: str,
    slots: Slots,
    *,
    started: int,
    now: int,
    eval_id: str,
) -> None:
    """Decide the next slot of a job if it is due; otherwise store the time of the next slot.

    `started` is the time at which the loop started. Slots before this time count as missed. If the
    schedule has changed since `slots` were computed, do nothing: they must be computed again.
    """
    due, job = periodic.of_job(tx, namespace, job_id), jobs.current(tx, namespace, job_id)
    if due is None or job is None or job.periodic is None:
        return
    if not periodic.is_followed(job):  # an earlier version of Steward stored the schedule
        periodic.end_schedule(tx, job)
        return
    if job.periodic != slots.block or due.followed_to != slots.followed_to:
        return
    if not _has_same_openings(tx, job, slots.forecast):
        return
    slot, late = slots.after(due.followed_to), launch_jitter(job)
    if slot is None or slot + late > now:
        _advance(tx, job, slots, due.followed_to)
    elif due.paused:
        missed = slots.missed(slot, now - late)
        _skip(tx, job, slot, now, _PAUSED, missed)
        _advance(tx, job, slots, now - late)
    elif _frozen(tx, job, now):
        _wait_for_thaw(tx, job, slots)
    elif slots.forecast is not None:
        _decide_by_calendar(tx, job, slots, slots.forecast, started, now, eval_id)
    elif slot + late < max(started, now - _LATE) or _frozen(tx, job, slot + late):
        _catch_up(tx, job, slots, slot, now, eval_id)
    else:
        _launch_or_skip(tx, job, slot, now, eval_id)
        _advance(tx, job, slots, slot)


def _has_same_openings(tx: Transaction, job: Job, forecast: "Forecast | None") -> bool:
    """Return whether a forecast still matches the current job and its calendars."""
    if forecast is None:
        return not has_openings(job)
    return forecast.found.is_current(tx, job)


def _decide_by_calendar(
    tx: Transaction,
    job: Job,
    slots: Slots,
    forecast: "Forecast",
    started: int,
    now: int,
    eval_id: str,
) -> None:
    """Decide the first due slots of a job with a calendar, or wait for the next opening.

    Consecutive slots with the same outcome are decided together. `started` is the time at which the
    loop started. Launches that were due before this time count as missed.
    """
    late = launch_jitter(job)
    first = forecast.launches[0]
    if first.at is None:
        _skip(tx, job, first.first, now, first.reason, first.slots)
        _advance(tx, job, slots, first.last)
    elif first.at + late > now:
        _wait_for_opening(tx, job, slots, first.at)
    elif first.at + late >= max(started, now - _LATE) and not _frozen(tx, job, first.at + late):
        _launch_or_skip(tx, job, first.first, now, eval_id, launch=first)
        _advance(tx, job, slots, max(first.last, first.at))
    elif not forecast.closed:
        _catch_up_by_calendar(tx, job, slots, forecast.launches, now, eval_id)
    elif forecast.found.moves and forecast.reopens is not None:
        _wait_for_opening(tx, job, slots, forecast.reopens)
    else:
        _skip(tx, job, first.first, now, forecast.closed, first.slots)
        _advance(tx, job, slots, max(first.last, first.at))


def _frozen(tx: Transaction, job: Job, time: int) -> bool:
    """Return whether a freeze holds the launches of a job at a time, which may be in the past."""
    return _freeze(tx, job, time) is not None


def _freeze(tx: Transaction, job: Job, time: int) -> Freeze | None:
    return freezes.covering(tx, (job.namespace, job.id), "", queue_of(job), time=time)


def _wait_for_thaw(tx: Transaction, job: Job, slots: Slots) -> None:
    """Leave due slots undecided until a freeze ends.

    At the end of the freeze, the next slot is computed again.
    """
    never = periodic.NEVER
    periodic.advance(
        tx,
        job.namespace,
        job.id,
        followed_to=slots.followed_to,
        next_slot=never,
        next_launch=never,
    )


def _wait_for_opening(tx: Transaction, job: Job, slots: Slots, opening: int) -> None:
    """Leave due slots undecided until an opening."""
    launch_time = opening + launch_jitter(job)
    periodic.advance(
        tx,
        job.namespace,
        job.id,
        followed_to=slots.followed_to,
        next_slot=launch_time,
        next_launch=launch_time,
    )


def _catch_up_by_calendar(
    tx: Transaction,
    job: Job,
    slots: Slots,
    launches: Sequence["Launch"],
    now: int,
    eval_id: str,
) -> None:
    """Decide missed launches while the calendar of a job is open, as `steward_catch_up` says."""
    until = now - launch_jitter(job)
    due = list(takewhile(lambda launch: launch.at is None or launch.at <= until, launches))
    missed = [launch for launch in due if launch.at is not None]
    end = max(launch.at or launch.last for launch in due)
    most, policy = CATCH_UP_MOST.of(job.meta), CATCH_UP.of(job.meta)
    if policy == CatchUpPolicy.ALL and len(missed) <= most:
        first = missed[0]
        _launch_or_skip(
            tx, job, first.first, now, eval_id, outcome=SlotOutcome.CAUGHT_UP, launch=first
        )
        _advance(tx, job, slots, max(first.last, first.at or 0))
        return
    if policy == CatchUpPolicy.ALL:  # the oldest launches, up to the next closed slot
        missed = list(takewhile(lambda launch: launch.at is not None, due))[: len(missed) - most]
        reason = f"it was missed, and this job catches up only the newest {most}"
        _skip(tx, job, missed[0].first, now, reason, sum(launch.slots for launch in missed))
        _advance(tx, job, slots, max(missed[-1].last, missed[-1].at or 0))
        return
    number = sum(launch.slots for launch in missed)
    if policy == CatchUpPolicy.LAST:
        _launch_or_skip(tx, job, missed[0].first, now, eval_id, missed=number)
    else:
        reason = "it was missed, and this job does not catch up"
        _skip(tx, job, missed[0].first, now, reason, number)
    _skip_closed(tx, job, [launch for launch in due if launch.at is None], now)
    _advance(tx, job, slots, end)


def _skip_closed(tx: Transaction, job: Job, closed: Sequence["Launch"], now: int) -> None:
    """Record the slots that were missed while a calendar was closed.

    The number of records is limited; the last record combines all remaining slots.
    """
    for launch in closed[:_CLOSED_LINES]:
        _skip(tx, job, launch.first, now, launch.reason, launch.slots)
    if excess := closed[_CLOSED_LINES:]:
        reason = f"{excess[0].reason}, and for other reasons until {moment(excess[-1].last)}"
        _skip(tx, job, excess[0].first, now, reason, sum(launch.slots for launch in excess))


def _catch_up(tx: Transaction, job: Job, slots: Slots, slot: int, now: int, eval_id: str) -> None:
    """Decide missed slots, beginning with `slot`; possibly in several transactions."""
    until = now - launch_jitter(job)
    missed = slots.missed(slot, until)
    most = CATCH_UP_MOST.of(job.meta)
    match CATCH_UP.of(job.meta):
        case CatchUpPolicy.LAST:
            _launch_or_skip(tx, job, slot, now, eval_id, missed=missed)
            _advance(tx, job, slots, until)
        case CatchUpPolicy.NONE:
            _skip(tx, job, slot, now, "it was missed, and this job does not catch up", missed)
            _advance(tx, job, slots, until)
        case CatchUpPolicy.ALL if missed > most:
            reason = f"it was missed, and this job catches up only the newest {most}"
            _skip(tx, job, slot, now, reason, missed - most)
            _advance(tx, job, slots, _nth(slots, slot, missed - most))
        case CatchUpPolicy.ALL:
            _launch_or_skip(tx, job, slot, now, eval_id, outcome=SlotOutcome.CAUGHT_UP)
            _advance(tx, job, slots, slot)


def _nth(slots: Slots, slot: int, number: int) -> int:
    """Return the slot with this number, where `slot` is number 1."""
    for _ in range(number - 1):
        slot = slots.after(slot) or slot
    return slot


def _advance(tx: Transaction, job: Job, slots: Slots, followed_to: int) -> None:
    """Store the end of the decided slots, and the time of the next launch."""
    slot, late = slots.after(followed_to), launch_jitter(job)
    due = None if slot is None else slot + late
    launch = slots.forecast.next_launch if slots.forecast else None
    if launch is not None and launch != periodic.NEVER:
        launch += late
    periodic.advance(
        tx, job.namespace, job.id, followed_to=followed_to, next_slot=due, next_launch=launch
    )


def _skip(tx: Transaction, job: Job, slot: int, now: int, reason: str, slots: int) -> None:
    done = Slot(slot=slot, slots=slots, decided_at=now, outcome=SlotOutcome.SKIPPED, reason=reason)
    _write_down(tx, job, done)


def _write_down(tx: Transaction, job: Job, done: Slot) -> None:
    """Store the outcome of a slot, and notify if the slot was missed or is late."""
    if done.outcome == SlotOutcome.SKIPPED and done.reason.startswith(CLOSED_REASON):
        # One record for all slots of a closed period: a weekend has thousands of minutes.
        periodic.extend(tx, job.namespace, job.id, done)
        return
    periodic.add_slot(tx, job.namespace, job.id, done)
    settings = notify_settings(job.meta)
    if settings is None or done.outcome == SlotOutcome.LAUNCHED or done.reason in _ON_PURPOSE:
        return
    event = NotifyEvent.MISSED if done.outcome == SlotOutcome.SKIPPED else NotifyEvent.LATE
    when = moment(done.slot)
    reason = f"the slot of {when} was skipped: {done.reason}"
    if event == NotifyEvent.LATE:
        reason = f"the slot of {when} was missed, and is caught up now"
    if done.slots > 1:
        reason += f", together with {done.slots - 1} more"
    key = (job.namespace, job.id)
    run_id = done.child_id or job.id
    notifications.add(tx, key, settings, event, run_id=run_id, reason=reason, now=done.decided_at)


def _launch_or_skip(
    tx: Transaction,
    job: Job,
    slot: int,
    now: int,
    eval_id: str,
    *,
    missed: int = 0,
    outcome: SlotOutcome = SlotOutcome.LAUNCHED,
    launch: "Launch | None" = None,
) -> None:
    """Launch a child for a slot or for missed slots, or record why none is launched.

    `launch` is set if a calendar has moved the slots.
    """
    time = launch.at if launch is not None and launch.at is not None else slot
    child_id, reason = child_id_of(job, now if missed else time), ""
    number = launch.slots if launch else 1
    if launch is not None and launch.reason:
        reason = f"moved to {moment(time)}; {launch.reason}"
    if missed:
        outcome = SlotOutcome.CAUGHT_UP
    if job.periodic and job.periodic.prohibit_overlap and jobs.has_active_children(tx, job):
        outcome, reason, child_id = SlotOutcome.SKIPPED, _BUSY, ""
    elif jobs.current_wire(tx, job.namespace, child_id) is not None:
        outcome, reason = SlotOutcome.SKIPPED, _TAKEN
    else:
        _launch(tx, job, child_id, now, eval_id, _freeze(tx, job, time + launch_jitter(job)))
    done = Slot(
        slot=slot,
        slots=max(missed, number),
        decided_at=now,
        outcome=outcome,
        reason=reason,
        child_id=child_id,
    )
    _write_down(tx, job, done)


def child_id_of(parent: Job, time: int) -> str:
    """Return the ID of the child that is launched for this time."""
    return f"{parent.id}/periodic-{time // SECOND}"


def derive_periodic_child(parent: Job, child_id: str, now: int) -> Job:
    """Return a child job: the parent's definition with a new ID and without the schedule."""
    return msgspec.structs.replace(
        parent,
        id=child_id,
        name=child_id,
        parent_id=parent.id,
        periodic=None,
        status=JobStatus.PENDING,
        stable=False,
        version_tag=None,
        submit_time=now,
    )


def _launch(
    tx: Transaction,
    parent: Job,
    child_id: str,
    now: int,
    eval_id: str,
    freeze: Freeze | None = None,
) -> None:
    """Store a child job.

    If a `freeze` holds the child, it begins after the jobs that were held before it.
    """
    child = jobs.append_version(tx, derive_periodic_child(parent, child_id, now))
    if freeze is not None:
        freezes.hold(tx, (child.namespace, child.id), freeze.id, now)
    elif not child.launches_children:
        evaluation = new_evaluation(child, eval_id, Trigger.PERIODIC_JOB, job_modify_index=tx.index)
        evaluations.put(tx, evaluation, now)
    job_status.refresh_summary(tx, child.namespace, child.id)


async def force(
    store: Store,
    namespace: str,
    job_id: str,
    *,
    budgets: Budgets = DEFAULTS,
    now: int,
    eval_id: str,
) -> ForcedLaunch:
    """Launch a child now, regardless of overlaps. Raises `Refused` or `OverBudget`.

    A second request within the same second re-evaluates the same child.
    """

    def write(tx: Transaction) -> ForcedLaunch:
        job = jobs.current(tx, namespace, job_id)
        if job is None:
            raise Refused("job not found")
        if job.periodic is None:
            raise Refused("can't force launch non-periodic job")
        if not periodic.is_followed(job):
            raise Refused(
                f'force launch for job "{job_id}" failed: '
                f'can\'t force run non-tracked job "{job_id}" ({namespace})'
            )
        child_id = child_id_of(job, now)
        child = jobs.current(tx, namespace, child_id)
        if child is None:
            from daemon.jobs.dispatch import check_child  # only a forced launch needs it

            check_child(derive_periodic_child(job, child_id, now), budgets)
            _launch(tx, job, child_id, now, eval_id)
        else:
            evaluation = new_evaluation(child, eval_id, Trigger.PERIODIC_JOB)
            evaluations.put(tx, evaluation, now)
            job_status.refresh_summary(tx, namespace, child_id)
        return ForcedLaunch(eval_id=eval_id, index=tx.index)

    return await store.write(write)


async def pause(store: Store, namespace: str, job_id: str, *, paused: bool) -> int:
    """Pause or resume the schedule of a job; return the index of the write.

    The schedule stays paused for new versions of the job. Stopping the job resumes the schedule.
    Raises `NotFound` or `Malformed`.
    """

    def write(tx: Transaction) -> int:
        job, clock = load_periodic_job(tx, namespace, job_id)
        if clock is None:
            raise Malformed(f'job "{job.id}" has no active schedule: it is stopped or not enabled')
        if clock.paused != paused:
            periodic.set_paused(tx, namespace, job_id, paused=paused)
        return tx.index

    return await store.write(write)


def load_periodic_job(
    db: ReadSnapshot, namespace: str, job_id: str
) -> tuple[Job, periodic.DueLaunch | None]:
    """Return a periodic job and its schedule; the schedule is None if it is not active.

    Raises `NotFound` or `Malformed`.
    """
    job = jobs.current(db, namespace, job_id)
    if job is None:
        raise NotFound("job not found", index=db.table_index("jobs"))
    if job.periodic is None:
        raise Malformed(f'job "{job_id}" is not periodic')
    return job, periodic.of_job(db, namespace, job_id)


# --- loop ---


@asynccontextmanager
async def open_periodic(
    store: Store,
    clock: Clock,
    ids: Iterator[str],
    fences: Fences,
    *,
    most_specs: int = DEFAULTS.job_max_specs,
    begins: trio.Event | None = None,
) -> AsyncIterator[None]:
    """Launch the children of periodic jobs while the block runs, once `begins` is set.

    `most_specs` is the limit on expressions per schedule, 0 for no limit.
    """
    most = max(_MOST_LOOKS, _LOOKS_AT_EACH * most_specs) if most_specs else None
    async with trio.open_nursery() as nursery:
        loop = partial(_follow, store, clock, ids, fences, most, begins)
        nursery.start_soon(fences.keep_running, "periodic jobs", loop)
        yield
        nursery.cancel_scope.cancel()


async def _follow(
    store: Store,
    clock: Clock,
    ids: Iterator[str],
    fences: Fences,
    most: int | None,
    begins: trio.Event | None,
) -> None:
    """Decide every slot when it is due.

    If several attempts to decide a slot fail, the job is skipped until the job or its calendar
    changes, or an operator releases the fault.
    """
    started = clock.now()
    if begins is not None:
        await begins.wait()
    # Only one long read for schedules at a time, so that they delay no other reads.
    one_by_one = trio.CapacityLimiter(1)
    while True:
        with store.watch(periodic.TOPIC, TOPIC) as change:
            now = clock.now()
            for unit in store.read(partial(_changed, units=fences.paused_keys(_FENCED))):
                fences.forget(_FENCED, unit)
            paused = fences.paused_keys(_FENCED)
            due = store.read(partial(_due, now=now, paused=paused))
            if not due:
                times = (
                    store.read(partial(periodic.next_time, after=now if paused else 0)),
                    fences.next_time(_FENCED),
                )
                next_time = min((time for time in times if time is not None), default=None)
                await wait_until(next_time, clock, change)
                continue
        async with tolerate_disk_full("launches wait"), trio.open_nursery() as nursery:
            for unit, job_slot in due.items():
                read = partial(_precompute_job, store, job_slot, now, most, one_by_one)
                work = partial(_decide_precomputed, store, read, started, now, next(ids))
                nursery.start_soon(_fenced, fences, unit, work)


def _due(db: ReadSnapshot, *, now: int, paused: frozenset[str]) -> dict[str, periodic.DueLaunch]:
    """Return the due launches by fault key, except those with a key in `paused`.

    The fault key of a schedule changes with the job and its calendars (`faults.clock`).
    """
    result = {}
    for due_launch in periodic.due(db, now, _AT_ONCE + len(paused)):
        unit = faults.clock(db, due_launch.namespace, due_launch.job_id)
        if unit not in paused:
            result[unit] = due_launch
    return result


def _changed(db: ReadSnapshot, *, units: frozenset[str]) -> list[str]:
    """Return the fault keys in `units` whose job or calendar was changed or removed."""
    return [unit for unit in units if faults.clock(db, *faults.job_of_clock(unit)) != unit]


async def _fenced(fences: Fences, unit: str, work: Callable[[], Awaitable[None]]) -> None:
    overrun = ""
    with fences.around(_FENCED, unit), fences.at_work(_FENCED, [unit]):
        try:
            await work()
        except TooMuchWork as error:
            overrun = str(error)
    if overrun:
        fences.close(_FENCED, unit, overrun)


async def _precompute_job(
    store: Store,
    due_launch: periodic.DueLaunch,
    now: int,
    most: int | None,
    limiter: trio.CapacityLimiter,
) -> dict[tuple[str, str], Slots]:
    """Compute the slots of one job in a thread."""
    async with limiter:
        return await store.read_long(
            partial(precompute_slots, due_launches=[due_launch], now=now, most=most)
        )


async def _decide_precomputed(
    store: Store,
    read: Callable[[], Awaitable[dict[tuple[str, str], Slots]]],
    started: int,
    now: int,
    eval_id: str,
) -> None:
    """Decide the due slot of one job."""
    for key, slots in (await read()).items():
        await store.write(partial(_decide, key, slots, started, now, eval_id))


def _decide(
    key: tuple[str, str], slots: Slots, started: int, now: int, eval_id: str, tx: Transaction
) -> None:
    decide_slot(tx, *key, slots, started=started, now=now, eval_id=eval_id)
