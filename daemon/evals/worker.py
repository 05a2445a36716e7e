"""The one worker: takes the most urgent evaluations, decides, stores the plans, and takes the next.

Evaluations are handed out by priority, then by age, of each job one at a time; so no job is looked
at twice at once. What waits for its time or for room stays in the file and costs no memory.
"""

import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

import msgspec
import trio

from daemon.clock import Clock
from daemon.evals import applier
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
from daemon.scheduler.state import ClusterState, NodeState, Plan
from storage import origin
from storage.queries import evaluations
from storage.readers import Snapshot
from storage.records.base import SECOND
from storage.records.evaluation import Evaluation
from storage.store import Store, unless_full

log = logging.getLogger("steward.evals")

Listening = Callable[[], frozenset[int]]

# More would keep others from the loop for too long; of a burst they share a commit (bench: dispatch).
_AT_ONCE = 16


@asynccontextmanager
async def open_evals(
    store: Store,
    clock: Clock,
    ids: Iterator[str],
    kept: Retention,
    listening: Listening = frozenset,
) -> AsyncIterator[None]:
    """Run the worker, the watchers of deployments and drained nodes, and the garbage collection.

    `listening` tells on which ports of the machine somebody listens.
    """
    async with unless_full("work on nodes that are down"):
        await evaluate_down(store, ids, now=clock.now())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_work, store, clock, ids, listening)
        nursery.start_soon(watch_deployments, store, clock, ids)
        nursery.start_soon(watch_drains, store, clock, ids)
        nursery.start_soon(collect_garbage, store, clock, kept)
        yield
        nursery.cancel_scope.cancel()


async def _work(store: Store, clock: Clock, ids: Iterator[str], listening: Listening) -> None:
    while True:
        with store.watch("evaluations/", evaluations.ROOM, "nodes/") as change:
            now = clock.now()
            chosen = store.read(partial(next_evaluations, now=now))
            if not chosen:
                later = store.read(partial(evaluations.next_time, now=now))
                pause = (later - now) / SECOND if later else float("inf")
                with trio.move_on_after(pause):
                    await change.wait()
                continue
        async with unless_full(f"{len(chosen)} evaluations wait"):
            await process(store, chosen, clock, ids, listening)


def next_evaluations(db: Snapshot, *, now: int) -> list[Evaluation]:
    """Return what to look at next, at most one of each job: what is ready, else what may fit by now."""
    ready: dict[tuple[str, str], Evaluation] = {}
    for one in evaluations.ready(db, now, _AT_ONCE):
        ready.setdefault((one.namespace, one.job_id), one)
    if ready or not evaluations.any_blocked(db):
        return list(ready.values())
    blocked = evaluations.next_blocked(db, Openings(db, node_states(db)).fit)
    return [blocked] if blocked else []


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What was found for one evaluation; without a plan, why there is none."""

    evaluation: Evaluation
    state: ClusterState | None = None
    plan: Plan | None = None
    reason: str = ""
    request_id: str = msgspec.field(default_factory=origin.current)


async def process(
    store: Store,
    chosen: Sequence[Evaluation],
    clock: Clock,
    ids: Iterator[str],
    listening: Listening = frozenset,
) -> None:
    """Decide about evaluations of different jobs at one moment, and store their plans.

    The plans are stored at the same time, for one commit: each sees what those before it place.
    One that came too late is dropped: its evaluation is still there to be taken again.
    """
    now = clock.now()
    decide = partial(_decide_all, chosen=chosen, now=now, ids=ids, listening=listening)
    decisions = store.read(decide)
    async with trio.open_nursery() as nursery:
        for decision in decisions:
            nursery.start_soon(_keep, store, decision, now)


def _decide_all(
    db: Snapshot,
    *,
    chosen: Sequence[Evaluation],
    now: int,
    ids: Iterator[str],
    listening: Listening = frozenset,
) -> list[Decision]:
    decisions, nodes = [], node_states(db)
    for evaluation in chosen:
        with origin.serving(evaluations.request_id(db, evaluation.id)):
            decision = _decide(db, evaluation, nodes, now, ids, listening)
        decisions.append(decision)
        if decision.plan is None:
            continue
        nodes = with_placed(nodes, decision.plan.place)
        # Whom this leaves, and what it gets of who is ending, the next one sees only in the store.
        if decision.plan.evict or any(one.desired.waits_for for one in decision.plan.place):
            break
    return decisions


def _decide(
    db: Snapshot,
    evaluation: Evaluation,
    nodes: tuple[NodeState, ...],
    now: int,
    ids: Iterator[str],
    listening: Listening,
) -> Decision:
    state = load(db, evaluation, nodes)
    if state.job is not None and takes_dynamic_ports(state.job):
        state = msgspec.structs.replace(state, nodes=with_listening(state.nodes, listening()))
    try:
        # Inline: a decision takes a fraction of a millisecond (bench/schedule.py).
        plan = decide(db, state, evaluation, now=now, ids=ids)
    except Exception as error:  # one bad job must not end the daemon
        log.exception("evaluation %s of job %s failed", evaluation.id, evaluation.job_id)
        reason = f"the scheduler failed: {type(error).__name__}: {error}"
        return Decision(evaluation=evaluation, reason=reason)
    return Decision(evaluation=evaluation, state=state, plan=plan)


async def _keep(store: Store, decision: Decision, now: int) -> None:
    evaluation, state, plan = decision.evaluation, decision.state, decision.plan
    with origin.serving(decision.request_id):
        if state is None or plan is None:
            await applier.fail(store, evaluation, decision.reason, now=now)
        elif await applier.apply(store, evaluation, state, plan, now=now):
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
