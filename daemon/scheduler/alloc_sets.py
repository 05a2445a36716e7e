"""Sort the allocations of a group by their situation, for service and batch jobs.

An allocation can be unchanged, surplus, migrating from its node, or lost with its node. It can have
failed, so that it must be rescheduled now or later. It can also belong to an older job version, and
be updated in place or replaced. Each allocation is in exactly one of these sets.
"""

from collections.abc import Callable, Iterable, Mapping

import msgspec

from daemon.scheduler import reschedule
from daemon.scheduler.reschedule import RescheduleTiming
from daemon.scheduler.rollout import Rollout
from daemon.scheduler.state import SettledAllocations
from daemon.scheduler.updates import requires_replacement
from storage.records.allocation import Allocation, ClientStatus, DesiredStatus
from storage.records.evaluation import Evaluation
from storage.records.group import ReschedulePolicy, TaskGroup
from storage.records.job import Job, JobType
from storage.records.node import Node, NodeStatus

NOT_NEEDED = "alloc not needed due to job update"
UPDATED = "alloc is being updated due to job update"
MIGRATED = "alloc is being migrated"
LOST = "alloc is lost since its node is down"


def by_number(allocations: Iterable[Allocation]) -> list[Allocation]:
    """Return allocations sorted by name index, then by age."""
    return sorted(allocations, key=lambda alloc: (alloc.index, alloc.create_index, alloc.id))


def is_on_lost_node(allocation: Allocation, nodes: Mapping[str, Node]) -> bool:
    """Return whether an allocation is lost with its node.

    Allocations on an unreachable cluster keep running and are not lost.
    """
    node = nodes.get(allocation.node_id)
    is_lost = node is None or node.status == NodeStatus.DOWN
    away = node is not None and node.status == NodeStatus.DISCONNECTED and not node.engine
    return (is_lost or away) and not allocation.client_terminal


def is_canary(allocation: Allocation) -> bool:
    """Return whether an allocation is a canary that was not promoted."""
    return allocation.health is not None and allocation.health.canary


class ReconcileContext(msgspec.Struct, frozen=True, kw_only=True):
    """The values common to all groups of a job."""

    job: Job
    groups: Mapping[str, TaskGroup]  # the groups of the job, by name
    # Group -> number of stopped allocations that are counted but not loaded.
    ended: Mapping[str, int]
    settled: Mapping[str, SettledAllocations]
    versions: Mapping[int, Job]
    nodes: Mapping[str, Node]
    evaluation: Evaluation
    now: int
    rollout: Rollout
    may_stay: Callable[[Job, TaskGroup, Allocation], bool]

    @property
    def batch(self) -> bool:
        """Return whether the job is a batch job, whose completed allocations are not replaced."""
        return self.job.type == JobType.BATCH

    def is_older(self, allocation: Allocation) -> bool:
        """Return whether the version of an allocation is not the current version of the job."""
        return allocation.job_version != self.job.version

    def version_of(self, allocation: Allocation) -> Job:
        """Return the job as defined by the version of the allocation."""
        return self.versions.get(allocation.job_version, self.job)

    def policy_of(self, allocation: Allocation) -> ReschedulePolicy | None:
        """Return the reschedule policy of an allocation, from the version of its job."""
        group = self.version_of(allocation).group(allocation.task_group)
        return group.reschedule_policy if group else None


class AllocSets(msgspec.Struct, kw_only=True):
    """The allocations of one group in disjoint sets, each sorted by name index."""

    ignored: int = 0
    stop: list[tuple[Allocation, str]] = []  # with the reason as description
    renew: list[tuple[Allocation, str]] = []  # canaries to be replaced
    keep: list[Allocation] = []  # unchanged, but possibly to be updated
    migrate: list[Allocation] = []
    lost: list[Allocation] = []
    failed: list[Allocation] = []  # to be rescheduled now
    later: list[tuple[int, Allocation]] = []  # to be rescheduled later
    in_place: list[Allocation] = []  # subset of the unchanged allocations
    outdated: list[Allocation] = []  # subset of the unchanged allocations


def sort(
    situation: ReconcileContext, group_name: str, allocations: Iterable[Allocation]
) -> AllocSets:
    """Return the sets of a group, regardless of its count and of updates.

    `stop_surplus` and `sort_updates` then move the surplus and the outdated allocations.
    """
    sorting = _Sorting(situation, group_name)
    for alloc in by_number(allocations):
        sorting.add(alloc)
    return sorting.sets


