"""Load the state for one evaluation in one read."""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from functools import cache, cached_property
from typing import TYPE_CHECKING

import msgspec

from daemon.jobspec.steward_meta.job_keys import RUN_QUEUE, RUN_UPDATE, queue_of
from daemon.jobspec.steward_meta.step_keys import CALENDAR, FOR_EACH, IF, STEP_QUEUES
from daemon.scheduler.state import (
    ClusterState,
    NodeState,
    SettledAllocations,
    StepFailure,
    StepGrant,
)
from storage import loop_share
from storage.queries import (
    allocated_resources,
    allocations,
    deployments,
    freezes,
    jobs,
    nodes,
    runs,
)
from storage.queries.allocated_resources import AllocatedTotals
from storage.queries.allocations import SettledRange
from storage.read_pool import ReadSnapshot
from storage.records.allocation import AllocatedResources, Allocation, ClientStatus
from storage.records.evaluation import Evaluation
from storage.records.flow import SLOT_REASON, FlowRun, RunStep, StepSlots, StepState
from storage.records.freeze import FreezeHold
from storage.records.group import TaskGroup
from storage.records.job import Job, JobType
from storage.records.node import Node

if TYPE_CHECKING:
    from daemon.flow.calendars import Openings

_NOT_BEGUN = (StepState.WAITING, StepState.HELD)
_OUTPUTS = "outputs"  # word in each condition that refers to outputs
FEW = 64  # up to this number, all allocations of a batch job are read


def load_cluster_state(
    db: ReadSnapshot,
    evaluation: Evaluation,
    states: tuple[NodeState, ...] | None = None,
    *,
    planned: Job | None = None,
) -> ClusterState:
    """Return the state that the scheduler needs for an evaluation.

    `states` are the nodes, if the caller has already loaded them. `planned` is a version of the job
    that is not stored; its type determines which allocations are loaded.
    """
    namespace, job_id = evaluation.namespace, evaluation.job_id
    is_there = jobs.definition_index(db, namespace, job_id) is not None
    job = jobs.current(db, namespace, job_id) if is_there else None
    run = runs.newest(db, namespace, job_id)
    earlier = None  # the version of an active run that a newer version replaces
    next_version = None
    newest = planned or job
    if run is not None and newest is not None and _is_replaced(run, newest):
        from daemon.jobs.run_updates import version_of_run  # imported late: few runs are replaced

        earlier = jobs.version(db, namespace, job_id, run.version)
        if (deciding := version_of_run(db, newest, run)) is not None:
            job, next_version = deciding, newest
    steps = tuple(runs.steps(db, run)) if run is not None else ()
    loaded = _unsettled(db, job, run, steps) if job is not None and planned is None else None
    if loaded is None:
        limits = _kept(job, run, steps)
        kind = planned.type if planned else job.type if job else None
        loaded = _allocations(db, namespace, job_id, kind, run, limits)
    versions = {
        loaded_job.version: loaded_job for loaded_job in (earlier, job) if loaded_job is not None
    }
    for number in {alloc.job_version for alloc in loaded.allocations} - versions.keys():
        if (earlier := jobs.version(db, namespace, job_id, number)) is not None:
            versions[number] = earlier
    return ClusterState(
        index=db.last_index(),
        job=job,
        nodes=node_states(db) if states is None else states,
        allocations=tuple(loaded.allocations),
        ended=loaded.ended,
        settled=loaded.settled,
        versions=versions,
        deployment=deployments.latest(db, namespace, job_id),
        next_version=next_version,
        run=run,
        steps=steps,
        approvals=runs.approvals(db, run) if run is not None else {},
        failures=_failures(db, loaded.allocations) if run is not None else {},
        outputs=_outputs(db, job, run, steps, loaded.allocations) if job and run else {},
        slot=_slot(db, job, run) if job and RUN_QUEUE.name in (job.meta or ()) else "",
        # Steps of a run that was replaced only keep their slots until they end.
        grants=_grants(db, job, run) if job and run and run.version == job.version else {},
        openings=step_openings(db, job, run, steps) if job else {},
    )


def _is_replaced(run: FlowRun, job: Job) -> bool:
    """Return whether a run is active, and a newer version of the job sets `steward_run_update`."""
    is_newer = not run.status.has_ended and run.version < job.version
    return is_newer and RUN_UPDATE.name in (job.meta or ())


