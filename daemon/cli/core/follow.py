"""Waiting for the result of an evaluation: running, complete or failed allocations.

Each poll is a blocking query, so changes are shown immediately and without needless requests.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from daemon.cli.core.flow_runs import describe_run, find_run, follow_flow
from daemon.cli.core.formatting import short
from daemon.cli.core.http_client import ApiClient, ClientResponse, segment
from daemon.cli.core.output import ProgressDisplay, ProgressRow
from daemon.cli.core.responses import AllocationItem
from daemon.text import placement_message, task_failure
from daemon.text.job_state import HELD_BY_FREEZE, State
from daemon.text.placement_message import count_noun
from storage.records.allocation import (
    CLIENT_TERMINAL,
    TIME_LIMIT,
    ClientStatus,
    DesiredStatus,
    TaskEvent,
    TaskPhase,
    is_overtime,
)
from storage.records.deployment import Deployment, DeploymentGroup, DeploymentStatus
from storage.records.evaluation import EvalStatus, Evaluation
from storage.records.failure import LastError, TaskError
from storage.records.flow import FlowRunView, FlowStatus, RunUpdate
from storage.records.job import Job, JobType
from storage.records.state import StateLine

EXIT_FAILED = 1
EXIT_NOT_PLACED = 2

_RUNS_TO_ITS_END = frozenset({JobType.BATCH, JobType.SYSBATCH})
_CAME_TO_GRIEF = frozenset({ClientStatus.FAILED, ClientStatus.LOST})
_FINISHED = frozenset({EvalStatus.COMPLETE, EvalStatus.FAILED, EvalStatus.CANCELED})
# Event types that give the cause of a failure, not the reaction to it.
_REASONS = task_failure.ERRORS | {"Sibling Task Failed", "Terminated", "Not Restarting"}
_MOST_EXPLAINED = 10  # failed allocations whose last lines are shown


class FollowResult(NamedTuple):
    """The result of a wait: exit status, message, last allocations, and a workflow's run."""

    status: int
    words: str
    evaluation: Evaluation
    allocations: Sequence[AllocationItem] = ()
    run: FlowRunView | None = None

    @property
    def message(self) -> str:
        """Return the message with the job's name."""
        return f'job "{self.evaluation.job_id}": {self.words}'


class AllocationOutcome(Enum):
    """Progress of an allocation that the command waits for."""

    OPEN = "open"
    GOOD = "good"
    BAD = "bad"


def follow_run(
    client: ApiClient,
    progress: ProgressDisplay,
    eval_id: str,
    *,
    until_ended: bool = False,
    tell: Callable[[Sequence[AllocationItem]], None] = lambda _: None,
) -> FollowResult:
    """Wait until a registered job runs or, for a batch job, is complete.

    If there is a deployment, wait for its end: only a successful deployment counts as success. With
    `until_ended`, wait until a job of any type has ended. If the job is unchanged, its existing
    allocations then decide the result. `tell` receives the allocations at each poll. After a
    placement failure, the command stops waiting. The placed allocations keep running.
    """
    evaluation = finished(client, progress, eval_id)
    if evaluation.status != EvalStatus.COMPLETE:
        return FollowResult(EXIT_FAILED, unfinished(evaluation), evaluation)
    if evaluation.failed_tg_allocs:
        lines = placement_message.describe_failures(evaluation)
        if evaluation.blocked_eval:
            waiting = short(evaluation.blocked_eval)
            lines.append(f"evaluation {waiting} is blocked and places it when capacity is freed")
        return FollowResult(EXIT_NOT_PLACED, "\n".join(lines), evaluation)
    if not until_ended and (deployment := _deployment_of(client, evaluation)) is not None:
        return _follow_rollout(client, progress, evaluation, deployment)
    if evaluation.type == JobType.BATCH:
        run = find_run(client, evaluation.job_id, evaluation.namespace)
        if run is not None:
            run = _after_earlier_run(client, progress, evaluation, run)
        if run is not None and _is_current(client, run.decode(FlowRunView), evaluation):
            return _follow_flow(client, progress, evaluation, run, tell)
    return _follow_allocations(client, progress, evaluation, until_ended=until_ended, tell=tell)


