"""A store with a long history, copied by SQL from one object of each kind."""

import fcntl
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
import trio

from bench import other_objects
from bench.copied_rows import copy
from storage.queries import allocations, deployments, evaluations, job_status, jobs
from storage.records.allocation import ClientStatus
from storage.records.deployment import Deployment
from storage.records.evaluation import EvalStatus
from storage.records.job import Job, Parameterized
from storage.store import Store, open_store
from storage.writer import Transaction
from tests.parts.evals.cluster import Cluster
from tests.samples import NOW, evaluation, job
from tests.unit.scheduler.world import node

PARENT, CHILD = "old", "old/dispatch-1-00000000"
WIDE = "wide"  # has as many allocations, evaluations and deployments as all children together
NODE = "5f1c2a34-0000-4000-8000-000000000000"
ALLOC, EVAL, DEPLOYMENT = (f"00000001-0000-4000-8000-00000000000{kind}" for kind in "aed")
_MIXED = "n * 2654435761 % 4294967296"  # spreads the IDs of copies evenly, like real IDs


def copy_filled(base: Path, to: Path, number: int) -> None:
    """Copy a store with `number` objects of each kind into the existing directory `to`.

    The first process that needs the store fills it below `base`; all workers of a test run share
    it.
    """
    filled = base / f"filled-{number}"
    with (base / f"{filled.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not filled.exists():
            begun = filled.with_suffix(".begun")
            begun.mkdir(exist_ok=True)
            trio.run(_fill_all, begun, number)
            begun.rename(filled)
    shutil.copytree(filled, to, dirs_exist_ok=True)


def base_of(factory: pytest.TempPathFactory) -> Path:
    """Return the temporary directory of all workers of a test run."""
    own = factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


async def _fill_all(directory: Path, number: int) -> None:
    async with open_store(directory, cluster_id="c", now=NOW) as store:
        await fill(store, number, number)
        await store.write(lambda tx: other_objects.add(tx, number, ALLOC, NOW))


async def fill(store: Store, number: int, events: int) -> None:
    """Fill a store with these numbers of ended children and events, on one node."""
    cluster = Cluster(store)
    await cluster.join(msgspec.structs.replace(node(), id=NODE))
    parent = job(PARENT, type="batch", parameterized_job=Parameterized())
    await store.write(lambda tx: _add(tx, parent))
    await cluster.register(job("web", type="batch"))
    await cluster.work()
    (placed,) = cluster.allocations()
    ended = msgspec.structs.replace(
        placed,
        id=ALLOC,
        job_id=CHILD,
        eval_id=EVAL,
        deployment_id=DEPLOYMENT,
        client_status=ClientStatus.COMPLETE,
    )

    def work(tx: Transaction) -> None:
        child = job(CHILD, type="batch", parent_id=PARENT)
        _add(tx, child)
        made = msgspec.structs.replace(
            evaluation(child, EVAL), status=EvalStatus.COMPLETE, deployment_id=DEPLOYMENT
        )
        evaluations.put(tx, made, NOW)
        allocations.add(tx, ended, NOW)
        deployments.put(tx, Deployment(**_DEPLOYMENT, id=DEPLOYMENT, job_id=CHILD), NOW)
        job_status.refresh_summary(tx, child.namespace, CHILD)
        _add(tx, job(WIDE))

    await store.write(work)
    _copy(store.path, number, events)


def add_ended(tx: Transaction, job_id: str) -> None:
    """Store a batch job without a parent, with one allocation that has ended."""
    _add(tx, ended := job(job_id, type="batch"))
    (placed,) = [one for one in [allocations.find(tx, ALLOC)] if one is not None]
    copied = msgspec.structs.replace(placed, id=f"{job_id}-{ALLOC[9:]}", job_id=ended.id)
    allocations.add(tx, copied, NOW)
    job_status.refresh_summary(tx, ended.namespace, ended.id)


def exceed_time(tx: Transaction) -> None:
    """Let the allocations of all batch jobs exceed their time limit."""
    text = "json_set(client, '$.Description', 'allocation exceeded max_run_duration')"
    tx.execute(f"UPDATE allocations SET client = {text} WHERE job_type = 'batch'", {})  # noqa: S608  # a constant
    # The state of this job takes all its allocations into account.
    tx.execute("UPDATE jobs SET stop = 1 WHERE id = :id", {"id": WIDE})


def _add(tx: Transaction, job: Job) -> None:
    jobs.append_version(tx, job)
    job_status.refresh_summary(tx, job.namespace, job.id)


_DEPLOYMENT = {
    "namespace": "default",
    "job_version": 0,
    "job_modify_index": 1,
    "job_spec_modify_index": 1,
    "job_create_index": 1,
    "task_groups": {},
    "status": "successful",
    "status_description": "",
    "eval_priority": 50,
    "create_index": 0,
    "modify_index": 0,
    "create_time": NOW,
    "modify_time": NOW,
}


def _copy(path: Path, number: int, events: int) -> None:
    """Copy the only child job `number` times, with all its rows. Nothing else may write meanwhile."""
    texts = {
        CHILD: f"printf('{PARENT}/dispatch-%d-%08x', n, {_MIXED})",
        **{
            item: f"printf('%08x-0000-4000-8000-00000000000{item[-1]}', {_MIXED})"
            for item in (ALLOC, EVAL, DEPLOYMENT)
        },
    }
    kept = range(2, number + 1)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.row_factory = sqlite3.Row
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA foreign_keys = OFF")
        connection.execute("BEGIN IMMEDIATE")
        for table, column in (
            ("jobs", "id"),
            ("job_versions", "job_id"),
            ("job_version_states", "job_id"),
            ("evaluations", "job_id"),
            ("allocations", "job_id"),
            ("deployments", "job_id"),
        ):
            copy(connection, table, f"{column} = '{CHILD}'", kept, texts, step=1)
        of_wide = {CHILD: f"'{WIDE}'"}
        for item in (ALLOC, EVAL, DEPLOYMENT):
            of_wide[item] = f"printf('%08x-0000-4000-8000-00000000001{item[-1]}', {_MIXED})"
        for table in ("evaluations", "allocations", "deployments"):
            copy(connection, table, f"job_id = '{CHILD}'", kept, of_wide, step=1)
        made = f"key = '{ALLOC}'"
        copy(connection, "events", made, range(2, max(events, 2)), texts, step=1, order="number")
        dead = {"number": number, "id": PARENT}
        connection.execute("UPDATE jobs SET children_dead = :number WHERE id = :id", dead)
        highest = {
            "index": connection.execute("SELECT max(modify_index) FROM allocations").fetchone()[0]
        }
        connection.execute("UPDATE store SET last_index = :index + 1000000", highest)
        connection.execute("UPDATE table_indexes SET last_index = :index", highest)
        connection.execute("COMMIT")
