"""Store a plan, checked against the current state, together with the end of its evaluation.

The plan was made from a read snapshot. The write requires that the job and all changed allocations
are still as in the snapshot. Otherwise nothing is stored and the evaluation is processed again. An
evaluation is complete exactly when its plan is stored. After a crash before that, it is processed
again.
"""

from collections.abc import Mapping

import msgspec

from daemon.evals.unblocker import smallest_resource_ask
from daemon.jobspec.steward_meta.job_keys import RUN_QUEUE, RUNS_KEPT
from daemon.scheduler.state import ClusterState, Eviction, FlowChange, Plan
from storage.queries import (
    allocations,
    deployments,
    evaluations,
    freezes,
    job_status,
    jobs,
    nodes,
    notifications,
    runs,
    signing,
    versions,
)
from storage.queries.evaluations import NO_ROOM
from storage.records.allocation import Allocation, DesiredStatus
from storage.records.deployment import DeploymentStatus
from storage.records.evaluation import DesiredUpdates, EvalStatus, Evaluation, Trigger
from storage.records.flow import GATE_REASON, FlowRun, StepState
from storage.records.job import Job
from storage.records.times import nanoseconds
from storage.store import Store
from storage.writer import Transaction

_NO_UPDATES = DesiredUpdates()
_PREEMPTED = "Preempted by alloc ID {}"
_MANY = 20  # changes, or groups with counts; storing more takes longer than 2 ms
_ENDED = "canceled because the run has ended"
_SUPERSEDED = "canceled after more recent eval was processed"


async def apply(
    store: Store, evaluation: Evaluation, state: ClusterState, plan: Plan, *, now: int
) -> bool:
    """Store a plan and complete its evaluation; return whether the plan was still valid."""

    def write(tx: Transaction) -> bool:
        if _is_stale(tx, evaluation, state, plan):
            return False
        succeeded = _store_deployments(tx, plan, now)
        if plan.place:
            key_id = signing.active(tx, now)
        for allocation in plan.place:
            allocations.add(tx, _with_key(allocation, key_id), now)
        _change(tx, state, plan, now)
        _store_runs(tx, state, plan.flow, now)
        for eviction in plan.evict:
            _stop_preempted(tx, eviction, now)
        _note_freeze(tx, evaluation, plan, now)
        _cancel_deadlines(tx, evaluation, plan, now)
        stored_plan = _without_repeated(tx, evaluation, plan)
        for follow_up in (*stored_plan.evaluations, *plan.displaced):
            evaluations.put(tx, follow_up, now)
        _finish(tx, evaluation, state, stored_plan, now)
        job_status.set_queued(tx, evaluation.namespace, evaluation.job_id, dict(plan.queued))
        job_status.refresh_summary(tx, evaluation.namespace, evaluation.job_id)
        if succeeded:
            job_status.note_deployed(tx, evaluation.namespace, evaluation.job_id)
        for displaced in plan.displaced:
            job_status.refresh_summary(tx, displaced.namespace, displaced.job_id)
        return True

    changes = len(plan.place) + len(plan.change) + len(plan.evict) + len(plan.deployments)
    steps = sum(len(run.steps) for run in plan.flow.runs) if plan.flow else 0
    takes_over = plan.flow is not None and any(run.taken_over for run in plan.flow.runs)
    is_long = takes_over or max(changes, len(plan.queued), steps) > _MANY
    return await store.write(write, is_long=is_long)


def _store_deployments(tx: Transaction, plan: Plan, now: int) -> bool:
    """Store the changed deployments of a plan; return whether one of them has succeeded."""
    for deployment in plan.deployments:
        deployments.put(tx, deployment, now)
        if deployment.status == DeploymentStatus.SUCCESSFUL:
            key = (deployment.namespace, deployment.job_id, deployment.job_version)
            versions.set_stable(tx, *key, stable=True)
    return any(stored.status == DeploymentStatus.SUCCESSFUL for stored in plan.deployments)


def _with_key(allocation: Allocation, key_id: str) -> Allocation:
    """Return a copy of the allocation that records the ID of the key.

    The key signs the workload identities of the allocation.
    """
    placement = msgspec.structs.replace(allocation.placement, signing_key_id=key_id)
    return msgspec.structs.replace(allocation, placement=placement)


