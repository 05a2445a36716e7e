"""How many dispatched children of a job are at work at once.

Whether a child may begin is decided in the write that stores it. One that may not is held: it has no
evaluation, and costs nothing until another child of its parent ends. Then it is released, in the
order of the dispatches; what is held stands in the file, and the loop that looks remembers nothing.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial

import trio

from daemon.clock import Clock
from daemon.fences import Fences
from daemon.jobs.evaluate import new_evaluation
from daemon.jobs.stop import stop
from daemon.jobspec.extensions import CHILDREN_AT_ONCE, CHILDREN_BEYOND, Beyond
from storage.errors import TooOften
from storage.queries import children, evaluations, job_status, jobs
from storage.readers import Snapshot
from storage.records.evaluation import Trigger
from storage.records.job import Job
from storage.store import Store, unless_full
from storage.writer import Transaction

_AT_ONCE = 32  # children that one write stops or releases


def admit(tx: Transaction, parent: Job, *, now: int, ids: Iterator[str]) -> bool:
    """Tell whether one more child of a job may begin now; otherwise it is to be held.

    Where the job asks for it, the oldest children are stopped for it. Raises `TooOften` where it asks
    for the dispatch to be dropped.
    """
    limit = CHILDREN_AT_ONCE.of(parent.meta)
    if limit is None:
        return True
    beyond = CHILDREN_BEYOND.of(parent.meta)
    if beyond is Beyond.REPLACE:
        _replace_oldest(tx, parent, limit, now, ids)
    busy = children.are_at_work(tx, parent.namespace, parent.id, limit)
    if busy and beyond is Beyond.DROP:
        raise TooOften(
            f'job "{parent.id}" has {limit} children at work and drops more: dispatch again when '
            f"one has ended, or raise {CHILDREN_AT_ONCE.name}"
        )
    return not (busy or children.held(tx, parent.namespace, parent.id, 1))


def _replace_oldest(tx: Transaction, parent: Job, limit: int, now: int, ids: Iterator[str]) -> None:
    """Stop the oldest children, so that with the new one there are as many as may be."""
    found = children.unstopped(tx, parent.namespace, parent.id, limit + _AT_ONCE)
    for child_id in found[: max(len(found) - limit + 1, 0)]:
        child = jobs.current(tx, parent.namespace, child_id)
        if child is not None:
            stop(tx, child, now=now, eval_id=next(ids))


# ---- releasing ----------------------------------------------------------------------------------


@asynccontextmanager
async def open_children(
    store: Store, clock: Clock, ids: Iterator[str], fences: Fences
) -> AsyncIterator[None]:
    """Release held children when others have ended, while the block runs."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(
            fences.keep_running, "held children", partial(_follow, store, clock, ids)
        )
        yield
        nursery.cancel_scope.cancel()


async def _follow(store: Store, clock: Clock, ids: Iterator[str]) -> None:
    while True:
        with store.watch(children.ROOM) as change:
            ready = store.read(_that_may_release)
            if not ready:
                await change.wait()
                continue
        async with unless_full("children wait"):
            for key in ready:
                await store.write(partial(release, *key, now=clock.now(), ids=ids))


def _that_may_release(db: Snapshot) -> list[tuple[str, str]]:
    return [key for key in children.with_held(db) if _has_room(db, *key)]


def _has_room(db: Snapshot, namespace: str, parent_id: str) -> bool:
    """Tell whether one more child of a job may be at work."""
    parent = jobs.current(db, namespace, parent_id)
    limit = CHILDREN_AT_ONCE.of(parent.meta) if parent else None
    return limit is None or not children.are_at_work(db, namespace, parent_id, limit)


def release(
    namespace: str, parent_id: str, tx: Transaction, *, now: int, ids: Iterator[str]
) -> None:
    """Let a few held children of a job begin, as many as may be at work; oldest first."""
    for child_id in children.held(tx, namespace, parent_id, _AT_ONCE):
        if not _has_room(tx, namespace, parent_id):
            return
        children.release(tx, namespace, child_id)
        if (child := jobs.current(tx, namespace, child_id)) is not None:
            have_evaluated(tx, child, now=now, eval_id=next(ids))


def have_evaluated(tx: Transaction, child: Job, *, now: int, eval_id: str) -> None:
    """Have the scheduler look at a child that may begin."""
    index = child.job_modify_index
    evaluation = new_evaluation(child, eval_id, Trigger.JOB_REGISTER, job_modify_index=index)
    evaluations.put(tx, evaluation, now)
    job_status.settle(tx, child.namespace, child.id)
