"""`job dispatch`, `job periodic`, `job notifications`: child jobs, slots and notifications."""

import base64
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from daemon.cli.commands.bulk_dispatch import dispatch_file
from daemon.cli.commands.job_actions import DETACH, show_ending
from daemon.cli.commands.run import EXIT_INTERRUPTED
from daemon.cli.core import resolve
from daemon.cli.core.follow import EXIT_FAILED, follow_placement, follow_run
from daemon.cli.core.formatting import format_api_time, format_time
from daemon.cli.core.http_client import ApiClient, ClientResponse, segment
from daemon.cli.core.options import Integer, with_client, with_output
from daemon.cli.core.output import ProgressRow, Screen
from daemon.cli.core.responses import DispatchResult, RegisterResult
from storage.errors import Invalid
from storage.records.notification import Notification, NotificationStatus
from storage.records.periodic import PeriodicSchedule, Slot

_EXIT_CHILD_FAILED = 2


@click.command()
@click.argument("job_id", metavar="JOB")
@click.argument("source", metavar="[FILE]", required=False)
@click.option("--meta", multiple=True, metavar="KEY=VALUE", help="Metadata KEY=VALUE; repeatable.")
@click.option(
    "--file",
    "files",
    multiple=True,
    metavar="NAME=PATH",
    help="Input file for artifacts of payload://NAME; repeatable.",
)
@click.option("--id-prefix-template", default="", metavar="TEXT", help="Part of the child's ID.")
@click.option(
    "--idempotency-token", default="", metavar="TEXT", help="Launch at most one child per token."
)
@click.option(
    "--priority", type=Integer(0, 100), default=0, metavar="N", help="Priority of the child, 1-100."
)
@click.option("--wait", is_flag=True, help="Wait until the child has ended.")
@click.option(
    "--from", "lines", metavar="FILE", help="Dispatch once per line of FILE, as JSON; - for stdin."
)
@DETACH
@with_output
@with_client
def dispatch(
    client: ApiClient,
    screen: Screen,
    job_id: str,
    source: str | None,
    *,
    meta: tuple[str, ...],
    files: tuple[str, ...],
    id_prefix_template: str,
    idempotency_token: str,
    priority: int,
    wait: bool,
    lines: str | None,
    detach: bool,
) -> int:
    """Dispatch the parameterized JOB, with FILE (- reads standard input) as payload.

    The command waits until the child is placed or, with --wait, has ended. The exit status is 2 if
    the child could not be placed or, with --wait, if it failed.

    --file uploads a file of up to 1 GiB, unless the daemon has it already. After an interruption,
    repeat the command: the upload continues where it stopped.

    With --from, each line is a dispatch as JSON: {"Meta": {"size": "large"}, "Payload": "BASE64"}.
    The command does not wait for these children. With --idempotency-token, a repeated command
    dispatches only the lines that it has not dispatched before. The exit status is 2 if a line
    failed.

    Example: steward job dispatch -meta size=large -wait resize cat.jpg
    """
    line = resolve.job(client, job_id)
    if lines is not None:
        own = {"FILE": source, "--meta": meta, "--priority": priority, "--wait": wait}
        own["--file"] = files
        own["--id-prefix-template"] = id_prefix_template
        if options := [name for name, value in own.items() if value]:
            raise Invalid(
                f"--from cannot be combined with {', '.join(options)}: set them in each line"
            )
        return dispatch_file(client, screen, line, lines, idempotency_token)
    body: dict[str, object] = {"Meta": dict(map(pair, meta))}
    if source is not None:
        body["Payload"] = base64.b64encode(read_payload(source)).decode()
    if files:
        body["Files"] = _uploaded(client, screen, files, line.namespace)
    if id_prefix_template:
        body["IdPrefixTemplate"] = id_prefix_template
    if priority:
        body["Priority"] = priority
    answer = client.send(
        "POST",
        f"/v1/job/{segment(line.id)}/dispatch",
        body,
        namespace=line.namespace,
        idempotency_token=idempotency_token,
    )
    done = answer.decode(DispatchResult)
    return _followed(client, screen, answer, done, wait=wait, detach=detach)


