"""Load the facts that determine the state of a job (see `daemon/text/job_state.py`)."""

from collections import Counter
from collections.abc import Iterator

import msgspec
from msgspec import UNSET, UnsetType

from daemon.evals.failures import newest_error, unhealthy_reason_of_deployment
from daemon.jobspec.steward_meta.job_keys import queue_of
from daemon.text import placement_message
from daemon.text.job_state import (
    SETTLED_AFTER,
    DeploymentFacts,
    JobFacts,
    JobState,
    Runs,
    State,
    Tally,
    held_by,
    job_state,
)
from daemon.text.task_failure import RESTARTING, is_on_request, sentence
from storage.queries import (
    allocations,
    deployments,
    evaluations,
    freezes,
    job_status,
    jobs,
    periodic,
    tallies,
)
from storage.queries import runs as runs_of
from storage.read_pool import ReadSnapshot
from storage.records.allocation import ClientStatus, TaskPhase
from storage.records.deployment import Deployment, DeploymentStatus
from storage.records.evaluation import EvalStatus, Evaluation
from storage.records.failure import TaskError
from storage.records.flow import FlowRun, FlowStatus, StepState
from storage.records.freeze import Freeze, Strength
from storage.records.job import Job, JobType
from storage.records.state import Run, RunsLine, StateLine
from storage.records.times import nanoseconds

RECENT = 10  # child jobs that determine the state of a periodic or parameterized job
STRIP = 50  # child jobs in a history strip
_LOOKED_AT = 20  # restarted allocations of a job that are examined
_OF_RUN: dict[str, State] = {
    FlowStatus.SUCCEEDED: State.COMPLETE,
    FlowStatus.FAILED: State.FAILED,
    FlowStatus.CANCELED: State.STOPPED,
}
_RESTARTS = frozenset({RESTARTING, "Restart Signaled"})


def state_of(db: ReadSnapshot, namespace: str, job_id: str, now: int) -> JobState | None:
    """Return the state of a job, or None if it does not exist; `now` is in nanoseconds."""
    facts = facts_of(db, namespace, job_id, now)
    return job_state(facts) if facts else None


def facts_of(db: ReadSnapshot, namespace: str, job_id: str, now: int) -> JobFacts | None:
    """Return the facts from which a job's state is derived, or None if it does not exist."""
    row = job_status.load_summary(db, namespace, job_id)
    return of_row(db, row, now) if row else None


def of_row(
    db: ReadSnapshot,
    row: job_status.Row,
    now: int,
    job: Job | None = None,
    latest: Deployment | UnsetType | None = UNSET,
) -> JobFacts:
    """Return the facts from which a job's state is derived, given its database row.

    A caller that has already read the job or its newest deployment passes it as `job` or `latest`.
    """
    if row["launches_children"]:
        return _of_parent(db, row, now)
    namespace, job_id, version = row["namespace"], row["id"], row["version"]
    run = _run(db, row) if row["type"] == JobType.BATCH else None
    waits = _waits(db, row, run) if run is not None else ""
    current, older = _tallies(db, row, run.version if run and waits else version, now)
    failed = current.failing or older.failing or current.failed or current.pending
    waiting = evaluations.unfinished(db, namespace, job_id)
    if isinstance(latest, UnsetType):
        latest = deployments.latest(db, namespace, job_id)
    return JobFacts(
        type=row["type"],
        status=row["status"],
        version=version,
        is_stopped=bool(row["stop"]),
        is_held=bool(row["held"]),
        wanted=_desired_allocations(db, row, job) if row["type"] == JobType.SERVICE else None,
        current=current,
        older=older,
        ending=tallies.ending(db, namespace, job_id) if row["stop"] else 0,
        rollout=_rollout(latest),
        unhealthy=_unhealthy(db, latest) if latest is not None else "",
        blocked=_blocked(db, row, waiting, has_any=bool(current.alive or older.alive)),
        error=_error(db, row, run) if failed else "",
        run=run,
        held=_held(db, row, run, waits) if run is not None and not current.alive else "",
        waits=waits,
        freeze=_freeze(db, row) if row["type"] == JobType.BATCH else "",
    )


