"""`operator fault`: failed units of the daemon's own work, and their retry."""

import click

from daemon.cli.core.command_groups import CommandGroup
from daemon.cli.core.http_client import ApiClient
from daemon.cli.core.options import with_client, with_output
from daemon.cli.core.output import Screen
from storage.records.operator_api import FaultShown


@click.group(cls=CommandGroup)
def fault() -> None:
    """Show failed units of the daemon's own work, and retry them."""


@fault.command(name="list")
@with_output
@with_client
def list_faults(client: ApiClient, screen: Screen) -> None:
    """List the units of the daemon's work whose last attempt failed, oldest first.

    Example: steward operator fault list
    """
    answer = client.read("/v1/operator/faults")
    if screen.wants_document:
        screen.document(answer.checked(list[FaultShown]))
        return
    rows = [
        [
            fault_shown.kind,
            fault_shown.key,
            str(fault_shown.failures),
            "given up" if fault_shown.gives_up else "retried",
            fault_shown.since,
            fault_shown.reason,
        ]
        for fault_shown in answer.decode(list[FaultShown])
    ]
    screen.table(["Kind", "Key", "Failures", "State", "Since", "Reason"], rows)


@fault.command()
@click.argument("kind")
@click.argument("key")
@with_output
@with_client
def release(client: ApiClient, screen: Screen, kind: str, key: str) -> None:
    """Retry the unit with this KIND and KEY, even if Steward gave up on it.

    Example: steward operator fault release "periodic job" "default/nightly at index 12"
    """
    client.act("POST", "/v1/operator/faults/release", {"Kind": kind, "Key": key})
    screen.report(f"{kind} {key} will be retried")