def _after_earlier_run(
    client: ApiClient, progress: ProgressDisplay, evaluation: Evaluation, answer: ClientResponse
) -> ClientResponse:
    """Wait as long as a run of an earlier version delays the run of the current version.

    Return the newest run.
    """
    path = f"/v1/job/{segment(evaluation.job_id)}/run"
    run = answer.decode(FlowRunView)
    while not run.status.has_ended and _waits_for(_job_of(client, evaluation), run):
        reason = f"waits until run {run.number} of version {run.version} has ended"
        progress.show([ProgressRow("job", evaluation.job_id, "", str(State.PENDING), reason)])
        number = run.number
        while run.number == number and _waits_for(_job_of(client, evaluation), run):
            # The next run begins in the write after the end of this run.
            answer = client.newer(path, answer.index, namespace=evaluation.namespace)
            run = answer.decode(FlowRunView)
    return answer


def _waits_for(job: Job, run: FlowRunView) -> bool:
    """Return whether the current version of a job begins its run after an earlier run."""
    from daemon.jobspec.steward_meta.job_keys import RUN_UPDATE  # imported late: few jobs need it

    waits = RUN_UPDATE.of(job.meta) == RunUpdate.FINISH
    return waits and run.version < job.version and not job.stop


def _follow_allocations(
    client: ApiClient,
    progress: ProgressDisplay,
    evaluation: Evaluation,
    *,
    until_ended: bool,
    tell: Callable[[Sequence[AllocationItem]], None],
) -> FollowResult:
    """Wait until the allocations of an evaluation run, or have ended."""
    runs_to_its_end = until_ended or evaluation.type in _RUNS_TO_ITS_END
    path = f"/v1/job/{segment(evaluation.job_id)}/allocations"
    answer = client.read(path, namespace=evaluation.namespace)
    allocs_before = answer.decode(list[AllocationItem])
    begun = {line.id for line in allocs_before if line.eval_id == evaluation.id}
    if not begun and evaluation.type == JobType.BATCH:
        freed = _evaluation_after_freeze(client, progress, evaluation)
        if freed:
            return follow_run(client, progress, freed, until_ended=True, tell=tell)
    if until_ended and not begun:
        begun = _of_version(allocs_before, _job_of(client, evaluation))
    while True:
        allocs = with_replacements(answer.decode(list[AllocationItem]), begun)
        progress.show([allocation_row(line) for line in allocs])
        tell(allocs)
        last = current_allocations(allocs)
        outcomes = {allocation_outcome(line, runs_to_its_end=runs_to_its_end) for line in last}
        if AllocationOutcome.OPEN not in outcomes:
            status = EXIT_FAILED if AllocationOutcome.BAD in outcomes else 0
            words = describe_outcome(last, _errors_of(client, last))
            return FollowResult(status, words, evaluation, allocs)
        answer = client.newer(path, answer.index, namespace=evaluation.namespace)


def _evaluation_after_freeze(
    client: ApiClient, progress: ProgressDisplay, evaluation: Evaluation
) -> str:
    """Wait while a freeze prevents the start of a job.

    Return the ID of the evaluation that then started the job, or an empty string if there is none.
    """
    base = f"/v1/job/{segment(evaluation.job_id)}"
    answer = client.read(f"{base}/state", namespace=evaluation.namespace)
    state, was_held = answer.decode(StateLine), False
    while state.state == State.PENDING and (was_held or state.reason.startswith(HELD_BY_FREEZE)):
        was_held = True
        progress.show([ProgressRow("job", evaluation.job_id, "", str(state.state), state.reason)])
        answer = client.newer(f"{base}/state", answer.index, namespace=evaluation.namespace)
        state = answer.decode(StateLine)
    if not was_held:
        return ""
    path = f"{base}/evaluations"
    evaluations = client.fetch(path, list[Evaluation], namespace=evaluation.namespace)
    newest = max(evaluations, key=lambda candidate: candidate.create_index)
    return newest.id if newest.id != evaluation.id else ""


