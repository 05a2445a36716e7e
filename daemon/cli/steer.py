"""`alloc restart`, `alloc signal`, `alloc stop`: what is done to tasks that run."""

import click

from daemon.cli import resolve
from daemon.cli.answers import ShownAllocation
from daemon.cli.change import DETACH, followed
from daemon.cli.client import Client, segment
from daemon.cli.logs import choose_task
from daemon.cli.options import connected, shown
from daemon.cli.output import Screen
from storage.errors import Invalid

_ALLOCATION = click.argument("alloc_id", metavar="ALLOCATION")
_WORD = click.argument("word", metavar="[TASK]", required=False)
_TASK = click.option("--task", metavar="TASK", help="The task; all that run if none is named.")


def _named(allocation: ShownAllocation, task: str | None, word: str | None) -> str:
    """Return the task that is named, or nothing. Raises `Invalid` when there is no such task."""
    given = task or word
    return choose_task(allocation, given) if given else ""


@click.command()
@_ALLOCATION
@_WORD
@_TASK
@click.option("--all-tasks", is_flag=True, help="Also those that have ended.")
@shown
@connected
def restart(
    client: Client,
    screen: Screen,
    alloc_id: str,
    word: str | None,
    *,
    task: str | None,
    all_tasks: bool,
) -> None:
    """Restart TASK of ALLOCATION, or all its tasks that run, where it is.

    Example: steward alloc restart 5d3c9a12 web
    """
    allocation = resolve.allocation(client, alloc_id)
    name = _named(allocation, task, word)
    if name and all_tasks:
        raise Invalid(f"-all-tasks and task {name!r}: give only one of them")
    body = {"TaskName": name, "AllTasks": all_tasks}
    client.send("PUT", f"/v1/client/allocation/{segment(allocation.id)}/restart", body)
    screen.told(f"{_of(screen, allocation, name)}: restarted")


@click.command()
@_ALLOCATION
@_WORD
@_TASK
@click.option("-s", "--signal", "name", default="SIGKILL", help="Its name [default: SIGKILL].")
@shown
@connected
def signal(
    client: Client,
    screen: Screen,
    alloc_id: str,
    word: str | None,
    *,
    task: str | None,
    name: str,
) -> None:
    """Send a signal to TASK of ALLOCATION, or to all its tasks that run.

    Example: steward alloc signal -s SIGHUP 5d3c9a12
    """
    allocation = resolve.allocation(client, alloc_id)
    chosen = _named(allocation, task, word)
    body = {"Signal": name, "Task": chosen}
    client.send("PUT", f"/v1/client/allocation/{segment(allocation.id)}/signal", body)
    screen.told(f"{_of(screen, allocation, chosen)}: sent {name}")


@click.command()
@_ALLOCATION
@click.option("--no-shutdown-delay", is_flag=True, help="Do not wait before stopping the tasks.")
@DETACH
@shown
@connected
def stop(
    client: Client, screen: Screen, alloc_id: str, *, no_shutdown_delay: bool, detach: bool
) -> int:
    """Stop ALLOCATION; another one takes its place if the job still wants one.

    Example: steward alloc stop 5d3c9a12
    """
    allocation = resolve.allocation(client, alloc_id)
    path = f"/v1/allocation/{segment(allocation.id)}/stop"
    answer = client.send("POST", path, no_shutdown_delay=no_shutdown_delay)
    return followed(client, screen, answer, allocation.job_id, detach=detach)


def _of(screen: Screen, allocation: ShownAllocation, task: str) -> str:
    tasks = f'task "{task}"' if task else "all tasks"
    return f"{tasks} of {screen.short(allocation.id)} ({allocation.name})"
