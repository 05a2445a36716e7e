"""The decision: what shall change, so that a job becomes what it is wanted to be.

`schedule` is a function of its arguments alone: it reads no clock, draws no numbers and knows
nobody. The same arguments give the same plan.
"""

from collections import defaultdict
from collections.abc import Iterator

from daemon.scheduler.draft import Draft
from daemon.scheduler.nodes.placement import Placer
from daemon.scheduler.rollout import Rollout
from daemon.scheduler.service import plan_service
from daemon.scheduler.sorting import LOST, NOT_NEEDED, by_number, is_lost
from daemon.scheduler.state import ClusterState, Plan
from daemon.scheduler.system import plan_system
from storage.records.allocation import Allocation
from storage.records.evaluation import DesiredUpdates, Evaluation
from storage.records.job import JobType


def schedule(state: ClusterState, evaluation: Evaluation, *, now: int, ids: Iterator[str]) -> Plan:
    """Return the plan for an evaluation.

    `now` is the time in nanoseconds. `ids` gives ids, each once, for what the plan makes:
    allocations, a deployment, evaluations.
    """
    job = state.job
    if job is None or job.stop:
        return _stop(state, evaluation, now=now, ids=ids)
    if job.launches_children:
        return Plan(job_modify_index=job.job_modify_index)
    if job.type in (JobType.SYSTEM, JobType.SYSBATCH):
        return plan_system(state, job, evaluation, now=now, ids=ids)
    return plan_service(state, job, evaluation, now=now, ids=ids)


def _stop(state: ClusterState, evaluation: Evaluation, *, now: int, ids: Iterator[str]) -> Plan:
    """Return the plan that ends everything of a job that was stopped or removed."""
    job = state.job
    draft = Draft(state, evaluation, now=now, ids=ids)
    nodes = {one.node.id: one.node for one in state.nodes}
    running: defaultdict[str, list[Allocation]] = defaultdict(list)
    for group in (job.task_groups if job else None) or ():
        running[group.name] = []
        draft.queued[group.name] = 0
    for allocation in state.allocations:
        running[allocation.task_group] += [] if allocation.terminal else [allocation]
    for name, allocations in running.items():
        draft.counts[name] = DesiredUpdates(stop=len(allocations))
        for allocation in by_number(allocations):
            lost = is_lost(allocation, nodes)
            draft.stop(allocation, LOST if lost else NOT_NEEDED, lost=lost)
    draft.end_lost(state.allocations, nodes)
    rollout = Rollout(job, state.deployment, evaluation, now=now, ids=ids)
    placer = Placer(state, evaluation, now=now, ids=ids)
    return draft.plan(rollout, placer, wait=False)
