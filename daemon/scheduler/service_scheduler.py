"""Plans of service and batch jobs: the desired count of each group, on the best nodes."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator

import msgspec

from daemon.scheduler import reschedule
from daemon.scheduler.alloc_sets import LOST, UPDATED, ReconcileContext
from daemon.scheduler.nodes.placement import PlacementRequest, Placer
from daemon.scheduler.plan_builder import PlanBuilder
from daemon.scheduler.reconcile import GroupChange, MissingAllocation, reconcile
from daemon.scheduler.rollout import Rollout
from daemon.scheduler.state import ClusterState, Plan
from storage.records.allocation import Allocation
from storage.records.evaluation import DesiredUpdates, Evaluation
from storage.records.group import TaskGroup
from storage.records.job import Job

RESCHEDULED = ""  # Nomad's DesiredDescription of a failed allocation (recording: evaluate)


ChangesOf = Callable[[ReconcileContext, ClusterState], dict[str, GroupChange]]


def changes_by_count(situation: ReconcileContext, state: ClusterState) -> dict[str, GroupChange]:
    """Return the change of each group by name: current groups first, then removed groups."""
    by_group: defaultdict[str, list[Allocation]] = defaultdict(list)
    for group in situation.job.task_groups or ():
        by_group[group.name] = []
    for allocation in state.allocations:
        by_group[allocation.task_group].append(allocation)
    for name in state.ended:
        by_group.setdefault(name, [])
    return {name: reconcile(situation, name, allocs) for name, allocs in by_group.items()}


def plan_service(
    state: ClusterState,
    job: Job,
    evaluation: Evaluation,
    *,
    now: int,
    ids: Iterator[str],
    changes_of: ChangesOf = changes_by_count,
) -> Plan:
    """Return the plan that gives each group its count, as far as the rollout permits.

    `changes_of` decides the changes of each group.
    """
    placer = Placer(state, evaluation, now=now, ids=ids)
    rollout = Rollout(job, state.deployment, evaluation, now=now, ids=ids)
    situation = ReconcileContext(
        job=job,
        groups=job.groups_by_name(),
        ended=state.ended,
        settled=state.settled,
        versions=state.versions,
        nodes={node.node.id: node.node for node in state.nodes},
        evaluation=evaluation,
        now=now,
        rollout=rollout,
        may_stay=placer.may_stay,
    )
    changes = changes_of(situation, state)
    draft = PlanBuilder(state, evaluation, now=now, ids=ids)
    draft.end_lost(state.allocations, situation.nodes)
    for change in changes.values():
        if change.stop or change.update or change.later:
            _change_existing(change, job, draft, placer, rollout)
    filling = _Filling(situation, placer)
    _fill(filling, changes, draft)
    draft.counts.update(
        {name: _counts(change, filling.replaced[name]) for name, change in changes.items()}
    )
    rollout.record_placed([*draft.placed, *draft.joined])
    if all(change.complete for change in changes.values()):
        rollout.finish()
    return draft.plan(rollout, placer, wait=True)


def _change_existing(
    change: GroupChange, job: Job, draft: PlanBuilder, placer: Placer, rollout: Rollout
) -> None:
    for allocation, description in change.stop:
        draft.stop(allocation, description, lost=description == LOST)
        placer.free(allocation)
    for allocation in change.update:
        draft.update_in_place(allocation, job.version, rollout.id_for(allocation.task_group))
    draft.reschedule_later(job, change.later)


def _counts(change: GroupChange, replaced: int) -> DesiredUpdates:
    """Return the counts of a change; `replaced` unchanged allocations count as replaced."""
    counts = change.counts
    if not replaced:
        return counts
    return msgspec.structs.replace(
        counts,
        ignore=counts.ignore - replaced,
        destructive_update=counts.destructive_update + replaced,
    )


# --- placement ---


class _Sought(msgspec.Struct, frozen=True):
    """A missing allocation and the result of its placement; `found` is None if no node fits."""

    group: TaskGroup
    missing: MissingAllocation
    found: Allocation | None
    replaces: bool


def _fill(filling: "_Filling", changes: dict[str, GroupChange], draft: PlanBuilder) -> None:
    """Place missing allocations, replacements first, because they release resources."""
    filling.replace(changes)
    filling.add(changes)
    if not filling.sought:
        draft.queued.update({group.name: 0 for group in filling.job.task_groups or ()})
        return
    draft.queued.update(filling.unplaced)
    for sought in filling.sought:
        draft.queued.setdefault(sought.group.name, 0)
        if sought.found is None:
            draft.queued[sought.group.name] += 1
            _note_unplaced(sought.missing, draft)
        else:
            _note_placed(sought, sought.found, draft)


def _note_placed(sought: _Sought, alloc: Allocation, draft: PlanBuilder) -> None:
    previous = sought.missing.previous
    if previous is not None and sought.replaces:
        draft.stop(previous, UPDATED)
    if previous is not None and sought.missing.rescheduled:
        draft.stop(previous, RESCHEDULED)
    draft.place(alloc, previous)


def _note_unplaced(missing: MissingAllocation, draft: PlanBuilder) -> None:
    if missing.previous is None or not missing.rescheduled:
        return
    alloc = reschedule.note_unplaced(missing.previous)
    if alloc != missing.previous:
        draft.change(alloc)


class _Filling:
    """Places missing allocations, group by group."""

    def __init__(self, situation: ReconcileContext, placer: Placer) -> None:
        self.job = situation.job
        self.placer = placer
        self.sought: list[_Sought] = []
        self.unplaced: dict[str, int] = {}  # allocations that were not tried
        # Allocations replaced because other allocations could not be placed.
        self.replaced: Counter[str] = Counter()
        self._situation = situation

    def replace(self, changes: dict[str, GroupChange]) -> None:
        """Place replacements of outdated allocations.

        An outdated allocation stops only if its replacement is placed.
        """
        for group in self.job.task_groups or ():
            for missing in changes[group.name].replace:
                self._replace(group, missing)

    def _replace(self, group: TaskGroup, missing: MissingAllocation) -> Allocation | None:
        if missing.previous is None:
            return None
        allocation = self.placer.replace(self._request(group, missing), missing.previous)
        self.sought.append(_Sought(group, missing, allocation, replaces=True))
        return allocation

    def add(self, changes: dict[str, GroupChange]) -> None:
        """Place further missing allocations.

        Unplaced allocations do not use the update capacity, so the same number of outdated
        allocations may be replaced instead.
        """
        for group in self.job.task_groups or ():
            change = changes[group.name]
            if not (change.place or change.fresh or change.replace_if):
                continue
            placed = sum(self._add(group, missing) is not None for missing in change.place)
            placed += self._add_fresh(group, change)
            left = max(change.limit - len(change.replace) - placed, 0)
            for missing in change.replace_if[:left]:
                self.replaced[group.name] += self._replace(group, missing) is not None

    def _add(self, group: TaskGroup, missing: MissingAllocation) -> Allocation | None:
        allocation = self.placer.place(self._request(group, missing))
        self.sought.append(_Sought(group, missing, allocation, replaces=False))
        return allocation

    def _add_fresh(self, group: TaskGroup, change: GroupChange) -> int:
        """Place new allocations; return how many were placed."""
        for done in range(change.fresh):
            name = change.names.next() if change.names else ""
            if self._add(group, MissingAllocation(name=name)) is None:
                # After one failure, further allocations would also fail, so no search is needed.
                left = change.fresh - done - 1
                self.placer.failures[group.name].add(left)
                self.unplaced[group.name] = left
                return done
        return change.fresh

    def _request(self, group: TaskGroup, missing: MissingAllocation) -> PlacementRequest:
        """Return the placement request of one allocation, with its version."""
        situation, previous = self._situation, missing.previous
        job, deployment_id = self.job, situation.rollout.id_for(group.name)
        if previous is not None and missing.downgrade:
            older = situation.version_of(previous)
            older_group = older.group(group.name)
            if older_group is not None:
                job, group, deployment_id = older, older_group, previous.deployment_id
        tracker = None
        if previous is not None and missing.rescheduled:
            policy = situation.policy_of(previous)
            tracker = reschedule.tracker_for_next(previous, policy, situation.now)
        return PlacementRequest(
            job=job,
            group=group,
            name=missing.name,
            previous=previous,
            tracker=tracker,
            deployment_id=deployment_id,
            canary=missing.canary,
        )
