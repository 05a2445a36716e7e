"""Place allocations on nodes one by one, and record placement failures.

A `Placer` tracks the capacity of the nodes while the plan changes it. Its metrics for each
allocation and each unplaced group appear in evaluations, plans and allocations (source: Nomad's
recorded responses `blocked-evaluation`, `plan`, `evaluations-allocations`).
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import msgspec

from daemon.scheduler.nodes import capacity, feasibility, scoring, spread
from daemon.scheduler.nodes.cluster_capacity import cluster_capacity
from daemon.scheduler.nodes.constraints import DISTINCT_HOSTS
from daemon.scheduler.state import ClusterState
from storage.records.allocated_resources import ResourceHolder
from storage.records.allocation import (
    Allocation,
    ClientState,
    ClientStatus,
    DeploymentHealth,
    DesiredState,
    DesiredStatus,
    Placement,
    RescheduleTracker,
)
from storage.records.evaluation import Evaluation, NodeScore, PlacementMetric
from storage.records.group import TaskGroup
from storage.records.job import Job
from storage.records.node import Node
from storage.records.task import Resources

if TYPE_CHECKING:
    from daemon.scheduler.nodes.preemption import PreemptionCandidates

_SHOWN_SCORES = 5  # scored nodes to store, best first, as in Nomad


class PlacementRequest(msgspec.Struct, frozen=True, kw_only=True):
    """An allocation to place, and the allocation that it replaces."""

    job: Job
    group: TaskGroup
    name: str
    previous: Allocation | None = None
    tracker: RescheduleTracker | None = None
    deployment_id: str = ""
    canary: bool = False


class _Tally:
    """The metrics of one search."""

    def __init__(self) -> None:
        self.evaluated = 0
        self.filtered: Counter[str] = Counter()
        self.exhausted: Counter[str] = Counter()
        self._class_filtered: Counter[str] = Counter()
        self._class_exhausted: Counter[str] = Counter()

    def filter(self, node: Node, reason: str) -> None:
        self.filtered[reason] += 1
        if node.node_class:
            self._class_filtered[node.node_class] += 1

    def exhaust(self, node: Node, dimension: str) -> None:
        self.exhausted[dimension] += 1
        if node.node_class:
            self._class_exhausted[node.node_class] += 1

    def metric(self, scope: "_Scope", ranked: "_Ranked") -> PlacementMetric:
        best = sorted(ranked, key=lambda scored: -scored[0].mean)[:_SHOWN_SCORES]
        return PlacementMetric(
            nodes_evaluated=self.evaluated,
            nodes_filtered=self.filtered.total(),
            nodes_in_pool=len(scope.rooms),
            nodes_available=scope.available,
            node_pool=scope.pool,
            class_filtered=dict(self._class_filtered) or None,
            constraint_filtered=dict(self.filtered) or None,
            nodes_exhausted=self.exhausted.total(),
            class_exhausted=dict(self._class_exhausted) or None,
            dimension_exhausted=dict(self.exhausted) or None,
            score_meta_data=[
                NodeScore(
                    node_id=node_capacity.node.id, norm_score=scores.mean, scores=scores.by_name
                )
                for scores, node_capacity in best
            ]
            or None,
        )


_Ranked = list[tuple[scoring.NodeScores, capacity.NodeCapacity]]


class _Scope(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes in the scope of one version of the job."""

    rooms: list[capacity.NodeCapacity]
    available: Mapping[str, int]  # by datacenter
    pool: str


class _Search(msgspec.Struct, frozen=True, kw_only=True):
    """The values common to all searches for one group."""

    job: Job
    group: TaskGroup
    scope: _Scope
    need: capacity.ResourceAsk
    preferences: scoring.NodePreferences
    obstacles: Mapping[str, str | None]  # infeasibility by node ID
    of_moment: bool  # whether feasibility also depends on the allocations of a node


class PlacementFailure:
    """A group with unplaced allocations, and their number."""

    def __init__(self, search: _Search, metric: PlacementMetric) -> None:
        """Initialize with the search and the metric of the first failure."""
        self._tasks = search.group.tasks or ()
        self._metric = metric
        self.count = 0

    def add(self, count: int = 1) -> None:
        """Count further unplaced allocations of the group, without a search for nodes."""
        self.count += count

    def metric(self) -> PlacementMetric:
        """Return the metric with the resources that all unplaced allocations need."""
        short = self._metric.dimension_exhausted
        exhausted = None
        if short is not None:
            exhausted = {
                task.name: Resources(
                    cpu=task.resources.cpu * self.count if "cpu" in short else 0,
                    memory_mb=task.resources.memory_mb * self.count if "memory" in short else 0,
                )
                for task in self._tasks
            }
        return msgspec.structs.replace(
            self._metric, coalesced_failures=self.count - 1, resources_exhausted=exhausted
        )


