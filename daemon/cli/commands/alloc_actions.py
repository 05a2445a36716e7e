"""`alloc restart`, `alloc signal`, `alloc stop`: actions on running tasks."""

from difflib import get_close_matches
from signal import Signals

import click

from daemon.cli.commands.job_actions import DETACH, followed
from daemon.cli.commands.logs import choose_task
from daemon.cli.core import resolve
from daemon.cli.core.http_client import ApiClient, segment
from daemon.cli.core.options import with_client, with_output
from daemon.cli.core.output import Screen
from daemon.cli.core.responses import AllocationDetail
from storage.errors import Invalid

_ALLOCATION = click.argument("alloc_id", metavar="ALLOCATION")
_WORD = click.argument("word", metavar="[TASK]", required=False)
_TASK = click.option(
    "--task", metavar="TASK", help="Name of the task [default: all running tasks]."
)


def _named(allocation: AllocationDetail, task: str | None, word: str | None) -> str:
    """Return the task that an option or an argument names; empty if neither names a task.

    Raises `Invalid` if the task does not exist.
    """
    task_name = task or word
    return choose_task(allocation, task_name) if task_name else ""


@click.command()
@_ALLOCATION
@_WORD
@_TASK
@click.option("--all-tasks", is_flag=True, help="Include ended tasks.")
@with_output
@with_client
def restart(
    client: ApiClient,
    screen: Screen,
    alloc_id: str,
    word: str | None,
    *,
    task: str | None,
    all_tasks: bool,
) -> None:
    """Restart TASK of ALLOCATION, or all its running tasks, in place.

    Example: steward alloc restart 5d3c9a12 web
    """
    allocation = resolve.allocation(client, alloc_id)
    name = _named(allocation, task, word)
    if name and all_tasks:
        raise Invalid(f"-all-tasks and task {name!r} exclude each other: pass only one")
    body = {"TaskName": name, "AllTasks": all_tasks}
    client.act("PUT", f"/v1/client/allocation/{segment(allocation.id)}/restart", body)
    screen.report(f"{_describe_target(screen, allocation, name)}: restarted")


@click.command()
@_ALLOCATION
@_WORD
@_TASK
@click.option(
    "-s", "--signal", "name", default="SIGKILL", help="Name of the signal [default: SIGKILL]."
)
@with_output
@with_client
def signal(
    client: ApiClient,
    screen: Screen,
    alloc_id: str,
    word: str | None,
    *,
    task: str | None,
    name: str,
) -> None:
    """Send a signal to TASK of ALLOCATION, or to all its running tasks.

    Example: steward alloc signal -s SIGHUP 5d3c9a12
    """
    _check_signal(name)
    allocation = resolve.allocation(client, alloc_id)
    chosen = _named(allocation, task, word)
    body = {"Signal": name, "Task": chosen}
    warnings = client.act("PUT", f"/v1/client/allocation/{segment(allocation.id)}/signal", body)
    target = _describe_target(screen, allocation, chosen)
    screen.report_change(f"{target}: sent {name}", warnings)


def _check_signal(name: str) -> None:
    """Raise `Invalid` for an unknown name, because the daemon would send SIGINT instead."""
    signals = {signal.removeprefix("SIG"): signal for signal in Signals.__members__}
    requested = name.upper().removeprefix("SIG")
    if requested in signals:
        return
    numbered = [signal.name for signal in Signals if name == str(signal.value)]
    similar = numbered or [signals[near] for near in get_close_matches(requested, signals, 1)]
    remedy = f"did you mean {similar[0]}?" if similar else "use a name such as SIGTERM"
    raise Invalid(f"there is no signal {name!r}: {remedy}")


@click.command()
@_ALLOCATION
@click.option("--no-shutdown-delay", is_flag=True, help="Do not wait before stopping the tasks.")
@DETACH
@with_output
@with_client
def stop(
    client: ApiClient, screen: Screen, alloc_id: str, *, no_shutdown_delay: bool, detach: bool
) -> int:
    """Stop ALLOCATION; the scheduler replaces it if the job still needs it.

    Example: steward alloc stop 5d3c9a12
    """
    allocation = resolve.allocation(client, alloc_id)
    path = f"/v1/allocation/{segment(allocation.id)}/stop"
    answer = client.send("POST", path, no_shutdown_delay=no_shutdown_delay)
    return followed(client, screen, answer, allocation.job_id, detach=detach)


def _describe_target(screen: Screen, allocation: AllocationDetail, task: str) -> str:
    tasks = f'task "{task}"' if task else "all tasks"
    return f"{tasks} of {screen.short(allocation.id)} ({allocation.name})"
