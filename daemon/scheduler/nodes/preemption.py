"""Preemption: choose allocations to stop in favor of a job with a higher priority.

Candidates are allocations of other jobs with a priority lower by at least `MARGIN`. The lowest
priorities are preempted first. Among candidates with equal priority, the candidate that reduces
the shortage most is chosen, then the smallest candidate. The result is minimal: if any one of the
victims were spared, capacity would be insufficient.

Victims and stopping allocations hold their resources until their tasks have ended, so the new
allocation must wait for them.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import groupby

from daemon.scheduler.nodes.capacity import NodeCapacity, ResourceAsk
from storage.records.allocated_resources import ResourceHolder
from storage.records.allocation import Allocation
from storage.records.job import Job

MARGIN = 10  # minimum difference of priorities, as in Nomad

_Kind = tuple[int, int, int, frozenset[int], int, frozenset[str]]


class PreemptionCandidates:
    """The allocations on one node that can be preempted or are already stopping."""

    def __init__(
        self, node_capacity: NodeCapacity, holders: Iterable[ResourceHolder], job: Job
    ) -> None:
        """Initialize with all allocations that hold resources on the node, oldest first.

        `job` is the job that needs capacity.
        """
        self._room = node_capacity
        here = list(holders)
        # A resource of stopping and running allocations counts only for the running allocations.
        staying = [holder for holder in here if not holder.ending]
        ports = {value for holder in staying for value in holder.ports}
        cores = {value for holder in staying for value in holder.cores}
        devices = {value for holder in staying for value in holder.device_ids}
        self._ending = [holder.without(ports, cores, devices) for holder in here if holder.ending]
        # If two allocations hold the same port, one preemption does not free it.
        holders_of = Counter(value for holder in staying for value in holder.ports)
        shared = {value for value, number in holders_of.items() if number > 1}
        self._movable = [
            holder.without(shared, frozenset(), frozenset())
            for holder in staying
            if (holder.namespace, holder.job_id) != (job.namespace, job.id)
            and holder.priority <= job.priority - MARGIN
        ]

    def choose(self, need: ResourceAsk) -> list[ResourceHolder] | None:
        """Return the allocations to preempt; None if capacity would be insufficient even then.

        The list is empty if the stopping allocations free enough.
        """
        self.release_victims(self._movable)
        hopeless = self._room.missing_resource(need) is not None
        self.occupy(self._movable)
        if hopeless:
            return None
        self.release_victims([])
        holders = self._gather(need)
        enough = self._room.missing_resource(need) is None
        victims = self._spare(need, holders) if enough else holders
        self.occupy(victims)
        return victims if enough else None

    def release_victims(self, victims: Iterable[ResourceHolder]) -> None:
        """Release the resources of victims and stopping allocations."""
        for victim in (*self._ending, *victims):
            self._room.release(victim)

    def occupy(self, victims: Iterable[ResourceHolder]) -> None:
        """Undo `release_victims`."""
        for victim in (*self._ending, *victims):
            self._room.take(victim)

    def evict(self, victims: Iterable[ResourceHolder], successor: Allocation) -> None:
        """Record the victims of a new allocation; the allocation then holds their resources."""
        evicted = list(victims)
        ids = {victim.id for victim in evicted}
        self._movable = [holder for holder in self._movable if holder.id not in ids]
        self._ending += evicted
        resources = successor.placement.resources
        self._ending = [
            holder.without(resources.ports, resources.cores, resources.device_ids)
            for holder in self._ending
        ]

    @property
    def ending(self) -> list[str]:
        """Return the IDs of victims and stopping allocations."""
        return [holder.id for holder in self._ending]

    def _gather(self, need: ResourceAsk) -> list[ResourceHolder]:
        """Free the resources of candidates until the capacity suffices; return these candidates."""
        holders: list[ResourceHolder] = []
        by_priority = sorted(self._movable, key=lambda holder: holder.priority)
        for _, equals in groupby(by_priority, key=lambda holder: holder.priority):
            kinds = _by_kind(equals, need)
            while kinds and self._room.missing_resource(need) is not None:
                kind = min(
                    kinds,
                    key=lambda candidate: self._remaining_shortage(need, kinds[candidate][-1]),
                )
                chosen = kinds[kind].pop()
                if not kinds[kind]:
                    del kinds[kind]
                self._room.release(chosen)
                holders.append(chosen)
        return holders

    def _remaining_shortage(self, need: ResourceAsk, holder: ResourceHolder) -> tuple[float, float]:
        """Return the shortage after a preemption of `holder`, and the size of `holder`.

        A lower pair is better. The size is the sum of the fractions of the node's CPU and memory.
        """
        node_capacity = self._room
        size = holder.cpu / (node_capacity.capacity_cpu or 1) + holder.memory / (
            node_capacity.capacity_memory or 1
        )
        node_capacity.release(holder)
        missing = node_capacity.shortage(need)
        node_capacity.take(holder)
        return missing, size

    def _spare(self, need: ResourceAsk, holders: list[ResourceHolder]) -> list[ResourceHolder]:
        """Return the candidates that must be preempted. The other candidates keep their resources.

        The candidates with the highest priority are spared first, and among these the smallest.
        """
        victims = []
        for holder in sorted(
            holders, key=lambda holder: (-holder.priority, holder.memory, holder.cpu)
        ):
            self._room.take(holder)
            if self._room.missing_resource(need) is not None:
                self._room.release(holder)
                victims.append(holder)
        return victims


def _by_kind(
    holders: Iterable[ResourceHolder], need: ResourceAsk
) -> dict[_Kind, list[ResourceHolder]]:
    """Group equivalent candidates, because thousands of candidates are of only a few kinds."""
    static_ports = {
        port.value for network in need.networks for port in network.reserved_ports or ()
    }
    kinds: defaultdict[_Kind, list[ResourceHolder]] = defaultdict(list)
    for holder in holders:
        devices = holder.device_ids if need.devices else frozenset()
        key = (
            holder.cpu,
            holder.memory,
            holder.disk,
            holder.ports & static_ports,
            len(holder.cores),
            devices,
        )
        kinds[key].append(holder)
    return kinds
