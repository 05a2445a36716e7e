"""The identity of a node: its claims, its expiry, and its renewal on request.

A node renews its identity when a third of the TTL remains; its node pool sets the TTL. So the
current identity can be computed from the creation time of the first identity. A requested renewal
creates a new first identity.
"""

import uuid

import msgspec

from daemon.api.cluster.node_metadata import find_node, named_node
from daemon.web.reply import HandlerReply
from daemon.web.request import Request
from storage.queries import installation, node_pools, settings
from storage.read_pool import ReadSnapshot
from storage.records.base import SECOND, Record
from storage.records.node import Node
from storage.records.workload import AUDIENCE
from storage.writer import Transaction

_TTL = 24 * 3600  # seconds; for a pool without its own TTL


class NodeIdentityRenewRequest(Record, frozen=True, kw_only=True):
    """The request for a new identity of a node, by default of the daemon's own node."""

    node_id: str = ""


class NodeIdentityGetResponse(Record, frozen=True, kw_only=True):
    """The claims of a node's identity."""

    claims: dict[str, object]


class _First(msgspec.Struct, frozen=True):
    """The first identity of a sequence: its ID, and its creation time in seconds."""

    id: str
    made: int


def read(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Show the claims of the identity of the node `node_id`, by default the daemon's own node."""
    node = find_node(request, db, request.query.text("node_id"))
    text = settings.find(db, _name(node.id))
    if text:
        first = msgspec.json.decode(text, type=_First)
    else:
        first = _First(node.id, installation.created_at(db) // SECOND)
    ttl = _identity_ttl(db, node)
    region, now = request.parts.config.region, request.parts.clock.now() // SECOND
    return HandlerReply(
        body=NodeIdentityGetResponse(claims=claims_of(node, region, first, ttl, now))
    )


async def renew(request: Request) -> HandlerReply:
    """Issue a new identity for a node. Raises `Malformed`."""
    parts = request.parts
    renewal = await request.decoded(NodeIdentityRenewRequest) if request.body else None
    name_or_id = named_node(request, renewal.node_id if renewal else "")
    first_identity = _First(next(parts.ids), parts.clock.now() // SECOND)

    def write(tx: Transaction) -> None:
        node = find_node(request, tx, name_or_id)
        settings.put(tx, _name(node.id), msgspec.json.encode(first_identity).decode())

    await parts.store.write(write)
    return HandlerReply(body={})


def claims_of(node: Node, region: str, first: _First, ttl: int, now: int) -> dict[str, object]:
    """Return the current claims of a node, computed from its first identity; times in seconds.

    `region` is part of the subject, and `ttl` is the lifetime of an identity.
    """
    number = max(now - first.made, 0) // max(ttl * 2 // 3, 1)
    issued_at = first.made + number * max(ttl * 2 // 3, 1)
    claims = {
        "aud": [AUDIENCE],
        "exp": issued_at + ttl,
        "iat": issued_at,
        "jti": str(uuid.uuid5(uuid.NAMESPACE_OID, f"{first.id}/{number}")) if number else first.id,
        "nbf": issued_at,
        "nomad_node_class": node.node_class,
        "nomad_node_datacenter": node.datacenter,
        "nomad_node_id": node.id,
        "nomad_node_pool": node.node_pool,
        "sub": f"node:{region}:{node.node_pool}:{node.id}:default",
    }
    return {name: value for name, value in claims.items() if value != ""}


def _identity_ttl(db: ReadSnapshot, node: Node) -> int:
    """Return the lifetime of an identity for a node's pool, in seconds."""
    ttl = node_pools.identity_ttl(db, node.node_pool)
    return _TTL if ttl is None else max(ttl // SECOND, 1)


def _name(node_id: str) -> str:
    return f"node-identity/{node_id}"
