"""A million children that wait for the scheduler, for capacity or for other children.

    python -m bench.waiting_children [--children 1000000]

A real dispatch creates the first child, and the other children are copies of its rows. Then a
daemon starts with this store. The benchmark measures the start time, the memory, and the time to
find the next evaluation. It also measures the decision about one job with a count of a million.
"""

import argparse
import shutil
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from itertools import count
from pathlib import Path

import trio

from bench.copied_rows import copy
from bench.reads import daemon, resident, rest
from daemon.evals.worker import next_evaluations
from daemon.jobs.evaluate import new_evaluation
from daemon.jobspec.steward_meta.job_keys import CHILDREN_AT_ONCE
from daemon.scheduler.schedule import schedule
from daemon.scheduler.state import ClusterState
from storage.queries import children, evaluations, job_status, jobs, nodes
from storage.read_pool import ReadSnapshot
from storage.records.evaluation import Trigger
from storage.records.job import Parameterized
from storage.store import FILE_NAME, Store, open_store
from storage.writer import Transaction
from tests.samples import NOW, group, job
from tests.unit.scheduler.world import held, node

ROUNDS = 3
FIRST = "many/dispatch-0"
ONE = {CHILDREN_AT_ONCE.name: "1"}  # the first child keeps the only slot
TABLES = {  # the tables with rows of a child, each with the columns that contain its ID
    "jobs": "id",
    "job_versions": "job_id",
    "job_version_states": "job_id",
    "evaluations": "job_id",
}
# For each reason to wait, the SQL that makes the copied children wait for it.
WAYS = {
    "for the scheduler": "UPDATE evaluations SET wait_until = 0",
    "for capacity": "UPDATE evaluations SET status = 'blocked', needs_cpu = 9000000, "
    "needs_memory = 9000000, needs_disk = 1, tried_index = 1, "
    "document = json_set(document, '$.Status', 'blocked')",
    "for other children": f"UPDATE jobs SET held = 1 WHERE parent_id <> '' AND id <> '{FIRST}'; DELETE FROM evaluations",
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--children", type=int, default=1_000_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="steward-waiting-", dir=Path.cwd()) as name:
        none = started(Path(name) / "none")
        print(f"no waiting children: ready after {none[0]:.2f} s, {none[1]} MiB", flush=True)
        for way, change in WAYS.items():
            directory = Path(name) / way.replace(" ", "-")
            trio.run(begin, directory)
            fill(directory, options.children, change)
            line = f"{way}: next evaluation found in {trio.run(handed_out, directory, way):.3f} ms"
            if way != "for the scheduler":  # a daemon would start these children
                seconds, size = started(directory)
                line += f"; ready {seconds - none[0]:+.2f} s, {size - none[1]:+} MiB"
            print(line, flush=True)
            shutil.rmtree(directory)
    one_job(options.children)


async def begin(directory: Path) -> None:
    """Create a parent, and its first child with an evaluation."""
    parent = job("many", type="batch", parameterized_job=Parameterized(), meta=ONE)
    child = job(FIRST, type="batch", parent_id="many", dispatched=True)

    def write(tx: Transaction) -> None:
        jobs.append_version(tx, parent)
        stored = jobs.append_version(tx, child)
        evaluations.put(tx, new_evaluation(stored, f"{0:036}", Trigger.JOB_REGISTER), NOW)
        for waiting_job in (parent, child):
            job_status.refresh_summary(tx, "default", waiting_job.id)

    directory.mkdir()  # noqa: ASYNC240  # no other task runs
    async with open_store(directory, cluster_id="bench", now=NOW) as store:
        await store.write(write)


def fill(directory: Path, number: int, change: str) -> None:
    """Copy the first child this many times, and make the copies wait by the SQL of `change`."""
    with closing(sqlite3.connect(directory / FILE_NAME, isolation_level=None)) as connection:
        connection.execute("PRAGMA foreign_keys = OFF")
        connection.execute("BEGIN")
        texts = {FIRST: "'many/dispatch-' || n", f"{0:036}": "printf('%036d', n)"}
        for table, name in TABLES.items():
            copy(connection, table, f"{name} = '{FIRST}'", range(1, number), texts)
        connection.execute(
            "UPDATE jobs SET children_pending = :number WHERE id = 'many'", {"number": number}
        )
        connection.execute("COMMIT")
        connection.executescript(change)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def started(directory: Path) -> tuple[float, int]:
    """Return the seconds of a start and the idle memory in MiB, each the least of all rounds."""
    seconds, sizes = [], []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        with daemon(directory) as (_, pid):
            seconds.append(time.perf_counter() - begun)
            rest(pid)
            sizes.append(resident(pid))
    return min(seconds), min(sizes)


async def handed_out(directory: Path, way: str) -> float:
    """Return the time in milliseconds to find the next evaluation or queued child.

    `way` is a key of `WAYS`: the reason for which the children wait.
    """
    async with open_store(directory, cluster_id="bench", now=NOW) as store:
        if way == "for capacity":  # first without free capacity, then with enough
            await store.write(lambda tx: nodes.put(tx, node(), "NodeRegistration"))
            await store.write(lambda tx: tx.touch(evaluations.ROOM))
            print(f"{way}: decided in {timed(partial(look, store)):.3f} ms that none fits")
            with closing(sqlite3.connect(directory / FILE_NAME)) as connection:
                connection.execute("UPDATE evaluations SET needs_cpu = 10, needs_memory = 10")
                connection.commit()
            took = timed(partial(look, store))
            with closing(sqlite3.connect(directory / FILE_NAME)) as connection:
                connection.execute(
                    "UPDATE evaluations SET needs_cpu = 9000000, needs_memory = 9000000"
                )
                connection.commit()
            return took
        if way == "for the scheduler":
            return timed(partial(look, store))
        return timed(partial(store.read, who_is_next))


def who_is_next(db: ReadSnapshot) -> None:
    """Find the oldest queued child of each parent, as the daemon does."""
    for parent in children.parents_with_queued(db):
        assert children.queued_children(db, *parent, 1)


def look(store: Store) -> None:
    store.read(partial(next_evaluations, now=NOW))


def timed(work: Callable[[], object]) -> float:
    taken = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        work()
        taken.append(1000 * (time.perf_counter() - begun))
    return statistics.median(taken)


def one_job(number: int) -> None:
    """Evaluate a job of `number` allocations on a node that has capacity for only few of them."""
    job_spec = job("many", group(count=number), type="batch")
    state = ClusterState(
        index=1, job=job_spec, nodes=(held(node(), ()),), versions={job_spec.version: job_spec}
    )
    evaluation = new_evaluation(job_spec, "e", Trigger.JOB_REGISTER)
    begun = time.perf_counter()
    plan = schedule(state, evaluation, now=NOW, ids=(f"{n:036}" for n in count()))
    took = time.perf_counter() - begun
    print(f"one job with {number}: {len(plan.place)} placed, decided in {1000 * took:.0f} ms")


if __name__ == "__main__":
    main()
