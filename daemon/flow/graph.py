"""The graph of a workflow: its steps, their needs, their order and their levels.

A workflow is a batch job with a workflow key in one of its groups. Each of its groups is a step.
The module does not know runs: `daemon/flow/advance.py` uses the graph to decide which steps may
begin.
"""

import re
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from daemon.flow import lists
from daemon.flow.lists import Reference
from daemon.flow.workflow_keys import KEYS, has_job_keys, has_keys, is_workflow
from daemon.jobspec.steward_meta.job_keys import RUN_QUEUE, queue_of
from daemon.jobspec.steward_meta.key import Meta, MetaExtension
from daemon.jobspec.steward_meta.step_keys import (
    CALENDAR,
    FAILURES_ALLOWED,
    FOR_EACH,
    GATE,
    GATE_BY,
    GATE_ELSE,
    GATE_NOT_SELF,
    GATE_NUMBER,
    GATE_WITHIN,
    IF,
    MATRIX,
    NEEDS,
    NOT_AFTER,
    NOT_BEFORE,
    ON_FAILURE,
    OUTPUTS,
    PARALLEL,
    REDO,
    STEP_QUEUES,
    STEP_SLOTS,
    TIME_ZONE,
    WHEN,
)
from daemon.jobspec.steward_meta.step_values import (
    MAX_ELEMENTS,
    Allowance,
    BeginTime,
    GateElse,
    OnFailure,
    When,
)
from daemon.text.go_format import quote
from storage.errors import Malformed
from storage.loop_share import spend
from storage.records.flow import FlowGraph, FlowRun, FlowStatus, GraphEdge, GraphStep
from storage.records.group import TaskGroup
from storage.records.job import Job, JobType

if TYPE_CHECKING:
    from daemon.text.hints import Hints

ALL = "*"  # in needs: all groups that neither depend on this group nor have `*` in their needs
MAX_GROUPS = 2_000
MAX_NEEDS = 20_000
MAX_DEPTH = 1_000
MAX_KEYS = 64 * 1024  # bytes of the workflow keys of a group
MAX_PROBLEMS = 20  # errors reported for a job
_BUILT, _SHOWN, _SEARCHED = 30, 15, 20  # units of work for a step
_STARTS = 200  # groups from which a shortest cycle is sought: 2,000 would take seconds
_NAME = re.compile(r"[A-Za-z0-9_-]+")

