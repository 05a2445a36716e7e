"""Mounts of login methods: their paths, and their token settings.

The path of a mount is never above or below the path of another mount. An accessor names one mount
permanently: tokens of a deleted mount never belong to a later mount at the same path.
"""

import hashlib
from collections.abc import Sequence
from functools import partial

import msgspec

from daemon.acl.token_requests import RenewalLimits
from daemon.acl.tokens import TokenStore
from daemon.identity.roles import METHODS
from daemon.text.go_format import quote
from daemon.text.request_fields import RequestFields, is_duration
from storage.errors import Invalid, Refused
from storage.queries import identity, mounts, secrets
from storage.queries import tokens as stored_tokens
from storage.read_pool import ReadSnapshot
from storage.records.acl import Token
from storage.records.identity import SYSTEM_TTL, Mount, MountConfig
from storage.store import Store
from storage.writer import Transaction

MAX_PATH = 256  # characters

_AUTH = "auth/"  # prefix of a mount's path in APIs that name all kinds of mounts
TOKEN_PATH = "token/"  # noqa: S105  # a path
_TOKEN_TYPES = ("default-service", "default-batch", "service", "batch")
_LISTING = ("", "hidden", "unauth")
_LISTS = (
    "audit_non_hmac_request_keys",
    "audit_non_hmac_response_keys",
    "passthrough_request_headers",
    "allowed_response_headers",
)


def path_of(text: str) -> str:
    """Return the path of a mount in normal form, with one slash at the end."""
    return text.strip("/") + "/"


def token_mount(cluster_id: str) -> Mount:
    """Return the built-in mount. Its accessor and UUID are derived from the installation's ID."""
    digest = hashlib.sha256(f"{cluster_id}/{TOKEN_PATH}".encode()).hexdigest()
    return Mount(
        path=TOKEN_PATH,
        type="token",
        accessor=f"auth_token_{digest[:8]}",
        uuid=f"{digest[8:16]}-{digest[16:20]}-{digest[20:24]}-{digest[24:28]}-{digest[28:40]}",
        description="token based credentials",
    )


def new_mount(path: str, fields: RequestFields, uuid: str) -> Mount:
    """Return the mount that a request describes. Raises `Malformed` or `Invalid`."""
    kind = fields.text("type")
    if not kind:
        raise Invalid("backend type must be specified as a string")
    config = _new_config(fields.inner("config"))
    if kind == "token":
        raise Invalid("token credential backend cannot be instantiated")
    if len(path) > MAX_PATH:
        raise Invalid(f"the path has {len(path)} characters: use at most {MAX_PATH}")
    if kind not in METHODS:
        raise Invalid(f"plugin not found in the catalog: {kind}")
    _check_version(kind, fields.text("plugin_version"))
    return Mount(
        path=path,
        type=kind,
        accessor=f"auth_{kind}_{uuid[:8]}",
        uuid=uuid,
        description=fields.text("description"),
        local=fields.flag("local"),
        seal_wrap=fields.flag("seal_wrap"),
        external_entropy_access=fields.flag("external_entropy_access"),
        options=_options(fields, {}),
        config=config,
    )


def _options(fields: RequestFields, present: dict[str, str] | None) -> dict[str, str] | None:
    """Return the options of a mount; the Go client sends null if there are none."""
    if "options" not in fields:
        return present
    return None if fields.raw("options") is None else fields.pairs("options")


def _check_version(kind: str, version: str) -> None:
    """Raise `Invalid` if a plugin version is given: the methods are built in."""
    if version:
        numbers = [*version.removeprefix("v").split("."), "0", "0"][:3]
        raise Invalid(f"plugin not found in the catalog: {kind}, version=v{'.'.join(numbers)}")