def _is_stale(tx: Transaction, evaluation: Evaluation, state: ClusterState, plan: Plan) -> bool:
    index = jobs.definition_index(tx, evaluation.namespace, evaluation.job_id)
    if (index is None) != (state.job is None):
        return True
    if index is not None and index != plan.job_modify_index:
        return True
    if plan.place and tx.table_index(freezes.TABLE) > state.index and freezes.any_open(tx):
        return True  # a freeze that was created since the snapshot may hold these jobs
    if plan.flow is not None and _is_flow_stale(tx, evaluation, plan.flow):
        return True
    return _are_objects_stale(tx, state, plan)


def _is_flow_stale(tx: Transaction, evaluation: Evaluation, flow: FlowChange) -> bool:
    """Return whether the plan for a run is out of date.

    This is the case if the run has changed, or if a new run waits for allocations that have all
    ended since the plan was made.
    """
    if flow.seen != runs.newest(tx, evaluation.namespace, evaluation.job_id):
        return True
    return bool(flow.awaits) and all(_has_ended(tx, alloc_id) for alloc_id in flow.awaits)


def _has_ended(tx: Transaction, alloc_id: str) -> bool:
    present = allocations.find(tx, alloc_id)
    return present is None or present.client_terminal


def _are_objects_stale(tx: Transaction, state: ClusterState, plan: Plan) -> bool:
    """Return whether an object that the plan changes is no longer as in the snapshot."""
    indexes = {alloc.id: alloc.alloc_modify_index for alloc in state.allocations}
    for planned in plan.change:
        present = allocations.find(tx, planned.id)
        if present is None or present.alloc_modify_index != indexes[planned.id]:
            return True
    for eviction in plan.evict:
        present, holder = allocations.find(tx, eviction.holder.id), eviction.holder
        if present is None or present.alloc_modify_index != holder.alloc_modify_index:
            return True
        if present.client_terminal:  # more capacity than in the snapshot
            return True
    for changed in plan.deployments:
        stored = deployments.find(tx, changed.id)
        if stored is not None and stored.modify_index != changed.modify_index:
            return True
    return bool(plan.place) and not _nodes_as_seen(tx, state, plan)


def _nodes_as_seen(tx: Transaction, state: ClusterState, plan: Plan) -> bool:
    """Return whether the nodes of placed allocations are unchanged.

    Only one worker places allocations, and it counts its own placements. Since the snapshot, the
    allocated resources of a node can therefore only have shrunk.
    """
    indexes = {node.node.id: node.node.modify_index for node in state.nodes}
    chosen = {alloc.node_id for alloc in plan.place}
    return all(nodes.index_of(tx, node_id) == indexes[node_id] for node_id in chosen)


def _store_runs(tx: Transaction, state: ClusterState, flow: FlowChange | None, now: int) -> None:
    """Store the changes of runs and steps; delete older runs than the job keeps.

    Notify about steps that have reached their gates.
    """
    if flow is None:
        return
    groups = (state.job.task_groups if state.job else None) or ()
    positions = {group.name: position for position, group in enumerate(groups)}
    for change in flow.runs:
        runs.put(tx, change.run, change.before)
        if change.before is None and state.job is not None and not change.run.status.has_ended:
            _enter_queue(tx, state.job, change.run, now)
        runs.put_steps(tx, change.run, change.steps, change.known, positions)
        if change.taken_over and flow.seen is not None:
            runs.copy_outputs(tx, flow.seen, change.run, change.taken_over)
        for step in change.steps:
            earlier = change.known.get(step.name)
            is_new = earlier is None or earlier.reason != step.reason
            if step.state == StepState.HELD and step.reason.startswith(GATE_REASON) and is_new:
                key = (change.run.namespace, change.run.job_id)
                reason = f"step {step.name}, {step.reason}"
                notifications.queue_gate_notification(tx, key, reason, now)
        if change.before is None and state.job is not None:
            runs_kept = RUNS_KEPT.of(state.job.meta)
            key = (change.run.namespace, change.run.job_id)
            runs.remove_up_to(tx, *key, change.run.number - runs_kept)
    for run in (change.run for change in flow.runs if _ends_before_next(state, change.run)):
        job_status.note_earlier_end(tx, run)
    if state.job is not None and (flow.demands or flow.freed):
        _store_slots(tx, state.job, flow, positions, now)


