"""`job stop`: stop jobs and follow them until their tasks have ended."""

import sys

import click

from daemon.cli import resolve
from daemon.cli.answers import JobLine, Registered
from daemon.cli.client import Answer, Client, segment
from daemon.cli.follow import follow_stop
from daemon.cli.options import connected, shown
from daemon.cli.output import Screen
from daemon.cli.run import EXIT_INTERRUPTED
from storage.errors import Invalid


@click.command()
@click.argument("job_ids", metavar="JOB...", nargs=-1, required=True)
@click.option("--purge", is_flag=True, help="Forget the job and its history.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--detach", is_flag=True, help="Do not wait for the tasks to end.")
@click.option("--eval-priority", type=int, metavar="N", help="Priority of the evaluation, 1-100.")
@click.option("--no-shutdown-delay", is_flag=True, help="Do not wait before stopping the tasks.")
@shown
@connected
def stop(
    client: Client,
    screen: Screen,
    job_ids: tuple[str, ...],
    *,
    purge: bool,
    yes: bool,
    detach: bool,
    eval_priority: int | None,
    no_shutdown_delay: bool,
) -> int:
    """Stop jobs; the beginning of an identifier is enough, but is asked about.

    Example: steward job stop -purge web
    """
    lines = [_meant(client, given, yes=yes) for given in job_ids]
    options = {"purge": purge, "no_shutdown_delay": no_shutdown_delay}
    statuses = []
    for line in lines:
        answer = client.send(
            "DELETE",
            f"/v1/job/{segment(line.id)}",
            namespace=line.namespace,
            eval_priority="" if eval_priority is None else eval_priority,
            **{name: True for name, wanted in options.items() if wanted},
        )
        statuses.append(_follow(client, screen, line, answer, detach=detach))
    return max(statuses)


def _meant(client: Client, given: str, *, yes: bool) -> JobLine:
    """Return the job that is meant. Raises `Invalid` when a guess may not be made."""
    line = resolve.job(client, given)
    if line.id == given or yes:
        return line
    if not sys.stdin.isatty():
        raise Invalid(f"{given!r} begins job {line.id!r}: give the whole name, or -yes")
    if not click.confirm(f'Stop job "{line.id}"?'):
        raise Invalid(f"job {line.id!r} is not stopped")
    return line


def _follow(client: Client, screen: Screen, line: JobLine, answer: Answer, *, detach: bool) -> int:
    eval_id = answer.decode(Registered).eval_id
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
        screen.warn(f'\nno longer following; job "{line.id}" goes on stopping')
        return EXIT_INTERRUPTED
    if not screen.wants_document:
        screen.line(f'job "{line.id}" is stopped: {ending.words}')
    return ending.status
