"""`job dispatch`, `job periodic`, `job notifications`: launching children, and what became of them."""

import base64
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from daemon.cli import resolve
from daemon.cli.answers import Dispatched, Registered
from daemon.cli.change import DETACH, show_ending
from daemon.cli.client import Answer, Client, segment
from daemon.cli.follow import EXIT_FAILED, follow_placement, follow_run
from daemon.cli.options import connected, shown
from daemon.cli.output import Screen
from daemon.cli.run import EXIT_INTERRUPTED
from daemon.cli.text import moment, moment_of
from storage.errors import Invalid
from storage.records.notification import Notification, NotificationStatus
from storage.records.periodic import Clock, Slot

_EXIT_CHILD_FAILED = 2


@click.command()
@click.argument("job_id", metavar="JOB")
@click.argument("source", metavar="[FILE]", required=False)
@click.option("--meta", multiple=True, metavar="KEY=VALUE", help="Meta data; repeatable.")
@click.option("--id-prefix-template", default="", metavar="TEXT", help="Part of the child's name.")
@click.option("--idempotency-token", default="", metavar="TEXT", help="The same again: no child.")
@click.option("--priority", type=int, default=0, metavar="N", help="Of the child, 1-100.")
@click.option("--wait", is_flag=True, help="Wait until the child has ended.")
@DETACH
@shown
@connected
def dispatch(
    client: Client,
    screen: Screen,
    job_id: str,
    source: str | None,
    *,
    meta: tuple[str, ...],
    id_prefix_template: str,
    idempotency_token: str,
    priority: int,
    wait: bool,
    detach: bool,
) -> int:
    """Run the parameterized JOB once, with FILE (- reads standard input) as payload.

    It is followed until the child is placed or, with --wait, has ended. The exit status is 2 when
    it could not be placed, or when a child that was waited for has failed.

    Example: steward job dispatch -meta size=large -wait resize cat.jpg
    """
    line = resolve.job(client, job_id)
    body: dict[str, object] = {"Meta": dict(map(pair, meta))}
    if source is not None:
        body["Payload"] = base64.b64encode(read_payload(source)).decode()
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
    done = answer.decode(Dispatched)
    return _followed(client, screen, answer, done, wait=wait, detach=detach)


def pair(text: str) -> tuple[str, str]:
    """Return key and value of `KEY=VALUE`. Raises `Invalid`."""
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
@shown
@connected
def periodic_force(client: Client, screen: Screen, job_id: str, *, detach: bool) -> int:
    """Launch a child of the periodic JOB now.

    Example: steward job periodic force backup
    """
    line = resolve.job(client, job_id)
    path = f"/v1/job/{segment(line.id)}/periodic/force"
    answer = client.send("POST", path, namespace=line.namespace)
    done = Dispatched(eval_id=answer.decode(Registered).eval_id)
    return _followed(client, screen, answer, done, wait=False, detach=detach)


def _followed(
    client: Client, screen: Screen, answer: Answer, done: Dispatched, *, wait: bool, detach: bool
) -> int:
    if detach or not done.eval_id:
        _tell(screen, answer, done)
        return 0
    try:
        with screen.progress() as progress:
            follow = follow_run if wait else follow_placement
            ending = follow(client, progress, done.eval_id)
    except KeyboardInterrupt:
        screen.warn("\nno longer following; the child goes on, see: steward job status")
        return EXIT_INTERRUPTED
    child_id = ending.evaluation.job_id
    show_ending(screen, answer, child_id, ending)
    screen.hint(f"Look at it with: steward job status {child_id}")
    return _EXIT_CHILD_FAILED if wait and ending.status == EXIT_FAILED else ending.status


def _tell(screen: Screen, answer: Answer, done: Dispatched) -> None:
    if screen.wants_document:
        screen.document(answer.body)
    elif done.dispatched_job_id:
        screen.line(f"Dispatched Job ID: {done.dispatched_job_id}")
    if not screen.wants_document and done.eval_id:
        screen.line(f"Evaluation ID: {done.eval_id}")


