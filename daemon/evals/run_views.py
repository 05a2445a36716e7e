"""Runs of workflows as the API shows them."""

from collections.abc import Mapping, Sequence

from daemon.flow import lists
from daemon.flow.advance import changes_at, waits_for_queues
from daemon.flow.graph import Graph, Step, stored_graph
from daemon.flow.places import has_no_place
from daemon.text.job_state import State
from storage.loop_share import spend
from storage.queries import evaluations, jobs, runs, tallies
from storage.read_pool import ReadSnapshot
from storage.records.allocation import ClientStatus
from storage.records.evaluation import EvalStatus
from storage.records.flow import (
    FlowRun,
    FlowRunView,
    FlowStatus,
    RunStep,
    RunStepView,
    StepQueue,
    StepState,
)
from storage.records.job import Job
from storage.records.state import Run

_VIEWED = 8  # units of work for a step
_WORDS = {
    FlowStatus.RUNNING: State.RUNNING,
    FlowStatus.STOPPING: State.RUNNING,
    FlowStatus.SUCCEEDED: State.COMPLETE,
    FlowStatus.FAILED: State.FAILED,
    FlowStatus.CANCELED: State.STOPPED,
}


def view(
    db: ReadSnapshot, namespace: str, job_id: str, number: int | None = None
) -> FlowRunView | None:
    """Return a run with its steps; without a number, the newest run. None if it does not exist."""
    run = (
        runs.newest(db, namespace, job_id)
        if number is None
        else runs.find(db, namespace, job_id, number)
    )
    return of_run(db, run) if run is not None else None


def of_run(db: ReadSnapshot, run: FlowRun) -> FlowRunView:
    """Return a run with its steps."""
    job = jobs.version(db, run.namespace, run.job_id, run.version)
    return FlowRunView(
        **{name: getattr(run, name) for name in FlowRun.__struct_fields__},
        steps=_steps(db, run, stored_graph(job) if job else Graph(steps=())),
        acts=runs.acts(db, run),
    )


def sized(db: ReadSnapshot, job: Job) -> Job:
    """Return a copy of the job in which groups with lists have the counts of the newest run."""
    if not lists.has_lists(job):
        return job
    run = runs.newest(db, job.namespace, job.id)
    return lists.with_totals(job, runs.steps(db, run) if run is not None else ())


def _steps(db: ReadSnapshot, run: FlowRun, graph: Graph) -> list[RunStepView]:
    stored = runs.steps(db, run)
    ended = {step.name for step in stored if step.outcome is not None}
    level = {name: number for number, names in enumerate(graph.levels) for name in names}
    is_open = any(step.state == StepState.OPEN for step in stored)
    at_work = _at_work(db, run) if is_open else {}
    slots = _slots(db, run, graph)
    idle = [
        idle_step
        for idle_step in stored
        if idle_step.state == StepState.OPEN and not at_work.get(idle_step.name)
    ]
    without = _without_work(db, run) if idle else {}
    views = list[RunStepView]()
    for step in stored:
        spend(_VIEWED)
        node = graph.by_name.get(step.name) or Step(name=step.name)
        is_ready = ended.issuperset(node.each_of)
        queues = slots.get(step.name, [])
        views.append(
            RunStepView(
                **{name: getattr(step, name) for name in _FIELDS},
                state=_state(step, at_work),
                opened=_opened(step),
                reason=_reason(step, at_work, queues, without) if is_ready else step.reason,
                queues=queues,
                level=level.get(step.name, 0),
                needs=list(node.needs),
                until=_next_change(graph, run, step),
                waits_for=[
                    f"{need}{lists.EACH}" if need in node.each_of else need
                    for need in node.needs
                    if step.outcome is None and need not in ended
                ],
            )
        )
    return views


def _next_change(graph: Graph, run: FlowRun, row: RunStep) -> int:
    step = graph.by_name.get(row.name)
    return (changes_at(step, run, row) if step else None) or 0


_FIELDS = tuple(
    name for name in RunStep.__struct_fields__ if name not in ("state", "opened", "reason")
)
_AtWork = dict[str, set[str]]  # step -> client statuses of its allocations that have not ended


