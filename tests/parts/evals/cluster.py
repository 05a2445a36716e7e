"""A store with one node, where evaluations are processed step by step and tests play the runner."""

from collections.abc import Iterator
from itertools import count
from typing import Any

import msgspec

from daemon.evals.worker import next_evaluations, process
from daemon.fences import Fences
from daemon.jobs.evaluate import new_evaluation
from storage.queries import allocations, deployments, evaluations, job_status, jobs, nodes
from storage.records.allocation import (
    Allocation,
    ClientStatus,
    DeploymentHealth,
    DesiredStatus,
    TaskState,
)
from storage.records.base import SECOND
from storage.records.deployment import Deployment
from storage.records.evaluation import EvalStatus, Evaluation, Trigger
from storage.records.job import Job
from storage.records.node import Node
from storage.records.times import rfc3339
from storage.store import Store
from storage.writer import Transaction
from tests.samples import NOW
from tests.unit.scheduler.world import node


class Ticking:
    """A clock that only the test advances."""

    def __init__(self) -> None:
        self.time = NOW

    def now(self) -> int:
        return self.time


def ids() -> Iterator[str]:
    return (f"{number:08x}-0000-4000-8000-000000000000" for number in count(1))


class Cluster:
    """A store with the operations that the tests of `daemon/evals` use."""

    def __init__(self, store: Store) -> None:
        self.store, self.clock, self.ids = store, Ticking(), ids()
        self.fences = Fences(self.clock)
        self.listening: frozenset[int] = frozenset()  # ports in use
        self.max_count = 0  # elements of a workflow

    async def join(self, *members: Node) -> None:
        def work(tx: Transaction) -> None:
            for member in members or (node(),):
                nodes.put(tx, member, "NodeRegistration")
            tx.touch("nodes", "nodes/x")

        await self.store.write(work)

    async def register(self, job: Job, **fields: Any) -> Evaluation:
        """Store a job as its next version, with an evaluation."""
        eval_id = next(self.ids)

        def work(tx: Transaction) -> Evaluation:
            stored = jobs.append_version(tx, job)
            evaluation = new_evaluation(
                stored, eval_id, Trigger.JOB_REGISTER, job_modify_index=tx.index
            )
            put = evaluations.put(
                tx, msgspec.structs.replace(evaluation, **fields), self.clock.now()
            )
            job_status.refresh_summary(tx, stored.namespace, stored.id)
            return put

        return await self.store.write(work)

    async def work(self) -> list[str]:
        """Process all ready evaluations; return their IDs."""
        done = []
        while (found := self.next()) is not None:
            done.append(found.id)
            await process(
                self.store,
                [found],
                self.clock,
                self.ids,
                self.fences,
                lambda: self.listening,
                self.max_count,
            )
        return done

    def next(self) -> Evaluation | None:
        held = self.fences.paused_keys("evaluation")
        found = self.store.read(lambda db: next_evaluations(db, now=self.clock.now(), paused=held))
        return found[0] if found else None

    # ---- actions of the runner -------------------------------------------------------------------

    async def report(
        self, alloc: Allocation, status: ClientStatus, *, healthy: bool | None = None
    ) -> None:
        known = alloc.health or DeploymentHealth()
        health = alloc.health
        if healthy is not None:
            health = msgspec.structs.replace(
                known, healthy=healthy, timestamp=rfc3339(self.clock.now())
            )
        ended = status not in (ClientStatus.PENDING, ClientStatus.RUNNING)
        state = TaskState(
            state="dead" if ended else "running",
            failed=status == ClientStatus.FAILED,
            finished_at=rfc3339(self.clock.now()) if ended else None,
        )
        client = msgspec.structs.replace(alloc.client, task_states={"main": state})
        changed = msgspec.structs.replace(alloc, client_status=status, client=client, health=health)

        def work(tx: Transaction) -> None:
            allocations.set_client(tx, changed, self.clock.now())
            deployments.count_late_health(tx, alloc, changed, self.clock.now())
            job_status.refresh_summary(tx, alloc.namespace, alloc.job_id)

        await self.store.write(work)

    async def run_all(self, job_id: str = "web", *, healthy: bool | None = None) -> None:
        """Let the desired allocations of a job run, and end all others."""
        for alloc in self.allocations(job_id):
            if alloc.client_terminal:
                continue
            if alloc.desired_status == DesiredStatus.RUN:
                await self.report(alloc, ClientStatus.RUNNING, healthy=healthy)
            else:
                await self.report(alloc, ClientStatus.COMPLETE)

    def wait(self, seconds: float) -> None:
        self.clock.time += int(seconds * SECOND)

    # ---- stored objects --------------------------------------------------------------------------

    def job(self, job_id: str = "web") -> Job:
        found = self.store.read(lambda db: jobs.current(db, "default", job_id))
        assert found is not None
        return found

    def allocations(self, job_id: str = "web") -> list[Allocation]:
        """Return a job's allocations, oldest first."""
        return self.store.read(lambda db: allocations.of_job(db, "default", job_id))[::-1]

    def wanted(self, job_id: str = "web") -> list[Allocation]:
        return [
            alloc for alloc in self.allocations(job_id) if alloc.desired_status == DesiredStatus.RUN
        ]

    def evaluation(self, eval_id: str) -> Evaluation:
        found = self.store.read(lambda db: evaluations.find(db, eval_id))
        assert found is not None
        return found

    def evaluations(self, status: EvalStatus, job_id: str = "web") -> list[Evaluation]:
        found = self.store.read(lambda db: evaluations.unfinished(db, "default", job_id))
        return [evaluation for evaluation in found if evaluation.status == status]

    def deployment(self, job_id: str = "web") -> Deployment:
        found = self.store.read(lambda db: deployments.latest(db, "default", job_id))
        assert found is not None
        return found
