"""`job status`: all jobs, or one job with its groups, placement failures and allocations."""

import time
from collections.abc import Sequence

import click

from daemon.cli.commands.triggers import show_links
from daemon.cli.core import resolve
from daemon.cli.core.follow import error_of
from daemon.cli.core.formatting import format_api_time, format_duration, format_time, relative_time
from daemon.cli.core.http_client import ApiClient, segment
from daemon.cli.core.options import with_client, with_output
from daemon.cli.core.output import Screen
from daemon.cli.core.responses import AllocationItem, JobListItem, JobSummaryCounts
from daemon.text import placement_message, task_failure
from daemon.text.job_state import ENDED, TROUBLE, State
from daemon.text.placement_message import count_noun
from storage.records.allocation import is_overtime
from storage.records.deployment import Deployment, DeploymentGroup
from storage.records.evaluation import EvalStatus, Evaluation
from storage.records.failure import TaskError
from storage.records.job import Job
from storage.records.periodic import PeriodicSchedule
from storage.records.state import Run, StateLine
from storage.records.statuses import JobStatusLine

_RUNS = 5  # past and next children that `job status` shows
_LOOKED_AT = 5  # allocations searched for the latest error


@click.command()
@click.argument("job_id", metavar="[JOB]", required=False)
@click.option("--short", "brief", is_flag=True, help="Only the overview.")
@click.option("--evals", is_flag=True, help="Also show all evaluations.")
@click.option(
    "--all-allocs", is_flag=True, help="Include allocations of a purged job with this name."
)
@click.option("--children", is_flag=True, help="Also list child jobs.")
@with_output
@with_client
def status(
    client: ApiClient,
    screen: Screen,
    job_id: str | None,
    *,
    brief: bool,
    evals: bool,
    all_allocs: bool,
    children: bool,
) -> None:
    """List the jobs, or show JOB; a unique prefix of its name is enough.

    The list begins with active jobs. It leaves out children of periodic and parameterized jobs,
    unless --children is given.

    Example: steward job status web
    """
    if job_id is None:
        list_jobs(client, screen, children=children)
        return
    line = resolve.job(client, job_id)
    answer = client.read(f"/v1/job/{segment(line.id)}", namespace=line.namespace)
    if screen.wants_document:
        screen.document(answer.checked(Job))
        return
    path = f"/v1/job/{segment(line.id)}/state"
    state = client.fetch(path, StateLine, namespace=line.namespace)
    show_overview(screen, answer.decode(Job), line, state)
    if brief:
        return
    show_counts(screen, line)
    show_links(client, screen, line.id, line.namespace)
    if line.periodic or line.parameterized_job:
        _show_runs(client, screen, line, state)
        return
    _show_evaluations(client, screen, line, lists_all=evals)
    _show_deployment(client, screen, line)
    path = f"/v1/job/{segment(line.id)}/allocations"
    more = {"all": True} if all_allocs else {}
    allocations = client.fetch(path, list[AllocationItem], namespace=line.namespace, **more)
    show_allocations(screen, allocations)
    if state.state in TROUBLE:
        show_failure(client, screen, allocations)
    if allocations:
        screen.hint(f"Stream its output: steward logs -f -job {line.id}")


@click.command()
@click.argument("job_id", metavar="JOB")
@click.option(
    "--all", "lists_all", is_flag=True, help="Include allocations of a purged job with this name."
)
@with_output
@with_client
def allocs(client: ApiClient, screen: Screen, job_id: str, *, lists_all: bool) -> None:
    """List the allocations of JOB, newest first.

    Example: steward job allocs web
    """
    line = resolve.job(client, job_id)
    more = {"all": True} if lists_all else {}
    path = f"/v1/job/{segment(line.id)}/allocations"
    answer = client.read(path, namespace=line.namespace, **more)
    if screen.wants_document:
        screen.document(answer.checked(list[AllocationItem]))
        return
    show_allocations(screen, answer.decode(list[AllocationItem]))


def list_jobs(client: ApiClient, screen: Screen, *, children: bool = False) -> None:
    """Print all jobs of a namespace, active jobs first."""
    if screen.wants_document:
        screen.document(client.read("/v1/jobs").body)
        return
    lines = client.fetch(
        "/v1/jobs/statuses",
        list[JobStatusLine],
        states=True,
        counts=True,
        include_children=children,
    )
    if not lines:
        screen.line("No jobs")
        screen.hint("Submit one with: steward job run FILE")
        return
    show_jobs(screen, lines, with_namespace=client.namespace == "*")


