"""The one worker: takes the most urgent evaluations, decides, stores the plans, and takes the next.

Evaluations are handed out by priority, then by age, of each job one at a time; so no job is looked
at twice at once. What waits for its time or for room stays in the file and costs no memory.
"""

import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

import msgspec
import trio

from daemon.clock import Clock
from daemon.evals import applier
from daemon.evals.configuration import configuration
from daemon.evals.decision import decide
from daemon.evals.deployments import watch_deployments
from daemon.evals.gc import Retention, collect_garbage
from daemon.evals.nodes import evaluate_down, watch_drains
from daemon.evals.openings import Openings
from daemon.evals.state import (
    load,
    node_states,
    takes_dynamic_ports,
    with_listening,
    with_placed,
)
from daemon.fences import Fences
from daemon.scheduler.state import ClusterState, NodeState, Plan
from storage import origin
from storage.queries import allocations, evaluations, jobs
from storage.readers import LongRead, Snapshot
from storage.records.base import SECOND
from storage.records.evaluation import Evaluation
from storage.records.job import Job
from storage.store import Store, unless_full

log = logging.getLogger("steward.evals")

Listening = Callable[[], frozenset[int]]

# More would keep others from the loop for too long; of a burst they share a commit (bench: dispatch).
_AT_ONCE = 16

# What a decision on the event loop may look at: more than 2 ms of it are for a thread.
_LONG_DEFINITION = 64 * 1024  # characters
_MANY = 100  # allocations: those that a job has, or is to have

LONGEST = 20.0  # seconds of CPU time that a decision may take

_FENCED = "evaluation"
_UNMARKED = "failed evaluation"  # the store does not say that it failed
_BROKEN = "the scheduler failed: {}"


@asynccontextmanager
async def open_evals(
    store: Store,
    clock: Clock,
    ids: Iterator[str],
    kept: Retention,
    fences: Fences,
    listening: Listening = frozenset,
) -> AsyncIterator[None]:
    """Run the worker, the watchers of deployments and drained nodes, and the garbage collection.

    `listening` tells on which ports of the machine somebody listens.
    """
    async with unless_full("work on nodes that are down"):
        await evaluate_down(store, ids, now=clock.now())
    async with trio.open_nursery() as nursery:
        for loop in (
            partial(_work, store, clock, ids, fences, listening),
            partial(watch_deployments, store, clock, ids, fences),
            partial(watch_drains, store, clock, ids),
            partial(collect_garbage, store, clock, kept),
        ):
            nursery.start_soon(fences.keep_running, loop.func.__name__.strip("_"), loop)
        yield
        nursery.cancel_scope.cancel()


async def _work(
    store: Store, clock: Clock, ids: Iterator[str], fences: Fences, listening: Listening
) -> None:
    while True:
        with store.watch("evaluations/", evaluations.ROOM, "nodes/") as change:
            now = clock.now()
            chosen = store.read(partial(next_evaluations, now=now, held=fences.held(_FENCED)))
            if not chosen:
                times = (
                    store.read(partial(evaluations.next_time, now=now)),
                    fences.next_time(_FENCED),
                )
                later = min((time for time in times if time is not None), default=None)
                pause = max(later - now, 0) / SECOND if later else float("inf")
                with trio.move_on_after(pause):
                    await change.wait()
                continue
        async with unless_full(f"{len(chosen)} evaluations wait"):
            await process(store, chosen, clock, ids, fences, listening)


def next_evaluations(
    db: Snapshot, *, now: int, held: frozenset[str] = frozenset()
) -> list[Evaluation]:
    """Return what to look at next, at most one of each job: what is ready, else what may fit by now.

    Evaluations in `held` pause after an error; all wait while an operator pauses the scheduler.
    """
    if configuration(db).pause_eval_broker:
        return []
    ready: dict[tuple[str, str], Evaluation] = {}
    for one in evaluations.ready(db, now, _AT_ONCE + len(held)):
        if one.id not in held:
            ready.setdefault((one.namespace, one.job_id), one)
    if ready or not evaluations.any_blocked(db):
        return list(ready.values())
    blocked = evaluations.next_blocked(db, Openings(db, node_states(db)).fit)
    return [blocked] if blocked and blocked.id not in held else []


