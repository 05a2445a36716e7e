"""Room in a cluster: what it has no room for now waits there, in its own queue.

So nothing is counted but the jobs (`max_jobs`): an allocation fits where one host, whatever runs on
it, is large enough. CPU in MHz becomes whole cores, at least one.
"""

from collections.abc import Iterable

from daemon.scheduler.nodes.fit import Need, Room, resources_of
from daemon.scheduler.state import NodeState
from storage.records.allocation import AllocatedCPU, AllocatedResources, Allocation
from storage.records.node import MHZ_PER_CORE
from storage.records.task import Task

_ENDLESS = 2**62  # MB of disk: nobody knows what the hosts have


def room_of(state: NodeState, allocations: Iterable[Allocation]) -> Room:
    """Return what is left of a node, of a machine or of a cluster."""
    return (QueueRoom if state.node.engine else Room)(state, allocations)


class QueueRoom(Room):
    """A partition of a cluster. `cpu`, `memory` and `free_cores` are the most that a host has."""

    queues = True

    def __init__(self, state: NodeState, allocations: Iterable[Allocation]) -> None:
        """Take the hosts as the node shows them, those that are down as well: they come back."""
        super().__init__(state, allocations)
        self._hosts = state.node.hosts or []
        self._core_cpu = int(state.node.attributes.get(MHZ_PER_CORE, 1))
        self._most_cores = max((host.cores for host in self._hosts), default=0)
        self.cpu = self._most_cores * self._core_cpu
        self.memory = max((host.memory_mb for host in self._hosts), default=0)
        self.disk = _ENDLESS

    def _count_amounts(self, share: object, sign: int) -> None:
        """Count nothing: what one gets is not taken from another."""

    @property
    def free_cores(self) -> int:
        """Return the most cores that a host has."""
        return self._most_cores

    def cores_of(self, need: Need) -> int:
        """Return how many cores an allocation gets."""
        return max(1, need.cores + -(-need.cpu // self._core_cpu))

    def lack(self, need: Need) -> str | None:
        """Return what keeps an allocation from every host, however long it waits."""
        cores = self.cores_of(need)
        if self.is_full:
            return "max allocation exceeded"
        if cores > self._most_cores:
            return "cores" if need.cores else "cpu"
        if not any(one.cores >= cores and one.memory_mb >= need.memory for one in self._hosts):
            return "memory"
        return None

    def offer(self, need: Need, allocation_id: str, region: str) -> AllocatedResources:
        """Return what a new allocation gets: of cores how many, not which."""
        if need.fixed is not None:
            return need.fixed
        return resources_of(need.group, self._cores_as_cpu)

    def _cores_as_cpu(self, task: Task) -> AllocatedCPU | None:
        cores = task.resources.cores
        return AllocatedCPU(cpu_shares=cores * self._core_cpu) if cores else None
