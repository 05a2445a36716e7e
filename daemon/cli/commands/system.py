"""`system gc`, `system reconcile summaries`: maintenance on demand."""

import click

from daemon.cli.core.http_client import ApiClient
from daemon.cli.core.options import with_client, with_output
from daemon.cli.core.output import Screen


@click.command("gc")
@with_output
@with_client
def collect_garbage(client: ApiClient, screen: Screen) -> None:
    """Collect garbage now: delete ended objects and their files.

    Example: steward system gc
    """
    client.act("PUT", "/v1/system/gc")
    screen.report("garbage was collected")


@click.command("summaries")
@with_output
@with_client
def reconcile_summaries(client: ApiClient, screen: Screen) -> None:
    """Recount the allocations and children of all jobs.

    Example: steward system reconcile summaries
    """
    client.act("PUT", "/v1/system/reconcile/summaries")
    screen.report("the summaries of all jobs were recounted")