def _error(db: ReadSnapshot, row: job_status.Row, run: FlowRun | None) -> str:
    """Return the newest error of a job as text.

    For a workflow, the text begins with the name of the failed step. The name is omitted if the
    run has no reason yet, or if its reason is only that this step failed.
    """
    error = newest_error(db, row["namespace"], row["id"])
    if error is None or run is None or run.reason in ("", f"step {error.task_group} failed"):
        return sentence(error)
    return f"step {error.task_group}: {sentence(error)}"


def _run(db: ReadSnapshot, row: job_status.Row) -> FlowRun | None:
    """Return the run of the current version, or an older run that has not ended; otherwise None."""
    run = runs_of.newest(db, row["namespace"], row["id"])
    is_over = run is not None and run.version != row["version"] and run.status.has_ended
    return None if is_over else run


def _waits(db: ReadSnapshot, row: job_status.Row, run: FlowRun) -> str:
    """Return why the current version has no run yet, if it waits for the end of an earlier run."""
    if run.version == row["version"]:
        return ""
    from daemon.jobs.run_updates import (
        version_of_run,
        waits,
    )  # imported late: few runs are replaced

    job = jobs.current(db, row["namespace"], row["id"])
    is_waiting = job is not None and version_of_run(db, job, run) is not None
    return waits(job, run) if job is not None and is_waiting else ""


def _held(db: ReadSnapshot, row: job_status.Row, run: FlowRun, waits: str) -> str:
    """Return why no task of a run is active: the reason of the first step that is held or open.

    `waits` is the reason why the current version has no run yet.
    """
    if run.status.has_ended:
        return ""
    if run.version != row["version"] and not waits:
        return f"run {run.number} of version {run.version} is still stopping"
    steps = runs_of.steps(db, run)
    waiting = next((step for step in steps if step.state == StepState.HELD and step.reason), None)
    if waiting is None and any(step.state == StepState.OPEN for step in steps):
        from daemon.evals.run_views import of_run  # imported late: few jobs are workflows

        # Only a view has the reasons of open steps. It takes long to create for a large workflow.
        opened = (step for step in of_run(db, run).steps if step.state == StepState.OPEN)
        waiting = next((step for step in opened if step.reason), None)
    return f"step {waiting.name} is {waiting.state}: {waiting.reason}" if waiting else ""


def _freeze(db: ReadSnapshot, row: job_status.Row) -> str:
    """Return the ID of the freeze that holds the runs of a job, or an empty string."""
    holder = freezes.holder(db, (row["namespace"], row["id"]))
    freeze = freezes.find(db, holder) if holder else None
    return held_by(freeze) if freeze is not None else ""


def freeze_of_slots(db: ReadSnapshot, job: Job) -> Freeze | None:
    """Return the freeze that delays the due slots of a periodic job, or None."""
    due = periodic.of_job(db, job.namespace, job.id)
    if due is None or due.launch != periodic.NEVER:
        return None
    for freeze in freezes.not_ended(db, job.namespace):
        if freeze.strength != Strength.CHANGES and freeze.covers(job.id, "", queue_of(job)):
            return freeze
    return None


def freeze_of_launch(db: ReadSnapshot, job: Job, launch: int) -> Freeze | None:
    """Return a freeze that will hold the next launch of a periodic job, or None."""
    return freezes.covering(db, (job.namespace, job.id), "", queue_of(job), time=launch)


def _desired_allocations(db: ReadSnapshot, row: job_status.Row, job: Job | None) -> int:
    job = job or jobs.current(db, row["namespace"], row["id"])
    return sum(group.count for group in (job.task_groups if job else None) or ())


def _tallies(db: ReadSnapshot, row: job_status.Row, version: int, now: int) -> tuple[Tally, Tally]:
    """Return the allocation counts of a version, and those of all other versions."""
    if not job_status.has_allocations(row):
        return Tally(), Tally()
    key = row["namespace"], row["id"], version
    counts: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}
    for desired_count in tallies.desired_counts(db, *key):
        failed = desired_count.client_status in (ClientStatus.FAILED, ClientStatus.LOST)
        counts[desired_count.is_current]["failed" if failed else desired_count.client_status] += (
            desired_count.number
        )
        counts[desired_count.is_current]["retried"] += (
            desired_count.number if failed and desired_count.is_retried else 0
        )
    if any(numbers[ClientStatus.COMPLETE] for numbers in counts.values()):
        for is_current, number in tallies.overtime(db, *key).items():
            counts[is_current][ClientStatus.COMPLETE] -= number
            counts[is_current]["failed"] += number
    for restarted in tallies.restarted(db, *key, most=_LOOKED_AT):
        if _is_failing(db, restarted, now):
            counts[restarted.is_current]["failing"] += 1
            runs = restarted.client_status == ClientStatus.RUNNING
            counts[restarted.is_current]["unsettled"] += runs
    return Tally(**counts[True]), Tally(**counts[False])