def _uploaded(
    client: ApiClient, screen: Screen, files: tuple[str, ...], namespace: str
) -> dict[str, str]:
    """Upload files; return their digests by name. Raises `Invalid`."""
    # Imported late, because few dispatches have files.
    from daemon.cli.core.uploads import parse_file, upload

    digests = dict[str, str]()
    for name, path in map(parse_file, files):
        if name in digests:
            raise Invalid(f"--file names {name!r} twice: use another name")
        with screen.progress() as progress:

            def tell(sent: int, size: int, name: str = name) -> None:
                percent = f"{100 * sent // max(size, 1)} %"
                progress.show([ProgressRow("file", name, "", "uploading", percent)])

            digests[name] = upload(client, path, namespace, tell)
    return digests


def pair(text: str) -> tuple[str, str]:
    """Split the text `KEY=VALUE` into its key and its value. Raises `Invalid`."""
    key, sign, value = text.partition("=")
    if not key or not sign:
        raise Invalid(f"--meta {text!r} is not KEY=VALUE")
    return key, value


def read_payload(source: str) -> bytes:
    """Return the bytes of a file, or of standard input for `-`. Raises `Invalid`."""
    try:
        return sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
    except OSError as error:
        raise Invalid(f"cannot read the payload {source}: {error.strerror}") from error


@click.command("force")
@click.argument("job_id", metavar="JOB")
@DETACH
@with_output
@with_client
def periodic_force(client: ApiClient, screen: Screen, job_id: str, *, detach: bool) -> int:
    """Launch a child of the periodic JOB now.

    Example: steward job periodic force backup
    """
    line = resolve.job(client, job_id)
    path = f"/v1/job/{segment(line.id)}/periodic/force"
    answer = client.send("POST", path, namespace=line.namespace)
    done = DispatchResult(eval_id=answer.decode(RegisterResult).eval_id)
    return _followed(client, screen, answer, done, wait=False, detach=detach)


def _followed(
    client: ApiClient,
    screen: Screen,
    answer: ClientResponse,
    done: DispatchResult,
    *,
    wait: bool,
    detach: bool,
) -> int:
    if detach or not done.eval_id:
        _report_dispatch(screen, answer, done)
        return 0
    try:
        with screen.progress() as progress:
            follow = follow_run if wait else follow_placement
            ending = follow(client, progress, done.eval_id)
    except KeyboardInterrupt:
        screen.warn("\nno longer waiting; the child continues, see: steward job status")
        return EXIT_INTERRUPTED
    child_id = ending.evaluation.job_id
    show_ending(screen, answer, child_id, ending)
    screen.hint(f"See its status with: steward job status {child_id}")
    return _EXIT_CHILD_FAILED if wait and ending.status == EXIT_FAILED else ending.status


def _report_dispatch(screen: Screen, answer: ClientResponse, done: DispatchResult) -> None:
    if screen.wants_document:
        screen.document(answer.object_body())
    elif done.dispatched_job_id:
        screen.line(f"Dispatched Job ID: {done.dispatched_job_id}")
    if not screen.wants_document and done.eval_id:
        screen.line(f"Evaluation ID: {done.eval_id}")


@click.command("pause")
@click.argument("job_id", metavar="JOB")
@with_output
@with_client
def periodic_pause(client: ApiClient, screen: Screen, job_id: str) -> None:
    """Skip the slots of the periodic JOB until it is resumed.

    Example: steward job periodic pause backup
    """
    _send_periodic_action(
        client, screen, job_id, "pause", "is paused: its slots are skipped until it is resumed"
    )


@click.command("resume")
@click.argument("job_id", metavar="JOB")
@with_output
@with_client
def periodic_resume(client: ApiClient, screen: Screen, job_id: str) -> None:
    """Launch children of the periodic JOB on schedule again.

    Example: steward job periodic resume backup
    """
    _send_periodic_action(client, screen, job_id, "resume", "launches children on schedule")


