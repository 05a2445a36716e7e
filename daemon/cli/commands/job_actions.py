"""`job scale` and `job eval`: change a running job, and wait for the evaluation."""

import click
import msgspec

from daemon.cli.commands.run import EXIT_INTERRUPTED
from daemon.cli.core import resolve
from daemon.cli.core.follow import FollowResult, follow_run
from daemon.cli.core.http_client import ApiClient, ClientResponse, segment
from daemon.cli.core.options import Integer, with_client, with_output
from daemon.cli.core.output import Screen
from daemon.cli.core.responses import RegisterResult
from storage.errors import Invalid
from storage.records.job import Job

DETACH = click.option("--detach", is_flag=True, help="Do not wait for the result.")
_REASON = "submitted with the command line"


@click.command()
@click.argument("job_id", metavar="JOB")
@click.argument("words", metavar="[GROUP] COUNT", nargs=-1, required=True)
@click.option("--message", default=_REASON, metavar="TEXT", help="Reason, stored with the event.")
@click.option(
    "--check-index", type=Integer(0), metavar="N", help="Fail unless the job is at index N."
)
@DETACH
@with_output
@with_client
def scale(
    client: ApiClient,
    screen: Screen,
    job_id: str,
    words: tuple[str, ...],
    *,
    message: str,
    check_index: int | None,
    detach: bool,
) -> int:
    """Set the COUNT of GROUP of JOB; a job with one group needs no GROUP.

    Example: steward job scale web frontend 5
    """
    line = resolve.job(client, job_id)
    path = f"/v1/job/{segment(line.id)}"
    group, count = _target(client, path, line.namespace, words)
    body: dict[str, object] = {"Target": {"Group": group}, "Count": count, "Message": message}
    if check_index is not None:
        body |= {"EnforceIndex": True, "JobModifyIndex": check_index}
    answer = client.send("POST", f"{path}/scale", body, namespace=line.namespace)
    return followed(client, screen, answer, line.id, detach=detach)


def _target(
    client: ApiClient, path: str, namespace: str, words: tuple[str, ...]
) -> tuple[str, int]:
    """Return the group and the count from the arguments. Raises `Invalid`."""
    *named, number = words
    if not number.isdecimal() or len(named) > 1:
        raise Invalid(f"{' '.join(words)!r} is not [GROUP] COUNT: give a group and a number")
    if named:
        return named[0], int(number)
    job = client.fetch(path, Job, namespace=namespace)
    groups = [group.name for group in job.task_groups or ()]
    if len(groups) != 1:
        raise Invalid(f'job "{job.id}" has several groups; name one of them: {", ".join(groups)}')
    return groups[0], int(number)


@click.command("eval")
@click.argument("job_id", metavar="JOB")
@click.option("--force-reschedule", is_flag=True, help="Reschedule failed allocations immediately.")
@DETACH
@with_output
@with_client
def evaluate(
    client: ApiClient, screen: Screen, job_id: str, *, force_reschedule: bool, detach: bool
) -> int:
    """Evaluate JOB again.

    Example: steward job eval -force-reschedule web
    """
    line = resolve.job(client, job_id)
    body = {"JobID": line.id, "EvalOptions": {"ForceReschedule": force_reschedule}}
    path = f"/v1/job/{segment(line.id)}/evaluate"
    answer = client.send("POST", path, body, namespace=line.namespace)
    return followed(client, screen, answer, line.id, detach=detach)


def followed(
    client: ApiClient, screen: Screen, answer: ClientResponse, job_id: str, *, detach: bool
) -> int:
    """Wait until the allocations of an evaluation run; return the exit status."""
    registered = answer.decode(RegisterResult)
    if registered.warnings:
        screen.warn(registered.warnings.rstrip())
    if detach or not registered.eval_id:
        if screen.wants_document:
            screen.document(answer.body)
        else:
            screen.line(f'job "{job_id}": evaluation {registered.eval_id or "not needed"}')
        return 0
    try:
        with screen.progress() as progress:
            ending = follow_run(client, progress, registered.eval_id)
    except KeyboardInterrupt:
        screen.warn("\nno longer waiting; the job continues, see: steward job status")
        return EXIT_INTERRUPTED
    show_ending(screen, answer, job_id, ending)
    return ending.status


def show_ending(screen: Screen, answer: ClientResponse, job_id: str, ending: FollowResult) -> None:
    """Print the result of an evaluation."""
    if not screen.wants_document:
        screen.line(f'job "{job_id}": {ending.words}')
        return
    ending_fields = {"Evaluation": ending.evaluation, "Allocations": list(ending.allocations)}
    screen.document(msgspec.json.encode({**answer.decode(dict[str, object]), **ending_fields}))
