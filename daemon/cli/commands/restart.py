"""`job start` and `job restart`: start a stopped job, or restart its tasks in batches."""

import re
import sys
import time
from collections.abc import Iterator, Sequence

import click

from daemon.cli.commands.job_actions import DETACH, followed
from daemon.cli.core import formatting, resolve
from daemon.cli.core.follow import follow_run
from daemon.cli.core.http_client import ApiClient, RequestRejected, segment
from daemon.cli.core.options import with_client, with_output
from daemon.cli.core.output import Screen
from daemon.cli.core.responses import AllocationItem, JobListItem, RegisterResult
from storage.errors import Invalid, NotFound, Refused
from storage.records.allocation import ClientStatus

_SIZE = re.compile(r"([1-9][0-9]*)(%?)")
_NOT_FOUND = 404


@click.command()
@click.argument("job_id", metavar="JOB")
@DETACH
@with_output
@with_client
def start(client: ApiClient, screen: Screen, job_id: str, *, detach: bool) -> int:
    """Start a stopped JOB again, with the version that was stopped.

    Example: steward job start web
    """
    line = resolve.job(client, job_id)
    path = f"/v1/job/{segment(line.id)}"
    job = client.fetch(path, dict[str, object], namespace=line.namespace)
    if not job["Stop"]:
        raise Invalid(f'job "{line.id}" is not stopped')
    body: dict[str, object] = {"Job": {**job, "Stop": False}}
    try:
        source = f"{path}/submission"
        body["Submission"] = client.fetch(
            source, dict[str, object], namespace=line.namespace, version=str(job["Version"])
        )
    except RequestRejected as error:
        if error.status != _NOT_FOUND:  # the job was not registered from a file
            raise
    answer = client.send("POST", "/v1/jobs", body, namespace=line.namespace)
    return followed(client, screen, answer, line.id, detach=detach)


@click.command()
@click.argument("job_id", metavar="JOB")
@click.option("--group", "groups", multiple=True, metavar="GROUP", help="Only this group.")
@click.option("--task", "tasks", multiple=True, metavar="TASK", help="Only this task.")
@click.option("--all-tasks", is_flag=True, help="Include ended tasks.")
@click.option(
    "--batch-size", default="1", metavar="N|N%", help="Allocations per batch [default: 1]."
)
@click.option("--batch-wait", default="0s", metavar="TIME|ask", help="Pause between batches.")
@click.option("--reschedule", is_flag=True, help="Replace whole allocations.")
@click.option(
    "--on-error", type=click.Choice(["ask", "fail"]), default="ask", help="Action after an error."
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@with_output
@with_client
def restart(
    client: ApiClient,
    screen: Screen,
    job_id: str,
    *,
    groups: tuple[str, ...],
    tasks: tuple[str, ...],
    all_tasks: bool,
    batch_size: str,
    batch_wait: str,
    reschedule: bool,
    on_error: str,
    yes: bool,
) -> int:
    """Restart the tasks of JOB in batches of allocations; each batch waits for the previous batch.

    Example: steward job restart -batch-size 1 -batch-wait 10s web
    """
    if reschedule and (tasks or all_tasks):
        raise Invalid(
            "-reschedule replaces whole allocations: do not combine it with -task or -all-tasks"
        )
    if tasks and all_tasks:
        raise Invalid("-all-tasks and -task exclude each other: pass only one")
    pause = None if batch_wait == "ask" else formatting.seconds("-batch-wait", batch_wait, "ask")
    line = resolve.job(client, job_id)
    if line.id != job_id and not yes and not _agreed(f'Restart job "{line.id}"?'):
        raise Invalid(f"{job_id!r} is a prefix of job {line.id!r}: pass the full name, or -yes")
    allocs = _running(client, line, groups)
    failures = 0
    for number, batch in enumerate(_batches(allocs, batch_size)):
        if number and not _may_continue(pause, yes=yes):
            break
        for alloc in batch:
            try:
                _restart(client, screen, alloc, tasks, all_tasks=all_tasks, reschedule=reschedule)
            except (RequestRejected, Refused) as error:
                screen.warn(f"allocation {screen.short(alloc.id)} ({alloc.name}): {error}")
                failures += 1
                if on_error == "fail" or not (yes or _agreed("Continue?")):
                    return 1
    screen.report(
        f'job "{line.id}": {len(allocs) - failures} of {len(allocs)} allocations restarted'
    )
    return 1 if failures else 0


def _running(client: ApiClient, line: JobListItem, groups: Sequence[str]) -> list[AllocationItem]:
    path = f"/v1/job/{segment(line.id)}/allocations"
    lines = client.fetch(path, list[AllocationItem], namespace=line.namespace)
    running = [line for line in lines if line.client_status == ClientStatus.RUNNING]
    if unknown := set(groups) - {line.task_group for line in running}:
        raise NotFound(f'job "{line.id}" has no running allocation of group {", ".join(unknown)}')
    if not running:
        raise NotFound(f'job "{line.id}" has no running allocation')
    chosen = [line for line in running if not groups or line.task_group in groups]
    return sorted(chosen, key=lambda line: line.name)


def _batches(allocs: list[AllocationItem], size: str) -> Iterator[list[AllocationItem]]:
    match = _SIZE.fullmatch(size)
    if match is None:
        raise Invalid(f"-batch-size {size!r} is neither a number above 0 nor a percentage")
    number = int(match[1])
    if match[2]:
        number = max(1, len(allocs) * number // 100)
    for first in range(0, len(allocs), number):
        yield allocs[first : first + number]


def _restart(
    client: ApiClient,
    screen: Screen,
    alloc: AllocationItem,
    tasks: Sequence[str],
    *,
    all_tasks: bool,
    reschedule: bool,
) -> None:
    if reschedule:
        answer = client.send("POST", f"/v1/allocation/{segment(alloc.id)}/stop")
        with screen.progress() as progress:
            ending = follow_run(client, progress, answer.decode(RegisterResult).eval_id)
        if ending.status:
            raise Refused(ending.words)
    for name in () if reschedule else tasks or ("",):
        body = {"TaskName": name, "AllTasks": all_tasks}
        client.act("PUT", f"/v1/client/allocation/{segment(alloc.id)}/restart", body)
    if not screen.wants_document:
        screen.line(f"allocation {screen.short(alloc.id)} ({alloc.name}): restarted")


def _may_continue(pause: float | None, *, yes: bool) -> bool:
    """Wait before the next batch; return whether to continue."""
    if pause is None:
        return yes or _agreed("Continue?")
    time.sleep(pause)
    return True


def _agreed(question: str) -> bool:
    return sys.stdin.isatty() and click.confirm(question)
