"""Whose end an allocation waits for before it begins."""

from collections.abc import Callable, Collection

import trio

from daemon.runner.alloc import AllocRunner
from storage.records.allocation import AllocatedResources, Allocation


def ends_before(
    allocation: Allocation,
    running: Collection[AllocRunner],
    capacity: tuple[int, int, int] | None,
    is_known: Callable[[str], bool],
) -> list[trio.Event]:
    """Return the ends that come before an allocation begins.

    Of what it replaces, of who has its ports or was evicted for it, and, where there is no room
    beside them, of all that are ending: the scheduler has given their room away. `capacity` is the
    node's CPU (MHz), memory and disk (MB), None where nobody has to make room; `is_known` tells
    whether the store has an allocation: not once it was purged.
    """
    desired, needs = allocation.desired, allocation.placement.resources
    awaited = {desired.previous_allocation, *(desired.waits_for or ())}
    some_end, ports = any(one.is_ending for one in running), needs.ports
    crowded = (
        capacity is not None
        and some_end
        and _is_crowded(
            [needs, *(one.resources for one in running if one.node_id == allocation.node_id)],
            capacity,
        )
    )

    def leaves_room(one: AllocRunner) -> bool:
        return crowded and one.is_ending and one.node_id == allocation.node_id

    def leaves_ports(one: AllocRunner) -> bool:
        if not ports or ports.isdisjoint(one.resources.ports):
            return False
        return one.is_ending or not is_known(one.id)

    return [
        one.ended for one in running if one.id in awaited or leaves_room(one) or leaves_ports(one)
    ]


def _is_crowded(every: list[AllocatedResources], capacity: tuple[int, int, int]) -> bool:
    """Tell whether it would be too much for the node if all of them ran."""
    cpu, memory, disk = capacity
    return (
        sum(one.cpu for one in every) > cpu
        or sum(one.memory for one in every) > memory
        or sum(one.shared.disk_mb for one in every) > disk
    )
