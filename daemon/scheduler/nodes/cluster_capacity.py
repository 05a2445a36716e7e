"""Capacity of a cluster. The cluster queues an allocation until a host has enough capacity.

Only the number of jobs is limited (`max_jobs`). An allocation fits if a single host, when empty, is
large enough. CPU in MHz is rounded up to whole cores, at least one.
"""

from collections.abc import Iterable

from daemon.scheduler.nodes.capacity import NodeCapacity, ResourceAsk, resources_of
from daemon.scheduler.state import NodeState
from storage.records.allocation import AllocatedCPU, AllocatedResources, Allocation
from storage.records.node import MHZ_PER_CORE
from storage.records.task import Task

_ENDLESS = 2**62  # MB of disk; the disks of hosts are unknown


def cluster_capacity(state: NodeState, allocations: Iterable[Allocation]) -> NodeCapacity:
    """Return the capacity object for a node: the local host, or a cluster pool."""
    return (ClusterCapacity if state.node.engine else NodeCapacity)(state, allocations)


class ClusterCapacity(NodeCapacity):
    """A partition of a cluster. `cpu`, `memory` and `free_cores` are those of its largest host."""

    queues = True

    def __init__(self, state: NodeState, allocations: Iterable[Allocation]) -> None:
        """Initialize with all hosts, including those that are down, because they may return."""
        super().__init__(state, allocations)
        self._hosts = state.node.hosts or []
        self._core_cpu = int(state.node.attributes.get(MHZ_PER_CORE, 1))
        self._most_cores = max((host.cores for host in self._hosts), default=0)
        self.cpu = self._most_cores * self._core_cpu
        self.memory = max((host.memory_mb for host in self._hosts), default=0)
        self.disk = _ENDLESS

    def _count_amounts(self, share: object, sign: int) -> None:
        """Do nothing: allocations on a cluster do not reduce each other's resources."""

    @property
    def free_cores(self) -> int:
        """Return the number of cores of the host with the most cores."""
        return self._most_cores

    def cores_of(self, need: ResourceAsk) -> int:
        """Return the number of cores of an allocation."""
        return max(1, need.cores + -(-need.cpu // self._core_cpu))

    def missing_resource(self, need: ResourceAsk) -> str | None:
        """Return why an allocation fits no host, even an empty host."""
        cores = self.cores_of(need)
        if self.is_full:
            return "max allocation exceeded"
        if cores > self._most_cores:
            return "cores" if need.cores else "cpu"
        if not any(host.cores >= cores and host.memory_mb >= need.memory for host in self._hosts):
            return "memory"
        return None

    def offer(self, need: ResourceAsk, allocation_id: str, region: str) -> AllocatedResources:
        """Return the resources of a new allocation: a number of cores instead of core IDs."""
        if need.fixed is not None:
            return need.fixed
        return resources_of(need.group, self._cores_as_cpu)

    def _cores_as_cpu(self, task: Task) -> AllocatedCPU | None:
        cores = task.resources.cores
        return AllocatedCPU(cpu_shares=cores * self._core_cpu) if cores else None