class _Sorting:
    def __init__(self, situation: ReconcileContext, group_name: str) -> None:
        self.sets = AllocSets()
        self._situation = situation
        self._canaries = situation.rollout.canaries(group_name)
        self._unneeded = situation.rollout.unneeded_canaries(group_name)

    def add(self, alloc: Allocation) -> None:
        situation, sets = self._situation, self.sets
        if alloc.desired_status != DesiredStatus.RUN:
            self._add_unwanted(alloc)
        elif situation.batch and situation.is_older(alloc) and alloc.client_terminal:
            sets.ignored += 1
        elif alloc.id in self._unneeded:
            sets.stop.append((alloc, NOT_NEEDED))
        elif alloc.client_terminal:
            self._add_ended(alloc)
        elif alloc.desired.transition.migrate:
            self._add_stopping(alloc, MIGRATED, sets.migrate)
        elif is_on_lost_node(alloc, situation.nodes):
            self._add_stopping(alloc, LOST, sets.lost)
        else:
            sets.keep.append(alloc)

    def _add_unwanted(self, alloc: Allocation) -> None:
        """Add an allocation that is not desired.

        A batch allocation that was drained without a replacement counts as unchanged, so that its
        index stays in use.
        """
        if self._situation.batch and alloc.desired.transition.migrate_disable_placement:
            self.sets.keep.append(alloc)
        elif self._situation.batch and alloc.client_terminal:
            self.sets.ignored += 1

    def _add_stopping(self, alloc: Allocation, why: str, stopping: list[Allocation]) -> None:
        if alloc.id in self._canaries:
            self.sets.renew.append((alloc, why))
        else:
            stopping.append(alloc)

    def _add_ended(self, alloc: Allocation) -> None:
        if alloc.desired.next_allocation:
            return
        if alloc.client_status != ClientStatus.FAILED:
            if self._situation.batch:
                self.sets.keep.append(alloc)  # completed
            return
        situation, policy = self._situation, self._situation.policy_of(alloc)
        when = reschedule.decide(
            alloc, policy, situation.evaluation, situation.rollout.current, situation.now
        )
        if when is RescheduleTiming.NOW:
            self.sets.failed.append(alloc)
            return
        self.sets.keep.append(alloc)
        due = reschedule.due_at(alloc, policy) if when is RescheduleTiming.LATER else None
        if due is not None:
            self.sets.later.append((due, alloc))


def stop_surplus(sets: AllocSets, count: int, *, apart: set[str], promoted: set[str]) -> None:
    """Stop allocations beyond the count.

    First stop allocations that the canaries in `promoted` (IDs) replace, then failed and migrating
    allocations, and then those with the highest indexes. Allocations whose IDs are in `apart` do
    not count, and are not stopped.
    """
    kept_allocs, failed = without_ids(sets.keep, apart), without_ids(sets.failed, apart)
    surplus = len(kept_allocs) + len(failed) + len(sets.migrate) - count
    if surplus <= 0:
        return
    numbers = {alloc.index for alloc in kept_allocs if alloc.id in promoted}
    stoppable = [alloc for alloc in kept_allocs if alloc.desired_status == DesiredStatus.RUN]
    candidates = [
        *(alloc for alloc in stoppable if alloc.index in numbers and alloc.id not in promoted),
        *reversed(failed),
        *reversed(sets.migrate),
        *reversed(stoppable),
    ]
    chosen = {candidate.id: candidate for candidate in candidates}  # deduplicated, in this order
    stopped = list(chosen.values())[:surplus]
    sets.stop += [(alloc, NOT_NEEDED) for alloc in stopped]
    stopped_ids = {alloc.id for alloc in stopped}
    sets.keep = without_ids(sets.keep, stopped_ids)
    sets.failed = without_ids(sets.failed, stopped_ids)
    sets.migrate = without_ids(sets.migrate, stopped_ids)


def without_ids(allocations: Iterable[Allocation], apart: set[str]) -> list[Allocation]:
    """Return the allocations whose IDs are not in `apart`."""
    return [alloc for alloc in allocations if alloc.id not in apart]


def sort_updates(situation: ReconcileContext, group: TaskGroup, sets: AllocSets) -> None:
    """Sort the unchanged allocations by the update that the job's current version requires."""
    job = situation.job
    updated: dict[int, bool] = {}  # by version, because comparing jobs dominates the cost
    for alloc in sets.keep:
        if alloc.job_version not in updated:
            old = situation.version_of(alloc)
            updated[alloc.job_version] = requires_replacement(old, job, group.name)
        if not situation.is_older(alloc):
            sets.ignored += 1
        elif updated[alloc.job_version]:
            sets.outdated.append(alloc)
        elif alloc.terminal:
            sets.ignored += 1
        elif situation.may_stay(job, group, alloc):
            sets.in_place.append(alloc)
        else:
            sets.outdated.append(alloc)
