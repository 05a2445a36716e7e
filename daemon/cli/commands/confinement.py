"""`operator confinement`: limits of the daemon, its launcher and its tasks."""

from collections.abc import Sequence

import click

from daemon.cli.core.http_client import ApiClient
from daemon.cli.core.options import with_client, with_output
from daemon.cli.core.output import Screen
from storage.records.operator_api import ConfinedProcess, ConfinementRule, ConfinementShown


@click.command()
@with_output
@with_client
def confinement(client: ApiClient, screen: Screen) -> None:
    """Show the limits of the daemon, its launcher and its tasks, as the kernel reports them.

    Example: steward operator confinement
    """
    answer = client.read("/v1/operator/confinement")
    if screen.wants_document:
        screen.document(answer.checked(ConfinementShown))
        return
    limits = answer.decode(ConfinementShown)
    for process in limits.processes:
        screen.title(_title(screen, process))
        _rules(screen, process.rules)
    screen.title("All tasks of this node")
    _rules(screen, limits.node)


def _title(screen: Screen, process: ConfinedProcess) -> str:
    if not process.alloc_id:
        return f"{process.name.capitalize()}, process {process.pid}"
    return (
        f"Task {process.task} of allocation {screen.short(process.alloc_id)}, driver "
        f"{process.name}, process {process.pid}"
    )


def _rules(screen: Screen, rules: Sequence[ConfinementRule]) -> None:
    rows = [[rule.rule, "yes" if rule.holds else "no", rule.reason] for rule in rules]
    screen.table(["Rule", "Holds", "Reason"], rows)
