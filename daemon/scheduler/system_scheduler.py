"""Plans of system and sysbatch jobs: each group once on every feasible node.

A system job runs permanently, a sysbatch job until it completes. The absence of an allocation on an
infeasible node is not a placement failure. On a node without capacity, it is a failure, and the
node gets a blocked evaluation (source: Nomad's recorded responses `kind-system`, `kind-sysbatch`,
`plan-batch-system`).
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from math import ceil

import msgspec

from daemon.scheduler.alloc_sets import LOST, NOT_NEEDED, UPDATED, by_number, is_on_lost_node
from daemon.scheduler.nodes.feasibility import in_scope
from daemon.scheduler.nodes.placement import PlacementRequest, Placer
from daemon.scheduler.plan_builder import PlanBuilder
from daemon.scheduler.rollout import Rollout, max_parallel
from daemon.scheduler.state import ClusterState, Plan
from daemon.scheduler.updates import requires_replacement
from storage.records.allocation import Allocation, ClientStatus, DesiredStatus
from storage.records.evaluation import DesiredUpdates, Evaluation, PlacementMetric, Trigger
from storage.records.group import TaskGroup
from storage.records.job import Job, JobType
from storage.records.node import Node

NODE_TAINTED = "alloc not needed as node is tainted"


class _Slot(msgspec.Struct, frozen=True, kw_only=True):
    """A position for one allocation: a node, a name, and the current or last allocation there."""

    node_id: str
    name: str
    previous: Allocation | None = None


class _Sorted(msgspec.Struct, kw_only=True):
    """The changes to one group, node by node."""

    group: TaskGroup
    keep: list[Allocation] = []
    update: list[Allocation] = []  # in place
    outdated: list[_Slot] = []
    place: list[_Slot] = []
    failed: list[Allocation] = []  # failed allocations that are not replaced, but still count
    apart: int = 0  # allocations of older versions on nodes that get no placements
    moved: int = 0
    stopped: int = 0
    has_version: bool = False  # whether an allocation of the job's current version runs or has run


class _Filled(msgspec.Struct, kw_only=True):
    """The placement result of one group."""

    unsuited: int = 0  # infeasible nodes
    filtered: PlacementMetric | None = None  # why these nodes are infeasible
    full: list[str] = []  # nodes without capacity
    placed: int = 0
    canaries: int = 0


def plan_system(
    state: ClusterState, job: Job, evaluation: Evaluation, *, now: int, ids: Iterator[str]
) -> Plan:
    """Return the plan that runs each group of a job on every feasible node."""
    planning = _Planning(state, job, evaluation, now=now, ids=ids)
    planning.sort()
    planning.deploy()
    for group in planning.groups.values():
        planning.fill(group)
    return planning.plan()


class _Planning:
    """The plan of one system or sysbatch job under construction."""

    def __init__(
        self,
        state: ClusterState,
        job: Job,
        evaluation: Evaluation,
        *,
        now: int,
        ids: Iterator[str],
    ) -> None:
        self.groups = {
            group.name: _Sorted(group=group) for group in job.task_groups or () if group.count
        }
        self._state = state
        self._job = job
        self._evaluation = evaluation
        self._nodes = {node.node.id: node.node for node in state.nodes}
        self._placer = Placer(state, evaluation, now=now, ids=ids)
        self._rollout = Rollout(job, state.deployment, evaluation, now=now, ids=ids)
        self._draft = PlanBuilder(state, evaluation, now=now, ids=ids)
        # Stopped allocations of groups that the job no longer has.
        self._surplus: Counter[str] = Counter()
        self._known = {alloc.id: alloc for alloc in state.allocations}
        self._filled: dict[str, _Filled] = {}

    # --- sorting ---

    def sort(self) -> None:
        """Sort the allocations, stop those that must stop, and find empty positions."""
        self._draft.end_lost(self._state.allocations, self._nodes)
        names = {
            f"{self._job.id}.{group.group.name}[{number}]": group
            for group in self.groups.values()
            for number in range(group.group.count)
        }
        ended = self._ended()
        live: set[tuple[str, str]] = set()
        for allocation in by_number(self._state.allocations):
            own_group = names.get(allocation.name)
            if own_group is not None:
                own_group.has_version |= not self._is_older(allocation)
            if not allocation.terminal:
                live.add((allocation.node_id, allocation.name))
                self._sort_live(allocation, own_group)
        for node in self._nodes.values():
            if not (node.ready and in_scope(self._job, node)):
                continue
            for name, sorted_group in names.items():
                if (node.id, name) not in live:
                    self._sort_empty(sorted_group, node, name, ended.get((node.id, name)))

    def _ended(self) -> dict[tuple[str, str], Allocation]:
        """Return the newest ended allocation of each name on each node, by node ID and name."""
        oldest_first = sorted(
            self._state.allocations, key=lambda alloc: (alloc.create_index, alloc.id)
        )
        return {(alloc.node_id, alloc.name): alloc for alloc in oldest_first if alloc.terminal}

    def _is_older(self, allocation: Allocation) -> bool:
        return allocation.job_version != self._job.version

    def _sort_live(self, allocation: Allocation, sorted_group: _Sorted | None) -> None:
        node = self._nodes.get(allocation.node_id)
        if sorted_group is None:
            self._surplus[allocation.task_group] += 1
            self._stop(allocation, NOT_NEEDED)
        elif allocation.desired.transition.migrate:
            self._move(allocation, sorted_group, node)
        elif node is None or is_on_lost_node(allocation, self._nodes):
            self._stop(allocation, LOST)
        elif not in_scope(self._job, node):
            sorted_group.stopped += 1
            self._stop(allocation, NOT_NEEDED)
        elif not self._is_older(allocation):
            sorted_group.keep.append(allocation)
        elif not node.ready:
            sorted_group.apart += 1
        elif self._is_outdated(allocation, sorted_group.group):
            sorted_group.outdated.append(_slot(allocation))
        elif self._placer.may_stay(self._job, sorted_group.group, allocation):
            sorted_group.update.append(allocation)
        else:
            sorted_group.outdated.append(_slot(allocation))

    def _move(self, allocation: Allocation, sorted_group: _Sorted, node: Node | None) -> None:
        """Stop a migrating allocation; place it again on its node if the node is still eligible."""
        sorted_group.moved += 1
        self._stop(allocation, NODE_TAINTED)
        if node is not None and node.ready and in_scope(self._job, node):
            sorted_group.place.append(_slot(allocation))

    def _sort_empty(
        self, sorted_group: _Sorted, node: Node, name: str, ended: Allocation | None
    ) -> None:
        slot = _Slot(node_id=node.id, name=name, previous=ended)
        displaced = ended is not None and ended.desired_status == DesiredStatus.EVICT
        if ended is None or displaced or ended.client_status == ClientStatus.LOST:
            sorted_group.place.append(slot)
        elif self._job.type == JobType.SYSBATCH:
            if self._is_older(ended) and self._is_outdated(ended, sorted_group.group):
                sorted_group.outdated.append(slot)
            else:
                sorted_group.keep.append(ended)  # completed
        elif self._is_older(ended) or self._may_place_again(ended):
            sorted_group.place.append(slot)
        else:
            sorted_group.failed.append(ended)

    def _may_place_again(self, ended: Allocation) -> bool:
        """Return whether an ended allocation that Steward did not stop is placed again on its node.

        System jobs have no reschedule policy. The evaluation that the failure triggers does not
        replace the allocation. A registration of the job always replaces it, and any other
        evaluation replaces it once per version. Otherwise, each evaluation would immediately
        replace a failing allocation, and so cause the next evaluation.
        """
        trigger, earlier = self._evaluation.triggered_by, ended.desired.previous_allocation
        if trigger in (Trigger.ALLOC_FAILURE, Trigger.JOB_REGISTER):
            return trigger == Trigger.JOB_REGISTER
        if not earlier:
            return True
        previous = self._known.get(earlier)
        return previous is not None and self._is_older(previous)

    def _is_outdated(self, allocation: Allocation, group: TaskGroup) -> bool:
        old = self._state.versions.get(allocation.job_version, self._job)
        return requires_replacement(old, self._job, group.name)

    def _stop(self, allocation: Allocation, description: str) -> None:
        self._draft.stop(allocation, description, lost=description == LOST)
        self._placer.free(allocation)

    # --- deployment ---

    def deploy(self) -> None:
        """Create the deployment of a new version, and update allocations in place."""
        for group in self.groups.values():
            if self._begins(group):
                self._rollout.begin(group.group, total=0)
        for group in self.groups.values():
            for allocation in group.update:
                deployment_id = self._rollout.id_for(group.group.name)
                self._draft.update_in_place(allocation, self._job.version, deployment_id)

    def _begins(self, sorted_group: _Sorted) -> bool:
        if self._job.type == JobType.SYSBATCH or not max_parallel(sorted_group.group):
            return False
        if self._rollout.group(sorted_group.group.name) is not None:
            return False
        if self._rollout.of_this_version(self._state.deployment) and not self._rollout.current:
            return False  # deployed already
        changing = sorted_group.update or sorted_group.outdated
        possible = [
            slot
            for slot in (*sorted_group.place, *sorted_group.outdated)
            if self._placer.is_suited(self._job, sorted_group.group, slot.node_id)
        ]
        return bool(sorted_group.update or possible) and bool(
            changing or not sorted_group.has_version
        )

    # --- placement ---

    def fill(self, sorted_group: _Sorted) -> None:
        """Fill empty positions, and replace outdated allocations as fast as the rollout permits."""
        filled = self._filled[sorted_group.group.name] = _Filled()
        for slot in sorted_group.place:
            placed = self._place(sorted_group, slot, filled)
            if placed is not None:
                self._draft.place(placed, slot.previous)
        canary_count = self._desired_canaries(sorted_group)
        limit = self._limit(sorted_group) - filled.placed
        if canary_count is not None:
            limit = min(limit, canary_count - len(self._canaries(sorted_group)))
        for slot in sorted_group.outdated[: max(limit, 0)]:
            self._replace(sorted_group, slot, filled, canary=canary_count is not None)
        self._record_group(sorted_group, filled, canary_count)

    def _canaries(self, sorted_group: _Sorted) -> list[Allocation]:
        ids = self._rollout.canaries(sorted_group.group.name)
        return [allocation for allocation in sorted_group.keep if allocation.id in ids]

    def _desired_canaries(self, sorted_group: _Sorted) -> int | None:
        """Return how many nodes get canaries, or None for no canaries.

        For system jobs, `canary` is a percentage of the nodes to update.
        """
        state, update = self._rollout.group(sorted_group.group.name), sorted_group.group.update
        if state is None or state.promoted or update is None or not update.canary:
            return None
        nodes = len(sorted_group.outdated) + len(self._canaries(sorted_group))
        if not sorted_group.outdated and not state.desired_canaries:
            return None
        return min(ceil(update.canary * nodes / 100), update.max_parallel)

    def _limit(self, sorted_group: _Sorted) -> int:
        if self._rollout.is_blocked:
            return 0
        if self._job.type == JobType.SYSBATCH or not max_parallel(sorted_group.group):
            return len(sorted_group.outdated) + len(sorted_group.place)
        return self._rollout.update_capacity(sorted_group.group, sorted_group.keep)

    def _replace(
        self, sorted_group: _Sorted, slot: _Slot, filled: _Filled, *, canary: bool
    ) -> None:
        previous = slot.previous
        if previous is None:
            return
        running = not previous.terminal
        if running:
            self._placer.free(previous)
        unsuited = filled.unsuited
        placed = self._place(sorted_group, slot, filled, canary=canary)
        if placed is None and running and unsuited == filled.unsuited:
            self._placer.hold(previous)  # it stays, because its replacement has no capacity
            return
        if running or placed is not None:
            self._draft.stop(previous, UPDATED)
        if placed is not None:
            filled.canaries += canary
            self._draft.place(placed, previous)

    def _place(
        self, sorted_group: _Sorted, slot: _Slot, filled: _Filled, *, canary: bool = False
    ) -> Allocation | None:
        request = PlacementRequest(
            job=self._job,
            group=sorted_group.group,
            name=slot.name,
            previous=slot.previous,
            deployment_id=self._rollout.id_for(sorted_group.group.name),
            canary=canary,
        )
        result = self._placer.place_on(request, slot.node_id)
        if isinstance(result, Allocation):
            filled.placed += 1
            return result
        if result.nodes_exhausted:
            filled.full.append(slot.node_id)
            self._placer.fail(self._job, sorted_group.group, result)
        else:
            filled.unsuited += 1
            filled.filtered = _merged(filled.filtered, result)
        return None

    def _record_group(
        self, sorted_group: _Sorted, filled: _Filled, canary_count: int | None
    ) -> None:
        """Record the result of a group in its counts, failures and deployment."""
        name = sorted_group.group.name
        there = (
            len(sorted_group.keep)
            + len(sorted_group.update)
            + len(sorted_group.failed)
            + len(filled.full)
        )
        there += filled.placed
        if filled.filtered is not None and not there:
            self._placer.fail(self._job, sorted_group.group, filled.filtered)
        state = self._rollout.group(name)
        if state is not None:
            changed = msgspec.structs.replace(
                state,
                desired_total=self._number_of_nodes(sorted_group, filled),
                desired_canaries=state.desired_canaries if canary_count is None else canary_count,
            )
            self._rollout.set_group(name, changed)

    def _number_of_nodes(self, sorted_group: _Sorted, filled: _Filled) -> int:
        """Return on how many nodes the group can run."""
        there = len(sorted_group.keep) + len(sorted_group.update) + len(sorted_group.failed)
        return there + len(sorted_group.place) + len(sorted_group.outdated) - filled.unsuited

    # --- plan ---

    def plan(self) -> Plan:
        """Return the plan."""
        rollout = self._rollout
        rollout.record_placed([*self._draft.placed, *self._draft.joined])
        if rollout.current and all(map(rollout.is_healthy, rollout.current.task_groups)):
            rollout.finish()
        self._draft.counts.update(self._counts())
        self._draft.queued.update(self._queued())
        full = {node_id for filled in self._filled.values() for node_id in filled.full}
        only = next(iter(full)) if len(full) == 1 else ""
        return self._draft.plan(rollout, self._placer, wait=bool(full), node_id=only)

    def _queued(self) -> Mapping[str, int]:
        names = [group.name for group in self._job.task_groups or ()]
        filled = {name: self._filled.get(name, _Filled()) for name in names}
        return {name: len(placing.full) for name, placing in filled.items()}

    def _counts(self) -> Mapping[str, DesiredUpdates]:
        counts = {
            name: DesiredUpdates(
                # Nomad counts all feasible nodes of a system job, but for a sysbatch job only the
                # nodes without an allocation (Nomad's recorded responses: plan-batch-system).
                place=self._number_of_nodes(placing, self._filled[name])
                if self._job.type == JobType.SYSTEM
                else len(placing.place),
                ignore=len(placing.keep) + placing.apart,
                migrate=placing.moved,
                stop=placing.stopped + self._surplus.pop(name, 0),
                in_place_update=len(placing.update),
                destructive_update=len(placing.outdated),
                canary=self._filled[name].canaries + len(self._canaries(placing)),
            )
            for name, placing in self.groups.items()
        }
        return counts | {name: DesiredUpdates(stop=n) for name, n in self._surplus.items()}


def _slot(allocation: Allocation) -> _Slot:
    return _Slot(node_id=allocation.node_id, name=allocation.name, previous=allocation)


def _merged(placement_metric: PlacementMetric | None, other: PlacementMetric) -> PlacementMetric:
    """Return the sum of two placement metrics of different nodes."""
    if placement_metric is None:
        return other
    return msgspec.structs.replace(
        placement_metric,
        nodes_evaluated=placement_metric.nodes_evaluated + other.nodes_evaluated,
        nodes_filtered=placement_metric.nodes_filtered + other.nodes_filtered,
        class_filtered=_add_counts(placement_metric.class_filtered, other.class_filtered),
        constraint_filtered=_add_counts(
            placement_metric.constraint_filtered, other.constraint_filtered
        ),
    )


def _add_counts(
    counts: Mapping[str, int] | None, other: Mapping[str, int] | None
) -> dict[str, int] | None:
    return dict(Counter(counts or {}) + Counter(other or {})) or None
