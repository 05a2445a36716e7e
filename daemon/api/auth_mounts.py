"""Login methods: enable, list, tune and disable."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import msgspec

from daemon.identity import mounts
from daemon.text.go_format import quote
from daemon.web import vault_envelope
from daemon.web.reply import HandlerReply
from daemon.web.request import RouteCall
from daemon.web.vault_envelope import VaultBody
from storage.errors import Invalid, Malformed, NotFound, UnknownToken
from storage.queries import installation
from storage.queries import mounts as stored
from storage.queries.mounts import MountName
from storage.records.identity import Mount


class _Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A mount in the form of the API."""

    accessor: str
    config: Mapping[str, object]
    description: str
    external_entropy_access: bool = False
    local: bool = False
    options: Mapping[str, str] | None = None
    plugin_version: str = ""
    running_plugin_version: str = ""
    running_sha256: str = ""
    seal_wrap: bool = False
    type: str
    uuid: str


def _config(mount: Mount) -> dict[str, object]:
    """Return a mount's configuration as Vault shows it.

    Values that were never set are left out, except for a few that Vault always shows.
    """
    config = msgspec.to_builtins(mount.config)
    always = {"default_lease_ttl": 0, "max_lease_ttl": 0, "token_type": mount.config.token_type}
    return {**always, "force_no_cache": False, **config}


def _entry(mount: Mount) -> dict[str, object]:
    entry = _Entry(
        accessor=mount.accessor,
        config=_config(mount),
        description=mount.description,
        external_entropy_access=mount.external_entropy_access,
        local=mount.local,
        options=mount.options,
        seal_wrap=mount.seal_wrap,
        type=mount.type,
        uuid=mount.uuid,
    )
    return msgspec.structs.asdict(entry)


class _Listing(NamedTuple):
    """All readable mounts, and the names of the mounts whose database row is damaged."""

    mounts: list[Mount]
    damaged: list[MountName]

    def warnings(self) -> list[str]:
        """Return a warning about each damaged row."""
        return [
            f"the row of the auth mount {mount_name.path!r} (accessor {mount_name.accessor}) is damaged and not "
            f"shown: restore a snapshot, or delete the mount with `steward auth disable {mount_name.path}`"
            for mount_name in self.damaged
        ]


def _all_mounts(call: RouteCall) -> _Listing:
    """Return all readable mounts, including the built-in one, and the damaged mounts."""
    cluster_id, (readable, damaged) = call.parts.store.read(
        lambda db: (installation.cluster_id(db), stored.list_readable(db))
    )
    listed = [mounts.token_mount(cluster_id), *readable]
    return _Listing(sorted(listed, key=lambda mount: mount.path), damaged)


def _find(call: RouteCall, path: str) -> Mount | None:
    """Return the mount at a path, or None.

    Raises `StorageUnreadable` only if the row of this mount is damaged.
    """
    built_in = mounts.token_mount(call.parts.store.read(installation.cluster_id))
    if path == built_in.path:
        return built_in
    return call.parts.store.read(partial(stored.find, path=path))


async def index(call: RouteCall) -> VaultBody:
    """List the login methods by path."""
    all_mounts = _all_mounts(call)
    data = {mount.path: _entry(mount) for mount in all_mounts.mounts}
    return VaultBody(data=data, warnings=all_mounts.warnings())


async def read(call: RouteCall) -> VaultBody:
    """Show one login method."""
    path = mounts.path_of(call["path"])
    mount = _find(call, path)
    if mount is None:
        raise Invalid(f"No auth engine at {path}")
    return VaultBody(data=_entry(mount))


async def read_as_mount(call: RouteCall) -> VaultBody:
    """Show a login method in the form of a generic mount."""
    path = mounts.path_of(call["path"])
    mount = _find(call, path)
    if mount is None:
        raise Invalid(f"No secret engine mount at auth/{path}")
    return VaultBody(data=_entry(mount))


async def engines(call: RouteCall) -> VaultBody:
    """List the secret engines. There are none."""
    del call
    return VaultBody(data={})


@contextmanager
def _validation() -> Iterator[None]:
    """Give `Malformed` the text of Vault's errors under `sys/` for fields of a wrong type."""
    try:
        yield
    except Malformed as error:
        raise Malformed(f"Field validation failed: {error}".partition(", value: ")[0]) from error