def _follow_flow(
    client: ApiClient,
    progress: ProgressDisplay,
    evaluation: Evaluation,
    answer: ClientResponse,
    tell: Callable[[Sequence[AllocationItem]], None],
) -> FollowResult:
    """Wait until the run of a workflow has ended."""
    path = f"/v1/job/{segment(evaluation.job_id)}/allocations"

    def of_run(run: FlowRunView) -> list[AllocationItem]:
        lines = client.fetch(path, list[AllocationItem], namespace=evaluation.namespace)
        return [line for line in lines if line.job_version == run.version]

    run = follow_flow(client, progress, answer, lambda run: tell(of_run(run)))
    status = 0 if run.status == FlowStatus.SUCCEEDED else EXIT_FAILED
    allocs = of_run(run)
    last = [line for line in current_allocations(allocs) if _has_failed(line)]
    lines = [describe_run(run)]
    if status:
        lines += _failures(last, _errors_of(client, last))
    return FollowResult(status, "\n".join(lines), evaluation, allocs, run)


def _deployment_of(client: ApiClient, evaluation: Evaluation) -> Deployment | None:
    """Return the deployment that an evaluation created or continues, or None."""
    path = f"/v1/job/{segment(evaluation.job_id)}/deployments"
    deployments = client.fetch(path, list[Deployment], namespace=evaluation.namespace)
    if not deployments or deployments[0].job_create_index > evaluation.create_index:
        return None
    latest = deployments[0]
    is_of_it = latest.active or latest.modify_index >= evaluation.create_index
    return latest if is_of_it else None


def _follow_rollout(
    client: ApiClient, progress: ProgressDisplay, evaluation: Evaluation, deployment: Deployment
) -> FollowResult:
    """Wait until a deployment has ended, and show its allocations."""
    base = f"/v1/job/{segment(evaluation.job_id)}"
    news = client.read(f"{base}/state", namespace=evaluation.namespace)
    while True:
        path = f"/v1/deployment/{segment(deployment.id)}"
        deployment = client.fetch(path, Deployment)
        placed = client.fetch(
            f"/v1/deployment/allocations/{segment(deployment.id)}", list[AllocationItem]
        )
        progress.show(
            [
                *(
                    _group_row(*group_entry)
                    for group_entry in sorted(deployment.task_groups.items())
                ),
                *(allocation_row(line) for line in placed),
                *_standstill_rows(deployment),
            ]
        )
        if not deployment.active:
            break
        news = client.newer(f"{base}/state", news.index, namespace=evaluation.namespace)
    if deployment.status == DeploymentStatus.SUCCESSFUL:
        return FollowResult(0, f"version {deployment.job_version} is deployed", evaluation, placed)
    return FollowResult(
        EXIT_FAILED, _why_undeployed(client, deployment, placed), evaluation, placed
    )


def _why_undeployed(
    client: ApiClient, deployment: Deployment, allocs: Sequence[AllocationItem]
) -> str:
    """Return the status of a failed deployment, its cause, and the version that is desired now."""
    path = f"/v1/job/{segment(deployment.job_id)}"
    job = client.fetch(path, Job, namespace=deployment.namespace)
    lines = [
        f"version {deployment.job_version} is not deployed: its deployment is "
        f"{deployment.status} ({deployment.status_description})"
    ]
    for line in allocs:
        if error := error_of(client, line.id):
            lines += [f"allocation {short(line.id)}: {error.summary}"]
            lines += [f"    {text}" for text in task_failure.last_lines(error)]
        elif why := _why_unhealthy(line):
            lines += [f"allocation {short(line.id)} is unhealthy: {why}"]
    if job.version != deployment.job_version:
        lines.append(f"version {job.version} is desired now")
    lines.append(f"running now: {_running_versions(client, deployment)}")
    return "\n".join(lines)


