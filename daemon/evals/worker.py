"""The worker: takes evaluations by priority, runs the scheduler, and stores the plans.

Evaluations are ordered by priority, then by age. At most one evaluation of a job is processed at a
time. Delayed and blocked evaluations stay in the store and use no memory.
"""

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

import msgspec
import trio

from daemon.clock import Clock
from daemon.evals import applier
from daemon.evals.cluster_state import (
    add_listening_ports,
    add_placed,
    facts_of,
    load_cluster_state,
    load_freeze,
    node_states,
)
from daemon.evals.deployment_watcher import watch_deployments
from daemon.evals.gc import RetentionLimits, collect_garbage
from daemon.evals.node_actions import evaluate_down, watch_drains
from daemon.evals.schedule_with_preemption import decide
from daemon.evals.scheduler_config import configuration, forget_workers, workers
from daemon.evals.unblocker import Unblocker
from daemon.fences import TOPIC, Fences
from daemon.scheduler.state import ClusterState, NodeState, Plan
from daemon.timers import TIMERS
from storage import garbage, request_context
from storage.errors import StorageError
from storage.loop_share import LongRead
from storage.queries import allocations, evaluations, jobs
from storage.read_pool import ReadSnapshot
from storage.records.allocation import Allocation
from storage.records.base import SECOND
from storage.records.evaluation import EvalStatus, Evaluation
from storage.records.flow import FlowRun
from storage.records.job import Job
from storage.store import Store, tolerate_disk_full

log = logging.getLogger("steward.evals")

Listening = Callable[[], frozenset[int]]

# A larger number would block the event loop for too long. Evaluations of a burst share a commit
# (bench: dispatch).
_AT_ONCE = 16

# Limits for decisions on the event loop: those that take more than 2 ms run in a thread.
_LONG_DEFINITION = 176 * 1024  # characters; a thread decodes longer definitions and caches them
_MANY = 100  # allocations that a job has, or should have

_SHARE = 0.0015  # seconds of CPU time after which the event loop starts no further decision

_MOST_LINKS = 32  # links of an evaluation's span to allocations of earlier steps
LONGEST = 20.0  # seconds of CPU time for one decision

# Timers with Nomad's names. Nomad's submit and apply are a single call here.
_INVOKED = "nomad.nomad.worker.invoke_scheduler"
_SUBMITTED, _APPLIED = "nomad.nomad.plan.submit", "nomad.nomad.plan.apply"

_UNFINISHED = (EvalStatus.PENDING, EvalStatus.BLOCKED)
_FENCED = "evaluation"
_UNMARKED = "failed evaluation"  # recorded if the store could not mark it as failed
_BROKEN = "the scheduler failed: {}"


@asynccontextmanager
async def open_evals(
    store: Store,
    clock: Clock,
    ids: Iterator[str],
    retention_limits: RetentionLimits,
    fences: Fences,
    listening: Listening = frozenset,
    *,
    max_count: int = 0,
    begins: trio.Event | None = None,
) -> AsyncIterator[None]:
    """Run the worker, the deployment and drain watchers, and garbage collection.

    `listening` returns the ports of this host on which processes listen. `max_count` limits
    the elements of a workflow, 0 for no limit. All loops start when `begins` is set.
    """
    async with tolerate_disk_full("cannot reset the workers of the scheduler"):
        await forget_workers(store)
    async with tolerate_disk_full("cannot evaluate the jobs on nodes that are down"):
        await evaluate_down(store, ids, now=clock.now())
    async with trio.open_nursery() as nursery:
        for loop in (
            partial(_work, store, clock, ids, fences, listening, max_count),
            partial(watch_deployments, store, clock, ids, fences),
            partial(watch_drains, store, clock, ids, fences),
            partial(collect_garbage, store, clock, retention_limits, fences),
        ):
            nursery.start_soon(
                fences.keep_running, loop.func.__name__.strip("_"), partial(_from, begins, loop)
            )
        yield
        nursery.cancel_scope.cancel()


async def _from(begins: trio.Event | None, loop: Callable[[], Awaitable[None]]) -> None:
    if begins is not None:
        await begins.wait()
    await loop()