Edges = Mapping[str, tuple[str, ...]]


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A group of a workflow: its needs in the order of the file, and its conditions.

    `count` is the number of the step's elements. At most `parallel` elements may be active at the
    same time; None means all. The `allowance` is how many elements may fail. With `stops`, no
    element begins after more failures than that. If the step has a `source`, the number of elements
    is known only when the step begins.

    A step with a `gate`, the text of a question, needs `approvals` approvals. With `not_self`, the
    person who began the run cannot approve. If approvals are missing after `within` nanoseconds,
    the step is rejected; with `is_approved_late`, it is approved instead. Each active element holds
    `slots` slots of each of the step's `queues`.
    """

    name: str
    needs: tuple[str, ...] = ()
    when: When = When.SUCCESS
    condition: str = ""
    count: int = 1
    parallel: int | None = None
    allowance: Allowance = Allowance()
    stops: bool = False
    gate: str = ""
    approvals: int = 1
    approvers: tuple[str, ...] = ()  # roles and policies; empty for any
    not_self: bool = False
    within: int | None = None
    is_approved_late: bool = False
    not_before: BeginTime | None = None
    not_after: BeginTime | None = None
    time_zone: str = "UTC"  # time zone of times of day
    redo: bool = False  # whether the step runs again with each step that comes after it
    outputs: tuple[str, ...] = ()  # outputs that the step must write; empty if it may write any
    source: Reference | None = None  # the output that is the list of its elements
    queues: tuple[str, ...] = ()
    calendar: str = ""  # calendar during whose open times the step may begin
    slots: int = 1
    each_of: frozenset[str] = (
        frozenset()
    )  # needs in which each element awaits only the element with the same index
    inherits: str = ""  # the need in `each_of` that determines the number of elements

    @property
    def cleans_up(self) -> bool:
        """Return whether the step also runs after its run was canceled."""
        return self.when == When.ALWAYS and bool(self.needs)

    @property
    def only_begins(self) -> bool:
        """Return whether the step certainly begins as soon as its run has a free place.

        A step that could still be skipped, fail or be held for another reason does not count.
        """
        return (
            self.when != When.FAILURE  # a person may accept the failure
            and not (self.condition or self.gate or self.calendar)
            and not (self.source or self.inherits or self.each_of or self.queues)
            and self.not_before is None
            and self.not_after is None
        )

    def goes_on(self, run: FlowRun) -> bool:
        """Return whether the step may still begin, or continue, in a run that has not ended.

        After a timeout, or after a bad step stopped the run, the failure handlers also run.
        """
        if run.status == FlowStatus.RUNNING:
            return True
        handles = run.fails and self.when == When.FAILURE and bool(self.needs)
        return run.cleans_up and (self.cleans_up or handles)


class Graph(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The steps of a workflow in the order of the file. No step waits for itself."""

    steps: tuple[Step, ...]

    @cached_property
    def by_name(self) -> Mapping[str, Step]:
        """Return the steps by name."""
        return {step.name: step for step in self.steps}

    @cached_property
    def order(self) -> tuple[Step, ...]:
        """Return the steps, each after all steps that it needs."""
        return tuple(self.by_name[name] for level in self.levels for name in level)

    @cached_property
    def levels(self) -> tuple[tuple[str, ...], ...]:
        """Return the step names by level: a step is one level after the last step that it needs."""
        depth = _depths(_edges(self.steps))
        by_level: list[list[str]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
        for step in self.steps:
            by_level[depth[step.name]].append(step.name)
        return tuple(tuple(level) for level in by_level)

    @cached_property
    def has_sources(self) -> bool:
        """Return whether there is a step whose number of elements is known only when it begins."""
        return any(step.source is not None for step in self.steps)

    @cached_property
    def has_limits(self) -> bool:
        """Return whether there is a step with a limit on its number of active elements."""
        return any(step.stops or step.parallel is not None for step in self.steps)

    @property
    def longest(self) -> tuple[str, ...]:
        """Return the longest chain of steps; among equal chains, the first in the file."""
        levels = {name: number for number, level in enumerate(self.levels) for name in level}
        chain = list(self.levels[-1][:1]) if self.levels else []
        while chain and levels[chain[-1]]:
            needs = self.by_name[chain[-1]].needs
            chain.append(next(need for need in needs if levels[need] == levels[chain[-1]] - 1))
        return tuple(reversed(chain))

    @cached_property
    def dependents(self) -> Edges:
        """Return, for each step, the steps that need it, in the order of the file."""
        dependents_of: dict[str, list[str]] = {graph_step.name: [] for graph_step in self.steps}
        for step in self.steps:
            for need in step.needs:
                dependents_of[need].append(step.name)
        return {name: tuple(dependents) for name, dependents in dependents_of.items()}


def graph_of(job: Job) -> Graph:
    """Return the graph of a valid workflow.

    Raises `Malformed` with the first problem if the job is not valid.
    """
    for problem in problems(job):
        raise Malformed(problem)
    return Graph(steps=tuple(_steps(job)))


def stored_graph(job: Job) -> Graph:
    """Return the graph of a workflow that registration has checked."""
    return _GRAPHS.of(job)


class _LastGraph:
    """A cache of the last graph, because a graph of a thousand steps takes milliseconds to build.

    The cache compares the identity of the group objects: repeated reads of a long definition from
    the store return the same objects.
    """

    def __init__(self) -> None:
        self._last: tuple[list[TaskGroup] | None, Graph] = (None, Graph(steps=()))

    def of(self, job: Job) -> Graph:
        """Return the graph of a job."""
        groups, graph = self._last
        if groups is not None and groups is job.task_groups:
            return graph
        graph = Graph(steps=tuple(_steps(job)))
        self._last = (job.task_groups, graph)
        return graph


_GRAPHS = _LastGraph()


def _steps(job: Job) -> Iterator[Step]:
    groups = job.task_groups or []
    needs, own = _resolved(groups), lists.owners(groups)
    for group in groups:
        spend(_BUILT)
        each_of = lists.element_needs(group)
        yield Step(
            name=group.name,
            needs=needs[group.name],
            when=WHEN.of(group.meta),
            condition=IF.of(group.meta),
            count=lists.count(own[group.name]),
            each_of=frozenset(each_of),
            inherits=each_of[0] if own[group.name] is not group else "",
            parallel=PARALLEL.of(group.meta),
            allowance=FAILURES_ALLOWED.of(group.meta),
            source=lists.source(group),
            stops=ON_FAILURE.of(group.meta) == OnFailure.STOP,
            gate=GATE.of(group.meta),
            approvals=GATE_NUMBER.of(group.meta),
            approvers=GATE_BY.of(group.meta),
            not_self=GATE_NOT_SELF.of(group.meta),
            within=GATE_WITHIN.of(group.meta),
            is_approved_late=GATE_ELSE.of(group.meta) == GateElse.APPROVE,
            outputs=OUTPUTS.of(group.meta),
            redo=REDO.of(group.meta),
            queues=STEP_QUEUES.of(group.meta),
            calendar=CALENDAR.of(group.meta),
            slots=STEP_SLOTS.of(group.meta),
            not_before=NOT_BEFORE.of(group.meta),
            not_after=NOT_AFTER.of(group.meta),
            time_zone=TIME_ZONE.of(group.meta),
        )


def _resolved(groups: Iterable[TaskGroup]) -> dict[str, tuple[str, ...]]:
    """Return the needs of each group, with `*` replaced by the groups that it matches.

    The needs that groups name explicitly must not form a cycle.
    """
    written = _written(groups)
    names = tuple(written)
    before = _before_stars(written)
    return {
        name: tuple(names[number] for number in _bits(before[name])) if name in before else needs
        for name, needs in written.items()
    }


def _written(groups: Iterable[TaskGroup]) -> dict[str, tuple[str, ...]]:
    return {
        group.name: tuple(need.removesuffix(lists.EACH) for need in NEEDS.of(group.meta))
        for group in groups
    }


def _named(written: Edges) -> Edges:
    """Return the needs that groups name explicitly, without `*`."""
    return {name: () if needs == (ALL,) else needs for name, needs in written.items()}


def _bits(number: int) -> Iterator[int]:
    """Yield the positions of the bits that are set, from the lowest."""
    while number:
        lowest = number & -number
        yield lowest.bit_length() - 1
        number ^= lowest


def _before_stars(written: Edges) -> dict[str, int]:
    """Return the groups that `*` matches, as set bits, for each group with `*`."""
    bits = {name: 1 << number for number, name in enumerate(written)}
    needs = _named(written)
    behind = dict.fromkeys(written, 0)
    for name in reversed(_depths(needs)):  # each after its dependencies
        for need in needs[name]:
            behind[need] |= bits[name] | behind[name]
    stars = [name for name, written_needs in written.items() if written_needs == (ALL,)]
    other_stars = sum(bits.values()) - sum(bits[name] for name in stars)
    return {name: other_stars & ~behind[name] for name in stars}


def _edges(steps: Iterable[Step]) -> Edges:
    return {step.name: step.needs for step in steps}


def _depths(needs: Edges) -> dict[str, int]:
    """Return the level of each step, from 0; steps in or after a cycle are omitted."""
    after: dict[str, list[str]] = {name: [] for name in needs}
    for name, step_needs in needs.items():
        for need in step_needs:
            after[need].append(name)
    missing = {name: len(step_needs) for name, step_needs in needs.items()}
    depth = {name: 0 for name, number in missing.items() if not number}
    ready = deque(depth)
    while ready:
        current = ready.popleft()
        for name in after[current]:
            missing[name] -= 1
            if not missing[name]:
                depth[name] = 1 + max(depth[need] for need in needs[name])
                ready.append(name)
    return depth


def view(job: Job) -> FlowGraph:
    """Return the graph of a job as the API shows it. Raises `Malformed` if it has errors."""
    graph = graph_of(job)
    level = {name: number for number, names in enumerate(graph.levels) for name in names}
    metas = {group.name: group.meta for group in job.task_groups or ()}
    own = lists.owners(job.task_groups or ())
    return FlowGraph(
        job_id=job.id,
        namespace=job.namespace,
        version=job.version,
        is_workflow=is_workflow(job),
        steps=[
            _shown(step, level[step.name], metas[step.name], own[step.name]) for step in graph.steps
        ],
        edges=[
            GraphEdge(source=need, to=step.name, is_by_element=need in step.each_of)
            for step in graph.steps
            for need in step.needs
        ],
        levels=[list(names) for names in graph.levels],
        longest=list(graph.longest),
    )


def _shown(step: Step, level: int, meta: Meta, owner: TaskGroup) -> GraphStep:
    spend(_SHOWN)
    return GraphStep(
        name=step.name,
        level=level,
        needs=list(step.needs),
        when=step.when,
        condition=step.condition,
        count=step.count,
        parallel=step.parallel or 0,
        elements_of=str(lists.source(owner) or ""),
        each_of=[need for need in step.needs if need in step.each_of],
        queues=list(step.queues),
        slots=step.slots,
        gate=step.gate,
        approvals=step.approvals if step.gate else 0,
        calendar=step.calendar,
        not_before=_shown_time(meta, NOT_BEFORE),
        not_after=_shown_time(meta, NOT_AFTER),
    )


def _shown_time(meta: Meta, key: MetaExtension[BeginTime | None]) -> str:
    """Return a time limit as text, with the time zone if it is a time of day; empty if unset."""
    value = key.of(meta)
    if value is None or meta is None:
        return ""
    is_daily = value.minute is not None
    return f"{meta[key.name]} {TIME_ZONE.of(meta)}" if is_daily else meta[key.name]


# --- validation ---


def problems(job: Job) -> Iterator[str]:
    """Yield the first errors in a job's workflow keys that checks of single values cannot find."""
    return islice(_problems(job), MAX_PROBLEMS)


def _problems(job: Job) -> Iterator[str]:
    groups = job.task_groups or []
    keyed = [group for group in groups if has_keys(group)]
    if not keyed and not has_job_keys(job):
        return
    if job.type != JobType.BATCH:
        if not keyed:  # the check of the job's own keys reports the error
            return
        key = next(key for key in KEYS if key in (keyed[0].meta or ()))
        yield f"{key} needs a job of type batch"
        return
    if own := queue_of(job):
        for group in groups:
            if own in STEP_QUEUES.of(group.meta):
                yield (
                    f"Task group {group.name} names the queue {quote(own)}, which "
                    f"{RUN_QUEUE.name} also names; a queue is for runs or for steps"
                )
    # Each check is cheap only for a job that passes those before it.
    for check in (_of_size, _of_names, _of_needs):
        is_good = True
        for problem in check(groups):
            is_good = False
            yield problem
        if not is_good:
            return
    steps = list(_steps(job))
    yield from _of_keys(groups)
    yield from _of_counts(groups)
    yield from _of_graph(steps)
    yield from _of_elements(steps)
    yield from _of_outputs(lists.resolved(groups), Graph(steps=tuple(steps)))


def _of_size(groups: Collection[TaskGroup]) -> Iterator[str]:
    if len(groups) > MAX_GROUPS:
        yield f"the workflow has {len(groups)} groups; the maximum is {MAX_GROUPS}"
        return
    texts = ((group.meta or {}).get(NEEDS.name) for group in groups)
    yield from _too_many(sum(text.count(",") + 1 for text in texts if text is not None))


def _too_many(needs: int) -> Iterator[str]:
    if needs > MAX_NEEDS:
        yield f"the workflow has {needs} needs; the maximum is {MAX_NEEDS}"


def _of_keys(groups: Iterable[TaskGroup]) -> Iterator[str]:
    for group in groups:
        meta = group.meta or {}
        size = sum(len(meta[key].encode()) for key in KEYS if key in meta)
        if size > MAX_KEYS:
            yield (
                f"Task group {group.name} has workflow keys of {size} bytes; "
                f"the maximum is {MAX_KEYS}"
            )


def count_problems(job: Job) -> Iterator[str]:
    """Yield an error for each step, and for the whole run, that has too many elements.

    A number of elements that depends on an output is checked when its step begins.
    """
    if is_workflow(job):
        yield from _of_counts(job.task_groups or [])


def _of_counts(groups: Collection[TaskGroup]) -> Iterator[str]:
    for group in groups:
        if group.count > MAX_ELEMENTS:
            yield (
                f"Task group {group.name} has count = {group.count}; "
                f"the maximum of a step is {MAX_ELEMENTS}"
            )
    total = sum(lists.count(owner) for owner in lists.owners(groups).values())
    if total > lists.MAX_RUN_ELEMENTS:
        yield f"the workflow has {total} elements; the maximum is {lists.MAX_RUN_ELEMENTS}"


def _of_needs(groups: Iterable[TaskGroup]) -> Iterator[str]:
    """Yield an error for a cycle, or for too many groups that `*` matches."""
    written = _written(groups)
    named = _named(written)
    depth = _depths(named)
    if len(depth) < len(named):
        yield _cycle(named, depth)
        return
    stood_for = sum(bits.bit_count() for bits in _before_stars(written).values())
    yield from _too_many(stood_for + sum(map(len, named.values())))


def _cycle(needs: Edges, settled: Collection[str]) -> str:
    return f"steps wait for each other: {' -> '.join(shortest_cycle(needs, settled))}"


def _of_names(groups: Collection[TaskGroup]) -> Iterator[str]:
    """Yield the errors of gates, of group names, and of needs."""
    yield from _of_gates(groups)
    yield from _of_queues(groups)
    yield from _of_times(groups)
    yield from _of_lists(groups)
    from daemon.text.hints import Hints  # imported late: only registrations need it

    group_names, hints = {task_group.name: None for task_group in groups}, Hints()
    for group in groups:
        yield from _of_names_in(group, group_names, hints)


def _of_names_in(group: TaskGroup, group_names: Collection[str], hints: "Hints") -> Iterator[str]:
    if has_keys(group) and not _NAME.fullmatch(group.name):
        yield (
            f"Task group {quote(group.name)} has needs, "
            "so its name may only have letters, digits, - and _"
        )
    written = NEEDS.of(group.meta)
    needs = tuple(need.removesuffix(lists.EACH) for need in written)
    if ALL in needs:
        if written != (ALL,):
            yield f"{quote(ALL)} in {NEEDS.name} must stand alone"
        return
    if len(set(needs)) < len(needs):
        twice = next(need for need in needs if need in written and need + lists.EACH in written)
        yield f"Task group {group.name} needs {quote(twice)} both as a whole and by element"
        return
    for need in needs:
        if need not in group_names:
            yield (
                f"Task group {group.name} needs {quote(need)}, "
                f"which is not a group of this job{hints.of(need, group_names)}"
            )
        elif not _NAME.fullmatch(need):
            yield (
                f"Task group {quote(need)} is needed, "
                "so its name may only have letters, digits, - and _"
            )


def _of_gates(groups: Iterable[TaskGroup]) -> Iterator[str]:
    for group in groups:
        meta = group.meta or {}
        for key in (GATE_NUMBER, GATE_BY, GATE_NOT_SELF, GATE_WITHIN, GATE_ELSE):
            needed = GATE_WITHIN if key is GATE_ELSE else GATE
            if key.name in meta and needed.name not in meta:
                yield f"Task group {group.name} has {key.name} without {needed.name}"
        if GATE_WITHIN.of(meta) == 0:
            yield (
                f"Task group {group.name} has {GATE_WITHIN.name} = {quote(meta[GATE_WITHIN.name])}, "
                "so no person can approve it in time; write a longer duration, such as 1h"
            )


def _of_queues(groups: Iterable[TaskGroup]) -> Iterator[str]:
    for group in groups:
        meta = group.meta or {}
        if STEP_SLOTS.name in meta and STEP_QUEUES.name not in meta:
            yield f"Task group {group.name} has {STEP_SLOTS.name} without {STEP_QUEUES.name}"


def _of_times(groups: Iterable[TaskGroup]) -> Iterator[str]:
    for group in groups:
        first, last = NOT_BEFORE.of(group.meta), NOT_AFTER.of(group.meta)
        if first is not None and first == last:
            yield (
                f"Task group {group.name} has the same {NOT_BEFORE.name} and {NOT_AFTER.name}, "
                "so it can never begin"
            )
        elif last is not None and last.delay == 0:
            yield (
                f"Task group {group.name} can never begin: {NOT_AFTER.name} is "
                f"{quote((group.meta or {})[NOT_AFTER.name])}; write a longer delay, such as +15m"
            )
        elif first is not None and last is not None and _is_reversed(first, last):
            yield (
                f"Task group {group.name} can never begin: {NOT_AFTER.name} is before "
                f"{NOT_BEFORE.name}"
            )
        uses_zone = any(time is not None and time.minute is not None for time in (first, last))
        if TIME_ZONE.name in (group.meta or ()) and not uses_zone:
            yield (
                f"Task group {group.name} has {TIME_ZONE.name} without a time of day in "
                f"{NOT_BEFORE.name} or {NOT_AFTER.name}"
            )


def _is_reversed(first: BeginTime, last: BeginTime) -> bool:
    """Return whether `last` is always before `first`, so that the step can never begin."""
    if first.moment is not None and last.moment is not None:
        return last.moment < first.moment
    return first.delay is not None and last.delay is not None and last.delay < first.delay


def _of_lists(groups: Iterable[TaskGroup]) -> Iterator[str]:
    for group in groups:
        keys = [key.name for key in (FOR_EACH, MATRIX) if key.name in (group.meta or ())]
        if keys and group.count != 1:
            yield f"Task group {group.name} has both count = {group.count} and {keys[0]}"
        elif len(keys) > 1:
            yield f"Task group {group.name} has both {keys[0]} and {keys[1]}"
        elif keys:
            try:
                lists.check(group)
            except lists.Faulty as error:
                yield f"Task group {group.name}: {keys[0]}: {error}"


def _of_graph(steps: list[Step]) -> Iterator[str]:
    needs = _edges(steps)
    depth = _depths(needs)
    if len(depth) < len(needs):
        yield _cycle(needs, depth)
        return
    if (levels := max(depth.values(), default=0) + 1) > MAX_DEPTH:
        yield f"the workflow has {levels} levels; the maximum is {MAX_DEPTH}"
    from daemon.text.hints import Hints

    hints = Hints()
    declared = {graph_step.name: graph_step.outputs for graph_step in steps if graph_step.outputs}
    for step in steps:
        yield from _of_conditions(step, hints, declared)


def _of_elements(steps: Iterable[Step]) -> Iterator[str]:
    """Yield an error for each step that needs another step element by element.

    Both steps must have the same number of elements, unless a number is known only during a run.
    """
    steps_by_name = {graph_step.name: graph_step for graph_step in steps}
    dynamic = dict[str, bool]()
    for step in steps_by_name.values():
        path = [step]
        while path[-1].name not in dynamic and path[-1].inherits:
            path.append(steps_by_name[path[-1].inherits])
        last = path[-1]
        is_dynamic = dynamic.get(last.name, last.source is not None)
        dynamic |= {graph_step.name: is_dynamic for graph_step in path}
    for step in steps_by_name.values():
        for need in (need_name for need_name in step.needs if need_name in step.each_of):
            needed_step = steps_by_name[need]
            is_known = not (dynamic[step.name] or dynamic[need])
            if is_known and step.count != needed_step.count:
                yield (
                    f"Task group {step.name} needs {quote(need + lists.EACH)} but has "
                    f"{step.count} elements and {need} has {needed_step.count}"
                )


def counterparts(graph: Graph, names: Collection[str]) -> dict[str, frozenset[str]]:
    """Return, for each named step, the earlier steps whose elements it awaits one by one."""
    in_order = [step.name for step in graph.order]
    bits = {name: 1 << number for number, name in enumerate(in_order)}
    before, pairs, complete = (dict.fromkeys(in_order, 0) for _ in range(3))
    result = dict[str, frozenset[str]]()
    for step in graph.order:
        direct = 0
        for need in step.needs:
            before[step.name] |= bits[need] | before[need]
            if need in step.each_of:
                direct |= bits[need]
                pairs[step.name] |= bits[need] | pairs[need]
                complete[step.name] |= complete[need]
            else:
                complete[step.name] |= bits[need] | before[need]
        if step.name in names:
            own = direct | pairs[step.name] & ~complete[step.name]
            result[step.name] = frozenset(in_order[number] for number in _bits(own))
    return result


def _of_outputs(groups: Collection[TaskGroup], graph: Graph) -> Iterator[str]:
    """Yield the errors of references to outputs of other steps."""
    from daemon.flow import outputs  # imported late: only registrations need it

    referring = list[str]()
    for group in groups:
        spend(_SEARCHED)
        if (
            outputs.may_refer(group)
            or outputs.kept_sources(group)
            or outputs.template_references(group)
        ):
            referring.append(group.name)
    if not referring:
        return
    needs = _edges(graph.steps)
    before = dict.fromkeys(needs, 0)
    names, bits = tuple(needs), {name: 1 << number for number, name in enumerate(needs)}
    for name in _depths(needs):  # each after all steps that it needs
        for need in needs[name]:
            before[name] |= bits[need] | before[need]
    earlier_names = {
        name: frozenset(names[number] for number in _bits(before[name])) for name in referring
    }
    paired = {name for name in referring if graph.by_name[name].each_of}
    yield from outputs.problems(
        groups, earlier_names, counterparts(graph, paired) if paired else {}
    )


def _of_conditions(
    step: Step, hints: "Hints", declared: Mapping[str, Collection[str]]
) -> Iterator[str]:
    if step.when == When.FAILURE and not step.needs:
        yield f"Task group {step.name} begins on failure, but needs no group"
    if step.condition:
        from daemon.flow import conditions

        whole_needs = [need for need in step.needs if need not in step.each_of]
        for problem in conditions.problems(
            step.condition, whole_needs, hints, declared, step.each_of
        ):
            yield f"Task group {step.name}: {IF.name} {problem}"


def shortest_cycle(needs: Edges, settled: Collection[str] = ()) -> list[str]:
    """Return a shortest cycle; it begins and ends with the group that comes first in the file.

    `settled` are groups that are in no cycle. In a cycle, each group waits for the next group.
    """
    unsettled = [name for name in needs if name not in settled]
    best: list[str] = []  # without the group at its end
    for number, start in enumerate(unsettled):
        if best and number >= _STARTS:
            break
        cycle = _shortest_cycle(start, needs, len(best))
        if cycle and (not best or len(cycle) < len(best)):
            best = cycle
    position = {name: number for number, name in enumerate(needs)}
    first = min(range(len(best)), key=lambda number: position[best[number]], default=0)
    turned = [*best[first:], *best[:first]]
    return [*turned, turned[0]] if turned else []


def _shortest_cycle(start: str, needs: Edges, most: int) -> list[str]:
    """Return the shortest cycle through the group `start`; empty if there is none.

    With `most`, only cycles with fewer than `most` groups count; 0 means no limit.
    """
    before: dict[str, str] = {}
    ahead, length = [start], 0
    while ahead and (not most or length + 1 < most):
        length += 1
        further: list[str] = []
        for name in ahead:
            for need in needs[name]:
                if need == start:
                    return _path(start, name, before)
                if need not in before:
                    before[need] = name
                    further.append(need)
        ahead = further
    return []


def _path(start: str, last: str, before: Mapping[str, str]) -> list[str]:
    path = [last]
    while path[-1] != start:
        path.append(before[path[-1]])
    return path[::-1]


# --- warnings ---


def warnings(job: Job) -> Iterator[str]:
    """Yield warnings about a valid workflow."""
    if not is_workflow(job):
        return
    graph = stored_graph(job)
    stars = {group.name for group in job.task_groups or () if NEEDS.of(group.meta) == (ALL,)}
    for step in graph.steps:
        is_last = not graph.dependents[step.name]
        if step.when == When.ALWAYS and step.needs and is_last and step.name not in stars:
            yield (
                f"Task group {step.name} begins always, but only after {', '.join(step.needs)}; "
                f'to run it at the end of every run, write {NEEDS.name} = "{ALL}"'
            )
    yield from _unreachable_steps(graph.order)


def _unreachable_steps(steps: Iterable[Step]) -> Iterator[str]:
    """Yield a warning for each step that can never begin.

    A step without elements neither succeeds nor fails. A step that needs the success or failure
    only of such steps never begins, and does not succeed or fail either.
    """
    empty = set[str]()
    for step in steps:
        nothing_runs = bool(step.needs) and all(need in empty for need in step.needs)
        can_begin = step.when == When.ALWAYS or not nothing_runs
        has_elements = bool(step.count) or step.source is not None or bool(step.inherits)
        if not can_begin and has_elements:
            needs = " and ".join(map(quote, step.needs))
            yield (
                f"Task group {step.name} can never begin: it needs {step.when} of {needs}, "
                "which has no elements"
            )
        if not (has_elements and can_begin):
            empty.add(step.name)


# --- re-runs ---


def again(graph: Graph, chosen: Collection[str]) -> frozenset[str]:
    """Return the chosen steps and all steps that must run again with them.

    If a step runs again, all its successors run again. Its predecessors with `redo` also run again.
    """
    rerun = frozenset(chosen) | successors(graph, chosen)
    redone = {step for step in predecessors(graph, rerun) if graph.by_name[step].redo}
    return rerun if redone <= rerun else again(graph, rerun | redone)


def predecessors(graph: Graph, chosen: Iterable[str]) -> frozenset[str]:
    """Return the steps that come before any of the chosen steps."""
    result, behind_them = set[str](), list(chosen)
    while behind_them:
        for need in graph.by_name[behind_them.pop()].needs:
            if need not in result:
                result.add(need)
                behind_them.append(need)
    return frozenset(result)


def successors(graph: Graph, chosen: Iterable[str]) -> frozenset[str]:
    """Return the steps that come after any of the chosen steps."""
    result, ahead = set[str](), list(chosen)
    while ahead:
        for dependent in graph.dependents[ahead.pop()]:
            if dependent not in result:
                result.add(dependent)
                ahead.append(dependent)
    return frozenset(result)