def _why_unhealthy(line: AllocationItem) -> str:
    """Return why an allocation is unhealthy; empty if it is healthy or the reason is unknown."""
    if line.deployment_status is None or line.deployment_status.healthy is not False:
        return ""
    states = line.task_states or {}
    return task_failure.why_unhealthy({name: state.events or [] for name, state in states.items()})


def _running_versions(client: ApiClient, deployment: Deployment) -> str:
    """Return the number of running allocations of each version of a job, as text."""
    path = f"/v1/job/{segment(deployment.job_id)}/allocations"
    alloc_lines = client.fetch(path, list[AllocationItem], namespace=deployment.namespace)
    running = Counter(
        line.job_version
        for line in alloc_lines
        if line.client_status == ClientStatus.RUNNING and line.desired_status == DesiredStatus.RUN
    )
    return (
        ", ".join(
            f"{count_noun(number, 'allocation')} of version {version}"
            for version, number in sorted(running.items())
        )
        or "no allocation of the job"
    )


def error_of(client: ApiClient, alloc_id: str) -> TaskError | None:
    """Return the latest error of an allocation, or None."""
    return client.fetch(f"/v1/allocation/{segment(alloc_id)}/error", LastError).error


def _errors_of(client: ApiClient, lines: Sequence[AllocationItem]) -> dict[str, TaskError]:
    """Return the latest errors of the first failed allocations, by allocation."""
    failed = [line.id for line in lines if _has_failed(line)]
    error_by_alloc = {alloc_id: error_of(client, alloc_id) for alloc_id in failed[:_MOST_EXPLAINED]}
    return {alloc_id: error for alloc_id, error in error_by_alloc.items() if error}


def _is_current(client: ApiClient, run: FlowRunView, evaluation: Evaluation) -> bool:
    """Return whether a run belongs to the current version of its job.

    The current version may have no steps, and then the newest run belongs to an earlier version.
    """
    return run.version == _job_of(client, evaluation).version


def _job_of(client: ApiClient, evaluation: Evaluation) -> Job:
    path = f"/v1/job/{segment(evaluation.job_id)}"
    return client.fetch(path, Job, namespace=evaluation.namespace)


def _of_version(lines: Iterable[AllocationItem], job: Job) -> set[str]:
    """Return the IDs of the current allocations of this job version.

    Allocations of a purged job with the same name are left out.
    """
    return {
        line.id
        for line in current_allocations(lines)
        if line.job_version == job.version and line.create_index >= job.create_index
    }


def follow_placement(client: ApiClient, progress: ProgressDisplay, eval_id: str) -> FollowResult:
    """Wait until an evaluation is complete."""
    evaluation = finished(client, progress, eval_id)
    if evaluation.status != EvalStatus.COMPLETE:
        return FollowResult(EXIT_FAILED, unfinished(evaluation), evaluation)
    if evaluation.failed_tg_allocs:
        words = "\n".join(placement_message.describe_failures(evaluation))
        return FollowResult(EXIT_NOT_PLACED, words, evaluation)
    if evaluation.type == JobType.BATCH:
        path = f"/v1/job/{segment(evaluation.job_id)}/state"
        state = client.fetch(path, StateLine, namespace=evaluation.namespace)
        if state.state == State.PENDING and state.reason:
            return FollowResult(0, f"pending: {state.reason}", evaluation)
    return FollowResult(0, "placed", evaluation)


class DeploymentProgress(NamedTuple):
    """The result of a wait: the exit status, a message, and the deployment as a document."""

    status: int
    words: str
    body: bytes


def follow_deployment(
    client: ApiClient, progress: ProgressDisplay, deployment_id: str
) -> DeploymentProgress:
    """Wait until a deployment has ended, or needs an action of a user."""
    path = f"/v1/deployment/{segment(deployment_id)}"
    answer = client.read(path)
    while True:
        deployment = answer.decode(Deployment)
        progress.show(
            [_group_row(*group_entry) for group_entry in sorted(deployment.task_groups.items())]
        )
        if not deployment.active or _waits_for_somebody(deployment):
            is_well = deployment.status != DeploymentStatus.FAILED
            words = f"is {deployment.status}: {deployment.status_description}"
            return DeploymentProgress(0 if is_well else EXIT_FAILED, words, answer.body)
        answer = client.newer(path, answer.index)