def step_openings(
    db: ReadSnapshot, job: Job, run: FlowRun | None, steps: Sequence[RunStep]
) -> "dict[str, Openings]":
    """Return the open times of calendars by name, for all steps that have not begun."""
    dated = facts_of(job).dated
    if not dated:
        return {}
    is_new = run is None or run.version != job.version
    begun = {step.name for step in steps if step.state not in _NOT_BEGUN and not is_new}
    names = {
        name: None
        for group in dated
        if (name := CALENDAR.of(group.meta)) and group.name not in begun
    }
    if not names:
        return {}
    # Imported late: few steps have calendars.
    from daemon.flow.calendars import Openings, Steps, UnknownCalendar, compiled
    from storage.queries import calendars

    loop_share.spend(loop_share.SHARE + 1)  # a calendar may refer to many other calendars
    openings, searches = dict[str, Openings](), Steps()  # one limit for all searches of a decision
    for name in names:
        documents = calendars.documents(db, job.namespace, name).documents
        try:
            openings[name] = Openings(compiled(name, documents), searches=searches)
        except UnknownCalendar as error:
            openings[name] = Openings(None, fault=str(error))
    return openings


def _grants(db: ReadSnapshot, job: Job, run: FlowRun) -> dict[str, StepGrant]:
    """Return the slots by step, for steps that hold slots or wait for slots."""
    if not facts_of(job).has_step_queues:
        return {}
    from storage.queries import concurrency, step_slots  # imported late: few steps have queues

    @cache
    def queue(name: str) -> tuple[StepSlots | None, int, int]:
        """Return the first waiting step of a queue, the number of slots in use, and the limit."""
        key = (run.namespace, name)
        return step_slots.first(db, key), concurrency.in_use(db, key), concurrency.limit(db, key)

    def keeps(slots: StepSlots) -> bool:
        """Return whether a step keeps its slots.

        In each of its queues, no other step must wait ahead of it, and the limit must not be
        exceeded.
        """
        for name in slots.names:
            head, in_use, limit = queue(name)
            if head is not None and head.order < slots.order:
                return False
            if in_use > max(limit, slots.slots):
                return False
        return True

    return {
        name: StepGrant(
            wanted=slots.wanted,
            held=slots.held,
            busy=slots.busy,
            keeps=bool(slots.busy) and keeps(slots),
        )
        for name, slots in step_slots.of_run(db, run).items()
    }


def load_freeze(db: ReadSnapshot, job: Job | None, now: int) -> FreezeHold | None:
    """Return the freeze that currently holds the runs of a job, or None."""
    if job is None or job.stop or job.type not in (JobType.BATCH, JobType.SYSBATCH):
        return None
    if not freezes.any_open(db):
        return None
    key = (job.namespace, job.id)
    freeze = freezes.covering(db, key, job.parent_id, queue_of(job), time=now)
    return freezes.hold_of(freeze) if freeze is not None else None


def _slot(db: ReadSnapshot, job: Job, run: FlowRun | None) -> str:
    """Return why a run waits for slots of its job's queue; empty if it does not wait.

    A new run enters the queue when it is stored, so its first decision begins no step.
    """
    reason = f'{SLOT_REASON} the queue "{queue_of(job)}"'
    if run is None or run.version != job.version:
        return reason
    slot = runs.slot(db, run)
    return "" if slot is None or slot[1] else reason


def _outputs(
    db: ReadSnapshot,
    job: Job,
    run: FlowRun,
    steps: Sequence[RunStep],
    allocations_: Sequence[Allocation],
) -> dict[str, dict[str, str]]:
    """Return the outputs of steps that the conditions or lists of waiting steps use.

    Outputs of a step with an unfinished allocation are not needed yet. Reading them with each
    decision would take too long for a step of thousands of elements.
    """
    from daemon.flow import lists  # imported late: few jobs are workflows

    steps_by_name = {step.name: step for step in steps}
    at_work = {alloc.task_group for alloc in allocations_ if not alloc.client_terminal}
    names, sources = dict[str, None](), dict[lists.Reference, None]()
    for group in facts_of(job).naming_outputs:
        row, condition = steps_by_name.get(group.name), IF.of(group.meta)
        if row is None or row.state not in _NOT_BEGUN:
            continue
        if _OUTPUTS in condition:
            names |= {
                name: None for name in steps_by_name if name in condition and name not in at_work
            }
        if (reference := lists.source(group)) is not None and reference.step not in at_work:
            sources[reference] = None
    if not (names or sources):
        return {}
    from daemon.flow import outputs  # imported late: few conditions and lists need it

    begun = {step.name for step in steps if step.state not in _NOT_BEGUN}
    if not begun.isdisjoint([*names, *(source.step for source in sources)]):
        loop_share.spend(loop_share.SHARE + 1)  # outputs may have megabytes
    outputs_by_step = dict[str, dict[str, str]]()
    for name in names:
        written = runs.outputs(db, run, name)
        try:
            outputs_by_step[name] = outputs.texts(
                written, total=steps_by_name[name].total, is_list=_is_array(job, name)
            )
        except outputs.TooManyValues as error:
            outputs_by_step[name] = {outputs.FAULT: str(error)}
    for reference in sources:
        total = steps_by_name[reference.step].total if reference.step in steps_by_name else 0
        written = runs.outputs(db, run, reference.step)
        text = outputs.value(
            reference, written, total=total, is_list=_is_array(job, reference.step)
        )
        # A list has the key of its reference, which differs from all names of outputs.
        outputs_by_step.setdefault(reference.step, {})[str(reference)] = text
    return outputs_by_step


