"""Reconcile the desired and the current state of one group, for service and batch jobs.

The input is the sorted allocations of the group (`alloc_sets`). Missing allocations up to the count
are to be placed, and outdated allocations are replaced as fast as the rollout permits. No nodes are
chosen here. The numbers appear in plan annotations (source: Nomad's recorded responses `plan`,
`deploy-canary`, `evaluate`).
"""

from collections.abc import Iterable, Mapping

import msgspec

from daemon.scheduler import alloc_sets, rollout
from daemon.scheduler.alloc_names import AllocNameIndex
from daemon.scheduler.alloc_sets import (
    LOST,
    MIGRATED,
    NOT_NEEDED,
    ReconcileContext,
    is_on_lost_node,
    without_ids,
)
from daemon.scheduler.state import SettledAllocations
from storage.records.allocation import Allocation, DesiredStatus
from storage.records.evaluation import DesiredUpdates
from storage.records.group import TaskGroup
from storage.records.node import Node


class MissingAllocation(msgspec.Struct, frozen=True, kw_only=True):
    """An allocation to be placed, as a replacement or as a canary."""

    name: str
    previous: Allocation | None = None
    rescheduled: bool = False  # the previous allocation failed; stop it after the placement
    canary: bool = False
    # Keeps the version of the previous allocation, because the new version has canaries.
    downgrade: bool = False


class GroupChange(msgspec.Struct, frozen=True, kw_only=True):
    """The changes of a plan to one group."""

    stop: list[tuple[Allocation, str]] = []  # with the description
    update: list[Allocation] = []  # in place
    replace: list[MissingAllocation] = []  # placed before the previous allocation stops
    # Outdated allocations to replace instead of missing allocations that cannot be placed.
    replace_if: list[MissingAllocation] = []
    limit: int = 0  # how many may be replaced or started now
    place: list[MissingAllocation] = []
    fresh: int = 0  # how many to place in addition, with names from `names`
    names: AllocNameIndex | None = None
    later: list[tuple[int, Allocation]] = []  # due times of delayed reschedules
    counts: DesiredUpdates = DesiredUpdates()
    complete: bool = True  # false if a deployment must wait for further changes to the group


def reconcile(
    situation: ReconcileContext, name: str, allocations: Iterable[Allocation]
) -> GroupChange:
    """Return the changes to one group, and include it in the rollout."""
    group = situation.groups.get(name)
    allocs = list(allocations)
    if group is None or not group.count:
        desired = [alloc for alloc in allocs if alloc.desired_status == DesiredStatus.RUN]
        return _stop_group(desired, situation.nodes)
    return _Reconciliation(situation, group, allocs).change()


def _stop_group(allocations: list[Allocation], nodes: Mapping[str, Node]) -> GroupChange:
    """Return the change that stops a whole group."""
    stop = [
        (alloc_set, LOST if is_on_lost_node(alloc_set, nodes) else NOT_NEEDED)
        for alloc_set in alloc_sets.by_number(allocations)
    ]
    return GroupChange(stop=stop, counts=DesiredUpdates(stop=len(stop)))


