"""Manual operations on runs: cancel, skip, accept, run again, approve, reject, and run one step.

Each operation is one transaction. It changes the run and its steps, records the caller, and creates
an evaluation, in which the scheduler applies the change. An operation that no longer applies raises
`Refused`.
"""

from collections.abc import Callable, Collection, Iterable, Set
from typing import Protocol

import msgspec

from daemon.flow.advance import failure_of, is_named_in, is_own_failure, limits_of
from daemon.flow.graph import Graph, Step, again, stored_graph, successors
from daemon.flow.workflow_keys import is_workflow
from daemon.jobs import one_step, written_outputs
from daemon.jobs.evaluate import new_evaluation
from daemon.jobspec.budgets import Budgets
from daemon.jobspec.steward_meta.job_keys import RUN_QUEUE
from storage.errors import Denied, Malformed, NotFound
from storage.queries import allocations, evaluations, job_status, jobs, runs
from storage.records.allocation import Allocation, DesiredStatus
from storage.records.base import Record, Uint64
from storage.records.codec import encode
from storage.records.evaluation import Trigger
from storage.records.flow import (
    ACCEPTED_REASON,
    TIME_REASON,
    FlowRun,
    FlowStatus,
    Outcome,
    RunAct,
    RunActType,
    RunStep,
    StepState,
)
from storage.records.job import Job
from storage.store import Store
from storage.writer import Transaction

RERUN = "the step runs again"
MAX_NOTE = 1000  # characters
MAX_TOKEN = 200
MAX_ATTEMPTS = 50  # attempts of a step
_NOT_BEGUN = (StepState.WAITING, StepState.HELD)
_NOT_GOOD = (StepState.FAILED, StepState.CANCELED)
_BUDGETS = Budgets()
_SHOWN = 100  # characters of an unknown name


class RunActRequest(Record, frozen=True, kw_only=True):
    """The body of an operation.

    `number` names the run; 0 means the newest run. `steps` are the chosen steps. For a re-run,
    `failed` chooses all failed steps, and `every` all steps that have ended. The chosen steps run
    with this `version` of the job, or of its parent if the job is a child. With `now`, a cancel
    skips the clean-up steps. With `preview`, nothing changes. A repeated request with the same
    `idempotency_token` changes nothing and gets the same response.

    If one step is accepted, `outputs` are its outputs. If this step has several elements, `element`
    is the index of the element that gets the outputs. For a run of one step, `element` is the index
    of the only element that runs; without it, all elements run. The outputs of the other steps are
    copied from run `number`; 0 means the newest suitable run.
    """

    number: Uint64 = 0
    steps: list[str] = msgspec.field(default_factory=list)
    failed: bool = False
    every: bool = False
    version: Uint64 | None = None
    now: bool = False
    preview: bool = False
    note: str = ""
    idempotency_token: str = ""
    outputs: dict[str, str] = msgspec.field(default_factory=dict)
    element: Uint64 | None = None


class RunActResponse(Record, frozen=True, kw_only=True):
    """The result of an operation: its evaluation, and the steps that change.

    A re-run with another version creates a new run and a new job version, as does a run of one
    step. Then `number` is the number of the new run, and `version` that of the new job version. For
    a run of one step, `outputs_of` is the number of the run from which the outputs of the other
    steps were copied.
    """

    job_id: str
    number: int
    steps: list[str]
    eval_id: str
    index: int
    version: int = 0
    outputs_of: int = 0


class RunActOutcome(msgspec.Struct, frozen=True):
    """The response, or the reason why the operation does not apply."""

    done: RunActResponse | None = None
    refusal: str = ""


class VersionSource(Protocol):
    """The versions with which steps can run again."""

    def candidate(self, tx: Transaction, present: Job, number: int) -> Job:
        """Return a new version with the definition of version `number`; do not store it.

        `present` is the current version of the job. Raises `NotFound`, `Invalid`, `Refused` or
        `Malformed`.
        """

    def store(self, tx: Transaction, candidate: Job, number: int) -> Job:
        """Store `candidate`, the definition of version `number`, as a new version; return it."""


class _NotNow(Exception):
    """The operation does not apply to the current state; the message is the reason."""


