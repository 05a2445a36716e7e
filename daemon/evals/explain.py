"""Explain why a job is not fully running: one sentence for each missing part.

The explanation comes from stored results of the scheduler and the runner; no plan is computed.
Amounts of free resources are current values.
"""

from collections.abc import Iterator

import msgspec

from daemon.evals import placement_explain, run_views
from daemon.evals.failures import unhealthy_reason
from daemon.evals.job_states import freeze_of_launch, freeze_of_slots
from daemon.evals.scheduler_config import workers
from daemon.flow.places import count_without_place
from daemon.jobspec.steward_meta.job_keys import AFTER_JOIN, AFTER_WHEN
from daemon.scheduler import reschedule
from daemon.text.go_format import duration
from daemon.text.job_state import held_by
from daemon.text.placement_message import count_noun
from daemon.text.queue_slots import slots_in_use
from daemon.text.task_failure import plain_reason
from storage.queries import (
    allocations,
    children,
    concurrency,
    deployments,
    evaluations,
    faults,
    freezes,
    jobs,
    nodes,
    periodic,
    runs,
    triggers,
)
from storage.read_pool import ReadSnapshot
from storage.records.allocation import (
    TIME_LIMIT,
    Allocation,
    ClientStatus,
    DesiredStatus,
    TaskPhase,
)
from storage.records.allocation_views import Retry
from storage.records.base import SECOND
from storage.records.deployment import Deployment, DeploymentStatus
from storage.records.evaluation import EvalStatus, Evaluation, PlacementMetric
from storage.records.explanation import Cause, Explanation, Reason
from storage.records.flow import (
    PARALLEL_REASON,
    FlowRunView,
    Outcome,
    RunStep,
    RunStepView,
    StepState,
    TriggerJoin,
    TriggerWhen,
)
from storage.records.freeze import Freeze
from storage.records.group import ReschedulePolicy, TaskGroup
from storage.records.job import Job, JobType
from storage.records.node import NodeStatus
from storage.records.periodic import SlotOutcome
from storage.records.times import nanoseconds, rfc3339


def explain_job(db: ReadSnapshot, namespace: str, job_id: str) -> Explanation | None:
    """Return why parts of a job are not running; None if the job does not exist."""
    job = jobs.current(db, namespace, job_id)
    if job is None:
        return None
    batch, waits = job.type == JobType.BATCH, ""
    deciding = job
    run = runs.newest(db, namespace, job_id) if batch else None
    if run is not None and run.version != job.version:
        from daemon.jobs import run_updates  # imported late: few runs are replaced

        if (earlier := run_updates.version_of_run(db, job, run)) is not None:
            deciding, waits = earlier, run_updates.waits(job, run)
    allocs = [
        alloc
        for alloc in allocations.for_scheduler(db, namespace, job_id)
        # A new version of a batch job runs completely again, regardless of old results.
        if not (batch and alloc.job_version != deciding.version and alloc.client_terminal)
    ]
    return Explanation(
        job_id=job_id,
        namespace=namespace,
        status=job.status,
        running=sum(alloc.client_status == ClientStatus.RUNNING for alloc in allocs),
        reasons=[
            *([Reason(cause=Cause.STEP, message=waits)] if waits else []),
            *_reasons(db, deciding, allocs),
        ],
    )


def _reasons(db: ReadSnapshot, job: Job, allocs: list[Allocation]) -> Iterator[Reason]:
    if job.stop:
        yield Reason(cause=Cause.STOPPED, message="the job was stopped; run it again to start it")
        return
    if holder := freezes.find(db, freezes.holder(db, (job.namespace, job.id))):
        yield _of_freeze(holder)
    if children.is_queued(db, job.namespace, job.id):
        message = f'it waits until fewer children of "{job.parent_id}" are active'
        yield Reason(cause=Cause.CHILDREN, message=message)
    elif job.periodic is not None:
        yield from _of_clock(db, job)
    elif job.launches_children:
        message = "it is a parameterized job: each dispatch starts a child job"
        yield Reason(cause=Cause.DISPATCH, message=message)
        yield from _of_triggers(db, job)
    else:
        case = _case(db, run_views.sized(db, job), allocs)
        case = msgspec.structs.replace(case, is_frozen=holder is not None)
        all_allocs = allocations.of_job(db, job.namespace, job.id)
        if (run := run_views.view(db, job.namespace, job.id)) is not None:
            yield from _of_run(db, case, run, all_allocs)
            return
        for group in job.task_groups or ():
            yield from _of_group(db, case, group, all_allocs)


