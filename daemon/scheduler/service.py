"""Service and batch jobs: so many allocations of each group, wherever they suit best."""

from collections import Counter, defaultdict
from collections.abc import Iterator

import msgspec

from daemon.scheduler import reschedule
from daemon.scheduler.draft import Draft
from daemon.scheduler.nodes.placement import Placer, Request
from daemon.scheduler.reconcile import GroupChange, Missing, reconcile
from daemon.scheduler.rollout import Rollout
from daemon.scheduler.sorting import LOST, UPDATED, Situation
from daemon.scheduler.state import ClusterState, Plan
from storage.records.allocation import Allocation
from storage.records.evaluation import DesiredUpdates, Evaluation
from storage.records.group import TaskGroup
from storage.records.job import Job

RESCHEDULED = ""  # golden: evaluate, DesiredDescription of an allocation that failed


def plan_service(
    state: ClusterState, job: Job, evaluation: Evaluation, *, now: int, ids: Iterator[str]
) -> Plan:
    """Return the plan that gives each group of a job its count, as its rollout allows."""
    placer = Placer(state, evaluation, now=now, ids=ids)
    rollout = Rollout(job, state.deployment, evaluation, now=now, ids=ids)
    situation = Situation(
        job=job,
        ended=state.ended,
        versions=state.versions,
        nodes={one.node.id: one.node for one in state.nodes},
        evaluation=evaluation,
        now=now,
        rollout=rollout,
        may_stay=placer.may_stay,
    )
    changes = _changes(situation, state)
    draft = Draft(state, evaluation, now=now, ids=ids)
    draft.end_lost(state.allocations, situation.nodes)
    for change in changes.values():
        _change_existing(change, job, draft, placer, rollout)
    filling = _Filling(situation, placer)
    _fill(filling, changes, draft)
    draft.counts.update(
        {name: _counts(change, filling.replaced[name]) for name, change in changes.items()}
    )
    rollout.note_placed([*draft.placed, *draft.joined])
    if all(change.complete for change in changes.values()):
        rollout.finish()
    return draft.plan(rollout, placer, wait=True)


def _changes(situation: Situation, state: ClusterState) -> dict[str, GroupChange]:
    """Return what is to be done about each group: those of the job, then those it had."""
    by_group: defaultdict[str, list[Allocation]] = defaultdict(list)
    for group in situation.job.task_groups or ():
        by_group[group.name] = []
    for allocation in state.allocations:
        by_group[allocation.task_group].append(allocation)
    for name in state.ended:
        by_group.setdefault(name, [])
    return {name: reconcile(situation, name, known) for name, known in by_group.items()}


def _change_existing(
    change: GroupChange, job: Job, draft: Draft, placer: Placer, rollout: Rollout
) -> None:
    for allocation, description in change.stop:
        draft.stop(allocation, description, lost=description == LOST)
        placer.free(allocation)
    for allocation in change.update:
        draft.update_in_place(allocation, job.version, rollout.id_for(allocation.task_group))
    draft.reschedule_later(job, change.later)


def _counts(change: GroupChange, replaced: int) -> DesiredUpdates:
    """Return the counts of a change, with what is replaced because others found no place."""
    known = change.counts
    return msgspec.structs.replace(
        known,
        ignore=known.ignore - replaced,
        destructive_update=known.destructive_update + replaced,
    )


# ---- finding places ----------------------------------------------------------------------------


class _Sought(msgspec.Struct, frozen=True):
    """What was sought a place for, and what found one."""

    group: TaskGroup
    missing: Missing
    found: Allocation | None
    replaces: bool


def _fill(filling: "_Filling", changes: dict[str, GroupChange], draft: Draft) -> None:
    """Place what is missing: replacements first, since they give back what they replace."""
    filling.replace(changes)
    filling.add(changes)
    if not filling.sought:
        draft.queued.update({group.name: 0 for group in filling.job.task_groups or ()})
        return
    draft.queued.update(filling.unplaced)
    for one in filling.sought:
        draft.queued.setdefault(one.group.name, 0)
        if one.found is None:
            draft.queued[one.group.name] += 1
            _note_unplaced(one.missing, draft)
        else:
            _note_placed(one, one.found, draft)


def _note_placed(one: _Sought, found: Allocation, draft: Draft) -> None:
    previous = one.missing.previous
    if previous is not None and one.replaces:
        draft.stop(previous, UPDATED)
    if previous is not None and one.missing.rescheduled:
        draft.stop(previous, RESCHEDULED)
    draft.place(found, previous)


def _note_unplaced(missing: Missing, draft: Draft) -> None:
    if missing.previous is None or not missing.rescheduled:
        return
    noted = reschedule.without_place(missing.previous)
    if noted != missing.previous:
        draft.change(noted)


class _Filling:
    """Finds places for what is missing, in one group after the other."""

    def __init__(self, situation: Situation, placer: Placer) -> None:
        self.job = situation.job
        self.placer = placer
        self.sought: list[_Sought] = []
        self.unplaced: dict[str, int] = {}  # how many were not even looked for
        self.replaced: Counter[str] = Counter()  # how many because others found no place
        self._situation = situation

    def replace(self, changes: dict[str, GroupChange]) -> None:
        """Find places for the successors of what is outdated, which stops only if one is found."""
        for group in self.job.task_groups or ():
            for missing in changes[group.name].replace:
                self._replace(group, missing)

    def _replace(self, group: TaskGroup, missing: Missing) -> Allocation | None:
        if missing.previous is None:
            return None
        found = self.placer.replace(self._request(group, missing), missing.previous)
        self.sought.append(_Sought(group, missing, found, replaces=True))
        return found

    def add(self, changes: dict[str, GroupChange]) -> None:
        """Find places for what is missing besides.

        What finds none takes no part in the rollout: as many more may be replaced instead.
        """
        for group in self.job.task_groups or ():
            change = changes[group.name]
            placed = sum(self._add(group, missing) is not None for missing in change.place)
            placed += self._add_fresh(group, change)
            left = max(change.limit - len(change.replace) - placed, 0)
            for missing in change.replace_if[:left]:
                self.replaced[group.name] += self._replace(group, missing) is not None

    def _add(self, group: TaskGroup, missing: Missing) -> Allocation | None:
        found = self.placer.place(self._request(group, missing))
        self.sought.append(_Sought(group, missing, found, replaces=False))
        return found

    def _add_fresh(self, group: TaskGroup, change: GroupChange) -> int:
        """Find places for new allocations; return how many found one."""
        for done in range(change.fresh):
            name = change.names.next() if change.names else ""
            if self._add(group, Missing(name=name)) is None:
                # Where one found no place its likes will not: a million need no search.
                left = change.fresh - done - 1
                self.placer.failures[group.name].add(left)
                self.unplaced[group.name] = left
                return done
        return change.fresh

    def _request(self, group: TaskGroup, missing: Missing) -> Request:
        """Return the request for one allocation, in the version that it is to have."""
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
        return Request(
            job=job,
            group=group,
            name=missing.name,
            previous=previous,
            tracker=tracker,
            deployment_id=deployment_id,
            canary=missing.canary,
        )