def _ends_before_next(state: ClusterState, run: FlowRun) -> bool:
    """Return whether a run has ended, and a newer version of its job waited for this end.

    This includes a failed run whose clean-up steps exceeded their deadline. In that case, the
    decision of the newer version ends the run.
    """
    if not run.status.has_ended:
        return False
    job = state.job
    is_late = job is not None and not job.stop and run.version < job.version and run.fails
    return state.next_version is not None or is_late


def _store_slots(
    tx: Transaction, job: Job, flow: FlowChange, positions: Mapping[str, int], now: int
) -> None:
    """Store the demand of steps for slots of their queues, and free slots that are not needed."""
    from storage.queries import step_slots  # imported late: few workflows have queues of steps

    run = flow.runs[-1].run if flow.runs else flow.seen
    if run is None:
        return
    for name in flow.freed:
        runs.free_slots(tx, run, name)
    for demand in flow.demands:
        step_slots.ask(tx, job, run, demand, positions.get(demand.step, 0), now)


def _enter_queue(tx: Transaction, job: Job, run: FlowRun, now: int) -> None:
    """Let a new run wait for the slots of its queue, if its job names a queue."""
    if RUN_QUEUE.name in (job.meta or ()):
        from daemon.jobs.queues import queue_of_runs  # imported late: few jobs have a queue
        from storage.queries import concurrency

        concurrency.enter(tx, queue_of_runs(job), job, run, now)


def _change(tx: Transaction, state: ClusterState, plan: Plan, now: int) -> None:
    """Store the desired states of changed allocations.

    If the plan does not change the health of an allocation, the stored health is kept, because the
    runner owns it.

    The scheduler changes the client state only to set an allocation to lost.
    """
    by_id = {alloc.id: alloc for alloc in state.allocations}
    for planned in plan.change:
        change = planned
        if planned.health == by_id[planned.id].health:
            present = allocations.find(tx, planned.id)
            change = msgspec.structs.replace(planned, health=present.health if present else None)
        allocations.set_desired(tx, change, now)
        if planned.client_status != by_id[planned.id].client_status:
            allocations.set_client(tx, change, now)
    if _matters_less(state, plan):  # jobs that could not preempt it before may do so now
        tx.touch(evaluations.ROOM, evaluations.ROOM)


def _matters_less(state: ClusterState, plan: Plan) -> bool:
    """Return whether an allocation is updated to a job version with a lower priority."""
    version_of = {alloc.id: state.versions.get(alloc.job_version) for alloc in state.allocations}
    return any(
        (before := version_of[alloc.id]) is not None and before.priority > state.job.priority
        for alloc in plan.change
        if state.job is not None and alloc.job_version == state.job.version
    )


def _stop_preempted(tx: Transaction, eviction: Eviction, now: int) -> None:
    """Stop a preempted allocation."""
    present = allocations.find(tx, eviction.holder.id)
    if present is None:
        return
    desired = msgspec.structs.replace(
        present.desired,
        description=_PREEMPTED.format(eviction.by),
        preempted_by_allocation=eviction.by,
    )
    evicted = msgspec.structs.replace(present, desired_status=DesiredStatus.EVICT, desired=desired)
    allocations.set_desired(tx, evicted, now)


def _finish(
    tx: Transaction, evaluation: Evaluation, state: ClusterState, plan: Plan, now: int
) -> None:
    """Complete the evaluation, or keep it blocked if allocations still cannot be placed."""
    _cancel_superseded(tx, evaluation, now)
    if plan.flow is not None:
        plan = _without_unchanged(plan)
    done = msgspec.structs.replace(
        evaluation,
        snapshot_index=state.index,
        deployment_id=plan.deployment_id or evaluation.deployment_id,
        failed_tg_allocs=plan.failed or None,
        plan_annotations=plan.annotations,
        queued_allocations=plan.queued,
        next_eval=plan.evaluations[-1].id if plan.evaluations else "",
    )
    needs = smallest_resource_ask(state, plan) if plan.blocked else NO_ROOM
    if plan.blocked and evaluation.status == EvalStatus.BLOCKED:
        retry = msgspec.structs.replace(
            done,
            class_eligibility=plan.blocked.class_eligibility,
            failed_tg_allocs=plan.blocked.failed_tg_allocs,
        )
        evaluations.put(tx, retry, now, needs)
        return
    done = msgspec.structs.replace(done, status=EvalStatus.COMPLETE, status_description="")
    if plan.blocked:
        blocked = msgspec.structs.replace(plan.blocked, snapshot_index=state.index)
        evaluations.put(tx, blocked, now, needs)
        done = msgspec.structs.replace(done, blocked_eval=blocked.id)
    evaluations.put(tx, done, now)


