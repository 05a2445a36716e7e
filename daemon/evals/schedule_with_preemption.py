"""Run the scheduler, with preemption where the configuration permits it.

Preemption candidates are loaded only after a first plan has failed placements. Loading all
non-terminal allocations would slow down every decision, and few decisions need them.
"""

from collections.abc import Iterator

import msgspec

from daemon.evals.scheduler_config import configuration
from daemon.scheduler.schedule import schedule
from daemon.scheduler.state import ClusterState, Plan
from storage.queries import allocated_resources
from storage.read_pool import ReadSnapshot
from storage.records.allocation import Allocation
from storage.records.evaluation import Evaluation


def decide(
    db: ReadSnapshot, state: ClusterState, evaluation: Evaluation, *, now: int, ids: Iterator[str]
) -> Plan:
    """Return the plan for an evaluation; the arguments are those of `schedule`."""
    plan = _plan(db, state, evaluation, now=now, ids=ids)
    if configuration(db).memory_oversubscription_enabled:
        return plan
    return msgspec.structs.replace(plan, place=tuple(map(_without_memory_max, plan.place)))


def _without_memory_max(alloc: Allocation) -> Allocation:
    """Return an allocation whose tasks are limited to their reserved memory."""
    resources = alloc.placement.resources
    if not any(task.memory.memory_max_mb for task in resources.tasks.values()):
        return alloc
    tasks = {
        name: msgspec.structs.replace(
            task, memory=msgspec.structs.replace(task.memory, memory_max_mb=0)
        )
        for name, task in resources.tasks.items()
    }
    placement = msgspec.structs.replace(
        alloc.placement, resources=msgspec.structs.replace(resources, tasks=tasks)
    )
    return msgspec.structs.replace(alloc, placement=placement)


def _plan(
    db: ReadSnapshot, state: ClusterState, evaluation: Evaluation, *, now: int, ids: Iterator[str]
) -> Plan:
    plan = schedule(state, evaluation, now=now, ids=ids)
    lacks_room = any(metric.nodes_exhausted for metric in plan.failed.values())
    if state.job is None or not lacks_room:
        return plan
    if not configuration(db).preemption_config.may_preempt(state.job.type):
        return plan
    crowded = msgspec.structs.replace(state, holders=tuple(allocated_resources.holders(db)))
    return schedule(crowded, evaluation, now=now, ids=ids)
