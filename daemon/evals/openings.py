"""Openings: whether what waits for room would find it now, others making room included.

What is needed is stored with the evaluation that waits, so that only those are looked at again for
which what they lack has appeared: memory, CPU and disk as numbers, all else as `Besides`.
"""

from collections import defaultdict
from collections.abc import Iterable
from functools import cached_property

import msgspec

from daemon.evals.configuration import configuration
from daemon.scheduler.nodes.feasible import in_pool
from daemon.scheduler.nodes.fit import Need, need_of
from daemon.scheduler.nodes.preempt import Tenants
from daemon.scheduler.nodes.queue import room_of
from daemon.scheduler.state import ClusterState, NodeState, Plan
from storage.queries import evaluations, holdings
from storage.queries.evaluations import NO_ROOM
from storage.readers import Snapshot
from storage.records.allocation import AllocatedResources, DesiredStatus
from storage.records.group import TaskGroup
from storage.records.holder import Holder
from storage.records.job import Job
from storage.records.operation import PreemptionConfig
from storage.records.task import Device, Network, Port

_ANY_ROOM = evaluations.Room(memory=1)


class Besides(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an allocation needs besides CPU, memory and disk; and type and pool of its job.

    Ports have no names here: so what thousands wait for is a few needs.
    """

    type: str
    pool: str = ""  # of nodes; nothing: any
    cores: int = 0
    static: tuple[int, ...] = ()
    dynamic: int = 0  # how many ports it does not matter which
    devices: tuple[Device, ...] = ()

    @property
    def networks(self) -> tuple[Network, ...]:
        """Return a network with these ports."""
        static = [Port(label=str(value), value=value) for value in self.static]
        dynamic = [Port(label=f"any {number}") for number in range(self.dynamic)]
        return (Network(reserved_ports=static, dynamic_ports=dynamic),)


def _besides(job: Job, need: Need) -> Besides:
    static = {
        port.value
        for network in need.networks
        for port in network.reserved_ports or ()
        if not port.ignore_collision
    }
    return Besides(
        type=job.type,
        pool=job.node_pool,
        cores=need.cores,
        static=tuple(sorted(static)),
        dynamic=sum(len(network.dynamic_ports or ()) for network in need.networks),
        devices=need.devices,
    )


def least_room(state: ClusterState, plan: Plan) -> evaluations.Room:
    """Return the least room that lets one allocation of a group that did not fit be placed.

    All zero when no group waits for room: then only a change of the nodes can help. Where one does
    and another does not, any room is worth a look. What several groups need besides is not kept, nor
    what a group does whose older allocations give back what they hold once they are replaced.
    """
    job, needs = state.job, []
    for name, metric in plan.failed.items():
        group = job.group(name) if job else None
        needs.append(need_of(group) if group is not None and metric.nodes_exhausted else None)
    known = [need for need in needs if need is not None]
    if job is None or not known:
        return NO_ROOM
    if len(known) < len(needs):
        return _ANY_ROOM
    given_back = _given_back(job, state, plan)
    besides = (
        Besides(type=job.type, pool=job.node_pool)
        if given_back or len(known) > 1
        else _besides(job, known[0])
    )
    # Of all that may be replaced the most that any of them holds: rather a look too many.
    return evaluations.Room(
        cpu=_beyond((need.cpu for need in known), (one.cpu for one in given_back)),
        memory=_beyond((need.memory for need in known), (one.memory for one in given_back)),
        disk=_beyond((need.disk for need in known), (one.disk for one in given_back)),
        besides=msgspec.json.encode(besides).decode(),
    )


def _given_back(job: Job, state: ClusterState, plan: Plan) -> list[AllocatedResources]:
    """Return what those hold that end when another of the groups that did not fit takes their place."""
    return [
        one.placement.resources
        for one in state.allocations
        if one.task_group in plan.failed
        and one.job_version != job.version
        and one.desired_status == DesiredStatus.RUN
        and not one.client_terminal
    ]


def _beyond(needed: Iterable[int], held: Iterable[int]) -> int:
    return max(min(needed) - max(held, default=0), 0)


class Openings:
    """The room that there is at one moment."""

    def __init__(self, db: Snapshot, states: tuple[NodeState, ...]) -> None:
        """`states` are all nodes."""
        self._db = db
        self._rooms = [room_of(one, ()) for one in states if one.node.ready]

    def fit(self, needed: evaluations.Room, priority: int) -> bool:
        """Tell whether something of a job of this priority would find on any node what it needs."""
        besides = Besides(type="")
        if needed.besides:
            besides = msgspec.json.decode(needed.besides, type=Besides)
        need = Need(
            group=TaskGroup(name=""),
            cpu=needed.cpu,
            memory=needed.memory,
            disk=needed.disk,
            cores=besides.cores,
            networks=besides.networks,
            devices=besides.devices,
            fixed=None,
        )
        anyone = Job(id="", priority=priority, node_pool=besides.pool)
        rooms = [room for room in self._rooms if in_pool(anyone, room.node)]
        if any(room.lack(need) is None for room in rooms):
            return True
        if not self._may_displace.makes_room_for(besides.type):
            return False
        return any(
            Tenants(room, self._holders[room.node.id], anyone).choose(need) is not None
            for room in rooms
            if not room.queues
        )

    @cached_property
    def _may_displace(self) -> PreemptionConfig:
        return configuration(self._db).preemption_config

    @cached_property
    def _holders(self) -> dict[str, list[Holder]]:
        found: defaultdict[str, list[Holder]] = defaultdict(list)
        for one in holdings.holders(self._db):
            found[one.node_id].append(one)
        return found
