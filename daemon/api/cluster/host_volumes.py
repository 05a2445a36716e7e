"""Host volumes of this host that the API creates, registers, shows and deletes."""

import logging

import msgspec
import trio

from daemon.api.paging import Listing, query_factory, show
from daemon.config.host_resources import why_no_volume
from daemon.evals import host_volumes as rules
from daemon.jobspec.filter import compile_filter
from daemon.web import reply
from daemon.web.reply import HandlerReply
from daemon.web.request import Request
from storage.errors import Denied, Malformed, NotFound, Refused, StewardError
from storage.queries import host_volumes
from storage.read_pool import ReadSnapshot
from storage.records.base import Record
from storage.records.codec import encode
from storage.records.host_volume import DELETING, MKDIR, DynamicVolume, HostVolumeStub, stub_of

_log = logging.getLogger("steward.api")

_EMPTY_ARE_ABSENT = ("Constraints", "Parameters")


class HostVolumeRequest(Record, frozen=True, kw_only=True):
    """The body of a request to create, register or (with `ID`) change a volume."""

    volume: DynamicVolume | None = None
    policy_override: bool = False


def index(request: Request, db: ReadSnapshot) -> HandlerReply:
    """List the host volumes; without `type=host` in the query, the list is empty."""
    query, grant = request.query, request.caller.grant
    if (kind := query.text("type")) not in ("", "host", "csi"):
        raise NotFound("resource not found")
    is_host, prefix, expression = kind == "host", query.text("prefix"), None
    if text := query.text("filter"):
        expression = compile_filter(text, HostVolumeStub)
    chosen = {name: query.text(name) for name in ("node_id", "node_pool") if query.text(name)}
    to_page_request = query_factory(request, None, {})

    def wanted(_: ReadSnapshot, volume: DynamicVolume) -> bool:
        return (
            grant.may(volume.namespace, "host-volume-read")
            and all(getattr(volume, name) == value for name, value in chosen.items())
            and (volume.name.startswith(prefix) or volume.id.startswith(prefix))
            and (expression is None or expression(msgspec.to_builtins(stub_of(volume))))
        )

    listing = Listing[DynamicVolume](
        rows=lambda db, start, reverse: (
            host_volumes.page(db, to_page_request(start, reverse)) if is_host else iter(())
        ),
        key=lambda volume: (volume.namespace, volume.id),
        line=lambda _, volume: encode(stub_of(volume)),
        wanted=wanted,
        is_number=False,
    )
    return show(listing, query, db, _index(db))


