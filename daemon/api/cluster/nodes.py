"""Nodes: list, read, drain, and change the eligibility."""

from functools import partial

import msgspec
from msgspec import UNSET, UnsetType

from daemon.api.cluster.allocations import allocation_detail, filter_of
from daemon.api.identifiers import check_id, check_prefix
from daemon.api.paging import Listing, paginate, query_factory, show
from daemon.evals.node_actions import (
    NodeChangeResult,
    drain_node,
    evaluate_node,
    purge_node,
    set_eligibility,
)
from daemon.jobspec.filter import compile_filter
from daemon.web import reply
from daemon.web.reply import HandlerReply
from daemon.web.request import Request
from storage.errors import NotFound, Refused
from storage.queries import allocated_resources, allocations, cluster_runs, nodes
from storage.read_pool import ReadSnapshot
from storage.records.allocation import Allocation, ClientStatus
from storage.records.base import Record
from storage.records.codec import encode
from storage.records.node import (
    ClusterEngine,
    DrainSpec,
    DriverInfo,
    HostedTask,
    LastDrain,
    Node,
    NodeResources,
    ReservedResources,
)

_SYSTEM = "os.name"  # the attribute that lists show


class NodeHeld(Record, frozen=True, kw_only=True):
    """A node's CPU (MHz) and memory (MiB): reserved by allocations, and in total."""

    cpu: int
    memory_mb: int
    cpu_total: int
    memory_total_mb: int


class NodeStub(Record, frozen=True, kw_only=True):
    """A node in a list."""

    id: str
    address: str
    datacenter: str
    name: str
    node_class: str
    node_pool: str
    version: str
    drain: bool
    last_drain: LastDrain | None
    scheduling_eligibility: str
    status: str
    status_description: str
    drivers: dict[str, DriverInfo]
    host_volumes: dict[str, dict[str, object]]
    engine: ClusterEngine | UnsetType = UNSET  # set for a cluster pool
    attributes: dict[str, str] | UnsetType = UNSET  # the requested attributes
    held: NodeHeld | UnsetType = UNSET  # resources reserved by allocations, if requested
    create_index: int
    modify_index: int


class NodeStubWithResources(NodeStub, frozen=True, kw_only=True):
    """A node in a list with resources."""

    node_resources: NodeResources
    reserved_resources: ReservedResources


def _engine(db: ReadSnapshot, node: Node) -> ClusterEngine | UnsetType:
    if not node.engine:
        return UNSET
    attributes, here = node.attributes, allocated_resources.by_status(db, node.id)
    return ClusterEngine(
        name=node.engine,
        partition=attributes.get("engine.partition", ""),
        version=attributes.get("engine.version", ""),
        reachable=attributes.get("engine.reachable") == "true",
        hosts=node.hosts or [],
        running=here.get(ClientStatus.RUNNING, 0),
        waiting=here.get(ClientStatus.PENDING, 0),
    )


def _held(db: ReadSnapshot, node: Node) -> NodeHeld:
    sums = allocated_resources.sums(db, node.id)
    total, reserved = node.node_resources, node.reserved_resources
    return NodeHeld(
        cpu=sums.cpu,
        memory_mb=sums.memory,
        cpu_total=total.cpu.cpu_shares - reserved.cpu.cpu_shares,
        memory_total_mb=total.memory.memory_mb - reserved.memory.memory_mb,
    )


def node_list_item(
    db: ReadSnapshot, node: Node, *, resources: bool, system: bool, with_allocated: bool = False
) -> NodeStub:
    """Return the list entry of a node.

    With `system`, the entry names the operating system. With `resources`, the entry has the
    resources of the node. With `with_allocated`, the entry also has the allocated resources.
    """
    line = NodeStub(
        id=node.id,
        address=node.http_addr.rpartition(":")[0],
        datacenter=node.datacenter,
        name=node.name,
        node_class=node.node_class,
        node_pool=node.node_pool,
        version=node.attributes.get("nomad.version", ""),
        drain=node.drain,
        last_drain=node.last_drain,
        scheduling_eligibility=node.scheduling_eligibility,
        status=node.status,
        status_description=node.status_description,
        drivers=node.drivers,
        host_volumes=node.host_volumes,
        engine=_engine(db, node),
        attributes={_SYSTEM: node.attributes.get(_SYSTEM, "")} if system else UNSET,
        held=_held(db, node) if with_allocated else UNSET,
        create_index=node.create_index,
        modify_index=node.modify_index,
    )
    if not resources:
        return line
    return NodeStubWithResources(
        **msgspec.structs.asdict(line),
        node_resources=node.node_resources,
        reserved_resources=node.reserved_resources,
    )


