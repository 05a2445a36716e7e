"""Garbage collection: delete expired and surplus objects in small steps.

Candidates come from long reads, which block no writer. Each write deletes a few objects, and other
writes run in between. After a crash the next round continues. A job is deleted with all its
objects. Objects of existing jobs are deleted by age and number. Active objects, and objects that a
scheduler decision may need, are never deleted.
"""

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial

import msgspec
import trio

from daemon.clock import Clock
from daemon.config.settings import Settings
from daemon.fences import Fences
from daemon.jobspec.steward_meta.job_keys import CHILDREN_KEPT, CHILDREN_KEPT_FOR
from storage import garbage
from storage.queries import (
    children,
    events,
    garbage_collection,
    index_times,
    job_listings,
    job_status,
    jobs,
)
from storage.queries.garbage_collection import ANY_NUMBER, Key
from storage.queries.pages import PageRequest
from storage.read_pool import ReadSnapshot
from storage.records.base import HOUR
from storage.records.job import Job
from storage.store import Store, tolerate_disk_full
from storage.writer import Transaction

PERIOD = 300  # seconds between two rounds
STEP = 50  # objects per write, which takes a few milliseconds
ROWS = 500  # rows of one job per write
FOUND = 1000  # candidates per read
_DAY = 24 * HOUR
_FENCED = "collection round"
_FENCED_CHILDREN = "collection of children"
log = logging.getLogger("steward.evals")

Remove = Callable[[Transaction, list[str]], int]


class RetentionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Retention times in nanoseconds, and maximum numbers of objects, some of them per job."""

    jobs_for: int = 90 * _DAY
    jobs: int = ANY_NUMBER
    allocations_for: int = 90 * _DAY
    allocations: int = 1000
    evaluations: int = 1000
    deployments: int = 1000
    notifications: int = 100
    events_for: int = 90 * _DAY
    events: int = 100_000
    payloads: str = ""  # the directory of the input files of jobs

    @property
    def has_payloads(self) -> bool:
        """Return whether any input file was uploaded."""
        return bool(self.payloads) and os.path.isdir(self.payloads)


def retention(config: Settings) -> RetentionLimits:
    """Return the retention from the configuration."""
    return RetentionLimits(
        jobs_for=config.retention_days * _DAY,
        jobs=config.retention_jobs or ANY_NUMBER,
        allocations_for=config.retention_alloc_days * _DAY,
        allocations=config.retention_allocs or ANY_NUMBER,
        evaluations=config.retention_evals or ANY_NUMBER,
        deployments=config.retention_deployments or ANY_NUMBER,
        notifications=config.retention_notifications or ANY_NUMBER,
        events_for=config.retention_event_days * _DAY,
        events=config.retention_events or ANY_NUMBER,
        payloads=str(config.payloads_dir),
    )


async def collect_garbage(
    store: Store, clock: Clock, retention_limits: RetentionLimits, fences: Fences | None = None
) -> None:
    """Collect garbage in rounds. An error in a step of a round does not affect the other steps."""
    fences = fences or Fences(clock)
    while True:
        now = clock.now()
        async with tolerate_disk_full("cannot collect garbage"):
            before = store.read(garbage_collection.counts)
            with fences.around(_FENCED, "moments"):
                await store.write(partial(_count_tables, now=now, limits=retention_limits))
            with fences.around(_FENCED, "expired objects"):
                await collect_once(store, now, retention_limits)
            with fences.around(_FENCED, "children"):
                await collect_children(store, now, fences)
            with fences.around(_FENCED, "input files"):
                await collect_input_files(store, now, retention_limits)
            _log_deleted(before, store.read(garbage_collection.counts))
        await trio.sleep(PERIOD)


def _count_tables(tx: Transaction, *, now: int, limits: RetentionLimits) -> None:
    index_times.record_time(tx, now)
    # Index times before the longest retention are no longer needed.
    index_times.trim(tx, now - max(limits.jobs_for, limits.events_for))


def _log_deleted(before: dict[str, int], after: dict[str, int]) -> None:
    deleted = {kind: number - before.get(kind, 0) for kind, number in after.items()}
    if any(deleted.values()):
        parts = [f"{number} {kind}" for kind, number in sorted(deleted.items()) if number]
        log.info("deleted by garbage collection: %s", ", ".join(parts))


async def collect_once(store: Store, now: int, retention_limits: RetentionLimits) -> None:
    """Delete all objects whose retention has expired at time `now`, or that exceed a limit."""
    # Jobs first: other objects are then only searched for existing jobs.
    index = store.read(partial(index_times.index_at, time=now - retention_limits.jobs_for))
    while await _forget_jobs(store, index, retention_limits.jobs):
        pass
    deleted = 1
    while deleted:  # objects that cannot be deleted are retried in the next round
        excess = await store.read_long(partial(_expired_objects, now=now, limits=retention_limits))
        deleted = 0
        for remove, ids in excess:
            for first in range(0, len(ids), STEP):
                deleted += await _remove(store, remove, ids[first : first + STEP])
    index = store.read(partial(index_times.index_at, time=now - retention_limits.events_for))
    while (
        await store.write(partial(_trim_events, limits=retention_limits.events, index=index))
        == STEP
    ):
        pass


async def _remove(store: Store, remove: Remove, ids: list[str]) -> int:
    return await store.write(lambda tx: remove(tx, ids))


def _expired_objects(
    db: ReadSnapshot, *, now: int, limits: RetentionLimits
) -> list[tuple[Remove, list[str]]]:
    """Return some expired objects of each kind, with the function that deletes them."""
    before, long_ago = now - limits.allocations_for, now - limits.jobs_for
    return [
        (
            garbage_collection.remove_allocations,
            garbage_collection.replaced_allocations(db, before, limits.allocations, FOUND),
        ),
        (
            garbage_collection.remove_deployments,
            garbage_collection.deployments_beyond(db, limits.deployments, FOUND),
        ),
        (
            garbage_collection.remove_evaluations,
            garbage_collection.evaluations_beyond(db, limits.evaluations, FOUND),
        ),
        (garbage_collection.remove_evaluations, garbage_collection.orphans(db, long_ago, FOUND)),
        (
            garbage_collection.remove_notifications,
            garbage_collection.notifications_beyond(db, long_ago, limits.notifications, FOUND),
        ),
    ]


def _trim_events(tx: Transaction, *, limits: int, index: int) -> int:
    return garbage_collection.count(tx, "events", events.trim(tx, limits, STEP, index))


async def _forget_jobs(store: Store, index: int, limits: int) -> bool:
    """Delete some dead jobs; return whether any was deleted.

    A dead job is deleted if it has not changed since `index`, or if there are more than `limits`
    dead jobs.
    """
    dead_jobs = await store.read_long(
        lambda db: garbage_collection.dead_jobs(db, index, limits, FOUND)
    )
    return bool(await _forget_all(store, dead_jobs))


async def _forget_all(store: Store, keys: Sequence[Key]) -> int:
    """Delete dead jobs with all their objects, in several writes; return the number of jobs."""
    first = deleted = 0
    while first < len(keys):
        checked, removed_count = await store.write(
            partial(_forget_some, keys=keys[first : first + STEP])
        )
        first, deleted = first + checked, deleted + removed_count
    return deleted


def _forget_some(tx: Transaction, *, keys: Sequence[Key]) -> tuple[int, int]:
    """Delete some rows of dead jobs in one write.

    Return how many of the `keys` are finished, and how many of these jobs were deleted.
    """
    checked = removed_count = rows = 0
    for key in keys:
        done, removed = garbage_collection.forget_job(tx, key, ROWS - rows)
        rows += removed
        if done:
            checked, removed_count = checked + 1, removed_count + bool(removed)
        if rows >= ROWS:
            break
    return checked, removed_count


async def collect_input_files(store: Store, now: int, retention_limits: RetentionLimits) -> None:
    """Delete input files that no job uses."""
    if not retention_limits.has_payloads:
        return
    # Imported late, because few daemons have input files.
    from daemon.jobs.payload_files import collect_files

    await collect_files(store, retention_limits.payloads, now)


async def collect_children(store: Store, now: int, fences: Fences | None = None) -> None:
    """Delete ended child jobs beyond their parent's limit (docs/extensions.md)."""
    for key in store.read(children.parents):
        await trio.lowlevel.checkpoint()  # there may be thousands of parents
        with fences.around(_FENCED_CHILDREN, "/".join(key)) if fences else nullcontext():
            await _collect_of(store, key, now)


