"""Freezes: create and end them, refuse changes of frozen jobs, and release held jobs afterwards.

A job that must wait for the end of a freeze is stored in `frozen_jobs`. After this end,
`follow_freezes` re-evaluates the jobs at a limited rate, in the order in which they were stored.
"""

from collections.abc import Iterator
from functools import partial

import msgspec

from daemon.clock import Clock, wait_until
from daemon.fences import TOPIC, Fences
from daemon.flow.workflow_keys import is_workflow
from daemon.jobs.evaluate import new_evaluation
from daemon.jobspec.steward_meta.job_keys import queue_of
from daemon.jobspec.steward_meta.key import moment, queue_name, span
from storage.errors import Conflict, Denied, Invalid, Malformed, NotFound
from storage.queries import evaluations, freezes, job_status, jobs, namespaces, runs
from storage.queries.freezes import Key
from storage.read_pool import ReadSnapshot
from storage.records.base import SECOND, Record
from storage.records.evaluation import Trigger
from storage.records.freeze import (
    EVERYTHING,
    LONGEST_PATTERN,
    LONGEST_REASON,
    MAY_OVERRIDE,
    MOST_OPEN,
    Freeze,
    Strength,
)
from storage.records.job import Job
from storage.records.times import rfc3339
from storage.store import Store, tolerate_disk_full
from storage.writer import Transaction

_FENCED = "thaw"
_AT_ONCE = 32  # freezes whose end one write stores
_LONGEST = 366 * 24 * 3600 * SECOND  # maximum duration of a freeze with an end
_SHOWN = 100  # characters of an invalid value in a message


class FreezeRequest(Record, frozen=True, kw_only=True):
    """The body of a request for a freeze; the `namespace` `*` means all namespaces.

    `begin` is a time (RFC 3339), by default now. `until` is a time, or a duration from `begin` on,
    such as `+2h`. If `until` is empty, the freeze has no end.
    """

    namespace: str = ""
    jobs: str = ""
    queue: str = ""
    strength: str = Strength.BEGIN
    reason: str = ""
    begin: str = ""
    until: str = ""


def freeze_of(request: FreezeRequest, namespace: str, freeze_id: str, now: int) -> Freeze:
    """Return the freeze that a request describes. Raises `Malformed`."""
    if request.strength not in (*Strength,):
        raise Malformed(
            f"Strength = {request.strength[:_SHOWN]!r} must be one of {', '.join(Strength)}"
        )
    if not request.reason.strip() or len(request.reason) > LONGEST_REASON:
        raise Malformed(f"Reason must have 1 to {LONGEST_REASON} characters, and not only spaces")
    if len(request.jobs) > LONGEST_PATTERN:
        raise Malformed(
            f"Jobs has {len(request.jobs)} characters; the maximum is {LONGEST_PATTERN}"
        )
    if request.queue:
        try:
            queue_name(request.queue)
        except Invalid as error:
            raise Malformed(f"Queue = {request.queue[:_SHOWN]!r} {error}") from None
    begin = _moment("Begin", request.begin) if request.begin else now
    until = _end_time(request.until, begin)
    if until and until <= max(begin, now):
        raise Malformed(
            f"Until = {request.until[:_SHOWN]!r} must be later than both the start and the current time"
        )
    if until - begin > _LONGEST:
        raise Malformed("Until is more than 366 days after the start")
    return Freeze(
        id=freeze_id,
        namespace=namespace,
        jobs=request.jobs,
        queue=request.queue,
        strength=Strength(request.strength),
        reason=request.reason.strip(),
        begin=begin,
        until=until,
    )


def _moment(field: str, text: str) -> int:
    try:
        return moment(text)
    except Invalid:
        raise Malformed(
            f"{field} = {text[:_SHOWN]!r} must be a time such as 2026-12-24T18:00:00Z"
        ) from None


def _end_time(text: str, begin: int) -> int:
    if not text.startswith("+"):
        return _moment("Until", text) if text else 0
    try:
        return begin + span(_LONGEST)(text[1:])
    except Invalid as error:
        raise Malformed(f"Until = {text[:_SHOWN]!r} {error}") from None


async def make(store: Store, freeze: Freeze) -> int:
    """Store a new freeze; return the index of the write. Raises `Malformed`."""

    def write(tx: Transaction) -> int:
        namespace = freeze.namespace
        if namespace != EVERYTHING and not namespaces.exists(tx, namespace):
            raise Malformed(f'Namespace = "{namespace[:_SHOWN]}" does not exist')
        if freezes.number(tx, namespace) >= MOST_OPEN:
            raise Malformed(
                f'namespace "{namespace}" has {MOST_OPEN} freezes, which is the maximum: end one of '
                "them with: steward thaw ID"
            )
        freezes.add(tx, msgspec.structs.replace(freeze, person=tx.person))
        return tx.index

    return await store.write(write)


