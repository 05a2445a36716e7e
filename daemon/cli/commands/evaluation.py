"""`eval list` and `eval status`: evaluations and their results."""

from collections.abc import Iterable

import click

from daemon.cli.commands.status import show_allocations, show_failure
from daemon.cli.core import resolve
from daemon.cli.core.follow import finished
from daemon.cli.core.formatting import format_time
from daemon.cli.core.http_client import ApiClient, RequestRejected, segment
from daemon.cli.core.options import with_client, with_output
from daemon.cli.core.output import Screen
from daemon.cli.core.responses import AllocationItem
from daemon.text import placement_message
from storage.records.allocation import ClientStatus
from storage.records.evaluation import EvalStatus, Evaluation
from storage.records.explanation import Cause, Explanation

_TROUBLED = frozenset({ClientStatus.PENDING, ClientStatus.FAILED, ClientStatus.LOST})


@click.command("list")
@click.option("--job", "job_id", default="", metavar="JOB", help="Only evaluations of this job.")
@click.option(
    "--status",
    type=click.Choice([status.value for status in EvalStatus]),
    metavar="STATUS",
    help="Only this status, such as blocked.",
)
@click.option("--filter", "expression", default="", help="Filter expression over evaluations.")
@with_output
@with_client
def index(
    client: ApiClient, screen: Screen, *, job_id: str, status: str | None, expression: str
) -> None:
    """List the evaluations, newest last.

    Example: steward eval list -job web -status blocked
    """
    answer = client.read("/v1/evaluations", job=job_id, status=status or "", filter=expression)
    if screen.wants_document:
        screen.document(answer.checked(list[Evaluation]))
        return
    show_evaluations(screen, answer.decode(list[Evaluation]))


def show_evaluations(screen: Screen, evaluations: Iterable[Evaluation]) -> None:
    """Print evaluations as a table."""
    rows = [
        [
            screen.short(evaluation.id),
            str(evaluation.priority),
            evaluation.triggered_by,
            evaluation.job_id,
            evaluation.namespace,
            evaluation.status,
            str(bool(evaluation.failed_tg_allocs)).lower(),
        ]
        for evaluation in evaluations
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
@click.option("--monitor", is_flag=True, help="Watch the evaluation until it is complete.")
@with_output
@with_client
def status(client: ApiClient, screen: Screen, eval_id: str, *, monitor: bool) -> None:
    """Show EVALUATION; a unique prefix of its ID is enough.

    Example: steward eval status -monitor 91c7d2ee
    """
    evaluation = resolve.evaluation(client, eval_id)
    path = f"/v1/evaluation/{segment(evaluation.id)}"
    if monitor:
        with screen.progress() as progress:
            evaluation = finished(client, progress, evaluation.id)
    if screen.wants_document:
        screen.document(client.read(path).body)
        return
    screen.facts(
        [
            ("ID", evaluation.id),
            ("Job ID", evaluation.job_id),
            ("Namespace", evaluation.namespace),
            ("Created", format_time(evaluation.create_time)),
            ("Modified", format_time(evaluation.modify_time)),
            ("Type", evaluation.type),
            ("Priority", str(evaluation.priority)),
            ("Triggered By", evaluation.triggered_by),
            ("Status", evaluation.status),
            ("Status Description", evaluation.status_description),
            ("Deployment ID", screen.short(evaluation.deployment_id)),
            ("Blocked Evaluation", screen.short(evaluation.blocked_eval)),
            ("Next Evaluation", screen.short(evaluation.next_eval)),
        ]
    )
    for sentence in _unplaced(client, evaluation):
        screen.line(sentence)
    lines = client.fetch(f"{path}/allocations", list[AllocationItem])
    show_allocations(screen, lines)
    show_failure(client, screen, [line for line in lines if line.client_status in _TROUBLED])


def _unplaced(client: ApiClient, evaluation: Evaluation) -> list[str]:
    """Return why groups are not placed.

    For a blocked evaluation, the daemon derives the reasons from the current state of the nodes.
    Any other evaluation contains the reasons itself.
    """
    if evaluation.status != EvalStatus.BLOCKED:
        return placement_message.describe_failures(evaluation)
    path = f"/v1/job/{segment(evaluation.job_id)}/explain"
    try:
        now = client.fetch(path, Explanation, namespace=evaluation.namespace)
    except RequestRejected:  # the job no longer exists
        return placement_message.describe_failures(evaluation)
    groups = evaluation.failed_tg_allocs or {}
    message = [
        f'group "{reason.task_group}": {reason.message}'
        for reason in now.reasons
        if reason.task_group in groups and reason.cause in (Cause.PLACE, Cause.NODE)
    ]
    return message or placement_message.describe_failures(evaluation)
