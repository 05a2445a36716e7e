"""Enabling, listing, tuning and disabling login methods."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import msgspec

from daemon.identity import mounts
from daemon.jobspec.gotext import quote
from daemon.web import envelope
from daemon.web.envelope import Answer
from daemon.web.reply import Reply
from daemon.web.request import Call
from storage.errors import Invalid, Malformed, NotFound, UnknownToken
from storage.queries import installation
from storage.queries import mounts as stored
from storage.records.identity import Mount


class _Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A mount as the API shows it."""

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
    """Return a mount's configuration: what was never set is left out."""
    shown = msgspec.to_builtins(mount.config)
    always = {"default_lease_ttl": 0, "max_lease_ttl": 0, "token_type": mount.config.token_type}
    return {**always, "force_no_cache": False, **shown}


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


def _every(call: Call) -> list[Mount]:
    """Return all mounts, the one that is always there as well."""
    cluster_id, made = call.parts.store.read(
        lambda db: (installation.cluster_id(db), stored.every(db))
    )
    return sorted([mounts.token_mount(cluster_id), *made], key=lambda mount: mount.path)


def _find(call: Call, path: str) -> Mount | None:
    return next((mount for mount in _every(call) if mount.path == path), None)


async def index(call: Call) -> Answer:
    """List the login methods by path."""
    return Answer(data={mount.path: _entry(mount) for mount in _every(call)})


async def read(call: Call) -> Answer:
    """Show one login method."""
    path = mounts.path_of(call["path"])
    mount = _find(call, path)
    if mount is None:
        raise Invalid(f"No auth engine at {path}")
    return Answer(data=_entry(mount))


async def read_as_mount(call: Call) -> Answer:
    """Show one login method at the path that all kinds of mounts have."""
    path = mounts.path_of(call["path"])
    mount = _find(call, path)
    if mount is None:
        raise Invalid(f"No secret engine mount at auth/{path}")
    return Answer(data=_entry(mount))


async def engines(call: Call) -> Answer:
    """List the secret engines: there are none."""
    del call
    return Answer(data={})


@contextmanager
def _validation() -> Iterator[None]:
    """Turn the text about a wrong type into the one of the peer's system paths."""
    try:
        yield
    except Malformed as error:
        raise Malformed(f"Field validation failed: {error}".partition(", value: ")[0]) from error


async def enable(call: Call) -> Answer:
    """Mount a login method."""
    with _validation():
        mount = mounts.new_mount(mounts.path_of(call["path"]), call.fields, next(call.parts.ids))
    await mounts.enable(call.parts.store, mount)
    return Answer()


async def disable(call: Call) -> Answer:
    """Remove a login method and every token that it issued."""
    path = mounts.path_of(call["path"])
    if gone := await mounts.disable(call.parts.store, call.parts.tokens, path):
        call.parts.door.forget(gone)
    return Answer()


async def read_tune(call: Call) -> Answer:
    """Show what a mount says about its tokens, with the system's defaults filled in."""
    path = mounts.path_of(call["path"])
    mount = _find(call, path)
    if mount is None:
        raise Invalid(f'cannot fetch sysview for path "auth/{path}"')
    ttls = {"default_lease_ttl": mount.default_ttl, "max_lease_ttl": mount.max_ttl}
    options = {"options": mount.options} if mount.options else {}
    return Answer(
        data={**_config(mount), "description": mount.description, **options, **ttls},
    )


async def tune(call: Call) -> Answer:
    """Change what a mount says about its tokens."""
    with _validation():
        await mounts.tune(call.parts.store, mounts.path_of(call["path"]), call.fields)
    return Answer()


async def move(call: Call) -> Answer:
    """Move a mount to another path."""
    with _validation():
        source, target = (mounts.path_of(call.fields.text(name)) for name in ("from", "to"))
    parts = call.parts
    moved = await mounts.move(parts.store, parts.tokens, source, target, next(parts.ids))
    done = f"{quote(source)} is now at {quote(target)}; the tokens it issued are revoked"
    return Answer(data={"migration_id": moved.move_id}, warnings=[done])


async def read_move(call: Call) -> Answer:
    """Show the latest move of a mount: it ended before its request was answered."""
    moved = call.parts.store.read(lambda db: mounts.moved_by(db, call["move"]))
    if moved is None:
        raise NotFound("")
    status = {
        "source_mount": f"auth/{moved.moved_from}",
        "target_mount": f"auth/{moved.path}",
        "status": "success",
    }
    return Answer(data={"migration_id": moved.move_id, "migration_info": status})


async def shown(call: Call) -> Answer:
    """List the mounts for a person: those that are shown to all, and everything to who may see it."""
    every = _every(call)
    if call.token and call.caller.grant.capabilities("sys/auth") != ["deny"]:
        return Answer(data={"auth": {mount.path: _entry(mount) for mount in every}, "secret": {}})
    visible = {mount.path: mount for mount in every if mount.config.listing_visibility == "unauth"}
    brief = {
        path: {"description": mount.description, "options": mount.options, "type": mount.type}
        for path, mount in visible.items()
    }
    return Answer(data={"auth": brief, "secret": {}})


async def shown_one(call: Call) -> Answer:
    """Show a mount to a person who may do something below it."""
    path = mounts.path_of(call["path"])
    above = [mount for mount in _every(call) if path.startswith(mount.path)]
    mount = max(above, key=lambda one: len(one.path), default=None)
    if mount is None or not _may_below(call, f"auth/{mount.path}"):
        raise UnknownToken
    return Answer(data={**_entry(mount), "path": mount.path})


async def not_shown(call: Call) -> Reply:
    """Refuse to show what is mounted elsewhere: nothing is."""
    if not call.token:
        raise UnknownToken
    path = quote(mounts.path_of(call["path"]))
    return envelope.errors(
        403,
        "preflight capability check returned 403, please ensure client's policies grant access to "
        f"path {path}",
    )


def _may_below(call: Call, path: str) -> bool:
    grant = call.caller.grant
    rules = () if grant.everything else grant.paths.every()
    return grant.everything or any(
        rule.capabilities and (rule.path.startswith(path) or path.startswith(rule.path.rstrip("*")))
        for rule in rules
    )
