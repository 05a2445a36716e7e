"""`operator audit`: requests that changed something or were rejected, with their callers."""

import time

import click

from daemon.cli.core.formatting import NOTHING, format_time
from daemon.cli.core.http_client import ApiClient
from daemon.cli.core.options import with_client, with_output
from daemon.cli.core.output import Screen
from storage.errors import Invalid
from storage.records.audit import AuditEntry
from storage.records.base import HOUR, MINUTE, SECOND
from storage.records.times import rfc3339

_SPANS = {"s": SECOND, "m": MINUTE, "h": HOUR, "d": 24 * HOUR}


@click.command()
@click.option("--accessor", default="", help="Only requests with this token accessor.")
@click.option(
    "--from", "address", default="", metavar="ADDRESS", help="Only requests from this address."
)
@click.option("--method", default="", help="Only requests with this method.")
@click.option("--path", default="", help="Only paths with this prefix.")
@click.option(
    "--since",
    default="",
    metavar="TIME",
    help="Only entries since 2026-11-21T01:40:00Z, or of the last 2h.",
)
@click.option("--until", default="", metavar="TIME", help="Only entries before this time.")
@click.option("--refused", is_flag=True, help="Only rejected requests.")
@click.option("-n", "count", default=50, show_default=True, help="Number of entries, newest first.")
@with_output
@with_client
def audit(
    client: ApiClient,
    screen: Screen,
    *,
    since: str,
    until: str,
    refused: bool,
    count: int,
    **texts: str,
) -> None:
    """List requests that changed something or were rejected, newest first.

    Example: steward operator audit -refused -since 1h
    """
    answer = client.read(
        "/v1/operator/audit",
        **texts,
        since=_time(since),
        until=_time(until),
        refused="true" if refused else "",
        per_page=count,
    )
    if screen.wants_document:
        screen.document(answer.checked(list[AuditEntry]))
        return
    entries = answer.decode(list[AuditEntry])
    if not entries:
        screen.line("No entries")
        return
    screen.table(
        ["Time", "Who", "From", "Status", "Method", "Path", "Namespace"],
        [_row(screen, entry) for entry in entries],
    )


def _row(screen: Screen, entry: AuditEntry) -> list[str]:
    caller = entry.accessor or (f"hash {entry.secret_hash}" if entry.secret_hash else NOTHING)
    if not screen.verbose and len(caller) == 36:  # an accessor
        caller = screen.short(caller)
    path = f"{entry.path}?{entry.query}" if entry.query and screen.verbose else entry.path
    return [
        format_time(entry.time),
        caller,
        entry.address or "socket",
        str(entry.status),
        entry.method,
        path or entry.reason,
        entry.namespace or NOTHING,
    ]


def _time(text: str) -> str:
    """Return the time in the form of the API, from a time or a duration before now."""
    if not text or "T" in text:
        return text
    number, unit = text[:-1], text[-1]
    if unit not in _SPANS or not number.isdecimal():
        raise Invalid(
            f"{text!r} is neither a time such as 2026-11-21T01:40:00Z nor a duration such as 2h"
        )
    return rfc3339(time.time_ns() - int(number) * _SPANS[unit])
