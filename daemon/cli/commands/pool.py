"""`pool status`: all pools, or one pool with its nodes or, for a cluster pool, its hosts."""

import click

from daemon.cli.core.http_client import ApiClient, segment
from daemon.cli.core.options import with_client, with_output
from daemon.cli.core.output import Screen
from daemon.cli.core.responses import NodeListItem
from storage.errors import Invalid
from storage.records.node import ClusterEngine, EngineHost, HostedTask

_NONE = "<none>"
_UP = "up"


@click.command()
@click.argument("name", metavar="[POOL]", required=False)
@click.option("--tasks", "with_tasks", is_flag=True, help="Also list the running tasks by host.")
@with_output
@with_client
def status(client: ApiClient, screen: Screen, name: str | None, *, with_tasks: bool) -> None:
    """List the pools with their nodes, or show POOL; for a cluster pool, show its hosts.

    Example: steward pool status -tasks hpc
    """
    if with_tasks and name is None:
        raise Invalid("-tasks lists the tasks of one pool: name the pool, such as hpc")
    answer = client.read(f"/v1/node/pool/{segment(name)}/nodes" if name else "/v1/nodes")
    if screen.wants_document:
        screen.document(answer.checked(list[NodeListItem]))
        return
    lines = answer.decode(list[NodeListItem])
    if name is None:
        _list(screen, lines)
        return
    if not lines:
        screen.line(f'No node is in pool "{name}"')
    for line in lines:
        _show(screen, line)
        if with_tasks and isinstance(line.engine, ClusterEngine):
            _show_tasks(
                screen, client.fetch(f"/v1/node/{segment(line.id)}/hosts", list[HostedTask])
            )


def _list(screen: Screen, lines: list[NodeListItem]) -> None:
    if not lines:
        screen.line("No nodes")
        return
    header = ["Pool", "Node", "Engine", "Partition", "Hosts Up", "Running", "Waiting", "Status"]
    screen.table(header, [_row(line) for line in sorted(lines, key=lambda line: line.node_pool)])
    for line in lines:
        if line.status_description:
            screen.warn(f"{line.node_pool}: {line.status_description}")
    screen.hint("See the hosts of a pool with: steward pool status POOL")


def _row(line: NodeListItem) -> list[str]:
    engine = line.engine
    if not isinstance(engine, ClusterEngine):
        return [line.node_pool, line.name, *[_NONE] * 5, _state(line)]
    return [
        line.node_pool,
        line.name,
        engine.name,
        engine.partition,
        f"{_up(engine)}/{len(engine.hosts)}",
        str(engine.running),
        str(engine.waiting),
        _state(line),
    ]


def _state(line: NodeListItem) -> str:
    if line.drain:
        return f"{line.status}, draining"
    closed = line.scheduling_eligibility != "eligible"
    return f"{line.status}, {line.scheduling_eligibility}" if closed else line.status


def _up(engine: ClusterEngine) -> int:
    return sum(host.state == _UP for host in engine.hosts)


def _show(screen: Screen, line: NodeListItem) -> None:
    facts = [("Pool", line.node_pool), ("Node ID", line.id), ("Name", line.name)]
    facts += [("Status", _state(line)), ("Status Description", line.status_description or _NONE)]
    engine = line.engine
    if not isinstance(engine, ClusterEngine):
        screen.facts([*facts, ("Engine", _NONE)])
        return
    screen.facts(
        [
            *facts,
            ("Engine", f"{engine.name} {engine.version}".strip()),
            ("Partition", engine.partition),
            ("Reachable", str(engine.reachable).lower()),
            ("Hosts Up", f"{_up(engine)} of {len(engine.hosts)}"),
            ("Running", str(engine.running)),
            ("Waiting", str(engine.waiting)),
        ]
    )
    show_hosts(screen, engine.hosts)


def _show_tasks(screen: Screen, tasks: list[HostedTask]) -> None:
    screen.title("Tasks by Host")
    if not tasks:
        screen.line("No running tasks")
        return
    sorted_tasks = sorted(tasks, key=lambda task: (task.host, task.allocation_id, task.task))
    screen.table(
        ["Host", "Allocation", "Task"],
        [[hosted.host, screen.short(hosted.allocation_id), hosted.task] for hosted in sorted_tasks],
    )


def show_hosts(screen: Screen, hosts: list[EngineHost]) -> None:
    """Print the hosts of a cluster with their states."""
    screen.title("Hosts")
    if not hosts:
        screen.line("No hosts known")
        return
    screen.table(
        ["Host", "Cores", "Memory", "Features", "State", "Meaning"],
        [
            [
                host.name,
                str(host.cores),
                f"{host.memory_mb} MiB",
                ",".join(host.features) or _NONE,
                host.state,
                host.description,
            ]
            for host in hosts
        ],
    )