def _is_failing(db: ReadSnapshot, restarted: tallies.Restarted, now: int) -> bool:
    """Return whether a task waits for a restart after a failure, or was restarted recently."""
    for name, task in (restarted.client.task_states or {}).items():
        if task.state == TaskPhase.DEAD or not task.restarts:
            continue
        restarted_at = nanoseconds(task.last_restart) if task.last_restart else 0
        if task.state == TaskPhase.RUNNING and now - restarted_at >= SETTLED_AFTER:
            continue
        events = allocations.newest_events(db, restarted.id, name)
        newest = next((event for event in reversed(events) if event.type in _RESTARTS), None)
        if newest is not None and newest.type == RESTARTING and not is_on_request(newest):
            return True
    return False


def _unhealthy(db: ReadSnapshot, latest: Deployment) -> str:
    """Return why an allocation of an active or failed deployment is unhealthy.

    The result is empty if no allocation is unhealthy.
    """
    is_bad = latest.active or latest.status == DeploymentStatus.FAILED
    return unhealthy_reason_of_deployment(db, latest) if is_bad else ""


def _rollout(latest: Deployment | None) -> DeploymentFacts | None:
    if latest is None:
        return None
    groups = latest.task_groups.values()
    return DeploymentFacts(
        version=latest.job_version,
        status=latest.status,
        description=latest.status_description,
        is_active=latest.active,
        healthy=sum(group.healthy_allocs for group in groups),
        unhealthy=sum(group.unhealthy_allocs for group in groups),
        wanted=sum(group.desired_total for group in groups),
    )


def _blocked(
    db: ReadSnapshot, row: job_status.Row, waiting: list[Evaluation], *, has_any: bool
) -> str:
    """Return why allocations are unplaced, according to the last decision of the scheduler.

    The result is empty if all are placed or about to be placed. `waiting` are the unfinished
    evaluations; `has_any` means that the job has allocations.
    """
    blocked = [evaluation for evaluation in waiting if evaluation.status == EvalStatus.BLOCKED]
    if blocked:
        return "; ".join(placement_message.describe_failures(blocked[-1]))
    if waiting or has_any:
        return ""
    newest = evaluations.latest(db, row["namespace"], row["id"])
    if newest is None:
        return ""
    if newest.status == EvalStatus.FAILED:
        return newest.status_description or "the scheduler failed repeatedly"
    return "; ".join(placement_message.describe_failures(newest))


# --- periodic and parameterized jobs ---


def _of_parent(db: ReadSnapshot, row: job_status.Row, now: int) -> JobFacts:
    due = periodic.of_job(db, row["namespace"], row["id"])
    job = jobs.current(db, row["namespace"], row["id"])
    freeze = freeze_of_slots(db, job) if job is not None else None
    return JobFacts(
        freeze=held_by(freeze) if freeze is not None else "",
        type=row["type"],
        status=row["status"],
        version=row["version"],
        is_stopped=bool(row["stop"]),
        is_paused=due is not None and due.paused,
        is_off=job is not None and job.periodic is not None and due is None,
        runs=_runs(db, row, due, now),
    )


def _runs(
    db: ReadSnapshot, row: job_status.Row, due_launch: periodic.DueLaunch | None, now: int
) -> Runs:
    ended = tallies.results(db, row["namespace"], row["id"], RECENT)
    # A stopped child job says nothing about its parent.
    judged = [ended_child for ended_child in ended if ended_as(ended_child) != State.STOPPED]
    slot = due_launch.launch if due_launch else None
    common = Runs(
        recent=tuple(map(ended_as, judged)),
        active=row["children_pending"] + row["children_running"],
        kept=row["children_pending"] + row["children_running"] + row["children_dead"],
        next_slot=slot if slot not in (None, periodic.NEVER) else 0,
    )
    child = tallies.child(db, row["namespace"], judged[0].id) if judged else None
    if child is None:
        return common
    state = job_state(of_row(db, child, now))
    began, ended_at = tallies.times(db, child["namespace"], child["id"])
    return msgspec.structs.replace(
        common,
        last=state.word,
        last_id=child["id"],
        last_reason=state.reason,
        last_ended=ended_at,
        last_duration=ended_at - began,
    )