class _Case(msgspec.Struct, frozen=True, kw_only=True):
    """A run with its steps, and the operation.

    `who` is the person who requests the operation. `has_approved` returns whether this person has
    approved the present attempt of a step. With `may_approve`, the person may also skip or accept a
    step that has a gate. `labels` are the roles and policies of the person; None means all.
    `began_by` is the person who began the run, empty if unknown. `again_by` has the people who ran
    steps again. Without access control, no person is known, and `knows_people` is false.
    """

    job: Job
    graph: Graph
    run: FlowRun
    steps: dict[str, RunStep]
    request: RunActRequest
    who: str
    may_approve: bool
    labels: Set[str] | None
    has_approved: Callable[[RunStep], bool]
    now: int
    began_by: str = ""
    again_by: Set[str] = frozenset()
    knows_people: bool = True
    waits_for_slot: bool = False  # whether the run waits for a slot of its queue

    def ended(self, step: RunStep, state: StepState, outcome: Outcome, reason: str) -> RunStep:
        return msgspec.structs.replace(
            step, state=state, outcome=outcome, reason=reason, since=self.now
        )

    def named(self) -> list[RunStep]:
        """Return the named steps. Raises `Malformed`, including if there are none."""
        if not self.request.steps:
            raise Malformed("Steps must contain the name of at least one step")
        chosen: dict[str, RunStep] = {}
        for name in self.request.steps:
            if name not in self.steps:
                step_names = ", ".join(list(self.steps)[:20])
                raise Malformed(
                    f"run {self.run.number} has no step {name[:_SHOWN]!r}; it has {step_names}"
                )
            if name in chosen:
                raise Malformed(f"Steps names {name!r} twice; name it once")
            chosen[name] = self.steps[name]
        return list(chosen.values())

    def check_gates(self, steps: Iterable[RunStep]) -> None:
        """Raise `Denied` if a step has a gate that the person may not pass."""
        for run_step in steps:
            step = self.graph.by_name[run_step.name]
            if not step.gate:
                continue
            if not self.may_approve:
                raise Denied(f"step {run_step.name} has a gate: this operation needs approve-run")
            self.check_person(step)

    def check_person(self, step: Step) -> None:
        """Raise `Denied` if the gate of a step is for other people, or excludes the person."""
        if step.approvers and self.labels is not None and self.labels.isdisjoint(step.approvers):
            raise Denied(f"the gate of step {step.name} is for {', '.join(step.approvers)}")
        if not step.not_self or not self.knows_people:
            return
        gate = f"the gate of step {step.name} is not for"
        if not self.began_by:
            raise Denied(f"{gate} the person who began the run, and this person is unknown")
        if self.who == self.began_by:
            raise Denied(f"{gate} {self.who}, who began the run")
        if self.who in self.again_by:
            raise Denied(f"{gate} {self.who}, who ran steps of it again")


_Change = tuple[FlowRun, list[RunStep]]


async def act_on_run(
    store: Store,
    namespace: str,
    job_id: str,
    act: RunActType,
    request: RunActRequest,
    *,
    caller: str,
    now: int,
    eval_id: str,
    may_approve: bool,
    labels: Set[str] | None = None,
    knows_people: bool = True,
    versions: VersionSource | None = None,
    budgets: Budgets = _BUDGETS,
) -> RunActOutcome:
    """Carry out an operation on a run.

    With `may_approve`, the caller may also skip or accept a step that has a gate. `labels` are the
    caller's roles and policies; None means all. Without access control, `knows_people` is false. A
    re-run with another version needs `versions`. The `budgets` limit the versions of a job. Raises
    `NotFound` if the run does not exist, and `Malformed` for unknown steps. Raises `Denied` for a
    step with a gate that the caller may not pass.
    """
    if len(request.note) > MAX_NOTE:
        raise Malformed(f"Note has {len(request.note)} characters; the maximum is {MAX_NOTE}")
    if request.version is not None and (act != RunActType.RERUN or versions is None):
        raise Malformed("Version is valid only for a re-run: omit it")
    _check_outputs(act, request)
    if len(token := request.idempotency_token) > MAX_TOKEN:
        raise Malformed(f"IdempotencyToken has {len(token)} characters; the maximum is {MAX_TOKEN}")

    def write(tx: Transaction) -> RunActOutcome:
        stored_answer = runs.answer_of(tx, namespace, job_id, token) if token else None
        if stored_answer is not None:
            return _repeated(act, request, caller, *stored_answer)
        try:
            if act == RunActType.STEP:
                return RunActOutcome(
                    _run_one_step(tx, namespace, job_id, request, caller, now, budgets, eval_id)
                )
            case = _load(tx, namespace, job_id, request, caller, now, may_approve=may_approve)
            case = msgspec.structs.replace(case, labels=labels, knows_people=knows_people)
            if versions is not None and request.version is not None:
                return RunActOutcome(_rerun_with_version(tx, case, versions, eval_id))
            return RunActOutcome(_carry_out(tx, case, act, eval_id))
        except (_NotNow, one_step.NotNow) as refusal:
            return RunActOutcome(refusal=str(refusal))

    # A re-run changes the allocations of all its steps. A run of one step stores all steps.
    return await store.write(write, is_long=act in (RunActType.RERUN, RunActType.STEP))


