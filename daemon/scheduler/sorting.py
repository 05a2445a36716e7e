"""Sorting: what is the case with each allocation of a group, for service and batch jobs.

It may stay as it is, be one too many, have to leave its node, be lost with it, have failed and
be due for another try now or later, or run an older version that can be updated in place or
must be replaced. Each allocation ends in one of these sets.
"""

from collections.abc import Callable, Iterable, Mapping

import msgspec

from daemon.scheduler import reschedule
from daemon.scheduler.reschedule import When
from daemon.scheduler.rollout import Rollout
from daemon.scheduler.updates import tasks_updated
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
    """Return allocations in the order of their names, then of their age."""
    return sorted(allocations, key=lambda one: (one.index, one.create_index, one.id))


def is_lost(allocation: Allocation, nodes: Mapping[str, Node]) -> bool:
    """Tell whether the node of an allocation is gone, and with it what ran there.

    What runs on a cluster goes on while nobody can reach it.
    """
    node = nodes.get(allocation.node_id)
    gone = node is None or node.status == NodeStatus.DOWN
    away = node is not None and node.status == NodeStatus.DISCONNECTED and not node.engine
    return (gone or away) and not allocation.client_terminal


def is_canary(allocation: Allocation) -> bool:
    """Tell whether an allocation was placed as a canary, and not promoted since."""
    return allocation.health is not None and allocation.health.canary


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """What is the same for all groups of a job."""

    job: Job
    ended: Mapping[str, int]  # group -> how many stopped allocations are only counted
    versions: Mapping[int, Job]
    nodes: Mapping[str, Node]
    evaluation: Evaluation
    now: int
    rollout: Rollout
    may_stay: Callable[[Job, TaskGroup, Allocation], bool]

    @property
    def batch(self) -> bool:
        """Tell whether allocations that have done their work are not to be replaced."""
        return self.job.type == JobType.BATCH

    def is_older(self, allocation: Allocation) -> bool:
        """Tell whether an allocation runs another version than the job's current one."""
        return allocation.job_version != self.job.version

    def version_of(self, allocation: Allocation) -> Job:
        """Return the job as an allocation runs it."""
        return self.versions.get(allocation.job_version, self.job)

    def policy_of(self, allocation: Allocation) -> ReschedulePolicy | None:
        """Return what the version of an allocation says about rescheduling it."""
        group = self.version_of(allocation).group(allocation.task_group)
        return group.reschedule_policy if group else None


class Sets(msgspec.Struct, kw_only=True):
    """The allocations of one group, sorted; in the order of their numbers."""

    ignored: int = 0
    stop: list[tuple[Allocation, str]] = []  # with the description
    renew: list[tuple[Allocation, str]] = []  # canaries that others take the place of
    keep: list[Allocation] = []  # these stay, but may be updated
    migrate: list[Allocation] = []
    lost: list[Allocation] = []
    failed: list[Allocation] = []  # to be rescheduled now
    later: list[tuple[int, Allocation]] = []  # to be rescheduled when their time comes
    in_place: list[Allocation] = []  # of those that are kept
    outdated: list[Allocation] = []  # likewise


def sort(situation: Situation, allocations: Iterable[Allocation]) -> Sets:
    """Return the sets of a group as far as neither its count nor its version matter."""
    sorting = _Sorting(situation)
    for one in by_number(allocations):
        sorting.add(one)
    return sorting.sets


class _Sorting:
    def __init__(self, situation: Situation) -> None:
        self.sets = Sets()
        self._situation = situation
        self._canaries = situation.rollout.canaries()
        self._unneeded = situation.rollout.unneeded_canaries()

    def add(self, one: Allocation) -> None:
        situation, sets = self._situation, self.sets
        if one.desired_status != DesiredStatus.RUN:
            self._add_unwanted(one)
        elif situation.batch and situation.is_older(one) and one.client_terminal:
            sets.ignored += 1
        elif one.id in self._unneeded:
            sets.stop.append((one, NOT_NEEDED))
        elif one.client_terminal:
            self._add_ended(one)
        elif one.desired.transition.migrate:
            self._add_leaving(one, MIGRATED, sets.migrate)
        elif is_lost(one, situation.nodes):
            self._add_leaving(one, LOST, sets.lost)
        else:
            sets.keep.append(one)

    def _add_unwanted(self, one: Allocation) -> None:
        """Add what is stopped already: a batch allocation that was drained keeps its place."""
        if self._situation.batch and one.desired.transition.migrate_disable_placement:
            self.sets.keep.append(one)
        elif self._situation.batch and one.client_terminal:
            self.sets.ignored += 1

    def _add_leaving(self, one: Allocation, why: str, others: list[Allocation]) -> None:
        if one.id in self._canaries:
            self.sets.renew.append((one, why))
        else:
            others.append(one)

    def _add_ended(self, one: Allocation) -> None:
        if one.desired.next_allocation:
            return
        if one.client_status != ClientStatus.FAILED:
            if self._situation.batch:
                self.sets.keep.append(one)  # its work is done
            return
        situation, policy = self._situation, self._situation.policy_of(one)
        when = reschedule.decide(
            one, policy, situation.evaluation, situation.rollout.current, situation.now
        )
        if when is When.NOW:
            self.sets.failed.append(one)
            return
        self.sets.keep.append(one)
        due = reschedule.due_at(one, policy) if when is When.LATER else None
        if due is not None:
            self.sets.later.append((due, one))


def stop_surplus(sets: Sets, count: int, *, apart: set[str], promoted: set[str]) -> None:
    """Move what is beyond a count to what is stopped.

    First what promoted canaries replace, then what does not run anyway, then the highest
    numbers. Those `apart` (ids) do not count and stay.
    """
    kept, failed = counted(sets.keep, apart), counted(sets.failed, apart)
    surplus = len(kept) + len(failed) + len(sets.migrate) - count
    if surplus <= 0:
        return
    numbers = {one.index for one in kept if one.id in promoted}
    stoppable = [one for one in kept if one.desired_status == DesiredStatus.RUN]
    candidates = [
        *(one for one in stoppable if one.index in numbers and one.id not in promoted),
        *reversed(failed),
        *reversed(sets.migrate),
        *reversed(stoppable),
    ]
    chosen = {one.id: one for one in candidates}  # each once, in this order
    stopped = list(chosen.values())[:surplus]
    sets.stop += [(one, NOT_NEEDED) for one in stopped]
    gone = {one.id for one in stopped}
    sets.keep = counted(sets.keep, gone)
    sets.failed = counted(sets.failed, gone)
    sets.migrate = counted(sets.migrate, gone)


def counted(allocations: Iterable[Allocation], apart: set[str]) -> list[Allocation]:
    """Return allocations without those whose ids are set apart."""
    return [one for one in allocations if one.id not in apart]


def sort_updates(situation: Situation, group: TaskGroup, sets: Sets) -> None:
    """Sort what is kept by what the job's current version means for it."""
    job = situation.job
    updated: dict[int, bool] = {}  # by version: comparing jobs takes longer than all the rest
    for one in sets.keep:
        if one.job_version not in updated:
            old = situation.version_of(one)
            updated[one.job_version] = tasks_updated(old, job, group.name)
        if not situation.is_older(one):
            sets.ignored += 1
        elif updated[one.job_version]:
            sets.outdated.append(one)
        elif one.terminal:
            sets.ignored += 1
        elif situation.may_stay(job, group, one):
            sets.in_place.append(one)
        else:
            sets.outdated.append(one)
