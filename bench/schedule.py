"""Decisions: how long the scheduler takes, which holds the event loop meanwhile.

python bench/schedule.py
"""

import statistics
import sys
import time
from itertools import count
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).parent.parent))

from daemon.scheduler.schedule import schedule
from daemon.scheduler.state import ClusterState, Plan
from storage.records.job import Job
from storage.records.task import Network, Port
from tests.samples import NOW, evaluation, group, job
from tests.unit.scheduler.world import held, node

RUNS = 20


def decide(the_job: Job, nodes: int, allocations: tuple = ()) -> tuple[Plan, float]:
    """Return a plan and the median of the milliseconds that it took."""
    places = [node(f"node-{number}") for number in range(nodes)]
    state = ClusterState(
        index=10,
        job=the_job,
        nodes=tuple(held(one, allocations) for one in places),
        allocations=allocations,
        versions={the_job.version: the_job},
    )
    taken = []
    for _ in range(RUNS):
        ids = (f"id-{number}" for number in count())
        begun = time.perf_counter()
        plan = schedule(state, evaluation(the_job), now=NOW, ids=ids)
        taken.append(1000 * (time.perf_counter() - begun))
    return plan, statistics.median(taken)


def wanting(number: int, **fields: object) -> Job:
    return job("bench", group("g", count=number, **fields), type="batch")


def main() -> None:
    ports = [Network(mode="host", dynamic_ports=[Port(label="a"), Port(label="b")])]
    for title, the_job, nodes in (
        ("1 new, 1 node", wanting(1), 1),
        ("1 new, 10 nodes", wanting(1), 10),
        ("40 new, 1 node", wanting(40), 1),
        ("1000 new, 1 node", wanting(1000), 1),
        ("1000 new with 2 ports, 1 node", wanting(1000, networks=ports), 1),
    ):
        plan, taken = decide(the_job, nodes)
        print(f"{title:<32} {taken:8.3f} ms  ({len(plan.place)} placed)")
    plan, _ = decide(wanting(1000), 1)
    kept = tuple(msgspec.structs.replace(one, create_index=1) for one in plan.place)
    _, taken = decide(wanting(1000), 1, kept)
    print(f"{f'{len(kept)} as they should be':<32} {taken:8.3f} ms")


main()