async def _work(
    store: Store,
    clock: Clock,
    ids: Iterator[str],
    fences: Fences,
    listening: Listening,
    max_count: int,
) -> None:
    async with tolerate_disk_full("cannot end evaluations that failed repeatedly"):
        await fail_closed_evaluations(store, clock, fences)
    while True:
        with store.watch("evaluations/", evaluations.ROOM, "nodes/", TOPIC) as change:
            now = clock.now()
            paused, suspects = (
                fences.paused_keys(_FENCED),
                {fence.key for fence in fences.of_kind(_FENCED)},
            )
            try:
                # If the workers are restricted to some job types, all pending evaluations are read.
                chosen = await store.read_any(
                    partial(next_evaluations, now=now, paused=paused, suspects=frozenset(suspects))
                )
            except evaluations.Unreadable as error:  # the other evaluations are decided without it
                fences.record(_FENCED, error.eval_id, error)
                continue
            if not chosen:
                forget_ended(store, fences)
                times = (
                    store.read(partial(evaluations.next_time, now=now)),
                    fences.next_time(_FENCED),
                )
                later = min((time for time in times if time is not None), default=None)
                pause = max(later - now, 0) / SECOND if later else float("inf")
                with trio.move_on_after(pause):
                    await change.wait()
                continue
        async with tolerate_disk_full(f"cannot process {len(chosen)} evaluations"):
            await process(store, chosen, clock, ids, fences, listening, max_count)


async def fail_closed_evaluations(store: Store, clock: Clock, fences: Fences) -> None:
    """Mark evaluations that have used all attempts as failed.

    Attempts of earlier daemons also count.
    """
    for evaluation in forget_ended(store, fences):
        await _fail_evaluation(store, evaluation, fences, clock.now())


def forget_ended(store: Store, fences: Fences) -> list[Evaluation]:
    """Delete the faults of ended evaluations; return the unfinished evaluations with faults.

    If the row of an evaluation cannot be read, its fault stays, and the evaluation is not returned.
    """
    unfinished, unreadable = list[Evaluation](), list[str]()
    for fault in fences.of_kind(_FENCED):
        try:
            evaluation = store.read(partial(evaluations.find, eval_id=fault.key))
        except evaluations.Unreadable:
            unreadable.append(fault.key)
            continue
        if evaluation is not None and evaluation.status in _UNFINISHED:
            unfinished.append(evaluation)
    fences.open_others(_FENCED, [*unreadable, *(with_fault.id for with_fault in unfinished)])
    return unfinished


async def _fail_evaluation(store: Store, evaluation: Evaluation, fences: Fences, now: int) -> None:
    """Mark an evaluation with a closed fence as failed."""
    fault = fences.of(_FENCED, evaluation.id)
    if fault is not None and fault.is_closed:
        with fences.around(_UNMARKED, evaluation.id):
            await applier.fail(store, evaluation, _BROKEN.format(fault.reason), now=now)
            fences.forget(_FENCED, evaluation.id)


def next_evaluations(
    db: ReadSnapshot,
    *,
    now: int,
    paused: frozenset[str] = frozenset(),
    suspects: frozenset[str] = frozenset(),
) -> list[Evaluation]:
    """Return the next pending evaluations, at most one per job.

    If no evaluation is pending, return one blocked evaluation that fits now, if there is one.
    Evaluations in `paused` wait after an error. All evaluations wait while an operator pauses the
    scheduler. Each of the `suspects` is processed alone: if it crashes the daemon, no other
    evaluation is blamed.
    """
    offered = workers(db)
    if configuration(db).pause_eval_broker or not offered.types:
        return []
    types = None if offered.processes_all else offered.types
    ready: dict[tuple[str, str], Evaluation] = {}
    for evaluation in evaluations.runnable(db, now, _AT_ONCE + len(paused), types, paused):
        ready.setdefault((evaluation.namespace, evaluation.job_id), evaluation)
    if ready or not evaluations.any_blocked(db):
        alone = next((pair for pair in ready.values() if pair.id in suspects), None)
        return list(ready.values()) if alone is None else [alone]
    blocked = evaluations.next_blocked(db, Unblocker(db, node_states(db)).fit, types, paused)
    return [blocked] if blocked else []


class TookTooLong(Exception):
    """A decision was cancelled because it exceeded its time limit."""


class EvaluationResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result for one evaluation: its plan, or the error."""

    evaluation: Evaluation
    state: ClusterState | None = None
    plan: Plan | None = None
    error: Exception | None = None
    origin: str = msgspec.field(default_factory=request_context.origin)
    # With traces: the origin of the evaluation, and the times at which the decision began and ended.
    parent: str = ""
    times: tuple[int, int] = (0, 0)


class Decisions(msgspec.Struct, frozen=True, kw_only=True):
    """The results, the evaluations without a decision, and the resulting node states."""

    decisions: list[EvaluationResult]
    left: tuple[Evaluation, ...] = ()
    nodes: tuple[NodeState, ...]


async def process(
    store: Store,
    chosen: Sequence[Evaluation],
    clock: Clock,
    ids: Iterator[str],
    fences: Fences,
    listening: Listening = frozenset,
    max_count: int = 0,
) -> None:
    """Decide about evaluations of different jobs one by one, and store their plans.

    Each decision sees the placements of earlier decisions, and one commit stores all plans. A stale
    plan is dropped, and its evaluation is processed again. An error in loading, deciding or
    applying counts as one attempt of that evaluation only. After the last attempt it is marked as
    failed.
    """
    now = clock.now()
    decide = partial(_decide_all, now=now, ids=ids, listening=listening, max_count=max_count)
    with fences.at_work(_FENCED, [evaluation.id for evaluation in chosen]):
        decisions, remaining = list[EvaluationResult](), tuple(chosen)
        nodes: tuple[NodeState, ...] | None = None
        while remaining:
            decide_chosen = partial(decide, chosen=remaining, nodes=nodes)
            try:
                result = store.read_short(partial(decide_chosen, is_on_loop=True))
            except LongRead:  # decide again from the start, in a thread
                result = await store.read_long(decide_chosen)
                garbage.free_in_thread(result)
            decisions += result.decisions
            remaining, nodes = result.left, result.nodes
            await trio.lowlevel.checkpoint()  # run other tasks of the event loop
        async with trio.open_nursery() as nursery:
            for decision in decisions:
                nursery.start_soon(_apply_result, store, decision, fences, now)


def _decide_all(
    db: ReadSnapshot,
    *,
    chosen: Sequence[Evaluation],
    now: int,
    ids: Iterator[str],
    nodes: tuple[NodeState, ...] | None = None,
    listening: Listening = frozenset,
    max_count: int = 0,
    is_on_loop: bool = False,
) -> Decisions:
    """Decide about evaluations. On the event loop, begin no further decision after a limited time.

    `nodes` are the node states after previous decisions. Raises `LongRead` when a decision is too
    long for the event loop.
    """
    decisions, until = list[EvaluationResult](), time.thread_time() + _SHARE
    nodes = node_states(db) if nodes is None else nodes
    for number, evaluation in enumerate(chosen):
        if is_on_loop and decisions and time.thread_time() > until:
            return Decisions(decisions=decisions, left=tuple(chosen[number:]), nodes=nodes)
        within = _within(ids, LONGEST)
        decide_one = partial(_decide, db, evaluation, nodes, now, within, listening, max_count)
        origin = evaluations.request_id(db, evaluation.id)
        if (recorder := request_context.TRACING.recorder) is not None:
            began = recorder.now()
            with request_context.request_scope(recorder.begin_evaluation(origin)):
                decision = decide_one(is_on_loop=is_on_loop)
            times = (began, recorder.now())
            decision = msgspec.structs.replace(decision, parent=origin, times=times)
        else:
            with request_context.request_scope(origin):
                decision = decide_one(is_on_loop=is_on_loop)
        decisions.append(decision)
        if decision.plan is None:
            continue
        nodes = add_placed(nodes, decision.plan.place)
        # A later decision sees preemption and waiting allocations only through the store.
        if decision.plan.evict or any(alloc.desired.waits_for for alloc in decision.plan.place):
            break
    return Decisions(decisions=decisions, nodes=nodes)


def _is_long(db: ReadSnapshot, evaluation: Evaluation) -> bool:
    """Return whether the job of an evaluation is too large to be loaded on the event loop."""
    key = (evaluation.namespace, evaluation.job_id)
    if allocations.has_more(db, *key, _MANY):
        return True
    return jobs.definition_length(db, *key) > _LONG_DEFINITION


def _desired_count(state: ClusterState) -> int:
    """Return the desired number of allocations of a job, as far as this number is known."""
    groups = sum(group.count for group in (state.job and state.job.task_groups) or ())
    return max(groups, sum(step.total for step in state.steps))


def _within(ids: Iterator[str], seconds: float) -> Iterator[str]:
    """Yield IDs within the time limit of a decision. Raises `TookTooLong`.

    A decision needs an ID for each placement, so it ends soon after the limit.
    """
    until = time.thread_time() + seconds
    for identifier in ids:
        if time.thread_time() > until:
            raise TookTooLong(f"the decision took more than {seconds:g} s of CPU time")
        yield identifier


def _decide(
    db: ReadSnapshot,
    evaluation: Evaluation,
    nodes: tuple[NodeState, ...],
    now: int,
    ids: Iterator[str],
    listening: Listening,
    max_count: int,
    *,
    is_on_loop: bool,
) -> EvaluationResult:
    """Decide about one evaluation; an error is part of the result. Raises `LongRead`."""
    try:
        if is_on_loop and _is_long(db, evaluation):
            raise LongRead  # noqa: TRY301  # the check for long decisions may also fail
        state = load_cluster_state(db, evaluation, nodes)
        if is_on_loop and (_desired_count(state) > _MANY or state.outputs):
            raise LongRead  # noqa: TRY301  # as above
        state = msgspec.structs.replace(
            state, max_count=max_count, freeze=load_freeze(db, state.job, now)
        )
        if state.job is not None and facts_of(state.job).takes_dynamic_ports:
            state = msgspec.structs.replace(
                state, nodes=add_listening_ports(state.nodes, listening())
            )
        with TIMERS.measured(f"{_INVOKED}.{evaluation.type}"):
            plan = decide(db, state, evaluation, now=now, ids=ids)
    except LongRead:
        raise
    except Exception as error:  # one invalid job must not stop the daemon
        return EvaluationResult(evaluation=evaluation, error=error)
    return EvaluationResult(evaluation=evaluation, state=state, plan=plan)


async def _apply_result(store: Store, decision: EvaluationResult, fences: Fences, now: int) -> None:
    evaluation = decision.evaluation
    with request_context.request_scope(decision.origin):
        with fences.around(_FENCED, evaluation.id):
            await _apply(store, decision, now)
        await _fail_evaluation(store, evaluation, fences, now)
    if (recorder := request_context.TRACING.recorder) is not None:
        began, decided = decision.times
        # A blocked evaluation may have been created days ago.
        is_new = evaluation.status == EvalStatus.PENDING and not evaluation.wait_until
        times = (evaluation.modify_time if is_new else began, began, decided)
        is_recorded = recorder.is_sampled(decision.origin)
        causes = await _causes(store, decision) if is_recorded else []
        attributes = _attributes(decision)
        recorder.end_evaluation(decision.origin, decision.parent, times, attributes, causes)


async def _causes(store: Store, decision: EvaluationResult) -> list[tuple[str, str]]:
    """Return the allocations for which the placed steps of a workflow waited.

    For each allocation, return the ID of the request that caused it, and the allocation's ID.
    """
    state, plan = decision.state, decision.plan
    if state is None or state.job is None or state.run is None or plan is None or not plan.place:
        return []
    placed = {alloc.task_group for alloc in plan.place}
    try:
        evicted = await store.read_long(
            partial(_needed, job=state.job, run=state.run, placed=placed)
        )
    except StorageError as error:  # a link must not stop the scheduler
        log.warning("evaluation %s has no links in its trace: %s", decision.evaluation.id, error)
        return []
    return [(alloc.request_id, alloc.id) for alloc in evicted]


def _needed(db: ReadSnapshot, job: Job, run: FlowRun, placed: set[str]) -> list[Allocation]:
    """Return some allocations of the steps that the placed steps need."""
    # Imported late: only traces of workflows need it.
    from daemon.flow.graph import stored_graph

    steps = [step for step in stored_graph(job).steps if step.name in placed]
    needs = {need for step in steps for need in step.needs}
    return allocations.some_of_groups(db, run, needs, _MOST_LINKS) if needs else []


def _attributes(decision: EvaluationResult) -> request_context.Attributes:
    evaluation, plan = decision.evaluation, decision.plan
    return {
        "steward.evaluation": evaluation.id,
        "steward.namespace": evaluation.namespace,
        "steward.job": evaluation.job_id,
        "steward.triggered_by": evaluation.triggered_by,
        "steward.placed": len(plan.place) if plan else 0,
        "steward.is_blocked": bool(plan and plan.blocked),
    }


async def _apply(store: Store, decision: EvaluationResult, now: int) -> None:
    evaluation, state, plan = decision.evaluation, decision.state, decision.plan
    if decision.error is not None:
        raise decision.error
    assert state is not None and plan is not None  # noqa: S101, PT018  # true without an error
    placing = request_context.span("placement")
    with TIMERS.measured(_SUBMITTED), TIMERS.measured(_APPLIED), placing:
        is_kept = await applier.apply(store, evaluation, state, plan, now=now)
    if is_kept:
        _log_plan(evaluation, plan)
    else:
        log.info("evaluation %s is processed again: the state has changed", evaluation.id)


def _log_plan(evaluation: Evaluation, plan: Plan) -> None:
    evicted = f", {len(plan.evict)} preempted" if plan.evict else ""
    waits = ", the rest is blocked" if plan.blocked else ""
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
