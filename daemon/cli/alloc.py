"""`alloc status`: all allocations, or one with its tasks, what they hold and what happened to them."""

import time
from collections.abc import Mapping, Sequence

import click

from daemon.cli import resolve, usage
from daemon.cli.answers import AllocationLine, ShownAllocation
from daemon.cli.client import Client, decode, segment
from daemon.cli.options import connected, shown
from daemon.cli.output import Screen
from daemon.cli.status import show_allocations
from daemon.cli.text import ago, moment, moment_of
from daemon.wording import several
from storage.records.allocation import TaskStateWithEvents
from storage.records.base import SECOND
from storage.records.job import Job
from storage.records.node import DriverLimit, Node
from storage.records.service import CheckResult
from storage.records.usage import AllocationUsage


@click.command()
@click.argument("alloc_id", metavar="[ALLOCATION]", required=False)
@click.option("--short", "brief", is_flag=True, help="Without the events of its tasks.")
@click.option("--stats", is_flag=True, help="Also what its tasks use at this moment.")
@shown
@connected
def status(
    client: Client, screen: Screen, alloc_id: str | None, *, brief: bool, stats: bool
) -> None:
    """List the allocations, or show ALLOCATION; the beginning of its identifier is enough.

    Example: steward alloc status 5d3c9a12
    """
    if alloc_id is None:
        _list(client, screen)
        return
    allocation = resolve.allocation(client, alloc_id)
    if screen.wants_document:
        path = f"/v1/allocation/{segment(allocation.id)}"
        screen.document(client.read(path, retry=True).body)
        return
    show_overview(screen, allocation)
    show_ports(screen, allocation)
    for name, state in sorted((allocation.task_states or {}).items()):
        show_task(screen, allocation, name, state, brief=brief)
    if stats:
        path = f"/v1/client/allocation/{segment(allocation.id)}/stats"
        used = client.fetch(path, AllocationUsage)
        usage.show_tasks(screen, used, allocation.allocated_resources)
    show_limits(screen, client.fetch(f"/v1/node/{segment(allocation.node_id)}", Node), allocation)
    screen.hint(f"See what it prints with: steward logs -f {screen.short(allocation.id)}")


@click.command()
@click.argument("alloc_id", metavar="ALLOCATION")
@shown
@connected
def checks(client: Client, screen: Screen, alloc_id: str) -> None:
    """Show what the checks of the services of ALLOCATION found last.

    Example: steward alloc checks 5d3c9a12
    """
    allocation = resolve.allocation(client, alloc_id)
    answer = client.read(f"/v1/client/allocation/{segment(allocation.id)}/checks")
    if screen.wants_document:
        screen.document(answer.body)
        return
    found = {} if answer.body == b"null" else answer.decode(dict[str, CheckResult])
    screen.line(f"Status of {several(len(found), 'check')}")
    now = time.time_ns()
    for one in sorted(found.values(), key=lambda one: (one.service, one.task, one.check)):
        screen.line()
        screen.facts(
            [
                ("ID", one.id),
                ("Name", one.check),
                ("Group", one.group),
                ("Task", one.task or "(group)"),
                ("Service", one.service),
                ("Status", one.status),
                *([("StatusCode", str(one.status_code))] if one.status_code else []),
                ("Mode", one.mode),
                ("Timestamp", ago(one.timestamp * SECOND, now)),
                ("Output", one.output),
            ]
        )


def _list(client: Client, screen: Screen) -> None:
    answer = client.read("/v1/allocations")
    if screen.wants_document:
        screen.document(answer.body)
        return
    show_allocations(screen, answer.decode(list[AllocationLine]))


def show_overview(screen: Screen, allocation: ShownAllocation) -> None:
    """Print what an allocation is and what became of it."""
    now = time.time_ns()
    pairs = [
        ("ID", allocation.id),
        ("Eval ID", screen.short(allocation.eval_id)),
        ("Name", allocation.name),
        ("Node ID", screen.short(allocation.node_id)),
        ("Node Name", allocation.node_name),
        ("Job ID", allocation.job_id),
        ("Task Group", allocation.task_group),
        ("Client Status", allocation.client_status),
        ("Client Description", allocation.client_description),
        ("Desired Status", allocation.desired_status),
        ("Desired Description", allocation.desired_description),
        ("Created", ago(allocation.create_time, now)),
        ("Modified", ago(allocation.modify_time, now)),
    ]
    screen.facts([*pairs, *_links(screen, allocation), *_tries(allocation)])


