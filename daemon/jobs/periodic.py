"""Periodic jobs: each slot of their clock launches a child, or the ledger says why not.

A slot is decided in one write: whether a child is at work, the launch, the ledger and which slot
comes next. So nothing is launched twice, and a crash loses nothing: what is due stands in the
file, and the loop that looks at it remembers nothing.

Slots that passed while nobody looked (the daemon was down, the machine asleep) are caught up by
one launch, as the peer does (golden: periodic, periodic-tick), unless the job's meta asks for
none, or for all of them (docs/extensions.md).
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from datetime import tzinfo
from functools import partial
from hashlib import blake2b
from heapq import heapify, heappop, heapreplace
from itertools import islice

import msgspec
import trio

from daemon.clock import Clock, wait_until
from daemon.fences import Fences
from daemon.jobs.evaluate import new_evaluation
from daemon.jobspec import cron
from daemon.jobspec.extensions import CATCH_UP, CATCH_UP_MOST, JITTER, CatchUp
from storage.errors import Invalid, Malformed, NotFound, Refused
from storage.queries import evaluations, job_status, jobs, notifications, periodic
from storage.readers import Snapshot
from storage.records.base import MINUTE, SECOND
from storage.records.evaluation import Trigger
from storage.records.job import Job, JobStatus, Periodic
from storage.records.notification import NotifyEvent, wishes
from storage.records.periodic import Slot, SlotOutcome
from storage.records.times import rfc3339 as moment
from storage.store import Store, unless_full
from storage.writer import Transaction

log = logging.getLogger("steward.periodic")

_AT_ONCE = 32  # decisions that share a commit
_LATE = MINUTE  # a slot that is older was missed
_MOST_COUNTED = 1000  # slots that one line of the ledger counts

_SHOWN = 10  # launches that people see in advance

_PAUSED = "the job is paused"
_BUSY = "a child is still at work and overlap is prohibited"
_TAKEN = "a child was launched by hand in the same second"
_FENCED = "periodic job"
_AT_INDEX = " at index "

_ON_PURPOSE = (_PAUSED, _TAKEN)  # nobody misses these


class Forced(msgspec.Struct, frozen=True, kw_only=True):
    """The evaluation of a child that was launched by hand."""

    eval_id: str
    index: int


# ---- the clock of a job -------------------------------------------------------------------------


def next_slot(block: Periodic, after: int) -> int | None:
    """Return the first slot after a time; None when there is none any more."""
    return next(each_slot(block, after), None)


def launches(job: Job, after: int) -> list[int]:
    """Return when the next ten children of a job are launched; nanoseconds, none if by no clock."""
    if job.periodic is None or not periodic.is_followed(job):
        return []
    late = offset(job)
    return [slot + late for slot in islice(each_slot(job.periodic, after - late), _SHOWN)]


def zone_of(job: Job) -> tzinfo:
    """Return the time zone in which people read when a job launches children."""
    return cron.zone(job.periodic.time_zone if job.periodic else "")


def each_slot(block: Periodic, after: int) -> Iterator[int]:
    """Yield the slots after a time; each costs one look at the expressions that it fulfills."""
    try:
        zone = cron.zone(block.time_zone)
        coming = [
            (slot, spec)
            for spec in set(block.specs or [block.spec])
            if (slot := cron.next_after(spec, after, zone)) is not None
        ]
    except Invalid as error:  # stored before a rule was sharpened
        log.warning("no more launches: %s", error)
        return
    heapify(coming)
    while coming:
        slot = coming[0][0]
        yield slot
        while coming and coming[0][0] == slot:
            spec = coming[0][1]
            following = cron.next_after(spec, slot, zone)
            if following is None:
                heappop(coming)
            else:
                heapreplace(coming, (following, spec))


class Slots:
    """The slots of a clock, from a time to which it has been followed.

    Working them out may take seconds, for many expressions or slots that were missed. A thread does it
    (`foresee`), and the write that decides finds what it asks for.
    """

    def __init__(self, block: Periodic, followed_to: int) -> None:
        self.block, self.followed_to = block, followed_to
        self._after: dict[int, int | None] = {}

    def after(self, time: int) -> int | None:
        """Return the first slot after a time; None when there is none any more."""
        if time not in self._after:
            self._after[time] = next(each_slot(self.block, time), None)
        return self._after[time]

    def foresee(self, until: int) -> None:
        """Work out all slots that may be decided now, and the one from which the clock goes on."""
        last = self.followed_to
        for slot in islice(each_slot(self.block, last), _MOST_COUNTED + 1):
            self._after[last] = slot
            last = slot
            if slot > until:
                break
        else:
            self.after(last)
        self.after(until)


def _missed(slots: Slots, first: int, now: int) -> int:
    """Count the slots from `first` to now, as far as that matters."""
    count, slot = 0, first
    while slot <= now and count < _MOST_COUNTED:
        count += 1
        following = slots.after(slot)
        if following is None:
            break
        slot = following
    return count


def offset(job: Job) -> int:
    """Return by how much a job's launches come after their slots: always the same for this job."""
    longest = JITTER.of(job.meta)
    if not longest:
        return 0
    drawn = blake2b(f"{job.namespace}/{job.id}".encode(), digest_size=8).digest()
    return int.from_bytes(drawn) % (longest // SECOND + 1) * SECOND


# ---- deciding a slot ----------------------------------------------------------------------------


def foresee(db: Snapshot, due: Iterable[periodic.Due], now: int) -> dict[tuple[str, str], Slots]:
    """Return the slots of jobs, as far as their decisions need them now. May take seconds."""
    found = {}
    for one in due:
        job = jobs.current(db, one.namespace, one.job_id)
        if job is not None and job.periodic is not None:
            slots = Slots(job.periodic, one.followed_to)
            slots.foresee(now - offset(job))
            found[one.namespace, one.job_id] = slots
    return found


def decide(
    tx: Transaction,
    namespace: str,
    job_id: str,
    slots: Slots,
    *,
    started: int,
    now: int,
    eval_id: str,
) -> None:
    """Decide the next slot of a job, if it has come; or work out when it comes.

    `started` is when somebody began to look: earlier slots were missed. Does nothing when the clock is
    not the one any more of which the slots are: then they have to be worked out again.
    """
    due, job = periodic.of_job(tx, namespace, job_id), jobs.current(tx, namespace, job_id)
    if due is None or job is None or job.periodic is None:
        return
    if job.periodic != slots.block or due.followed_to != slots.followed_to:
        return
    slot, late = slots.after(due.followed_to), offset(job)
    if slot is None or slot + late > now:
        _advance(tx, job, slots, due.followed_to)
    elif due.paused:
        missed = _missed(slots, slot, now - late)
        _skip(tx, job, slot, now, _PAUSED, missed)
        _advance(tx, job, slots, now - late)
    elif slot + late < max(started, now - _LATE):
        _catch_up(tx, job, slots, slot, now, eval_id)
    else:
        _launch_or_skip(tx, job, slot, now, eval_id)
        _advance(tx, job, slots, slot)


def _catch_up(tx: Transaction, job: Job, slots: Slots, slot: int, now: int, eval_id: str) -> None:
    """Decide about slots that were missed, the first of which is `slot`; perhaps not yet all."""
    until = now - offset(job)
    missed = _missed(slots, slot, until)
    most = CATCH_UP_MOST.of(job.meta)
    match CATCH_UP.of(job.meta):
        case CatchUp.LAST:
            _launch_or_skip(tx, job, slot, now, eval_id, missed=missed)
            _advance(tx, job, slots, until)
        case CatchUp.NONE:
            _skip(tx, job, slot, now, "it was missed, and this job does not catch up", missed)
            _advance(tx, job, slots, until)
        case CatchUp.ALL if missed > most:
            reason = f"it was missed, and this job catches up the newest {most} only"
            _skip(tx, job, slot, now, reason, missed - most)
            _advance(tx, job, slots, _nth(slots, slot, missed - most))
        case CatchUp.ALL:
            _launch_or_skip(tx, job, slot, now, eval_id, outcome=SlotOutcome.CAUGHT_UP)
            _advance(tx, job, slots, slot)


def _nth(slots: Slots, slot: int, number: int) -> int:
    """Return the `number`th of the slots that begin with `slot`."""
    for _ in range(number - 1):
        slot = slots.after(slot) or slot
    return slot


def _advance(tx: Transaction, job: Job, slots: Slots, followed_to: int) -> None:
    """Note that all slots up to a time have been decided, and when to look again."""
    slot = slots.after(followed_to)
    due = None if slot is None else slot + offset(job)
    periodic.advance(tx, job.namespace, job.id, followed_to=followed_to, next_slot=due)


def _skip(tx: Transaction, job: Job, slot: int, now: int, reason: str, slots: int) -> None:
    done = Slot(slot=slot, slots=slots, decided_at=now, outcome=SlotOutcome.SKIPPED, reason=reason)
    _write_down(tx, job, done)


def _write_down(tx: Transaction, job: Job, done: Slot) -> None:
    """Keep what became of a slot, and tell of one that was missed or comes late."""
    periodic.add_slot(tx, job.namespace, job.id, done)
    wanted = wishes(job.meta)
    if wanted is None or done.outcome == SlotOutcome.LAUNCHED or done.reason in _ON_PURPOSE:
        return
    event = NotifyEvent.MISSED if done.outcome == SlotOutcome.SKIPPED else NotifyEvent.LATE
    when = moment(done.slot)
    reason = f"the slot of {when} was skipped: {done.reason}"
    if event == NotifyEvent.LATE:
        reason = f"the slot of {when} was missed, and is caught up now"
    if done.slots > 1:
        reason += f"; with it {done.slots - 1} more"
    key = (job.namespace, job.id)
    run_id = done.child_id or job.id
    notifications.add(tx, key, wanted, event, run_id=run_id, reason=reason, now=done.decided_at)


def _launch_or_skip(
    tx: Transaction,
    job: Job,
    slot: int,
    now: int,
    eval_id: str,
    *,
    missed: int = 0,
    outcome: SlotOutcome = SlotOutcome.LAUNCHED,
) -> None:
    """Launch a child for a slot, or one for those that were missed, or write down why not."""
    child_id, reason = child_id_of(job, now if missed else slot), ""
    if missed:
        outcome = SlotOutcome.CAUGHT_UP
    if job.periodic and job.periodic.prohibit_overlap and jobs.has_active_children(tx, job):
        outcome, reason, child_id = SlotOutcome.SKIPPED, _BUSY, ""
    elif jobs.current_wire(tx, job.namespace, child_id) is not None:
        outcome, reason = SlotOutcome.SKIPPED, _TAKEN
    else:
        _launch(tx, job, child_id, now, eval_id)
    done = Slot(
        slot=slot,
        slots=max(missed, 1),
        decided_at=now,
        outcome=outcome,
        reason=reason,
        child_id=child_id,
    )
    _write_down(tx, job, done)


def child_id_of(parent: Job, time: int) -> str:
    """Return the id of the child that is launched for this time."""
    return f"{parent.id}/periodic-{time // SECOND}"


def derive(parent: Job, child_id: str, now: int) -> Job:
    """Return the child of a launch: the parent's definition with its own id, without the clock."""
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


def _launch(tx: Transaction, parent: Job, child_id: str, now: int, eval_id: str) -> None:
    child = jobs.append_version(tx, derive(parent, child_id, now))
    if not child.launches_children:
        evaluation = new_evaluation(child, eval_id, Trigger.PERIODIC_JOB, job_modify_index=tx.index)
        evaluations.put(tx, evaluation, now)
    job_status.settle(tx, child.namespace, child.id)


async def force(store: Store, namespace: str, job_id: str, *, now: int, eval_id: str) -> Forced:
    """Launch a child now, whether others are at work or not. Raises `Refused`.

    Twice in a second means the same child, which is only evaluated again.
    """

    def write(tx: Transaction) -> Forced:
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
            _launch(tx, job, child_id, now, eval_id)
        else:
            again = new_evaluation(child, eval_id, Trigger.PERIODIC_JOB)
            evaluations.put(tx, again, now)
            job_status.settle(tx, namespace, child_id)
        return Forced(eval_id=eval_id, index=tx.index)

    return await store.write(write)


async def pause(store: Store, namespace: str, job_id: str, *, paused: bool) -> int:
    """Skip the slots of a job from now on, or launch its children again; return the index.

    Newer versions of the job change nothing about it; a stop ends it. Raises `NotFound` or
    `Malformed`.
    """

    def write(tx: Transaction) -> int:
        job, clock = clocked(tx, namespace, job_id)
        if clock is None:
            raise Malformed(f'job "{job.id}" has no clock that runs: it is stopped, or not enabled')
        if clock.paused != paused:
            periodic.set_paused(tx, namespace, job_id, paused=paused)
        return tx.index

    return await store.write(write)


def clocked(db: Snapshot, namespace: str, job_id: str) -> tuple[Job, periodic.Due | None]:
    """Return a periodic job, and its clock if it runs. Raises `NotFound` or `Malformed`."""
    job = jobs.current(db, namespace, job_id)
    if job is None:
        raise NotFound("job not found", index=db.table_index("jobs"))
    if job.periodic is None:
        raise Malformed(f'job "{job_id}" is not periodic')
    return job, periodic.of_job(db, namespace, job_id)


# ---- the loop -----------------------------------------------------------------------------------


@asynccontextmanager
async def open_periodic(
    store: Store, clock: Clock, ids: Iterator[str], fences: Fences
) -> AsyncIterator[None]:
    """Launch the children of periodic jobs while the block runs."""
    async with trio.open_nursery() as nursery:
        loop = partial(_follow, store, clock, ids, fences)
        nursery.start_soon(fences.keep_running, "periodic jobs", loop)
        yield
        nursery.cancel_scope.cancel()


async def _follow(store: Store, clock: Clock, ids: Iterator[str], fences: Fences) -> None:
    """Decide every slot when it has come.

    A job whose slot cannot be decided is left out after some attempts, until it changes.
    """
    started = clock.now()
    while True:
        with store.watch(periodic.TOPIC) as change:
            now = clock.now()
            for unit in store.read(partial(_changed, units=fences.held(_FENCED))):
                fences.forget(_FENCED, unit)
            held = fences.held(_FENCED)
            due = store.read(partial(_due, now=now, held=held))
            if not due:
                times = (
                    store.read(partial(periodic.next_time, after=now if held else 0)),
                    fences.next_time(_FENCED),
                )
                at = min((time for time in times if time is not None), default=None)
                await wait_until(at, clock, change)
                continue
        async with unless_full("launches wait"), trio.open_nursery() as nursery:
            for unit, one in due.items():
                work = partial(_decide_foreseen, store, one, started, now, next(ids))
                nursery.start_soon(_fenced, fences, unit, work)


def _due(db: Snapshot, *, now: int, held: frozenset[str]) -> dict[str, periodic.Due]:
    """Return the jobs whose slot has come, by the name of the unit: a changed job is another unit."""
    found = {}
    for one in periodic.due(db, now, _AT_ONCE + len(held)):
        unit = _unit(db, one.namespace, one.job_id)
        if unit not in held:
            found[unit] = one
    return found


def _unit(db: Snapshot, namespace: str, job_id: str) -> str:
    index = jobs.definition_index(db, namespace, job_id)
    return f"{namespace}/{job_id}{_AT_INDEX}{index}"


def _changed(db: Snapshot, *, units: frozenset[str]) -> list[str]:
    """Return the units whose job has changed or was removed."""
    places = {unit: unit.rpartition(_AT_INDEX)[0].partition("/") for unit in units}
    return [unit for unit, (ns, _, job_id) in places.items() if _unit(db, ns, job_id) != unit]


async def _fenced(fences: Fences, unit: str, work: Callable[[], Awaitable[None]]) -> None:
    with fences.around(_FENCED, unit):
        await work()


async def _decide_foreseen(
    store: Store, due: periodic.Due, started: int, now: int, eval_id: str
) -> None:
    """Work out the slots of one job in a thread, and decide the one that has come."""
    foreseen = await store.read_long(partial(foresee, due=[due], now=now))
    for key, slots in foreseen.items():
        await store.write(partial(_decide, key, slots, started, now, eval_id))


def _decide(
    key: tuple[str, str], slots: Slots, started: int, now: int, eval_id: str, tx: Transaction
) -> None:
    decide(tx, *key, slots, started=started, now=now, eval_id=eval_id)