class TookTooLong(Exception):
    """A decision was given up, because it took too long."""


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What was found for one evaluation; without a plan, the error."""

    evaluation: Evaluation
    state: ClusterState | None = None
    plan: Plan | None = None
    error: Exception | None = None
    request_id: str = msgspec.field(default_factory=origin.current)


async def process(
    store: Store,
    chosen: Sequence[Evaluation],
    clock: Clock,
    ids: Iterator[str],
    fences: Fences,
    listening: Listening = frozenset,
) -> None:
    """Decide about evaluations of different jobs at one moment, and store their plans.

    The plans are stored at the same time, for one commit: each sees what those before it place.
    One that came too late is dropped: its evaluation is still there to be taken again. An error
    while an evaluation is loaded, decided or applied costs only that evaluation an attempt; after
    the last one it has failed.
    """
    now = clock.now()
    decide = partial(_decide_all, chosen=chosen, now=now, ids=ids, listening=listening)
    try:
        decisions = store.read(partial(decide, is_on_loop=True))
    except LongRead:  # a thread decides, from the start
        decisions = await store.read_long(decide)
    async with trio.open_nursery() as nursery:
        for decision in decisions:
            nursery.start_soon(_keep, store, decision, fences, now)


def _decide_all(
    db: Snapshot,
    *,
    chosen: Sequence[Evaluation],
    now: int,
    ids: Iterator[str],
    listening: Listening = frozenset,
    is_on_loop: bool = False,
) -> list[Decision]:
    """Decide about evaluations. Raises `LongRead` when that is too much for the event loop."""
    decisions, nodes = [], node_states(db)
    for evaluation in chosen:
        with origin.serving(evaluations.request_id(db, evaluation.id)):
            within = _within(ids, LONGEST)
            decision = _decide(db, evaluation, nodes, now, within, listening, is_on_loop=is_on_loop)
        decisions.append(decision)
        if decision.plan is None:
            continue
        nodes = with_placed(nodes, decision.plan.place)
        # Whom this leaves, and what it gets of who is ending, the next one sees only in the store.
        if decision.plan.evict or any(one.desired.waits_for for one in decision.plan.place):
            break
    return decisions


def _is_long(db: Snapshot, evaluation: Evaluation) -> bool:
    """Tell whether a job has so much that loading it takes longer than the event loop may be held."""
    key = (evaluation.namespace, evaluation.job_id)
    if allocations.has_more(db, *key, _MANY):
        return True
    return jobs.definition_length(db, *key) > _LONG_DEFINITION


def _wanted(job: Job | None) -> int:
    """Return how many allocations a job is to have."""
    return sum(group.count for group in (job and job.task_groups) or ())


def _within(ids: Iterator[str], seconds: float) -> Iterator[str]:
    """Yield ids for as long as a decision may take. Raises `TookTooLong`.

    A decision asks for one with all that it places, so that it ends soon after its time.
    """
    until = time.thread_time() + seconds
    for one in ids:
        if time.thread_time() > until:
            raise TookTooLong(f"the decision took more than {seconds:g} s of CPU time")
        yield one


def _decide(
    db: Snapshot,
    evaluation: Evaluation,
    nodes: tuple[NodeState, ...],
    now: int,
    ids: Iterator[str],
    listening: Listening,
    *,
    is_on_loop: bool,
) -> Decision:
    """Decide about one evaluation; an error is part of the answer. Raises `LongRead`."""
    try:
        if is_on_loop and _is_long(db, evaluation):
            raise LongRead  # noqa: TRY301  # what tells whether it is long may fail as well
        state = load(db, evaluation, nodes)
        if is_on_loop and _wanted(state.job) > _MANY:
            raise LongRead  # noqa: TRY301
        if state.job is not None and takes_dynamic_ports(state.job):
            state = msgspec.structs.replace(state, nodes=with_listening(state.nodes, listening()))
        plan = decide(db, state, evaluation, now=now, ids=ids)
    except LongRead:
        raise
    except Exception as error:  # one bad job must not end the daemon
        return Decision(evaluation=evaluation, error=error)
    return Decision(evaluation=evaluation, state=state, plan=plan)


async def _keep(store: Store, decision: Decision, fences: Fences, now: int) -> None:
    evaluation = decision.evaluation
    with origin.serving(decision.request_id):
        with fences.around(_FENCED, evaluation.id):
            await _apply(store, decision, now)
        fault = fences.of(_FENCED, evaluation.id)
        if fault is not None and fault.is_closed:
            with fences.around(_UNMARKED, evaluation.id):
                await applier.fail(store, evaluation, _BROKEN.format(fault.reason), now=now)
                fences.forget(_FENCED, evaluation.id)


async def _apply(store: Store, decision: Decision, now: int) -> None:
    evaluation, state, plan = decision.evaluation, decision.state, decision.plan
    if decision.error is not None:
        raise decision.error
    assert state is not None and plan is not None  # noqa: S101, PT018  # there is no error
    if await applier.apply(store, evaluation, state, plan, now=now):
        _tell(evaluation, plan)
    else:
        log.info("evaluation %s is looked at again: the state moved on", evaluation.id)


def _tell(evaluation: Evaluation, plan: Plan) -> None:
    evicted = f", {len(plan.evict)} make room" if plan.evict else ""
    waits = ", the rest waits for room" if plan.blocked else ""
    log.info(
        "evaluation %s of job %s (%s): %d placed, %d changed%s%s",
        *(evaluation.id, evaluation.job_id, evaluation.triggered_by),
        *(len(plan.place), len(plan.change), evicted, waits),
        extra={
            "keys": {
                "eval_id": evaluation.id,
                "namespace": evaluation.namespace,
                "job_id": evaluation.job_id,
            }
        },
    )
