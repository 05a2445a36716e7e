"""Capacity: the free resources of a node, the ask of a group, and the allocated resources.

A `NodeCapacity` tracks the resources of one node during planning. It releases the resources of
allocations that the plan stops, and assigns resources to allocations that the plan places.
Resources are never overcommitted: `offer` may only be called after `missing_resource` has returned
None.
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


class ResourceAsk(msgspec.Struct, frozen=True, kw_only=True):
    """The resource ask of one allocation: CPU in MHz, memory and disk in MB.

    The CPU of tasks with reserved cores is not in `cpu`, because it depends on the node. `fixed`
    has the allocated resources if they do not depend on the node.
    """

    group: TaskGroup
    cpu: int
    cores: int
    memory: int
    disk: int
    networks: tuple[Network, ...]  # networks of the group, then of its tasks
    devices: tuple[Device, ...]
    fixed: AllocatedResources | None


def resource_ask(group: TaskGroup) -> ResourceAsk:
    """Return the resource ask of one allocation of a group."""
    tasks = group.tasks or []
    # Nomad uses only the first network of a group.
    of_group = tuple((group.networks or [])[:1])
    of_tasks = tuple(network for task in tasks for network in task.resources.networks or ())
    requests = tuple(device for task in tasks for device in task.resources.devices or ())
    cores = sum(task.resources.cores for task in tasks)
    plain = not (of_group or of_tasks or requests or cores)
    return ResourceAsk(
        group=group,
        cpu=sum(task.resources.cpu for task in tasks if not task.resources.cores),
        cores=cores,
        memory=sum(memory_of(task) for task in tasks),
        disk=group.ephemeral_disk.size_mb,
        networks=of_group + of_tasks,
        devices=requests,
        fixed=_resources(group, {task.name: _task(task) for task in tasks}) if plain else None,
    )


def memory_of(task: Task) -> int:
    """Return the memory of a task in MB, including its secrets mount."""
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
    """Return the resources of an allocation, except its ports; `cpu` returns the CPU of a task."""
    return _resources(group, {task.name: _task(task, cpu(task)) for task in group.tasks or ()})


class ResourceShare(Protocol):
    """Resources of an allocation: CPU in MHz, memory and disk in MB, ports, cores and devices."""

    # The docstring of the class describes each property, so none has its own (D102).

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


class NodeCapacity:
    """The free resources of one node, with the changes that the plan has so far."""

    queues = False  # whether allocations without capacity may be queued there

    def __init__(self, state: NodeState, allocations: Iterable[Allocation]) -> None:
        """Initialize; the state already counts the job's `allocations` on the node."""
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
        # Desired allocations of this job on the node, by group.
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
        """Release the resources of an allocation that the plan stops."""
        self.groups[allocation.task_group] -= not allocation.terminal
        if not allocation.client_terminal:
            self.release(allocation.placement.resources)

    def hold(self, allocation: Allocation) -> None:
        """Assign the resources of an allocation that is new, or that the plan no longer stops."""
        self.groups[allocation.task_group] += not allocation.terminal
        if not allocation.client_terminal:
            self.take(allocation.placement.resources)

    def take(self, share: ResourceShare) -> None:
        """Subtract resources from the free resources."""
        self._count(share, 1)
        self._cores = self._cores - share.cores
        self._devices = self._devices | share.device_ids
        if used_ports := share.ports:
            self._free_dynamic -= self._dynamic_among(used_ports - self._ports)
            self._ports |= used_ports

    def release(self, share: ResourceShare) -> None:
        """Add resources to the free resources."""
        self._count(share, -1)
        self._cores = self._cores | share.cores
        self._devices = self._devices - share.device_ids
        if used_ports := share.ports:
            self._free_dynamic += self._dynamic_among(used_ports & self._ports)
            self._ports -= used_ports

    def _count(self, share: ResourceShare, sign: int) -> None:
        most, count = self._slots
        self._slots = (most, count + sign)
        self._count_amounts(share, sign)

    def _count_amounts(self, share: ResourceShare, sign: int) -> None:
        self.cpu -= sign * share.cpu
        self.memory -= sign * share.memory
        self.disk -= sign * share.disk

    def _dynamic_among(self, numbers: Iterable[int]) -> int:
        return sum(number in self._dynamic for number in numbers)

    # --- available resources ---

    def missing_resource(self, need: ResourceAsk) -> str | None:
        """Return the first insufficient resource, by its name in placement metrics, or None."""
        if need.fixed is None and (missing := self._missing_choice(need)):
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
        """Return whether the limit on allocations is reached."""
        most, count = self._slots
        return most is not None and count >= most

    def _missing_choice(self, need: ResourceAsk) -> str | None:
        if need.networks:
            missing = ports.missing_ports(need.networks, self._ports, self._free_dynamic)
            if missing is not None:
                return missing
        if devices.choose(self._kinds, need.devices, self._devices) is None:
            return "devices: no devices match request"
        if len(self._cores) < need.cores:
            return "cores"
        return None

    def shortage(self, need: ResourceAsk) -> float:
        """Return how much of the requested resources is missing.

        The result is the sum of the missing fractions of CPU, memory, disk and cores, plus the
        number of static ports that are in use. If only another resource is missing, the result is
        1. It is 0 if and only if `missing_resource` returns None.
        """
        pairs = (
            (self.cpu_of(need), self.cpu),
            (need.memory, self.memory),
            (need.disk, self.disk),
            (need.cores, len(self._cores)),
        )
        parts = sum(max(0, needed - there) / needed for needed, there in pairs if needed)
        missing = parts + ports.count_port_conflicts(need.networks, self._ports)
        return missing or float(self.missing_resource(need) is not None)

    @property
    def free_cores(self) -> int:
        """Return the number of free cores."""
        return len(self._cores)

    def cpu_of(self, need: ResourceAsk) -> int:
        """Return the CPU of an allocation on this node in MHz, including reserved cores."""
        return need.cpu + need.cores * self._core_cpu

    def device_score(self, need: ResourceAsk) -> float | None:
        """Return the device affinity score, -1 to 1; None without affinities."""
        most = devices.weights_of(need.devices)
        offers = devices.choose(self._kinds, need.devices, self._devices)
        return sum(offer.score for offer in offers) / most if most and offers else None

    # --- allocated resources ---

    def offer(self, need: ResourceAsk, allocation_id: str, region: str) -> AllocatedResources:
        """Return the resources of a new allocation; call after `missing_resource` returned None."""
        if need.fixed is not None:
            return need.fixed
        group = need.group
        chooser = ports.PortAllocator(
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
        self, networks: list[Network], region: str, chooser: ports.PortAllocator
    ) -> tuple[list[AllocatedNetwork] | None, list[AllocatedPort]]:
        offers = [ports.offer(network, self.node, region, chooser) for network in networks]
        flat = [port for _, of_network in offers for port in of_network]
        return [network for network, _ in offers] or None, flat

    def _cpu(self, task: Task, cores: list[int]) -> AllocatedCPU | None:
        if not cores:
            return None
        return AllocatedCPU(cpu_shares=len(cores) * self._core_cpu, reserved_cores=cores)


def _cores(node: Node) -> set[int]:
    reserved = node.reserved_resources.cpu.reserved_cpu_cores or ()
    return set(node.node_resources.cpu.reservable_cpu_cores).difference(reserved)


def _cpu_of_a_core(node: Node) -> int:
    cpu = node.node_resources.cpu
    return cpu.cpu_shares // (cpu.total_cpu_cores or 1)
