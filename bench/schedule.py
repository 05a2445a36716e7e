"""Duration of scheduling decisions. A decision blocks the event loop.

python -m bench.schedule
"""

import statistics
import tempfile
import time
from functools import partial
from itertools import count
from pathlib import Path

import msgspec
import trio

from daemon.evals.cluster_state import load_cluster_state
from daemon.jobs.evaluate import new_evaluation
from daemon.scheduler.schedule import schedule
from daemon.scheduler.state import ClusterState, Plan
from storage.queries import allocations, jobs, nodes
from storage.read_pool import ReadSnapshot
from storage.records.evaluation import Evaluation, Trigger
from storage.records.job import Job
from storage.records.node import NodeCPU, NodeDisk, NodeMemory
from storage.records.task import Network, Port
from storage.store import open_store
from storage.writer import Transaction
from tests.samples import NOW, evaluation, group, job
from tests.unit.scheduler.world import held, node, resources

RUNS = 20
OF_A_JOB = 100  # running allocations of each job
PLENTY = 100_000_000  # MHz or MB: enough for all allocations


def decide(the_job: Job, nodes: int, allocations: tuple = ()) -> tuple[Plan, float]:
    """Return a plan, and the median duration of its decision in milliseconds."""
    places = [node(f"node-{number}") for number in range(nodes)]
    state = ClusterState(
        index=10,
        job=the_job,
        nodes=tuple(held(place, allocations) for place in places),
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


def among(running: int) -> float:
    """Return the median time in ms of a decision about a new job.

    The store contains `running` allocations of other jobs, all of them running. The time includes
    the reads from the database.
    """
    with tempfile.TemporaryDirectory() as name:
        return trio.run(_among, Path(name), running)


async def _among(directory: Path, running: int) -> float:
    async with open_store(directory, cluster_id="bench", now=NOW) as store:
        plenty = resources(
            cpu=NodeCPU(cpu_shares=PLENTY, total_cpu_cores=1, reservable_cpu_cores=[0]),
            memory=NodeMemory(memory_mb=PLENTY),
            disk=NodeDisk(disk_mb=PLENTY),
        )
        place = node(node_resources=plenty)
        await store.write(lambda tx: nodes.put(tx, place, "NodeRegistration"))
        ids = (f"{number:036}" for number in count())
        for number in range(running // OF_A_JOB):
            other = job(f"other-{number}", group("g", count=OF_A_JOB))
            await store.write(partial(_run, the_job=other, ids=ids))
        new_job = job("new", group("g", count=1), type="batch")
        new_eval = await store.write(partial(_ask, the_job=new_job, ids=ids))
        taken = []
        for _ in range(RUNS):
            begun = time.perf_counter()
            plan = store.read(partial(_decide, the_eval=new_eval, ids=ids))
            taken.append(1000 * (time.perf_counter() - begun))
            assert len(plan.place) == 1
        return statistics.median(taken)


def _ask(tx: Transaction, the_job: Job, ids: "count[str]") -> Evaluation:
    return new_evaluation(jobs.append_version(tx, the_job), next(ids), Trigger.JOB_REGISTER)


def _run(tx: Transaction, the_job: Job, ids: "count[str]") -> None:
    for placed in _decide(tx, _ask(tx, the_job, ids), ids).place:
        allocations.add(tx, placed, NOW)
        allocations.set_client(tx, msgspec.structs.replace(placed, client_status="running"), NOW)


def _decide(db: ReadSnapshot, the_eval: Evaluation, ids: "count[str]") -> Plan:
    return schedule(load_cluster_state(db, the_eval), the_eval, now=NOW, ids=ids)


def main() -> None:
    ports = [Network(mode="host", dynamic_ports=[Port(label="a"), Port(label="b")])]
    for title, the_job, places in (
        ("1 new, 1 node", wanting(1), 1),
        ("1 new, 10 nodes", wanting(1), 10),
        ("40 new, 1 node", wanting(40), 1),
        ("1000 new, 1 node", wanting(1000), 1),
        ("1000 new with 2 ports, 1 node", wanting(1000, networks=ports), 1),
    ):
        plan, taken = decide(the_job, places)
        print(f"{title:<32} {taken:8.3f} ms  ({len(plan.place)} placed)")
    plan, _ = decide(wanting(1000), 1)
    kept = tuple(msgspec.structs.replace(alloc, create_index=1) for alloc in plan.place)
    _, taken = decide(wanting(1000), 1, kept)
    print(f"{f'{len(kept)} running, nothing to do':<32} {taken:8.3f} ms")
    few, many = among(100), among(10_000)
    print(
        f"{'1 new; 100 and 10,000 running':<32} {few:8.3f} ms, {many:.3f} ms: {many / few:.1f} times"
    )


if __name__ == "__main__":
    main()