def _at_work(db: ReadSnapshot, run: FlowRun) -> _AtWork:
    at_work_by_step: _AtWork = {}
    for group, status in tallies.at_work(db, run.namespace, run.job_id, run.version):
        at_work_by_step.setdefault(group, set()).add(status)
    return at_work_by_step


def _opened(step: RunStep) -> int:
    """Return the time at which a step's current attempt was opened; 0 if it was not opened.

    The stored time counts only if the state shows that the attempt was opened. Earlier versions of
    Steward kept the time of the previous attempt when a step ran again.
    """
    has_worked = step.good or step.failed
    is_unopened = step.state in (StepState.WAITING, StepState.HELD) or (
        step.state == StepState.SKIPPED and not has_worked
    )
    return 0 if is_unopened else max(step.opened, 0)


def _state(step: RunStep, at_work: _AtWork) -> StepState:
    runs_now = ClientStatus.RUNNING in at_work.get(step.name, ())
    return StepState.RUNNING if step.state == StepState.OPEN and runs_now else step.state


def _slots(db: ReadSnapshot, run: FlowRun, graph: Graph) -> dict[str, list[StepQueue]]:
    """Return the queues in which the steps of a run hold slots or wait."""
    if run.status.has_ended or not any(step.queues for step in graph.steps):
        return {}
    from storage.queries import step_slots  # imported late: few steps have queues

    of_steps = step_slots.of_run(db, run)
    names = {
        name for slots in of_steps.values() if slots.wanted > slots.held for name in slots.names
    }
    before = {name: step_slots.waits_behind(db, run, name) for name in names}
    return {
        step: [
            StepQueue(
                name=name,
                held=slots.held,
                waiting=slots.wanted - slots.held,
                before=before.get(name, {}).get(step, 0),
            )
            for name in slots.names
        ]
        for step, slots in of_steps.items()
    }


_WAITS = "it waits for capacity, or for its next attempt"
_ENDS = "its tasks are ending"


def _without_work(db: ReadSnapshot, run: FlowRun) -> Mapping[str, str]:
    """Return why open steps have no starting or running allocation, by step name.

    The key `""` holds the reason for all other open steps.
    """
    ending = tallies.stopped(db, run.namespace, run.job_id, run.version)
    # After the end of a task, the next decision is due. Until then, nothing is known to be missing.
    is_due = any(
        evaluation.status == EvalStatus.PENDING and not evaluation.wait_until
        for evaluation in evaluations.unfinished(db, run.namespace, run.job_id)
    )
    is_known = is_due or run.status == FlowStatus.STOPPING
    return {"": "" if is_known else _WAITS, **dict.fromkeys(ending, _ENDS)}


def _reason(
    step: RunStep,
    at_work: _AtWork,
    queues: Sequence[StepQueue],
    without: Mapping[str, str],
) -> str:
    """Return the reason of a step, or why an open step has no starting or running allocation.

    `without` has the reasons for missing allocations by step; its key `""` is for all other steps.
    """
    if any(queue.waiting and not queue.held for queue in queues):
        before = max(queue.before for queue in queues)
        detail = f", {before} {'step waits' if before == 1 else 'steps wait'} before it"
        return waits_for_queues([queue.name for queue in queues]) + (detail if before else "")
    if step.state != StepState.OPEN or at_work.get(step.name) or has_no_place(step):
        return step.reason
    return without.get(step.name) or without.get("", "") or step.reason


def listed(db: ReadSnapshot, namespace: str, job_id: str, most: int) -> list[Run]:
    """Return up to `most` runs of a workflow, newest first, in the form of child jobs."""
    return [
        Run(
            id=run.job_id,
            namespace=run.namespace,
            result=_WORDS[run.status],
            reason=run.reason,
            submitted=run.began,
            started=run.began,
            ended=run.ended,
            duration=run.ended - run.began if run.ended else 0,
            number=run.number,
            version=run.version,
        )
        for run in runs.of_job(db, namespace, job_id, most)
    ]
