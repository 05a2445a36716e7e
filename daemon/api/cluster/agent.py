"""The daemon about itself: configuration, health, and the answers of a cluster of one."""

import base64
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractContextManager

import trio

from daemon.api.cluster.logs import HEARTBEAT, Frame, flag
from daemon.config import GUARDED
from daemon.runner.pace import BEAT
from daemon.version import VERSION
from daemon.web.parameters import duration
from daemon.web.readers import while_known
from daemon.web.reply import JSON, TEXT, Reply
from daemon.web.request import Request
from storage.errors import Malformed, NotFound, Refused
from storage.queries import installation, nodes
from storage.readers import Snapshot
from storage.records.base import SECOND, Record
from storage.records.codec import encode
from storage.records.operation import Member, Members
from storage.records.times import rfc3339

SCHEDULERS = ("service", "batch", "system", "sysbatch", "_core")
LEVELS = ("debug", "info", "warning", "error")


class Health(Record, frozen=True, kw_only=True, rename="lower"):
    """Whether a half of the daemon works."""

    ok: bool
    message: str


def _address(request: Request) -> str:
    config = request.parts.config
    return f"{config.bind}:{config.port}"


def _name(request: Request) -> str:
    config = request.parts.config
    return f"{config.node_name}.{config.region}"


def _member(request: Request, db: Snapshot) -> Member:
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