def _is_array(job: Job, name: str) -> bool:
    from daemon.flow import lists

    group = lists.resolved_group(job, name)
    return group is not None and lists.is_array(group)


def _failures(db: ReadSnapshot, allocations_: Sequence[Allocation]) -> dict[str, StepFailure]:
    """Return the newest failure of each group of a workflow."""
    from daemon.evals.failures import of_allocation  # imported late: few jobs are workflows

    newest: dict[str, Allocation] = {}
    for alloc in allocations_:
        if alloc.client_status == ClientStatus.FAILED:
            newest_alloc = newest.get(alloc.task_group)
            if newest_alloc is None or newest_alloc.modify_time <= alloc.modify_time:
                newest[alloc.task_group] = alloc
    errors = {group: of_allocation(db, allocation) for group, allocation in newest.items()}
    return {
        group: StepFailure(error.exit_code, cause="" if error.exit_code else error.summary)
        for group, error in errors.items()
        if error is not None
    }


class _Found(msgspec.Struct, frozen=True):
    """The loaded allocations of a job, oldest first.

    `settled` has, by group, completed allocations that were not loaded. `ended` counts all other
    allocations that were not loaded.
    """

    allocations: list[Allocation]
    ended: Mapping[str, int] = {}
    settled: Mapping[str, SettledAllocations] = {}


def _kept(job: Job | None, run: FlowRun | None, steps: Sequence[RunStep]) -> Collection[str]:
    """Return the ended steps for which an unfinished step needs the result of each element."""
    if job is None or run is None or run.version != job.version:
        return ()
    needs_of = facts_of(job).element_needs
    if not needs_of:
        return ()
    ended = {step.name for step in steps if step.outcome is not None}
    return {need for name, needs in needs_of if name not in ended for need in needs & ended}


def _allocations(
    db: ReadSnapshot,
    namespace: str,
    job_id: str,
    kind: str | None,
    run: FlowRun | None,
    kept_steps: Collection[str],
) -> _Found:
    """Return the allocations that a decision needs for a job of the type `kind`."""
    if kind == JobType.SYSBATCH:  # stopped allocations count as completed
        return _Found(allocations.of_job(db, namespace, job_id)[::-1])
    if run is not None:
        allocs = allocations.for_run(db, run, kept_steps)
    else:
        allocs = allocations.for_scheduler(db, namespace, job_id)
    if kind != JobType.BATCH:
        return _Found(allocs)
    read = Counter(alloc.task_group for alloc in allocs)
    numbers = allocations.numbers(db, namespace, job_id)
    return _Found(allocs, {group: number - read[group] for group, number in numbers.items()})


def _unsettled(
    db: ReadSnapshot, job: Job, run: FlowRun | None, steps: Sequence[RunStep]
) -> _Found | None:
    """Return the allocations of a large batch job without those that have completed.

    This avoids reading thousands of completed allocations for each decision. Return None if the
    job is not a large batch job, or if the decision needs its completed allocations. The decision
    needs them if some may have to be stopped, or if they belong to another run.
    """
    if job.type != JobType.BATCH or job.stop or (run is not None and run.version != job.version):
        return None
    numbers = allocations.numbers(db, job.namespace, job.id)
    if sum(numbers.values()) <= FEW:
        return None
    if run is None:
        allocs = allocations.unsettled(db, job.namespace, job.id)
    else:
        allocs = allocations.unsettled_for_run(db, run, _kept(job, run, steps))
    read = Counter(alloc.task_group for alloc in allocs)
    ranges: defaultdict[str, list[SettledRange]] = defaultdict(list)
    settled: Counter[str] = Counter()
    for alloc in allocations.settled(db, job.namespace, job.id):
        # Completed allocations of older versions do not count.
        of_now = alloc.job_version == job.version
        ranges[alloc.task_group] += [alloc] if of_now else []
        settled[alloc.task_group] += alloc.count if of_now else 0
    if run is not None:
        from daemon.flow.lists import with_totals  # imported late: few jobs are workflows

        job = with_totals(job, steps)
    counts = {group.name: group.count for group in job.task_groups or ()}
    for name, number in settled.items():
        if not counts.get(name) or number + read[name] > counts[name]:
            return None
    return _Found(
        allocs,
        {name: number - read[name] - settled[name] for name, number in numbers.items()},
        {
            name: SettledAllocations(
                count=settled[name], ranges=tuple((span.first, span.last) for span in spans)
            )
            for name, spans in ranges.items()
        },
    )