def _new_config(fields: RequestFields) -> MountConfig:
    default = _lease(fields, "default_lease_ttl", "unable to parse default TTL of {value}: ")
    longest = _lease(fields, "max_lease_ttl", "unable to parse max TTL of {value}: ")
    if default > longest > 0:
        raise Invalid("given default lease TTL greater than given max lease TTL")
    if default > SYSTEM_TTL and not longest:
        raise Invalid(f"given default lease TTL greater than system max lease TTL of {SYSTEM_TTL}")
    config = MountConfig(default_lease_ttl=default, max_lease_ttl=longest)
    return _with_choices(config, fields)


def _lease(fields: RequestFields, name: str, prefix: str = "") -> int:
    """Return the duration in a field, in seconds. Empty or `system` means 0, the default.

    Raises `Invalid`; `prefix` is the beginning of the error.
    """
    value = fields.text(name)
    if value in ("", "system"):
        return 0
    if problem := is_duration(value):
        raise Invalid(prefix.format(value=value) + problem)
    return fields.seconds(name)


def _with_choices(config: MountConfig, fields: RequestFields) -> MountConfig:
    """Return a mount configuration after all changes in a request, except for lease TTLs."""
    changes: dict[str, object] = {
        name: fields.texts(name) or None for name in _LISTS if name in fields
    }
    if "listing_visibility" in fields:
        if (visibility := fields.text("listing_visibility")) not in _LISTING:
            raise Invalid(f"invalid listing_visibility {visibility}")
        changes["listing_visibility"] = visibility
    if "token_type" in fields:
        if (kind := fields.text("token_type") or _TOKEN_TYPES[0]) not in _TOKEN_TYPES:
            raise Invalid("invalid value for 'token_type'")
        changes["token_type"] = kind
    if "identity_token_key" in fields:
        changes["identity_token_key"] = fields.text("identity_token_key")
    return msgspec.structs.replace(config, **changes)


async def enable(store: Store, mount: Mount) -> None:
    """Mount a method. Raises `Invalid` if another mount is at, above or below its path."""

    def write(tx: Transaction) -> None:
        if taken := _conflicting_mount(mount.path, [TOKEN_PATH, *paths(tx)]):
            raise Invalid(f"path is already in use at {taken}")
        mounts.put(tx, mount)

    await store.write(write)


def paths(db: ReadSnapshot) -> list[str]:
    """Return the paths of all mounts except the built-in mount."""
    return [mount.path for mount in mounts.names(db)]


def _conflicting_mount(path: str, mount_paths: Sequence[str]) -> str | None:
    return next(
        (line for line in mount_paths if line.startswith(path) or path.startswith(line)), None
    )


async def tune(store: Store, path: str, fields: RequestFields) -> None:
    """Change the token settings of a mount. Raises `Malformed` or `Invalid`."""

    def write(tx: Transaction) -> None:
        mount = mounts.find(tx, path)
        if mount is None and path == TOKEN_PATH:
            raise Invalid(
                "auth/token cannot be tuned: set the TTL of a token when it is created, or in its role"
            )
        if mount is None:
            raise Invalid(f'tune of path "auth/{path}" failed: no mount entry found')
        _check_version(mount.type, fields.text("plugin_version"))
        config = _apply_tuning(mount.config, fields)
        description = fields.text("description", mount.description)
        options = _options(fields, mount.options) or mount.options
        mounts.put(
            tx,
            msgspec.structs.replace(mount, config=config, description=description, options=options),
        )

    await store.write(write)


def _apply_tuning(config: MountConfig, fields: RequestFields) -> MountConfig:
    default, longest = config.default_lease_ttl, config.max_lease_ttl
    if "default_lease_ttl" in fields:
        default = _lease(fields, "default_lease_ttl")
    if "max_lease_ttl" in fields:
        longest = _lease(fields, "max_lease_ttl")
    if default > longest > 0:
        raise Invalid(
            f"backend max lease TTL of {longest} would be less than backend default lease TTL of "
            f"{default}"
        )
    if default > SYSTEM_TTL and not longest:
        raise Invalid(
            f"backend default lease TTL of {default} would be greater than system max lease TTL "
            f"of {SYSTEM_TTL}"
        )
    changed = msgspec.structs.replace(config, default_lease_ttl=default, max_lease_ttl=longest)
    return _with_choices(changed, fields)


