"""Random operations of users and other systems, through the same calls that the API makes.

An operation returns its text for the trace. A rejection by the daemon is not a fault. An
acknowledged change must not be lost.
"""

import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from daemon.evals import deployment_actions, gc, node_actions
from daemon.jobs import periodic
from daemon.jobs.dispatch import DispatchRequestData, dispatch_job
from daemon.jobs.evaluate import EvalOptions, evaluate_job
from daemon.jobs.register import JobRegisterRequest, RegistrationContext, register_job
from daemon.jobs.scale import ScalingRequest, scale_job
from daemon.jobs.stop import stop_allocation, stop_job
from daemon.jobs.version_history import JobRevertRequest, revert_job
from daemon.jobspec.policies import JobPolicySet
from storage.errors import Malformed, StewardError
from storage.queries import allocations, deployments, jobs
from storage.records.allocation import Allocation
from storage.records.base import MINUTE
from storage.records.job import Job
from storage.records.node import DrainSpec
from tests.simulation.jobs import KINDS, SPECS, draw
from tests.simulation.world import RETENTION, World

AROUND = RegistrationContext(region="global", node_pools={"default"})
NAMESPACE = "default"

Operation = Callable[[], Awaitable[str]]


class Operations:
    """The operations and their frequencies."""

    def __init__(self, world: World, dice: random.Random) -> None:
        self._world, self._dice = world, dice
        self.every: dict[Operation, int] = {
            self.register: 12,
            self.scale: 5,
            self.dispatch: 6,
            self.force: 2,
            self.pause_clock: 2,
            self.stop: 4,
            self.revert: 2,
            self.evaluate: 2,
            self.drain: 2,
            self.open_node: 4,
            self.promote: 2,
            self.fail_deployment: 1,
            self.pause_deployment: 2,
            self.set_health: 3,
            self.stop_allocation: 3,
            self.restart_allocation: 3,
            self.signal: 1,
            self.collect: 1,
            self.kill_processes: 4,
            self.lose_claims: 2,
            self.poison: 2,
            self.cure: 2,
        }

    async def any(self) -> str:
        """Execute a random operation."""
        (chosen,) = self._dice.choices(list(self.every), list(self.every.values()))
        return f"{chosen.__name__}: {await chosen()}"

    async def settle(self) -> None:
        """Stop all operations and failures, so that only the daemon acts."""
        self._world.machine.bad_luck = 0
        self._world.machine.end_lost()
        await self.cure()
        await self.undrain()
        for job_id in SPECS:
            if self._job(job_id) is not None:
                with suppress(Malformed):  # the job was stopped
                    await periodic.pause(self._world.store, NAMESPACE, job_id, paused=True)

    # --- jobs ---

    async def register(self) -> str:
        job_id = self._dice.choice(list(KINDS))
        document = draw(self._dice, job_id)
        before = self._job(job_id)
        if before is not None and self._dice.random() < 0.4:
            document = self._changed(document, before)
        await register_job(
            self._world.store,
            JobRegisterRequest(job=document),
            namespace=None,
            surroundings=AROUND,
            **self._call(),
            scaling_ids=self._world.ids,
        )
        return str(document)

    def _changed(self, document: dict[str, Any], before: Job) -> dict[str, Any]:
        """Return a document with the same counts and other tasks."""
        counts = {group.name: group.count for group in before.task_groups or ()}
        groups = [
            {**group, "Count": counts.get(group["Name"], group["Count"])}
            for group in document["TaskGroups"]
        ]
        return {**document, "TaskGroups": groups}

    async def scale(self) -> str:
        job_id = self._dice.choice(("web", "shop", "mail", "sums"))
        count = self._dice.randrange(6)
        request = ScalingRequest(target={"Group": "g0"}, count=count, message="more")
        await scale_job(
            self._world.store, NAMESPACE, job_id, request, policies=JobPolicySet(()), **self._call()
        )
        return f"{job_id} to {count}"

    async def dispatch(self) -> str:
        job_id = self._dice.choice(("letters", "letters", "reports"))
        done = await dispatch_job(
            self._world.store,
            NAMESPACE,
            job_id,
            DispatchRequestData(payload=b"", meta={}),
            now=self._world.clock.now(),
            ids=self._world.ids,
            suffix=f"{self._dice.getrandbits(32):08x}",
        )
        return done.job_id

    async def force(self) -> str:
        job_id = self._clocked()
        await periodic.force(self._world.store, NAMESPACE, job_id, **self._call())
        return job_id

    async def pause_clock(self) -> str:
        job_id, paused = self._clocked(), self._dice.random() < 0.5
        await periodic.pause(self._world.store, NAMESPACE, job_id, paused=paused)
        return f"{job_id} {paused}"

    async def stop(self) -> str:
        job_id = self._dice.choice(self._known() or ["nothing"])
        purge, hurry = self._dice.random() < 0.3, self._dice.random() < 0.3
        await stop_job(
            self._world.store,
            NAMESPACE,
            job_id,
            purge=purge,
            eval_priority=0,
            no_shutdown_delay=hurry,
            **self._call(),
        )
        return f"{job_id}{' purged' if purge else ''}"

    async def revert(self) -> str:
        job = self._job(self._dice.choice(list(KINDS)))
        number = self._dice.randrange(job.version + 1) if job else 0
        job_id = job.id if job else "nothing"
        request = JobRevertRequest(job_id=job_id, job_version=number)
        await revert_job(self._world.store, NAMESPACE, request, surroundings=AROUND, **self._call())
        return f"{job_id} to version {number}"

    async def evaluate(self) -> str:
        job_id, force = self._dice.choice(self._known() or ["nothing"]), self._dice.random() < 0.5
        options = EvalOptions(force_reschedule=force)
        await evaluate_job(self._world.store, NAMESPACE, job_id, options, **self._call())
        return f"{job_id}{' by force' if force else ''}"

    # --- nodes ---

    async def drain(self) -> str:
        spec = DrainSpec(deadline=5 * MINUTE, ignore_system_jobs=self._dice.random() < 0.5)
        await node_actions.drain_node(
            self._world.store,
            self._world.runner.node_id,
            spec,
            self._world.ids,
            mark_eligible=False,
            meta=None,
            accessor="",
            now=self._world.clock.now(),
        )
        return str(spec)

    async def open_node(self) -> str:
        """Make the node eligible, or sometimes ineligible."""
        now, node_id = self._world.clock.now(), self._world.runner.node_id
        if self._dice.random() < 0.2:
            wanted = "ineligible"
            await node_actions.set_eligibility(
                self._world.store, node_id, wanted, self._world.ids, now=now
            )
            return wanted
        await self.undrain()
        return "eligible"

    async def undrain(self) -> None:
        await node_actions.drain_node(
            self._world.store,
            self._world.runner.node_id,
            None,
            self._world.ids,
            mark_eligible=True,
            meta=None,
            accessor="",
            now=self._world.clock.now(),
        )

    # --- deployments ---

    async def promote(self) -> str:
        chosen = self._deployment()
        await deployment_actions.promote(self._world.store, chosen, None, **self._call())
        return chosen

    async def fail_deployment(self) -> str:
        chosen = self._deployment()
        await deployment_actions.fail(self._world.store, chosen, **self._call())
        return chosen

    async def pause_deployment(self) -> str:
        chosen, paused = self._deployment(), self._dice.random() < 0.4
        await deployment_actions.pause(self._world.store, chosen, paused=paused, **self._call())
        return f"{chosen} {paused}"

    async def set_health(self) -> str:
        chosen = self._deployment()
        placed = self._world.store.read(lambda db: allocations.of_deployment(db, chosen))
        health = {
            alloc.id: self._dice.random() < 0.8 for alloc in placed if self._dice.random() < 0.8
        }
        await deployment_actions.set_health(self._world.store, chosen, health, **self._call())
        return f"{chosen} {health}"

    # --- allocations ---

    async def stop_allocation(self) -> str:
        chosen = self._allocation()
        await stop_allocation(
            self._world.store, chosen, no_shutdown_delay=False, reschedule=False, **self._call()
        )
        return chosen

    async def restart_allocation(self) -> str:
        chosen, every = self._allocation(), self._dice.random() < 0.3
        await self._world.runner.restart(chosen, all_tasks=every)
        return f"{chosen}{' every task' if every else ''}"

    async def signal(self) -> str:
        chosen, name = self._allocation(), self._dice.choice(("SIGHUP", "SIGKILL"))
        await self._world.runner.signal(chosen, None, name)
        return f"{chosen} {name}"

    async def kill_processes(self) -> str:
        return str(self._world.machine.kill_some(self._dice))

    async def lose_claims(self) -> str:
        """Remove the claims of some processes, by which the next daemon would find them."""
        return str(self._world.machine.lose_some(self._dice))

    # --- daemon faults ---

    async def poison(self) -> str:
        """Make every evaluation of a job fail from now on."""
        job_id = self._dice.choice(self._known() or ["nothing"])
        self._world.poisoned.add(job_id)
        return job_id

    async def cure(self) -> str:
        """Stop the evaluation failures of all jobs, as an upgrade does, and re-evaluate them."""
        cured = sorted(self._world.poisoned)
        self._world.poisoned.clear()
        for fault in self._world.fences.faults():
            self._world.fences.release(fault.kind, fault.key)
        await self._world.fences.save(self._world.store)
        for job_id in cured:
            with suppress(StewardError):  # the job is purged, or launches children
                await evaluate_job(
                    self._world.store, NAMESPACE, job_id, EvalOptions(), **self._call()
                )
        return ", ".join(cured)

    async def collect(self) -> str:
        self._world.runner.collect_all()
        await gc.force_collection(self._world.store, self._world.clock.now(), RETENTION)
        return "all that has ended"

    # --- arguments of calls ---

    def _call(self) -> dict[str, Any]:
        return {"now": self._world.clock.now(), "eval_id": next(self._world.ids)}

    def _job(self, job_id: str) -> Job | None:
        return self._world.store.read(lambda db: jobs.current(db, NAMESPACE, job_id))

    def _clocked(self) -> str:
        return self._dice.choice(("clock", "nightly"))

    def _known(self) -> list[str]:
        rows = self._world.store.read(lambda db: db.all("SELECT id FROM jobs ORDER BY id"))
        return [row["id"] for row in rows]

    def _deployment(self) -> str:
        found = self._world.store.read(deployments.active)
        return self._dice.choice(sorted(deployment.id for deployment in found) or ["nothing"])

    def _allocation(self) -> str:
        node_id = self._world.runner.node_id
        allocs: list[Allocation] = self._world.store.read(
            lambda db: allocations.to_run(db, node_id)
        )
        return self._dice.choice([alloc.id for alloc in allocs] or ["nothing"])
