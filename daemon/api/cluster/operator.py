"""The operator endpoints of a cluster with one server: scheduler settings and Raft status."""

from daemon.evals.scheduler_config import configuration, configure
from daemon.fences import Fault
from daemon.version import VERSION
from daemon.web import reply
from daemon.web.parameters import InvalidParameter
from daemon.web.reply import HandlerReply
from daemon.web.request import Request
from storage.errors import Denied, Malformed, Refused
from storage.queries import installation
from storage.read_pool import ReadSnapshot
from storage.records.operator_api import (
    AutopilotConfiguration,
    AutopilotHealth,
    FaultRelease,
    FaultShown,
    RaftConfiguration,
    RaftServer,
    SchedulerConfig,
    SchedulerConfigResponse,
    SchedulerConfigUpdated,
    ServerHealth,
)
from storage.records.times import rfc3339

_ALONE = "this is the only server, and it cannot be removed"


def scheduler(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Show the scheduler's configuration."""
    config = configuration(db)
    body = SchedulerConfigResponse(scheduler_config=config, index=config.modify_index)
    return reply.read_reply(body, config.modify_index)


async def set_scheduler(request: Request) -> HandlerReply:
    """Set the scheduler's configuration; with `cas`, only if its index matches."""
    try:
        config = await request.decoded(SchedulerConfig)
    except Malformed as error:
        raise Malformed(f"Error parsing scheduler config: {error}") from None
    try:
        expected = request.query.natural("cas")
    except InvalidParameter as error:
        reason = str(error).partition(" as a uint64: ")[2]
        raise Malformed(f"Error parsing cas value: {reason}") from None
    updated, index = await configure(request.parts.store, config, expected=expected)
    return HandlerReply(body=SchedulerConfigUpdated(updated=updated, index=index), index=index)


def check_accepts(request: Request) -> None:
    """Raise `Denied` if the scheduler configuration rejects job registrations for this caller."""
    config = request.parts.store.read(configuration)
    if config.reject_job_registration and not request.caller.grant.everything:
        raise Denied(
            "job registration, dispatch, and scale are disabled by the scheduler configuration"
        )


def faults(request: Request, db: ReadSnapshot) -> HandlerReply:
    """List the faults (units of the daemon's work whose last attempt failed), oldest first."""
    return HandlerReply(body=[_shown(fault) for fault in request.parts.fences.faults()])


async def release_fault(request: Request) -> HandlerReply:
    """Retry a failed unit of the daemon's work, even after the daemon has given up on it."""
    fault_release = await request.decoded(FaultRelease)
    for name, value in (("Kind", fault_release.kind), ("Key", fault_release.key)):
        if not value:
            raise Malformed(
                f"{name} is missing: give Kind and Key of a fault from /v1/operator/faults"
            )
    fences = request.parts.fences
    released = fences.release(fault_release.kind, fault_release.key)
    await fences.save(request.parts.store)
    return HandlerReply(body=_shown(released))


def _shown(fault: Fault) -> FaultShown:
    return FaultShown(
        kind=fault.kind,
        key=fault.key,
        failures=fault.failures,
        reason=fault.reason,
        since=rfc3339(fault.since),
        gives_up=fault.is_closed,
    )


# --- servers ---


def raft_configuration(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Show the servers of the cluster: only this server."""
    config = request.parts.config
    server = RaftServer(
        id=installation.cluster_id(db),
        node=f"{config.node_name}.{config.region}",
        address=f"{config.bind}:{config.port}",
    )
    return HandlerReply(body=RaftConfiguration(servers=[server]))


async def remove_peer(request: Request) -> HandlerReply:
    """Reject the removal of a server, because the cluster has only one.

    If the request names an unknown server, the error text is Nomad's.
    """
    query, config = request.query, request.parts.config
    own_address = {
        "id": request.parts.store.read(installation.cluster_id),
        "address": f"{config.bind}:{config.port}",
    }
    for name, own in own_address.items():
        value = query.text(name)
        if value and value != own:
            raise Refused(f'{name} "{value}" was not found in the Raft configuration')
    raise Refused(_ALONE)


async def reject_raft_change(request: Request) -> HandlerReply:
    """Reject a request that needs several servers."""
    raise Refused(_ALONE)


def autopilot_configuration(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Show the configuration for the replacement of dead servers."""
    return HandlerReply(body=AutopilotConfiguration())


def autopilot_health(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Show that the single server is healthy."""
    config, server_id = request.parts.config, installation.cluster_id(db)
    server = ServerHealth(
        id=server_id,
        name=f"{config.node_name}.{config.region}",
        address=f"{config.bind}:{config.port}",
        version=VERSION,
        last_index=db.last_index(),
        stable_since=rfc3339(installation.created_at(db)),
    )
    return HandlerReply(
        body=AutopilotHealth(servers=[server], leader=server_id, voters=[server_id])
    )


def license_(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Show that no license is needed."""
    return HandlerReply(status=204)


async def put_license(request: Request) -> HandlerReply:
    """Reject a license, because no feature needs a license."""
    return HandlerReply(status=204)
