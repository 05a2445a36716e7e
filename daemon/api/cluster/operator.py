"""The operator's side of a cluster of one: its scheduler, and the answers about its servers."""

from daemon.evals.configuration import configuration, configure
from daemon.version import VERSION
from daemon.web import reply
from daemon.web.parameters import BadParameter
from daemon.web.reply import Reply
from daemon.web.request import Request
from storage.errors import Denied, Malformed, Refused
from storage.queries import installation
from storage.readers import Snapshot
from storage.records.operation import (
    AutopilotConfiguration,
    AutopilotHealth,
    FaultShown,
    RaftConfiguration,
    RaftServer,
    SchedulerConfig,
    SchedulerConfigResponse,
    SchedulerConfigUpdated,
    ServerHealth,
)
from storage.records.times import rfc3339

_ALONE = "there is one server, and nothing to take it out of"


def scheduler(request: Request, db: Snapshot) -> Reply:
    """Show the scheduler's configuration."""
    config = configuration(db)
    body = SchedulerConfigResponse(scheduler_config=config, index=config.modify_index)
    return reply.read(body, config.modify_index)


async def set_scheduler(request: Request) -> Reply:
    """Set the scheduler's configuration; with `cas`, only if it is as the caller believes."""
    try:
        wanted = await request.decoded(SchedulerConfig)
    except Malformed as error:
        raise Malformed(f"Error parsing scheduler config: {error}") from None
    try:
        expected = request.query.natural("cas")
    except BadParameter as error:
        reason = str(error).partition(" as a uint64: ")[2]
        raise Malformed(f"Error parsing cas value: {reason}") from None
    updated, index = await configure(request.parts.store, wanted, expected=expected)
    return Reply(body=SchedulerConfigUpdated(updated=updated, index=index), index=index)


def check_accepts(request: Request) -> None:
    """Raise `Denied` when the scheduler's configuration lets only managers bring new work."""
    config = request.parts.store.read(configuration)
    if config.reject_job_registration and not request.caller.grant.everything:
        raise Denied(
            "job registration, dispatch, and scale are disabled by the scheduler configuration"
        )


def faults(request: Request, db: Snapshot) -> Reply:
    """List the units of the daemon's work that failed at their last attempt, the oldest first."""
    found = [
        FaultShown(
            kind=one.kind,
            key=one.key,
            failures=one.failures,
            reason=one.reason,
            since=rfc3339(one.since),
            gives_up=one.is_closed,
        )
        for one in request.parts.fences.faults()
    ]
    return Reply(body=found)


# ---- the servers: this one ---------------------------------------------------------------------------


def raft_configuration(request: Request, db: Snapshot) -> Reply:
    """Show the servers that keep the state."""
    config = request.parts.config
    server = RaftServer(
        id=installation.cluster_id(db),
        node=f"{config.node_name}.{config.region}",
        address=f"{config.bind}:{config.port}",
    )
    return Reply(body=RaftConfiguration(servers=[server]))


async def remove_peer(request: Request) -> Reply:
    """Refuse: this server is the only one. The text for others is the peer's."""
    query, config = request.query, request.parts.config
    mine = {
        "id": request.parts.store.read(installation.cluster_id),
        "address": f"{config.bind}:{config.port}",
    }
    for name, own in mine.items():
        given = query.text(name)
        if given and given != own:
            raise Refused(f'{name} "{given}" was not found in the Raft configuration')
    raise Refused(_ALONE)


async def refuse(request: Request) -> Reply:
    """Refuse what needs several servers."""
    raise Refused(_ALONE)


def autopilot_configuration(request: Request, db: Snapshot) -> Reply:
    """Show how dead servers would be replaced."""
    return Reply(body=AutopilotConfiguration())


def autopilot_health(request: Request, db: Snapshot) -> Reply:
    """Show that the one server is well."""
    config, server_id = request.parts.config, installation.cluster_id(db)
    server = ServerHealth(
        id=server_id,
        name=f"{config.node_name}.{config.region}",
        address=f"{config.bind}:{config.port}",
        version=VERSION,
        last_index=db.last_index(),
        stable_since=rfc3339(installation.created_at(db)),
    )
    return Reply(body=AutopilotHealth(servers=[server], leader=server_id, voters=[server_id]))


def license_(request: Request, db: Snapshot) -> Reply:
    """Tell that none is needed."""
    return Reply(status=204)


async def put_license(request: Request) -> Reply:
    """Take none: there is nothing that a licence would open."""
    return Reply(status=204)
