"""Dynamic metadata of a node: read and change.

A dynamic value overrides the configured value of the same key.
"""

import re

from daemon.evals.node_actions import change_meta
from daemon.web.reply import HandlerReply
from daemon.web.request import Request
from storage.errors import Malformed, Refused
from storage.queries import nodes
from storage.read_pool import ReadSnapshot
from storage.records.base import Record
from storage.records.node import Node

_KEY = re.compile(r"[^\W\d][\w-]*(\.[^\W\d][\w-]*)*")
_MOST = 1000  # changed keys of one node
_LONGEST = 4096  # characters of a key or a value


class NodeMetaApplyRequest(Record, frozen=True, kw_only=True):
    """The body that changes metadata; null removes a key."""

    node_id: str = ""
    meta: dict[str, str | None] | None = None


class NodeMetaResponse(Record, frozen=True, kw_only=True):
    """The metadata of a node: all of it, its dynamic part, and its configured part."""

    meta: dict[str, str]
    dynamic: dict[str, str | None]
    static: dict[str, str]


def read(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Show the metadata of the node `node_id`, by default the daemon's own node."""
    node = find_node(request, db, request.query.text("node_id"))
    return HandlerReply(body=_shown(request, node, nodes.meta_changes(db, node.id)))


async def apply(request: Request) -> HandlerReply:
    """Change the metadata of a node persistently."""
    parts, meta_request = request.parts, await request.decoded(NodeMetaApplyRequest)
    if not meta_request.meta:
        raise Malformed("missing required Meta object")
    for key, value in meta_request.meta.items():
        if not _KEY.fullmatch(key):
            raise Malformed(
                f'"{key}" is invalid; metadata keys must be valid dotted hcl identifiers'
            )
        if max(len(key), len(value or "")) > _LONGEST:
            raise Malformed(
                f'"{key[:100]}" is too long: keys and values have at most {_LONGEST} characters'
            )
    name_or_id = named_node(request, meta_request.node_id)
    node = parts.store.read(lambda db: find_node(request, db, name_or_id))
    done, changes = await change_meta(
        parts.store,
        node.id,
        meta_request.meta,
        _static(request, node),
        parts.ids,
        most=_MOST,
        now=parts.clock.now(),
    )
    return HandlerReply(body=_shown(request, done.node, changes))


def named_node(request: Request, in_body: str) -> str:
    """Return the node ID that the request names, or an empty string.

    `in_body` is the node ID in the body. Raises `Malformed` if the body and the query name
    different nodes.
    """
    in_query = request.query.text("node_id")
    if in_body and in_query and in_body != in_query:
        raise Malformed(
            f'NodeID = "{in_body}" in the body and node_id = "{in_query}" specify different nodes'
        )
    return in_body or in_query


def find_node(request: Request, db: ReadSnapshot, node_id: str) -> Node:
    """Return a node; without an ID, the daemon's own node. Raises `Refused`."""
    node = nodes.find(db, node_id or request.parts.tasks.node_id)
    if node is None:
        raise Refused(f"Unknown node {node_id}")
    return node


def _static(request: Request, node: Node) -> dict[str, str]:
    """Return the metadata from a node's configuration; empty for a cluster pool."""
    return {} if node.engine else dict(request.parts.config.node_meta)


def _shown(request: Request, node: Node, changes: nodes.MetaChanges) -> NodeMetaResponse:
    return NodeMetaResponse(meta=node.meta, dynamic=dict(changes), static=_static(request, node))