def _check_outputs(act: RunActType, request: RunActRequest) -> None:
    """Raise `Malformed` if a request must not have outputs."""
    if act != RunActType.ACCEPT and request.outputs:
        raise Malformed("Outputs is valid only for accept: omit it")
    if request.outputs and len(request.steps) > 1:
        raise Malformed("Outputs belong to one step: Steps must name exactly one step")
    if request.element is not None and not request.outputs and act != RunActType.STEP:
        raise Malformed("Element is valid only with Outputs or for a run of one step: omit it")


def _enter_queue(tx: Transaction, case: _Case, run: FlowRun) -> None:
    """Let a run that continues wait for the slots of its queue, if its job names a queue."""
    if RUN_QUEUE.name in (case.job.meta or ()):
        from daemon.jobs.queues import queue_of_runs  # imported late: few jobs have a queue
        from storage.queries import concurrency

        concurrency.enter(tx, queue_of_runs(case.job), case.job, run, case.now)


class _Answered(RunActResponse, frozen=True, kw_only=True):
    """The response to a request with an idempotency token, and the request."""

    request: RunActRequest | None = None  # None if an earlier version of Steward stored it


def _repeated(
    act: RunActType, request: RunActRequest, caller: str, earlier: RunAct, answer: bytes
) -> RunActOutcome:
    """Return the response to the earlier request with the same idempotency token."""
    earlier_request = msgspec.json.decode(answer, type=_Answered).request or request
    request_key = (act, caller, request.steps, request)
    if request_key != (earlier.act, earlier.who, earlier.steps, earlier_request):
        subject = f"{earlier.act} of {', '.join(earlier.steps[:5]) or 'the run'}"
        return RunActOutcome(
            refusal=f"IdempotencyToken was used for another request: {subject}; send a new one"
        )
    return RunActOutcome(msgspec.json.decode(answer, type=RunActResponse))


def _carry_out(tx: Transaction, case: _Case, act: RunActType, eval_id: str) -> RunActResponse:
    request = case.request
    run, steps = _ACTS[act](case)
    written = _written_outputs(tx, case)
    names = [step.name for step in steps]
    done = RunActResponse(
        job_id=run.job_id, number=run.number, steps=names, eval_id="", index=tx.index
    )
    if request.preview:
        return done
    if act == RunActType.RERUN:
        _set_aside(tx, case, names)
    runs.put(tx, run, case.run)
    if case.run.status.has_ended and not run.status.has_ended:
        _enter_queue(tx, case, run)
    runs.put_steps(tx, run, steps, case.steps, {})
    if written is not None:
        written_outputs.store(tx, run, written)
    attempt = case.steps[request.steps[0]].attempt if len(request.steps) == 1 else 0
    return _recorded(tx, case, act, done, eval_id, attempt)


def _written_outputs(tx: Transaction, case: _Case) -> written_outputs.WrittenOutputs | None:
    """Return the outputs of an accepted step; None if there are none. Raises `Malformed`."""
    request = case.request
    if not request.outputs:
        return None
    (name,) = request.steps
    step, row = case.graph.by_name[name], case.steps[name]
    return written_outputs.checked(
        tx, case.job, case.run, step, row, request.outputs, request.element
    )