async def _collect_of(store: Store, key: Key, now: int) -> None:
    parent = store.read(partial(_current, key=key))
    while parent is not None and (
        excess_children := store.read(partial(_too_many, parent=parent, now=now))
    ):
        if not await _forget_all(store, excess_children):
            break


def _current(db: ReadSnapshot, *, key: Key) -> Job | None:
    return jobs.current(db, *key)


def _too_many(db: ReadSnapshot, *, parent: Job, now: int) -> list[Key]:
    """Return some ended children that exceed the number or the age that their parent keeps."""
    key = (parent.namespace, parent.id)
    max_children, kept_for = CHILDREN_KEPT.of(parent.meta), CHILDREN_KEPT_FOR.of(parent.meta)
    excess: list[str] = []
    if max_children is not None:
        excess = children.ended_beyond(db, *key, max_children, STEP)
    if kept_for is not None and not excess:
        excess = children.ended_before(db, *key, index_times.index_at(db, now - kept_for), STEP)
    return [(parent.namespace, child_id) for child_id in excess]


async def force_collection(store: Store, now: int, retention_limits: RetentionLimits) -> None:
    """Delete all terminal objects, regardless of their age."""
    await store.write(partial(index_times.record_time, time=now))
    await collect_once(
        store, now, msgspec.structs.replace(retention_limits, jobs_for=0, allocations_for=0)
    )


async def refresh_all_summaries(store: Store) -> None:
    """Refresh the status and the summary of every job, a few jobs per write."""

    def all_names(db: ReadSnapshot) -> list[tuple[str, str]]:
        summaries = job_listings.by_change(db, PageRequest(namespace="*"), children=True)
        return [(job_listing.namespace, job_listing.id) for job_listing in summaries]

    names = await store.read_long(all_names)
    garbage.free_in_thread(names)

    def step(tx: Transaction, batch: list[tuple[str, str]]) -> None:
        for namespace, job_id in batch:
            job_status.refresh_summary(tx, namespace, job_id)

    for first in range(0, len(names), STEP):
        await store.write(partial(step, batch=names[first : first + STEP]), is_long=True)
