"""The configuration of a login method: validation, storage and display.

Text fields that a write does not contain stay unchanged. The numbers of retries and the TTL of a
rotated secret return to their defaults (source: Vault's recorded responses `config-lifecycle`). The
client secret is never returned.
"""

from collections.abc import Mapping
from uuid import UUID

import msgspec

from daemon.acl.seal import EnvelopeCipher
from daemon.config.settings import Settings
from daemon.identity.cloud_endpoints import complete
from daemon.jobspec import cron
from daemon.text.go_format import format_list
from daemon.text.request_fields import RequestFields
from storage.errors import Invalid, NotFound
from storage.queries import directory_cache, identity, rotations, secrets
from storage.read_pool import ReadSnapshot
from storage.records.base import SECOND
from storage.records.identity import MethodConfig, Mount
from storage.records.times import rfc3339
from storage.store import Store
from storage.writer import Transaction

MAX_LEEWAY = 600  # seconds; limits how long expired tokens are accepted
MAX_AUDIENCE = 600  # characters; the directory accepts fewer

_KEPT_TEXTS = (
    "tenant_id",
    "resource",
    "environment",
    "client_id",
    "identity_token_audience",
    "rotation_policy",
)
_WHO = ("tenant_id", "client_id", "identity_token_audience")
_OURS = ("token_file", "clock_leeway", "look_up_groups", "remove_foreign_passwords")
_CRON_FIELDS = 5


def client_secret_path(mount: Mount) -> str:
    """Return the storage path of the client secret of a mount."""
    return f"identity/{mount.accessor}/client-secret"


def pending_secret_path(mount: Mount) -> str:
    """Return the storage path of a client secret that is not in use yet."""
    return f"identity/{mount.accessor}/pending-secret"


def federation_token_path(mount: Mount) -> str:
    """Return the storage path of the federation credential of a mount."""
    return f"identity/{mount.accessor}/access-token"


def client_secret(db: ReadSnapshot, seal: EnvelopeCipher, mount: Mount) -> str:
    """Return the client secret of a mount; empty if the mount has no client secret."""
    sealed = secrets.find(db, path := client_secret_path(mount))
    return seal.unseal(sealed, path).decode() if sealed else ""


def read(db: ReadSnapshot, mount: Mount) -> MethodConfig:
    """Return the configuration of a mount. Raises `NotFound`."""
    config = identity.config(db, mount.accessor)
    if config is None:
        raise NotFound("")
    return config


def config_response(config: MethodConfig) -> dict[str, object]:
    """Return a configuration in API form; its two retry delays are in nanoseconds."""
    document = msgspec.structs.asdict(config)
    expires = document.pop("root_password_expires_at")
    if expires is not None:
        document["root_password_expiration_date"] = rfc3339(expires)
    unused = [name for name in _OURS if not document[name]]
    for name in unused:
        del document[name]
    delays = {name: document[name] * SECOND for name in ("retry_delay", "max_retry_delay")}
    return {**document, **delays}


async def write(
    store: Store,
    seal: EnvelopeCipher,
    mount: Mount,
    fields: RequestFields,
    surroundings: tuple[Settings, Mapping[str, str]],
) -> list[str]:
    """Create or change a configuration; return warnings for the caller.

    `surroundings` are the daemon's settings and environment. Cached data of the directory is
    deleted. Raises `Malformed`, `Invalid` or `Refused`.
    """
    changes = _changes(fields)
    secret = fields.text("client_secret") if "client_secret" in fields else None
    path = client_secret_path(mount)
    sealed = seal.seal(secret.encode(), path) if secret else None

    def apply(tx: Transaction) -> list[str]:
        before = identity.config(tx, mount.accessor) or MethodConfig()
        config = msgspec.structs.replace(before, **changes)
        has_secret = bool(secrets.find(tx, path)) if secret is None else bool(secret)
        if has_secret and config.identity_token_audience:
            raise Invalid("only one of 'client_secret' or 'identity_token_audience' can be set")
        config = _with_rotation(config, fields)
        complete(config, *surroundings)
        has_new_client = secret is not None or _is_other_client(before, config)
        if has_new_client:  # the expiry date is that of the replaced secret
            config = msgspec.structs.replace(config, root_password_expires_at=None)
        identity.put_config(tx, mount.accessor, config)
        directory_cache.forget(tx, mount.accessor)
        secrets.remove(tx, federation_token_path(mount))
        if has_new_client:  # the rotation belongs to the previous client
            rotations.forget(tx, mount.accessor)
            secrets.remove(tx, pending_secret_path(mount))
        if sealed:
            secrets.put(tx, path, sealed)
        elif secret == "":
            secrets.remove(tx, path)
        return _warnings(config, fields)

    return await store.write(apply)