async def thaw(store: Store, freeze_id: str, *, now: int) -> int:
    """End a freeze now; return the index of the write. Raises `NotFound` or `Conflict`."""

    def write(tx: Transaction) -> int:
        freeze = freezes.find(tx, freeze_id)
        if freeze is None:
            raise NotFound("freeze not found", index=tx.index)
        if freeze.ended:
            raise Conflict(f"freeze {freeze.id} has ended at {rfc3339(freeze.ended)}")
        freezes.end(tx, freeze, time=now, by=tx.person)
        return tx.index

    return await store.write(write)


# --- jobs ---


def covering(db: ReadSnapshot, job: Job, time: int, *, changes: bool = False) -> Freeze | None:
    """Return the freeze that holds a job's runs at a time, or None.

    With `changes`, return the freeze that refuses changes of the job instead.
    """
    key = (job.namespace, job.id)
    return freezes.covering(db, key, job.parent_id, queue_of(job), time=time, changes=changes)


def check_change(db: ReadSnapshot, job: Job, now: int, *, overrides: bool) -> None:
    """Raise `Denied` if a freeze refuses changes of a job, unless the caller `overrides` it."""
    if overrides:
        return
    freeze = covering(db, job, now, changes=True)
    if freeze is not None:
        raise Denied(
            f'job "{job.id}" cannot be changed{_until_text(freeze)} because of freeze {freeze.id} '
            f'({freeze.reason}): wait for its end, or request the capability "{MAY_OVERRIDE}"'
        )


def warnings(db: ReadSnapshot, job: Job) -> Iterator[str]:
    """Yield warnings about freezes that hold the runs of a job."""
    for freeze in freezes.not_ended(db, job.namespace):
        if freeze.strength != Strength.CHANGES and freeze.covers(
            job.id, job.parent_id, queue_of(job)
        ):
            yield (
                f"freeze {freeze.id} ({freeze.reason}) holds its runs from "
                f"{rfc3339(freeze.begin)}{_until_text(freeze)}"
            )


def _until_text(freeze: Freeze) -> str:
    return f" until {rfc3339(freeze.until)}" if freeze.until else ""


# --- ends ---


async def follow_freezes(
    store: Store, clock: Clock, ids: Iterator[str], fences: Fences, *, per_second: int
) -> None:
    """End freezes on time, and then release the jobs that they held.

    At most `per_second` jobs are released per second.
    """
    earliest = 0  # time before which no job is released
    while True:
        with store.watch(freezes.TOPIC, TOPIC) as change:
            now, paused = clock.now(), fences.paused_keys(_FENCED)
            over = [
                freeze
                for freeze in store.read(
                    partial(freezes.over, now=now, most=_AT_ONCE + len(paused))
                )
                if freeze.id not in paused
            ]
            ready = store.read(partial(freezes.thawed, now=now, most=per_second, without=paused))
            if not over and (not ready or now < earliest):
                times = [store.read(freezes.next_end), fences.next_time(_FENCED)]
                times += [earliest] if ready else []
                later = (time for time in times if time is not None and time > now)
                await wait_until(min(later, default=None), clock, change)
                continue
        async with tolerate_disk_full("cannot end freezes or release held jobs"):
            for freeze in over:
                with fences.around(_FENCED, freeze.id):
                    await store.write(partial(end_in_time, freeze_id=freeze.id, now=now))
            if ready and now >= earliest:
                earliest = now + SECOND
                for key in ready:
                    with fences.around(_FENCED, "/".join(key)):
                        await store.write(partial(release, key=key, now=now, eval_id=next(ids)))


def end_in_time(tx: Transaction, freeze_id: str, now: int) -> None:
    """Store the end of an expired freeze."""
    freeze = freezes.find(tx, freeze_id)
    if freeze is not None and not freeze.ended and 0 < freeze.until <= now:
        freezes.end(tx, freeze, time=freeze.until, by="")


def release(tx: Transaction, key: Key, now: int, eval_id: str) -> None:
    """Re-evaluate a job whose freeze has ended."""
    freeze = freezes.find(tx, freezes.holder(tx, key))
    if freeze is not None and not freeze.ended:
        return  # another freeze holds the job now
    if not freezes.release(tx, key):
        return
    job = jobs.current(tx, *key)
    if job is not None and not job.stop and not job.launches_children:
        trigger = Trigger.RUN_STEP if is_workflow(job) else Trigger.JOB_REGISTER
        if evaluations.latest(tx, *key) is None:  # a child of a frozen slot has no evaluation
            trigger = Trigger.PERIODIC_JOB
        index = job.job_modify_index
        evaluation = new_evaluation(job, eval_id, trigger, job_modify_index=index)
        evaluations.put(tx, evaluation, now)
        runs.touch(tx, *key)
    job_status.refresh_summary(tx, *key)
