"""Dry runs: compute the plan for a job without storing it.

The plan is computed as for a registration in the current state. Nothing is written (source: Nomad's
recorded responses `plan`, `plan-batch-system`).
"""

from collections.abc import Iterable, Iterator

import msgspec

from daemon.evals.cluster_state import load_cluster_state, step_openings
from daemon.evals.schedule_with_preemption import decide
from daemon.jobs.evaluate import new_evaluation
from daemon.jobs.periodic import next_launch
from daemon.jobspec.canonicalize import keep_scaling_ids, same_definition
from daemon.jobspec.diff import diff_jobs
from daemon.jobspec.diffs.annotations import annotate
from daemon.jobspec.steward_meta.step_keys import STEP_QUEUES, STEP_SLOTS
from daemon.net.port_listeners import PortListener, describe_conflicts
from daemon.scheduler.nodes.capacity import resource_ask
from daemon.scheduler.state import ClusterState, Plan, StepGrant
from storage.queries import allocated_resources, allocations, concurrency, jobs, nodes
from storage.read_pool import ReadSnapshot
from storage.records import allocation_views
from storage.records.codec import encode
from storage.records.diff import JobDiff
from storage.records.evaluation import Evaluation, PlacementMetric, PlanAnnotations, Trigger
from storage.records.flow import StepState
from storage.records.job import Job


class DryRunResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a registration; `index` is the modify index of the stored job, or 0.

    `opened` are the steps of a workflow that would begin as soon as they have slots of their
    queues.
    """

    index: int
    diff: JobDiff
    annotations: PlanAnnotations
    evaluations: list[Evaluation]
    failed: dict[str, PlacementMetric]
    next_launch: int | None  # next launch of a periodic job, in nanoseconds
    opened: frozenset[str] = frozenset()


def dry_run(db: ReadSnapshot, job: Job, *, now: int, ids: Iterator[str]) -> DryRunResult:
    """Return the result that the registration of a complete job would have."""
    present = jobs.current(db, job.namespace, job.id)
    planned = _as_stored(job, present, ids)
    is_same = present is not None and same_definition(present, planned)
    evaluation = new_evaluation(
        planned,
        next(ids),
        Trigger.JOB_REGISTER,
        job_modify_index=0 if present is None or is_same else planned.job_modify_index,
    )
    state = load_cluster_state(db, evaluation, planned=planned)
    if state.next_version is None:  # otherwise only the active run of an earlier version matters
        state = _with_planned(db, state, planned)
    plan = decide(db, state, evaluation, now=now, ids=ids)
    # A registration itself creates no evaluations at the deadlines of its run.
    later = [
        later_evaluation
        for later_evaluation in plan.evaluations
        if later_evaluation.triggered_by != Trigger.RUN_STEP
    ]
    created = [*later, *([plan.blocked] if plan.blocked else [])]
    return DryRunResult(
        index=present.job_modify_index if present else 0,
        diff=annotate(diff_jobs(present, planned), plan.annotations.desired_tg_updates),
        annotations=_annotations(db, plan, job.namespace),
        evaluations=[
            msgspec.structs.replace(evaluation, snapshot_index=0) for evaluation in created
        ],
        failed=dict(plan.failed),
        next_launch=next_launch(db, job, now),
        # The plan may be about the active run of an earlier version.
        opened=frozenset(_opened(plan) if state.next_version is None else ()),
    )


def _with_planned(db: ReadSnapshot, state: ClusterState, planned: Job) -> ClusterState:
    """Return the state after the registration of a version."""
    alone = _as_one_instance(planned)
    state = msgspec.structs.replace(
        state,
        job=alone,
        versions={**state.versions, planned.version: alone},
        slot="",
        openings=step_openings(db, alone, state.run, state.steps),
    )
    if state.run is None or state.run.version != planned.version:
        state = msgspec.structs.replace(state, grants=_free_queues(db, alone))
    return state


def _opened(plan: Plan) -> Iterator[str]:
    """Yield the steps that a plan opens."""
    for change in plan.flow.runs if plan.flow is not None else ():
        for step in change.steps:
            before = change.known.get(step.name)
            if step.state == StepState.OPEN and (before is None or before.state != StepState.OPEN):
                yield step.name


def _free_queues(db: ReadSnapshot, job: Job) -> dict[str, StepGrant]:
    """Return the slots of each step with queues, as if no other step used the queues."""
    grants = dict[str, StepGrant]()
    for group in job.task_groups or ():
        slots, slots_held = STEP_SLOTS.of(group.meta), list[int]()
        for name in STEP_QUEUES.of(group.meta):
            limit = concurrency.limit(db, (job.namespace, name))
            slots_held.append(limit // min(slots, limit))
        if slots_held:
            grants[group.name] = StepGrant(wanted=0, held=min(slots_held), busy=0, keeps=True)
    return grants


def static_ports(job: Job) -> list[tuple[str, int]]:
    """Return the static ports of a job with their labels."""
    return [
        (port.label, port.value)
        for group in job.task_groups or ()
        for network in resource_ask(group).networks
        for port in network.reserved_ports or ()
    ]


def external_port_listeners(
    db: ReadSnapshot, job: Job, listeners: Iterable[PortListener]
) -> list[str]:
    """Return the listeners on a job's static ports that belong to no allocation."""
    ports_held = [
        allocated_resources.allocated_on(db, node.id).ports for node in nodes.list_all(db)
    ]
    missing_ports = [
        port for port in static_ports(job) if not any(port[1] in ports for ports in ports_held)
    ]
    return describe_conflicts(missing_ports, listeners)


def _annotations(db: ReadSnapshot, plan: Plan, namespace: str) -> PlanAnnotations:
    """Return the changes of a plan per group, and the allocations that it would preempt."""
    evicted_ids = [
        eviction.holder.id for eviction in plan.evict if eviction.holder.namespace == namespace
    ]
    evicted = [allocations.find(db, alloc) for alloc in evicted_ids]
    stubs = [
        msgspec.Raw(
            encode(allocation_views.allocation_list_item(alloc, allocations.task_states(db, alloc)))
        )
        for alloc in evicted
        if alloc is not None
    ]
    return msgspec.structs.replace(plan.annotations, preempted_allocs=stubs or None)


def _as_stored(job: Job, present: Job | None, ids: Iterator[str]) -> Job:
    """Return the job as the store would hold it after a registration.

    `present` is the stored version; an unchanged job keeps its version number.
    """
    index = present.job_modify_index + 1 if present else 1
    planned = keep_scaling_ids(job, present, ids, index)
    if present is None:
        return msgspec.structs.replace(planned, job_modify_index=index, modify_index=index)
    changed = not same_definition(present, planned)
    return msgspec.structs.replace(
        planned,
        version=present.version + changed,
        create_index=present.create_index,
        modify_index=present.modify_index + changed,
        job_modify_index=present.job_modify_index + changed,
    )


def _as_one_instance(job: Job) -> Job:
    """Return a periodic or parameterized job in the form of one of its children."""
    if not job.launches_children:
        return job
    return msgspec.structs.replace(job, periodic=None, parameterized_job=None)