@click.command("pause")
@click.argument("job_id", metavar="JOB")
@shown
@connected
def periodic_pause(client: Client, screen: Screen, job_id: str) -> None:
    """Skip the slots of the periodic JOB until it is resumed.

    Example: steward job periodic pause backup
    """
    _let(client, screen, job_id, "pause", "is paused: its slots are skipped until it is resumed")


@click.command("resume")
@click.argument("job_id", metavar="JOB")
@shown
@connected
def periodic_resume(client: Client, screen: Screen, job_id: str) -> None:
    """Let the periodic JOB launch children at its slots again.

    Example: steward job periodic resume backup
    """
    _let(client, screen, job_id, "resume", "launches children at its slots")


def _let(client: Client, screen: Screen, job_id: str, verb: str, said: str) -> None:
    line = resolve.job(client, job_id)
    path = f"/v1/job/{segment(line.id)}/periodic/{verb}"
    answer = client.send("POST", path, namespace=line.namespace)
    if screen.wants_document:
        screen.document(answer.body)
    else:
        screen.line(f'job "{line.id}" {said}')


@click.command("next")
@click.argument("job_id", metavar="JOB")
@shown
@connected
def periodic_next(client: Client, screen: Screen, job_id: str) -> None:
    """List when the periodic JOB launches its next ten children.

    Example: steward job periodic next backup
    """
    line = resolve.job(client, job_id)
    answer = client.read(f"/v1/job/{segment(line.id)}/periodic", namespace=line.namespace)
    if screen.wants_document:
        screen.document(answer.body)
        return
    clock = answer.decode(Clock)
    if clock.paused:
        screen.warn(f'job "{line.id}" is paused: these slots would be skipped')
    if not clock.next_launches:
        screen.line("No launch is to come")
    show_launches(screen, clock.next_launches)


def show_launches(screen: Screen, launches: Sequence[str]) -> None:
    """Print when the next children of a periodic job are launched."""
    if launches:
        screen.line(f"Next launches: {', '.join(moment_of(at) for at in launches)}")


@click.command("slots")
@click.argument("job_id", metavar="JOB")
@click.option("-n", "most", type=int, default=20, metavar="N", help="How many; 0 is all.")
@shown
@connected
def periodic_slots(client: Client, screen: Screen, job_id: str, *, most: int) -> None:
    """List what became of the slots of the periodic JOB, newest first.

    Example: steward job periodic slots -n 20 backup
    """
    line = resolve.job(client, job_id)
    answer = client.read(f"/v1/job/{segment(line.id)}/periodic/slots", namespace=line.namespace)
    if screen.wants_document:
        screen.document(answer.body)
        return
    found = answer.decode(list[Slot])
    if not found:
        screen.line("No slot of it has come yet")
        return
    screen.table(
        ["Slot", "Slots", "Outcome", "Child", "Reason"],
        [
            [moment(one.slot), str(one.slots), one.outcome, one.child_id, one.reason]
            for one in found[: most or None]
        ],
    )


@click.command("notifications")
@click.argument("job_id", metavar="JOB")
@click.option("-n", "most", type=int, default=20, metavar="N", help="How many; 0 is all.")
@shown
@connected
def notifications(client: Client, screen: Screen, job_id: str, *, most: int) -> None:
    """List what somebody was told of JOB and its children, or will be; newest first.

    Example: steward job notifications -n 5 web
    """
    line = resolve.job(client, job_id)
    answer = client.read(f"/v1/job/{segment(line.id)}/notifications", namespace=line.namespace)
    if screen.wants_document:
        screen.document(answer.body)
        return
    found = answer.decode(list[Notification])
    if not found:
        screen.line("Nobody was told anything of it")
        return
    screen.table(
        ["Time", "Event", "Of", "To", "Status", "Attempts", "Next", "Reason"],
        [
            [
                moment(one.create_time),
                one.event,
                one.run_id,
                one.webhook or one.command,
                one.status,
                str(one.attempts),
                moment(one.next_attempt) if one.status == NotificationStatus.PENDING else "",
                f"{one.reason}; {one.error}" if one.error else one.reason,
            ]
            for one in found[: most or None]
        ],
    )
