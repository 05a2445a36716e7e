"""Runs of one step: a person runs a step, or an element of it, without the other steps.

The definition of the job is stored as a new version, because each version has one run. In this run,
all other steps are skipped. Their outputs are copied from an earlier run, so the step finds its
inputs.
"""

from collections.abc import Collection

import msgspec

from daemon.flow import lists, outputs
from daemon.flow.graph import Graph, Step, predecessors, stored_graph
from daemon.flow.workflow_keys import is_workflow
from daemon.jobs.register import check_versions
from daemon.jobs.version_history import revert
from daemon.jobspec.budgets import Budgets
from daemon.jobspec.steward_meta.job_keys import RUNS_KEPT
from daemon.jobspec.steward_meta.step_values import When
from storage.errors import Malformed, NotFound
from storage.queries import jobs, runs
from storage.read_pool import ReadSnapshot
from storage.records.flow import ONLY_REASON, FlowRun, Outcome, RunStep, StepState
from storage.records.group import TaskGroup
from storage.records.job import Job
from storage.writer import Transaction

TRIGGER = "step-by-hand"  # the trigger of a run of one step
_SEARCHED = 100  # number of the newest runs that are searched for the outputs
_SHOWN = 100  # characters of an unknown name


class NotNow(Exception):
    """A step cannot run in the current state; the message is the reason."""


class OneStep(msgspec.Struct, frozen=True, kw_only=True):
    """A new run of one step or one element, before it is stored.

    `source` is the run from which the outputs of the other steps are copied.
    """

    job: Job
    graph: Graph
    run: FlowRun
    source: FlowRun


def planned(
    db: ReadSnapshot,
    namespace: str,
    job_id: str,
    *,
    steps: Collection[str],
    element: int | None,
    outputs_of: int,
    now: int,
) -> OneStep:
    """Return a new run of one step.

    The outputs of the other steps are copied from the run with the number `outputs_of`; 0 means the
    newest suitable run. Raises `NotFound`, `Malformed` or `NotNow`.
    """
    job = jobs.current(db, namespace, job_id)
    if job is None:
        raise NotFound("job not found")
    if job.launches_children:
        raise Malformed(f'job "{job_id}" has no steps of its own, only children: name a child')
    if not is_workflow(job):
        raise Malformed(f'job "{job_id}" is not a workflow, so it has no steps')
    graph = stored_graph(job)
    step = _chosen(job, graph, steps)
    group = lists.resolved_groups(job)[step.name]
    if element is not None and lists.source(group) is None and element >= step.count:
        raise Malformed(f"step {step.name} has no element {element}; it has {step.count}")
    newest = _newest(db, job)
    source = _source(db, newest, graph, step, group, outputs_of)
    run = FlowRun(
        namespace=namespace,
        job_id=job_id,
        number=newest.number + 1,
        version=job.version + 1,
        trigger=TRIGGER,
        began=now,
        only_step=step.name,
        only_element=element,
        outputs_of=source.number,
    )
    return OneStep(job=job, graph=graph, run=run, source=source)


def begin(tx: Transaction, plan: OneStep, budgets: Budgets, now: int) -> Job:
    """Store a run of one step with a new version of its job; return this version.

    Raises `OverBudget` if the job has too many versions.
    """
    check_versions(tx, plan.job, budgets)
    run, source, graph = plan.run, plan.source, plan.graph
    job = revert(tx, plan.job, now)
    runs.put(tx, run, None)
    before = {row.name: row for row in runs.steps(tx, source)}
    rows = [_row(run, step, before.get(step.name), now) for step in graph.steps]
    positions = {step.name: position for position, step in enumerate(graph.steps)}
    runs.put_steps(tx, run, rows, {}, positions)
    others = [name for name in before if name in graph.by_name and name != run.only_step]
    runs.copy_outputs(tx, source, run, others)
    if run.only_element is not None and run.only_step in before:
        runs.copy_outputs(tx, source, run, [run.only_step], without=run.only_element)
    last = min(run.number - RUNS_KEPT.of(job.meta), source.number - 1)  # the source run is kept
    runs.remove_up_to(tx, run.namespace, run.job_id, last)
    return job