def self_(request: Request, db: Snapshot) -> Reply:
    """Show the daemon's configuration and its member record, as tools of the peer read them."""
    config, node_id = request.parts.config, request.parts.tasks.node_id
    shown = {
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
    return Reply(body={"config": shown, "member": _member(request, db), "stats": stats})


def members(request: Request, db: Snapshot) -> Reply:
    """List the agents of the cluster: this one."""
    config = request.parts.config
    body = Members(
        server_name=config.node_name,
        server_region=config.region,
        server_dc=config.datacenter,
        members=[_member(request, db)],
    )
    return Reply(body=body)


def servers(request: Request, db: Snapshot) -> Reply:
    """List the servers that the node knows: this one."""
    return Reply(body=[_address(request)])


async def set_servers(request: Request) -> Reply:
    """Take the list of servers that a node knows, if it is this one."""
    given = [value for name, value in request.query.pairs if name == "address"]
    if not given:
        raise Malformed("missing server address")
    return _alone(given, _address(request))


def _alone(given: list[str], own: str) -> Reply:
    others = [one for one in given if one != own]
    if others:
        raise Refused(f"{others[0]!r} is another server: this one works alone")
    return Reply()


async def join(request: Request) -> Reply:
    """Join no other server."""
    if not request.query.text("address"):
        raise Malformed("missing address to join")
    return Reply(body={"num_joined": 0, "error": "this server works alone"})


async def force_leave(request: Request) -> Reply:
    """Have a member leave that is not there: nothing to do."""
    if not request.query.text("node"):
        raise Malformed("missing node to force leave")
    return Reply()


def schedulers(request: Request, db: Snapshot) -> Reply:
    """Show the one worker of the scheduler."""
    node_id = request.parts.tasks.node_id
    node = nodes.find(db, node_id)  # registered at every start of the daemon
    worker = {
        "id": node_id,
        "enabled_schedulers": SCHEDULERS,
        "started": rfc3339(node.status_updated_at * SECOND if node else 0),
        "status": "Started",
        "workload_status": "WaitingToDequeue",
    }
    return Reply(body={"server_id": _name(request), "schedulers": [worker]})


def scheduler_workers(request: Request, db: Snapshot) -> Reply:
    """Show how many workers the scheduler has, and for which types of jobs."""
    return Reply(body=_workers(request))


class SchedulerWorkerPoolArgs(Record, frozen=True, kw_only=True, rename="lower"):
    """The body that changes the workers of the scheduler."""

    num_schedulers: int = 1
    enabled_schedulers: list[str] | None = None


async def set_scheduler_workers(request: Request) -> Reply:
    """Take what is so already: one worker for all types of jobs. Raises `Malformed` for the rest."""
    asked = await request.decoded(SchedulerWorkerPoolArgs)
    if asked.num_schedulers != 1:
        raise Malformed(f"num_schedulers = {asked.num_schedulers}: this server has one, always")
    if asked.enabled_schedulers is not None and set(asked.enabled_schedulers) != set(SCHEDULERS):
        wanted = ", ".join(SCHEDULERS)
        raise Malformed(f"enabled_schedulers: the one scheduler works for all of {wanted}, always")
    return Reply(body=_workers(request))


def _workers(request: Request) -> dict[str, object]:
    return {"server_id": _name(request), "num_schedulers": 1, "enabled_schedulers": SCHEDULERS}


async def monitor(request: Request) -> Reply:
    """Show the daemon's log from now on, as it is written."""
    query = request.query
    level = query.text("log_level").lower() or "info"
    level = {"warn": "warning", "trace": "debug"}.get(level, level)
    if level not in LEVELS:
        raise Malformed(f"Unknown log level: {query.text('log_level')}")
    as_json, plain = flag(query, "log_json"), flag(query, "plain")
    for name in ("node_id", "server_id"):
        _check_here(request, name)
    log = request.parts.monitor.reading(level, as_json=as_json)
    ends = trio.current_time() + _duration(query.text("duration"))
    sent = _sent(log, ends, plain=plain)
    await anext(sent)  # it listens before the answer begins: nothing after that is missed
    return Reply(
        stream=while_known(request, sent), is_endless=True, content_type=TEXT if plain else JSON
    )


def _duration(text: str) -> float:
    """Return for how many seconds the log is shown; without a limit unless one is asked for."""
    if not text:
        return float("inf")
    asked = duration(text)
    if asked is None or asked < 0:
        raise Malformed(f'duration = "{text}" is not a span of time such as 10s or 2m')
    return asked / SECOND


def _check_here(request: Request, name: str) -> None:
    """Raise `Refused` for a node or a server that is not this one."""
    asked, parts = request.query.text(name), request.parts
    ours = {parts.tasks.node_id, parts.store.read(installation.cluster_id), _name(request)}
    if asked and asked not in ours | {"leader", parts.config.node_name}:
        raise NotFound(f'{name} = "{asked}" is not known')


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
            yield data if plain else encode(Frame(data=base64.b64encode(data).decode()))


def health(request: Request, db: Snapshot) -> Reply:
    """Tell whether the daemon works; `type` asks for one half only."""
    asked = request.query.text("type")
    damage = request.parts.store.damage
    server = Health(ok=not damage, message=damage or "ok")
    holds, reason = request.parts.tasks.egress()
    is_amiss = request.parts.config.task_egress == GUARDED and not holds
    message = f'task_egress = "{GUARDED}" does not hold: {reason}' if is_amiss else "ok"
    halves = {"client": Health(ok=True, message=message), "server": server}
    if asked:
        halves = {name: half for name, half in halves.items() if name == asked}
    # Numbers only: no token is asked for, and keys name jobs.
    faults = Counter(fault.kind for fault in request.parts.fences.faults())
    is_well = all(half.ok for half in halves.values())
    config = request.parts.config
    cloud = {"address": f"http://127.0.0.1:{config.dev_cloud_port}"} if config.dev_cloud else {}
    more = {name: one for name, one in (("faults", faults), ("dev_cloud", cloud)) if one}
    return Reply(body={**halves, **more}, status=200 if is_well else 500)


def leader(request: Request, db: Snapshot) -> Reply:
    """Show the address of the leader: this one."""
    return Reply(body=_address(request))


def peers(request: Request, db: Snapshot) -> Reply:
    """Show the addresses of all servers: this one."""
    return Reply(body=[_address(request)])


def regions(request: Request, db: Snapshot) -> Reply:
    """List the regions: this one."""
    return Reply(body=[request.parts.config.region])