def read(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Show a volume."""
    volume = _find(request, db)
    return reply.read_reply(_shown(volume), volume.modify_index)


async def create(request: Request) -> HandlerReply:
    """Create a volume: the plug-in `mkdir` makes a new directory."""
    requested_volume = await _requested_volume(request, "host-volume-create")
    parts = request.parts
    volume = await _complete(request, requested_volume, registered=False)
    parameters = rules.parameters_of(volume)
    path = parts.config.volumes_dir / volume.id
    volume = msgspec.structs.replace(volume, host_path=str(path))
    is_new = not volume.create_index
    if is_new:
        await rules.reserve(parts.store, volume)
    try:
        await parts.tasks.create_volume(
            volume.id, parameters.mode, (parameters.uid, parameters.gid)
        )
        return await _put(request, volume)
    except OSError as error:
        if is_new:
            await _abandon(request, volume)
        raise Malformed(
            f"the directory of volume {volume.name!r} cannot be created: {error}"
        ) from None
    except StewardError:
        if is_new:
            await _abandon(request, volume)
        raise


async def _abandon(request: Request, volume: DynamicVolume) -> None:
    """Undo the creation of a volume.

    If this fails, the daemon tries again at its next start.
    """
    try:
        await request.parts.tasks.remove_volume(volume.id)
        await rules.forget(request.parts.store, volume.id)
    except (OSError, StewardError) as error:
        _log.warning("volume %s stays pending: %s", volume.id, error)


async def register(request: Request) -> HandlerReply:
    """Register an existing directory below one of `host_volume_paths` as a volume."""
    requested_volume = await _requested_volume(request, "host-volume-register")
    config = request.parts.config
    volume = await _complete(request, requested_volume, registered=True)
    path = volume.host_path.rstrip("/") or "/"
    existing_paths = await request.parts.store.read_any(
        lambda db: host_volumes.paths(db, except_id=volume.id)
    )
    taken = [host_volume.path for host_volume in config.host_volumes]
    taken += existing_paths
    refusal = await trio.to_thread.run_sync(why_no_volume, path, config.volume_paths, taken)
    own = str(config.data_dir)
    if not refusal and not config.dev and f"{own}/".startswith(f"{path.rstrip('/')}/"):
        refusal = "it contains the daemon's data directory"
    if refusal:
        raise Malformed(f"HostPath {path!r} cannot be a volume: {refusal}")
    return await _put(request, msgspec.structs.replace(volume, host_path=path))


async def delete(request: Request) -> HandlerReply:
    """Delete an unused volume, and also its directory if the daemon created it.

    If the directory cannot be deleted, the request fails, and the volume stays in the state
    `deleting`. With `force`, the volume is deleted even then, but its directory stays.
    """
    force, parts = request.query.flag("force"), request.parts
    volume = parts.store.read(lambda db: _find(request, db, "host-volume-delete"))
    index_ = await rules.retire(parts.store, volume.id, parts.ids, now=parts.clock.now())
    if volume.plugin_id != MKDIR:
        return HandlerReply(body={}, index=index_)
    try:
        await parts.tasks.remove_volume(volume.id)
    except OSError as error:
        if not force:
            raise Refused(
                f"the directory of volume {volume.id} cannot be deleted: {error}. The volume stays "
                f"in the state {DELETING}: repeat the request, or set force=true to delete the "
                "volume but keep its directory"
            ) from error
        _log.warning("cannot delete the directory of volume %s: %s", volume.id, error)
    return HandlerReply(body={}, index=await rules.forget(parts.store, volume.id))


async def _requested_volume(request: Request, capability: str) -> DynamicVolume:
    """Return the volume in the body, if the caller may create it."""
    body = await request.decoded(HostVolumeRequest)
    if body.volume is None:
        raise Malformed("missing volume definition")
    namespace = body.volume.namespace or request.namespace
    _require(request, namespace, capability)
    if body.policy_override:
        _require(request, namespace, "policy-override", "sentinel-override")
    return msgspec.structs.replace(body.volume, namespace=namespace)


def _require(request: Request, namespace: str, *capabilities: str) -> None:
    if not request.caller.grant.may(namespace, *capabilities):
        raise Denied


async def _complete(request: Request, volume: DynamicVolume, *, registered: bool) -> DynamicVolume:
    parts, now = request.parts, request.parts.clock.now()
    completed = await parts.store.read_any(
        lambda db: rules.complete(
            db, volume, parts.tasks.node_id, parts.config.region, registered=registered
        )
    )
    return msgspec.structs.replace(
        completed,
        id=completed.id or next(parts.ids),
        create_time=completed.create_time or now,
        modify_time=now,
    )


async def _put(request: Request, volume: DynamicVolume) -> HandlerReply:
    parts = request.parts
    stored, done = await rules.put(parts.store, volume, parts.ids, now=parts.clock.now())
    warnings = [*rules.warnings(stored), *request.remarks()]
    body = {"Volume": _shown(stored), "Warnings": "; ".join(warnings), "Index": done.index}
    return HandlerReply(body=body, index=done.index)


def _find(
    request: Request, db: ReadSnapshot, capability: str = "host-volume-read"
) -> DynamicVolume:
    """Return the volume in the path. Raises `Denied` or `NotFound`."""
    _require(request, request.namespace, capability)
    volume = host_volumes.find(db, request["volume_id"])
    if volume is None or volume.namespace != request.namespace:
        raise NotFound("volume not found", index=_index(db))
    return volume


def _shown(volume: DynamicVolume) -> dict[str, object]:
    document: dict[str, object] = msgspec.to_builtins(volume)
    for name in _EMPTY_ARE_ABSENT:
        if not document[name]:
            del document[name]
    return document


def _index(db: ReadSnapshot) -> int:
    return max(db.table_index(host_volumes.TABLE), 1)
