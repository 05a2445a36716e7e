"""`service`: registered services and the addresses of their instances."""

import click

from daemon.cli.core.http_client import ApiClient, segment
from daemon.cli.core.options import with_client, with_output
from daemon.cli.core.output import Screen
from storage.errors import NotFound
from storage.records.service import NamespaceServices, Registration


@click.command("list")
@click.option("--filter", "expression", default="", help="Filter expression over services.")
@with_output
@with_client
def index(client: ApiClient, screen: Screen, *, expression: str) -> None:
    """List the services, with the tags of all their instances.

    Example: steward service list -namespace "*"
    """
    answer = client.read("/v1/services", filter=expression)
    if screen.wants_document:
        screen.document(answer.checked(list[NamespaceServices]))
        return
    rows = [
        [service.service_name, of.namespace, ",".join(service.tags)]
        for of in answer.decode(list[NamespaceServices])
        for service in of.services
    ]
    if not rows:
        screen.line("No services")
        return
    screen.table(["Service", "Namespace", "Tags"], rows)


@click.command()
@click.argument("name", metavar="SERVICE")
@click.option("--filter", "expression", default="", help="Filter expression over instances.")
@with_output
@with_client
def info(client: ApiClient, screen: Screen, name: str, *, expression: str) -> None:
    """Show the addresses and allocations of the instances of SERVICE.

    Example: steward service info -filter '"green" in Tags' web
    """
    answer = client.read(f"/v1/service/{segment(name)}", filter=expression)
    if screen.wants_document:
        screen.document(answer.checked(list[Registration]))
        return
    registrations = answer.decode(list[Registration])
    if not registrations:
        raise NotFound(f'no instance of the service "{name}" is registered')
    screen.table(
        ["Job ID", "Address", "Tags", "Node ID", "Alloc ID", "Instance ID"],
        [
            [
                registration.job_id,
                _address(registration),
                ",".join(registration.tags),
                screen.short(registration.node_id),
                screen.short(registration.alloc_id),
                registration.id,
            ]
            for registration in registrations
        ],
    )


def _address(instance: Registration) -> str:
    address, port = instance.address, instance.port
    if not port:
        return address
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


@click.command()
@click.argument("name", metavar="SERVICE")
@click.argument("instance_id", metavar="INSTANCE")
@with_output
@with_client
def delete(client: ApiClient, screen: Screen, name: str, instance_id: str) -> None:
    """Delete INSTANCE of SERVICE; `service info` lists the IDs of instances.

    Example: steward service delete web _nomad-task-8f1c2b-web-http
    """
    client.act("DELETE", f"/v1/service/{segment(name)}/{segment(instance_id)}")
    screen.report(f'instance "{instance_id}" of the service "{name}" was deleted')