class _Reconciliation:
    """The reconciliation of one group; `change` runs the steps in order."""

    def __init__(
        self, situation: ReconcileContext, group: TaskGroup, allocations: list[Allocation]
    ) -> None:
        self._situation = situation
        self._rollout = situation.rollout
        self._group = group
        self._has_version = any(
            alloc.desired_status == DesiredStatus.RUN and not situation.is_older(alloc)
            for alloc in allocations
        )
        # Batch jobs have no rollout; without a current deployment canaries cannot be promoted.
        self._max_parallel = 0 if situation.batch else rollout.max_parallel(group)
        self._canaries_wanted = group.update.canary if group.update and self._max_parallel else 0
        self._sets = sets = alloc_sets.sort(situation, group.name, allocations)
        self._settled = situation.settled.get(group.name, SettledAllocations())
        sets.ignored += situation.ended.get(group.name, 0) + self._settled.count
        self._names = AllocNameIndex(
            situation.job.id,
            group.name,
            [*sets.keep, *sets.migrate, *sets.lost, *sets.failed],
            self._settled.ranges,
        )
        state = self._rollout.group(group.name)
        self._promoted = state is not None and state.promoted
        # Whether canaries of the new version run next to the old version and wait for promotion.
        self._on_trial = state is not None and bool(state.desired_canaries) and not self._promoted
        self._lacks_canaries = False
        self._canaries: list[MissingAllocation] = []
        self._missing: list[MissingAllocation] = []
        self._fresh = 0
        # Number of allocations that the version adds or replaces, the size of the deployment.
        self._begun = 0

    def change(self) -> GroupChange:
        """Return the changes to the group."""
        sets = self._sets
        sets.stop += [(alloc, LOST) for alloc in sets.lost]
        canary_ids = self._rollout.canaries(self._group.name)
        alloc_sets.stop_surplus(
            sets,
            self._group.count,
            apart=self._unpromoted_canaries(),
            promoted=canary_ids if not self._on_trial else set(),
        )
        alloc_sets.sort_updates(self._situation, self._group, sets)
        self._try_first([alloc for alloc in [*sets.keep, *sets.failed] if alloc.id in canary_ids])
        self._find_missing()
        limit = self._limit()
        replaceable = self._replacements(limit)
        coming = len(self._missing) + self._fresh + len(sets.migrate)
        replace = replaceable[: max(limit - coming, 0)]
        settled = not (self._begun or sets.migrate or sets.later or self._lacks_canaries)
        self._hold_back()
        self._deploy()
        return GroupChange(
            stop=[*sets.stop, *sets.renew, *((alloc, MIGRATED) for alloc in sets.migrate)],
            update=sets.in_place,
            replace=replace,
            replace_if=replaceable[len(replace) :],
            limit=limit,
            place=[
                *self._canaries,
                *self._missing,
                *(self._successor(alloc) for alloc in sets.migrate),
            ],
            fresh=self._fresh,
            names=self._names,
            later=sets.later,
            counts=self._counts(len(replace)),
            complete=self._is_complete(settled=settled),
        )

    def _counts(self, replaced: int) -> DesiredUpdates:
        sets = self._sets
        return DesiredUpdates(
            ignore=sets.ignored + len(sets.outdated) - replaced,
            place=len(self._missing) + self._fresh,
            migrate=len(sets.migrate),
            stop=len(sets.stop)
            + sum(missing_allocation.rescheduled for missing_allocation in self._missing),
            in_place_update=len(sets.in_place),
            destructive_update=replaced,
            canary=len(self._canaries),
            reschedule_later=len(sets.later),
        )

    def _unpromoted_canaries(self) -> set[str]:
        """Return the IDs of canaries that wait for promotion; they do not count towards `count`."""
        return self._rollout.canaries(self._group.name) if self._on_trial else set()

    @property
    def _ready(self) -> bool:
        """Return whether the rollout may continue.

        It may not if it is paused or has failed, or if canaries wait for promotion.
        """
        return not (self._rollout.is_blocked or self._on_trial)

    # --- canaries ---

    def _try_first(self, canaries: list[Allocation]) -> None:
        """Place canaries before any allocation is replaced, unless the canaries are promoted."""
        lacking = self._canaries_wanted - len(canaries)
        # The outdated allocations may be gone, but the deployment still waits for the canaries.
        tried = bool(self._sets.outdated) or self._on_trial
        self._lacks_canaries = tried and lacking > 0 and not self._promoted
        if not self._lacks_canaries:
            return
        self._on_trial = True
        if not self._rollout.is_blocked:
            names = self._names.canaries(lacking, existing=canaries, to_replace=self._sets.outdated)
            self._canaries = [MissingAllocation(name=name, canary=True) for name in names]

    # --- missing allocations ---

    def _find_missing(self) -> None:
        """Find failed and lost allocations to replace, and the number of missing allocations."""
        sets, apart = self._sets, self._unpromoted_canaries()
        there = len(without_ids([*sets.keep, *sets.failed], apart)) + len(sets.migrate)
        there += self._settled.count
        missing_count = max(self._group.count - there, 0)
        lost = sets.lost[:missing_count]
        self._fresh = missing_count - len(lost)
        self._missing = [
            *(self._successor(alloc, rescheduled=True) for alloc in sets.failed),
            *(self._successor(alloc) for alloc in lost),
        ]
        changed = len(sets.in_place) + len(sets.outdated)
        self._begun = changed + len(self._missing) + self._fresh

    def _successor(self, alloc: Allocation, *, rescheduled: bool = False) -> MissingAllocation:
        canary = alloc_sets.is_canary(alloc)
        # With canaries, two allocations share a name on purpose. Otherwise a newer one keeps the
        # name.
        keeps_name = canary or self._on_trial
        return MissingAllocation(
            name=alloc.name if keeps_name else self._names.for_replacement(alloc),
            previous=alloc,
            rescheduled=rescheduled,
            canary=canary,
            downgrade=self._on_trial and not canary,
        )

    def _hold_back(self) -> None:
        """Start no new allocation while the rollout is held.

        Lost and failed allocations are still replaced. Allocations of a failed deployment are not
        retried.
        """
        if self._ready:
            return
        self._fresh = 0
        current = self._rollout.current
        if self._rollout.failed and current is not None:
            self._missing = [
                missing_allocation
                for missing_allocation in self._missing
                if not (
                    missing_allocation.rescheduled
                    and missing_allocation.previous is not None
                    and missing_allocation.previous.deployment_id == current.id
                )
            ]

    # --- outdated allocations ---

    def _limit(self) -> int:
        """Return how many allocations may be replaced or started now."""
        if not self._ready:
            return 0
        if not self._max_parallel or not (self._sets.outdated or self._sets.migrate):
            return self._group.count
        return self._rollout.update_capacity(self._group, self._sets.keep)

    def _replacements(self, limit: int) -> list[MissingAllocation]:
        return [
            MissingAllocation(name=self._names.for_replacement(alloc), previous=alloc)
            for alloc in self._sets.outdated[:limit]
        ]

    # --- deployment ---

    def _deploy(self) -> None:
        """Include the group in the deployment; create a deployment for a new version."""
        name = self._group.name
        canaries = self._canaries_wanted if self._lacks_canaries else 0
        state = self._rollout.group(name)
        if state is not None:
            if self._lacks_canaries:
                state = msgspec.structs.replace(state, desired_canaries=canaries)
                self._rollout.set_group(name, state)
            return
        if self._rollout.is_over:
            return
        updating = bool(self._sets.in_place or self._sets.outdated)
        if self._max_parallel and self._begun and (updating or not self._has_version):
            self._rollout.begin(self._group, total=self._begun, canaries=canaries)

    def _is_complete(self, *, settled: bool) -> bool:
        """Return whether the group has no further changes that the deployment must wait for."""
        name = self._group.name
        return self._rollout.group(name) is None or (settled and self._rollout.is_healthy(name))
