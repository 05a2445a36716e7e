"""The scheduler's decision, with others making room where the configuration allows it.

Who could make room is looked at only when something found none: reading all that runs would cost
every decision what few of them need.
"""

from collections.abc import Iterator

import msgspec

from daemon.evals.configuration import configuration
from daemon.scheduler.schedule import schedule
from daemon.scheduler.state import ClusterState, Plan
from storage.queries import holdings
from storage.readers import Snapshot
from storage.records.evaluation import Evaluation


def decide(
    db: Snapshot, state: ClusterState, evaluation: Evaluation, *, now: int, ids: Iterator[str]
) -> Plan:
    """Return the plan for an evaluation; arguments as of `schedule`."""
    plan = schedule(state, evaluation, now=now, ids=ids)
    lacks_room = any(metric.nodes_exhausted for metric in plan.failed.values())
    if state.job is None or not lacks_room:
        return plan
    if not configuration(db).preemption_config.makes_room_for(state.job.type):
        return plan
    crowded = msgspec.structs.replace(state, holders=tuple(holdings.holders(db)))
    return schedule(crowded, evaluation, now=now, ids=ids)