def _of_freeze(freeze: Freeze) -> Reason:
    """Return the reason that names a freeze, which holds a job or has just ended."""
    return Reason(cause=Cause.FREEZE, message=held_by(freeze), until=freeze.until)


def _of_run(
    db: ReadSnapshot, case: "_Case", run: FlowRunView, all_allocs: list[Allocation]
) -> Iterator[Reason]:
    """Yield why each step of a run waits, or how it ended if it was not successful."""
    if run.version != case.job.version:
        message = f"run {run.number} of version {run.version} is still stopping"
        yield Reason(cause=Cause.STEP, message=message)
        return
    yield from _of_one_step(run)
    yield from _of_queue(db, run)
    groups = _sized_groups(case.job, run)
    rows = {row.name: row for row in runs.steps(db, run)}
    for step in (step for step in run.steps if not step.is_left_out):
        if step.outcome is not None:
            if step.outcome != Outcome.GOOD:
                yield Reason(cause=Cause.STEP, message=_end_of(step), task_group=step.name)
        elif step.state == StepState.WAITING:
            message = f"it waits for {', '.join(step.waits_for)}"
            yield Reason(
                cause=Cause.STEP, message=message, task_group=step.name, missing=step.total
            )
        elif step.state == StepState.HELD:
            slots_text = _queue_positions(db, run, step)
            message = (
                f"it waits for slots{slots_text}" if slots_text else f"it is held: {step.reason}"
            )
            yield Reason(
                cause=Cause.STEP, message=message, task_group=step.name, missing=step.total
            )
        elif step.name in groups:
            group, row = groups[step.name], rows.get(step.name, step)
            yield from _of_open_step(db, case, run, step, row, group, all_allocs)


def _of_open_step(
    db: ReadSnapshot,
    case: "_Case",
    run: FlowRunView,
    step: RunStepView,
    row: RunStep,
    group: TaskGroup,
    all_allocs: list[Allocation],
) -> Iterator[Reason]:
    """Yield why elements of an open step wait.

    Elements that may begin are explained like the allocations of any other job. `row` is the
    stored step. The reason in `step` may differ from the stored reason, for example if capacity is
    missing.
    """
    if any(queue.waiting for queue in step.queues):
        waiting = max(queue.waiting for queue in step.queues)
        message = f"{count_noun(waiting, 'element')} {'waits' if waiting == 1 else 'wait'}"
        message += f" for slots{_queue_positions(db, run, step)}"
        yield Reason(cause=Cause.STEP, message=message, task_group=step.name, missing=waiting)
        group = msgspec.structs.replace(group, count=max(group.count - waiting, 0))
    without_place = count_without_place(row)
    if without_place:
        yield Reason(
            cause=Cause.STEP,
            message=row.reason.removeprefix(PARALLEL_REASON),
            task_group=step.name,
            missing=without_place,
        )
        group = msgspec.structs.replace(group, count=max(group.count - without_place, 0))
    if step.waits_for:
        there = {alloc.name for alloc in case.allocations if alloc.task_group == step.name}
        yield from _of_counterparts(step, len(there) + without_place)
        group = msgspec.structs.replace(group, count=len(there))
    yield from _of_group(db, case, group, all_allocs)


def _of_one_step(run: FlowRunView) -> Iterator[Reason]:
    """Yield the reason why other steps were skipped in a run of one step."""
    if run.only and any(step.is_left_out for step in run.steps):
        message = f"only step {run.only} belongs to run {run.number}, which a person began"
        yield Reason(cause=Cause.STEP, message=message)


