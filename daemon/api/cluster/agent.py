"""The agent endpoints: configuration, health, and the answers of a cluster with one server."""

import base64
import os
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractContextManager

import trio

from daemon.api.cluster.logs import HEARTBEAT, LogStreamFrame, parse_flag
from daemon.config.settings import GUARDED
from daemon.evals.scheduler_config import ALL, WorkerSettings, set_workers, workers
from daemon.runner.core.poll_interval import BEAT
from daemon.version import VERSION
from daemon.web.parameters import duration
from daemon.web.reply import JSON, TEXT, HandlerReply
from daemon.web.request import Request
from daemon.web.stream_auth import while_authorized
from storage.errors import Malformed, NotFound, Refused
from storage.queries import installation, nodes
from storage.read_pool import ReadSnapshot
from storage.records.base import SECOND, Record
from storage.records.codec import encode
from storage.records.operator_api import Member, Members
from storage.records.times import rfc3339

LEVELS = ("debug", "info", "warning", "error")


class AgentHealth(Record, frozen=True, kw_only=True, rename="lower"):
    """Health of the client or the server part of the daemon."""

    ok: bool
    message: str


def _address(request: Request) -> str:
    config = request.parts.config
    return f"{config.bind}:{config.port}"


def _name(request: Request) -> str:
    config = request.parts.config
    return f"{config.node_name}.{config.region}"


def _member(request: Request, db: ReadSnapshot) -> Member:
    config = request.parts.config
    return Member(
        name=_name(request),
        addr=config.bind,
        port=config.port,
        tags={
            "role": "nomad",
            "region": config.region,
            "dc": config.datacenter,
            "id": installation.cluster_id(db),
            "build": VERSION,
            "port": str(config.port),
            "rpc_addr": config.bind,
            "bootstrap": "1",
            "expect": "1",
            "revision": "",
            "vsn": "1",
            "raft_vsn": "3",
        },
    )


