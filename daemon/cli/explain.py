"""`job explain`: why what a job lacks is not running."""

import click

from daemon.cli import resolve
from daemon.cli.client import Client, segment
from daemon.cli.options import connected, shown
from daemon.cli.output import Screen
from daemon.wording import several
from storage.records.explanation import Explanation


@click.command()
@click.argument("job_id", metavar="JOB")
@shown
@connected
def explain(client: Client, screen: Screen, job_id: str) -> None:
    """Say in one sentence each why what JOB lacks is not running.

    Example: steward job explain web
    """
    line = resolve.job(client, job_id)
    answer = client.read(f"/v1/job/{segment(line.id)}/explain", namespace=line.namespace)
    if screen.wants_document:
        screen.document(answer.body)
        return
    found = answer.decode(Explanation)
    running = several(found.running, "allocation")
    screen.line(f'job "{line.id}" is {found.status}, {running} of it running')
    if not found.reasons:
        screen.line("Nothing is missing")
    for reason in found.reasons:
        group = f'group "{reason.task_group}": ' if reason.task_group else ""
        screen.line(f"- {group}{reason.message}")
