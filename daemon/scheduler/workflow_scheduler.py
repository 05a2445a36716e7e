"""Plans of workflows: only the groups of open steps are desired.

The run of the job's version decides which groups are desired (`daemon/flow/advance.py`). The plan
also contains the changes of runs and steps, so one write opens a step and stores its allocations.
When the version changes, the tasks of the old run end before the new run begins. The key
`steward_run_update` of the new version decides whether the old run is canceled, and whether the new
run takes over results.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache

import msgspec

from daemon.flow import advance
from daemon.flow.advance import Elements
from daemon.flow.graph import Graph, Step, stored_graph
from daemon.flow.lists import with_totals
from daemon.flow.run_updates import keeps_steps
from daemon.scheduler import alloc_sets, reschedule
from daemon.scheduler.alloc_sets import LOST, NOT_NEEDED, ReconcileContext, is_on_lost_node
from daemon.scheduler.reconcile import GroupChange, MissingAllocation, reconcile
from daemon.scheduler.run_updates import taken_over
from daemon.scheduler.service_scheduler import plan_service
from daemon.scheduler.state import ClusterState, FlowChange, Plan, RunChange, StepFailure, StepGrant
from storage.records.allocation import OVERTIME, Allocation, DesiredStatus
from storage.records.evaluation import DesiredUpdates, EvalStatus, Evaluation, Trigger
from storage.records.flow import (
    SUPERSEDED_REASON,
    FlowRun,
    FlowStatus,
    RunStep,
    SlotDemand,
    StepState,
)
from storage.records.freeze import FREEZE_REASON, Strength
from storage.records.job import Job
from storage.records.node import Node
from storage.records.times import rfc3339

DEADLINE = "the deadline of a step or a run"
_NEXT_VERSION = "the run of an earlier version has ended"
_TAKEN_OVER = "the run has taken over steps of the previous run"


def plan_workflow(
    state: ClusterState, job: Job, evaluation: Evaluation, *, now: int, ids: Iterator[str]
) -> Plan:
    """Return the plan that places the elements of open steps."""
    flow = _WorkflowDecision(state, job, evaluation, now)
    plan = plan_service(state, job, evaluation, now=now, ids=ids, changes_of=flow.changes)
    later = [
        _follow_up(job, evaluation, next(ids), now, DEADLINE, wait_until=rfc3339(time))
        for time in flow.due()
    ]
    if state.next_version is not None and flow.has_ended:
        begin = _follow_up(state.next_version, evaluation, next(ids), now, _NEXT_VERSION)
        # The trigger of the new run is that of its version.
        later.append(msgspec.structs.replace(begin, triggered_by=Trigger.JOB_REGISTER))
    if flow.takes_over:
        later.append(_follow_up(job, evaluation, next(ids), now, _TAKEN_OVER))
    return msgspec.structs.replace(
        plan,
        flow=flow.change(),
        evaluations=(*plan.evaluations, *later),
        frozen=flow.frozen(),
    )


def _follow_up(
    job: Job,
    evaluation: Evaluation,
    eval_id: str,
    now: int,
    description: str,
    *,
    wait_until: str = "",
) -> Evaluation:
    """Return the next evaluation of a job, which is due immediately or at `wait_until`."""
    return Evaluation(
        id=eval_id,
        namespace=job.namespace,
        priority=job.priority,
        type=job.type,
        triggered_by=Trigger.RUN_STEP,
        job_id=job.id,
        status=EvalStatus.PENDING,
        status_description=description,
        job_modify_index=job.job_modify_index,
        wait_until=wait_until,
        previous_eval=evaluation.id,
        create_index=0,
        modify_index=0,
        create_time=now,
        modify_time=now,
    )


def end_run(state: ClusterState, plan: Plan, reason: str, now: int) -> Plan:
    """Return a plan that also cancels the run, for a job whose steps are no longer desired."""
    run = state.run
    if run is None or run.status.has_ended:
        return plan
    nodes = {node.node.id: node.node for node in state.nodes}
    at_work = {
        alloc.task_group
        for alloc in state.allocations
        if alloc.job_version <= run.version and _is_alive(alloc, nodes)
    }
    change = _canceled(state, run, reason, at_work, now)
    return msgspec.structs.replace(plan, flow=FlowChange(seen=run, runs=(change,)))


def _canceled(
    state: ClusterState, run: FlowRun, reason: str, at_work: set[str], now: int
) -> RunChange:
    steps_by_name = {step.name: step for step in state.steps}
    after = advance.cancel(run, state.steps, at_work, reason=reason, now=now)
    return RunChange(before=run, run=after.run, steps=after.changed, known=steps_by_name)


def _is_alive(allocation: Allocation, nodes: Mapping[str, Node]) -> bool:
    """Return whether tasks of an allocation may still run; tasks on lost nodes do not run."""
    return not allocation.client_terminal and not is_on_lost_node(allocation, nodes)


class _WorkflowDecision:
    """The decision about the runs of a job, made by `changes`."""

    def __init__(self, state: ClusterState, job: Job, evaluation: Evaluation, now: int) -> None:
        self._state, self._job, self._evaluation, self._now = state, job, evaluation, now
        self._runs: list[RunChange] = []
        self._elements: dict[str, Elements] = {}
        self._due: tuple[int, ...] = ()
        self._steps = state.steps  # the steps after this decision
        self._run: FlowRun | None = None  # the run that the decision is about
        self._most: Mapping[str, int] = {}  # active elements of steps with a limit
        self._only: Mapping[str, int] = {}  # elements (set bits) of steps with needs by element
        self._ask: frozenset[str] = frozenset()  # steps without a slot
        self._demands: list[SlotDemand] = []

    def change(self) -> FlowChange:
        """Return the changes of runs; even without changes, the plan depends on the newest run."""
        awaits = self._alive() if any(run.before is None for run in self._runs) else ()
        demanded = {demand.step for demand in self._demands}
        return FlowChange(
            seen=self._state.run,
            runs=tuple(self._runs),
            awaits=tuple(awaits),
            demands=tuple(demand for demand in self._demands if self._is_changed(demand)),
            freed=tuple(name for name in self._state.grants if name not in demanded),
        )

    def _is_changed(self, demand: SlotDemand) -> bool:
        grant = self._state.grants.get(demand.step)
        if grant is None or demand.released:
            return True
        return (grant.wanted, grant.busy) != (demand.wanted, demand.busy)

    @property
    def has_ended(self) -> bool:
        """Return whether the run ends in this decision."""
        return bool(self._runs) and self._runs[-1].run.status.has_ended

    @property
    def takes_over(self) -> bool:
        """Return whether a new run takes over steps; the next decision then begins other steps."""
        return any(run.taken_over for run in self._runs)

    def due(self) -> Iterator[int]:
        """Yield the earliest time for which this decision needs an evaluation, or nothing.

        If an earlier evaluation exists, the applier drops this evaluation. The earlier evaluation
        then creates the next.
        """
        yield from self._due[:1]

    def frozen(self) -> str:
        """Return the ID of the freeze that holds a step after this decision, or an empty string."""
        is_held = any(
            row.state == StepState.HELD and row.reason.startswith(FREEZE_REASON)
            for row in self._steps
        )
        return self._state.freeze.id if self._state.freeze is not None and is_held else ""

    def _freeze(self, run: FlowRun, steps: Sequence[RunStep]) -> str:
        """Return why a freeze lets no step begin; empty if no freeze holds the steps.

        Some freezes hold only runs that have not begun. Steps that a run took over from the run of
        another version do not count as begun.
        """
        freeze = self._state.freeze
        if freeze is None:
            return ""
        if freeze.strength == Strength.BEGIN and any(
            row.opened and abs(row.opened) >= run.began for row in steps
        ):
            return ""
        return f"{FREEZE_REASON}{freeze.reason}"

    def _alive(self) -> Iterator[str]:
        nodes = {node.node.id: node.node for node in self._state.nodes}
        return (alloc.id for alloc in self._state.allocations if _is_alive(alloc, nodes))

    def changes(self, situation: ReconcileContext, state: ClusterState) -> dict[str, GroupChange]:
        """Return the change of each group by name: current groups first, then removed groups."""
        own_allocs: defaultdict[str, list[Allocation]] = defaultdict(list)
        older_allocs: defaultdict[str, list[Allocation]] = defaultdict(list)
        for alloc in state.allocations:
            (older_allocs if situation.is_older(alloc) else own_allocs)[alloc.task_group].append(
                alloc
            )
        desired, self._most = self._desired_groups(situation, own_allocs, older_allocs)
        self._ask_for_first()
        job = with_totals(self._job, self._steps)
        situation = msgspec.structs.replace(situation, job=job, groups=job.groups_by_name())
        names = [group.name for group in self._job.task_groups or ()]
        names_of_all = dict.fromkeys([*names, *own_allocs, *older_allocs, *state.ended])
        unchanged = (
            names_of_all.keys()
            - desired
            - own_allocs.keys()
            - older_allocs.keys()
            - self._queues.keys()
        )
        return {
            name: _unchanged(situation.ended.get(name, 0) + _settled(situation, name))
            if name in unchanged
            else self._of_group(
                situation, name, own_allocs[name], older_allocs[name], name in desired
            )
            for name in names_of_all
        }

    def _of_group(
        self,
        situation: ReconcileContext,
        name: str,
        allocs: list[Allocation],
        older_allocs: list[Allocation],
        is_wanted: bool,
    ) -> GroupChange:
        nodes = situation.nodes
        queues = self._queues.get(name)
        if not is_wanted:
            if queues is not None:
                self._keep_slots(queues, allocs, nodes)
            ended = situation.ended.get(name, 0) + _settled(situation, name)
            return _nothing([*allocs, *older_allocs], nodes, ended)
        change, older = reconcile(situation, name, allocs), _nothing(older_allocs, nodes, 0)
        if name in self._only and change.names is not None:
            change = _limited(change, change.names.restrict(self._only[name]))
        if name in self._most:
            active = self._elements[name].at_work if name in self._elements else 0
            change = _limited(change, max(self._most[name] - active, 0))
        if queues is not None:
            change = self._within_slots(queues, change, allocs, nodes)
        counts = msgspec.structs.replace(
            change.counts,
            stop=change.counts.stop + older.counts.stop,
            ignore=change.counts.ignore + older.counts.ignore,
        )
        return msgspec.structs.replace(change, stop=[*older.stop, *change.stop], counts=counts)

    # --- slots of queues ---

    @cached_property
    def _graph(self) -> Graph:
        return stored_graph(self._job)

    @cached_property
    def _queues(self) -> Mapping[str, Step]:
        """Return the steps whose elements need slots of queues, by name."""
        return {step.name: step for step in self._graph.steps if step.queues}

    @cached_property
    def _open(self) -> frozenset[str]:
        """Return the steps that are open after the decision about the run."""
        return frozenset(row.name for row in self._steps if row.state == StepState.OPEN)

    def _ask_for_first(self) -> None:
        """Record a slot demand for each step that may begin."""
        for row in self._steps:
            if row.name in self._ask:
                step = self._queues[row.name]
                total = 1 if self._has_one_element(row) else row.total
                most = self._most.get(row.name, total)
                self._demand_slots(step, wanted_slots=min(total, most))

    def _has_one_element(self, row: RunStep) -> bool:
        """Return whether the run consists of only one element of this step."""
        run = self._run
        return run is not None and run.only_step == row.name and run.only_element is not None

    def _keep_slots(
        self, step: Step, allocs: Sequence[Allocation], nodes: Mapping[str, Node]
    ) -> None:
        """Let the active elements of a step keep their slots; request none for other elements."""
        grant = self._state.grants.get(step.name)
        if grant is not None and step.name in self._open:
            active = len(_active(allocs, nodes))
            self._demand_slots(
                step, wanted_slots=active, released=max(grant.held - active, 0), busy=active
            )

    def _within_slots(
        self,
        step: Step,
        change: GroupChange,
        allocs: Sequence[Allocation],
        nodes: Mapping[str, Node],
    ) -> GroupChange:
        """Return a change that begins only elements with slots; record the step's slot demand.

        An element that waits for its next attempt holds no slot.
        """
        grant = self._state.grants.get(step.name) or StepGrant(
            wanted=0, held=0, busy=0, keeps=False
        )
        active = len(_active(allocs, nodes))
        new = [missing for missing in change.place if not _continues(missing, nodes)]
        wanted_slots = active + len(new) + change.fresh
        held_slots = grant.held if grant.keeps else grant.held - max(grant.busy - active, 0)
        held_slots = min(held_slots, wanted_slots)
        free = max(held_slots - active, 0)
        begun = new[:free]
        fresh = min(change.fresh, free - len(begun))
        self._demand_slots(
            step,
            wanted_slots=wanted_slots,
            released=grant.held - held_slots,
            busy=active + len(begun) + fresh,
        )
        held_back = {id(missing) for missing in new[free:]}
        counts = msgspec.structs.replace(
            change.counts,
            place=change.counts.place - len(held_back) - (change.fresh - fresh),
            stop=change.counts.stop - sum(missing.rescheduled for missing in new[free:]),
        )
        placements = [missing for missing in change.place if id(missing) not in held_back]
        return msgspec.structs.replace(change, place=placements, fresh=fresh, counts=counts)

    def _demand_slots(
        self, step: Step, *, wanted_slots: int, released: int = 0, busy: int = 0
    ) -> None:
        self._demands.append(
            SlotDemand(
                step=step.name,
                names=step.queues,
                slots=step.slots,
                wanted=wanted_slots,
                released=released,
                busy=busy,
            )
        )

    # --- runs ---

    def _desired_groups(
        self,
        situation: ReconcileContext,
        own_allocs: Mapping[str, list[Allocation]],
        older_allocs: Mapping[str, list[Allocation]],
    ) -> tuple[frozenset[str], Mapping[str, int]]:
        """Return the desired groups, and the maximum number of elements of each.

        Also record the changes of runs.
        """
        older = {
            name
            for name, allocs in older_allocs.items()
            if any(_is_alive(alloc, situation.nodes) for alloc in allocs)
        }
        run, steps = self._state.run, self._state.steps
        if run is not None and not run.status.has_ended and run.version != self._job.version:
            reason = f"{SUPERSEDED_REASON}{self._job.version}"
            change = _canceled(self._state, run, reason, older, self._now)
            self._runs.append(change)
            run = change.run
            if not run.status.has_ended:
                return frozenset(), {}
            if run.is_superseded and not run.only_step and self._take_over(run, change):
                return frozenset(), {}
        approvals = self._state.approvals
        if run is None or run.version != self._job.version:
            run, steps = self._begun(run), ()
            approvals = {}  # approvals of the earlier run do not count
        self._run = run
        if run.status.has_ended:
            return frozenset(), {}
        stored, limits = run, advance.limits_of(self._job)
        run = advance.timed(run, limits, self._now)
        alive = {
            name
            for name, allocs in own_allocs.items()
            if any(_is_alive(alloc, situation.nodes) for alloc in allocs)
        }
        if run.status == FlowStatus.STOPPING and not run.cleans_up:
            change = _canceled(self._state, run, run.reason, alive, self._now)
            self._runs.append(change)
            self._steps = tuple({row.name: row for row in (*steps, *change.steps)}.values())
            return frozenset(), {}
        steps_by_name = {step.name: step for step in steps}
        paired = {need for step in self._graph.steps for need in step.each_of}
        elements = self._elements = {
            name: _elements(
                situation,
                name,
                own_allocs.get(name, ()),
                self._state.failures.get(name, StepFailure()),
                is_paired=name in paired,
            )
            for name in {**own_allocs, **situation.settled}
            if name in paired or name not in steps_by_name or steps_by_name[name].outcome is None
        }
        after = advance.advance(
            self._graph,
            run,
            steps_by_name,
            elements,
            now=self._now,
            meta=self._job.meta,
            is_held=bool(older),
            approvals=approvals,
            alive=alive,
            outputs=self._state.outputs,
            max_count=self._state.max_count,
            slot=self._state.slot,
            freeze=self._freeze(run, steps),
            granted={name: grant.held for name, grant in self._state.grants.items()},
            openings=self._state.openings,
            limits=limits,
        )
        before = self._state.run if steps_by_name else None
        if after.changed or after.run != stored or not steps_by_name:
            self._runs.append(
                RunChange(before=before, run=after.run, steps=after.changed, known=steps_by_name)
            )
        self._due, self._steps, self._ask = after.due_times, after.steps, after.ask
        self._only = after.only
        return after.wanted_steps, after.max_elements

    def _take_over(self, previous: FlowRun, change: RunChange) -> bool:
        """Begin the new run with steps of the previous run, if there are any to take over.

        The outputs of these steps are copied when the plan is stored. Conditions and lists need
        them, so the next decision begins the other steps.
        """
        before = self._state.versions.get(previous.version)
        if before is None or not keeps_steps(self._job):
            return False
        rows = {row.name: row for row in (*self._state.steps, *change.steps)}
        names = taken_over(before, self._job, rows)
        if not names:
            return False
        steps = tuple(
            rows[step.name]
            if step.name in names
            else RunStep(name=step.name, total=step.count, since=self._now)
            for step in self._graph.steps
        )
        run = self._begun(previous)
        self._runs.append(RunChange(run=run, before=None, steps=steps, taken_over=names))
        self._steps = steps
        return True

    def _begun(self, before: FlowRun | None) -> FlowRun:
        return FlowRun(
            namespace=self._job.namespace,
            job_id=self._job.id,
            number=before.number + 1 if before else 1,
            version=self._job.version,
            trigger=self._evaluation.triggered_by,
            began=self._now,
        )


def _active(allocations: Iterable[Allocation], nodes: Mapping[str, Node]) -> set[str]:
    """Return the names of the elements with tasks that may run."""
    return {alloc.name for alloc in allocations if _is_alive(alloc, nodes)}


def _continues(missing: MissingAllocation, nodes: Mapping[str, Node]) -> bool:
    """Return whether an allocation takes over the slots of the allocation that it replaces.

    It does so if tasks of the replaced allocation may still run.
    """
    return missing.previous is not None and _is_alive(missing.previous, nodes)


def _limited(change: GroupChange, most: int) -> GroupChange:
    """Return a change that places at most this many new elements."""
    surplus = max(change.fresh - most, 0)
    counts = msgspec.structs.replace(change.counts, place=change.counts.place - surplus)
    return msgspec.structs.replace(change, fresh=change.fresh - surplus, counts=counts)


@lru_cache(maxsize=64)
def _unchanged(ended: int) -> GroupChange:
    """Return the empty change of an undesired group that has only ended allocations."""
    return GroupChange(counts=DesiredUpdates(ignore=ended))


def _nothing(allocations: list[Allocation], nodes: Mapping[str, Node], ended: int) -> GroupChange:
    """Return the change of an undesired group; the change leaves ended allocations unchanged."""
    stop = [
        (alloc_set, LOST if is_on_lost_node(alloc_set, nodes) else NOT_NEEDED)
        for alloc_set in alloc_sets.by_number(allocations)
        if alloc_set.desired_status == DesiredStatus.RUN and not alloc_set.client_terminal
    ]
    counts = DesiredUpdates(stop=len(stop), ignore=len(allocations) - len(stop) + ended)
    return GroupChange(stop=stop, counts=counts)


def _elements(
    situation: ReconcileContext,
    name: str,
    allocations: Sequence[Allocation],
    failure: StepFailure,
    *,
    is_paired: bool,
) -> Elements:
    """Count the elements of a step by the outcome of their newest allocations.

    Stopped elements still count as unfinished until their tasks have ended. With `is_paired`, the
    result also contains the indexes of the good and failed elements, because other steps need the
    elements one by one.
    """
    sets = alloc_sets.sort(situation, name, allocations)
    ended = [alloc for alloc in sets.keep if alloc.client_terminal]
    complete = [alloc for alloc in ended if alloc.has_succeeded]
    good_count = len(complete)
    failed = [
        alloc for alloc in ended if not alloc.has_succeeded and not _is_retried(situation, alloc)
    ]
    kept_ids = {alloc.id for alloc in sets.keep}
    stopped = sum(
        alloc.desired_status != DesiredStatus.RUN
        and alloc.id not in kept_ids
        and _is_alive(alloc, situation.nodes)
        for alloc in allocations
    )
    count = len(sets.keep) + len(sets.migrate) + len(sets.lost) + len(sets.failed)
    return Elements(
        good=good_count + _settled(situation, name),
        failed=len(failed),
        at_work=count + stopped - good_count - len(failed),
        exit_code=failure.exit_code if failed else 0,
        cause=failure.cause if failed else "",
        overtime=sum(alloc.client.description == OVERTIME for alloc in failed),
        good_bits=_bits(complete) | _settled_bits(situation, name) if is_paired else 0,
        failed_bits=_bits(failed) if is_paired else 0,
    )


def _bits(allocations: Iterable[Allocation]) -> int:
    """Return the indexes of allocations as set bits."""
    marks = bytearray()
    for alloc in allocations:
        byte, position = divmod(max(alloc.index, 0), 8)
        marks.extend(bytes(max(byte + 1 - len(marks), 0)))
        marks[byte] |= 1 << position
    return int.from_bytes(marks, "little")


def _settled_bits(situation: ReconcileContext, name: str) -> int:
    settled, bits = situation.settled.get(name), 0
    for first, last in settled.ranges if settled else ():
        bits |= ((1 << (last - first + 1)) - 1) << first
    return bits


def _settled(situation: ReconcileContext, name: str) -> int:
    """Return the number of completed elements of a step whose allocations were not loaded."""
    settled = situation.settled.get(name)
    return settled.count if settled else 0


def _is_retried(situation: ReconcileContext, allocation: Allocation) -> bool:
    """Return whether a failed allocation is placed again, now or later."""
    return reschedule.due_at(allocation, situation.policy_of(allocation)) is not None