def _send_periodic_action(
    client: ApiClient, screen: Screen, job_id: str, verb: str, outcome: str
) -> None:
    line = resolve.job(client, job_id)
    path = f"/v1/job/{segment(line.id)}/periodic/{verb}"
    answer = client.send("POST", path, namespace=line.namespace)
    if screen.wants_document:
        screen.document(answer.object_body())
    else:
        screen.line(f'job "{line.id}" {outcome}')


@click.command("next")
@click.argument("job_id", metavar="JOB")
@with_output
@with_client
def periodic_next(client: ApiClient, screen: Screen, job_id: str) -> None:
    """List the next ten launches of the periodic JOB.

    Example: steward job periodic next backup
    """
    line = resolve.job(client, job_id)
    answer = client.read(f"/v1/job/{segment(line.id)}/periodic", namespace=line.namespace)
    if screen.wants_document:
        screen.document(answer.checked(PeriodicSchedule))
        return
    clock = answer.decode(PeriodicSchedule)
    if clock.paused:
        screen.warn(f'job "{line.id}" is paused: these slots would be skipped')
    if not clock.next_launches:
        screen.line("No upcoming launches")
    show_upcoming(screen, clock.next_launches)


def show_upcoming(screen: Screen, launches: Sequence[str]) -> None:
    """Print the times of the next launches of a periodic job."""
    if launches:
        screen.line(f"Next launches: {', '.join(format_api_time(launch) for launch in launches)}")


@click.command("slots")
@click.argument("job_id", metavar="JOB")
@click.option(
    "-n", "most", type=Integer(0), default=20, metavar="N", help="Number of slots; 0 means all."
)
@with_output
@with_client
def periodic_slots(client: ApiClient, screen: Screen, job_id: str, *, most: int) -> None:
    """List the past slots of the periodic JOB with their outcomes, newest first.

    Example: steward job periodic slots -n 20 backup
    """
    line = resolve.job(client, job_id)
    answer = client.read(f"/v1/job/{segment(line.id)}/periodic/slots", namespace=line.namespace)
    if screen.wants_document:
        screen.document(answer.checked(list[Slot]))
        return
    past_slots = answer.decode(list[Slot])
    if not past_slots:
        screen.line("No past slots")
        return
    screen.table(
        ["Slot", "Slots", "Outcome", "Child", "Reason"],
        [
            [format_time(slot.slot), str(slot.slots), slot.outcome, slot.child_id, slot.reason]
            for slot in past_slots[: most or None]
        ],
    )


@click.command("notifications")
@click.argument("job_id", metavar="JOB")
@click.option(
    "-n",
    "most",
    type=Integer(0),
    default=20,
    metavar="N",
    help="Number of notifications; 0 means all.",
)
@with_output
@with_client
def notifications(client: ApiClient, screen: Screen, job_id: str, *, most: int) -> None:
    """List the notifications about JOB and its children, sent and queued, newest first.

    Example: steward job notifications -n 5 web
    """
    line = resolve.job(client, job_id)
    answer = client.read(f"/v1/job/{segment(line.id)}/notifications", namespace=line.namespace)
    if screen.wants_document:
        screen.document(answer.checked(list[Notification]))
        return
    sent_and_queued = answer.decode(list[Notification])
    if not sent_and_queued:
        screen.line("No notifications")
        return
    screen.table(
        ["Time", "Event", "Of", "To", "Status", "Attempts", "Next", "Reason"],
        [
            [
                format_time(notification.create_time),
                notification.event,
                notification.run_id,
                notification.receiver or notification.webhook or notification.command,
                notification.status,
                str(notification.attempts),
                format_time(notification.next_attempt)
                if notification.status == NotificationStatus.PENDING
                else "",
                f"{notification.reason}; {notification.error}"
                if notification.error
                else notification.reason,
            ]
            for notification in sent_and_queued[: most or None]
        ],
    )