def _recorded(
    tx: Transaction,
    case: _Case,
    act: RunActType,
    done: RunActResponse,
    eval_id: str,
    attempt: int,
) -> RunActResponse:
    """Record an operation on the run of the case, and create its evaluation."""
    request, run = case.request, case.run
    row = RunAct(
        act=act,
        steps=request.steps,
        attempt=attempt,
        who=case.who,
        note=request.note,
        time=case.now,
    )
    done = msgspec.structs.replace(done, eval_id=eval_id)
    answer = encode(_Answered(**msgspec.structs.asdict(done), request=request))
    runs.add_act(tx, run, row, token=request.idempotency_token, answer=answer)
    evaluation = new_evaluation(
        case.job, eval_id, Trigger.RUN_STEP, job_modify_index=case.job.job_modify_index
    )
    evaluations.put(tx, evaluation, case.now)
    job_status.refresh_summary(tx, run.namespace, run.job_id)
    return done


# --- runs of one step ---


def _run_one_step(
    tx: Transaction,
    namespace: str,
    job_id: str,
    request: RunActRequest,
    caller: str,
    now: int,
    budgets: Budgets,
    eval_id: str,
) -> RunActResponse:
    plan = one_step.planned(
        tx,
        namespace,
        job_id,
        steps=request.steps,
        element=request.element,
        outputs_of=request.number,
        now=now,
    )
    run = plan.run
    done = RunActResponse(
        job_id=run.job_id,
        number=run.number,
        steps=[run.only_step],
        eval_id="",
        index=tx.index,
        version=run.version,
        outputs_of=run.outputs_of,
    )
    if request.preview:
        return done
    case = _Case(
        job=one_step.begin(tx, plan, budgets, now),
        graph=plan.graph,
        run=run,
        steps={},
        request=request,
        who=caller,
        may_approve=False,
        labels=None,
        has_approved=lambda _: False,
        now=now,
    )
    _enter_queue(tx, case, run)
    return _recorded(tx, case, RunActType.STEP, done, eval_id, 1)


# --- re-runs with another version ---


def _rerun_with_version(
    tx: Transaction, case: _Case, versions: VersionSource, eval_id: str
) -> RunActResponse:
    """Begin a run of a new version; it takes over the results of all steps that do not run again.

    The elements of a step that runs again belong to the new version, so all of them run.
    """
    request, before = case.request, case.run
    number = request.version or 0
    if before.only_step:
        raise _NotNow(
            f"run {before.number} ran only step {before.only}; another version needs a run of all steps"
        )
    if not before.status.has_ended:
        raise _NotNow(
            f"run {before.number} is {before.status}; another version needs a run that has ended"
        )
    candidate = versions.candidate(tx, case.job, number)
    graph = stored_graph(candidate)
    new = {name for name in graph.by_name if name not in case.steps}
    chosen = [name for name in _chosen(case) if name in graph.by_name]
    if missing := [name for name in request.steps if name not in graph.by_name]:
        raise Malformed(f"version {number} has no step {missing[0][:_SHOWN]!r}")
    rerun = again(graph, {*chosen, *new})
    rows = [_row_of_version(case, step, runs_again=step.name in rerun) for step in graph.steps]
    if worn := next((row.name for row in rows if row.attempt > MAX_ATTEMPTS), ""):
        raise _NotNow(f"step {worn} has run {MAX_ATTEMPTS} times, which is the maximum")
    done = RunActResponse(
        job_id=before.job_id,
        number=before.number + 1,
        steps=[step.name for step in graph.steps if step.name in rerun],
        eval_id="",
        index=tx.index,
        version=case.job.version + 1,
    )
    if request.preview:
        return done
    job = versions.store(tx, candidate, number)
    run = FlowRun(
        namespace=before.namespace,
        job_id=before.job_id,
        number=before.number + 1,
        version=job.version,
        trigger=before.trigger,
        began=case.now,
    )
    runs.put(tx, run, None)
    positions = {step.name: position for position, step in enumerate(graph.steps)}
    runs.put_steps(tx, run, rows, {}, positions)
    runs.copy_outputs(tx, before, run, [row.name for row in rows if row.name not in rerun])
    case = msgspec.structs.replace(case, job=job, graph=graph, run=run)
    _enter_queue(tx, case, run)
    return _recorded(tx, case, RunActType.RERUN, done, eval_id, 0)


