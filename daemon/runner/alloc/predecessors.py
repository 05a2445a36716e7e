"""Find the predecessors of an allocation, which must end before it starts."""

from collections.abc import Callable, Collection

import trio

from daemon.runner.alloc.alloc_runner import AllocRunner
from storage.records.allocation import AllocatedResources, Allocation


def predecessors_of(
    allocation: Allocation,
    running: Collection[AllocRunner],
    capacity: tuple[int, int, int] | None,
    is_known: Callable[[str], bool],
) -> list[trio.Event]:
    """Return the events that are set when the predecessors of an allocation end.

    Predecessors are the allocations that the allocation replaces, that use its ports, or that were
    preempted for it. If the node lacks capacity for all running allocations and this one, all
    stopping allocations of the node are also predecessors. The scheduler has already assigned their
    resources to other allocations. `capacity` is the node's CPU (MHz), memory and disk (MB), or
    None on a cluster with a queue. `is_known` returns whether the store has an allocation, which is
    false for a purged allocation.
    """
    desired, needs = allocation.desired, allocation.placement.resources
    awaited = {desired.previous_allocation, *(desired.waits_for or ())} - {""}
    some_end, ports = any(runner.is_ending for runner in running), needs.ports
    crowded = (
        capacity is not None
        and some_end
        and _is_crowded(
            [
                needs,
                *(runner.resources for runner in running if runner.node_id == allocation.node_id),
            ],
            capacity,
        )
    )

    def leaves_room(runner: AllocRunner) -> bool:
        return crowded and runner.is_ending and runner.node_id == allocation.node_id

    def leaves_ports(runner: AllocRunner) -> bool:
        if not ports or ports.isdisjoint(runner.resources.ports):
            return False
        return runner.is_ending or not is_known(runner.id)

    if not (awaited or crowded or ports):  # avoids comparing a thousand starts in pairs
        return []
    return [
        runner.ended
        for runner in running
        if runner.id in awaited or leaves_room(runner) or leaves_ports(runner)
    ]


def _is_crowded(every: list[AllocatedResources], capacity: tuple[int, int, int]) -> bool:
    """Return whether the allocations together exceed the capacity of the node."""
    cpu, memory, disk = capacity
    return (
        sum(resources.cpu for resources in every) > cpu
        or sum(resources.memory for resources in every) > memory
        or sum(resources.shared.disk_mb for resources in every) > disk
    )
