"""Decide which steps of a run begin, and how steps and the run have ended.

`advance` looks at the steps once, each after all steps that it needs. So when a step ends, the same
decision opens or skips the steps that waited for it. The result depends only on which tasks have
ended. The order in which Steward learned of these ends does not matter.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from daemon.flow import lists
from daemon.flow.begin_times import Window, window
from daemon.flow.graph import Graph, Step
from daemon.flow.places import PlaceShare, has_no_place, share_of
from daemon.jobspec.steward_meta.job_keys import (
    RUN_CLEANUP,
    RUN_ON_FAILURE,
    RUN_PARALLEL,
    RUN_TIMEOUT,
)
from daemon.jobspec.steward_meta.step_values import OnFailure, When
from daemon.text.go_format import duration, quote
from storage.loop_share import spend
from storage.records.allocation import TIME_LIMIT_EVENT
from storage.records.base import HOUR
from storage.records.flow import (
    ACCEPTED_REASON,
    GATE_REASON,
    SLOT_REASON,
    STEP_REASONS,
    TIME_REASON,
    TIMEOUT_REASON,
    FlowRun,
    FlowStatus,
    Outcome,
    RunStep,
    StepState,
)
from storage.records.job import Job
from storage.records.periodic import CLOSED_REASON
from storage.records.times import rfc3339

if TYPE_CHECKING:
    from daemon.flow.calendars import Openings
    from daemon.flow.conditions import NeedFacts

_MAX_CAUSE = 300  # characters of a task's error in the reason of a step
_DECIDED = 5  # units of work for a step
_CALENDAR_AGAIN = 24 * HOUR  # time until the next decision if a calendar has no known opening
_WITH_ELEMENTS = (StepState.OPEN, StepState.SUCCEEDED, StepState.FAILED, StepState.CANCELED)
OVERTIME_REASON = TIME_LIMIT_EVENT
_NAMES = re.compile(r"steps? ([A-Za-z0-9_-]+(?:, [A-Za-z0-9_-]+)*)( and others)?(?: |$)")
_TOO_LATE = "too late, because "
_PREVIOUS = "tasks of the previous run have not ended"


class Elements(msgspec.Struct, frozen=True, kw_only=True):
    """The allocations of a step in a run: how many have ended, and how many may still change.

    An element counts as failed only when no restart and no reschedule follows. `exit_code` is the
    exit code of the element that failed last, and `cause` its error if that code is 0. `overtime`
    counts the elements that exceeded their `max_run_duration`. If other steps need the elements one
    by one, the set bits of `good_bits` and `failed_bits` are the indexes of good and failed
    elements.
    """

    good: int = 0
    failed: int = 0
    at_work: int = 0
    exit_code: int = 0
    cause: str = ""
    overtime: int = 0
    good_bits: int = 0
    failed_bits: int = 0


class Advance(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a run after a decision.

    `steps` has all steps in the order of the job file, and `changed` the steps that the decision
    changed. The elements of `wanted_steps` must be placed. `max_elements` limits how many elements
    of a step may be active, and for how many elements it requests slots of its queues. If nothing
    else changes, the next decisions are due at the `due_times`, in nanoseconds. Steps in `ask` may
    begin as soon as they get slots of their queues. `only` applies to steps that need elements of
    other steps one by one: only the elements whose indexes are set bits may begin.
    """

    run: FlowRun
    steps: tuple[RunStep, ...]
    changed: tuple[RunStep, ...]
    wanted_steps: frozenset[str]
    max_elements: Mapping[str, int] = {}
    due_times: tuple[int, ...] = ()
    ask: frozenset[str] = frozenset()
    only: Mapping[str, int] = {}


class RunLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a run: its duration, the duration of its clean-up, and its active elements.

    Durations are in nanoseconds. The `timeout` begins when the first step is opened. At most
    `parallel` elements of all steps together may be active at the same time. For both, None means
    no limit. With `stops`, the first bad step stops the run.
    """

    timeout: int | None = None
    cleanup: int = 0
    parallel: int | None = None
    stops: bool = False


_NO_LIMITS = RunLimits()


def limits_of(job: Job) -> RunLimits:
    """Return the limits of the runs of a job."""
    return RunLimits(
        timeout=RUN_TIMEOUT.of(job.meta),
        cleanup=RUN_CLEANUP.of(job.meta),
        parallel=RUN_PARALLEL.of(job.meta),
        stops=RUN_ON_FAILURE.of(job.meta) == OnFailure.STOP,
    )


def timed(run: FlowRun, limits: RunLimits, now: int) -> FlowRun:
    """Return a run that has not ended, with the effects of its deadline.

    A run that times out is stopped, and its failure handlers and clean-up steps run. A run that is
    being stopped gets a deadline for its clean-up steps. After that deadline, these steps are no
    longer wanted.
    """
    is_over = run.deadline and now >= run.deadline
    if run.status == FlowStatus.RUNNING and is_over:
        reason = f"{TIMEOUT_REASON}the run took longer than {duration(limits.timeout or 0)}"
        run = run.stopping(reason, cleans_up=True)
    elif run.status == FlowStatus.STOPPING and run.cleans_up and is_over:
        return msgspec.structs.replace(run, cleans_up=False, deadline=0)
    if run.status == FlowStatus.STOPPING and run.cleans_up and not run.deadline:
        return msgspec.structs.replace(run, deadline=now + limits.cleanup)
    return run


def advance(
    graph: Graph,
    run: FlowRun,
    steps: Mapping[str, RunStep],
    elements: Mapping[str, Elements],
    *,
    now: int,
    meta: Mapping[str, str] | None = None,
    is_held: bool = False,
    approvals: Mapping[str, int] = {},
    alive: Collection[str] = (),
    outputs: Mapping[str, Mapping[str, str]] = {},
    max_count: int = 0,
    slot: str = "",
    granted: Mapping[str, int] = {},
    freeze: str = "",
    openings: Mapping[str, "Openings"] = {},
    limits: RunLimits = _NO_LIMITS,
) -> Advance:
    """Return the next state of a run that has not ended.

    `steps` are the stored steps; a step that is not stored is waiting. `elements` are the
    allocations of each step. `is_held` means that tasks of the previous run are still ending, so no
    step begins. `approvals` counts the approvals of each gate for the current attempt of its step.

    If the run is canceled and cleans up, only clean-up steps continue. Any other step ends when its
    tasks have ended; `alive` has the steps whose tasks have not ended. `outputs` has the outputs of
    steps that conditions use. If the run waits for slots, `slot` is the reason why no step begins.
    If a freeze holds the run, `freeze` is the reason. `granted` has, for each step with queues, the
    number of elements that hold slots.

    All steps together have at most `max_count` elements; 0 means no limit. A step with a calendar
    begins only while the calendar is open; `openings` has the open times by the name of the
    calendar.

    The `limits` of the run include its places, the maximum number of active elements. Free places
    go to the steps in the order of the job file; a step that waits for its needs takes no place. If
    a bad step stops the run, no other step begins, and only clean-up steps and failure handlers
    continue.
    """

    def decide(run: FlowRun, before: Mapping[str, RunStep]) -> _Decision:
        facts = _Facts(run, meta or {}, outputs)
        next_decision = _Decision(
            before, elements, facts, now, is_held=is_held, approvals=approvals
        )
        next_decision.granted, next_decision.openings = granted, openings
        next_decision.wait_for(freeze, slot)
        if graph.has_sources:
            rows = (before.get(step.name) for step in graph.steps)
            element_count = sum(
                row.total if row else step.count
                for step, row in zip(graph.steps, rows, strict=True)
            )
            next_decision.limit(max_count, element_count)
        if run.status == FlowStatus.STOPPING:
            next_decision.cancel(alive)
        next_decision.add_all(graph.order)
        return next_decision

    decision = decide(run, steps)
    if limits.stops and run.status == FlowStatus.RUNNING:
        rows = decision.steps
        if reason := _stop_reason(steps, [rows[step.name] for step in graph.steps]):
            run = run.stopping(reason, cleans_up=True)
            run = msgspec.structs.replace(run, deadline=now + limits.cleanup)
            ended = {name: row for name, row in rows.items() if row.outcome is not None}
            decision = decide(run, {**steps, **ended})
    max_elements = decision.within_limits(graph, limits.parallel)
    stored_steps = tuple(decision.steps[step.name] for step in graph.steps)
    run = _run_after(run, stored_steps, now)
    open_steps = [step for step in stored_steps if step.state is StepState.OPEN]
    is_open = bool(open_steps)
    if (
        limits.timeout is not None
        and is_open
        and run.status == FlowStatus.RUNNING
        and not run.deadline
    ):
        run = msgspec.structs.replace(run, deadline=now + limits.timeout)
    return Advance(
        run=run,
        steps=stored_steps,
        changed=tuple(
            step
            for step in stored_steps
            if (old := steps.get(step.name)) is not step and old != step
        ),
        wanted_steps=frozenset(
            step.name for step in open_steps if decision.goes_on(graph.by_name[step.name])
        ),
        max_elements=max_elements,
        due_times=tuple(sorted(_due(graph, run, stored_steps, now) | decision.reopen)),
        ask=frozenset(decision.ask),
        only=decision.only,
    )


def _due(graph: Graph, run: FlowRun, steps: Iterable[RunStep], now: int) -> set[int]:
    """Return the times at which a step or the run changes without another event."""
    if run.status.has_ended:
        return set()
    times = {run.deadline}
    for step in steps:
        if step.state is StepState.HELD:
            times.update(_held_until(graph.by_name[step.name], run, step))
    return {moment for moment in times if moment > now}


def _held_until(step: Step, run: FlowRun, row: RunStep) -> Iterator[int]:
    """Yield the times at which a held step needs a decision."""
    if row.reason.startswith(GATE_REASON):
        times = [gate_due(step, row)]
    else:
        limits = _window(step, run, row, row.since)
        times = [limits.first, limits.last]
    yield from (moment for moment in times if moment is not None)


def _window(step: Step, run: FlowRun, row: RunStep, now: int) -> Window:
    """Return the time window in which a step may begin.

    The needs of a held step were met when it was first held. The needs of any other step are met
    now.
    """
    if step.not_before is None and step.not_after is None:
        return Window()
    met = row.since if row.state == StepState.HELD else now
    return window(step, met=met, began=run.began, is_again=row.attempt > 1)


def changes_at(step: Step, run: FlowRun, row: RunStep) -> int | None:
    """Return the time (nanoseconds) at which a held step changes without another event, or None."""
    if row.state != StepState.HELD or run.status.has_ended:
        return None
    if row.reason.startswith(GATE_REASON):
        return gate_due(step, row)
    limits = _window(step, run, row, row.since)
    return limits.first if row.reason.startswith(TIME_REASON) else limits.last


def gate_due(step: Step, row: RunStep) -> int | None:
    """Return the deadline of the gate that holds a step, in nanoseconds.

    Return None if no gate holds the step, or if the gate has no deadline.
    """
    is_at_gate = row.state == StepState.HELD and row.reason.startswith(GATE_REASON)
    return row.since + step.within if is_at_gate and step.within is not None else None


def waits_for_queues(queues: Sequence[str]) -> str:
    """Return the reason of a step that waits for slots of its queues."""
    noun = "the queue" if len(queues) == 1 else "the queues"
    return f"{SLOT_REASON} {noun} {', '.join(map(quote, queues))}"


def cancel(
    run: FlowRun, steps: Iterable[RunStep], at_work: Collection[str], *, reason: str, now: int
) -> Advance:
    """Return the next state of a run that needs no further steps.

    Steps `at_work` have tasks that are still ending. The run ends with the last of these tasks.
    """
    before = tuple(steps)
    canceled = tuple(
        step if step.outcome is not None or step.name in at_work else _canceled(step, reason, now)
        for step in before
    )
    has_ended = not at_work and all(step.outcome is not None for step in canceled)
    return Advance(
        run=msgspec.structs.replace(
            run,
            status=_stopped_as(run) if has_ended else FlowStatus.STOPPING,
            reason=run.reason or reason,
            ended=now if has_ended else 0,
        ),
        steps=canceled,
        changed=tuple(new for new, old in zip(canceled, before, strict=True) if new != old),
        wanted_steps=frozenset(),
    )


def _stopped_as(run: FlowRun) -> FlowStatus:
    """Return the final status of a run that was stopped."""
    return FlowStatus.FAILED if run.fails else FlowStatus.CANCELED


def _canceled(row: RunStep, reason: str, now: int) -> RunStep:
    return msgspec.structs.replace(
        row, state=StepState.CANCELED, outcome=Outcome.BAD, reason=reason, since=now
    )


def _run_after(run: FlowRun, steps: Sequence[RunStep], now: int) -> FlowRun:
    if any(step.outcome is None for step in steps):
        return run
    if run.status == FlowStatus.STOPPING:
        return msgspec.structs.replace(run, status=_stopped_as(run), ended=now)
    # Other canceled and skipped steps are bad because of another step, which is named instead.
    failed_steps = [step for step in steps if is_own_failure(step)] or [
        step
        for step in steps
        if step.outcome == Outcome.BAD and step.state is not StepState.SKIPPED
    ]
    if not failed_steps:
        return msgspec.structs.replace(run, status=FlowStatus.SUCCEEDED, ended=now)
    return msgspec.structs.replace(
        run, status=FlowStatus.FAILED, reason=failure_of(failed_steps), ended=now
    )


def is_own_failure(row: RunStep) -> bool:
    """Return whether a step is bad, and another step of its run is not the reason."""
    if row.outcome != Outcome.BAD:
        return False
    if row.state is StepState.SKIPPED:
        return row.reason.startswith(TIME_REASON)
    return row.state is not StepState.CANCELED or not row.reason.startswith(STEP_REASONS)


def _stop_reason(before: Mapping[str, RunStep], after: Collection[RunStep]) -> str:
    """Return why bad steps stop a run; empty if no step became bad, or if all steps have ended.

    Steps that were bad before do not stop the run: a person may have run other steps again.
    """
    if all(row.outcome is not None for row in after):
        return ""
    failed_steps = [
        row
        for row in after
        if is_own_failure(row)
        and ((earlier := before.get(row.name)) is None or earlier.outcome is None)
    ]
    return failure_of(failed_steps) if failed_steps else ""


_ENDS = {
    StepState.FAILED: ("failed", "failed"),
    StepState.CANCELED: ("was canceled", "were canceled"),
    StepState.SKIPPED: ("missed its time", "missed their time"),
}


def failure_of(failed_steps: Sequence[RunStep]) -> str:
    """Return the reason why a run failed, given its bad steps.

    The reason omits errors of tasks, which are shown elsewhere. A step that ended without failed
    tasks has its own reason.
    """
    states = dict.fromkeys(step.state for step in failed_steps)
    one_way, phrase = _ENDS.get(next(iter(states)), _ENDS[StepState.FAILED])
    if len(failed_steps) == 1:
        own = _own_reason(failed_steps[0])
        return f"step {failed_steps[0].name} {one_way}{f': {own}' if own else ''}"
    names = ", ".join(step.name for step in failed_steps[:3]) + (
        " and others" if len(failed_steps) > 3 else ""
    )
    reason = f"steps {names} {phrase if len(states) == 1 else 'were not successful'}"
    first = next((step for step in failed_steps if _own_reason(step)), None)
    return f"{reason}: {first.name}: {_own_reason(first)}" if first is not None else reason


def is_named_in(reason: str, name: str) -> bool:
    """Return whether the reason of a run or a canceled step names the step `name` as a cause.

    If the reason shortens the list of steps (`and others`), it may include any step.
    """
    if not reason.startswith(STEP_REASONS):
        return False
    names = _NAMES.match(reason)
    return names is not None and (name in names[1].split(", ") or bool(names[2]))


def _own_reason(row: RunStep) -> str:
    """Return the reason for a bad step if no task error explains it; empty for other steps."""
    if row.failed and row.state == StepState.FAILED and OVERTIME_REASON not in row.reason:
        return ""
    return row.reason.removeprefix("it failed: ").removeprefix(f"{TIME_REASON}{_TOO_LATE}")


class _Ended(msgspec.Struct, frozen=True):
    """The ended elements of a step by outcome, as set bits."""

    good: int
    bad: int
    ended: int


class _Facts(msgspec.Struct, frozen=True):
    """The facts that conditions and lists use: the run, the meta of its job, and step outputs."""

    run: FlowRun
    meta: Mapping[str, str]
    outputs: Mapping[str, Mapping[str, str]]


class _Decision:
    """One decision about all steps of a run; steps are added in the order of the graph."""

    def __init__(
        self,
        before: Mapping[str, RunStep],
        elements: Mapping[str, Elements],
        facts: _Facts,
        now: int,
        *,
        is_held: bool,
        approvals: Mapping[str, int],
    ) -> None:
        self.steps: dict[str, RunStep] = {}
        self._before, self._elements = before, elements
        self._facts, self._now, self._is_held = facts, now, is_held
        self._approvals = approvals
        self._is_canceled = False
        self._alive: Collection[str] = ()
        self._max_elements = self._element_count = 0  # elements of all steps
        self._taken_over = 0  # further elements of steps that take their elements from other steps
        self._freeze = self._slot = ""
        self.granted: Mapping[str, int] = {}  # elements that hold slots of the queues of their step
        self.ask = set[str]()
        self.openings: Mapping[str, Openings] = {}
        self.only = dict[str, int]()
        self.reopen = set[int]()  # when the calendars of held steps open

    def cancel(self, alive: Collection[str]) -> None:
        """Continue only clean-up steps. The steps in `alive` have tasks that are still ending."""
        self._is_canceled, self._alive = True, alive

    def wait_for(self, freeze: str, slot: str) -> None:
        """Let no step begin if one of these reasons is not empty."""
        self._freeze, self._slot = freeze, slot

    def limit(self, max_elements: int, element_count: int) -> None:
        """Limit the elements of all steps together; a `max_elements` of 0 means no limit.

        `element_count` is their number before this decision.
        """
        self._max_elements, self._element_count = max_elements, element_count

    def goes_on(self, step: Step) -> bool:
        """Return whether the elements of a step may still be desired."""
        return not self._is_canceled or step.goes_on(self._facts.run)

    def add_all(self, in_order: Iterable[Step]) -> None:
        """Decide about all steps, each after its needs.

        Most steps of a large workflow have ended, or wait for other steps. These do not change.
        """
        before, steps, is_canceled = self._before, self.steps, self._is_canceled
        waiting = set[str]()  # steps that have not ended
        for step in in_order:
            row = before.get(step.name)
            if row is None:
                row = RunStep(name=step.name, total=step.count, since=self._now)
            if row.state is StepState.HELD and self._waits_only_for_a_place(step, row):
                pass  # within_limits opens it; deciding about thousands of such steps takes long
            elif row.outcome is None and (
                is_canceled
                or row.state is not StepState.WAITING
                or step.each_of
                or waiting.isdisjoint(step.needs)
            ):
                spend(_DECIDED)
                row = self._next(step, row)
            if row.outcome is None:
                waiting.add(row.name)
            steps[step.name] = row

    def _next(self, step: Step, row: RunStep) -> RunStep:
        if not self.goes_on(step):
            if row.name in self._alive:
                return row
            return self._end(row, StepState.CANCELED, Outcome.BAD, self._facts.run.reason)
        if row.state in (StepState.WAITING, StepState.HELD):
            row = self._begun(step, row)
        return self._progress(step, row) if row.state == StepState.OPEN else row

    # --- begin ---

    def _begun(self, step: Step, row: RunStep) -> RunStep:
        try:
            checked_row, skipped = self._after_needs(step, row)
            if checked_row is None:
                return row
            if skipped is not None:
                return self._end(checked_row, StepState.SKIPPED, *skipped)
            asks = step.condition and not self._is_alone(step)
            if asks and (stopped := self._by_condition(step, checked_row)) is not None:
                return stopped
            row = msgspec.structs.replace(checked_row, total=self._total(step, checked_row))
            self._check_element(step, row.total)
        except lists.Faulty as error:
            return self._end(
                row, StepState.FAILED, Outcome.BAD, f"its list cannot be used: {error}"
            )
        if not row.total:
            return self._end(row, StepState.SKIPPED, Outcome.NEUTRAL, "it has no elements")
        if (stopped := self._at_gate(step, row)) is not None:
            return stopped
        if (stopped := self._by_time(step, row)) is not None:
            return stopped
        if reason := self._closed(step) or self._hold(step):
            return self._moved(row, StepState.HELD, reason)
        return msgspec.structs.replace(self._moved(row, StepState.OPEN), opened=self._now)

    def _after_needs(
        self, step: Step, row: RunStep
    ) -> tuple[RunStep | None, tuple[Outcome, str] | None]:
        """Return a pair: the step with its number of elements, and the outcome with its reason.

        The outcome is None unless the step is skipped because of its needs. The step is None while
        it waits for its needs. Raises `Faulty`.
        """
        if self._is_alone(step):
            return row, None
        needs = [self.steps[name] for name in step.needs]
        if not step.each_of:
            has_ended = all(need.outcome is not None for need in needs)
            return (row, _skip(step.when, needs)) if has_ended else (None, None)
        row = msgspec.structs.replace(row, total=self._paired_total(step, row))
        bits, is_final = self._may_begin(step, row.total)
        if bits:
            return row, None
        none = (Outcome.NEUTRAL, "it has no elements that may begin")
        return (row, _skip(step.when, needs) or none) if is_final else (None, None)

    def _is_alone(self, step: Step) -> bool:
        """Return whether a step begins although its needs have not run.

        In a run of one step, the other steps are left out.
        """
        has_one = bool(self._facts.run.only_step)
        return has_one and all(self.steps[name].is_left_out for name in step.needs)

    def _check_element(self, step: Step, total: int) -> None:
        """Raise `Faulty` if a run of one element begins, and the step has no such element."""
        element = self._only_element(step)
        if element is not None and element >= total:
            raise lists.Faulty(f"it has {total} items, and none with the index {element}")

    def _only_element(self, step: Step) -> int | None:
        """Return the index of the element if only one element of a step runs; otherwise None."""
        run = self._facts.run
        return run.only_element if run.only_step == step.name else None

    def _closed(self, step: Step) -> str:
        """Return why a step's calendar is closed; empty if it is open, or for a clean-up step."""
        openings = self.openings.get(step.calendar)
        if openings is None or self._is_canceled:
            return ""
        from daemon.flow.calendars import TooManySteps  # imported late: few steps have calendars

        try:
            reason = openings.why_closed(self._now)
        except TooManySteps:
            reason = f"{CLOSED_REASON}calendar {quote(step.calendar)} needs too many steps"
        if not reason:
            return ""
        opens = openings.next_open(self._now)
        self.reopen.add(self._now + _CALENDAR_AGAIN if opens is None else opens)
        return reason if opens is None else f"{reason}; it opens at {rfc3339(opens)}"

    def _hold(self, step: Step) -> str:
        """Return why a step does not begin now; empty if it may begin."""
        if self._freeze and not self._is_canceled:
            return self._freeze
        if self._is_held or self._slot:
            return _PREVIOUS if self._is_held else self._slot
        if step.queues and not self.granted.get(step.name):
            self.ask.add(step.name)
            return waits_for_queues(step.queues)
        return ""

    def _by_condition(self, step: Step, row: RunStep) -> RunStep | None:
        """Return the step as skipped or failed if its condition is not true; None if it is true."""
        needs = [self.steps[name] for name in step.needs if name not in step.each_of]
        from daemon.flow import conditions, outputs  # imported late: few steps have a condition

        facts = conditions.RunFacts(
            number=self._facts.run.number,
            trigger=self._facts.run.trigger,
            meta=dict(self._facts.meta),
        )
        facts_by_step = {need.name: self._need_facts(need) for need in needs}
        faults = {
            need.name: text
            for need in needs
            if (text := self._facts.outputs.get(need.name, {}).get(outputs.FAULT))
        }
        try:
            is_true = conditions.is_true(step.condition, facts, facts_by_step, faults)
        except conditions.Undecidable as error:
            return self._end(
                row, StepState.FAILED, Outcome.BAD, f"its condition cannot be evaluated: {error}"
            )
        if is_true:
            return None
        return self._end(row, StepState.SKIPPED, Outcome.NEUTRAL, "its condition is false")

    def _need_facts(self, need: RunStep) -> "NeedFacts":
        from daemon.flow.conditions import NeedFacts

        return NeedFacts(
            outcome=need.outcome or "",
            state=need.state,
            reason=need.reason,
            exit_code=need.exit_code,
            failed=need.failed,
            total=need.total,
            outputs=dict(self._facts.outputs.get(need.name, {})),
        )

    def _total(self, step: Step, row: RunStep) -> int:
        """Return the number of elements of a step that is about to begin. Raises `Faulty`."""
        if step.inherits:
            total = self.steps[step.inherits].total
            self._taken_over += total - row.total
            self._check_run(total, self._element_count)
            return total
        if (source := step.source) is not None:
            text = self._facts.outputs.get(source.step, {}).get(str(source))
            if not text:
                raise lists.Faulty(f"{source.step} has not written the output {source.name}")
            total = lists.length(text)
        else:
            return row.total
        element_count = self._element_count + total - row.total
        if self._max_elements and element_count > self._max_elements:
            raise lists.Faulty(
                f"with its {total} items, the job has {element_count} elements; "
                f"job_max_count is {self._max_elements}"
            )
        self._check_run(total, element_count)
        self._element_count = element_count
        return total

    def _check_run(self, total: int, element_count: int) -> None:
        """Raise `Faulty` if the run has too many elements.

        The message names `total`, the number of elements of the step that exceeds the limit.
        """
        run_count = element_count + self._taken_over
        if run_count > lists.MAX_RUN_ELEMENTS:
            raise lists.Faulty(
                f"with its {total} elements, the run has {run_count}; "
                f"the maximum is {lists.MAX_RUN_ELEMENTS}"
            )

    # --- elements that need others one by one ---

    def _paired_total(self, step: Step, row: RunStep) -> int:
        """Return the number of elements of a step that needs other steps element by element.

        The step begins only after one of these needs has begun. Before that, the number does not
        matter. Raises `Faulty` if a need has another number of elements.
        """
        counterparts = [self.steps[name] for name in step.needs if name in step.each_of]
        if not any(
            need_row.state in _WITH_ELEMENTS
            or need_row.is_left_out
            or need_row.good
            or need_row.failed
            for need_row in counterparts
        ):
            return row.total
        total = self._total(step, row)
        for need_row in counterparts:
            if total != need_row.total and need_row.state in _WITH_ELEMENTS and need_row.total:
                raise lists.Faulty(
                    f"it has {total} elements, and {need_row.name} has {need_row.total}"
                )
        return total

    def _may_begin(self, step: Step, total: int) -> tuple[int, bool]:
        """Return the elements whose needs are met, as set bits, and whether this set is final.

        The set is final when all needs have ended.
        """
        all_elements = (1 << total) - 1
        whole_needs = [self.steps[name] for name in step.needs if name not in step.each_of]
        if any(row.outcome is None for row in whole_needs):
            return 0, False
        pairs = [self._ended_elements(name, all_elements) for name in step.each_of]
        ended = all_elements
        for pair in pairs:
            ended &= pair.ended
        is_final = all(self.steps[name].outcome is not None for name in step.each_of)
        is_bad = any(row.outcome == Outcome.BAD for row in whole_needs)
        match step.when:
            case When.SUCCESS:
                ready = 0 if is_bad else ended
                for pair in pairs:
                    ready &= pair.good
            case When.FAILURE:
                ready = ended if is_bad else 0
                for pair in pairs:
                    ready |= ended & pair.bad
            case When.ALWAYS:
                ready = ended
        return ready, is_final

    def _permitted(self, step: Step, total: int, element: int | None) -> tuple[int, bool]:
        """Return the elements that may begin, as set bits, and whether this set is final.

        If `element` is not None, only this element may begin.
        """
        is_paired = step.each_of and not self._is_alone(step)
        bits, is_final = self._may_begin(step, total) if is_paired else ((1 << total) - 1, True)
        return bits if element is None else bits & 1 << element, is_final

    def _ended_elements(self, name: str, all_bits: int) -> "_Ended":
        """Return the ended elements of a step as set bits; all elements if the step has ended."""
        row, elements = self.steps[name], self._elements.get(name, Elements())
        good_elements, bad_elements = elements.good_bits & all_bits, elements.failed_bits & all_bits
        match row.outcome:
            case None if row.state == StepState.OPEN:
                return _Ended(good_elements, bad_elements, good_elements | bad_elements)
            case None:
                return _Ended(0, 0, 0)
            case Outcome.GOOD:
                # An accepted step is good as a whole. The elements of a step that was taken over
                # from a run of another version are unknown.
                is_accepted = row.reason.startswith(ACCEPTED_REASON)
                is_unknown = not good_elements and row.good > 0
                return _Ended(
                    all_bits if is_accepted or is_unknown else good_elements, bad_elements, all_bits
                )
            case Outcome.BAD:
                return _Ended(good_elements, all_bits & ~good_elements, all_bits)
            case Outcome.NEUTRAL:  # a step that was left out counts as good
                return _Ended(all_bits if row.is_left_out else 0, 0, all_bits)

    def _at_gate(self, step: Step, row: RunStep) -> RunStep | None:
        """Return the new state of a step that has not passed its gate.

        Return None if the step has passed its gate or has no gate.
        """
        if not step.gate or self._approvals.get(step.name, 0) >= step.approvals:
            return None
        held_row = self._moved(row, StepState.HELD, f"{GATE_REASON}{step.gate}")
        due_time = gate_due(step, held_row)
        if due_time is None or self._now < due_time:
            return held_row
        if step.is_approved_late:
            return None
        reason = f"{GATE_REASON}not approved within {duration(step.within or 0)}"
        return self._end(held_row, StepState.CANCELED, Outcome.BAD, reason)

    def _by_time(self, step: Step, row: RunStep) -> RunStep | None:
        """Return the new state of a step that is too early or too late; None if it may begin."""
        if self._is_canceled:
            return None
        times = _window(step, self._facts.run, row, self._now)
        if times.last is not None and self._now >= times.last:
            reason = f"{TIME_REASON}{_TOO_LATE}it had to begin before {rfc3339(times.last)}"
            return self._end(row, StepState.SKIPPED, Outcome.BAD, reason)
        if times.first is not None and self._now < times.first:
            reason = f"{TIME_REASON}it begins at {rfc3339(times.first)}"
            return self._moved(row, StepState.HELD, reason)
        return None

    # --- limits of active elements ---

    def _waits_only_for_a_place(self, step: Step, row: RunStep) -> bool:
        """Return whether a held step certainly begins as soon as its run has a free place."""
        return (
            has_no_place(row)
            and not (self._is_canceled or self._freeze or self._slot or self._is_held)
            and step.only_begins
        )

    def within_limits(self, graph: Graph, most: int | None) -> dict[str, int]:
        """Divide the free places of the run among the steps, in the order of the job file.

        At most `most` elements of the run may be active; None means no limit. A step that would
        begin without a place is held. Return the maximum number of active elements of each step
        with a limit.
        """
        limits, free = dict[str, int](), most
        if free is None and not graph.has_limits:
            return limits
        if free is not None:
            free -= sum(
                elements.at_work
                for name, elements in self._elements.items()
                if name in self.steps and self.steps[name].outcome is None
            )
        for step in graph.steps:
            row = self.steps[step.name]
            if row.state is StepState.HELD and self._waits_only_for_a_place(step, row):
                if free is not None and free <= 0:
                    continue
                row = self.steps[step.name] = self._next(step, row)
            is_open = row.state is StepState.OPEN and self.goes_on(step)
            if is_open and step.stops and row.failed > step.allowance.of(row.total):
                limits[step.name] = 0
                self.steps[step.name] = self._moved(row, row.state)
            elif (is_open or step.name in self.ask) and (most, step.parallel) != (None, None):
                active = self._elements.get(step.name, Elements()).at_work
                missing = self._missing(step, row)
                share = share_of(step, active=active, missing=missing, free=free, most=most)
                self._apply(row, share)
                limits[step.name] = step.parallel or 0
                if free is not None:
                    limits[step.name] = active + share.begun
                    free -= share.begun
        return limits

    def _apply(self, row: RunStep, share: PlaceShare) -> None:
        """Store why elements of a step get no place; hold a step that would begin without one."""
        is_asking, before = row.name in self.ask, self._before.get(row.name)
        if not share.has_none or (before is not None and before.state is StepState.OPEN):
            if not is_asking:
                self.steps[row.name] = self._moved(row, row.state, share.reason)
            return
        self.ask.discard(row.name)
        self.only.pop(row.name, None)
        before = before or RunStep(name=row.name, since=self._now)
        before = msgspec.structs.replace(before, total=row.total)
        self.steps[row.name] = self._moved(before, StepState.HELD, share.reason)

    def _missing(self, step: Step, row: RunStep) -> int:
        """Return how many elements of a step may begin, ignoring limits on active elements."""
        elements = self._elements.get(row.name, Elements())
        number = row.total
        if step.each_of:
            bits = self.only.get(step.name)
            bits = self._may_begin(step, row.total)[0] if bits is None else bits
            number = bits.bit_count()
        if self._only_element(step) is not None:
            number = min(number, 1)
        return max(number - elements.good - elements.failed - elements.at_work, 0)

    # --- end ---

    def _progress(self, step: Step, row: RunStep) -> RunStep:
        elements = self._elements.get(row.name, Elements())
        row = msgspec.structs.replace(
            row, good=elements.good, failed=elements.failed, exit_code=elements.exit_code
        )
        element = self._only_element(step)
        is_bad = elements.failed > (step.allowance.of(row.total) if element is None else 0)
        remaining, is_final = row.total, True
        if step.each_of or element is not None:
            self.only[step.name], is_final = self._permitted(step, row.total, element)
            remaining = self.only[step.name].bit_count()
        is_complete = is_final and elements.good + elements.failed >= remaining
        if elements.at_work or not (is_complete or (is_bad and step.stops)):
            return row
        failure = (
            f"{elements.failed} of {row.total} elements failed" if row.total > 1 else "it failed"
        )
        if not is_bad:
            reason = f"{failure}, which is allowed" if elements.failed else ""
            if remaining < row.total:
                needs = [self.steps[name] for name in step.needs]
                skipped = _skip(step.when, needs) if step.when == When.SUCCESS else None
                if skipped is not None and skipped[0] == Outcome.BAD:
                    return self._end(row, StepState.SKIPPED, *skipped)
                skipped_text = f"{row.total - remaining} of {row.total} elements were skipped"
                reason = "; ".join(filter(None, (reason, skipped_text)))
            return self._end(row, StepState.SUCCEEDED, Outcome.GOOD, reason)
        code = f", exit code {elements.exit_code}" if elements.exit_code else ""
        if elements.cause and not elements.overtime:
            code = f": {_cut(elements.cause)}"
        if elements.overtime:
            overtime_text = (
                f"{elements.overtime} with " if elements.overtime < elements.failed else ""
            )
            code += f": {overtime_text}{OVERTIME_REASON}"
        return self._end(row, StepState.FAILED, Outcome.BAD, failure + code)

    def _end(self, row: RunStep, state: StepState, outcome: Outcome, reason: str) -> RunStep:
        return msgspec.structs.replace(self._moved(row, state, reason), outcome=outcome)

    def _moved(self, row: RunStep, state: StepState, reason: str = "") -> RunStep:
        if (row.state, row.reason) == (state, reason):
            return row
        since = row.since if row.state == state else self._now
        return msgspec.structs.replace(row, state=state, reason=reason, since=since)


