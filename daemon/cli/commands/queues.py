"""`queues`: queues of runs and steps, their slots, and the waiting runs and steps."""

import time

import click

from daemon.cli.core.formatting import format_duration
from daemon.cli.core.http_client import ApiClient, segment
from daemon.cli.core.options import Integer, with_client, with_output
from daemon.cli.core.output import Screen
from daemon.text.queue_slots import slots_in_use
from storage.records.concurrency import MOST_SLOTS, QueueEntry, QueueLine, QueueView

_ENTRY = ("Run", "State", "Slots", "Priority", "For")


@click.command("list")
@with_output
@with_client
def index(client: ApiClient, screen: Screen) -> None:
    """List the queues with their slots and the number of runs or steps that wait.

    Example: steward queues list
    """
    answer = client.read("/v1/concurrency")
    if screen.wants_document:
        screen.document(answer.checked(list[QueueLine]))
        return
    lines = answer.decode(list[QueueLine])
    if not lines:
        screen.line("No queues")
        return
    rows = [
        [
            queue.namespace,
            queue.name,
            f"{queue.in_use}{'/' if queue.in_use <= queue.slots else ', limit '}{queue.slots}",
            str(queue.waiting),
            queue.note,
        ]
        for queue in lines
    ]
    screen.table(["Namespace", "Queue", "Slots In Use", "Waiting", "Note"], rows)


@click.command()
@click.argument("name", metavar="QUEUE")
@with_output
@with_client
def status(client: ApiClient, screen: Screen, name: str) -> None:
    """Show QUEUE: the runs or steps that hold its slots, and those that wait for a slot, in order.

    Example: steward queues status warehouse
    """
    answer = client.read(f"/v1/concurrency/{segment(name)}")
    if screen.wants_document:
        screen.document(answer.checked(QueueView))
        return
    queue = answer.decode(QueueView)
    note = f"  {queue.note}" if queue.note else ""
    screen.line(
        f"{queue.namespace}/{queue.name}  {slots_in_use(queue.in_use, queue.slots)}  "
        f"{queue.waiting} waiting{note}"
    )
    rows = [_row(holder) for holder in (*queue.holders, *queue.waiters)]
    if rows:
        screen.table(_ENTRY, rows)


def _row(entry: QueueEntry) -> tuple[str, ...]:
    return (
        f"{entry.job_id} {entry.number}{' ' if entry.step else ''}{entry.step}",
        entry.state,
        str(entry.slots),
        str(entry.priority),
        format_duration(time.time_ns() - entry.since),
    )


@click.command("set")
@click.argument("name", metavar="QUEUE")
@click.option(
    "--slots",
    type=Integer(1, MOST_SLOTS),
    required=True,
    metavar="N",
    help="Number of slots.",
)
@click.option("--note", default="", metavar="TEXT", help="Note to show in lists of queues.")
@with_output
@with_client
def change(client: ApiClient, screen: Screen, name: str, *, slots: int, note: str) -> None:
    """Set the number of slots of QUEUE. A lower number does not stop runs.

    Example: steward queues set -slots 2 warehouse
    """
    path = f"/v1/concurrency/{segment(name)}"
    changed = client.send("PUT", path, {"Slots": slots, "Note": note}).object_body("Index")
    if screen.wants_document:
        screen.document(changed)
        return
    screen.line(f"Queue {name!r} has {slots} slot{'s' if slots > 1 else ''}")


@click.command()
@click.argument("name", metavar="QUEUE")
@with_output
@with_client
def delete(client: ApiClient, screen: Screen, name: str) -> None:
    """Delete the limit of QUEUE, which then has 1 slot.

    Example: steward queues delete warehouse
    """
    changed = client.send("DELETE", f"/v1/concurrency/{segment(name)}").object_body("Index")
    if screen.wants_document:
        screen.document(changed)
        return
    screen.line(f"Queue {name!r} has 1 slot, because no limit is set for it")