async def remove(store: Store, mount: Mount) -> None:
    """Remove a configuration and its secret, if there are any."""

    def apply(tx: Transaction) -> None:
        identity.remove_config(tx, mount.accessor)
        directory_cache.forget(tx, mount.accessor)
        rotations.forget(tx, mount.accessor)
        secrets.remove(tx, client_secret_path(mount))
        secrets.remove(tx, pending_secret_path(mount))
        secrets.remove(tx, federation_token_path(mount))

    await store.write(apply)


def _is_other_client(before: MethodConfig, after: MethodConfig) -> bool:
    return any(getattr(before, name) != getattr(after, name) for name in _WHO)


def _changes(fields: RequestFields) -> dict[str, object]:
    """Return the values that a write sets, by field. Raises `Malformed` or `Invalid`."""
    defaults = MethodConfig()
    changes: dict[str, object] = {name: fields.text(name) for name in _KEPT_TEXTS if name in fields}
    is_given = fields.raw("root_password_ttl") is not None
    changes["root_password_ttl"] = (
        fields.seconds("root_password_ttl") if is_given else defaults.root_password_ttl
    )
    changes["max_retries"] = fields.number("max_retries", defaults.max_retries)
    changes["retry_delay"] = fields.signed_seconds("retry_delay", defaults.retry_delay)
    changes["max_retry_delay"] = fields.signed_seconds("max_retry_delay", defaults.max_retry_delay)
    if "identity_token_ttl" in fields:
        changes["identity_token_ttl"] = fields.seconds("identity_token_ttl")
    if "disable_automated_rotation" in fields:
        changes["disable_automated_rotation"] = fields.flag("disable_automated_rotation")
    if "token_file" in fields:
        changes["token_file"] = fields.text("token_file")
    if "clock_leeway" in fields:
        changes["clock_leeway"] = leeway = fields.seconds("clock_leeway")
        if leeway > MAX_LEEWAY:
            raise Invalid(f"clock_leeway of {leeway} seconds: at most {MAX_LEEWAY} are allowed")
    for flag in ("look_up_groups", "remove_foreign_passwords"):
        if flag in fields:
            changes[flag] = fields.flag(flag)
    audience = fields.text("identity_token_audience")
    if len(audience) >= MAX_AUDIENCE:
        raise Invalid(
            f"identity_token_audience has {len(audience)} characters: the directory accepts fewer "
            f"than {MAX_AUDIENCE}"
        )
    return changes


def _with_rotation(config: MethodConfig, fields: RequestFields) -> MethodConfig:
    """Return a configuration after a write of its rotation fields. Raises `Invalid`.

    A schedule in the write replaces a stored period, and a period replaces a stored schedule.
    """
    schedule = fields.text("rotation_schedule")
    period = fields.seconds("rotation_period")
    window = fields.seconds("rotation_window")
    if schedule and period:
        raise Invalid(
            "mutually exclusive fields rotation_schedule and rotation_period were both specified; "
            "only one of them can be provided"
        )
    if schedule:
        _check_schedule(schedule)
    if window and period:
        raise Invalid("rotation_window does not apply to period")
    if "rotation_schedule" in fields or period:
        config = msgspec.structs.replace(
            config, rotation_schedule=schedule, rotation_period=0, rotation_window=0
        )
    if "rotation_period" in fields:
        config = msgspec.structs.replace(config, rotation_period=period)
    if window and not config.rotation_schedule:
        raise Invalid("cannot use rotation_window without rotation_schedule")
    if "rotation_window" in fields:
        config = msgspec.structs.replace(config, rotation_window=window)
    return config


def _check_schedule(text: str) -> None:
    fields = text.split()
    if not text.startswith("@") and len(fields) != _CRON_FIELDS:
        raise Invalid(
            f"failed to parse provided rotation_schedule: expected exactly {_CRON_FIELDS} fields, "
            f"found {len(fields)}: {format_list(fields)}"
        )
    try:
        cron.parse(text)
    except Invalid as error:
        raise Invalid(f"failed to parse provided rotation_schedule: {error}") from error


def _warnings(config: MethodConfig, fields: RequestFields) -> list[str]:
    if "tenant_id" not in fields or not config.tenant_id:
        return []
    try:
        UUID(config.tenant_id)
    except ValueError:
        return [
            f"tenant_id {config.tenant_id!r} is not a UUID: a directory knows its tenants by UUID"
        ]
    return []