def _row_of_version(case: _Case, step: Step, *, runs_again: bool) -> RunStep:
    """Return a step for a run of a new version: with its earlier result, or waiting."""
    row = case.steps.get(step.name)
    if row is None:
        return RunStep(name=step.name, total=step.count, since=case.now)
    if not runs_again:
        return row
    waiting = _waiting(case, row, attempt=row.attempt + 1)
    return msgspec.structs.replace(waiting, total=step.count, opened=0)


def _load(
    tx: Transaction,
    namespace: str,
    job_id: str,
    request: RunActRequest,
    caller: str,
    now: int,
    *,
    may_approve: bool,
) -> _Case:
    job = jobs.current(tx, namespace, job_id)
    if job is None:
        raise NotFound("job not found")
    newest = runs.newest(tx, namespace, job_id)
    if newest is None or request.number > newest.number:
        raise NotFound(f"run {request.number} not found" if newest else "the job has no run")
    if request.number not in (0, newest.number):
        raise _NotNow(f"run {request.number} is over: run {newest.number} is the newest")
    if job.stop:
        raise _NotNow("the job is stopped; start it, which begins a new run")
    if newest.version != job.version:
        from daemon.jobs.run_updates import version_of_run  # imported late: few runs are replaced

        job = version_of_run(tx, job, newest) or job
    if newest.version != job.version or not is_workflow(job):
        raise _NotNow(f"run {newest.number} is of version {newest.version}, which was replaced")
    steps = {step.name: step for step in runs.steps(tx, newest)}
    graph = stored_graph(job)
    has_others = any(step.not_self for step in graph.by_name.values())
    return _Case(
        job=job,
        graph=graph,
        run=newest,
        steps=steps,
        request=request,
        who=caller,
        may_approve=may_approve,
        labels=None,
        began_by=_started_by(tx, job),
        again_by=runs.actors(tx, newest, RunActType.RERUN) if has_others else frozenset(),
        has_approved=lambda step: runs.has_approved(tx, newest, step, caller),
        now=now,
        waits_for_slot=_waits_for_slot(tx, job, newest),
    )


def _waits_for_slot(tx: Transaction, job: Job, run: FlowRun) -> bool:
    if RUN_QUEUE.name not in (job.meta or ()):
        return False
    place = runs.slot(tx, run)
    return place is not None and not place[1]


def _started_by(tx: Transaction, job: Job) -> str:
    """Return the person who began a run; for a scheduled run, the author of the job."""
    person = jobs.author_of(tx, job.namespace, job.id, job.version)
    if person or not job.parent_id:
        return person
    parent = jobs.current(tx, job.namespace, job.parent_id)
    return jobs.author_of(tx, job.namespace, parent.id, parent.version) if parent else ""


# --- operations ---

_ENDED: dict[str, str] = {
    "succeeded": "has succeeded",
    "failed": "has failed",
    "skipped": "was skipped",
    "canceled": "was canceled",
}


def _described(step: RunStep) -> str:
    """Return the state of a step as the rest of a sentence."""
    return _ENDED.get(step.state, f"is {step.state}")


def _cancel(case: _Case) -> _Change:
    run, at_once = case.run, case.request.now
    if case.request.steps:
        raise Malformed("Steps must be empty: a cancel stops the whole run; skip ends single steps")
    if run.status.has_ended:
        raise _NotNow(f"run {run.number} has ended: {run.status}")
    if run.status == FlowStatus.STOPPING and not (at_once and run.cleans_up):
        raise _NotNow(f"run {run.number} is stopping already")
    # A run that waits for its first slot has done nothing that clean-up steps could remove.
    never_began = case.waits_for_slot and not any(step.opened for step in case.steps.values())
    return run.stopping(f"canceled by {case.who}", cleans_up=not (at_once or never_began)), []


