"""Find blocked evaluations that would fit now, including by preemption.

Each blocked evaluation stores its missing resources, so that freed resources unblock only
evaluations that match. Memory, CPU and disk are numbers; everything else is in `ExtraResources`.
"""

from collections import defaultdict
from collections.abc import Iterable
from functools import cached_property

import msgspec

from daemon.evals.scheduler_config import configuration
from daemon.scheduler.nodes.capacity import ResourceAsk, resource_ask
from daemon.scheduler.nodes.cluster_capacity import cluster_capacity
from daemon.scheduler.nodes.feasibility import in_pool
from daemon.scheduler.state import ClusterState, NodeState, Plan
from storage.queries import allocated_resources, evaluations
from storage.queries.evaluations import NO_ROOM
from storage.read_pool import ReadSnapshot
from storage.records.allocated_resources import ResourceHolder
from storage.records.allocation import AllocatedResources, DesiredStatus
from storage.records.group import TaskGroup
from storage.records.job import Job
from storage.records.operator_api import PreemptionConfig
from storage.records.task import Device, Network, Port

_ANY_ROOM = evaluations.FreedResources(memory=1)


class ExtraResources(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The resource ask of an allocation beyond CPU, memory and disk, and its job's type and pool.

    Ports have no labels here, so that thousands of blocked evaluations have only a few distinct
    asks.
    """

    type: str
    pool: str = ""  # node pool; empty means any
    cores: int = 0
    static: tuple[int, ...] = ()
    dynamic: int = 0  # number of dynamic ports
    devices: tuple[Device, ...] = ()

    @property
    def networks(self) -> tuple[Network, ...]:
        """Return a network block that requests these ports."""
        static = [Port(label=str(value), value=value) for value in self.static]
        dynamic = [Port(label=f"any {number}") for number in range(self.dynamic)]
        return (Network(reserved_ports=static, dynamic_ports=dynamic),)


def _extra_resources(job: Job, need: ResourceAsk) -> ExtraResources:
    static = {
        port.value
        for network in need.networks
        for port in network.reserved_ports or ()
        if not port.ignore_collision
    }
    return ExtraResources(
        type=job.type,
        pool=job.node_pool,
        cores=need.cores,
        static=tuple(sorted(static)),
        dynamic=sum(len(network.dynamic_ports or ()) for network in need.networks),
        devices=need.devices,
    )


def smallest_resource_ask(state: ClusterState, plan: Plan) -> evaluations.FreedResources:
    """Return the smallest resources with which one allocation of an unplaced group fits.

    All values are zero if no group lacks capacity, because then only a change of the nodes can
    help. If only some of the unplaced groups lack capacity, any freed resources cause a
    re-evaluation. Resources other than CPU, memory and disk are included only if a single group is
    unplaced and replaces no older allocation.
    """
    job, needs = state.job, []
    groups = job.groups_by_name() if job else {}
    for name, metric in plan.failed.items():
        group = groups.get(name)
        needs.append(resource_ask(group) if group is not None and metric.nodes_exhausted else None)
    known_needs = [need for need in needs if need is not None]
    if job is None or not known_needs:
        return NO_ROOM
    if len(known_needs) < len(needs):
        return _ANY_ROOM
    given_back = _given_back(job, state, plan)
    extra = (
        ExtraResources(type=job.type, pool=job.node_pool)
        if given_back or len(known_needs) > 1
        else _extra_resources(job, known_needs[0])
    )
    # Use the maximum of all replaceable allocations: an unnecessary re-evaluation is harmless.
    return evaluations.FreedResources(
        cpu=_shortage(
            (need.cpu for need in known_needs), (resources.cpu for resources in given_back)
        ),
        memory=_shortage(
            (need.memory for need in known_needs), (resources.memory for resources in given_back)
        ),
        disk=_shortage(
            (need.disk for need in known_needs), (resources.disk for resources in given_back)
        ),
        besides=msgspec.json.encode(extra).decode(),
    )


def _given_back(job: Job, state: ClusterState, plan: Plan) -> list[AllocatedResources]:
    """Return the resources that unplaced groups release when they replace older allocations."""
    return [
        alloc.placement.resources
        for alloc in state.allocations
        if alloc.task_group in plan.failed
        and alloc.job_version != job.version
        and alloc.desired_status == DesiredStatus.RUN
        and not alloc.client_terminal
    ]


def _shortage(needed: Iterable[int], free: Iterable[int]) -> int:
    return max(min(needed) - max(free, default=0), 0)


class Unblocker:
    """Checks resource asks against the capacity of all nodes in one snapshot."""

    def __init__(self, db: ReadSnapshot, states: tuple[NodeState, ...]) -> None:
        """Initialize with the states of all nodes."""
        self._db = db
        self._rooms = [cluster_capacity(state, ()) for state in states if state.node.ready]

    def fit(self, needed: evaluations.FreedResources, priority: int) -> bool:
        """Return whether an ask fits on any node for a job of this priority."""
        extra = ExtraResources(type="")
        if needed.besides:
            extra = msgspec.json.decode(needed.besides, type=ExtraResources)
        need = ResourceAsk(
            group=TaskGroup(name=""),
            cpu=needed.cpu,
            memory=needed.memory,
            disk=needed.disk,
            cores=extra.cores,
            networks=extra.networks,
            devices=extra.devices,
            fixed=None,
        )
        anyone = Job(id="", priority=priority, node_pool=extra.pool)
        in_scope = [capacity for capacity in self._rooms if in_pool(anyone, capacity.node)]
        if any(capacity.missing_resource(need) is None for capacity in in_scope):
            return True
        if not self._may_displace.may_preempt(extra.type):
            return False
        from daemon.scheduler.nodes.preemption import PreemptionCandidates  # imported late: rare

        return any(
            PreemptionCandidates(capacity, self._holders[capacity.node.id], anyone).choose(need)
            is not None
            for capacity in in_scope
            if not capacity.queues
        )

    @cached_property
    def _may_displace(self) -> PreemptionConfig:
        return configuration(self._db).preemption_config

    @cached_property
    def _holders(self) -> dict[str, list[ResourceHolder]]:
        holders: defaultdict[str, list[ResourceHolder]] = defaultdict(list)
        for holder in allocated_resources.holders(self._db):
            holders[holder.node_id].append(holder)
        return holders