def node_states(db: ReadSnapshot) -> tuple[NodeState, ...]:
    """Return every node with its allocated resources."""
    return tuple(
        _node_state(node, allocated_resources.allocated_on(db, node.id))
        for node in nodes.list_all(db)
    )


def _node_state(node: Node, allocated_totals: AllocatedTotals) -> NodeState:
    return NodeState(
        node=node,
        cpu=allocated_totals.cpu,
        memory=allocated_totals.memory,
        disk=allocated_totals.disk,
        ports=frozenset(allocated_totals.ports),
        cores=frozenset(allocated_totals.cores),
        devices=frozenset(allocated_totals.devices),
        allocations=allocated_totals.number,
    )


def add_placed(
    states: tuple[NodeState, ...], allocs: Sequence[Allocation]
) -> tuple[NodeState, ...]:
    """Return the nodes with the resources of new allocations added."""
    by_node: dict[str, list[AllocatedResources]] = {}
    for alloc in allocs:
        by_node.setdefault(alloc.node_id, []).append(alloc.placement.resources)
    return tuple(_and(state, by_node.get(state.node.id, [])) for state in states)


def add_listening_ports(
    states: tuple[NodeState, ...], ports: frozenset[int]
) -> tuple[NodeState, ...]:
    """Return copies of the nodes that record the ports on which processes of this host listen."""
    return tuple(msgspec.structs.replace(state, listening=ports) for state in states)


def _and(state: NodeState, more: list[AllocatedResources]) -> NodeState:
    if not more:
        return state
    return msgspec.structs.replace(
        state,
        cpu=state.cpu + sum(resources.cpu for resources in more),
        memory=state.memory + sum(resources.memory for resources in more),
        disk=state.disk + sum(resources.shared.disk_mb for resources in more),
        ports=state.ports.union(*(resources.ports for resources in more)),
        cores=state.cores.union(*(resources.cores for resources in more)),
        devices=state.devices.union(*(resources.device_ids for resources in more)),
        allocations=state.allocations + len(more),
    )


class JobGroupFacts:
    """Facts about the groups of a job that decisions need, computed once for a version of the job.

    Each end of a step causes a decision. For a workflow of a thousand steps, it takes milliseconds
    to look at all groups.
    """

    def __init__(self, groups: Sequence[TaskGroup]) -> None:
        self._groups = groups

    @cached_property
    def takes_dynamic_ports(self) -> bool:
        """Whether the allocations of the job get dynamic ports."""
        return any(
            network.dynamic_ports
            for group in self._groups
            for networks in (
                group.networks,
                *(task.resources.networks for task in group.tasks or ()),
            )
            for network in networks or ()
        )

    @cached_property
    def has_step_queues(self) -> bool:
        """Whether a step needs slots of queues."""
        return any(STEP_QUEUES.name in (group.meta or ()) for group in self._groups)

    @cached_property
    def dated(self) -> Sequence[TaskGroup]:
        """The groups with a calendar."""
        return [group for group in self._groups if CALENDAR.name in (group.meta or ())]

    @cached_property
    def naming_outputs(self) -> Sequence[TaskGroup]:
        """The groups whose condition or list may name an output."""
        return [
            group
            for group in self._groups
            if (meta := group.meta) and (IF.name in meta or FOR_EACH.name in meta)
        ]

    @cached_property
    def element_needs(self) -> Sequence[tuple[str, frozenset[str]]]:
        """The groups that need elements of other groups one by one, with the names of the others."""
        from daemon.flow.lists import element_needs  # imported late: few jobs are workflows

        pairs = ((group.name, frozenset(element_needs(group))) for group in self._groups)
        return [(name, needs) for name, needs in pairs if needs]


class _LastFacts:
    """A cache of the last facts; it compares the identity of the list of groups.

    Repeated reads of a long definition from the store return the same list.
    """

    def __init__(self) -> None:
        self._last: tuple[object, JobGroupFacts] = (None, JobGroupFacts(()))

    def of(self, job: Job) -> JobGroupFacts:
        groups, facts = self._last
        if groups is not None and groups is job.task_groups:
            return facts
        facts = JobGroupFacts(job.task_groups or ())
        self._last = (job.task_groups, facts)
        return facts


_FACTS = _LastFacts()


def facts_of(job: Job) -> JobGroupFacts:
    """Return the facts about the groups of a job."""
    return _FACTS.of(job)
