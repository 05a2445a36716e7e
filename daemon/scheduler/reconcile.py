"""Reconcile: what should be of one group against what is, for service and batch jobs.

Once its allocations are sorted (`sorting`), what is missing up to the count is to be placed, and
what is outdated to be replaced as fast as the rollout allows. Nothing is decided about nodes
here. How many of each there are is what annotations show (golden: plan, deploy-canary, evaluate).
"""

from collections.abc import Iterable, Mapping

import msgspec

from daemon.scheduler import rollout, sorting
from daemon.scheduler.names import Names
from daemon.scheduler.sorting import LOST, MIGRATED, NOT_NEEDED, Situation, counted, is_lost
from storage.records.allocation import Allocation, DesiredStatus
from storage.records.evaluation import DesiredUpdates
from storage.records.group import TaskGroup
from storage.records.node import Node


class Missing(msgspec.Struct, frozen=True, kw_only=True):
    """One allocation that is to be placed: for another one, or as a canary."""

    name: str
    previous: Allocation | None = None
    rescheduled: bool = False  # the other one failed: it stops when this one has a place
    canary: bool = False
    downgrade: bool = False  # takes the version of the other one: the new one is on trial


class GroupChange(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan does to one group."""

    stop: list[tuple[Allocation, str]] = []  # with the description
    update: list[Allocation] = []  # in place
    replace: list[Missing] = []  # the other one stops when this one has a place
    replace_if: list[Missing] = []  # likewise, as far as what is missing finds no place
    limit: int = 0  # how many may be replaced or begin at this time
    place: list[Missing] = []
    fresh: int = 0  # how many are placed besides, under names that `names` gives
    names: Names | None = None
    later: list[tuple[int, Allocation]] = []  # due times of delayed reschedules
    counts: DesiredUpdates = DesiredUpdates()
    complete: bool = True  # whether no deployment waits for this group


def reconcile(situation: Situation, name: str, allocations: Iterable[Allocation]) -> GroupChange:
    """Return what is to be done about one group, and let the rollout concern it."""
    group = situation.job.group(name)
    known = list(allocations)
    if group is None or not group.count:
        wanted = [one for one in known if one.desired_status == DesiredStatus.RUN]
        return _without(wanted, situation.nodes)
    return _Reconciliation(situation, group, known).change()


def _without(allocations: list[Allocation], nodes: Mapping[str, Node]) -> GroupChange:
    """Return the change that ends a group."""
    stop = [
        (one, LOST if is_lost(one, nodes) else NOT_NEEDED) for one in sorting.by_number(allocations)
    ]
    return GroupChange(stop=stop, counts=DesiredUpdates(stop=len(stop)))


class _Reconciliation:
    """One group on its way to what it should be; the steps of `change` are taken in order."""

    def __init__(
        self, situation: Situation, group: TaskGroup, allocations: list[Allocation]
    ) -> None:
        self._situation = situation
        self._rollout = situation.rollout
        self._group = group
        self._has_version = any(
            one.desired_status == DesiredStatus.RUN and not situation.is_older(one)
            for one in allocations
        )
        # Work that ends by itself is not rolled out; where nothing is, none promotes canaries.
        self._max_parallel = 0 if situation.batch else rollout.max_parallel(group)
        self._canaries_wanted = group.update.canary if group.update and self._max_parallel else 0
        self._sets = sets = sorting.sort(situation, allocations)
        sets.ignored += situation.ended.get(group.name, 0)
        self._names = Names(
            situation.job.id, group.name, [*sets.keep, *sets.migrate, *sets.lost, *sets.failed]
        )
        state = self._rollout.group(group.name)
        self._promoted = state is not None and state.promoted
        # Whether canaries of the new version wait for their promotion beside the others.
        self._on_trial = state is not None and bool(state.desired_canaries) and not self._promoted
        self._lacks_canaries = False
        self._canaries: list[Missing] = []
        self._missing: list[Missing] = []
        self._fresh = 0
        self._begun = 0  # how many the version changes or adds; what a deployment is about

    def change(self) -> GroupChange:
        """Return what is to be done."""
        sets = self._sets
        sets.stop += [(one, LOST) for one in sets.lost]
        canary_ids = self._rollout.canaries()
        sorting.stop_surplus(
            sets,
            self._group.count,
            apart=self._apart(),
            promoted=canary_ids if not self._on_trial else set(),
        )
        sorting.sort_updates(self._situation, self._group, sets)
        self._try_first([one for one in [*sets.keep, *sets.failed] if one.id in canary_ids])
        self._find_missing()
        limit = self._limit()
        replaceable = self._replacements(limit)
        coming = len(self._missing) + self._fresh + len(sets.migrate)
        replace = replaceable[: max(limit - coming, 0)]
        settled = not (self._begun or sets.migrate or sets.later or self._lacks_canaries)
        self._hold_back()
        self._deploy()
        return GroupChange(
            stop=[*sets.stop, *sets.renew, *((one, MIGRATED) for one in sets.migrate)],
            update=sets.in_place,
            replace=replace,
            replace_if=replaceable[len(replace) :],
            limit=limit,
            place=[
                *self._canaries,
                *self._missing,
                *(self._successor(one) for one in sets.migrate),
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
            stop=len(sets.stop) + sum(one.rescheduled for one in self._missing),
            in_place_update=len(sets.in_place),
            destructive_update=replaced,
            canary=len(self._canaries),
            reschedule_later=len(sets.later),
        )

    def _apart(self) -> set[str]:
        """Return the ids that do not count: canaries on trial stand beside what they may replace."""
        return self._rollout.canaries() if self._on_trial else set()

    @property
    def _ready(self) -> bool:
        """Tell whether the rollout may go on: not paused, not failed, not on trial."""
        return not (self._rollout.held or self._on_trial)

    # ---- canaries ----------------------------------------------------------------------------------

    def _try_first(self, canaries: list[Allocation]) -> None:
        """Let canaries run before anything is replaced, unless they have been promoted."""
        lacking = self._canaries_wanted - len(canaries)
        # What they are to replace may have gone meanwhile; the deployment waits for them all the same.
        tried = bool(self._sets.outdated) or self._on_trial
        self._lacks_canaries = tried and lacking > 0 and not self._promoted
        if not self._lacks_canaries:
            return
        self._on_trial = True
        if not self._rollout.held:
            names = self._names.canaries(lacking, existing=canaries, to_replace=self._sets.outdated)
            self._canaries = [Missing(name=name, canary=True) for name in names]

    # ---- missing -----------------------------------------------------------------------------------

    def _find_missing(self) -> None:
        """Find what failed or is lost and must be replaced, and how many are missing besides."""
        sets, apart = self._sets, self._apart()
        there = len(counted([*sets.keep, *sets.failed], apart)) + len(sets.migrate)
        room = max(self._group.count - there, 0)
        lost = sets.lost[:room]
        self._fresh = room - len(lost)
        self._missing = [
            *(self._successor(one, rescheduled=True) for one in sets.failed),
            *(self._successor(one) for one in lost),
        ]
        changed = len(sets.in_place) + len(sets.outdated)
        self._begun = changed + len(self._missing) + self._fresh

    def _successor(self, one: Allocation, *, rescheduled: bool = False) -> Missing:
        canary = sorting.is_canary(one)
        # On trial two have one name on purpose; else what has come meanwhile keeps it.
        keeps_name = canary or self._on_trial
        return Missing(
            name=one.name if keeps_name else self._names.for_replacement(one),
            previous=one,
            rescheduled=rescheduled,
            canary=canary,
            downgrade=self._on_trial and not canary,
        )

    def _hold_back(self) -> None:
        """Begin nothing while the rollout is held; what is lost or failed is replaced all the same.

        But what belongs to a failed deployment is not tried again.
        """
        if self._ready:
            return
        self._fresh = 0
        current = self._rollout.current
        if self._rollout.failed and current is not None:
            self._missing = [
                one
                for one in self._missing
                if not (
                    one.rescheduled
                    and one.previous is not None
                    and one.previous.deployment_id == current.id
                )
            ]

    # ---- outdated ----------------------------------------------------------------------------------

    def _limit(self) -> int:
        """Return how many may be replaced or begin at this time."""
        if not self._ready:
            return 0
        if not self._max_parallel or not (self._sets.outdated or self._sets.migrate):
            return self._group.count
        return self._rollout.room_to_update(self._group, self._sets.keep)

    def _replacements(self, limit: int) -> list[Missing]:
        return [
            Missing(name=self._names.for_replacement(one), previous=one)
            for one in self._sets.outdated[:limit]
        ]

    # ---- deployment --------------------------------------------------------------------------------

    def _deploy(self) -> None:
        """Let the deployment concern this group, and begin one for a version that has none."""
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
        """Tell whether the deployment need not wait for this group any more."""
        name = self._group.name
        return self._rollout.group(name) is None or (settled and self._rollout.is_healthy(name))
