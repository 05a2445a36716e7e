"""A small cluster for tests: jobs are registered, plans applied, tasks run and end, time passes.

`World` applies a plan like the applier, and plays the runner and the watcher of deployments as far
as a test needs them. It makes no decisions.
"""

from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any

import msgspec

from daemon.scheduler.schedule import schedule
from daemon.scheduler.state import ClusterState, NodeState, Plan
from storage.records.allocation import (
    Allocation,
    ClientStatus,
    DeploymentHealth,
    DesiredTransition,
    TaskState,
)
from storage.records.base import SECOND
from storage.records.deployment import ACTIVE, Deployment, DeploymentStatus
from storage.records.evaluation import DesiredUpdates, EvalStatus, Evaluation, Trigger
from storage.records.group import Update
from storage.records.job import Job
from storage.records.node import (
    DriverInfo,
    EngineHost,
    Node,
    NodeCPU,
    NodeDisk,
    NodeMemory,
    NodeNetwork,
    NodeResources,
    NodeStatus,
)
from storage.records.times import rfc3339
from tests.samples import NOW, evaluation

ROLLING = Update(
    max_parallel=1, health_check="task_states", progress_deadline=20 * SECOND, stagger=30 * SECOND
)


def resources(**fields: Any) -> NodeResources:
    given = {
        "cpu": NodeCPU(cpu_shares=5192, total_cpu_cores=2, reservable_cpu_cores=[0, 1]),
        "memory": NodeMemory(memory_mb=24105),
        "disk": NodeDisk(disk_mb=258019),
        "networks": [
            NodeNetwork(mode="host", device="lo", cidr="127.0.0.1/32", ip="127.0.0.1", mbits=1000)
        ],
    }
    return NodeResources(**{**given, **fields})


def node(name: str = "node-1", **fields: Any) -> Node:
    given = {
        "datacenter": "dc1",
        "node_class": "class-1",
        "attributes": {"kernel.name": "linux", "cpu.arch": "amd64", "os.version": "12.4"},
        "meta": {"zone": "a"},
        "drivers": {"raw_exec": DriverInfo()},
        "node_resources": resources(),
        "computed_class": "v1:1",
        "status": NodeStatus.READY,
    }
    return Node(id=f"id-of-{name}", name=name, **{**given, **fields})


def small(name: str = "node-1", *, cpu: int = 100, memory: int = 100, **fields: Any) -> Node:
    """Return a node with capacity for five default tasks."""
    room = resources(
        cpu=NodeCPU(cpu_shares=cpu, total_cpu_cores=1, reservable_cpu_cores=[0]),
        memory=NodeMemory(memory_mb=memory),
    )
    return node(name, node_resources=room, **fields)


def host(name: str, cores: int, memory: int, state: str = "up") -> EngineHost:
    about = {"up": "takes jobs", "down": "is down: Not responding"}[state]
    return EngineHost(name=name, state=state, description=about, cores=cores, memory_mb=memory)


def cluster(*hosts: EngineHost, **fields: Any) -> Node:
    """Return a cluster pool with these hosts, whose cores have 1000 MHz each."""
    known = hosts or (host("a", 8, 1000), host("b", 2, 4000, "down"))
    return node(
        "hpc",
        **{
            "node_pool": "hpc",
            "hosts": list(known),
            "attributes": {
                "engine.name": "slurm",
                "engine.mhz_per_core": "1000",
                "engine.partition": "main",
                "engine.reachable": "true",
                "driver.raw_exec": "1",
            },
            "node_resources": resources(
                cpu=NodeCPU(cpu_shares=1000, total_cpu_cores=1, reservable_cpu_cores=[]),
                memory=NodeMemory(memory_mb=10),
                disk=NodeDisk(disk_mb=0),
                networks=[],
            ),
            **fields,
        },
    )


def ids() -> Iterator[str]:
    return (f"{number:08x}-0000-4000-8000-000000000000" for number in count(1))


def held(node: Node, allocations: Iterable[Allocation]) -> NodeState:
    """Return a node with the resources of its running allocations."""
    here = [
        alloc for alloc in allocations if alloc.node_id == node.id and not alloc.client_terminal
    ]
    tasks = [task for alloc in here for task in alloc.placement.resources.tasks.values()]
    return NodeState(
        node=node,
        cpu=sum(task.cpu.cpu_shares for task in tasks),
        memory=sum(task.memory.memory_mb for task in tasks),
        disk=sum(alloc.placement.resources.shared.disk_mb for alloc in here),
        ports=frozenset(port for alloc in here for port in alloc.placement.resources.ports),
        cores=frozenset(core for task in tasks for core in task.cpu.reserved_cores or ()),
        devices=frozenset(
            device_id for each in here for device_id in each.placement.resources.device_ids
        ),
        allocations=len(here),
    )


