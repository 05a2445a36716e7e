"""Limit the number of active dispatched child jobs.

The write that stores a child decides whether the child starts or is queued. A queued child has no
evaluation, and it costs nothing until another child of its parent ends. Children are released in
dispatch order. The queue is in the store only, so the loop has no state.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial

import msgspec
import trio

from daemon.clock import Clock, wait_until
from daemon.fences import TOPIC, Fences, concerns_every_unit
from daemon.jobs.evaluate import new_evaluation
from daemon.jobspec.steward_meta.job_keys import CHILDREN_AT_ONCE, CHILDREN_BEYOND, OverflowPolicy
from storage.errors import TooOften
from storage.queries import children, evaluations, job_status, jobs
from storage.read_pool import ReadSnapshot
from storage.records.evaluation import Evaluation, Trigger
from storage.records.job import Job
from storage.store import Store, tolerate_disk_full
from storage.writer import Transaction

_FENCED = "held children"
_AT_ONCE = 32  # child jobs per write


def may_start_child(tx: Transaction, parent: Job, *, now: int, ids: Iterator[str]) -> bool:
    """Return whether another child may start now; otherwise it must be queued.

    If the job is configured to replace children, its oldest children are stopped instead. Raises
    `TooOften` if the dispatch must be dropped.
    """
    limit = CHILDREN_AT_ONCE.of(parent.meta)
    if limit is None:
        return True
    beyond = CHILDREN_BEYOND.of(parent.meta)
    if beyond is OverflowPolicy.REPLACE:
        _replace_oldest(tx, parent, limit, now, ids)
    busy = children.has_at_least_active(tx, parent.namespace, parent.id, limit)
    if busy and beyond is OverflowPolicy.DROP:
        raise TooOften(
            f'job "{parent.id}" has {limit} active children and drops further dispatches: dispatch again when '
            f"a child has ended, or raise {CHILDREN_AT_ONCE.name}"
        )
    return not (busy or children.queued_children(tx, parent.namespace, parent.id, 1))


def _replace_oldest(tx: Transaction, parent: Job, limit: int, now: int, ids: Iterator[str]) -> None:
    """Stop the oldest children, so that the new child is within the limit."""
    from daemon.jobs.stop import stop  # imported late: few jobs replace their children

    active = children.unstopped(tx, parent.namespace, parent.id, limit + _AT_ONCE)
    for child_id in active[: max(len(active) - limit + 1, 0)]:
        child = jobs.current(tx, parent.namespace, child_id)
        if child is not None:
            stop(tx, child, now=now, eval_id=next(ids))


# --- releases ---


@asynccontextmanager
async def open_children(
    store: Store, clock: Clock, ids: Iterator[str], fences: Fences
) -> AsyncIterator[None]:
    """Release queued children when active children have ended, while the block runs."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(
            fences.keep_running, "held children", partial(_follow, store, clock, ids, fences)
        )
        yield
        nursery.cancel_scope.cancel()


async def _follow(store: Store, clock: Clock, ids: Iterator[str], fences: Fences) -> None:
    while True:
        with store.watch(children.ROOM, TOPIC) as change:
            paused = fences.paused_keys(_FENCED)
            ready = [
                key
                for key in store.read(children.parents_with_queued)
                if _name(key) not in paused and _may_release(store, key, fences)
            ]
            if not ready:
                await wait_until(fences.next_time(_FENCED), clock, change)
                continue
        async with tolerate_disk_full("children wait"):
            for key in ready:
                with fences.around(_FENCED, _name(key)):
                    await store.write(partial(release_children, *key, now=clock.now(), ids=ids))


def _name(key: tuple[str, str]) -> str:
    return "/".join(key)


def _may_release(store: Store, key: tuple[str, str], fences: Fences) -> bool:
    try:
        return store.read(lambda db: _may_start_another(db, *key))
    except Exception as error:  # one bad parent must not block the others
        if concerns_every_unit(error):
            raise
        fences.record(_FENCED, _name(key), error)
        return False


def _may_start_another(db: ReadSnapshot, namespace: str, parent_id: str) -> bool:
    """Return whether one more child of a job may become active."""
    parent = jobs.current(db, namespace, parent_id)
    limit = CHILDREN_AT_ONCE.of(parent.meta) if parent else None
    return limit is None or not children.has_at_least_active(db, namespace, parent_id, limit)


def release_children(
    namespace: str, parent_id: str, tx: Transaction, *, now: int, ids: Iterator[str]
) -> None:
    """Release queued children of a job, oldest first, up to its limit."""
    for child_id in children.queued_children(tx, namespace, parent_id, _AT_ONCE):
        if not _may_start_another(tx, namespace, parent_id):
            return
        children.release(tx, namespace, child_id)
        if (child := jobs.current(tx, namespace, child_id)) is not None:
            evaluate_child(tx, child, now=now, eval_id=next(ids))


def child_evaluation(
    parent: Job, child_id: str, eval_id: str, priority: int, index: int
) -> Evaluation:
    """Return the first evaluation of a child, created at `index`.

    A `priority` of 0 means the priority of the parent.
    """
    evaluation = new_evaluation(
        parent, eval_id, Trigger.JOB_REGISTER, priority=priority, job_modify_index=index
    )
    return msgspec.structs.replace(evaluation, job_id=child_id)


def evaluate_child(tx: Transaction, child: Job, *, now: int, eval_id: str) -> None:
    """Create the evaluation of a child that may start."""
    index = child.job_modify_index
    evaluation = new_evaluation(child, eval_id, Trigger.JOB_REGISTER, job_modify_index=index)
    evaluations.put(tx, evaluation, now)
    job_status.refresh_summary(tx, child.namespace, child.id)
