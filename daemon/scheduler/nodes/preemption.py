"""Preemption: choose allocations to stop in favor of a job with a higher priority.

Only allocations of other jobs are candidates, with a priority lower by at least `MARGIN`. The
lowest priorities are preempted first. Among equals, the one that reduces the shortage most is
chosen, then the smallest. The result is minimal: without any one of the victims, capacity would be
insufficient.

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

MARGIN = 10  # as in Nomad

_Kind = tuple[int, int, int, frozenset[int], int, frozenset[str]]


class PreemptionCandidates:
    """Allocations on one node that can be preempted, or are stopping."""

    def __init__(self, room: NodeCapacity, holders: Iterable[ResourceHolder], job: Job) -> None:
        """Take all allocations with resources on the node, oldest first; `job` needs capacity."""
        self._room = room
        here = list(holders)
        # A resource held by both a stopping and a running allocation belongs to the running one.
        staying = [one for one in here if not one.ending]
        ports = {value for one in staying for value in one.ports}
        cores = {value for one in staying for value in one.cores}
        devices = {value for one in staying for value in one.device_ids}
        self._ending = [one.without(ports, cores, devices) for one in here if one.ending]
        # A port held twice, with collisions ignored, is not freed by one preemption.
        holders_of = Counter(value for one in staying for value in one.ports)
        shared = {value for value, number in holders_of.items() if number > 1}
        self._movable = [
            one.without(shared, frozenset(), frozenset())
            for one in staying
            if (one.namespace, one.job_id) != (job.namespace, job.id)
            and one.priority <= job.priority - MARGIN
        ]

    def choose(self, need: ResourceAsk) -> list[ResourceHolder] | None:
        """Return the allocations to preempt; None if capacity is insufficient even then.

        The list is empty if the stopping allocations free enough.
        """
        self.release_victims(self._movable)
        hopeless = self._room.missing_resource(need) is not None
        self.occupy(self._movable)
        if hopeless:
            return None
        self.release_victims([])
        gathered = self._gather(need)
        enough = self._room.missing_resource(need) is None
        victims = self._spare(need, gathered) if enough else gathered
        self.occupy(victims)
        return victims if enough else None

    def release_victims(self, victims: Iterable[ResourceHolder]) -> None:
        """Release the resources of victims and stopping allocations."""
        for one in (*self._ending, *victims):
            self._room.release(one)

    def occupy(self, victims: Iterable[ResourceHolder]) -> None:
        """Undo `release_victims`."""
        for one in (*self._ending, *victims):
            self._room.take(one)

    def evict(self, victims: Iterable[ResourceHolder], successor: Allocation) -> None:
        """Record the victims of a new allocation, which holds their resources from now on."""
        gone = list(victims)
        ids = {one.id for one in gone}
        self._movable = [one for one in self._movable if one.id not in ids]
        self._ending += gone
        resources = successor.placement.resources
        self._ending = [
            one.without(resources.ports, resources.cores, resources.device_ids)
            for one in self._ending
        ]

    @property
    def ending(self) -> list[str]:
        """Return the IDs of victims and stopping allocations."""
        return [one.id for one in self._ending]

    def _gather(self, need: ResourceAsk) -> list[ResourceHolder]:
        """Release candidates one by one until capacity is sufficient; return them."""
        gathered: list[ResourceHolder] = []
        by_priority = sorted(self._movable, key=lambda one: one.priority)
        for _, equals in groupby(by_priority, key=lambda one: one.priority):
            kinds = _by_kind(equals, need)
            while kinds and self._room.missing_resource(need) is not None:
                kind = min(
                    kinds, key=lambda known: self._remaining_shortage(need, kinds[known][-1])
                )
                chosen = kinds[kind].pop()
                if not kinds[kind]:
                    del kinds[kind]
                self._room.release(chosen)
                gathered.append(chosen)
        return gathered

    def _remaining_shortage(self, need: ResourceAsk, one: ResourceHolder) -> tuple[float, float]:
        """Return the remaining shortage without a candidate, and its size; lower is better."""
        room = self._room
        size = one.cpu / (room.capacity_cpu or 1) + one.memory / (room.capacity_memory or 1)
        room.release(one)
        missing = room.shortage(need)
        room.take(one)
        return missing, size

    def _spare(self, need: ResourceAsk, gathered: list[ResourceHolder]) -> list[ResourceHolder]:
        """Keep candidates that need not be preempted, highest priority and smallest first.

        Return the others.
        """
        victims = []
        for one in sorted(gathered, key=lambda one: (-one.priority, one.memory, one.cpu)):
            self._room.take(one)
            if self._room.missing_resource(need) is not None:
                self._room.release(one)
                victims.append(one)
        return victims


def _by_kind(
    holders: Iterable[ResourceHolder], need: ResourceAsk
) -> dict[_Kind, list[ResourceHolder]]:
    """Group equivalent candidates, because thousands have only a few kinds."""
    wanted = {port.value for network in need.networks for port in network.reserved_ports or ()}
    kinds: defaultdict[_Kind, list[ResourceHolder]] = defaultdict(list)
    for one in holders:
        devices = one.device_ids if need.devices else frozenset()
        key = (one.cpu, one.memory, one.disk, one.ports & wanted, len(one.cores), devices)
        kinds[key].append(one)
    return kinds
