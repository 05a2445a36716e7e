"""Preemption: whose allocations make room on a node for a job that matters more.

Only an allocation of another job whose priority is lower by at least `MARGIN` may have to go. Of
these the least important go first; among equals the one after which least is missing, and of those
the smallest. Nothing goes that need not: without any one of those chosen there would be no room.

What goes, and what is ending already, holds what it has until its tasks have ended: so whatever is
placed here has to wait for them.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import groupby

from daemon.scheduler.nodes.fit import Need, Room
from storage.records.allocation import Allocation
from storage.records.holder import Holder
from storage.records.job import Job

MARGIN = 10  # the peer's

_Kind = tuple[int, int, int, frozenset[int], int, frozenset[str]]


class Tenants:
    """Those who hold something of one node, as far as they may go or go already."""

    def __init__(self, room: Room, holders: Iterable[Holder], job: Job) -> None:
        """`holders` are all that hold something of the node, oldest first; `job` wants room."""
        self._room = room
        here = list(holders)
        # Of what two hold (one ends, another waits for its port), it is the one that stays who has it.
        staying = [one for one in here if not one.ending]
        ports = {value for one in staying for value in one.ports}
        cores = {value for one in staying for value in one.cores}
        devices = {value for one in staying for value in one.device_ids}
        self._ending = [one.without(ports, cores, devices) for one in here if one.ending]
        # Nor has one port that ignores collisions, and that another has as well, to be got this way.
        holders_of = Counter(value for one in staying for value in one.ports)
        shared = {value for value, number in holders_of.items() if number > 1}
        self._movable = [
            one.without(shared, frozenset(), frozenset())
            for one in staying
            if (one.namespace, one.job_id) != (job.namespace, job.id)
            and one.priority <= job.priority - MARGIN
        ]

    def choose(self, need: Need) -> list[Holder] | None:
        """Return who has to go so that there is room; None if there is none even so.

        Nobody has to when enough is ending already.
        """
        self.vacate(self._movable)
        hopeless = self._room.lack(need) is not None
        self.occupy(self._movable)
        if hopeless:
            return None
        self.vacate([])
        gathered = self._gather(need)
        enough = self._room.lack(need) is None
        victims = self._spare(need, gathered) if enough else gathered
        self.occupy(victims)
        return victims if enough else None

    def vacate(self, victims: Iterable[Holder]) -> None:
        """Take back what these hold, and what those hold that are ending."""
        for one in (*self._ending, *victims):
            self._room.release(one)

    def occupy(self, victims: Iterable[Holder]) -> None:
        """Undo `vacate`."""
        for one in (*self._ending, *victims):
            self._room.take(one)

    def evict(self, victims: Iterable[Holder], successor: Allocation) -> None:
        """Note that these go for a new allocation, which has from now on what it got of theirs."""
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
        """Return the ids of what goes or is ending."""
        return [one.id for one in self._ending]

    def _gather(self, need: Need) -> list[Holder]:
        """Release one after the other until there is room, or nobody is left; return them."""
        gathered: list[Holder] = []
        by_priority = sorted(self._movable, key=lambda one: one.priority)
        for _, equals in groupby(by_priority, key=lambda one: one.priority):
            kinds = _by_kind(equals, need)
            while kinds and self._room.lack(need) is not None:
                kind = min(kinds, key=lambda known: self._merit(need, kinds[known][-1]))
                chosen = kinds[kind].pop()
                if not kinds[kind]:
                    del kinds[kind]
                self._room.release(chosen)
                gathered.append(chosen)
        return gathered

    def _merit(self, need: Need, one: Holder) -> tuple[float, float]:
        """Return what would still be missing without one, and how large it is; less is better."""
        room = self._room
        size = one.cpu / (room.capacity_cpu or 1) + one.memory / (room.capacity_memory or 1)
        room.release(one)
        missing = room.shortage(need)
        room.take(one)
        return missing, size

    def _spare(self, need: Need, gathered: list[Holder]) -> list[Holder]:
        """Let those stay who need not go, the most important and the smallest first; return the rest."""
        victims = []
        for one in sorted(gathered, key=lambda one: (-one.priority, one.memory, one.cpu)):
            self._room.take(one)
            if self._room.lack(need) is not None:
                self._room.release(one)
                victims.append(one)
        return victims


def _by_kind(holders: Iterable[Holder], need: Need) -> dict[_Kind, list[Holder]]:
    """Return holders together that are as good as one another: thousands are a few kinds."""
    wanted = {port.value for network in need.networks for port in network.reserved_ports or ()}
    kinds: defaultdict[_Kind, list[Holder]] = defaultdict(list)
    for one in holders:
        devices = one.device_ids if need.devices else frozenset()
        key = (one.cpu, one.memory, one.disk, one.ports & wanted, len(one.cores), devices)
        kinds[key].append(one)
    return kinds