async def enable(call: RouteCall) -> VaultBody:
    """Enable a login method."""
    with _validation():
        mount = mounts.new_mount(mounts.path_of(call["path"]), call.fields, next(call.parts.ids))
    await mounts.enable(call.parts.store, mount)
    return VaultBody()


async def disable(call: RouteCall) -> VaultBody:
    """Disable a login method and revoke all its tokens."""
    path = mounts.path_of(call["path"])
    removed = await mounts.disable(call.parts.store, call.parts.tokens, path)
    if removed is not None:
        call.parts.door.forget(removed.accessor)
    call.note_deletion("login method", path.rstrip("/"), existed=removed is not None)
    return VaultBody()


async def read_tune(call: RouteCall) -> VaultBody:
    """Show the token settings of a mount; a TTL that was never set is the system's default."""
    path = mounts.path_of(call["path"])
    mount = _find(call, path)
    if mount is None:
        raise Invalid(f'cannot fetch sysview for path "auth/{path}"')
    ttls = {"default_lease_ttl": mount.default_ttl, "max_lease_ttl": mount.max_ttl}
    options = {"options": mount.options} if mount.options else {}
    return VaultBody(
        data={**_config(mount), "description": mount.description, **options, **ttls},
    )


async def tune(call: RouteCall) -> VaultBody:
    """Change the token settings of a mount."""
    with _validation():
        await mounts.tune(call.parts.store, mounts.path_of(call["path"]), call.fields)
    return VaultBody()


async def move(call: RouteCall) -> VaultBody:
    """Move a mount to another path."""
    with _validation():
        source, target = (mounts.path_of(call.fields.text(name)) for name in ("from", "to"))
    parts = call.parts
    moved = await mounts.move(parts.store, parts.tokens, source, target, next(parts.ids))
    done = f"{quote(source)} is now at {quote(target)}; the tokens it issued are revoked"
    return VaultBody(data={"migration_id": moved.move_id}, warnings=[done])


async def read_move(call: RouteCall) -> VaultBody:
    """Show the latest move of a mount. Its status is always `success`."""
    moved = call.parts.store.read(lambda db: mounts.moved_by(db, call["move"]))
    if moved is None:
        raise NotFound("")
    status = {
        "source_mount": f"auth/{moved.moved_from}",
        "target_mount": f"auth/{moved.path}",
        "status": "success",
    }
    return VaultBody(data={"migration_id": moved.move_id, "migration_info": status})


async def mount_response(call: RouteCall) -> VaultBody:
    """List mounts for the UI: all if the caller may read `sys/auth`, else the public mounts."""
    all_mounts = _all_mounts(call)
    if call.token and call.caller.grant.capabilities("sys/auth") != ["deny"]:
        entries = {mount.path: _entry(mount) for mount in all_mounts.mounts}
        return VaultBody(data={"auth": entries, "secret": {}}, warnings=all_mounts.warnings())
    public = [mount for mount in all_mounts.mounts if mount.config.listing_visibility == "unauth"]
    brief = {
        mount.path: {"description": mount.description, "options": mount.options, "type": mount.type}
        for mount in public
    }
    return VaultBody(data={"auth": brief, "secret": {}})


async def mount_detail(call: RouteCall) -> VaultBody:
    """Show a mount, if the caller has a capability on a path below the mount."""
    path = mounts.path_of(call["path"])
    names = [mounts.TOKEN_PATH, *call.parts.store.read(mounts.paths)]
    above = max((name for name in names if path.startswith(name)), key=len, default="")
    if not above or not _may_below(call, f"auth/{above}"):
        raise UnknownToken
    mount = _find(call, above)
    if mount is None:  # disabled in the meantime
        raise UnknownToken
    return VaultBody(data={**_entry(mount), "path": mount.path})


async def not_shown(call: RouteCall) -> HandlerReply:
    """Reject a request for a secret engine's mount, because Steward has no secret engines."""
    if not call.token:
        raise UnknownToken
    path = quote(mounts.path_of(call["path"]))
    return vault_envelope.errors(
        403,
        "preflight capability check returned 403, please ensure client's policies grant access to "
        f"path {path}",
    )


def _may_below(call: RouteCall, path: str) -> bool:
    grant = call.caller.grant
    rules = () if grant.everything else grant.paths.rules()
    return grant.everything or any(
        rule.capabilities and (rule.path.startswith(path) or path.startswith(rule.path.rstrip("*")))
        for rule in rules
    )
