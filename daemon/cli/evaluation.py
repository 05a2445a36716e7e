"""`eval list` and `eval status`: what the scheduler was asked to look at, and what it found."""

from collections.abc import Iterable

import click

from daemon import wording
from daemon.cli import resolve
from daemon.cli.answers import AllocationLine
from daemon.cli.client import Client, segment
from daemon.cli.follow import finished
from daemon.cli.options import connected, shown
from daemon.cli.output import Screen
from daemon.cli.status import show_allocations
from daemon.cli.text import moment
from storage.records.evaluation import Evaluation


@click.command("list")
@click.option("--job", "job_id", default="", metavar="JOB", help="Only of this job.")
@click.option("--status", default="", help="Only those that stand there, such as blocked.")
@click.option("--filter", "expression", default="", help="An expression over evaluations.")
@shown
@connected
def index(client: Client, screen: Screen, *, job_id: str, status: str, expression: str) -> None:
    """List the evaluations, newest last.

    Example: steward eval list -job web -status blocked
    """
    answer = client.read("/v1/evaluations", job=job_id, status=status, filter=expression)
    if screen.wants_document:
        screen.document(answer.body)
        return
    show_evaluations(screen, answer.decode(list[Evaluation]))


def show_evaluations(screen: Screen, found: Iterable[Evaluation]) -> None:
    """Print evaluations as a table."""
    rows = [
        [
            screen.short(one.id),
            str(one.priority),
            one.triggered_by,
            one.job_id,
            one.namespace,
            one.status,
            str(bool(one.failed_tg_allocs)).lower(),
        ]
        for one in found
    ]
    if not rows:
        screen.line("No evaluations")
        return
    header = [
        "ID",
        "Priority",
        "Triggered By",
        "Job ID",
        "Namespace",
        "Status",
        "Placement Failures",
    ]
    screen.table(header, rows)


@click.command("status")
@click.argument("eval_id", metavar="EVALUATION")
@click.option("--monitor", is_flag=True, help="Follow it until it has been decided.")
@shown
@connected
def status(client: Client, screen: Screen, eval_id: str, *, monitor: bool) -> None:
    """Show EVALUATION; the beginning of its identifier is enough.

    Example: steward eval status -monitor 91c7d2ee
    """
    found = resolve.evaluation(client, eval_id)
    path = f"/v1/evaluation/{segment(found.id)}"
    if monitor:
        with screen.progress() as progress:
            found = finished(client, progress, found.id)
    if screen.wants_document:
        screen.document(client.read(path).body)
        return
    screen.facts(
        [
            ("ID", found.id),
            ("Job ID", found.job_id),
            ("Namespace", found.namespace),
            ("Created", moment(found.create_time)),
            ("Modified", moment(found.modify_time)),
            ("Type", found.type),
            ("Priority", str(found.priority)),
            ("Triggered By", found.triggered_by),
            ("Status", found.status),
            ("Status Description", found.status_description),
            ("Deployment ID", screen.short(found.deployment_id)),
            ("Blocked Evaluation", screen.short(found.blocked_eval)),
            ("Next Evaluation", screen.short(found.next_eval)),
        ]
    )
    for sentence in wording.sentences(found):
        screen.line(sentence)
    show_allocations(screen, client.fetch(f"{path}/allocations", list[AllocationLine]))
