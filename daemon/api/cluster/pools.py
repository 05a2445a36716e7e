"""Node pools: list, read, create, update, delete, and their jobs and nodes."""

import os

import msgspec

from daemon.api.cluster.nodes import node_list_item
from daemon.api.paging import Listing, query_factory, show
from daemon.jobs import node_pools as rules
from daemon.jobspec.filter import compile_filter
from daemon.runner.drivers.slurm.commands import SlurmCommands
from daemon.runner.drivers.slurm.pool_check import check_pool
from daemon.web import reply
from daemon.web.reply import HandlerReply
from daemon.web.request import Request
from storage.errors import Denied, Malformed, NotFound
from storage.queries import job_listings, node_pools, nodes
from storage.read_pool import ReadSnapshot
from storage.records.base import Record
from storage.records.codec import encode
from storage.records.node_pool import NodePool
from storage.records.pool_check import PoolCheck


def visible_pools(request: Request, db: ReadSnapshot) -> list[NodePool]:
    """Return the pools that the caller may read, by name."""
    sees = request.caller.grant.may_with_pool
    return [pool for pool in node_pools.list_all(db) if sees(pool.name, "read")]


def index(request: Request, db: ReadSnapshot) -> HandlerReply:
    """List the pools."""
    expression = request.query.text("filter")
    matches = compile_filter(expression, NodePool) if expression else None
    sees, to_page_request = request.caller.grant.may_with_pool, query_factory(request, None, {})
    listing = Listing[NodePool](
        rows=lambda db, start, reverse: node_pools.page(db, to_page_request(start, reverse)),
        key=lambda pool: ("", pool.name),
        line=lambda _, pool: encode(pool),
        wanted=lambda _, pool: (
            sees(pool.name, "read") and (matches is None or matches(msgspec.to_builtins(pool)))
        ),
        is_number=False,
    )
    return show(listing, request.query, db, _index(db))


def read(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Show a pool."""
    pool = _find(request, db)
    return reply.read_reply(pool, pool.modify_index)


def pool_jobs(request: Request, db: ReadSnapshot) -> HandlerReply:
    """List the jobs of a pool, in the namespaces in which the caller may list jobs."""
    pool, grant = _find(request, db), request.caller.grant
    to_page_request = query_factory(request, None, {})
    listing = Listing[job_listings.JobListingRow](
        rows=lambda db, start, reverse: job_listings.listing_rows(
            db, to_page_request(start, reverse)
        ),
        key=lambda row: (row.namespace, row.id),
        line=lambda _, row: row.line,
        wanted=lambda _, job_listing: (
            grant.may(job_listing.namespace, "list-jobs")
            and _pool_of(job_listing.line) == pool.name
        ),
        is_number=False,
    )
    return show(listing, request.query, db, db.table_index("jobs"))


class _InPool(Record, frozen=True, kw_only=True):
    node_pool: str


def _pool_of(line: bytes) -> str:
    return msgspec.json.decode(line, type=_InPool).node_pool


def pool_nodes(request: Request, db: ReadSnapshot) -> HandlerReply:
    """List the nodes of a pool."""
    pool, query = _find(request, db), request.query
    resources, system = query.flag("resources"), query.flag("os")
    members = [
        node_list_item(db, node, resources=resources, system=system)
        for node in nodes.list_readable(db)
        if pool.name in ("all", node.node_pool)
    ]
    return reply.read_reply(members, db.table_index("nodes"))


async def write(request: Request) -> HandlerReply:
    """Create or update a pool; a name in the path must match the body."""
    pool = await request.decoded(NodePool)
    if "name" in request.parameters and pool.name != request["name"]:
        raise Malformed("Node pool name does not match request path")
    if not request.caller.grant.may_with_pool(pool.name, "write"):
        raise Denied
    return HandlerReply(index=await rules.apply(request.parts.store, pool))


async def remove(request: Request) -> HandlerReply:
    """Delete a pool that has neither nodes nor jobs."""
    if not request.caller.grant.may_with_pool(request["name"], "delete"):
        raise Denied
    parts = request.parts
    return HandlerReply(index=await rules.remove(parts.store, request["name"], parts.config.region))


async def check(request: Request) -> HandlerReply:
    """Test the daemon's connection to the cluster of a pool; nothing is submitted."""
    name, config = request["name"], request.parts.config
    pool = config.pools.get(name)
    if pool is None:
        raise NotFound(
            f"pool {name!r} is not a cluster pool: the configuration has no [pools.{name}]"
        )
    tools = SlurmCommands(
        path=os.environ.get("PATH", os.defpath),
        launcher=request.parts.logs.launcher,
        config=pool.cluster_config,
    )
    partition = pool.partition or name
    pool_findings = await check_pool(tools, partition, config.wrapper_url)
    pool_check = PoolCheck(
        pool=name, engine=pool.engine, partition=partition, findings=pool_findings
    )
    return HandlerReply(body=pool_check)


def _find(request: Request, db: ReadSnapshot) -> NodePool:
    if not request.caller.grant.may_with_pool(request["name"], "read"):
        raise Denied
    for pool in visible_pools(request, db):
        if pool.name == request["name"]:
            return pool
    raise NotFound("node pool not found", index=_index(db))


def _index(db: ReadSnapshot) -> int:
    return max(db.table_index("node_pools"), 1)