def _skip(case: _Case) -> _Change:
    chosen = case.named()
    case.check_gates(chosen)
    for step in chosen:
        _check_unended(case, step)
        if step.state not in _NOT_BEGUN:
            raise _NotNow(
                f"step {step.name} {_described(step)}; only a step that waits can be skipped"
            )
    reason = f"skipped by {case.who}"
    return case.run, [
        case.ended(run_step, StepState.SKIPPED, Outcome.NEUTRAL, reason) for run_step in chosen
    ]


def _accept(case: _Case) -> _Change:
    chosen = case.named()
    case.check_gates(chosen)
    for step in chosen:
        if step.state not in _NOT_GOOD:
            raise _NotNow(f"step {step.name} {_described(step)}; only a failure can be accepted")
    if case.run.status == FlowStatus.STOPPING:
        raise _NotNow(f"run {case.run.number} is stopping")
    accepted = [
        case.ended(run_step, StepState.SUCCEEDED, Outcome.GOOD, f"{ACCEPTED_REASON}{case.who}")
        for run_step in chosen
    ]
    stopped = _stopped_by(case, chosen)
    later = successors(case.graph, {*case.request.steps, *stopped}) - {*case.request.steps}
    continued = [
        _waiting(case, step, attempt=step.attempt)
        for step in case.steps.values()
        if step.name in stopped
        or (step.name in later and step.state == StepState.SKIPPED and not step.is_left_out)
    ]
    return _running(case), [*accepted, *continued]


def _stopped_by(case: _Case, chosen: Collection[RunStep]) -> set[str]:
    """Return the names of the steps that were canceled because of a failure in a chosen step.

    The failure of a clean-up step after the cancellation does not count.
    """
    causes = [step for step in chosen if is_own_failure(step)]
    names = {step.name for step in chosen}
    return {
        step.name
        for step in case.steps.values()
        if step.state == StepState.CANCELED
        and step.name not in names
        and any(is_named_in(step.reason, cause.name) for cause in causes)
    }


def _rerun(case: _Case) -> _Change:
    if case.run.status == FlowStatus.STOPPING:
        raise _NotNow(f"run {case.run.number} is stopping")
    chosen = _chosen(case)
    for name in chosen:
        if case.steps[name].outcome is None:
            raise _NotNow(
                f"step {name} {_described(case.steps[name])}; only an ended step runs again"
            )
    rerun = again(case.graph, chosen)
    steps = [
        step
        for step in case.steps.values()
        if step.name in rerun and (step.name in chosen or not step.is_left_out)
    ]
    for step in steps:
        if step.state == StepState.OPEN:
            raise _NotNow(f"step {step.name}, which would also run again, has not ended")
        if step.attempt >= MAX_ATTEMPTS:
            raise _NotNow(f"step {step.name} has run {step.attempt} times, which is the maximum")
    # A step that is held at its gate waits again, and its earlier approvals no longer count.
    return _running(case), [
        _waiting(case, step, attempt=step.attempt + 1)
        for step in steps
        if step.outcome is not None or step.state == StepState.HELD
    ]


def _chosen(case: _Case) -> list[str]:
    request = case.request
    if sum((bool(request.steps), request.failed, request.every)) != 1:
        raise Malformed("exactly one of Steps, Failed and Every must be given")
    if request.steps:
        return [run_step.name for run_step in case.named()]
    names = [
        step.name
        for step in case.steps.values()
        if step.outcome is not None and (request.every or _is_failure(step))
    ]
    if not names:
        kind = "ended" if request.every else "failed"
        raise _NotNow(f"run {case.run.number} has no {kind} step")
    return names


def _is_failure(step: RunStep) -> bool:
    """Return whether a step is bad because it failed, was canceled, or missed its time."""
    is_late = step.state == StepState.SKIPPED and step.reason.startswith(TIME_REASON)
    return step.outcome == Outcome.BAD and (step.state in _NOT_GOOD or is_late)


def _approve(case: _Case) -> _Change:
    step = _at_gate(case)
    if case.has_approved(step):
        raise _NotNow(f"{case.who} has approved step {step.name} already")
    return case.run, [step]