def _group_row(name: str, state: DeploymentGroup) -> ProgressRow:
    counts = f"{state.placed_allocs}/{state.desired_total} placed, {state.healthy_allocs} healthy"
    ill = f"{state.unhealthy_allocs} unhealthy" if state.unhealthy_allocs else ""
    done, total = state.healthy_allocs, state.desired_total
    return ProgressRow("group", name, "", counts, ill, done, total)


def _standstill_rows(deployment: Deployment) -> list[ProgressRow]:
    """Return a row with the command for which a deployment waits; no row if it does not wait."""
    if not deployment.active or not _waits_for_somebody(deployment):
        return []
    if deployment.status == DeploymentStatus.PAUSED:
        command = f"steward deployment resume {short(deployment.id)}"
    else:
        command = f"steward job promote {deployment.job_id}"
    return [ProgressRow("deployment", short(deployment.id), "", f"waits for: {command}")]


def _waits_for_somebody(deployment: Deployment) -> bool:
    """Return whether a deployment waits for a user to resume or promote it."""
    on_trial = [
        state
        for state in deployment.task_groups.values()
        if state.desired_canaries and not state.promoted
    ]
    return deployment.status == DeploymentStatus.PAUSED or any(
        not state.auto_promote and state.healthy_allocs >= state.desired_canaries
        for state in on_trial
    )


def finished(client: ApiClient, progress: ProgressDisplay, eval_id: str) -> Evaluation:
    """Return an evaluation once it is neither pending nor blocked."""
    path = f"/v1/evaluation/{segment(eval_id)}"
    answer = client.read(path)
    while True:
        evaluation = answer.decode(Evaluation)
        row = ProgressRow("evaluation", short(eval_id), evaluation.triggered_by, evaluation.status)
        progress.show([row])
        if evaluation.status in _FINISHED:
            return evaluation
        answer = client.newer(path, answer.index)


def unfinished(evaluation: Evaluation) -> str:
    """Return why an evaluation has no result."""
    why = evaluation.status_description or "no reason is given"
    if evaluation.status == EvalStatus.CANCELED:
        why = f"{why}; a newer evaluation replaces it"
    return f"evaluation {short(evaluation.id)} is {evaluation.status}: {why}"


def follow_stop(client: ApiClient, progress: ProgressDisplay, eval_id: str) -> FollowResult:
    """Wait until no task of a stopped job runs."""
    evaluation = finished(client, progress, eval_id)
    if evaluation.status != EvalStatus.COMPLETE:
        return FollowResult(EXIT_FAILED, unfinished(evaluation), evaluation)
    path = f"/v1/job/{segment(evaluation.job_id)}/allocations"
    answer = client.read(path, namespace=evaluation.namespace)
    while True:
        lines = answer.decode(list[AllocationItem])
        # Allocations that ended before the stop do not count. Others count even if they end before
        # the first poll.
        changed = [line for line in lines if line.modify_index > evaluation.create_index]
        progress.show([allocation_row(line) for line in changed])
        if all(_ended(line) for line in lines):
            words = (
                f"{count_noun(len(changed), 'allocation')} ended"
                if changed
                else "none of its tasks is running"
            )
            return FollowResult(0, words, evaluation, changed)
        answer = client.newer(path, answer.index, namespace=evaluation.namespace)


def _ended(line: AllocationItem) -> bool:
    return line.client_status in CLIENT_TERMINAL


# --- interpretation -----------------------------------------------------------------------------


def with_replacements(lines: Iterable[AllocationItem], begun: set[str]) -> list[AllocationItem]:
    """Return the allocations with these IDs and their replacements, oldest first."""
    oldest_first = sorted(lines, key=lambda line: (line.create_index, line.name))
    allocs: list[AllocationItem] = []
    followed = set(begun)
    for line in oldest_first:
        if line.id in followed:
            allocs.append(line)
            followed.add(line.next_allocation)
    return allocs