def _row(run: FlowRun, step: Step, before: RunStep | None, now: int) -> RunStep:
    """Return the row of a step: waiting for the step to run, skipped for all others.

    `before` is the row of this step in the source run. It determines the number of elements.
    """
    is_sized = step.source is None and not step.inherits
    if step.name == run.only_step:
        total = step.count if is_sized or before is None else before.total
        return RunStep(name=step.name, total=total, since=now)
    reason = f"{ONLY_REASON}{run.only} runs"
    if before is not None:
        reason += f"; the outputs are those of run {run.outputs_of}"
    return RunStep(
        name=step.name,
        state=StepState.SKIPPED,
        outcome=Outcome.NEUTRAL,
        reason=reason,
        total=step.count if before is None else before.total,
        since=now,
    )


def _chosen(job: Job, graph: Graph, steps: Collection[str]) -> Step:
    if len(steps) != 1:
        raise Malformed("Steps must name exactly one step")
    (name,) = steps
    if name not in graph.by_name:
        step_names = ", ".join(list(graph.by_name)[:20])
        raise Malformed(f"version {job.version} has no step {name[:_SHOWN]!r}; it has {step_names}")
    return graph.by_name[name]


def _newest(db: ReadSnapshot, job: Job) -> FlowRun:
    """Return the newest run of a job if another run can begin. Raises `NotNow`."""
    newest = runs.newest(db, job.namespace, job.id)
    if job.stop:
        raise NotNow("the job is stopped; start it, which begins a new run")
    if newest is not None and not newest.status.has_ended:
        raise NotNow(
            f"run {newest.number} is {newest.status}: "
            "a step can run alone only after the run has ended"
        )
    if newest is None or newest.version != job.version:
        raise NotNow(
            f"the run of version {job.version} has not begun: "
            "a step can run alone only after the run has ended"
        )
    return newest


def _source(
    db: ReadSnapshot, newest: FlowRun, graph: Graph, step: Step, group: TaskGroup, number: int
) -> FlowRun:
    """Return the run from which to copy the outputs of the other steps.

    This is the run `number` or, for 0, the newest suitable run. Raises `NotFound` or `NotNow`.
    """
    if number:
        source = runs.find(db, newest.namespace, newest.job_id, number)
        if source is None:
            raise NotFound(f"run {number} not found")
        return source
    earlier = predecessors(graph, [step.name])
    read = _steps_read(group)
    for run in runs.of_job(db, newest.namespace, newest.job_id, _SEARCHED):
        if _has_results(db, run, step, earlier, read):
            return run
    raise NotNow(
        f"no run has the outputs of all steps before {step.name}: set Number to choose a run anyway"
    )


def _are_good(db: ReadSnapshot, run: FlowRun, names: Collection[str]) -> bool:
    """Return whether none of the named steps of a run is bad.

    If a step was left out of the run, its outcome in the run that supplied its outputs counts.
    """
    left = set(names)
    source: FlowRun | None = run
    while left:
        if source is None:  # it was deleted
            return True
        rows = {row.name: row for row in runs.steps(db, source)}
        if any(name not in rows or rows[name].outcome == Outcome.BAD for name in left):
            return False
        left = {name for name in left if rows[name].is_left_out}
        source = runs.find(db, run.namespace, run.job_id, source.outputs_of) if left else None
    return True


def _steps_read(group: TaskGroup) -> frozenset[str]:
    """Return the steps whose outputs a group refers to."""
    step_names = {
        reference.step
        for reference in (*outputs.references(group), *outputs.template_references(group))
    }
    source = lists.source(group)
    return frozenset(step_names | ({source.step} if source is not None else set()))


def _has_results(
    db: ReadSnapshot,
    run: FlowRun,
    step: Step,
    earlier: Collection[str],
    read: Collection[str],
) -> bool:
    """Return whether a run has the results that a step needs.

    The steps in `read` must have written outputs. The steps in `earlier` must not be bad, unless
    the step is a failure handler or clean-up step.
    """
    if earlier and step.when == When.SUCCESS and not _are_good(db, run, earlier):
        return False
    return all(next(runs.outputs(db, run, name), None) is not None for name in read)
