"""`job status`: all jobs, or one with its groups, what the scheduler says of it, its allocations."""

import time
from collections.abc import Sequence

import click

from daemon import wording
from daemon.cli import resolve
from daemon.cli.answers import AllocationLine, Counts, JobLine
from daemon.cli.client import Client, segment
from daemon.cli.options import connected, shown
from daemon.cli.output import Screen
from daemon.cli.text import ago, moment
from storage.records.evaluation import EvalStatus, Evaluation
from storage.records.job import Job, JobStatus


@click.command()
@click.argument("job_id", metavar="[JOB]", required=False)
@click.option("--short", "brief", is_flag=True, help="Only the overview.")
@click.option("--evals", is_flag=True, help="Show all its evaluations, too.")
@click.option("--all-allocs", is_flag=True, help="Also those of a purged job of the same name.")
@shown
@connected
def status(
    client: Client,
    screen: Screen,
    job_id: str | None,
    *,
    brief: bool,
    evals: bool,
    all_allocs: bool,
) -> None:
    """List the jobs, or show JOB; the beginning of its name is enough.

    Example: steward job status web
    """
    if job_id is None:
        list_jobs(client, screen)
        return
    line = resolve.job(client, job_id)
    answer = client.read(f"/v1/job/{segment(line.id)}", namespace=line.namespace)
    if screen.wants_document:
        screen.document(answer.body)
        return
    show_overview(screen, answer.decode(Job), line)
    if brief:
        return
    show_counts(screen, line)
    if line.periodic or line.parameterized_job:
        _show_children(client, screen, line)
        return
    _show_evaluations(client, screen, line, every=evals)
    path = f"/v1/job/{segment(line.id)}/allocations"
    more = {"all": True} if all_allocs else {}
    allocations = client.fetch(path, list[AllocationLine], namespace=line.namespace, **more)
    show_allocations(screen, allocations)
    if allocations:
        screen.hint(f"See what it prints with: steward logs -f -job {line.id}")


@click.command()
@click.argument("job_id", metavar="JOB")
@click.option("--all", "every", is_flag=True, help="Also those of a purged job of the same name.")
@shown
@connected
def allocs(client: Client, screen: Screen, job_id: str, *, every: bool) -> None:
    """List the allocations of JOB, newest first.

    Example: steward job allocs web
    """
    line = resolve.job(client, job_id)
    more = {"all": True} if every else {}
    path = f"/v1/job/{segment(line.id)}/allocations"
    answer = client.read(path, namespace=line.namespace, **more)
    if screen.wants_document:
        screen.document(answer.body)
        return
    show_allocations(screen, answer.decode(list[AllocationLine]))


def list_jobs(client: Client, screen: Screen) -> None:
    """Print all jobs of a namespace."""
    answer = client.read("/v1/jobs")
    if screen.wants_document:
        screen.document(answer.body)
        return
    lines = answer.decode(list[JobLine])
    if not lines:
        screen.line("No jobs")
        screen.hint("Submit one with: steward job run FILE")
        return
    show_jobs(screen, lines, with_namespace=client.namespace == "*")


def show_jobs(screen: Screen, lines: Sequence[JobLine], *, with_namespace: bool = False) -> None:
    """Print a table of jobs."""
    header = ["ID", "Type", "Priority", "Status", "Submit Date"]
    rows = [
        [line.id, _kind(line), str(line.priority), status_words(line), moment(line.submit_time)]
        for line in lines
    ]
    if with_namespace:
        header.insert(1, "Namespace")
        for row, line in zip(rows, lines, strict=True):
            row.insert(1, line.namespace)
    screen.table(header, rows)


def _kind(line: JobLine) -> str:
    if line.periodic:
        return f"{line.type}/periodic"
    return f"{line.type}/parameterized" if line.parameterized_job else line.type


def status_words(line: JobLine) -> str:
    """Return the status of a job; of one that is dead also how it came to that."""
    if line.status != JobStatus.DEAD:
        return line.status
    if line.stop:
        return "dead (stopped)"
    groups = line.job_summary.summary.values()
    failed = sum(group.failed + group.lost for group in groups)
    if not failed:
        return "dead (succeeded)" if any(group.complete for group in groups) else "dead"
    succeeded = sum(group.complete for group in groups)
    return f"dead ({failed} failed, {succeeded} succeeded)" if succeeded else "dead (failed)"


def show_overview(screen: Screen, job: Job, line: JobLine) -> None:
    """Print what a job is."""
    screen.facts(
        [
            ("ID", job.id),
            ("Name", job.name),
            ("Submit Date", moment(job.submit_time)),
            ("Type", job.type),
            ("Priority", str(job.priority)),
            ("Datacenters", ",".join(job.datacenters or [])),
            ("Namespace", job.namespace),
            ("Node Pool", job.node_pool),
            ("Status", status_words(line)),
            ("Version", str(job.version)),
            ("Periodic", str(line.periodic).lower()),
            ("Parameterized", str(line.parameterized_job).lower()),
        ]
    )


def show_counts(screen: Screen, line: JobLine) -> None:
    """Print how many allocations of each group, or how many children, are in which status."""
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


def _show_child_counts(screen: Screen, counts: Counts) -> None:
    children = counts.children
    if children is None:
        return
    screen.title("Children Job Summary")
    screen.table(
        ["Pending", "Running", "Dead"],
        [[str(children.pending), str(children.running), str(children.dead)]],
    )


def _show_children(client: Client, screen: Screen, line: JobLine) -> None:
    lines = client.fetch("/v1/jobs", list[JobLine], prefix=f"{line.id}/", namespace=line.namespace)
    children = [child for child in lines if child.parent_id == line.id]
    screen.title("Previously Launched Jobs")
    if not children:
        screen.line("None yet")
        return
    screen.table(["ID", "Status"], [[child.id, status_words(child)] for child in children])


def _show_evaluations(client: Client, screen: Screen, line: JobLine, *, every: bool) -> None:
    path = f"/v1/job/{segment(line.id)}/evaluations"
    found = client.fetch(path, list[Evaluation], namespace=line.namespace)
    found.sort(key=lambda evaluation: evaluation.create_index, reverse=True)
    if every and found:
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
                for evaluation in found
            ],
        )
    if reasons := why_waiting(found):
        screen.title("Placement")
        for reason in reasons:
            screen.line(reason)


def why_waiting(newest_first: Sequence[Evaluation]) -> list[str]:
    """Return why something of a job is not placed, in a sentence for each group."""
    blocked = [one for one in newest_first if one.status == EvalStatus.BLOCKED]
    if blocked:
        return wording.sentences(blocked[0])
    newest = newest_first[0] if newest_first else None
    if newest is None or newest.status == EvalStatus.COMPLETE:
        return wording.sentences(newest) if newest else []
    about = f"evaluation {newest.id[:8]} is {newest.status}"
    if newest.wait_until:
        about = f"{about} until {newest.wait_until}"
    return [f"{about}: {newest.status_description}".removesuffix(": ")]


def show_allocations(screen: Screen, allocations: Sequence[AllocationLine]) -> None:
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
                line.client_status,
                ago(line.create_time, now),
                ago(line.modify_time, now),
            ]
            for line in newest_first
        ],
    )