class Placer:
    """Places allocations. It tracks the capacity of the nodes, and records placement failures."""

    def __init__(
        self, state: ClusterState, evaluation: Evaluation, *, now: int, ids: Iterator[str]
    ) -> None:
        """Initialize with the nodes of a state.

        `now` is in nanoseconds; `ids` returns an ID for each placed allocation.
        """
        here: defaultdict[str, list[Allocation]] = defaultdict(list)
        for allocation in state.allocations:
            here[allocation.node_id].append(allocation)
        self.rooms = {
            node.node.id: cluster_capacity(node, here[node.node.id]) for node in state.nodes
        }
        self.failures: dict[str, PlacementFailure] = {}
        # Preempted allocations by the ID of the preempting allocation.
        self.evicted: dict[str, list[ResourceHolder]] = {}
        self._tenants = _tenants(state, self.rooms)
        self._priority = state.job.priority if state.job else 0
        self._evaluation = evaluation
        self._now = now
        self._ids = ids
        self._scopes: dict[int, _Scope] = {}
        self._searches: dict[tuple[int, str], _Search] = {}

    # --- stops ---

    def free(self, allocation: Allocation) -> None:
        """Release the resources of an allocation that the plan stops."""
        if node_capacity := self.rooms.get(allocation.node_id):
            node_capacity.free(allocation)

    def hold(self, allocation: Allocation) -> None:
        """Assign the resources again, because the plan does not stop the allocation after all."""
        if node_capacity := self.rooms.get(allocation.node_id):
            node_capacity.hold(allocation)

    # --- placements ---

    def place(self, request: PlacementRequest) -> Allocation | None:
        """Return an allocation on the best node. If no node fits, record a failure and return None.

        After one failed search for a group, no further search is made for the group.
        """
        if failure := self.failures.get(request.group.name):
            failure.add()
            return None
        return self._find(request)

    def replace(self, request: PlacementRequest, previous: Allocation) -> Allocation | None:
        """Place an allocation like `place`, but with the resources of `previous` also available."""
        self.free(previous)
        allocation = self._find(request)
        if allocation is None:
            self.hold(previous)
        return allocation

    def _find(self, request: PlacementRequest) -> Allocation | None:
        search = self._search(request.job, request.group)
        for node_capacities in (self._preferred(search, request), search.scope.rooms):
            tally = _Tally()
            ranked = self._ranked(search, request, node_capacities, tally)
            if ranked:
                _, node_capacity = max(ranked, key=lambda scored: scored[0].mean)
                return self._allocation(
                    search, request, node_capacity, tally.metric(search.scope, ranked)
                )
        if displacing := self._displace(search, request, search.scope.rooms):
            return displacing
        self.fail(request.job, request.group, tally.metric(search.scope, []))
        return None

    def place_on(self, request: PlacementRequest, node_id: str) -> Allocation | PlacementMetric:
        """Return the allocation on a given node, or the metric of the failure."""
        search, node_capacity = self._search(request.job, request.group), self.rooms[node_id]
        tally = _Tally()
        if not self._fits(search, request, node_capacity, tally):
            displacing = self._displace(search, request, [node_capacity])
            return displacing or tally.metric(search.scope, [])
        ranked = [(scoring.fit_only(search.need, node_capacity), node_capacity)]
        return self._allocation(search, request, node_capacity, tally.metric(search.scope, ranked))

    def _displace(
        self,
        search: _Search,
        request: PlacementRequest,
        node_capacities: Iterable[capacity.NodeCapacity],
    ) -> Allocation | None:
        """Return an allocation that preempts others, on the node with the least important victims.

        Return None if preemption does not free enough capacity on any node.
        """
        tally = _Tally()
        options: list[tuple[tuple[int, int], capacity.NodeCapacity, list[ResourceHolder]]] = []
        may = request.job.priority >= self._priority  # an older version may have a lower priority
        for node_capacity in node_capacities if may else ():
            if node_capacity.node.id in self._tenants and self._suits(
                search, request, node_capacity, tally
            ):
                victims = self._tenants[node_capacity.node.id].choose(search.need)
                if victims is not None:
                    priorities = [victim.priority for victim in victims]
                    options.append(
                        ((max(priorities, default=0), sum(priorities)), node_capacity, victims)
                    )
        if not options:
            return None
        _, node_capacity, victims = min(options, key=lambda option: option[0])
        tenants = self._tenants[node_capacity.node.id]
        tenants.release_victims(victims)
        ranked = [(scoring.fit_only(search.need, node_capacity), node_capacity)]
        metric = tally.metric(search.scope, ranked)
        allocation = self._allocation(
            search, request, node_capacity, metric, victims=victims, waits_for=tenants.ending
        )
        tenants.occupy(victims)
        tenants.evict(victims, allocation)
        self.evicted[allocation.id] = victims
        return allocation

    def fail(self, job: Job, group: TaskGroup, metric: PlacementMetric) -> None:
        """Record an unplaced allocation. For each group, only the first metric is kept."""
        earlier = self.failures.get(group.name)
        failure = earlier or PlacementFailure(self._search(job, group), metric)
        failure.add()
        self.failures[group.name] = failure

    def may_stay(self, job: Job, group: TaskGroup, allocation: Allocation) -> bool:
        """Return whether a new job version may run on the node of an existing allocation."""
        node_capacity = self.rooms.get(allocation.node_id)
        if node_capacity is None or not feasibility.in_scope(job, node_capacity.node):
            return False
        search = self._search(job, group)
        if node_capacity.node.id in search.obstacles:
            reason = search.obstacles[node_capacity.node.id]
        else:  # the node is ineligible
            reason = feasibility.infeasibility(job, group, node_capacity.node)
        if reason is None and search.of_moment:
            node_capacity.groups[group.name] -= 1
            reason = self._current_infeasibility(search, allocation.index, node_capacity)
            node_capacity.groups[group.name] += 1
        return reason is None

    def is_suited(self, job: Job, group: TaskGroup, node_id: str) -> bool:
        """Return whether a group is feasible on a node in scope, regardless of capacity."""
        return self._search(job, group).obstacles.get(node_id) is None

    def _preferred(self, search: _Search, request: PlacementRequest) -> list[capacity.NodeCapacity]:
        """Return a list with the previous node, or an empty list.

        The list is empty unless the group's ephemeral disk is `sticky` or `migrate`.
        """
        disk, previous = request.group.ephemeral_disk, request.previous
        if previous is None or not (disk.sticky or disk.migrate):
            return []
        return [
            node_capacity
            for node_capacity in search.scope.rooms
            if node_capacity.node.id == previous.node_id
        ]

    def _ranked(
        self,
        search: _Search,
        request: PlacementRequest,
        node_capacities: Iterable[capacity.NodeCapacity],
        tally: _Tally,
    ) -> _Ranked:
        failed_on = _failed_on(request.previous)
        return [
            (self._scores(search, node_capacity, failed_on), node_capacity)
            for node_capacity in node_capacities
            if self._fits(search, request, node_capacity, tally)
        ]

    def _scores(
        self, search: _Search, node_capacity: capacity.NodeCapacity, failed_on: set[str]
    ) -> scoring.NodeScores:
        return scoring.scores(
            search.job,
            search.need,
            search.preferences,
            node_capacity,
            self.rooms,
            failed_here=node_capacity.node.id in failed_on,
        )

    def _fits(
        self,
        search: _Search,
        request: PlacementRequest,
        node_capacity: capacity.NodeCapacity,
        tally: _Tally,
    ) -> bool:
        if not self._suits(search, request, node_capacity, tally):
            return False
        dimension = node_capacity.missing_resource(search.need)
        if dimension is not None:
            tally.exhaust(node_capacity.node, dimension)
            return False
        return True

    def _suits(
        self,
        search: _Search,
        request: PlacementRequest,
        node_capacity: capacity.NodeCapacity,
        tally: _Tally,
    ) -> bool:
        """Return whether a node is feasible for an allocation, and count the reason if not."""
        tally.evaluated += 1
        reason = search.obstacles[node_capacity.node.id]
        if reason is None and search.of_moment:
            reason = self._current_infeasibility(search, _number(request.name), node_capacity)
        if reason is not None:
            tally.filter(node_capacity.node, reason)
        return reason is None

    def _current_infeasibility(
        self, search: _Search, number: int, node_capacity: capacity.NodeCapacity
    ) -> str | None:
        """Return why one allocation is infeasible on a node that is feasible for its group."""
        job, group = search.job, search.group
        volume = feasibility.volume_obstacle(job, group, node_capacity.node, number)
        if volume is not None:
            return volume
        of_job = feasibility.wants_distinct_hosts(job.constraints) and node_capacity.groups.total()
        of_group = (
            feasibility.wants_distinct_hosts(group.constraints) and node_capacity.groups[group.name]
        )
        if of_job or of_group:
            return DISTINCT_HOSTS
        return spread.exhausted_property(job, group, node_capacity, self.rooms.values())

    def _allocation(
        self,
        search: _Search,
        request: PlacementRequest,
        node_capacity: capacity.NodeCapacity,
        metric: PlacementMetric,
        *,
        victims: Iterable[ResourceHolder] = (),
        waits_for: Iterable[str] = (),
    ) -> Allocation:
        job, allocation_id = request.job, next(self._ids)
        resources = node_capacity.offer(search.need, allocation_id, job.region)
        previous = request.previous.id if request.previous else ""
        allocation = Allocation(
            id=allocation_id,
            namespace=job.namespace,
            job_id=job.id,
            job_version=job.version,
            job_type=job.type,
            task_group=request.group.name,
            name=request.name,
            node_id=node_capacity.node.id,
            eval_id=self._evaluation.id,
            deployment_id=request.deployment_id,
            desired_status=DesiredStatus.RUN,
            client_status=ClientStatus.PENDING,
            placement=Placement(
                resources=resources, metrics=metric, node_name=node_capacity.node.name
            ),
            desired=DesiredState(
                previous_allocation=previous,
                reschedule_tracker=request.tracker,
                preempted_allocations=(preempted := [victim.id for victim in victims]) or None,
                waits_for=[*waits_for, *preempted] or None,
            ),
            client=ClientState(),
            health=DeploymentHealth(canary=True) if request.canary else None,
            create_index=0,
            modify_index=0,
            alloc_modify_index=0,
            create_time=self._now,
            modify_time=self._now,
        )
        node_capacity.hold(allocation)
        return allocation

    # --- group searches ---

    def _search(self, job: Job, group: TaskGroup) -> _Search:
        key = (job.version, group.name)
        cached = self._searches.get(key)
        if cached is not None:
            return cached
        constraints = [*(job.constraints or ()), *(group.constraints or ())]
        search = _Search(
            job=job,
            group=group,
            scope=self._scope(job),
            need=capacity.resource_ask(group),
            preferences=scoring.node_preferences(job, group),
            obstacles={
                node_capacity.node.id: feasibility.infeasibility(job, group, node_capacity.node)
                for node_capacity in self._scope(job).rooms
            },
            of_moment=bool(group.volumes)
            or any(constraint.operand in feasibility.OF_MOMENT for constraint in constraints),
        )
        self._searches[key] = search
        return search

    def _scope(self, job: Job) -> _Scope:
        cached = self._scopes.get(job.version)
        if cached is not None:
            return cached
        node_capacities = [
            node_capacity
            for node_capacity in self.rooms.values()
            if node_capacity.node.ready and feasibility.in_scope(job, node_capacity.node)
        ]
        available = Counter(node_capacity.node.datacenter for node_capacity in node_capacities)
        scope = _Scope(rooms=node_capacities, available=dict(available), pool=job.node_pool)
        self._scopes[job.version] = scope
        return scope

    def eligibility(self) -> dict[str, bool]:
        """Return whether any unplaced group is feasible, by node class."""
        classes: dict[str, bool] = {}
        for search in self._searches.values():
            for node_id, obstacle in search.obstacles.items():
                name = self.rooms[node_id].node.computed_class
                classes[name] = classes.get(name, False) or obstacle is None
        return classes


