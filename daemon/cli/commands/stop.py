"""`job stop`: stop jobs and wait until their tasks have ended."""

import sys

import click

from daemon.cli.commands.run import EXIT_INTERRUPTED
from daemon.cli.core import resolve
from daemon.cli.core.follow import follow_stop
from daemon.cli.core.http_client import ApiClient, ClientResponse, segment
from daemon.cli.core.options import Integer, with_client, with_output
from daemon.cli.core.output import Screen
from daemon.cli.core.responses import JobListItem, RegisterResult
from storage.errors import Invalid


@click.command()
@click.argument("job_ids", metavar="JOB...", nargs=-1, required=True)
@click.option("--purge", is_flag=True, help="Delete the job and its history.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--detach", is_flag=True, help="Do not wait for the tasks to end.")
@click.option(
    "--eval-priority", type=Integer(1, 100), metavar="N", help="Priority of the evaluation, 1-100."
)
@click.option("--no-shutdown-delay", is_flag=True, help="Do not wait before stopping the tasks.")
@with_output
@with_client
def stop(
    client: ApiClient,
    screen: Screen,
    job_ids: tuple[str, ...],
    *,
    purge: bool,
    yes: bool,
    detach: bool,
    eval_priority: int | None,
    no_shutdown_delay: bool,
) -> int:
    """Stop jobs; a unique prefix of an ID is enough, but needs a confirmation.

    Example: steward job stop -purge web
    """
    lines = [_selected_job(client, job_id, yes=yes) for job_id in job_ids]
    options = {"purge": purge, "no_shutdown_delay": no_shutdown_delay}
    statuses = []
    for line in lines:
        answer = client.send(
            "DELETE",
            f"/v1/job/{segment(line.id)}",
            namespace=line.namespace,
            eval_priority="" if eval_priority is None else eval_priority,
            **{name: True for name, is_set in options.items() if is_set},
        )
        statuses.append(_follow(client, screen, line, answer, detach=detach))
    return max(statuses)


def _selected_job(client: ApiClient, id_or_prefix: str, *, yes: bool) -> JobListItem:
    """Return the job with this ID or prefix.

    Raises `Invalid` if the user does not confirm a prefix.
    """
    line = resolve.job(client, id_or_prefix)
    if line.id == id_or_prefix or yes:
        return line
    if not sys.stdin.isatty():
        raise Invalid(
            f"{id_or_prefix!r} is a prefix of job {line.id!r}: pass the full name, or -yes"
        )
    if not click.confirm(f'Stop job "{line.id}"?'):
        raise Invalid(f"job {line.id!r} was not stopped")
    return line


def _follow(
    client: ApiClient, screen: Screen, line: JobListItem, answer: ClientResponse, *, detach: bool
) -> int:
    eval_id = answer.decode(RegisterResult).eval_id
    if screen.wants_document:
        screen.document(answer.body)
    if detach or not eval_id:
        if not screen.wants_document:
            screen.line(f'job "{line.id}" is stopped; evaluation {eval_id or "not needed"}')
        return 0
    try:
        with screen.progress() as progress:
            ending = follow_stop(client, progress, eval_id)
    except KeyboardInterrupt:
        screen.warn(f'\nno longer waiting; job "{line.id}" is still stopping')
        return EXIT_INTERRUPTED
    if not screen.wants_document:
        screen.line(f'job "{line.id}" is stopped: {ending.words}')
    return ending.status
