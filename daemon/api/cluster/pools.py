"""Pools of nodes: list, read, create or change, remove, and their jobs and nodes."""

import os

import msgspec

from daemon.api.cluster.nodes import stub
from daemon.api.paging import Listing, paginate, show, wish_of
from daemon.jobs import node_pools as rules
from daemon.jobspec.filter import compile_filter
from daemon.runner.drivers.slurm.examine import examine
from daemon.runner.drivers.slurm.tools import Tools
from daemon.web import reply
from daemon.web.reply import Reply
from daemon.web.request import Request
from storage.errors import Denied, Malformed, NotFound
from storage.queries import job_listings, node_pools, nodes
from storage.readers import Snapshot
from storage.records.base import Record
from storage.records.codec import encode
from storage.records.node_pool import NodePool
from storage.records.pool_check import PoolCheck


def visible_pools(request: Request, db: Snapshot) -> list[NodePool]:
    """Return the pools that the caller may read, by name."""
    sees = request.caller.grant.may_with_pool
    return [pool for pool in node_pools.every(db) if sees(pool.name, "read")]


def index(request: Request, db: Snapshot) -> Reply:
    """List the pools."""
    query = request.query
    pools = [
        pool for pool in visible_pools(request, db) if pool.name.startswith(query.text("prefix"))
    ]
    if expression := query.text("filter"):
        matches = compile_filter(expression, NodePool)
        pools = [pool for pool in pools if matches(msgspec.to_builtins(pool))]
    page = paginate(pools, lambda pool: ("", pool.name), encode, query)
    return reply.read(page.body, _index(db), next_token=page.next_token)


def read(request: Request, db: Snapshot) -> Reply:
    """Show a pool."""
    found = _find(request, db)
    return reply.read(found, found.modify_index)


def pool_jobs(request: Request, db: Snapshot) -> Reply:
    """List the jobs that ask for a pool, as far as the caller may list them."""
    pool, grant = _find(request, db), request.caller.grant
    wish = wish_of(request, None, {})
    listing = Listing[job_listings.Stub](
        rows=lambda db, start, reverse: job_listings.stubs(db, wish(start, reverse)),
        key=lambda one: (one.namespace, one.id),
        line=lambda _, one: one.line,
        wanted=lambda _, one: (
            grant.may(one.namespace, "list-jobs") and _pool_of(one.line) == pool.name
        ),
        is_number=False,
    )
    return show(listing, request.query, db, db.table_index("jobs"))


class _InPool(Record, frozen=True, kw_only=True):
    node_pool: str


def _pool_of(line: bytes) -> str:
    return msgspec.json.decode(line, type=_InPool).node_pool


def pool_nodes(request: Request, db: Snapshot) -> Reply:
    """List the nodes of a pool."""
    pool, query = _find(request, db), request.query
    resources, system = query.flag("resources"), query.flag("os")
    found = [
        stub(db, node, resources=resources, system=system)
        for node in nodes.every(db)
        if pool.name in ("all", node.node_pool)
    ]
    return reply.read(found, db.table_index("nodes"))


async def write(request: Request) -> Reply:
    """Create a pool, or change it when it exists; a path with a name must name the same."""
    pool = await request.decoded(NodePool)
    if "name" in request.parameters and pool.name != request["name"]:
        raise Malformed("Node pool name does not match request path")
    if not request.caller.grant.may_with_pool(pool.name, "write"):
        raise Denied
    return Reply(index=await rules.apply(request.parts.store, pool))


async def remove(request: Request) -> Reply:
    """Remove a pool without nodes and jobs."""
    if not request.caller.grant.may_with_pool(request["name"], "delete"):
        raise Denied
    parts = request.parts
    return Reply(index=await rules.remove(parts.store, request["name"], parts.config.region))


async def check(request: Request) -> Reply:
    """Look at the way to the cluster of a pool, as the daemon goes it; nothing is submitted."""
    name, config = request["name"], request.parts.config
    pool = config.pools.get(name)
    if pool is None:
        raise NotFound(
            f"pool {name!r} is none of a cluster: the configuration has no [pools.{name}]"
        )
    tools = Tools(path=os.environ.get("PATH", os.defpath), config=pool.cluster_config)
    partition = pool.partition or name
    found = await examine(tools, partition, config.wrapper_url)
    shown = PoolCheck(pool=name, engine=pool.engine, partition=partition, findings=found)
    return Reply(body=shown)


def _find(request: Request, db: Snapshot) -> NodePool:
    if not request.caller.grant.may_with_pool(request["name"], "read"):
        raise Denied
    for pool in visible_pools(request, db):
        if pool.name == request["name"]:
            return pool
    raise NotFound("node pool not found", index=_index(db))


def _index(db: Snapshot) -> int:
    return max(db.table_index("node_pools"), 1)