def _tenants(
    state: ClusterState, node_capacities: Mapping[str, capacity.NodeCapacity]
) -> "dict[str, PreemptionCandidates]":
    """Return the preemption candidates of each node; empty if preemption is not possible."""
    if state.holders is None or state.job is None:
        return {}
    from daemon.scheduler.nodes.preemption import PreemptionCandidates  # imported late: rare

    here: defaultdict[str, list[ResourceHolder]] = defaultdict(list)
    for holder in state.holders:
        here[holder.node_id].append(holder)
    job, hosts = (
        state.job,
        [
            (name, node_capacity)
            for name, node_capacity in node_capacities.items()
            if not node_capacity.queues
        ],
    )
    return {
        name: PreemptionCandidates(node_capacity, here[name], job) for name, node_capacity in hosts
    }


def _failed_on(previous: Allocation | None) -> set[str]:
    """Return the IDs of the nodes on which `previous` and its predecessors have failed."""
    if previous is None:
        return set()
    tracker = previous.desired.reschedule_tracker
    nodes = {event.prev_node_id for event in tracker.events} if tracker else set()
    if previous.client_status == ClientStatus.FAILED:
        nodes.add(previous.node_id)
    return nodes


def _number(name: str) -> int:
    """Return the index in a name: 3 for `job.group[3]`."""
    return int(name.rpartition("[")[2].removesuffix("]"))
