"""The entry point of the scheduler: compute the plan for one evaluation.

`schedule` is a pure function. It reads no clock, draws no random numbers and does no I/O, so equal
arguments give equal plans.
"""

from collections import defaultdict
from collections.abc import Iterator

from daemon.flow.workflow_keys import is_workflow
from daemon.matching import regexp
from daemon.scheduler.alloc_sets import LOST, NOT_NEEDED, by_number, is_on_lost_node
from daemon.scheduler.nodes.placement import Placer
from daemon.scheduler.plan_builder import PlanBuilder
from daemon.scheduler.rollout import Rollout
from daemon.scheduler.service_scheduler import plan_service
from daemon.scheduler.state import ClusterState, Plan
from storage.records.allocation import Allocation
from storage.records.evaluation import DesiredUpdates, Evaluation
from storage.records.flow import STOPPED_REASON
from storage.records.job import Job, JobType


def schedule(state: ClusterState, evaluation: Evaluation, *, now: int, ids: Iterator[str]) -> Plan:
    """Return the plan for an evaluation.

    `now` is in nanoseconds. `ids` returns unique IDs for new allocations, deployments and
    evaluations. Raises `PatternsTooCostly`.
    """
    with regexp.limited():
        return _schedule(state, evaluation, now=now, ids=ids)


def _schedule(state: ClusterState, evaluation: Evaluation, *, now: int, ids: Iterator[str]) -> Plan:
    job = state.job
    if job is None or job.stop:
        plan = _stop(state, evaluation, now=now, ids=ids)
        return _end_run(state, plan, STOPPED_REASON, now)
    if job.launches_children:
        return Plan(job_modify_index=job.job_modify_index)
    if state.freeze is not None and not is_workflow(job) and _is_held(state, job):
        return Plan(job_modify_index=job.job_modify_index, frozen=state.freeze.id)
    if job.type in (JobType.SYSTEM, JobType.SYSBATCH):
        from daemon.scheduler.system_scheduler import plan_system  # imported late: few jobs

        return plan_system(state, job, evaluation, now=now, ids=ids)
    if is_workflow(job):
        from daemon.scheduler.workflow_scheduler import plan_workflow  # imported late: few jobs

        return plan_workflow(state, job, evaluation, now=now, ids=ids)
    plan = plan_service(state, job, evaluation, now=now, ids=ids)
    return _end_run(state, plan, f"version {job.version} is not a workflow", now)


def _is_held(state: ClusterState, job: Job) -> bool:
    """Return whether an active freeze holds the job.

    Freezes hold only batch and sysbatch jobs, and only until the job's version has begun.
    """
    if job.type not in (JobType.BATCH, JobType.SYSBATCH) or any(
        settled.count for settled in state.settled.values()
    ):
        return False
    return all(alloc.job_version != job.version for alloc in state.allocations)


def _end_run(state: ClusterState, plan: Plan, reason: str, now: int) -> Plan:
    """Return a plan that also cancels the job's run, if an older version was a workflow."""
    if state.run is None:
        return plan
    from daemon.scheduler.workflow_scheduler import end_run  # imported late: few jobs have runs

    return end_run(state, plan, reason, now)


def _stop(state: ClusterState, evaluation: Evaluation, *, now: int, ids: Iterator[str]) -> Plan:
    """Return the plan that stops all allocations of a stopped or purged job."""
    job = state.job
    draft = PlanBuilder(state, evaluation, now=now, ids=ids)
    nodes = {node.node.id: node.node for node in state.nodes}
    running: defaultdict[str, list[Allocation]] = defaultdict(list)
    for group in (job.task_groups if job else None) or ():
        running[group.name] = []
        draft.queued[group.name] = 0
    for allocation in state.allocations:
        running[allocation.task_group] += [] if allocation.terminal else [allocation]
    for name, allocations in running.items():
        draft.counts[name] = DesiredUpdates(stop=len(allocations))
        for allocation in by_number(allocations):
            lost = is_on_lost_node(allocation, nodes)
            draft.stop(allocation, LOST if lost else NOT_NEEDED, lost=lost)
    draft.end_lost(state.allocations, nodes)
    rollout = Rollout(job, state.deployment, evaluation, now=now, ids=ids)
    placer = Placer(state, evaluation, now=now, ids=ids)
    return draft.plan(rollout, placer, wait=False)
