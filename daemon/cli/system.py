"""`system gc`, `system reconcile summaries`: tidy up now rather than later."""

import click

from daemon.cli.client import Client
from daemon.cli.options import connected, shown
from daemon.cli.output import Screen


@click.command("gc")
@shown
@connected
def collect_garbage(client: Client, screen: Screen) -> None:
    """Forget at once what is dead, and remove the files of what has ended.

    Example: steward system gc
    """
    client.send("PUT", "/v1/system/gc")
    screen.told("what is dead is forgotten")


@click.command("summaries")
@shown
@connected
def reconcile_summaries(client: Client, screen: Screen) -> None:
    """Count the allocations and children of all jobs anew.

    Example: steward system reconcile summaries
    """
    client.send("PUT", "/v1/system/reconcile/summaries")
    screen.told("the summaries of all jobs are counted anew")