async def disable(store: Store, tokens: TokenStore, path: str) -> mounts.MountName | None:
    """Delete a mount and its configuration, and then all tokens of the mount.

    A mount whose record is damaged is deleted too. Returns the name of the deleted mount. Raises
    `Invalid` for the built-in mount.
    """
    if path == TOKEN_PATH:
        raise Invalid("token credential backend cannot be disabled")

    def write(tx: Transaction) -> mounts.MountName | None:
        mount = mounts.find_name(tx, path)
        if mount:
            mounts.remove(tx, path)
            for secret in secrets.below(tx, f"identity/{mount.accessor}/"):
                secrets.remove(tx, secret.place)
        return mount

    if mount := await store.write(write):
        await tokens.revoke_mount(mount.accessor)
    return mount


async def move(store: Store, tokens: TokenStore, source: str, target: str, move_id: str) -> Mount:
    """Move a mount to another path, and revoke the tokens that it issued at the old path.

    Raises `Invalid`.
    """

    def write(tx: Transaction) -> Mount:
        old = path_of(source.removeprefix(_AUTH))
        mount = mounts.find(tx, old) if source.startswith(_AUTH) else None
        if source == f"{_AUTH}{TOKEN_PATH}":
            raise Invalid(f"cannot remount {quote(source)}")
        if mount is None:
            raise Invalid(f"no matching mount at {quote(source)}")
        if not target.startswith(_AUTH):
            raise Invalid(f"cannot remount auth mount to non-auth mount {quote(target)}")
        new = path_of(target.removeprefix(_AUTH))
        if not new.strip("/") or len(new) > MAX_PATH:
            raise Invalid(
                f"path {quote(target)}: a mount needs a path of 1 to {MAX_PATH} characters"
            )
        other_paths = [path for path in paths(tx) if path != old]
        taken = old if new == old else _conflicting_mount(new, [TOKEN_PATH, *other_paths])
        if taken:
            raise Invalid(f"path is already in use at {taken}")
        moved = msgspec.structs.replace(mount, path=new, moved_from=old, move_id=move_id)
        mounts.move(tx, moved)
        return moved

    moved = await store.write(write)
    await tokens.revoke_mount(moved.accessor)
    return moved


def moved_by(db: ReadSnapshot, move_id: str) -> Mount | None:
    """Return the mount whose latest move has the identifier `move_id`."""
    readable, _ = mounts.list_readable(db)
    return next((mount for mount in readable if mount.move_id == move_id), None)


async def finish_disabling(store: Store, tokens: TokenStore) -> None:
    """Revoke the remaining tokens of deleted and moved mounts, after a restart in between."""
    for accessor in store.read(stored_tokens.issuers):
        if not store.read(partial(mounts.has_accessor, accessor=accessor)):
            await tokens.revoke_mount(accessor)
    readable, _ = store.read(mounts.list_readable)
    for mount in readable:
        if mount.move_id:
            await tokens.revoke_moved(mount)


def renewal_limits(db: ReadSnapshot, token: Token) -> RenewalLimits:
    """Return the limits for renewals of a login's token. Raises `Refused`."""
    mount = mounts.by_accessor(db, token.mount)
    name = (token.meta or {}).get("role", "").lower()
    role = identity.role(db, token.mount, name)
    if mount is None or role is None:
        raise Refused(f"failed to renew entry: role {name} does not exist during renewal")
    return RenewalLimits(
        ttl=role.token_ttl or mount.default_ttl,
        max_ttl=role.token_max_ttl,
        period=role.token_period,
        mount_max_ttl=mount.max_ttl,
    )