def runs(db: ReadSnapshot, namespace: str, job_id: str, now: int, most: int) -> Iterator[Run]:
    """Yield up to `most` child jobs of a periodic or parameterized job, newest first."""
    slots = {
        slot.child_id: slot.slot for slot in periodic.slots(db, namespace, job_id) if slot.child_id
    }
    for row in tallies.newest_children(db, namespace, job_id, most):
        yield run_of(db, row, slots.get(row["id"], 0), now)


def run_of(db: ReadSnapshot, row: job_status.Row, slot: int, now: int) -> Run:
    """Return a child job as a run; `slot` is the slot that launched it, or 0."""
    state = job_state(of_row(db, row, now))
    began, changed = tallies.times(db, row["namespace"], row["id"])
    error = None
    if state.word in (State.FAILED, State.FAILING):
        error = newest_error(db, row["namespace"], row["id"])
    has_ended = state.word in (State.COMPLETE, State.FAILED, State.STOPPED)
    job = jobs.current(db, row["namespace"], row["id"])
    return Run(
        id=row["id"],
        namespace=row["namespace"],
        result=state.word,
        reason=state.reason,
        exit_code=_exit_code(state.word, error) if has_ended else None,
        submitted=job.submit_time if job else 0,
        started=began,
        ended=changed if has_ended else 0,
        duration=changed - began if has_ended else 0,
        slot=slot,
        meta=_dispatch_meta(job),
        payload_size=_payload_size(job.payload or "") if job else 0,
        error=error,
    )


def _exit_code(result: State, error: TaskError | None) -> int | None:
    """Return the exit code of an ended run.

    Return None if the run was stopped, or if it failed without an error of a task.
    """
    if result == State.STOPPED:
        return None
    if error is not None:
        return error.exit_code
    return None if result == State.FAILED else 0


def _payload_size(payload: str) -> int:
    """Return the number of bytes in a payload, which is in base64."""
    return len(payload) * 3 // 4 - payload[-2:].count("=")


def _dispatch_meta(job: Job | None) -> dict[str, str]:
    """Return the part of a child job's metadata that its dispatch can set."""
    block = job.parameterized_job if job else None
    if job is None or block is None:
        return {}
    names = {*(block.meta_required or ()), *(block.meta_optional or ())}
    return {name: value for name, value in (job.meta or {}).items() if name in names}


def strip(db: ReadSnapshot, namespace: str, job_id: str) -> list[State]:
    """Return the states of the latest ended child jobs, newest first, including stopped jobs."""
    return [ended_as(result) for result in tallies.results(db, namespace, job_id, STRIP)]


def ended_as(child_result: tallies.ChildResult) -> State:
    """Return the state of an ended child."""
    if child_result.is_stopped:
        return State.STOPPED
    if (of_run := _OF_RUN.get(child_result.run_status)) is not None:
        return of_run
    if child_result.is_failed:
        return State.FAILING if child_result.is_retried else State.FAILED
    return State.BLOCKED if child_result.is_unplaced else State.COMPLETE


def line(db: ReadSnapshot, namespace: str, job_id: str, now: int) -> StateLine | None:
    """Return the state of a job in API form, or None if it does not exist."""
    row = job_status.load_summary(db, namespace, job_id)
    return line_of_row(db, row, of_row(db, row, now)) if row else None


def line_of_row(
    db: ReadSnapshot, row: job_status.Row, facts: JobFacts, *, with_strip: bool = False
) -> StateLine:
    """Return a job's state in API form, given its database row and its facts.

    `with_strip` adds the results of the job's latest children.
    """
    state = job_state(facts)
    runs = None
    if facts.runs is not None:
        run = facts.runs
        runs = RunsLine(
            last_result=run.last or "",
            last_run_id=run.last_id,
            last_reason=run.last_reason,
            last_ended=run.last_ended,
            last_duration=run.last_duration,
            recent=list(run.recent),
            active=run.active,
            kept=run.kept,
            next_launch=run.next_slot,
            strip=[*strip(db, row["namespace"], row["id"])] if with_strip else UNSET,
        )
    return StateLine(state=state.word, reason=state.reason, runs=runs)