def _shown(node: Node) -> object:
    return msgspec.to_builtins(msgspec.structs.replace(node, secret_id=""))


def index(request: Request, db: ReadSnapshot) -> HandlerReply:
    """List the nodes."""
    query = request.query
    prefix, resources, system = query.text("prefix"), query.flag("resources"), query.flag("os")
    with_allocated = query.own_flag("held")
    check_prefix("node", prefix)
    matching = [node for node in nodes.list_readable(db) if node.id.startswith(prefix)]
    if expression := query.text("filter"):  # the filter applies to all fields of a node
        matches = compile_filter(expression, Node)
        matching = [node for node in matching if matches(_shown(node))]
    lines = [
        node_list_item(db, node, resources=resources, system=system, with_allocated=with_allocated)
        for node in matching
    ]
    page = paginate(lines, lambda line: ("", line.id), encode, query)
    return reply.read_reply(page.body, db.table_index("nodes"), next_token=page.next_token)


def read(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Show a node."""
    check_id("node", request["node_id"])
    node = nodes.find(db, request["node_id"])
    if node is None:
        raise NotFound("node not found", index=db.table_index("nodes"))
    return reply.read_reply(node, node.modify_index)


def node_allocations(request: Request, db: ReadSnapshot) -> HandlerReply:
    """List the full records of a node's allocations, newest first."""
    grant, node_id = request.caller.grant, request["node_id"]
    # Steward's own parameters, for the UI's list of running allocations
    holding = request.query.own_flag("holding")
    matches = filter_of(request.query)
    pattern = matches.matches if matches else None
    to_page_request = query_factory(request, pattern, allocations.COLUMNS)

    def wanted(db: ReadSnapshot, alloc: Allocation) -> bool:
        if not grant.may(alloc.namespace, "read-job"):
            return False
        return matches is None or matches(db, alloc)

    listing = Listing[Allocation](
        rows=lambda db, start, reverse: allocations.on_node(
            db, node_id, to_page_request(start, reverse), holding=holding
        ),
        key=lambda alloc: (alloc.create_index, alloc.id),
        line=lambda db, alloc: encode(allocation_detail(db, alloc)),
        wanted=wanted,
        newest_first=True,
    )
    highest = allocations.highest_on_node(db, node_id) or db.table_index("allocations")
    return show(listing, request.query, db, highest)


def hosted_tasks(request: Request, db: ReadSnapshot) -> HandlerReply:
    """List the running tasks of a node that is a cluster, each with its host."""
    grant, node_id = request.caller.grant, request["node_id"]
    if nodes.find(db, node_id) is None:
        raise NotFound("node not found", index=db.table_index("nodes"))
    listing = Listing[cluster_runs.RunningTask](
        rows=lambda db, start, reverse: cluster_runs.running_on(
            db, node_id, start, reverse=reverse
        ),
        key=lambda task: (task.allocation_id, task.task),
        line=lambda _, task: encode(
            HostedTask(host=task.host, allocation_id=task.allocation_id, task=task.task)
        ),
        wanted=lambda _, task: grant.may(task.namespace, "read-job"),
        is_number=False,
    )
    return show(listing, request.query, db, db.table_index("allocations"))


# --- actions ---


class EligibilityRequest(Record, frozen=True, kw_only=True):
    """The body that sets the eligibility of a node."""

    eligibility: str = ""
    node_id: str = ""


class DrainRequest(Record, frozen=True, kw_only=True):
    """The body that starts or cancels the drain of a node."""

    node_id: str = ""
    drain_spec: DrainSpec | None = None
    mark_eligible: bool = False
    meta: dict[str, str] | None = None


class NodeChangeResponse(Record, frozen=True, kw_only=True):
    """The response of Nomad after a change of a node."""

    eval_ids: list[str] | None
    eval_create_index: int
    node_modify_index: int
    index: int


class ServerAddress(Record, frozen=True, kw_only=True):
    """The address of a server, in the form that Nomad sends to a node."""

    rpc_advertise_addr: str = msgspec.field(name="RPCAdvertiseAddr")
    datacenter: str
    rpc_major_version: int = msgspec.field(default=0, name="RPCMajorVersion")
    rpc_minor_version: int = msgspec.field(default=0, name="RPCMinorVersion")


class NodeEvaluateResponse(NodeChangeResponse, frozen=True, kw_only=True):
    """The response of Nomad after the evaluation of a node."""

    leader_rpc_addr: str = msgspec.field(name="LeaderRPCAddr")
    servers: list[ServerAddress]
    num_nodes: int
    scheduling_eligibility: str
    features: int = 0
    heartbeat_ttl: int = 0
    signed_identity: str | None = None
    last_contact: int = 0
    known_leader: bool = False
    next_token: str = ""


async def evaluate(request: Request) -> HandlerReply:
    """Evaluate the jobs with allocations on a node."""
    parts = request.parts
    done = await evaluate_node(parts.store, _id(request), parts.ids, now=parts.clock.now())
    config = parts.config
    address = f"{config.bind}:{config.port}"
    body = NodeEvaluateResponse(
        **msgspec.structs.asdict(_changed(done)),
        leader_rpc_addr=address,
        servers=[ServerAddress(rpc_advertise_addr=address, datacenter=config.datacenter)],
        num_nodes=len(parts.store.read(nodes.list_readable)),
        scheduling_eligibility=done.node.scheduling_eligibility,
    )
    return HandlerReply(body=body, index=done.index)


async def eligibility(request: Request) -> HandlerReply:
    """Set the eligibility of a node."""
    parts, eligibility_request = request.parts, await request.decoded(EligibilityRequest)
    done = await set_eligibility(
        parts.store,
        _named(request, eligibility_request.node_id),
        eligibility_request.eligibility,
        parts.ids,
        now=parts.clock.now(),
    )
    return HandlerReply(body=_changed(done), index=done.index)


async def drain(request: Request) -> HandlerReply:
    """Start the drain of a node and make it ineligible, or cancel the drain."""
    parts, drain_request = request.parts, await request.decoded(DrainRequest)
    done = await drain_node(
        parts.store,
        _named(request, drain_request.node_id),
        drain_request.drain_spec,
        parts.ids,
        mark_eligible=drain_request.mark_eligible,
        meta=drain_request.meta,
        accessor=request.caller.token.accessor,
        now=parts.clock.now(),
    )
    return HandlerReply(body=_changed(done), index=done.index)


async def purge(request: Request) -> HandlerReply:
    """Delete the daemon's own node, which registers again. Raises `Refused` for a pool of a cluster."""
    parts, node_id = request.parts, _id(request)
    if parts.store.read(partial(nodes.find, node_id=node_id)) is None:
        raise Refused("node not found")
    if node_id != parts.tasks.node_id:
        raise Refused(
            f'node "{node_id}" is a pool of a cluster: remove it from the configuration instead; '
            "it stays in the history of its jobs"
        )
    done = await purge_node(parts.store, node_id, parts.ids, now=parts.clock.now())
    return HandlerReply(body=_changed(done), index=done.index)


def _id(request: Request) -> str:
    check_id("node", request["node_id"])
    return request["node_id"]


def _named(request: Request, node_id: str) -> str:
    """Return the node ID in the body, which takes precedence in Nomad, or else the ID in the path.

    `node_id` is the ID in the body, or empty. Raises an error for an invalid ID.
    """
    if not node_id:
        return _id(request)
    check_id("node", node_id)
    return node_id


def _changed(done: NodeChangeResult) -> NodeChangeResponse:
    return NodeChangeResponse(
        eval_ids=done.eval_ids or None,
        eval_create_index=done.index if done.eval_ids else 0,
        node_modify_index=done.node.modify_index,
        index=done.index,
    )
