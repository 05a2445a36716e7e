"""Following an evaluation to what came of it: allocations that run, are complete, or failed.

Each look is a blocking query, so news is shown when it happens and nothing is asked in between.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import NamedTuple

from daemon import wording
from daemon.cli.answers import AllocationLine
from daemon.cli.client import Client, segment
from daemon.cli.output import Progress, Row
from daemon.cli.text import short
from daemon.wording import several
from storage.records.allocation import (
    CLIENT_TERMINAL,
    ClientStatus,
    DesiredStatus,
    TaskEvent,
    TaskPhase,
)
from storage.records.deployment import Deployment, DeploymentGroup, DeploymentStatus
from storage.records.evaluation import EvalStatus, Evaluation
from storage.records.job import Job, JobType

EXIT_FAILED = 1
EXIT_NOT_PLACED = 2

_RUNS_TO_ITS_END = frozenset({JobType.BATCH, JobType.SYSBATCH})
_CAME_TO_GRIEF = frozenset({ClientStatus.FAILED, ClientStatus.LOST})
_FINISHED = frozenset({EvalStatus.COMPLETE, EvalStatus.FAILED, EvalStatus.CANCELED})
# Events that say why a task failed, rather than what was done about it.
_REASONS = frozenset(
    {
        "Driver Failure",
        "Failed Validation",
        "Failed Artifact Download",
        "Task hook failed",
        "Setup Failure",
        "Sibling Task Failed",
        "Terminated",
        "Not Restarting",
    }
)


class Ending(NamedTuple):
    """How a following ended: the exit status, what to tell, and what was seen last."""

    status: int
    words: str
    evaluation: Evaluation
    allocations: Sequence[AllocationLine] = ()

    @property
    def told(self) -> str:
        """Return what is told, with the job that it is told of."""
        return f'job "{self.evaluation.job_id}": {self.words}'


class Fate(Enum):
    """Whether there is still something to wait for."""

    OPEN = "open"
    GOOD = "good"
    BAD = "bad"


def follow_run(
    client: Client,
    progress: Progress,
    eval_id: str,
    *,
    until_ended: bool = False,
    tell: Callable[[Sequence[AllocationLine]], None] = lambda _: None,
) -> Ending:
    """Follow a registration until its allocations run, or for a batch job until they are complete.

    With `until_ended`, the latter for any job, and where nothing had to be placed because the job
    is unchanged, what it has counts. `tell` hears of the allocations at each look. What cannot be
    placed ends it at once; what could be is then left to itself.
    """
    evaluation = finished(client, progress, eval_id)
    if evaluation.status != EvalStatus.COMPLETE:
        return Ending(EXIT_FAILED, unfinished(evaluation), evaluation)
    if evaluation.failed_tg_allocs:
        lines = wording.sentences(evaluation)
        if evaluation.blocked_eval:
            waiting = short(evaluation.blocked_eval)
            lines.append(f"evaluation {waiting} waits for room and places it when there is some")
        return Ending(EXIT_NOT_PLACED, "\n".join(lines), evaluation)
    runs_to_its_end = until_ended or evaluation.type in _RUNS_TO_ITS_END
    path = f"/v1/job/{segment(evaluation.job_id)}/allocations"
    answer = client.read(path, namespace=evaluation.namespace)
    known = answer.decode(list[AllocationLine])
    begun = {line.id for line in known if line.eval_id == evaluation.id}
    if until_ended and not begun:
        begun = _of_version(known, _job_of(client, evaluation))
    while True:
        mine = with_replacements(answer.decode(list[AllocationLine]), begun)
        progress.show([allocation_row(line) for line in mine])
        tell(mine)
        last = current(mine)
        fates = {fate(line, runs_to_its_end=runs_to_its_end) for line in last}
        if Fate.OPEN not in fates:
            status = EXIT_FAILED if Fate.BAD in fates else 0
            return Ending(status, told(last), evaluation, mine)
        answer = client.newer(path, answer.index, namespace=evaluation.namespace)


def _job_of(client: Client, evaluation: Evaluation) -> Job:
    path = f"/v1/job/{segment(evaluation.job_id)}"
    return client.fetch(path, Job, namespace=evaluation.namespace)


def _of_version(lines: Iterable[AllocationLine], job: Job) -> set[str]:
    """Return the allocations that a job has as it is now; of its name one may have been purged."""
    return {
        line.id
        for line in current(lines)
        if line.job_version == job.version and line.create_index >= job.create_index
    }


def follow_placement(client: Client, progress: Progress, eval_id: str) -> Ending:
    """Follow an evaluation until it has placed what it could."""
    evaluation = finished(client, progress, eval_id)
    if evaluation.status != EvalStatus.COMPLETE:
        return Ending(EXIT_FAILED, unfinished(evaluation), evaluation)
    if evaluation.failed_tg_allocs:
        words = "\n".join(wording.sentences(evaluation))
        return Ending(EXIT_NOT_PLACED, words, evaluation)
    return Ending(0, "placed", evaluation)


class Deployed(NamedTuple):
    """How a deployment ended: the exit status, what to tell, and the document."""

    status: int
    words: str
    body: bytes


def follow_deployment(client: Client, progress: Progress, deployment_id: str) -> Deployed:
    """Follow a deployment until it has ended, or waits for a person."""
    path = f"/v1/deployment/{segment(deployment_id)}"
    answer = client.read(path)
    while True:
        deployment = answer.decode(Deployment)
        progress.show([_group_row(*one) for one in sorted(deployment.task_groups.items())])
        if not deployment.active or _waits_for_somebody(deployment):
            is_well = deployment.status != DeploymentStatus.FAILED
            words = f"is {deployment.status}: {deployment.status_description}"
            return Deployed(0 if is_well else EXIT_FAILED, words, answer.body)
        answer = client.newer(path, answer.index)


def _group_row(name: str, state: DeploymentGroup) -> Row:
    counts = f"{state.placed_allocs}/{state.desired_total} placed, {state.healthy_allocs} healthy"
    ill = f"{state.unhealthy_allocs} unhealthy" if state.unhealthy_allocs else ""
    done, total = state.healthy_allocs, state.desired_total
    return Row("group", name, "", counts, ill, done, total)


def _waits_for_somebody(deployment: Deployment) -> bool:
    """Tell whether nothing happens until a person resumes or promotes it."""
    on_trial = [
        state
        for state in deployment.task_groups.values()
        if state.desired_canaries and not state.promoted
    ]
    return deployment.status == DeploymentStatus.PAUSED or any(
        not state.auto_promote and state.healthy_allocs >= state.desired_canaries
        for state in on_trial
    )


def finished(client: Client, progress: Progress, eval_id: str) -> Evaluation:
    """Return an evaluation when it is neither pending nor blocked any more."""
    path = f"/v1/evaluation/{segment(eval_id)}"
    answer = client.read(path)
    while True:
        evaluation = answer.decode(Evaluation)
        row = Row("evaluation", short(eval_id), evaluation.triggered_by, evaluation.status)
        progress.show([row])
        if evaluation.status in _FINISHED:
            return evaluation
        answer = client.newer(path, answer.index)


def unfinished(evaluation: Evaluation) -> str:
    """Return why an evaluation decided nothing."""
    why = evaluation.status_description or "no reason is given"
    if evaluation.status == EvalStatus.CANCELED:
        why = f"{why}; a newer one decides about the job"
    return f"evaluation {short(evaluation.id)} is {evaluation.status}: {why}"


def follow_stop(client: Client, progress: Progress, eval_id: str) -> Ending:
    """Follow a stop until no task of the job runs any more."""
    evaluation = finished(client, progress, eval_id)
    if evaluation.status != EvalStatus.COMPLETE:
        return Ending(EXIT_FAILED, unfinished(evaluation), evaluation)
    path = f"/v1/job/{segment(evaluation.job_id)}/allocations"
    answer = client.read(path, namespace=evaluation.namespace)
    while True:
        lines = answer.decode(list[AllocationLine])
        # Others ended earlier; what ended since may have done so before this look.
        mine = [line for line in lines if line.modify_index > evaluation.create_index]
        progress.show([allocation_row(line) for line in mine])
        if all(_ended(line) for line in lines):
            words = f"{several(len(mine), 'allocation')} ended" if mine else "nothing of it runs"
            return Ending(0, words, evaluation, mine)
        answer = client.newer(path, answer.index, namespace=evaluation.namespace)


def _ended(line: AllocationLine) -> bool:
    return line.client_status in CLIENT_TERMINAL


# ---- what is seen, and what it means ---------------------------------------------------------


def with_replacements(lines: Iterable[AllocationLine], begun: set[str]) -> list[AllocationLine]:
    """Return allocations by their identifiers, and what replaced them since, oldest first."""
    oldest_first = sorted(lines, key=lambda line: (line.create_index, line.name))
    mine: list[AllocationLine] = []
    wanted = set(begun)
    for line in oldest_first:
        if line.id in wanted:
            mine.append(line)
            wanted.add(line.next_allocation)
    return mine


def current(lines: Iterable[AllocationLine]) -> list[AllocationLine]:
    """Return the allocations that nothing has replaced yet: theirs is the last word."""
    return [line for line in lines if not line.next_allocation]


def fate(line: AllocationLine, *, runs_to_its_end: bool) -> Fate:
    """Return whether an allocation came out well, badly, or is still to be waited for."""
    match line.client_status:
        case ClientStatus.COMPLETE:
            return Fate.GOOD
        case ClientStatus.RUNNING:
            return Fate.OPEN if runs_to_its_end else Fate.GOOD
        case ClientStatus.FAILED | ClientStatus.LOST:
            return Fate.OPEN if runs_to_its_end and line.followup_eval_id else Fate.BAD
        case _:
            return Fate.OPEN


def told(lines: Sequence[AllocationLine]) -> str:
    """Return in words how allocations came out."""
    if not lines:
        return "nothing had to be placed"
    counts = Counter(line.client_status for line in lines)
    summary = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    failures = [
        f"allocation {short(line.id)} {line.client_status}: {why_failed(line)}{_again(line)}"
        for line in lines
        if line.client_status in _CAME_TO_GRIEF
    ]
    return "\n".join([f"allocations: {summary}", *failures])


def _again(line: AllocationLine) -> str:
    return "; it is tried again later" if line.followup_eval_id else ""


def allocation_row(line: AllocationLine) -> Row:
    """Return how an allocation is now."""
    detail = ""
    if line.client_status in _CAME_TO_GRIEF:
        detail = why_failed(line)
    elif line.client_status == ClientStatus.PENDING:
        detail = _newest_news(line)
    elif line.desired_status != DesiredStatus.RUN and not _ended(line):
        detail = "stopping"
    return Row("allocation", short(line.id), line.name, line.client_status, detail)


def why_failed(line: AllocationLine) -> str:
    """Return what the events of the failed tasks say."""
    reasons = [
        f'task "{name}": {"; ".join(reasons)}'
        for name, state in sorted((line.task_states or {}).items())
        if state.failed and (reasons := _reasons(state.events or []))
    ]
    return ", ".join(reasons) or line.client_description or "no reason is given"


def _reasons(events: Sequence[TaskEvent]) -> list[str]:
    """Return the newest message of each kind of event that says why a task failed."""
    newest = {event.type: event.display_message for event in events if event.type in _REASONS}
    return list(newest.values())


def _newest_news(line: AllocationLine) -> str:
    """Return the newest event of a task that does not run yet."""
    for _, state in sorted((line.task_states or {}).items()):
        if state.state == TaskPhase.PENDING and state.events:
            return state.events[-1].display_message
    return line.client_description