def agent_self(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Show the daemon's configuration and member record, in the form of Nomad."""
    config, node_id = request.parts.config, request.parts.tasks.node_id
    shown_config = {
        "ACL": {"Enabled": config.asks_for_tokens},
        "BindAddr": config.bind,
        "Client": {"Enabled": True},
        "Datacenter": config.datacenter,
        "DevMode": config.dev,
        "EnableDebug": False,
        "LogLevel": config.log_level.upper(),
        "NodeName": config.node_name,
        "Ports": {"HTTP": config.port, "RPC": config.port, "Serf": config.port},
        "Region": config.region,
        "Server": {"Enabled": True},
        "UI": {"Enabled": True},
        "Version": {"Version": VERSION, "Revision": "", "VersionPrerelease": ""},
    }
    index = str(db.last_index())
    stats = {
        "nomad": {
            "server": "true",
            "leader": "true",
            "leader_addr": _address(request),
            "bootstrap": "true",
            "known_regions": "1",
        },
        "client": {"node_id": node_id, "known_servers": _address(request)},
        "raft": {"state": "Leader", "applied_index": index, "last_log_index": index},
        "serf": {"members": "1", "failed": "0", "left": "0"},
        "runtime": {"version": VERSION, "kernel.name": "linux"},
    }
    return HandlerReply(
        body={"config": shown_config, "member": _member(request, db), "stats": stats}
    )


def members(request: Request, db: ReadSnapshot) -> HandlerReply:
    """List the agents of the cluster: only this agent."""
    config = request.parts.config
    body = Members(
        server_name=config.node_name,
        server_region=config.region,
        server_dc=config.datacenter,
        members=[_member(request, db)],
    )
    return HandlerReply(body=body)


def servers(request: Request, db: ReadSnapshot) -> HandlerReply:
    """List the servers that the node knows: only this server."""
    return HandlerReply(body=[_address(request)])


async def set_servers(request: Request) -> HandlerReply:
    """Set the server list of the node; only this server is accepted."""
    addresses = [value for name, value in request.query.pairs if name == "address"]
    if not addresses:
        raise Malformed("missing server address")
    return _only_own(addresses, _address(request))


def _only_own(addresses: list[str], own: str) -> HandlerReply:
    other_servers = [address for address in addresses if address != own]
    if other_servers:
        raise Refused(
            f"{other_servers[0]!r} is another server: this daemon is the only server of its cluster"
        )
    return HandlerReply()


async def join(request: Request) -> HandlerReply:
    """Report that no other server was joined."""
    if not request.query.text("address"):
        raise Malformed("missing address to join")
    return HandlerReply(
        body={"num_joined": 0, "error": "this daemon is the only server of its cluster"}
    )


async def force_leave(request: Request) -> HandlerReply:
    """Accept the removal of an unknown member; there is nothing to do."""
    if not request.query.text("node"):
        raise Malformed("missing node to force leave")
    return HandlerReply()


def schedulers(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Show the worker of the scheduler, unless an operator has set the number of workers to 0."""
    node_id, offered = request.parts.tasks.node_id, workers(db)
    node = nodes.find(db, node_id)  # registered at every start of the daemon
    worker = {
        "id": node_id,
        "enabled_schedulers": offered.kinds,
        "started": rfc3339(node.status_updated_at * SECOND if node else 0),
        "status": "Started",
        "workload_status": "WaitingToDequeue",
    }
    one_per_worker = [worker] * offered.number
    return HandlerReply(body={"server_id": _name(request), "schedulers": one_per_worker})


def scheduler_workers(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Show how many workers the scheduler has, and for which types of jobs."""
    return HandlerReply(body=_workers(request, workers(db)))


class SchedulerWorkerPoolArgs(Record, frozen=True, kw_only=True, rename="lower"):
    """The body that changes the workers of the scheduler."""

    num_schedulers: int = 1
    enabled_schedulers: list[str] | None = None


async def set_scheduler_workers(request: Request) -> HandlerReply:
    """Set the number of workers, 0 or 1, and their job types. Raises `Malformed`."""
    arguments = await request.decoded(SchedulerWorkerPoolArgs)
    kinds = ALL if arguments.enabled_schedulers is None else arguments.enabled_schedulers
    done = await set_workers(request.parts.store, arguments.num_schedulers, kinds)
    return HandlerReply(body=_workers(request, done))


def _workers(request: Request, offered: WorkerSettings) -> dict[str, object]:
    return {
        "server_id": _name(request),
        "num_schedulers": offered.number,
        "enabled_schedulers": offered.kinds,
    }


async def monitor(request: Request) -> HandlerReply:
    """Stream the daemon's log from now on."""
    query = request.query
    level = query.text("log_level").lower() or "info"
    level = {"warn": "warning", "trace": "debug"}.get(level, level)
    if level not in LEVELS:
        raise Malformed(
            f"Unknown log level: {query.text('log_level')[:40]}, must be one of "
            "trace, debug, info, warn, error"
        )
    as_json, plain = parse_flag(query, "log_json"), parse_flag(query, "plain")
    for name in ("node_id", "server_id"):
        _check_here(request, name)
    log = request.parts.monitor.reading(level, as_json=as_json)
    ends = trio.current_time() + _duration(query.text("duration"))
    sent = _sent(log, ends, plain=plain)
    # the reader is registered before the response begins, so no later line is missed
    await anext(sent)
    return HandlerReply(
        stream=while_authorized(request, sent),
        is_endless=True,
        content_type=TEXT if plain else JSON,
    )


def _duration(text: str) -> float:
    """Return the duration of the log stream in seconds; infinity if `text` is empty."""
    if not text:
        return float("inf")
    nanoseconds = duration(text)
    if nanoseconds is None or nanoseconds < 0:
        raise Malformed(f'duration = "{text}" is not a duration such as 10s or 2m')
    return nanoseconds / SECOND


def _check_here(request: Request, name: str) -> None:
    """Raise `NotFound` if the query parameter `name` names another node or server."""
    requested_name, parts = request.query.text(name), request.parts
    own_names = {parts.tasks.node_id, parts.store.read(installation.cluster_id), _name(request)}
    if requested_name and requested_name not in own_names | {"leader", parts.config.node_name}:
        raise NotFound(f'{name} = "{requested_name}" is not known')


async def _sent(
    log: AbstractContextManager[AsyncIterator[str]], ends: float, *, plain: bool
) -> AsyncGenerator[bytes, None]:
    with log as lines:
        yield b""
        if not plain:
            yield HEARTBEAT
        while True:
            line = None
            with trio.move_on_at(min(ends, trio.current_time() + BEAT)):
                line = await anext(lines)
            if line is None:
                if trio.current_time() >= ends:
                    return
                yield b"" if plain else HEARTBEAT
                continue
            data = f"{line}\n".encode()
            yield data if plain else encode(LogStreamFrame(data=base64.b64encode(data).decode()))


def health(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Return the health of the daemon; `type` selects the client or the server part."""
    part = request.query.text("type")
    store = request.parts.store
    damage = store.damage or store.full
    config = request.parts.config
    rights = "ok, but the daemon runs as root" if config.user and os.geteuid() == 0 else "ok"
    server = AgentHealth(ok=not damage, message=damage or (rights if not config.dev else "ok"))
    halves = {"client": _client_health(request), "server": server}
    if part:
        halves = {name: half for name, half in halves.items() if name == part}
    # Numbers only: the route needs no token, and keys contain job names.
    faults = Counter(fault.kind for fault in request.parts.fences.faults())
    unreadable = unreadable_rows(db)
    is_well = all(half.ok for half in halves.values())
    cloud = {"address": f"http://127.0.0.1:{config.dev_cloud_port}"} if config.dev_cloud else {}
    more = {
        name: count
        for name, count in (
            ("faults", faults),
            ("unreadable_rows", unreadable),
            ("dev_cloud", cloud),
        )
        if count
    }
    return HandlerReply(body={**halves, **more}, status=200 if is_well else 500)


def unreadable_rows(db: ReadSnapshot) -> Counter[str]:
    """Return the number of unreadable rows of each table.

    First, the rows that are recorded as unreadable are read again, because they may have been
    repaired.
    """
    if db.unreadable_rows.rows():
        # Imported late, because an intact store never needs it.
        from storage.queries import document_types

        document_types.look_again(db)
    return db.unreadable_rows.by_table()


def _client_health(request: Request) -> AgentHealth:
    parts = request.parts
    if problem := parts.logs.launcher.unresponsive_message(parts.clock.now()):
        return AgentHealth(ok=False, message=problem)
    holds, reason = parts.tasks.egress()
    is_amiss = parts.config.task_egress == GUARDED and not holds
    message = f'task_egress = "{GUARDED}" is not enforced: {reason}' if is_amiss else "ok"
    return AgentHealth(ok=True, message=message)


def leader(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Show the address of the leader, which is this server."""
    return HandlerReply(body=_address(request))


def peers(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Show the addresses of all servers: only the address of this server."""
    return HandlerReply(body=[_address(request)])


def regions(request: Request, db: ReadSnapshot) -> HandlerReply:
    """List the regions: only the region of this server."""
    return HandlerReply(body=[request.parts.config.region])
