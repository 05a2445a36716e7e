"""Fit: what is left of a node, what a group needs, and what an allocation gets of it.

A `Room` is one node while a plan is made: it knows what all allocations hold, takes back what
the plan stops, and gives out what the plan places. Nothing is given that is not there: `lack`
says what is missing, and only after it said None may `offer` be asked.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Set
from typing import Protocol

import msgspec

from daemon.scheduler.nodes import devices, ports
from daemon.scheduler.state import NodeState
from storage.records.allocation import (
    AllocatedCPU,
    AllocatedMemory,
    AllocatedNetwork,
    AllocatedPort,
    AllocatedResources,
    AllocatedShared,
    AllocatedTask,
    Allocation,
)
from storage.records.group import TaskGroup
from storage.records.node import Node
from storage.records.task import Device, Network, Task


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """What one allocation of a group asks of a node: CPU in MHz, memory and disk in MB.

    The CPU of tasks that ask for whole cores is not in `cpu`: it depends on the node.
    `fixed` is what the allocation gets when there is nothing to choose.
    """

    group: TaskGroup
    cpu: int
    cores: int
    memory: int
    disk: int
    networks: tuple[Network, ...]  # of the group, then of its tasks
    devices: tuple[Device, ...]
    fixed: AllocatedResources | None


def need_of(group: TaskGroup) -> Need:
    """Return what one allocation of a group asks for."""
    tasks = group.tasks or []
    # The peer looks at the first network of a group only.
    of_group = tuple((group.networks or [])[:1])
    of_tasks = tuple(network for task in tasks for network in task.resources.networks or ())
    wanted = tuple(device for task in tasks for device in task.resources.devices or ())
    cores = sum(task.resources.cores for task in tasks)
    plain = not (of_group or of_tasks or wanted or cores)
    return Need(
        group=group,
        cpu=sum(task.resources.cpu for task in tasks if not task.resources.cores),
        cores=cores,
        memory=sum(memory_of(task) for task in tasks),
        disk=group.ephemeral_disk.size_mb,
        networks=of_group + of_tasks,
        devices=wanted,
        fixed=_resources(group, {task.name: _task(task) for task in tasks}) if plain else None,
    )


def memory_of(task: Task) -> int:
    """Return the memory that a task holds, its secrets included, in MB."""
    return task.resources.memory_mb + task.resources.secrets_mb


def _task(task: Task, cpu: AllocatedCPU | None = None) -> AllocatedTask:
    return AllocatedTask(
        cpu=cpu or AllocatedCPU(cpu_shares=task.resources.cpu),
        memory=AllocatedMemory(
            memory_mb=memory_of(task), memory_max_mb=task.resources.memory_max_mb
        ),
    )


def _resources(
    group: TaskGroup,
    tasks: dict[str, AllocatedTask],
    networks: list[AllocatedNetwork] | None = None,
    flat: list[AllocatedPort] | None = None,
) -> AllocatedResources:
    return AllocatedResources(
        tasks=tasks,
        task_lifecycles={task.name: task.lifecycle for task in group.tasks or ()},
        shared=AllocatedShared(
            disk_mb=group.ephemeral_disk.size_mb, networks=networks, ports=flat or None
        ),
    )


def resources_of(
    group: TaskGroup, cpu: Callable[[Task], AllocatedCPU | None]
) -> AllocatedResources:
    """Return what an allocation of a group gets that has no ports, with the CPU of each task."""
    return _resources(group, {task.name: _task(task, cpu(task)) for task in group.tasks or ()})


class Share(Protocol):
    """What something holds of a node: MHz, MB, MB, and what is exclusive."""

    @property
    def cpu(self) -> int: ...  # noqa: D102
    @property
    def memory(self) -> int: ...  # noqa: D102
    @property
    def disk(self) -> int: ...  # noqa: D102
    @property
    def ports(self) -> Set[int]: ...  # noqa: D102
    @property
    def cores(self) -> Set[int]: ...  # noqa: D102
    @property
    def device_ids(self) -> Set[str]: ...  # noqa: D102


class Room:
    """What is left of one node, as far as the plan has come."""

    queues = False  # whether what finds no room may wait there

    def __init__(self, state: NodeState, allocations: Iterable[Allocation]) -> None:
        """`allocations` are those of the job on this node; what they hold is in `state`."""
        self.node = state.node
        self.capacity_cpu, self.capacity_memory, capacity_disk = state.node.capacity
        self._core_cpu = _cpu_of_a_core(state.node)
        self.cpu = self.capacity_cpu - state.cpu
        self.memory = self.capacity_memory - state.memory
        self.disk = capacity_disk - state.disk
        self._ports = ports.reserved(state.node) | state.ports
        self._listening = state.listening
        self._dynamic = ports.dynamic_range(state.node)
        self._free_dynamic = len(self._dynamic) - self._dynamic_among(self._ports)
        self._devices: set[str] = set(state.devices)
        self._kinds = devices.kinds_of(state.node) if state.node.node_resources.devices else []
        self._cores = _cores(state.node) - state.cores
        self._slots = (state.node.node_max_allocs or None, state.allocations)
        # Allocations of this job that are wanted here, by group.
        self.groups: Counter[str] = Counter()
        for allocation in allocations:
            self._note(allocation)

    def _note(self, allocation: Allocation) -> None:
        if not allocation.terminal:
            self.groups[allocation.task_group] += 1
        if not allocation.client_terminal:
            resources = allocation.placement.resources
            self._cores -= resources.cores
            self._devices |= resources.device_ids

    def free(self, allocation: Allocation) -> None:
        """Take back what a wanted allocation holds, because the plan stops it."""
        self.groups[allocation.task_group] -= not allocation.terminal
        if not allocation.client_terminal:
            self.release(allocation.placement.resources)

    def hold(self, allocation: Allocation) -> None:
        """Give an allocation what it holds: a new one, or one that is not stopped after all."""
        self.groups[allocation.task_group] += not allocation.terminal
        if not allocation.client_terminal:
            self.take(allocation.placement.resources)

    def take(self, share: Share) -> None:
        """Give a share of the node to something."""
        self._count(share, 1)
        self._cores = self._cores - share.cores
        self._devices = self._devices | share.device_ids
        if held := share.ports:
            self._free_dynamic -= self._dynamic_among(held - self._ports)
            self._ports |= held

    def release(self, share: Share) -> None:
        """Take a share of the node back."""
        self._count(share, -1)
        self._cores = self._cores | share.cores
        self._devices = self._devices - share.device_ids
        if held := share.ports:
            self._free_dynamic += self._dynamic_among(held & self._ports)
            self._ports -= held

    def _count(self, share: Share, sign: int) -> None:
        most, count = self._slots
        self._slots = (most, count + sign)
        self._count_amounts(share, sign)

    def _count_amounts(self, share: Share, sign: int) -> None:
        self.cpu -= sign * share.cpu
        self.memory -= sign * share.memory
        self.disk -= sign * share.disk

    def _dynamic_among(self, numbers: Iterable[int]) -> int:
        return sum(number in self._dynamic for number in numbers)

    # ---- what is there ------------------------------------------------------------------------

    def lack(self, need: Need) -> str | None:
        """Return the first thing of which there is too little, as the counts name it."""
        if need.fixed is None and (missing := self._lack_choice(need)):
            return missing
        if self.is_full:
            return "max allocation exceeded"
        if self.cpu < self.cpu_of(need):
            return "cpu"
        if self.memory < need.memory:
            return "memory"
        if self.disk < need.disk:
            return "disk"
        return None

    @property
    def is_full(self) -> bool:
        """Tell whether there are as many allocations as may be."""
        most, count = self._slots
        return most is not None and count >= most

    def _lack_choice(self, need: Need) -> str | None:
        if need.networks:
            missing = ports.lack(need.networks, self._ports, self._free_dynamic)
            if missing is not None:
                return missing
        if devices.choose(self._kinds, need.devices, self._devices) is None:
            return "devices: no devices match request"
        if len(self._cores) < need.cores:
            return "cores"
        return None

    def shortage(self, need: Need) -> float:
        """Return how much is missing, in parts of what is asked for; 0 exactly when nothing `lack`s."""
        pairs = (
            (self.cpu_of(need), self.cpu),
            (need.memory, self.memory),
            (need.disk, self.disk),
            (need.cores, len(self._cores)),
        )
        parts = sum(max(0, wanted - there) / wanted for wanted, there in pairs if wanted)
        missing = parts + ports.collisions(need.networks, self._ports)
        return missing or float(self.lack(need) is not None)

    @property
    def free_cores(self) -> int:
        """Return how many whole cores are free."""
        return len(self._cores)

    def cpu_of(self, need: Need) -> int:
        """Return the CPU that an allocation takes here, whole cores included, in MHz."""
        return need.cpu + need.cores * self._core_cpu

    def device_score(self, need: Need) -> float | None:
        """Return how well the devices suit their affinities, -1 to 1; None without any."""
        most = devices.weights_of(need.devices)
        offers = devices.choose(self._kinds, need.devices, self._devices)
        return sum(one.score for one in offers) / most if most and offers else None

    # ---- what an allocation gets ----------------------------------------------------------------

    def offer(self, need: Need, allocation_id: str, region: str) -> AllocatedResources:
        """Return what a new allocation gets. `lack` has just said that there is enough."""
        if need.fixed is not None:
            return need.fixed
        group = need.group
        chooser = ports.Chooser(
            self.node, self._ports, need.networks, allocation_id, self._listening
        )
        networks, flat = self._networks((group.networks or [])[:1], region, chooser)
        cores = iter(sorted(self._cores))
        offers = iter(devices.choose(self._kinds, need.devices, self._devices) or ())
        tasks: dict[str, AllocatedTask] = {}
        for task in group.tasks or ():
            own_networks, _ = self._networks(task.resources.networks or [], region, chooser)
            tasks[task.name] = msgspec.structs.replace(
                _task(task, self._cpu(task, [next(cores) for _ in range(task.resources.cores)])),
                networks=own_networks,
                devices=[next(offers).record() for _ in task.resources.devices or ()] or None,
            )
        return _resources(group, tasks, networks, flat)

    def _networks(
        self, wanted: list[Network], region: str, chooser: ports.Chooser
    ) -> tuple[list[AllocatedNetwork] | None, list[AllocatedPort]]:
        offers = [ports.offer(network, self.node, region, chooser) for network in wanted]
        flat = [port for _, of_network in offers for port in of_network]
        return [network for network, _ in offers] or None, flat

    def _cpu(self, task: Task, cores: list[int]) -> AllocatedCPU | None:
        if not cores:
            return None
        return AllocatedCPU(cpu_shares=len(cores) * self._core_cpu, reserved_cores=cores)


def _cores(node: Node) -> set[int]:
    kept = node.reserved_resources.cpu.reserved_cpu_cores or ()
    return set(node.node_resources.cpu.reservable_cpu_cores).difference(kept)


def _cpu_of_a_core(node: Node) -> int:
    cpu = node.node_resources.cpu
    return cpu.cpu_shares // (cpu.total_cpu_cores or 1)