def show_jobs(
    screen: Screen, lines: Sequence[JobStatusLine], *, with_namespace: bool = False
) -> None:
    """Print a table of jobs, active jobs first, then ended jobs."""
    now = time.time_ns()
    header = ["ID", "Type", "Status", "Submitted", "Details"]
    sorted_lines = sorted(
        lines, key=lambda line: (_state_word(line) in ENDED, line.namespace, line.id)
    )
    rows = [
        [
            line.id,
            line.type,
            _state_word(line),
            relative_time(line.submit_time, now),
            _details(line, now),
        ]
        for line in sorted_lines
    ]
    if with_namespace:
        header.insert(1, "Namespace")
        for row, line in zip(rows, sorted_lines, strict=True):
            row.insert(1, line.namespace)
    screen.table(header, rows)


def _state_word(line: JobStatusLine) -> str:
    return line.steward_state.state if line.steward_state else line.status


def _details(line: JobStatusLine, now: int) -> str:
    """Return the reason for a state, and the next launch of a periodic job."""
    state = line.steward_state
    if not state:
        return ""
    runs = state.runs
    launches = runs is not None and bool(runs.next_launch) and state.state != State.PAUSED
    coming = f"next run in {format_duration(runs.next_launch - now)}" if runs and launches else ""
    active = f"{count_noun(runs.active, 'run')} active" if runs and runs.active else ""
    return "; ".join(filter(None, (state.reason, active, coming)))


def show_overview(screen: Screen, job: Job, line: JobListItem, state: StateLine) -> None:
    """Print the properties of a job, its state and the reason."""
    reason = [("Reason", state.reason)] if state.reason else []
    screen.facts(
        [
            ("ID", job.id),
            ("Name", job.name),
            ("Submit Date", format_time(job.submit_time)),
            ("Type", job.type),
            ("Priority", str(job.priority)),
            ("Datacenters", ",".join(job.datacenters or [])),
            ("Namespace", job.namespace),
            ("Node Pool", job.node_pool),
            ("Status", state.state),
            *reason,
            ("Version", str(job.version)),
            ("Periodic", str(line.periodic).lower()),
            ("Parameterized", str(line.parameterized_job).lower()),
        ]
    )


def show_counts(screen: Screen, line: JobListItem) -> None:
    """Print the number of allocations of each group, or of children, by status."""
    counts = line.job_summary
    if line.periodic or line.parameterized_job:
        _show_child_counts(screen, counts)
        return
    if not counts.summary:
        return
    fields = ("queued", "starting", "running", "failed", "complete", "lost", "unknown")
    screen.title("Summary")
    screen.table(
        ["Task Group", *map(str.capitalize, fields)],
        [
            [name, *(str(getattr(group, field)) for field in fields)]
            for name, group in sorted(counts.summary.items())
        ],
    )


def _show_child_counts(screen: Screen, counts: JobSummaryCounts) -> None:
    children = counts.children
    if children is None:
        return
    screen.title("Children Job Summary")
    screen.table(
        ["Pending", "Running", "Dead"],
        [[str(children.pending), str(children.running), str(children.dead)]],
    )


def _show_runs(client: ApiClient, screen: Screen, line: JobListItem, state: StateLine) -> None:
    """Print the latest children of a job with their results, and the next launch."""
    path = f"/v1/job/{segment(line.id)}/runs"
    runs_listed = client.fetch(path, list[Run], namespace=line.namespace, per_page=_RUNS)
    screen.title("Runs")
    if not runs_listed:
        screen.line("No run yet")
    else:
        now = time.time_ns()
        header = ["ID", "Result", "Exit Code", "Started", "Duration", "Details"]
        screen.table(header, [_run_row(run, now) for run in runs_listed])
    runs = state.runs
    if runs and runs.recent:
        failed = sum(run == State.FAILED for run in runs.recent)
        screen.line(f"{failed} of the last {len(runs.recent)} failed; {runs.kept} kept")
    if line.periodic:
        _show_coming(client, screen, line)
    newest_failed = next((run.error for run in runs_listed if run.error), None)
    if newest_failed is not None and state.state in TROUBLE:
        show_error(screen, newest_failed)


def _show_coming(client: ApiClient, screen: Screen, line: JobListItem) -> None:
    """Print the next slots of all cron expressions of a periodic job, in its time zone."""
    path = f"/v1/job/{segment(line.id)}/periodic"
    clock = client.fetch(path, PeriodicSchedule, namespace=line.namespace)
    if clock.paused:
        screen.line(f"Next runs: none, paused; resume with: steward job periodic resume {line.id}")
    elif clock.next_launches:
        coming = ", ".join(map(format_api_time, clock.next_launches[:_RUNS]))
        screen.line(f"Next runs: {coming}")


def _run_row(run: Run, now: int) -> list[str]:
    code = "" if run.exit_code is None else str(run.exit_code)
    lasted = format_duration(run.duration) if run.ended else ""
    started = relative_time(run.started, now) if run.started else ""
    return [run.id, run.result, code, started, lasted, run.reason]


