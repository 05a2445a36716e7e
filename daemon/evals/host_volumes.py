"""Dynamic host volumes on this node: validation, storage, and the node's list of volumes."""

import os
import re
from collections.abc import Iterator, Mapping

import msgspec

from daemon.evals.node_actions import NodeChangeResult, offer_volumes
from daemon.matching import regexp
from daemon.scheduler.nodes.constraints import DISTINCT_HOSTS, DISTINCT_PROPERTY, matches
from storage.errors import Conflict, Malformed, NotFound
from storage.queries import host_volumes, namespaces, nodes
from storage.read_pool import ReadSnapshot
from storage.records.codec import encode
from storage.records.host_volume import (
    ACCESS_MODES,
    DELETING,
    FILE_SYSTEM,
    MKDIR,
    PENDING,
    READY,
    Capability,
    DynamicVolume,
)
from storage.records.node import Node
from storage.store import Store
from storage.writer import Transaction

_MOST = 1000  # volumes of a daemon
_LONGEST_NAME = 128
_MOST_PARAMETERS = 100
_LARGEST = 16 * 1024  # bytes of a volume as JSON
_LONGEST = 4096  # characters of a path or parameter
_ANYWHERE = ("", "all")
_USUAL = Capability(attachment_mode=FILE_SYSTEM, access_mode="single-node-writer")
_PLUGINS = ("", "default", MKDIR)
_OWN = -1  # the daemon's user
_MODE = re.compile(r"(?:0o)?0{0,3}[0-7]{1,3}")
_ID = re.compile(r"-1|[0-9]{1,10}")