def _sized_groups(job: Job, run: FlowRunView) -> dict[str, TaskGroup]:
    """Return the groups of a job by name. If only one element of a group runs, its count is 1."""
    groups = dict(job.groups_by_name())
    group = groups.get(run.only_step)
    if group is not None and run.only_element is not None:
        groups[run.only_step] = msgspec.structs.replace(group, count=min(group.count, 1))
    return groups


def _end_of(step: RunStepView) -> str:
    """Return a clause about how a step ended, with the reason."""
    if step.state == StepState.FAILED:
        return step.reason if step.failed else f"it failed: {step.reason}"
    return f"it was {step.state}: {step.reason}" if step.reason else f"it was {step.state}"


def _of_counterparts(step: RunStepView, there: int) -> Iterator[Reason]:
    """Yield a reason if elements of an open step wait for the elements of other steps.

    `there` is the number of elements that exist.
    """
    if waiting := max(step.total - there, 0):
        words = f"{count_noun(waiting, 'element')} {'waits' if waiting == 1 else 'wait'}"
        message = f"{words} for {', '.join(step.waits_for)}"
        yield Reason(cause=Cause.STEP, message=message, task_group=step.name, missing=waiting)


def _queue_positions(db: ReadSnapshot, run: FlowRunView, step: RunStepView) -> str:
    """Return the positions of a step in the queues in which it waits, or an empty string."""
    positions = [
        f'"{queue.name}" has {_in_use(db, run, queue.name)}, {count_noun(queue.before, "step")} '
        f"{'waits' if queue.before == 1 else 'wait'} before it"
        for queue in step.queues
        if queue.waiting
    ]
    return f" ({'; '.join(positions)})" if positions else ""


def _of_queue(db: ReadSnapshot, run: FlowRunView) -> Iterator[Reason]:
    """Yield the position of a run in its queue, if it waits for slots."""
    slot = runs.slot(db, run)
    if slot is None or slot[1]:
        return
    before = concurrency.waits_behind(db, run)
    yield Reason(
        cause=Cause.STEP,
        message=f'the run waits for the queue "{slot[0]}": {_in_use(db, run, slot[0])}, '
        f"{before} {'run waits' if before == 1 else 'runs wait'} before it",
    )


def _in_use(db: ReadSnapshot, run: FlowRunView, name: str) -> str:
    """Return a text with the number of slots of a queue that are in use, and the limit."""
    line = concurrency.line_in_use(db, (run.namespace, name))
    return slots_in_use(line.in_use, line.slots)


