"""`freeze`, `thaw` and `freezes`: hold runs, steps or changes of jobs for a time."""

import click

from daemon.cli.core.http_client import ApiClient, segment
from daemon.cli.core.options import with_client, with_output
from daemon.cli.core.output import Screen
from storage.records.base import Record
from storage.records.freeze import EVERYTHING, Freeze, Strength
from storage.records.times import rfc3339


class FreezeResult(Record, frozen=True, kw_only=True):
    """The ID of a new freeze, and a warning about its scope."""

    id: str
    warnings: str = ""


@click.command()
@click.argument("reason", metavar="REASON")
@click.option(
    "--strength",
    type=click.Choice([strength.value for strength in Strength]),
    default=Strength.BEGIN.value,
    help="begin: hold new runs; steps: also hold new steps; changes: refuse changes of jobs.",
)
@click.option(
    "--jobs", default="", metavar="PATTERN", help="Only these jobs; * matches any string."
)
@click.option("--queue", default="", metavar="NAME", help="Only jobs whose runs enter this queue.")
@click.option(
    "--from", "begin", default="", metavar="TIME", help="Begin of the freeze [default: now]."
)
@click.option("--until", default="", metavar="TIME", help="End of the freeze: a time, or +2h.")
@click.option("--everything", is_flag=True, help="All namespaces; needs operator:write.")
@with_output
@with_client
def freeze(
    client: ApiClient,
    screen: Screen,
    reason: str,
    *,
    strength: str,
    jobs: str,
    queue: str,
    begin: str,
    until: str,
    everything: bool,
) -> None:
    """Freeze jobs for a REASON, which users see on every page.

    Example: steward freeze -strength changes -until +48h "release weekend"
    """
    body = {
        "Namespace": EVERYTHING if everything else "",
        "Jobs": jobs,
        "Queue": queue,
        "Strength": strength,
        "Reason": reason,
        "Begin": begin,
        "Until": until,
    }
    answer = client.send("POST", "/v1/freeze", body)
    if screen.wants_document:
        screen.document(answer.checked(FreezeResult))
        return
    freeze_result = answer.decode(FreezeResult)
    if freeze_result.warnings:
        screen.warn(f"Warning: {freeze_result.warnings}")
    screen.line(f"Freeze {freeze_result.id}; end it with: steward thaw {freeze_result.id}")


@click.command()
@click.argument("freeze_id", metavar="ID")
@with_output
@with_client
def thaw(client: ApiClient, screen: Screen, freeze_id: str) -> None:
    """End the freeze with this ID.

    Example: steward thaw 7f3b2d94-0c5e-4f0e-8a55-5a2f2f1f3c1d
    """
    ended = client.send("DELETE", f"/v1/freeze/{segment(freeze_id)}").object_body("Index")
    if screen.wants_document:
        screen.document(ended)
        return
    screen.line(f"Freeze {freeze_id} has ended")


@click.command()
@click.option(
    "--all", "lists_all", is_flag=True, help="Also list freezes that have ended or not begun."
)
@with_output
@with_client
def freezes(client: ApiClient, screen: Screen, *, lists_all: bool) -> None:
    """List the active freezes.

    Example: steward freezes -all
    """
    answer = client.read("/v1/freezes", **({} if lists_all else {"active": "true"}))
    if screen.wants_document:
        screen.document(answer.checked(list[Freeze]))
        return
    active_freezes = answer.decode(list[Freeze])
    if not active_freezes:
        screen.line("No freezes")
        return
    rows = [
        [
            entry.id,
            entry.namespace,
            entry.jobs or (f"queue {entry.queue}" if entry.queue else "all"),
            entry.strength,
            rfc3339(entry.begin),
            rfc3339(entry.end) if entry.end else "open",
            entry.person,
            entry.reason,
        ]
        for entry in active_freezes
    ]
    head = ["ID", "Namespace", "Jobs", "Strength", "Begin", "End", "By", "Reason"]
    screen.table(head, rows)