class Parameters(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of the plugin `mkdir`: mode and owner of the directory.

    A user or group ID of -1 stands for the daemon's ID.
    """

    mode: int = 0o700
    uid: int = _OWN
    gid: int = _OWN


def complete(
    db: ReadSnapshot, volume: DynamicVolume, node_id: str, region: str, *, registered: bool
) -> DynamicVolume:
    """Return a copy of the requested volume with defaults for missing settings.

    A new volume gets no ID and no times yet. `registered` means that the directory exists already.
    Raises `Malformed`, `NotFound` or `Conflict`.
    """
    _check_size(volume)
    if faults := list(_faults(volume, registered=registered)):
        raise Malformed(f"volume {volume.name[:_LONGEST_NAME]!r}: {'; '.join(faults)}")
    before = _before(db, volume)
    node = _node(db, volume, node_id, region)
    if before is not None and registered != (before.plugin_id != MKDIR):
        past_verb = "created" if registered else "registered"
        raise Malformed(
            f"the type of volume {before.id} cannot be changed: the volume was {past_verb}"
        )
    if before is None:
        _check_new(db, volume, node)
    return msgspec.structs.replace(
        volume,
        id=before.id if before else "",
        plugin_id=volume.plugin_id if registered else MKDIR,
        node_pool=node.node_pool,
        node_id=node.id,
        requested_capabilities=volume.requested_capabilities or [_USUAL],
        capacity_bytes=volume.capacity_bytes if registered else 0,
        state=READY,
        create_index=before.create_index if before else 0,
        create_time=before.create_time if before else 0,
    )


def _check_size(volume: DynamicVolume) -> None:
    """Raise `Malformed` if a volume is too large as JSON; the error names the largest field."""
    if (size := len(encode(volume))) > _LARGEST:
        sizes = {name: len(encode(getattr(volume, field))) for field, name in _fields(volume)}
        longest = max(sizes, key=lambda name: sizes[name])
        raise Malformed(
            f"volume {volume.name[:_LONGEST_NAME]!r} has {size} bytes as JSON, {sizes[longest]} of "
            f"them in {longest}: the maximum is {_LARGEST}, so shorten {longest}"
        )


def _fields(volume: DynamicVolume) -> Iterator[tuple[str, str]]:
    """Yield, for each field, its name in the record and its name in JSON."""
    return zip(volume.__struct_fields__, volume.__struct_encode_fields__, strict=True)


def _faults(volume: DynamicVolume, *, registered: bool) -> Iterator[str]:
    if not volume.name or len(volume.name) > _LONGEST_NAME:
        yield f"Name must have 1 to {_LONGEST_NAME} characters"
    if volume.requested_capacity_max_bytes < volume.requested_capacity_min_bytes:
        yield "RequestedCapacityMaxBytes must not be less than RequestedCapacityMinBytes"
    if min(volume.requested_capacity_min_bytes, volume.capacity_bytes) < 0:
        yield "RequestedCapacityMinBytes and CapacityBytes must not be negative"
    for requested_capability in volume.requested_capabilities or ():
        if requested_capability.attachment_mode != FILE_SYSTEM:
            yield f"AttachmentMode {requested_capability.attachment_mode!r}: only {FILE_SYSTEM} is supported"
        if requested_capability.access_mode not in ACCESS_MODES:
            modes = ", ".join(sorted(ACCESS_MODES))
            yield f"AccessMode {requested_capability.access_mode!r}: must be one of {modes}"
    for constraint in volume.constraints or ():
        if constraint.operand in (DISTINCT_HOSTS, DISTINCT_PROPERTY):
            yield f"constraint {constraint.operand}: omit it, because a volume is on one node"
    yield from _faults_of_parameters(volume.parameters or {})
    yield from _faults_of_path(volume) if registered else _faults_of_plugin(volume)


def _faults_of_parameters(parameters: Mapping[str, str]) -> Iterator[str]:
    longest = max(map(len, (*parameters, *parameters.values())), default=0)
    if len(parameters) > _MOST_PARAMETERS or longest > _LONGEST:
        yield f"Parameters can have {_MOST_PARAMETERS} entries of {_LONGEST} characters each"


def _faults_of_path(volume: DynamicVolume) -> Iterator[str]:
    if not volume.node_id:
        yield "NodeID is missing: specify the node that has the registered volume"
    if not os.path.isabs(volume.host_path) or "\0" in volume.host_path:
        yield "HostPath must be the absolute path of a directory on the host"
    if len(volume.host_path) > _LONGEST:
        yield f"HostPath must have at most {_LONGEST} characters"


def _faults_of_plugin(volume: DynamicVolume) -> Iterator[str]:
    if volume.plugin_id not in _PLUGINS:
        yield f'PluginID {volume.plugin_id!r}: only the plug-in "{MKDIR}" is supported'


def _before(db: ReadSnapshot, volume: DynamicVolume) -> DynamicVolume | None:
    """Return the volume that a request changes; None if the request creates a volume."""
    if not volume.id:
        return None
    before = host_volumes.find(db, volume.id)
    if before is None or before.namespace != volume.namespace:
        raise NotFound(f"no volume has the ID {volume.id!r}")
    if before.state != READY:
        raise Conflict(f'volume {before.id} cannot be changed in the state "{before.state}"')
    if (volume.name, volume.node_id or before.node_id) != (before.name, before.node_id):
        raise Malformed(f"volume {before.id}: its name and its node cannot be changed")
    _check_unused(db, before)
    return before


def _node(db: ReadSnapshot, volume: DynamicVolume, node_id: str, region: str) -> Node:
    """Return the node of a new volume: this daemon's host."""
    if namespaces.find(db, volume.namespace) is None:
        raise Malformed(f'volume {volume.name!r} is in nonexistent namespace "{volume.namespace}"')
    if volume.node_id not in ("", node_id):
        raise NotFound(f"volume {volume.name!r}: no node has the ID {volume.node_id!r}")
    node = nodes.find(db, node_id)
    if node is None:
        raise NotFound("node not found")
    if volume.node_pool not in (*_ANYWHERE, node.node_pool):
        raise Malformed(f'volume {volume.name!r}: no host is in node pool "{volume.node_pool}"')
    try:
        with regexp.limited():
            unmet = (
                constraint
                for constraint in volume.constraints or ()
                if not matches(constraint, node, region)
            )
            constraint = next(unmet, None)
    except regexp.PatternsTooCostly as error:
        raise Malformed(f"volume {volume.name!r}: Constraints: {error}") from error
    if constraint is not None:
        raise Malformed(
            f"volume {volume.name!r}: the node does not meet the constraint "
            f"{constraint.l_target} {constraint.operand or '='} {constraint.r_target}"
        )
    return node


def _check_new(db: ReadSnapshot, volume: DynamicVolume, node: Node) -> None:
    if volume.name in node.host_volumes:
        raise Conflict(f"volume {volume.name!r} already exists on node {node.id}")
    if host_volumes.count(db) >= _MOST:
        raise Conflict(f"there are {_MOST} volumes, which is the maximum: delete one")


def parameters_of(volume: DynamicVolume) -> Parameters:
    """Return the parameters of the plugin `mkdir`. Raises `Malformed`."""
    remaining = dict(volume.parameters or {})
    mode, uid, gid = (
        remaining.get(name, default)
        for name, default in (("mode", "0700"), ("uid", str(_OWN)), ("gid", str(_OWN)))
    )
    if not _MODE.fullmatch(mode):
        raise Malformed("Parameters, mode: write an octal number from 0000 to 0777")
    if not all(_ID.fullmatch(text) and int(text) < 2**32 - 1 for text in (uid, gid)):
        raise Malformed("Parameters, uid and gid: write the numeric IDs of a user and a group")
    return Parameters(mode=int(mode, 8), uid=int(uid), gid=int(gid))


def warnings(volume: DynamicVolume) -> list[str]:
    """Return warnings about stored settings without effect."""
    messages = []
    if volume.plugin_id == MKDIR:
        if volume.requested_capacity_max_bytes or volume.requested_capacity_min_bytes:
            messages.append("mkdir limits no sizes: the requested capacity has no effect")
        unknown = sorted((volume.parameters or {}).keys() - {"mode", "uid", "gid"})
        messages += [f'unknown parameter "{name[:100]}" of mkdir is ignored' for name in unknown]
    elif volume.parameters:
        messages.append("a registered volume has no plug-in: its Parameters have no effect")
    return messages


async def reserve(store: Store, volume: DynamicVolume) -> None:
    """Store a new volume before its directory is created, so that a restarted daemon finds it.

    Raises `Conflict` if its name was taken in the meantime.
    """

    def write(tx: Transaction) -> None:
        _check_name(tx, volume)
        if host_volumes.count(tx) >= _MOST:
            raise Conflict(f"there are {_MOST} volumes, which is the maximum: delete one")
        host_volumes.put(tx, msgspec.structs.replace(volume, state=PENDING))

    await store.write(write)


async def put(
    store: Store, volume: DynamicVolume, ids: Iterator[str], *, now: int
) -> tuple[DynamicVolume, NodeChangeResult]:
    """Store a usable volume, and add it to its node.

    Return the stored volume, and the result of the change of the node. Raises `Conflict` after a
    conflicting concurrent change, or if an allocation uses the volume.
    """

    def write(tx: Transaction) -> tuple[DynamicVolume, NodeChangeResult]:
        _check_name(tx, volume)
        before = host_volumes.find(tx, volume.id)
        if before is None and volume.create_index:
            raise Conflict(f"volume {volume.id} was deleted in the meantime")
        if before is not None and before.state == DELETING:
            raise Conflict(f'volume {volume.id} cannot be changed in the state "{before.state}"')
        if before is not None and before.state == READY:
            _check_unused(tx, before)
        stored = host_volumes.put(tx, volume)
        return stored, offer_volumes(tx, stored.node_id, {stored.name: stored.on_node()}, ids, now)

    return await store.write(write)


async def retire(store: Store, volume_id: str, ids: Iterator[str], *, now: int) -> int:
    """Remove a volume from its node; return the index of the write.

    If the daemon created the volume's directory, the volume stays in the store until the caller has
    deleted the directory. A registered volume is deleted from the store in the same write. Raises
    `NotFound`, and `Conflict` while an allocation uses the volume.
    """

    def write(tx: Transaction) -> int:
        volume = host_volumes.find(tx, volume_id)
        if volume is None:
            raise NotFound("volume not found", index=tx.index)
        if volume.state != READY:
            return tx.index
        _check_unused(tx, volume)
        if volume.plugin_id == MKDIR:
            host_volumes.retire(tx, volume)
        else:
            host_volumes.remove(tx, volume)
        offer_volumes(tx, volume.node_id, {volume.name: None}, ids, now)
        return tx.index

    return await store.write(write)


async def forget(store: Store, volume_id: str) -> int:
    """Delete an unusable volume after its directory was removed; return the index of the write."""

    def write(tx: Transaction) -> int:
        host_volumes.forget(tx, volume_id)
        return tx.index

    return await store.write(write)


def _check_name(tx: Transaction, volume: DynamicVolume) -> None:
    namesake = host_volumes.named(tx, volume.name)
    if namesake is not None and namesake.id != volume.id:
        raise Conflict(f"volume {volume.name!r} already exists on node {namesake.node_id}")


def _check_unused(db: ReadSnapshot, volume: DynamicVolume) -> None:
    if users := host_volumes.users(db, volume):
        raise Conflict(f"volume {volume.id} is in use by allocations {', '.join(users)}")
