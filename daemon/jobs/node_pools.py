"""User-defined node pools; jobs in a pool are blocked until a node joins it."""

import base64
import hashlib
import re
from collections.abc import Iterator

import msgspec

from daemon.text.go_format import multi_error, quote
from storage.errors import Invalid, NotFound, Refused
from storage.queries import node_pools, nodes
from storage.records.base import HOUR
from storage.records.node_pool import BUILT_IN, NodePool
from storage.store import Store
from storage.writer import Transaction

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_MAX_DESCRIPTION = 256
_IDENTITY_TTL = 24 * HOUR


async def apply(store: Store, pool: NodePool) -> int:
    """Create or update a pool; return the index of the write. Raises `Invalid`."""
    if faults := list(_faults(pool)):
        raise Invalid(f"invalid node pool {quote(pool.name)}: {multi_error(faults)}")
    if pool.name in BUILT_IN:
        raise Invalid(f"modifying node pool {quote(pool.name)} is not allowed")
    complete = msgspec.structs.replace(
        pool, hash=_hash_of(pool), node_identity_ttl=pool.node_identity_ttl or _IDENTITY_TTL
    )

    def write(tx: Transaction) -> int:
        node_pools.put(tx, complete)
        return tx.index

    return await store.write(write)


def _faults(pool: NodePool) -> Iterator[str]:
    if not _NAME.fullmatch(pool.name):
        yield f"invalid name {quote(pool.name)}, must match regex ^[a-zA-Z0-9-_]{{1,128}}$"
    if len(pool.description.encode()) > _MAX_DESCRIPTION:
        yield f"description longer than {_MAX_DESCRIPTION}"
    if pool.scheduler_configuration:
        yield (
            "SchedulerConfiguration is not supported: one configuration applies to all pools, "
            "at /v1/operator/scheduler/configuration"
        )


async def remove(store: Store, name: str, region: str) -> int:
    """Delete a pool without nodes and jobs; return the index of the write.

    Raises `Refused` or `NotFound`.
    """

    def write(tx: Transaction) -> int:
        if name in BUILT_IN:
            raise Refused(f"deleting node pool {quote(name)} is not allowed")
        pool = next(
            (node_pool for node_pool in node_pools.list_all(tx) if node_pool.name == name), None
        )
        if pool is None:
            raise NotFound("node pool not found", index=tx.index)
        if any(node.node_pool == name for node in nodes.list_all(tx)):
            raise Refused(f"node pool {quote(name)} has nodes in regions: [{region}]")
        if node_pools.has_jobs(tx, name):
            raise Refused(f"node pool {quote(name)} has non-terminal jobs in regions: [{region}]")
        node_pools.remove(tx, pool)
        return tx.index

    return await store.write(write)


def _hash_of(pool: NodePool) -> str:
    """Return a hash that changes with every user setting."""
    pieces = [pool.name, pool.description, str(pool.node_identity_ttl)]
    for name, value in sorted((pool.meta or {}).items()):
        pieces += name, value
    digest = hashlib.blake2b("\0".join(pieces).encode(), digest_size=32).digest()
    return base64.b64encode(digest).decode()
