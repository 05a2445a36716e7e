"""`node meta`: dynamic metadata of a node, which overrides the metadata in its configuration."""

import click

from daemon.cli.core import resolve
from daemon.cli.core.http_client import ApiClient
from daemon.cli.core.options import with_client, with_output
from daemon.cli.core.output import Screen
from storage.errors import Invalid
from storage.records.base import Record

_PATH = "/v1/client/metadata"
_NODE = click.option(
    "--node-id", metavar="NODE", help="Node ID or name [default: the daemon's own node]."
)


class _Metadata(Record, frozen=True, kw_only=True):
    meta: dict[str, str]
    dynamic: dict[str, str | None]


@click.command()
@click.argument("values", metavar="KEY=VALUE...", nargs=-1)
@_NODE
@click.option("--unset", metavar="KEY,...", default="", help="Keys to remove.")
@with_output
@with_client
def apply(
    client: ApiClient, screen: Screen, values: tuple[str, ...], node_id: str | None, unset: str
) -> None:
    """Change the metadata of a node; the change survives restarts of the daemon.

    Example: steward node meta apply rack=r7 ssd=true
    """
    meta: dict[str, str | None] = {key.strip(): None for key in unset.split(",") if key.strip()}
    for line in values:
        key, sign, value = line.partition("=")
        if not sign or not key:
            raise Invalid(f'"{line}" is not KEY=VALUE')
        meta[key] = value
    if not meta:
        raise Invalid("no changes given: pass KEY=VALUE, or -unset KEY")
    node = resolve.node_id(client, node_id) if node_id else ""
    before = client.fetch(_PATH, _Metadata, node_id=node)
    answer = client.send("POST", _PATH, {"Meta": meta, "NodeID": node})
    if screen.wants_document:
        screen.document(answer.object_body("Meta"))
        return
    after = answer.decode(_Metadata)
    if (before.meta, before.dynamic) == (after.meta, after.dynamic):
        screen.line("The metadata of the node already has these values")
    else:
        screen.line("The metadata of the node was changed")


@click.command()
@_NODE
@with_output
@with_client
def read(client: ApiClient, screen: Screen, node_id: str | None) -> None:
    """Show all metadata of a node, and the entries that override its configuration.

    Example: steward node meta read
    """
    query = {"node_id": resolve.node_id(client, node_id)} if node_id else {}
    answer = client.read(_PATH, **query)
    if screen.wants_document:
        screen.document(answer.checked(_Metadata))
        return
    metadata = answer.decode(_Metadata)
    screen.title("All Meta")
    screen.facts(sorted(metadata.meta.items()))
    if metadata.dynamic:
        screen.title("Changed Meta")
        screen.facts(sorted((key, value or "<unset>") for key, value in metadata.dynamic.items()))
