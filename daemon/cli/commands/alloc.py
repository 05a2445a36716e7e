"""`alloc status`: all allocations, or one allocation with its tasks, resources and events."""

import time
from collections.abc import Mapping, Sequence

import click

from daemon.cli.commands.status import show_allocations, show_error
from daemon.cli.core import resolve, usage
from daemon.cli.core.follow import error_of
from daemon.cli.core.formatting import format_api_time, format_time, relative_time
from daemon.cli.core.http_client import ApiClient, RequestRejected, decode, segment
from daemon.cli.core.options import with_client, with_output
from daemon.cli.core.output import Screen
from daemon.cli.core.responses import AllocationDetail, AllocationItem
from daemon.text.placement_message import count_noun
from daemon.text.task_failure import plain_reason
from storage.records.allocation import TaskStateWithEvents
from storage.records.base import SECOND
from storage.records.job import Job
from storage.records.node import DriverLimit, Node
from storage.records.service import CheckResult
from storage.records.usage import AllocationUsage
from storage.records.usage_history import UsageHistory


@click.command()
@click.argument("alloc_id", metavar="[ALLOCATION]", required=False)
@click.option("--short", "brief", is_flag=True, help="Leave out the events of tasks.")
@click.option("--stats", is_flag=True, help="Also show the current resource usage of tasks.")
@with_output
@with_client
def status(
    client: ApiClient, screen: Screen, alloc_id: str | None, *, brief: bool, stats: bool
) -> None:
    """List the allocations, or show ALLOCATION; a unique prefix of its ID is enough.

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
    if (error := error_of(client, allocation.id)) is not None:
        show_error(screen, error)
    for name, state in sorted((allocation.task_states or {}).items()):
        show_task(screen, allocation, name, state, brief=brief)
    if stats:
        path = f"/v1/client/allocation/{segment(allocation.id)}/stats"
        used = client.fetch(path, AllocationUsage)
        usage.show_tasks(
            screen, used, allocation.allocated_resources, _last_hour(client, allocation.id)
        )
    show_limits(screen, client.fetch(f"/v1/node/{segment(allocation.node_id)}", Node), allocation)
    screen.hint(f"Stream its output: steward logs -f {screen.short(allocation.id)}")


def _last_hour(client: ApiClient, alloc_id: str) -> UsageHistory | None:
    """Return the usage of the last hour; None if the daemon has no usage history."""
    query = {"from": "1h", "step": "1m"}
    try:
        return client.fetch(f"/v1/allocation/{segment(alloc_id)}/history", UsageHistory, **query)
    except RequestRejected:  # an older daemon, or Nomad
        return None


@click.command()
@click.argument("alloc_id", metavar="ALLOCATION")
@with_output
@with_client
def checks(client: ApiClient, screen: Screen, alloc_id: str) -> None:
    """Show the latest results of the service checks of ALLOCATION.

    Example: steward alloc checks 5d3c9a12
    """
    allocation = resolve.allocation(client, alloc_id)
    answer = client.read(f"/v1/client/allocation/{segment(allocation.id)}/checks")
    if screen.wants_document:
        screen.document(answer.checked(dict[str, CheckResult]))
        return
    results = {} if answer.body == b"null" else answer.decode(dict[str, CheckResult])
    screen.line(f"Status of {count_noun(len(results), 'check')}")
    now = time.time_ns()
    for check_result in sorted(
        results.values(), key=lambda check: (check.service, check.task, check.check)
    ):
        screen.line()
        screen.facts(
            [
                ("ID", check_result.id),
                ("Name", check_result.check),
                ("Group", check_result.group),
                ("Task", check_result.task or "(group)"),
                ("Service", check_result.service),
                ("Status", check_result.status),
                *(
                    [("StatusCode", str(check_result.status_code))]
                    if check_result.status_code
                    else []
                ),
                ("Mode", check_result.mode),
                ("Timestamp", relative_time(check_result.timestamp * SECOND, now)),
                ("Output", check_result.output),
            ]
        )


def _list(client: ApiClient, screen: Screen) -> None:
    answer = client.read("/v1/allocations")
    if screen.wants_document:
        screen.document(answer.checked(list[AllocationItem]))
        return
    show_allocations(screen, answer.decode(list[AllocationItem]))


def show_overview(screen: Screen, allocation: AllocationDetail) -> None:
    """Print the properties and the status of an allocation."""
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
        ("Created", relative_time(allocation.create_time, now)),
        ("Modified", relative_time(allocation.modify_time, now)),
    ]
    screen.facts([*pairs, *_links(screen, allocation), *_tries(allocation)])


def _tries(allocation: AllocationDetail) -> list[tuple[str, str]]:
    """Return lines with the number of reschedule attempts, and the time of the next attempt."""
    tracker = allocation.retry
    if tracker is None:
        return []
    return [
        ("Placed", count_noun(tracker.attempts, "time")),
        ("Restarted", count_noun(tracker.restarts, "time")),
        ("Next Try", tracker.message),
    ]


def _links(screen: Screen, allocation: AllocationDetail) -> list[tuple[str, str]]:
    """Return the related objects of an allocation: its deployment, predecessor and successor."""
    pairs = []
    if allocation.deployment_id:
        health = allocation.deployment_status
        healthy = health.healthy if health else None
        words = {None: "unset", True: "healthy", False: "unhealthy"}
        pairs.append(("Deployment ID", screen.short(allocation.deployment_id)))
        pairs.append(("Deployment Health", words[healthy]))
    if allocation.previous_allocation:
        pairs.append(("Previous Alloc ID", screen.short(allocation.previous_allocation)))
    if allocation.next_allocation:
        pairs.append(("Replacement Alloc ID", screen.short(allocation.next_allocation)))
    if allocation.followup_eval_id and not allocation.next_allocation:
        pairs.append(("Tried Again By", f"eval {screen.short(allocation.followup_eval_id)}"))
    return pairs


def show_ports(screen: Screen, allocation: AllocationDetail) -> None:
    """Print the ports of an allocation."""
    ports = allocation.allocated_resources.shared.ports
    if not ports:
        return
    screen.title("Allocation Addresses")
    screen.table(
        ["Label", "Address"], [[port.label, f"{port.host_ip}:{port.value}"] for port in ports]
    )


def show_task(
    screen: Screen,
    allocation: AllocationDetail,
    name: str,
    state: TaskStateWithEvents,
    *,
    brief: bool,
) -> None:
    """Print the state of a task, its resources, and its events, newest first."""
    failed = " (failed)" if state.failed else ""
    screen.title(f'Task "{name}" is "{state.state}"{failed}')
    allocated = allocation.allocated_resources.tasks.get(name)
    if allocated is not None:
        disk = allocation.allocated_resources.shared.disk_mb
        screen.table(
            ["CPU", "Memory", "Disk"],
            [
                [
                    f"{allocated.cpu.cpu_shares} MHz",
                    f"{allocated.memory.memory_mb} MiB",
                    f"{disk} MiB",
                ]
            ],
        )
    screen.facts(
        [
            ("Started At", format_api_time(state.started_at)),
            ("Finished At", format_api_time(state.finished_at)),
            ("Total Restarts", str(state.restarts)),
            ("Last Restart", format_api_time(state.last_restart)),
        ]
    )
    if brief or not state.events:
        return
    screen.line()
    screen.table(
        ["Time", "Type", "Description"],
        [
            [format_time(event.time), event.type, plain_reason(event.display_message)]
            for event in reversed(state.events)
        ],
    )


def show_limits(screen: Screen, node: Node, allocation: AllocationDetail) -> None:
    """Print the limits that the tasks' drivers enforce on this node, and the unenforced limits."""
    if bytes(allocation.job) == b"null":  # its job version was purged
        return
    group = decode(bytes(allocation.job), Job).group(allocation.task_group)
    drivers = {task.driver for task in (group.tasks if group else None) or ()}
    show_enforcement(screen, {driver: node.limits(driver) for driver in drivers})


def unenforced(limits: Mapping[str, Sequence[DriverLimit]]) -> str:
    """Return a line with the limits that are not enforced; empty if all limits are enforced."""
    parts = [
        f"{driver}: {', '.join(names)}"
        for driver, driver_limits in sorted(limits.items())
        if (
            names := [
                driver_limit.name for driver_limit in driver_limits if not driver_limit.enforced
            ]
        )
    ]
    return f"Not enforced here: {'; '.join(parts)}" if parts else ""


def show_enforcement(screen: Screen, limits: Mapping[str, Sequence[DriverLimit]]) -> None:
    """Print the limits that the drivers enforce, and the unenforced limits."""
    for title, enforced in (("Enforced Here", True), ("Not Enforced Here", False)):
        lines = [
            f"{driver_limit.name}: {driver_limit.how}"
            for _, driver_limits in sorted(limits.items())
            for driver_limit in driver_limits
            if driver_limit.enforced is enforced
        ]
        if lines:
            screen.title(title)
            for line in dict.fromkeys(lines):
                screen.line(line)