def _without_unchanged(plan: Plan) -> Plan:
    """Return the plan of a workflow without the counts of steps that the plan does not change.

    For a workflow of a thousand steps, the counts of all steps took 190 KB in each evaluation and
    again in its event.
    """
    updates = {
        name: counts
        for name, counts in plan.annotations.desired_tg_updates.items()
        if msgspec.structs.replace(counts, ignore=0) != _NO_UPDATES
    }
    annotations = msgspec.structs.replace(plan.annotations, desired_tg_updates=updates)
    queued = {name: number for name, number in plan.queued.items() if number or name in updates}
    return msgspec.structs.replace(plan, annotations=annotations, queued=queued)


def _note_freeze(tx: Transaction, evaluation: Evaluation, plan: Plan, now: int) -> None:
    """Record that a job waits for the end of a freeze, or delete this record."""
    key = (evaluation.namespace, evaluation.job_id)
    if not plan.frozen:
        freezes.release(tx, key)
    elif jobs.current_wire(tx, *key) is not None:
        freezes.hold(tx, key, plan.frozen, now)


def _cancel_deadlines(tx: Transaction, evaluation: Evaluation, plan: Plan, now: int) -> None:
    """If a run has ended, cancel its evaluations for deadlines, so that the job can end."""
    if plan.flow is None or not plan.flow.runs or not plan.flow.runs[-1].run.status.has_ended:
        return
    for pending in evaluations.unfinished(tx, evaluation.namespace, evaluation.job_id):
        is_deadline = pending.triggered_by == Trigger.RUN_STEP and pending.wait_until
        if is_deadline and pending.id != evaluation.id:
            canceled = msgspec.structs.replace(
                pending, status=EvalStatus.CANCELED, status_description=_ENDED
            )
            evaluations.put(tx, canceled, now)


def _without_repeated(tx: Transaction, evaluation: Evaluation, plan: Plan) -> Plan:
    """Return the plan; omit evaluations for deadlines if one for an earlier deadline is pending.

    The pending evaluation creates the evaluation for the next deadline.
    """
    if not any(evaluation.triggered_by == Trigger.RUN_STEP for evaluation in plan.evaluations):
        return plan
    pending = [
        unfinished
        for unfinished in evaluations.unfinished(tx, evaluation.namespace, evaluation.job_id)
        if unfinished.id != evaluation.id
        and unfinished.wait_until
        and unfinished.triggered_by == Trigger.RUN_STEP
    ]
    soonest = min(
        (nanoseconds(evaluation.wait_until) for evaluation in pending if evaluation.wait_until),
        default=None,
    )
    needed = tuple(
        evaluation
        for evaluation in plan.evaluations
        if evaluation.triggered_by != Trigger.RUN_STEP
        or soonest is None
        or not evaluation.wait_until
        or nanoseconds(evaluation.wait_until) < soonest
    )
    return msgspec.structs.replace(plan, evaluations=needed)


def _cancel_superseded(tx: Transaction, evaluation: Evaluation, now: int) -> None:
    """Cancel older blocked evaluations of the job, and all but its newest pending evaluation."""
    key = (evaluation.namespace, evaluation.job_id)
    other_evaluations = [
        other for other in evaluations.unfinished(tx, *key) if other.id != evaluation.id
    ]
    blocked = [
        evaluation for evaluation in other_evaluations if evaluation.status == EvalStatus.BLOCKED
    ]
    ready = [
        evaluation
        for evaluation in other_evaluations
        if evaluation.status == EvalStatus.PENDING and not evaluation.wait_until
    ]
    for other in [*blocked, *ready[:-1]]:
        canceled = msgspec.structs.replace(
            other, status=EvalStatus.CANCELED, status_description=_SUPERSEDED
        )
        evaluations.put(tx, canceled, now)


async def fail(store: Store, evaluation: Evaluation, reason: str, *, now: int) -> None:
    """Mark an evaluation as failed, with the reason."""

    def write(tx: Transaction) -> None:
        failed = msgspec.structs.replace(
            evaluation, status=EvalStatus.FAILED, status_description=reason
        )
        evaluations.put(tx, failed, now)
        job_status.refresh_summary(tx, evaluation.namespace, evaluation.job_id)

    await store.write(write)