def _skip(when: When, needs: Sequence[RunStep]) -> tuple[Outcome, str] | None:
    """Return the outcome and reason if the ended needs skip a step; None if the step may begin.

    In a run of one step, the needs that were left out do not count.
    """
    has_needs = bool(needs)
    needs = [need for need in needs if not need.is_left_out]
    if has_needs and not needs:
        return None
    failed_need = next((need for need in needs if need.outcome == Outcome.BAD), None)
    is_any_good = any(need.outcome == Outcome.GOOD for need in needs)
    match when:
        case When.ALWAYS:
            return None
        case When.FAILURE:
            return None if failed_need else (Outcome.NEUTRAL, "none of its needs has failed")
        case When.SUCCESS if failed_need:
            return Outcome.BAD, f"step {failed_need.name} was {_ended_as(failed_need)}"
        case When.SUCCESS if needs and not is_any_good:
            return Outcome.NEUTRAL, "none of its needs has run"
        case When.SUCCESS:
            return None


def _cut(cause: str) -> str:
    """Return the error of a task, cut at a limit, because a driver may report a long text."""
    return cause if len(cause) <= _MAX_CAUSE else f"{cause[:_MAX_CAUSE]} ..."


def _ended_as(step: RunStep) -> str:
    return "not successful" if step.state == StepState.FAILED else step.state.value
