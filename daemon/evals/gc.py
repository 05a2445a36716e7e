"""Forgetting: what is old, or more than is kept, goes in small steps, so that nothing else waits.

What may go is looked for in long reads, which hold up nobody; each write removes a little of it,
and others get their turn in between. A kill in the middle leaves less to do for the next round. A
job goes with everything that belongs to it; what it leaves behind while it lives goes by age and
number. Nothing that runs goes, nor what a decision about it may need.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial

import msgspec
import trio

from daemon.clock import Clock
from daemon.config import Config
from daemon.jobspec.extensions import CHILDREN_KEPT, CHILDREN_KEPT_FOR
from storage.queries import children, collection, events, job_listings, job_status, jobs, moments
from storage.queries.collection import ANY_NUMBER, Key
from storage.readers import Snapshot
from storage.records.base import HOUR
from storage.records.job import Job
from storage.store import Store, unless_full
from storage.writer import Transaction

PERIOD = 300  # seconds between two rounds
STEP = 50  # objects that one write removes: a few milliseconds
ROWS = 500  # rows of one job that one write removes
FOUND = 1000  # what one read looks for
_DAY = 24 * HOUR
log = logging.getLogger("steward.evals")

Remove = Callable[[Transaction, list[str]], int]


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """How long things are kept, in nanoseconds, and how many of them; of some, of each job."""

    jobs_for: int = 90 * _DAY
    jobs: int = ANY_NUMBER
    allocations_for: int = 90 * _DAY
    allocations: int = 1000
    evaluations: int = 1000
    deployments: int = 1000
    notifications: int = 100
    events_for: int = 90 * _DAY
    events: int = 100_000


def retention(config: Config) -> Retention:
    """Return what the settings say."""
    return Retention(
        jobs_for=config.retention_days * _DAY,
        jobs=config.retention_jobs or ANY_NUMBER,
        allocations_for=config.retention_alloc_days * _DAY,
        allocations=config.retention_allocs or ANY_NUMBER,
        evaluations=config.retention_evals or ANY_NUMBER,
        deployments=config.retention_deployments or ANY_NUMBER,
        notifications=config.retention_notifications or ANY_NUMBER,
        events_for=config.retention_event_days * _DAY,
        events=config.retention_events or ANY_NUMBER,
    )


async def collect_garbage(store: Store, clock: Clock, kept: Retention) -> None:
    """Remove what is not to be kept, round after round."""
    while True:
        now = clock.now()
        async with unless_full("nothing is removed"):
            await store.write(partial(_note, now=now, kept=kept))
            before = store.read(collection.counts)
            await collect(store, now, kept)
            await collect_children(store, now)
            _tell(before, store.read(collection.counts))
        await trio.sleep(PERIOD)


def _note(tx: Transaction, *, now: int, kept: Retention) -> None:
    moments.note(tx, now)
    # What is older than all that is kept needs no moment any more.
    moments.trim(tx, now - max(kept.jobs_for, kept.events_for))


def _tell(before: dict[str, int], after: dict[str, int]) -> None:
    gone = {kind: number - before.get(kind, 0) for kind, number in after.items()}
    if any(gone.values()):
        parts = [f"{number} {kind}" for kind, number in sorted(gone.items()) if number]
        log.info("forgotten, as it is kept no longer: %s", ", ".join(parts))


async def collect(store: Store, now: int, kept: Retention) -> None:
    """Remove what is older, or more, than is kept at a time."""
    # Jobs go first: what they leave behind is then looked for only where they live.
    index = store.read(partial(moments.index_at, time=now - kept.jobs_for))
    while await _forget_jobs(store, index, kept.jobs):
        pass
    gone = 1
    while gone:  # what cannot be removed after all waits for the next round
        found = await store.read_long(partial(_beyond, now=now, kept=kept))
        gone = 0
        for remove, ids in found:
            for first in range(0, len(ids), STEP):
                gone += await _remove(store, remove, ids[first : first + STEP])
    index = store.read(partial(moments.index_at, time=now - kept.events_for))
    while await store.write(partial(_trim_events, kept=kept.events, index=index)) == STEP:
        pass


async def _remove(store: Store, remove: Remove, ids: list[str]) -> int:
    return await store.write(lambda tx: remove(tx, ids))


def _beyond(db: Snapshot, *, now: int, kept: Retention) -> list[tuple[Remove, list[str]]]:
    """Return some of what is kept no longer, with what removes it."""
    before, long_ago = now - kept.allocations_for, now - kept.jobs_for
    return [
        (
            collection.remove_allocations,
            collection.replaced_allocations(db, before, kept.allocations, FOUND),
        ),
        (
            collection.remove_deployments,
            collection.deployments_beyond(db, kept.deployments, FOUND),
        ),
        (
            collection.remove_evaluations,
            collection.evaluations_beyond(db, kept.evaluations, FOUND),
        ),
        (collection.remove_evaluations, collection.orphans(db, long_ago, FOUND)),
        (
            collection.remove_notifications,
            collection.notifications_beyond(db, long_ago, kept.notifications, FOUND),
        ),
    ]


def _trim_events(tx: Transaction, *, kept: int, index: int) -> int:
    return collection.count(tx, "events", events.trim(tx, kept, STEP, index))


async def _forget_jobs(store: Store, index: int, kept: int) -> bool:
    """Remove some of the jobs that have died before an index, or are too many; tell whether any went."""
    found = await store.read_long(lambda db: collection.dead_jobs(db, index, kept, FOUND))
    return bool(await _forget_all(store, found))


async def _forget_all(store: Store, keys: Sequence[Key]) -> int:
    """Remove dead jobs with all that belongs to them, a little in each write; return how many went."""
    first = gone = 0
    while first < len(keys):
        looked, went = await store.write(partial(_forget_some, keys=keys[first : first + STEP]))
        first, gone = first + looked, gone + went
    return gone


def _forget_some(tx: Transaction, *, keys: Sequence[Key]) -> tuple[int, int]:
    """Remove a little; return with how many of the jobs nothing is left to do, and how many went."""
    looked = went = rows = 0
    for key in keys:
        done, removed = collection.forget_job(tx, key, ROWS - rows)
        rows += removed
        if done:
            looked, went = looked + 1, went + bool(removed)
        if rows >= ROWS:
            break
    return looked, went


async def collect_children(store: Store, now: int) -> None:
    """Remove children that have ended and that their parents do not keep (docs/extensions.md)."""
    for key in store.read(children.parents):
        await trio.lowlevel.checkpoint()  # there may be thousands of parents
        parent = store.read(partial(_current, key=key))
        while parent is not None and (
            found := store.read(partial(_too_many, parent=parent, now=now))
        ):
            if not await _forget_all(store, found):
                break


def _current(db: Snapshot, *, key: Key) -> Job | None:
    return jobs.current(db, *key)


def _too_many(db: Snapshot, *, parent: Job, now: int) -> list[Key]:
    """Return some of the children that a parent keeps no longer."""
    key = (parent.namespace, parent.id)
    kept, kept_for = CHILDREN_KEPT.of(parent.meta), CHILDREN_KEPT_FOR.of(parent.meta)
    gone: list[str] = []
    if kept is not None:
        gone = children.ended_beyond(db, *key, kept, STEP)
    if kept_for is not None and not gone:
        gone = children.ended_before(db, *key, moments.index_at(db, now - kept_for), STEP)
    return [(parent.namespace, child_id) for child_id in gone]


async def collect_now(store: Store, now: int, kept: Retention) -> None:
    """Remove everything that is over, however short a time it has been."""
    await store.write(partial(moments.note, time=now))
    await collect(store, now, msgspec.structs.replace(kept, jobs_for=0, allocations_for=0))


async def settle_all(store: Store) -> None:
    """Bring the status and the counts of every job up to date, a few jobs a write."""
    every = await store.read_long(lambda db: job_listings.by_change(db, "*", children=True))
    names = [(one.namespace, one.id) for one in every]

    def step(tx: Transaction, some: list[tuple[str, str]]) -> None:
        for namespace, job_id in some:
            job_status.settle(tx, namespace, job_id)

    for first in range(0, len(names), STEP):
        await store.write(partial(step, some=names[first : first + STEP]))