def _reject(case: _Case) -> _Change:
    step = _at_gate(case)
    reason = f"rejected by {case.who}"
    rejected, run = case.ended(step, StepState.CANCELED, Outcome.BAD, reason), case.run
    if run.status == FlowStatus.RUNNING and limits_of(case.job).stops:
        run = run.stopping(failure_of([rejected]), cleans_up=True)
    return run, [rejected]


def _at_gate(case: _Case) -> RunStep:
    if len(case.request.steps) != 1:
        raise Malformed("Steps must name exactly one step")
    (step,) = case.named()
    _check_unended(case, step)
    if not case.graph.by_name[step.name].gate:
        raise _NotNow(f"step {step.name} has no gate")
    case.check_person(case.graph.by_name[step.name])
    if step.state != StepState.HELD:
        raise _NotNow(f"step {step.name} is not held at its gate: it {_described(step)}")
    return step


def _check_unended(case: _Case, step: RunStep) -> None:
    """Raise `_NotNow` if the run has ended, or is stopping and the step no longer runs.

    While a run stops, its clean-up steps can still run.
    """
    run = case.run
    if not run.status.has_ended and case.graph.by_name[step.name].goes_on(run):
        return
    raise _NotNow(f"run {run.number} {_ENDED.get(run.status, f'is {run.status}')}")


def _running(case: _Case) -> FlowRun:
    """Return the run, reopened if it has ended."""
    if not case.run.status.has_ended:
        return case.run
    return msgspec.structs.replace(
        case.run,
        status=FlowStatus.RUNNING,
        reason="",
        ended=0,
        cleans_up=False,
        deadline=0,
        attempt=case.run.attempt + 1,
    )


def _waiting(case: _Case, step: RunStep, *, attempt: int) -> RunStep:
    return msgspec.structs.replace(
        step,
        state=StepState.WAITING,
        outcome=None,
        reason="",
        attempt=attempt,
        since=case.now,
        opened=-abs(step.opened),  # negative: in an earlier attempt
        good=0,
        failed=0,
        exit_code=0,
    )


# --- allocations of steps that run again ---


def _set_aside(tx: Transaction, case: _Case, names: Collection[str]) -> None:
    """Mark the ended allocations of steps that run again as no longer desired.

    A step that was chosen because it failed or was canceled keeps its good elements.
    """
    chosen = () if case.request.every else _chosen(case)
    preserved = {step_name for step_name in chosen if case.steps[step_name].state in _NOT_GOOD}
    redone = {name for name in names if case.graph.by_name[name].redo}
    preserved -= successors(case.graph, {*chosen, *redone})
    for alloc in _ended(tx, case, names):
        keeps = alloc.task_group in preserved
        if keeps and alloc.has_succeeded:
            continue
        desired = msgspec.structs.replace(alloc.desired, description=RERUN)
        stopped = msgspec.structs.replace(alloc, desired_status=DesiredStatus.STOP, desired=desired)
        allocations.set_desired(tx, stopped, case.now)
        runs.remove_outputs(tx, case.run, alloc.task_group, max(alloc.index, 0))
    run = case.run
    for name in names:  # a person may have written outputs without an allocation
        # In a run of one element, the other elements do not run again.
        if name == run.only_step and run.only_element is not None:
            runs.remove_outputs(tx, run, name, run.only_element)
        elif name not in preserved:
            runs.remove_step_outputs(tx, run, name)


def _ended(tx: Transaction, case: _Case, names: Collection[str]) -> Iterable[Allocation]:
    for alloc in allocations.for_scheduler(tx, case.job.namespace, case.job.id):
        is_mine = alloc.job_version == case.run.version and alloc.task_group in names
        if is_mine and alloc.client_terminal and alloc.desired_status == DesiredStatus.RUN:
            yield alloc


_ACTS: dict[RunActType, Callable[[_Case], _Change]] = {
    RunActType.CANCEL: _cancel,
    RunActType.SKIP: _skip,
    RunActType.ACCEPT: _accept,
    RunActType.RERUN: _rerun,
    RunActType.APPROVE: _approve,
    RunActType.REJECT: _reject,
}
