"""`node status`: all nodes, or one node with its drivers, resources and allocations."""

import click

from daemon.cli.commands.alloc import unenforced
from daemon.cli.commands.pool import show_hosts
from daemon.cli.core import resolve, usage
from daemon.cli.core.http_client import ApiClient, segment
from daemon.cli.core.options import with_client, with_output
from daemon.cli.core.output import Screen
from daemon.cli.core.responses import AgentSelf, AllocationDetail, NodeListItem
from storage.errors import Invalid
from storage.records.allocation import CLIENT_TERMINAL
from storage.records.node import Node
from storage.records.usage import HostStats


@click.command()
@click.argument("node_id", metavar="[NODE]", required=False)
@click.option("--self", "own", is_flag=True, help="Show the daemon's own node.")
@click.option("--stats", is_flag=True, help="Also show the current usage of its host.")
@with_output
@with_client
def status(
    client: ApiClient, screen: Screen, node_id: str | None, *, own: bool, stats: bool
) -> None:
    """List the nodes, or show NODE; its name or a unique prefix of its ID is enough.

    Example: steward node status -self
    """
    if own:
        node_id = own_id(client)
    if node_id is None:
        _list(client, screen)
        return
    path = f"/v1/node/{segment(resolve.node_id(client, node_id))}"
    answer = client.read(path)
    if screen.wants_document:
        screen.document(answer.checked(Node))
        return
    node = answer.decode(Node)
    show_overview(screen, node)
    if node.engine:
        show_hosts(screen, node.hosts or [])
    _show_drivers(screen, node)
    able = [name for name, info in node.drivers.items() if info.detected and info.healthy]
    if words := unenforced({name: node.limits(name) for name in able}):
        screen.line(f"\n{words}")
    _show_networks(screen, node)
    allocations = client.fetch(f"{path}/allocations", list[AllocationDetail])
    live = [alloc for alloc in allocations if alloc.client_status not in CLIENT_TERMINAL]
    _show_use(screen, node, live)
    if stats and not node.engine:  # a cluster pool is not a host
        usage.show_host(screen, client.fetch("/v1/client/stats", HostStats, node_id=node.id))
    _show_allocations(screen, live)
    _show_map(screen, "Meta", node.meta)
    if screen.verbose:
        _show_map(screen, "Attributes", node.attributes)
    else:
        screen.hint(f"See its attributes with: steward node status -verbose {node.id[:8]}")


def own_id(client: ApiClient) -> str:
    """Return the ID of the daemon's own node. Raises `Invalid` if the daemon has no node."""
    node_id = client.fetch("/v1/agent/self", AgentSelf).stats.get("client", {}).get("node_id")
    if not node_id:
        raise Invalid(f"the daemon at {client.connection.address} runs no node")
    return node_id


def _list(client: ApiClient, screen: Screen) -> None:
    answer = client.read("/v1/nodes")
    if screen.wants_document:
        screen.document(answer.checked(list[NodeListItem]))
        return
    lines = answer.decode(list[NodeListItem])
    if not lines:
        screen.line("No nodes")
        return
    screen.table(
        ["ID", "Node Pool", "DC", "Name", "Class", "Drain", "Eligibility", "Status"],
        [
            [
                screen.short(line.id),
                line.node_pool,
                line.datacenter,
                line.name,
                line.node_class or "<none>",
                str(line.drain).lower(),
                line.scheduling_eligibility,
                line.status,
            ]
            for line in lines
        ],
    )


def show_overview(screen: Screen, node: Node) -> None:
    """Print the properties of a node."""
    screen.facts(
        [
            ("ID", node.id),
            ("Name", node.name),
            ("Node Pool", node.node_pool),
            ("Class", node.node_class),
            ("DC", node.datacenter),
            ("Address", node.http_addr),
            ("Drain", str(node.drain).lower()),
            ("Eligibility", node.scheduling_eligibility),
            ("Status", node.status),
            ("Status Description", node.status_description),
        ]
    )


def _show_drivers(screen: Screen, node: Node) -> None:
    screen.title("Driver Status")
    if not node.drivers:
        screen.line("No drivers")
        return
    screen.table(
        ["Driver", "Detected", "Healthy", "Message"],
        [
            [
                name,
                str(driver.detected).lower(),
                str(driver.healthy).lower(),
                driver.health_description,
            ]
            for name, driver in sorted(node.drivers.items())
        ],
    )


def _show_networks(screen: Screen, node: Node) -> None:
    if not node.host_networks:
        return
    screen.title("Host Networks")
    columns = {"Name": "Name", "IP": "Address", "CIDR": "CIDR", "Interface": "Interface"}
    columns["ReservedPorts"] = "Reserved Ports"
    screen.table(
        list(columns.values()),
        [
            [str(network.get(key) or "<none>") for key in columns]
            for _, network in sorted(node.host_networks.items())
        ],
    )


def _show_use(screen: Screen, node: Node, live: list[AllocationDetail]) -> None:
    """Print the allocated resources of a node."""
    allocated = [task for alloc in live for task in alloc.allocated_resources.tasks.values()]
    cpu = sum(task.cpu.cpu_shares for task in allocated)
    memory = sum(task.memory.memory_mb for task in allocated)
    disk = sum(alloc.allocated_resources.shared.disk_mb for alloc in live)
    has = node.node_resources
    screen.title("Allocated Resources")
    screen.table(
        ["CPU", "Memory", "Disk"],
        [
            [
                f"{cpu}/{has.cpu.cpu_shares - node.reserved_resources.cpu.cpu_shares} MHz",
                f"{memory}/{has.memory.memory_mb - node.reserved_resources.memory.memory_mb} MiB",
                f"{disk}/{has.disk.disk_mb - node.reserved_resources.disk.disk_mb} MiB",
            ]
        ],
    )


def _show_allocations(screen: Screen, live: list[AllocationDetail]) -> None:
    screen.title("Allocations")
    if not live:
        screen.line("No allocations placed")
        return
    screen.table(
        ["ID", "Job ID", "Task Group", "Desired", "Status"],
        [
            [
                screen.short(alloc.id),
                alloc.job_id,
                alloc.task_group,
                alloc.desired_status,
                alloc.client_status,
            ]
            for alloc in live
        ],
    )


def _show_map(screen: Screen, title: str, values: dict[str, str]) -> None:
    if values:
        screen.title(title)
        screen.facts(sorted(values.items()))
