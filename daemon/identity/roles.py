"""Roles of a login method: validation, storage and display.

A write keeps the fields that it does not name, except for the metadata of aliases. The order of
checks and the texts are Vault's (source: Vault's recorded responses `role-validation`). A rejected
write changes nothing.
"""

from collections.abc import Sequence

import msgspec

from daemon.acl.networks import network
from daemon.text.go_format import duration, quote
from daemon.text.request_fields import RequestFields
from storage.errors import Invalid, NotFound
from storage.queries import identity, mounts
from storage.read_pool import ReadSnapshot
from storage.records.base import SECOND
from storage.records.identity import LoginRole, Mount
from storage.store import Store
from storage.writer import Transaction

METHODS = ("azure", "cloudid")  # two names of one method

BOUNDS = (
    "bound_service_principal_ids",
    "bound_group_ids",
    "bound_subscription_ids",
    "bound_resource_groups",
    "bound_locations",
    "bound_scale_sets",
)
_TOKEN_SPANS = ("token_ttl", "token_max_ttl", "token_period", "token_explicit_max_ttl")
_TOKEN_TYPES = ("", "default", "service", "batch")
# older name -> name; a response contains the older name if the last write used it
_OLDER_SPANS = {"ttl": "token_ttl", "max_ttl": "token_max_ttl", "period": "token_period"}
_OLDER = {**_OLDER_SPANS, "num_uses": "token_num_uses", "policies": "token_policies"}
_MAX_TTL_WARNING = (
    "max_ttl is greater than the system or backend mount's maximum TTL value; issued tokens' "
    "max TTL value will be truncated"
)


def read(db: ReadSnapshot, mount: Mount, name: str) -> LoginRole:
    """Return the role with a name, ignoring case. Raises `NotFound`."""
    role = identity.role(db, mount.accessor, name.lower())
    if role is None:
        raise NotFound("")
    return role


def role_response(role: LoginRole) -> dict[str, object]:
    """Return a role in API form. Fields with older names are included only if they have a value."""
    document = msgspec.structs.asdict(role)
    return {name: value for name, value in document.items() if value or name not in _OLDER}


async def write(store: Store, mount: Mount, name: str, fields: RequestFields) -> list[str]:
    """Create or change a role; return warnings for the caller. Raises `Malformed` or `Invalid`."""
    if ".." in name:  # as at a login, which could not name this role
        raise Invalid("relative paths not supported")
    changes = _changes(fields)
    older = {
        field_name: _older_value(fields, field_name)
        for field_name in _OLDER
        if field_name in fields
    }

    def apply(tx: Transaction) -> list[str]:
        now = mounts.by_accessor(tx, mount.accessor)
        if now is None:
            raise NotFound("")
        before = identity.role(tx, mount.accessor, name.lower()) or LoginRole()
        named = msgspec.structs.replace(before, **changes)
        _check_token(named)
        role = msgspec.structs.replace(named, **_with_older_names(fields, older, changes))
        _check(role, now)
        identity.put_role(tx, mount.accessor, name.lower(), role)
        return [_MAX_TTL_WARNING] if role.token_max_ttl > now.max_ttl else []

    return await store.write(apply)


async def remove(store: Store, mount: Mount, name: str) -> bool:
    """Remove a role; return whether it existed."""
    return await store.write(lambda tx: identity.remove_role(tx, mount.accessor, name.lower()))


def _changes(fields: RequestFields) -> dict[str, object]:
    """Return the values that a write sets under the newer names of the fields.

    Raises `Malformed`.
    """
    changes: dict[str, object] = {name: fields.texts(name) for name in BOUNDS if name in fields}
    changes |= {name: fields.seconds(name) for name in _TOKEN_SPANS if name in fields}
    changes["alias_metadata"] = fields.pairs("alias_metadata")
    if "token_policies" in fields:
        changes["token_policies"] = fields.texts("token_policies")
    if "token_num_uses" in fields:
        changes["token_num_uses"] = fields.number("token_num_uses")
    if "token_no_default_policy" in fields:
        changes["token_no_default_policy"] = fields.flag("token_no_default_policy")
    if "token_bound_cidrs" in fields:
        changes["token_bound_cidrs"] = list(map(network, fields.texts("token_bound_cidrs")))
    if "token_type" in fields:
        changes["token_type"] = _token_type(fields.text("token_type"))
    return changes


def _token_type(text: str) -> str:
    if text not in _TOKEN_TYPES:
        raise Invalid(f"invalid 'token_type' value {quote(text)}")
    return text or "default"


def _older_value(fields: RequestFields, name: str) -> object:
    if name == "policies":
        return sorted({policy.lower() for policy in fields.texts(name) if policy})
    return fields.number(name) if name == "num_uses" else fields.seconds(name)


def _with_older_names(
    fields: RequestFields, older: dict[str, object], changes: dict[str, object]
) -> dict[str, object]:
    """Return the changes of the fields that have an older and a newer name.

    If a write uses both names of a field, the value under the newer name counts. `older` are the
    values under the older names, and `changes` are those under the newer names.
    """
    more: dict[str, object] = {}
    for name, newer in _OLDER.items():
        if newer in fields:
            more[name] = changes[newer] if name in fields else type(changes[newer])()
        elif name in fields:
            more[name] = more[newer] = older[name]
    return more


def _check_token(role: LoginRole) -> None:
    """Raise `Invalid` unless the `token_*` fields are valid and consistent."""
    _check_batch(role)
    if role.token_ttl > role.token_max_ttl > 0:
        raise Invalid("'token_ttl' cannot be greater than 'token_max_ttl'")
    if role.token_num_uses < 0:
        raise Invalid("'token_num_uses' cannot be negative")


def _check_batch(role: LoginRole) -> None:
    """Raise `Invalid` for a role whose batch tokens would have limits that nothing enforces."""
    if role.token_type == "batch" and role.token_period:  # noqa: S105  # a token type
        raise Invalid(
            "'token_type' cannot be 'batch' or 'default_batch' when set to generate periodic tokens"
        )
    if role.token_type == "batch" and role.token_num_uses > 0:  # noqa: S105  # a token type
        raise Invalid(
            "'token_type' cannot be 'batch' or 'default_batch' when set to generate tokens with "
            "limited use count"
        )


def _check(role: LoginRole, mount: Mount) -> None:
    """Raise `Invalid` for a role without bound constraints, or with contradictory limits."""
    if not any(_bound(role, name) for name in BOUNDS):
        raise Invalid("must have at least one bound constraint when creating/updating a role")
    _check_batch(role)  # again, because the older names also set these fields
    if role.token_ttl > role.token_max_ttl > 0:
        raise Invalid("ttl should not be greater than max_ttl")
    if role.token_period > mount.max_ttl:
        raise Invalid(
            f"token period of {_long(role.token_period)} is greater than the backend's maximum "
            f"lease TTL of {_long(mount.max_ttl)}"
        )
    if role.token_num_uses < 0:
        raise Invalid("token num uses cannot be negative")


def _bound(role: LoginRole, name: str) -> Sequence[str]:
    values: Sequence[str] | None = getattr(role, name)
    return values or ()


def _long(seconds: int) -> str:
    return quote(duration(seconds * SECOND))