class World:
    """A cluster with one job, and competing allocations."""

    def __init__(
        self,
        *nodes: Node,
        others: Iterable[Allocation] = (),
        listening: frozenset[int] = frozenset(),
    ) -> None:
        self.listening = listening
        self.nodes = {node.id: node for node in nodes or (node(),)}
        self.now = NOW
        self.index = 10
        self.ids = ids()
        self.job: Job | None = None
        self.versions: dict[int, Job] = {}
        self.allocations: dict[str, Allocation] = {}
        self.others = list(others)
        self.deployments: list[Deployment] = []

    # ---- input and result of the scheduler -------------------------------------------------------

    def state(self) -> ClusterState:
        known = [*self.others, *self.allocations.values()]
        return ClusterState(
            index=self.index,
            job=self.job,
            nodes=tuple(
                msgspec.structs.replace(held(node, known), listening=self.listening)
                for node in self.nodes.values()
            ),
            allocations=tuple(self.allocations.values()),
            versions=self.versions,
            deployment=self.deployments[-1] if self.deployments else None,
        )

    def register(self, job: Job) -> None:
        """Store a job as its next version."""
        self.index += 1
        version = self.job.version + 1 if self.job else 0
        self.job = msgspec.structs.replace(
            job,
            version=version,
            create_index=self.job.create_index if self.job else self.index,
            modify_index=self.index,
            job_modify_index=self.index,
        )
        self.versions[version] = self.job

    def evaluation(self, **fields: Any) -> Evaluation:
        assert self.job is not None
        given = {"eval_id": next(self.ids), "job_modify_index": self.job.job_modify_index}
        return evaluation(self.job, **{**given, **fields})

    def evaluate(self, evaluation: Evaluation | None = None, **fields: Any) -> Plan:
        """Evaluate the job, and apply the plan; return the plan."""
        plan = self.dry_run(evaluation or self.evaluation(**fields))
        self.apply(plan)
        return plan

    def dry_run(self, evaluation: Evaluation | None = None) -> Plan:
        return schedule(self.state(), evaluation or self.evaluation(), now=self.now, ids=self.ids)

    def run(self, job: Job, **fields: Any) -> Plan:
        """Register a job and evaluate it."""
        self.register(job)
        return self.evaluate(**fields)

    def apply(self, plan: Plan) -> None:
        self.index += 1
        for item in (*plan.change, *plan.place):
            self.allocations[item.id] = msgspec.structs.replace(
                item, create_index=item.create_index or self.index, modify_index=self.index
            )
        for deployment in plan.deployments:
            stored = msgspec.structs.replace(
                deployment, create_index=deployment.create_index or self.index
            )
            self.deployments = [
                deployment for deployment in self.deployments if deployment.id != stored.id
            ]
            self.deployments.append(stored)
        self.deployments.sort(key=lambda deployment: deployment.create_index)

    # ---- actions of the runner ---------------------------------------------------------------------

    def set(self, allocation: Allocation, **fields: Any) -> Allocation:
        changed = msgspec.structs.replace(allocation, **fields)
        self.allocations[changed.id] = changed
        return changed

    def start(self, *, healthy: bool | None = None) -> None:
        """Let all desired allocations run, and end all others."""
        for alloc in list(self.allocations.values()):
            if alloc.client_terminal:
                continue
            if alloc.terminal:
                self.end(alloc, ClientStatus.COMPLETE)
            elif alloc.client_status == ClientStatus.PENDING:
                self.set(alloc, client_status=ClientStatus.RUNNING)
        if healthy is not None:
            self.set_health(healthy=healthy)

    def end(self, allocation: Allocation, status: ClientStatus, task: str = "main") -> Allocation:
        """Let the tasks of an allocation end now."""
        failed = status == ClientStatus.FAILED
        ended = TaskState(state="dead", failed=failed, finished_at=rfc3339(self.now))
        client = msgspec.structs.replace(allocation.client, task_states={task: ended})
        return self.set(allocation, client_status=status, client=client)

    def fail(self, allocation: Allocation | None = None) -> Allocation:
        return self.end(allocation or self.running()[0], ClientStatus.FAILED)

    def complete(self, allocation: Allocation | None = None) -> Allocation:
        return self.end(allocation or self.running()[0], ClientStatus.COMPLETE)

    def wait(self, seconds: float) -> None:
        self.now += int(seconds * SECOND)

    # ---- requests of users ---------------------------------------------------------------------------

    def mark(self, allocation: Allocation, **transition: bool) -> Allocation:
        desired = msgspec.structs.replace(
            allocation.desired, transition=DesiredTransition(**transition)
        )
        return self.set(allocation, desired=desired)

    def set_health(self, *, healthy: bool) -> None:
        """Set the health of the deployment's running allocations, and update its counts."""
        deployment = self.deployments[-1] if self.deployments else None
        if deployment is None or deployment.status not in ACTIVE:
            return
        for alloc in self.running():
            known = alloc.health.healthy if alloc.health else None
            if alloc.deployment_id != deployment.id or known == healthy:
                continue
            canary = alloc.health.canary if alloc.health else False
            self.set(alloc, health=DeploymentHealth(healthy=healthy, canary=canary))
        for group in deployment.task_groups:
            self._count(group, deployment.id)

    def _count(self, group: str, deployment_id: str) -> None:
        """Count like `daemon.evals.deployment_health`: stopping allocations do not count."""
        placed = [
            alloc for alloc in self.allocations.values() if alloc.deployment_id == deployment_id
        ]
        known = [
            alloc for alloc in placed if alloc.task_group == group and alloc.health is not None
        ]
        well = [
            alloc for alloc in known if alloc.health and alloc.health.healthy and not alloc.terminal
        ]
        self.change_deployment(
            group,
            healthy_allocs=len(well),
            unhealthy_allocs=sum(
                alloc.health is not None and alloc.health.healthy is False for alloc in known
            ),
        )

    def change_deployment(self, group: str, **fields: Any) -> None:
        deployment = self.deployments[-1]
        changed = msgspec.structs.replace(deployment.task_groups[group], **fields)
        self.deployments[-1] = msgspec.structs.replace(
            deployment, task_groups={**deployment.task_groups, group: changed}
        )

    def set_deployment(self, status: DeploymentStatus) -> None:
        self.deployments[-1] = msgspec.structs.replace(self.deployments[-1], status=status)

    def promote(self, group: str = "web") -> None:
        """Promote the canaries of a group: they become ordinary allocations."""
        self.change_deployment(group, promoted=True)
        for alloc in self.running(group):
            if alloc.health is not None and alloc.health.canary:
                self.set(alloc, health=msgspec.structs.replace(alloc.health, canary=False))

    # ---- stored objects --------------------------------------------------------------------------------

    def running(self, group: str | None = None) -> list[Allocation]:
        """Return the desired allocations that have not ended, by name."""
        live = [alloc for alloc in self.allocations.values() if not alloc.terminal]
        chosen = [alloc for alloc in live if group is None or alloc.task_group == group]
        return sorted(chosen, key=lambda alloc: (alloc.name, alloc.create_index))

    def names(self) -> list[str]:
        return [alloc.name for alloc in self.running()]

    def of_version(self, version: int) -> list[str]:
        return [alloc.name for alloc in self.running() if alloc.job_version == version]

    @property
    def deployment(self) -> Deployment:
        return self.deployments[-1]

    def progress(self) -> Plan:
        """Evaluate as after a change of health."""
        return self.evaluate(triggered_by=Trigger.DEPLOYMENT_WATCHER)

    def settle(self, rounds: int = 20) -> None:
        """Let everything become healthy, round by round, until the plan changes nothing."""
        for _ in range(rounds):
            self.start(healthy=True)
            self.wait(1)
            plan = self.progress()
            if not (plan.place or plan.change or plan.deployments):
                return


def counts(plan: Plan, group: str = "web") -> dict[str, int]:
    """Return the counts of an annotation about a group, without zeros."""
    annotation = plan.annotations.desired_tg_updates.get(group, DesiredUpdates())
    return {name: number for name, number in msgspec.structs.asdict(annotation).items() if number}


def blocked(evaluation: Evaluation) -> Evaluation:
    return msgspec.structs.replace(evaluation, status=EvalStatus.BLOCKED)