def _show_deployment(client: ApiClient, screen: Screen, line: JobListItem) -> None:
    """Print the latest deployment of a job with its groups."""
    path = f"/v1/job/{segment(line.id)}/deployments"
    deployments = client.fetch(path, list[Deployment], namespace=line.namespace)
    if not deployments:
        return
    newest = deployments[0]
    screen.title("Latest Deployment")
    screen.facts(
        [
            ("ID", screen.short(newest.id)),
            ("Version", str(newest.job_version)),
            ("Status", newest.status),
            ("Description", newest.status_description),
        ]
    )
    header = ["Task Group", "Promoted", "Desired", "Placed", "Healthy", "Unhealthy", "Deadline"]
    screen.table(
        header, [_group_row(*group_entry) for group_entry in sorted(newest.task_groups.items())]
    )


def _group_row(name: str, group: DeploymentGroup) -> list[str]:
    promoted = str(group.promoted).lower() if group.desired_canaries else "N/A"
    counts = (
        group.desired_total,
        group.placed_allocs,
        group.healthy_allocs,
        group.unhealthy_allocs,
    )
    return [name, promoted, *map(str, counts), format_api_time(group.require_progress_by)]


def show_failure(client: ApiClient, screen: Screen, lines: Sequence[AllocationItem]) -> None:
    """Print the latest error among the latest allocations of a job."""
    newest = sorted(lines, key=lambda line: line.modify_index, reverse=True)[:_LOOKED_AT]
    errors = [error for line in newest if (error := error_of(client, line.id)) is not None]
    if errors:
        show_error(screen, max(errors, key=lambda error: error.time))


def show_error(screen: Screen, error: TaskError) -> None:
    """Print an error with the last lines of standard error."""
    screen.title("Last Error")
    screen.line(f"{format_time(error.time)}  {error.summary}")
    for text in task_failure.last_lines(error):
        screen.line(f"    {text}")


def _show_evaluations(
    client: ApiClient, screen: Screen, line: JobListItem, *, lists_all: bool
) -> None:
    path = f"/v1/job/{segment(line.id)}/evaluations"
    evaluations = client.fetch(path, list[Evaluation], namespace=line.namespace)
    evaluations.sort(key=lambda evaluation: evaluation.create_index, reverse=True)
    if lists_all and evaluations:
        screen.title("Evaluations")
        screen.table(
            ["ID", "Priority", "Triggered By", "Status", "Placement Failures"],
            [
                [
                    screen.short(evaluation.id),
                    str(evaluation.priority),
                    evaluation.triggered_by,
                    evaluation.status,
                    str(bool(evaluation.failed_tg_allocs)).lower(),
                ]
                for evaluation in evaluations
            ],
        )
    if reasons := blocked_reasons(evaluations):
        screen.title("Placement")
        for reason in reasons:
            screen.line(reason)


def blocked_reasons(newest_first: Sequence[Evaluation]) -> list[str]:
    """Return a sentence for each group that could not be placed.

    If no evaluation is blocked and the newest evaluation is not complete, return one sentence with
    the status of the newest evaluation.
    """
    blocked = [evaluation for evaluation in newest_first if evaluation.status == EvalStatus.BLOCKED]
    if blocked:
        return placement_message.describe_failures(blocked[0])
    newest = newest_first[0] if newest_first else None
    if newest is None or newest.status == EvalStatus.COMPLETE:
        return placement_message.describe_failures(newest) if newest else []
    subject = f"evaluation {newest.id[:8]} is {newest.status}"
    if newest.wait_until:
        subject = f"{subject} until {newest.wait_until}"
    return [f"{subject}: {newest.status_description}".removesuffix(": ")]


def show_allocations(screen: Screen, allocations: Sequence[AllocationItem]) -> None:
    """Print a table of allocations, newest first."""
    screen.title("Allocations")
    if not allocations:
        screen.line("No allocations placed")
        return
    now = time.time_ns()
    newest_first = sorted(allocations, key=lambda line: line.create_index, reverse=True)
    screen.table(
        ["ID", "Node ID", "Task Group", "Version", "Desired", "Status", "Created", "Modified"],
        [
            [
                screen.short(line.id),
                screen.short(line.node_id),
                line.task_group,
                str(line.job_version),
                line.desired_status,
                line.client_status + _limit_of_time(line),
                relative_time(line.create_time, now),
                relative_time(line.modify_time, now),
            ]
            for line in newest_first
        ],
    )


def _limit_of_time(line: AllocationItem) -> str:
    """Return a remark if an allocation ended at its time limit; empty for any other allocation.

    Nomad's status of such an allocation is `complete`.
    """
    is_late = is_overtime(line.client_status, line.client_description)
    return ", time limit" if is_late else ""
