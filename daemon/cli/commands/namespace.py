"""`namespace`: separation of the jobs of different users."""

from collections.abc import Mapping

import click
import msgspec

from daemon.cli.core.http_client import ApiClient, ClientResponse, RequestRejected, segment
from daemon.cli.core.options import with_client, with_output
from daemon.cli.core.output import Screen
from storage.errors import Invalid
from storage.records.namespace import Namespace, NamespaceCapabilities

_LISTS = ("enabled_task_drivers", "disabled_task_drivers")
_NOT_FOUND = 404


@click.command()
@click.argument("name")
@click.option("--description", help="Description.")
@click.option(
    "--meta", multiple=True, metavar="KEY=VALUE", help="Metadata KEY=VALUE; replaces all metadata."
)
@click.option("--enable-driver", multiple=True, metavar="DRIVER", help="Allow only these drivers.")
@click.option(
    "--disable-driver", multiple=True, metavar="DRIVER", help="Allow all drivers except these."
)
@with_output
@with_client
def apply(
    client: ApiClient,
    screen: Screen,
    name: str,
    *,
    description: str | None,
    meta: tuple[str, ...],
    enable_driver: tuple[str, ...],
    disable_driver: tuple[str, ...],
) -> None:
    """Create the namespace NAME, or change its properties.

    Example: steward namespace apply -description "The shop" shop
    """
    namespace = _present(client, name) or Namespace(name=name)
    if description is not None:
        namespace = msgspec.structs.replace(namespace, description=description)
    if meta:
        namespace = msgspec.structs.replace(namespace, meta=_pairs(meta))
    limits = namespace.capabilities or NamespaceCapabilities()
    for field, names in zip(_LISTS, (enable_driver, disable_driver), strict=True):
        if names:
            limits = msgspec.structs.replace(limits, **{field: list(names)})
            namespace = msgspec.structs.replace(namespace, capabilities=limits)
    if warnings := client.act("PUT", f"/v1/namespace/{segment(name)}", namespace):
        screen.warn(f"warning: {warnings}")
    if screen.wants_document:
        screen.document(_read(client, name).object_body("Name"))
        return
    screen.line(f'namespace "{name}" was applied')


@click.command()
@click.argument("name")
@with_output
@with_client
def delete(client: ApiClient, screen: Screen, name: str) -> None:
    """Delete the namespace NAME, which must be empty.

    Example: steward namespace delete shop
    """
    client.act("DELETE", f"/v1/namespace/{segment(name)}")
    screen.report(f'namespace "{name}" was deleted')


@click.command()
@click.argument("name")
@with_output
@with_client
def inspect(client: ApiClient, screen: Screen, name: str) -> None:
    """Print the namespace NAME as JSON.

    Example: steward namespace inspect shop
    """
    screen.document(_read(client, name).object_body("Name"))


@click.command(name="list")
@with_output
@with_client
def index(client: ApiClient, screen: Screen) -> None:
    """List the namespaces.

    Example: steward namespace list
    """
    answer = client.read("/v1/namespaces")
    if screen.wants_document:
        screen.document(answer.checked(list[Namespace]))
        return
    namespaces = answer.decode(list[Namespace])
    screen.table(
        ["Name", "Description"],
        [[namespace.name, namespace.description] for namespace in namespaces],
    )


@click.command()
@click.argument("name")
@with_output
@with_client
def status(client: ApiClient, screen: Screen, name: str) -> None:
    """Show the namespace NAME.

    Example: steward namespace status shop
    """
    answer = _read(client, name)
    if screen.wants_document:
        screen.document(answer.checked(Namespace))
        return
    namespace = answer.decode(Namespace)
    limits = namespace.capabilities or NamespaceCapabilities()
    screen.facts(
        [
            ("Name", namespace.name),
            ("Description", namespace.description),
            ("Enabled Drivers", ", ".join(limits.enabled_task_drivers or ["*"])),
            ("Disabled Drivers", ", ".join(limits.disabled_task_drivers or ())),
        ]
    )
    if namespace.meta:
        screen.title("Metadata")
        screen.facts(sorted(namespace.meta.items()))


def _read(client: ApiClient, name: str) -> ClientResponse:
    return client.read(f"/v1/namespace/{segment(name)}")


def _present(client: ApiClient, name: str) -> Namespace | None:
    try:
        return _read(client, name).decode(Namespace)
    except RequestRejected as error:
        if error.status != _NOT_FOUND:
            raise
        return None


def _pairs(texts: tuple[str, ...]) -> Mapping[str, str]:
    """Return `key=value` strings as a map. Raises `Invalid`."""
    for text in texts:
        if "=" not in text:
            raise Invalid(f"--meta {text!r} is not of the form KEY=VALUE")
    return dict(text.split("=", 1) for text in texts)