def current_allocations(lines: Iterable[AllocationItem]) -> list[AllocationItem]:
    """Return the allocations that have not been replaced."""
    return [line for line in lines if not line.next_allocation]


def allocation_outcome(line: AllocationItem, *, runs_to_its_end: bool) -> AllocationOutcome:
    """Return whether an allocation succeeded, failed, or is not decided yet."""
    match line.client_status:
        case ClientStatus.COMPLETE:
            return AllocationOutcome.BAD if _has_failed(line) else AllocationOutcome.GOOD
        case ClientStatus.RUNNING:
            return AllocationOutcome.OPEN if runs_to_its_end else AllocationOutcome.GOOD
        case ClientStatus.FAILED | ClientStatus.LOST:
            return (
                AllocationOutcome.OPEN
                if runs_to_its_end and line.followup_eval_id
                else AllocationOutcome.BAD
            )
        case _:
            return AllocationOutcome.OPEN


def describe_outcome(
    lines: Sequence[AllocationItem], errors: Mapping[str, TaskError] | None = None
) -> str:
    """Format the results of allocations as text; `errors` are the errors of failed allocations."""
    if not lines:
        return "nothing had to be placed"
    counts = Counter(map(_end_word, lines))
    summary = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    return "\n".join([f"allocations: {summary}", *_failures(lines, errors or {})])


def _failures(lines: Iterable[AllocationItem], errors: Mapping[str, TaskError]) -> Iterator[str]:
    """Yield why each failed allocation failed, and its last error lines."""
    for line in lines:
        if _has_failed(line):
            error = errors.get(line.id)
            why = error.summary if error else why_failed(line)
            yield f"allocation {short(line.id)} {_end_word(line)}: {why}{_retry_note(line)}"
            if error:
                yield from (f"    {text}" for text in task_failure.last_lines(error))


def _has_failed(line: AllocationItem) -> bool:
    return line.client_status in _CAME_TO_GRIEF or _is_overtime(line)


def _is_overtime(line: AllocationItem) -> bool:
    return is_overtime(line.client_status, line.client_description)


def _end_word(line: AllocationItem) -> str:
    return TIME_LIMIT if _is_overtime(line) else line.client_status


def _retry_note(line: AllocationItem) -> str:
    return "; it will be retried later" if line.followup_eval_id else ""


def allocation_row(line: AllocationItem) -> ProgressRow:
    """Return the row of an allocation in the progress display."""
    detail = ""
    if _is_overtime(line):
        detail = TIME_LIMIT
    elif line.client_status in _CAME_TO_GRIEF:
        detail = why_failed(line)
    elif line.client_status == ClientStatus.PENDING:
        detail = _newest_news(line)
    elif line.desired_status != DesiredStatus.RUN and not _ended(line):
        detail = "stopping"
    return ProgressRow("allocation", short(line.id), line.name, line.client_status, detail)


def why_failed(line: AllocationItem) -> str:
    """Return the cause of a failure from the events of the failed tasks."""
    reasons = [
        f'task "{name}": {"; ".join(reasons)}'
        for name, state in sorted((line.task_states or {}).items())
        if state.failed and (reasons := _reasons(state.events or []))
    ]
    return ", ".join(reasons) or line.client_description or "no reason is given"


def _reasons(events: Sequence[TaskEvent]) -> list[str]:
    """Return the messages that explain a failure: the latest message of each event type."""
    has_started = any(event.type == task_failure.STARTED for event in events)
    types = _REASONS if has_started else _REASONS | task_failure.WAITS
    newest = {event.type: event.display_message for event in events if event.type in types}
    return [task_failure.plain_reason(text) for text in newest.values()]


def _newest_news(line: AllocationItem) -> str:
    """Return the latest event of a task that does not run yet."""
    for _, state in sorted((line.task_states or {}).items()):
        if state.state == TaskPhase.PENDING and state.events:
            return task_failure.plain_reason(state.events[-1].display_message)
    return line.client_description
