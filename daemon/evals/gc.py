"""Forgetting: what is dead and old goes, in small steps, so that nothing else waits for it.

A job goes with everything that belongs to it, so its history stays whole as long as it stays
at all. Evaluations that outlived a purge go by their own age, events by number.
"""

from functools import partial

import trio

from daemon.clock import Clock
from daemon.jobspec.extensions import CHILDREN_KEPT, CHILDREN_KEPT_FOR
from storage.queries import children, evaluations, events, job_listings, job_status, jobs, moments
from storage.readers import Snapshot
from storage.records.job import Job
from storage.store import Store
from storage.writer import Transaction

PERIOD = 300  # seconds between two rounds
STEP = 50  # rows that one write removes: a few milliseconds
KEPT_EVENTS = 100_000


async def collect_garbage(store: Store, clock: Clock, retention: int) -> None:
    """Remove what died more than `retention` nanoseconds ago, round after round."""
    while True:
        now = clock.now()
        await store.write(partial(moments.note, time=now))
        await collect(store, now - retention)
        await collect_children(store, now)
        await trio.sleep(PERIOD)


async def collect(store: Store, before: int) -> None:
    """Remove jobs that have been dead since before a time, and what nothing refers to any more."""

    def step(tx: Transaction) -> bool:
        """Remove a little; tell whether there is more."""
        dead = job_listings.dead_since(tx, moments.index_at(tx, before), STEP)
        for job in dead:
            jobs.purge(tx, job)
        orphans = evaluations.remove_orphans(tx, before, STEP)
        trimmed = events.trim(tx, KEPT_EVENTS, STEP)
        moments.trim(tx, before)
        return max(len(dead), orphans, trimmed) == STEP

    while await store.write(step):
        pass


async def collect_children(store: Store, now: int) -> None:
    """Remove children that have ended and that their parents do not keep (docs/extensions.md)."""
    for key in store.read(children.parents):
        await trio.lowlevel.checkpoint()  # there may be thousands of parents
        parent = store.read(partial(_current, key=key))
        if parent is None or not _forgets_children(parent):
            continue
        while await store.write(partial(_remove_children, parent=parent, now=now)) == STEP:
            pass


def _current(db: Snapshot, *, key: tuple[str, str]) -> Job | None:
    return jobs.current(db, *key)


def _forgets_children(parent: Job) -> bool:
    return any(one.of(parent.meta) is not None for one in (CHILDREN_KEPT, CHILDREN_KEPT_FOR))


def _remove_children(tx: Transaction, *, parent: Job, now: int) -> int:
    """Remove a few; return how many."""
    key = (parent.namespace, parent.id)
    kept, kept_for = CHILDREN_KEPT.of(parent.meta), CHILDREN_KEPT_FOR.of(parent.meta)
    gone: list[str] = []
    if kept is not None:
        gone = children.ended_beyond(tx, *key, kept, STEP)
    if kept_for is not None and not gone:
        gone = children.ended_before(tx, *key, moments.index_at(tx, now - kept_for), STEP)
    for child_id in gone:
        if (child := jobs.current(tx, parent.namespace, child_id)) is not None:
            jobs.purge(tx, child)
    return len(gone)


async def collect_now(store: Store, now: int) -> None:
    """Remove everything that is dead, however short a time it has been."""
    await store.write(partial(moments.note, time=now))
    await collect(store, now)


async def settle_all(store: Store) -> None:
    """Bring the status and the counts of every job up to date, a few jobs a write."""
    every = await store.read_long(lambda db: job_listings.by_change(db, "*", children=True))
    names = [(one.namespace, one.id) for one in every]

    def step(tx: Transaction, some: list[tuple[str, str]]) -> None:
        for namespace, job_id in some:
            job_status.settle(tx, namespace, job_id)

    for first in range(0, len(names), STEP):
        await store.write(partial(step, some=names[first : first + STEP]))