def _tries(allocation: ShownAllocation) -> list[tuple[str, str]]:
    """Return how often an allocation was tried, and what comes next."""
    found = allocation.retry
    if found is None:
        return []
    return [
        ("Placed", several(found.attempts, "time")),
        ("Restarted", several(found.restarts, "time")),
        ("Next Try", found.message),
    ]


def _links(screen: Screen, allocation: ShownAllocation) -> list[tuple[str, str]]:
    """Return what an allocation has to do with others, as far as it has."""
    pairs = []
    if allocation.deployment_id:
        health = allocation.deployment_status
        known = health.healthy if health else None
        words = {None: "unset", True: "healthy", False: "unhealthy"}
        pairs.append(("Deployment ID", screen.short(allocation.deployment_id)))
        pairs.append(("Deployment Health", words[known]))
    if allocation.previous_allocation:
        pairs.append(("Previous Alloc ID", screen.short(allocation.previous_allocation)))
    if allocation.next_allocation:
        pairs.append(("Replacement Alloc ID", screen.short(allocation.next_allocation)))
    if allocation.followup_eval_id and not allocation.next_allocation:
        pairs.append(("Tried Again By", f"eval {screen.short(allocation.followup_eval_id)}"))
    return pairs


def show_ports(screen: Screen, allocation: ShownAllocation) -> None:
    """Print the ports that an allocation holds."""
    ports = allocation.allocated_resources.shared.ports
    if not ports:
        return
    screen.title("Allocation Addresses")
    screen.table(
        ["Label", "Address"], [[port.label, f"{port.host_ip}:{port.value}"] for port in ports]
    )


def show_task(
    screen: Screen,
    allocation: ShownAllocation,
    name: str,
    state: TaskStateWithEvents,
    *,
    brief: bool,
) -> None:
    """Print what a task does, what it holds, and what happened to it, newest first."""
    failed = " (failed)" if state.failed else ""
    screen.title(f'Task "{name}" is "{state.state}"{failed}')
    held = allocation.allocated_resources.tasks.get(name)
    if held is not None:
        disk = allocation.allocated_resources.shared.disk_mb
        screen.table(
            ["CPU", "Memory", "Disk"],
            [[f"{held.cpu.cpu_shares} MHz", f"{held.memory.memory_mb} MiB", f"{disk} MiB"]],
        )
    screen.facts(
        [
            ("Started At", moment_of(state.started_at)),
            ("Finished At", moment_of(state.finished_at)),
            ("Total Restarts", str(state.restarts)),
            ("Last Restart", moment_of(state.last_restart)),
        ]
    )
    if brief or not state.events:
        return
    screen.line()
    screen.table(
        ["Time", "Type", "Description"],
        [
            [moment(event.time), event.type, event.display_message]
            for event in reversed(state.events)
        ],
    )


def show_limits(screen: Screen, node: Node, allocation: ShownAllocation) -> None:
    """Print what the drivers of its tasks hold them to on this node, and what not."""
    if bytes(allocation.job) == b"null":  # its version was purged
        return
    group = decode(bytes(allocation.job), Job).group(allocation.task_group)
    drivers = {task.driver for task in (group.tasks if group else None) or ()}
    show_enforcement(screen, {driver: node.limits(driver) for driver in drivers})


def show_enforcement(screen: Screen, limits: Mapping[str, Sequence[DriverLimit]]) -> None:
    """Print what drivers hold tasks to, and what not."""
    for title, enforced in (("Enforced Here", True), ("Not Enforced Here", False)):
        lines = [
            f"{one.name}: {one.how}"
            for _, found in sorted(limits.items())
            for one in found
            if one.enforced is enforced
        ]
        if lines:
            screen.title(title)
            for line in dict.fromkeys(lines):
                screen.line(line)