def _format_time(time: int) -> str:
    return rfc3339(time // SECOND * SECOND)


# --- jobs after jobs ---


def _of_triggers(db: ReadSnapshot, job: Job) -> Iterator[Reason]:
    """Yield a follower's sources, its waiting runs, and the last run that did not start it."""
    lines = triggers.source_lines(db, job.namespace, job.id)
    if not lines:
        return
    names = ", ".join(f'"{line.namespace}/{line.job_id}"' for line in lines)
    joins = AFTER_JOIN.of(job.meta) == TriggerJoin.ALL
    which = "a run of each of" if joins and len(lines) > 1 else "each run of"
    after = {TriggerWhen.SUCCESS: " has succeeded", TriggerWhen.FAILURE: " has failed"}
    ended = after.get(AFTER_WHEN.of(job.meta), " has ended")
    yield Reason(cause=Cause.TRIGGER, message=f"it starts after {which} {names}{ended}")
    if here := [f'"{line.namespace}/{line.job_id}"' for line in lines if line.waiting]:
        lacking = [f'"{line.namespace}/{line.job_id}"' for line in lines if not line.waiting]
        message = f"runs of {', '.join(here)} wait for {', '.join(lacking) or 'each other'}"
        yield Reason(cause=Cause.TRIGGER, message=message)
    newest = next(triggers.of_job(db, job.namespace, job.id), None)
    if newest is not None and newest.reason and newest.state.is_final:
        source = f'run {newest.number} of "{newest.source_namespace}/{newest.run_job_id}"'
        message = f"{source} did not start it: {newest.reason}"
        yield Reason(cause=Cause.TRIGGER, message=message)


# --- periodic jobs ---


def _of_clock(db: ReadSnapshot, job: Job) -> Iterator[Reason]:
    broken = faults.of_clock(db, job.namespace, job.id)
    if broken is not None and broken.is_closed:
        yield Reason(
            cause=Cause.BROKEN,
            message=f"Steward no longer follows its schedule: {broken.reason}; change the job, or "
            f'retry with: steward operator fault release "{broken.kind}" "{broken.key}"',
        )
    due = periodic.of_job(db, job.namespace, job.id)
    if due is None:
        message = "its schedule is disabled: periodic.enabled is false"
        yield Reason(cause=Cause.CLOCK, message=message)
        return
    launch = due.launch
    holder = freeze_of_slots(db, job)
    if holder is not None:
        yield _of_freeze(holder)
    elif due.paused:
        message = f"it is paused; resume it with: steward job periodic resume {job.id}"
        yield Reason(cause=Cause.CLOCK, message=message)
    elif launch == periodic.NEVER:
        yield Reason(cause=Cause.CLOCK, message="its schedule has no further slot")
    elif launch is not None and (freeze := freeze_of_launch(db, job, launch)) is not None:
        message = f"the slot of {_format_time(launch)} is {held_by(freeze)}"
        yield Reason(cause=Cause.FREEZE, message=message, until=freeze.until)
    elif launch is not None:
        message = f"its next child is launched at {_format_time(launch)}"
        yield Reason(cause=Cause.CLOCK, message=message, until=launch)
    newest = next(periodic.slots(db, job.namespace, job.id), None)
    if newest is not None and newest.outcome == SlotOutcome.SKIPPED:
        message = f"the slot of {_format_time(newest.slot)} was skipped, because {newest.reason}"
        yield Reason(cause=Cause.CLOCK, message=message)


# --- groups ---


class _Case(msgspec.Struct, frozen=True, kw_only=True):
    """The stored facts about one job, from which its explanation is derived."""

    job: Job
    versions: dict[int, Job | None]  # older versions that have allocations
    allocations: list[Allocation]
    waiting: list[Evaluation]  # pending or blocked
    newest: Evaluation | None
    deployment: Deployment | None
    is_frozen: bool = False

    def blocked(self) -> list[Evaluation]:
        return [
            evaluation for evaluation in self.waiting if evaluation.status == EvalStatus.BLOCKED
        ]

    def policy_of(self, alloc: Allocation) -> ReschedulePolicy | None:
        """Return the reschedule policy of an allocation; None if it is never rescheduled."""
        if self.job.type in (JobType.SYSTEM, JobType.SYSBATCH):
            return None
        version = self.versions.get(alloc.job_version) or self.job
        group = version.group(alloc.task_group)
        return (group.reschedule_policy if group else None) or ReschedulePolicy()

    def is_given_up(self, alloc: Allocation) -> bool:
        """Return whether a failed allocation is not replaced because its deployment failed."""
        deployment = self.deployment
        return (
            deployment is not None
            and deployment.id == alloc.deployment_id
            and deployment.job_version == self.job.version
            and deployment.status == DeploymentStatus.FAILED
        )


def _case(db: ReadSnapshot, job: Job, allocs: list[Allocation]) -> _Case:
    versions = {alloc.job_version for alloc in allocs} - {job.version}
    return _Case(
        job=job,
        versions={
            version: jobs.version(db, job.namespace, job.id, version) for version in versions
        },
        allocations=allocs,
        waiting=evaluations.unfinished(db, job.namespace, job.id),
        newest=evaluations.latest(db, job.namespace, job.id),
        deployment=deployments.latest(db, job.namespace, job.id),
    )


def _of_group(
    db: ReadSnapshot, case: _Case, group: TaskGroup, all_allocs: list[Allocation]
) -> Iterator[Reason]:
    desired = [
        alloc
        for alloc in case.allocations
        if alloc.task_group == group.name and alloc.desired_status == DesiredStatus.RUN
    ]
    failed = [alloc for alloc in desired if alloc.has_failed and not alloc.desired.next_allocation]
    for alloc in desired:
        if alloc.client_status == ClientStatus.PENDING:
            yield _starting(db, alloc)
    for alloc in failed:
        yield _failed(case, alloc)
    for alloc in desired:
        why = "" if alloc.client_terminal else unhealthy_reason(db, alloc)
        if why:
            yield Reason(
                cause=Cause.DEPLOYMENT,
                message=f"{alloc.name} is unhealthy: {why}",
                task_group=group.name,
                allocation_id=alloc.id,
            )
    there = sum(not alloc.has_failed for alloc in desired)
    runs_everywhere = case.job.type in (JobType.SYSTEM, JobType.SYSBATCH)
    yield from _displaced(db, all_allocs, group, {alloc.name for alloc in desired})
    yield from _unplaced(
        db, case, group, 0 if runs_everywhere else group.count - there, retried=len(failed)
    )
    outdated = [
        alloc for alloc in desired if alloc.job_version != case.job.version and not alloc.terminal
    ]
    if outdated and case.deployment is not None:
        yield from _outdated_reasons(case.deployment, group, len(outdated))


def _displaced(
    db: ReadSnapshot, allocs: list[Allocation], group: TaskGroup, present: set[str]
) -> Iterator[Reason]:
    """Yield a reason for each preempted allocation that was not replaced, with the preempting job.

    Jobs of other namespaces are not named.
    """
    newest = {
        alloc.name: alloc
        for alloc in reversed(allocs)
        if alloc.task_group == group.name and alloc.index < group.count
    }
    for alloc in sorted(newest.values(), key=lambda entry: entry.index):
        if alloc.desired_status != DesiredStatus.EVICT or alloc.name in present:
            continue
        by = allocations.find(db, alloc.desired.preempted_by_allocation)
        yield Reason(
            cause=Cause.PREEMPTED,
            message=f"{alloc.name} was preempted by {_name_job(by, alloc.namespace)}, which has a higher priority",
            task_group=group.name,
            allocation_id=alloc.id,
        )


def _name_job(by: Allocation | None, namespace: str) -> str:
    if by is None:  # garbage-collected
        return "another job"
    return f'job "{by.job_id}"' if by.namespace == namespace else "a job of another namespace"


def _starting(db: ReadSnapshot, alloc: Allocation) -> Reason:
    """Return the reason why an allocation is not running yet: the latest event of its tasks."""
    last = [
        f"task {name}: {plain_reason(event.display_message)}"
        for name, state in (alloc.client.task_states or {}).items()
        if state.state == TaskPhase.PENDING
        for event in allocations.newest_events(db, alloc.id, name, most=1)
    ]
    node = nodes.find(db, alloc.node_id)
    if node is not None and node.engine and node.status != NodeStatus.READY:
        last.append(f'node "{node.name}": {node.status_description}')
    text = "is placed and starting" + (f" ({'; '.join(last)})" if last else "")
    if ending := sum(_has_not_ended(db, before) for before in _predecessors(alloc)):
        text = f"is placed and starts after the end of {count_noun(ending, 'earlier allocation')}"
    return Reason(
        cause=Cause.START,
        message=f"{alloc.name} {text}",
        task_group=alloc.task_group,
        missing=1,
        allocation_id=alloc.id,
    )


def _predecessors(alloc: Allocation) -> list[str]:
    return [alloc.desired.previous_allocation, *(alloc.desired.waits_for or ())]


def _has_not_ended(db: ReadSnapshot, alloc_id: str) -> bool:
    alloc = allocations.find(db, alloc_id)
    return alloc is not None and not alloc.client_terminal


def _failed(case: _Case, alloc: Allocation) -> Reason:
    """Return a reason that states when a failed allocation is retried, or why it is not."""
    if alloc.is_overtime:
        return Reason(
            cause=Cause.LIMIT,
            message=f"{alloc.name} was {TIME_LIMIT}{_run_limit(case, alloc)}, and is not placed again",
            task_group=alloc.task_group,
            missing=1,
            allocation_id=alloc.id,
        )
    tries = _tries(alloc)
    begin = f"{alloc.name} failed {'once' if tries == 1 else f'{tries} times'}"
    cause, end, until = _next_try(case, alloc)
    return Reason(
        cause=cause,
        message=f"{begin} and {end}",
        task_group=alloc.task_group,
        missing=1,
        allocation_id=alloc.id,
        until=until,
    )


def _run_limit(case: _Case, alloc: Allocation) -> str:
    """Return the `max_run_duration` of an allocation, as ` of 5m`; empty if it is unknown."""
    version = case.versions.get(alloc.job_version) or case.job
    group = version.group(alloc.task_group)
    longest = group.max_run_duration if group else None
    return f" of {duration(longest)}" if longest else ""


def _tries(alloc: Allocation) -> int:
    """Return how many times an allocation and its predecessors were placed."""
    tracker = alloc.desired.reschedule_tracker
    return 1 + len(tracker.events if tracker else ())


def _next_try(case: _Case, alloc: Allocation) -> tuple[Cause, str, int]:
    policy, deployment = case.policy_of(alloc), case.deployment
    if deployment is not None and case.is_given_up(alloc):
        return Cause.DEPLOYMENT, f"is not placed again, because {_state_of(deployment)}", 0
    for waiting in case.waiting:
        if waiting.id == alloc.desired.followup_eval_id and waiting.wait_until:
            time = nanoseconds(waiting.wait_until)
            return Cause.DELAY, f"is placed again at {_format_time(time)}", time
    tracker = alloc.desired.reschedule_tracker
    if tracker is not None and tracker.last_reschedule == reschedule.NO_PLACE and case.blocked():
        return Cause.PLACE, "cannot be placed again yet", 0
    if policy is None:
        return Cause.LIMIT, f"is not placed again: {case.job.type} jobs are never rescheduled", 0
    if not (policy.unlimited or policy.attempts):
        return (
            Cause.LIMIT,
            "is not placed again, because its reschedule policy allows no attempt",
            0,
        )
    if reschedule.due_at(alloc, policy) is None:
        limit = f"{count_noun(policy.attempts, 'attempt')} within {policy.interval // SECOND}s"
        return Cause.LIMIT, f"is not placed again: {limit} are used up", 0
    if deployment is not None and deployment.id == alloc.deployment_id and deployment.active:
        message = f"its deployment {deployment.id} decides whether to replace it"
        return Cause.DEPLOYMENT, message + _deadline(deployment, alloc.task_group), 0
    return Cause.TURN, "is placed again when the scheduler evaluates the job", 0


def next_retry(db: ReadSnapshot, alloc: Allocation) -> Retry:
    """Return the attempts of an allocation, and when the next begins or why none follows."""
    message, time = _restart_forecast(db, alloc)
    states = alloc.client.task_states or {}
    return Retry(
        attempts=_tries(alloc),
        restarts=sum(state.restarts for state in states.values()),
        message=message,
        next_time=time,
    )


def _restart_forecast(db: ReadSnapshot, alloc: Allocation) -> tuple[str, int]:
    if alloc.desired.next_allocation:
        return f"was placed again as allocation {alloc.desired.next_allocation}", 0
    if alloc.desired_status != DesiredStatus.RUN:
        return "is not retried: it is no longer needed", 0
    if alloc.is_overtime:
        return f"is not retried: it was {TIME_LIMIT}", 0
    if alloc.client_status in (ClientStatus.FAILED, ClientStatus.LOST):
        job = jobs.current(db, alloc.namespace, alloc.job_id)
        if job is None or job.stop:
            return "is not retried: its job was stopped or replaced", 0
        _, message, time = _next_try(_case(db, job, [alloc]), alloc)
        return message, time
    for name, state in (alloc.client.task_states or {}).items():
        newest = next(iter(allocations.newest_events(db, alloc.id, name, most=1)), None)
        if state.state == TaskPhase.PENDING and newest is not None and newest.start_delay:
            time = newest.time + newest.start_delay
            return f'task "{name}" is started again at {_format_time(time)}', time
    return f"needs no retry: it is {alloc.client_status}", 0


# --- unplaced allocations ---


def _unplaced(
    db: ReadSnapshot, case: _Case, group: TaskGroup, lacking: int, *, retried: int
) -> Iterator[Reason]:
    """Yield the reasons why `lacking` allocations of a group are unplaced.

    `retried` of these allocations have failed and get no reason here: `_failed` explains them.
    """
    explained = retried
    for evaluation in case.blocked():
        metric = (evaluation.failed_tg_allocs or {}).get(group.name)
        if metric is not None:
            missing = 1 + metric.coalesced_failures
            explained += missing
            yield _without_place(db, case, group, metric, missing)
    if lacking > explained and not case.is_frozen:  # the freeze explains them
        cause, message = _without_decision(db, case)
        missing = lacking - explained
        text = f"{count_noun(missing, 'allocation')} not placed: {message}"
        yield Reason(cause=cause, message=text, task_group=group.name, missing=missing)


def _without_place(
    db: ReadSnapshot, case: _Case, group: TaskGroup, metric: PlacementMetric, missing: int
) -> Reason:
    cause, reason = placement_explain.explain_group(db, case.job, group, metric)
    return Reason(
        cause=cause,
        message=f"{count_noun(missing, 'allocation')} not placed, because {reason}",
        task_group=group.name,
        missing=missing,
    )


def _without_decision(db: ReadSnapshot, case: _Case) -> tuple[Cause, str]:
    """Return why the scheduler has not tried to place missing allocations."""
    deployment = case.deployment
    for evaluation in case.waiting:
        if evaluation.status == EvalStatus.PENDING and evaluation.type not in workers(db).types:
            return (
                Cause.TURN,
                f"the scheduler has no worker for {evaluation.type} jobs: an operator disabled it",
            )
        if evaluation.status == EvalStatus.PENDING and not evaluation.wait_until:
            return (
                Cause.TURN,
                f"evaluation {evaluation.id} is queued (priority {evaluation.priority})",
            )
    if (
        deployment is not None
        and deployment.job_version == case.job.version
        and _is_blocking(deployment)
    ):
        return Cause.DEPLOYMENT, _state_of(deployment)
    again = f"steward job eval {case.job.id}"
    if case.newest is not None and case.newest.status == EvalStatus.FAILED:
        return Cause.BROKEN, f"{case.newest.status_description}; retry with: {again}"
    return Cause.TURN, f"no evaluation is pending; create one with: {again}"


def _outdated_reasons(deployment: Deployment, group: TaskGroup, outdated: int) -> Iterator[Reason]:
    """Yield why allocations of an older version are still running."""
    if not _is_blocking(deployment):
        return
    subject = f"{count_noun(outdated, 'allocation')} of an older version"
    yield Reason(
        cause=Cause.DEPLOYMENT,
        message=f"{subject} not replaced yet: {_state_of(deployment)}{_awaited(deployment, group)}",
        task_group=group.name,
        missing=outdated,
    )


def _is_blocking(deployment: Deployment) -> bool:
    """Return whether a deployment can delay changes, because it is active or has failed."""
    return deployment.active or deployment.status == DeploymentStatus.FAILED


def _state_of(deployment: Deployment) -> str:
    text = deployment.status_description
    return f"deployment {deployment.id} is {deployment.status} ({text[:1].lower()}{text[1:]})"


def _awaited(deployment: Deployment, group: TaskGroup) -> str:
    """Return the reason why an active deployment waits, as the end of a sentence; or empty."""
    state = deployment.task_groups.get(group.name)
    if deployment.status == DeploymentStatus.PAUSED:
        return f"; resume it with: steward deployment resume {deployment.id}"
    if state is None or not deployment.active:
        return ""
    goal = state.desired_total
    if state.desired_canaries and not state.promoted:
        goal = state.desired_canaries
        if state.healthy_allocs >= goal:
            return f"; promote it with: steward deployment promote {deployment.id}"
    progress = f"{state.healthy_allocs} of {goal} allocations are healthy"
    return f"; {progress}, more must become healthy{_deadline(deployment, group.name)}"


def _deadline(deployment: Deployment, group: str) -> str:
    """Return the progress deadline of a group, as the end of a sentence."""
    state = deployment.task_groups.get(group)
    if state is None or state.progress_due is None:
        return ""
    return f", by {_format_time(state.progress_due)} at the latest"
