"""Token roles of the Vault API: changes by requests, and the form of a role in responses.

Vault renamed three fields. A field's older name has an effect if the request lacks the new name. A
response contains the older name if the last write used it. This behavior follows Vault's source
code, not recorded responses.
"""

import re
from collections.abc import Callable, Iterator, Mapping

import msgspec

from daemon.acl.builtin import normalize_policy_names, sanitize_policy_names
from daemon.acl.networks import network
from daemon.text.go_format import quote
from daemon.text.request_fields import RequestFields
from storage.errors import Malformed
from storage.records.acl import TokenKind, TokenRole
from storage.records.identity import SYSTEM_TTL

_TYPES = frozenset({"service", "batch", "default-service", "default-batch"})
# older name -> name
_OLDER = {
    "period": "token_period",
    "bound_cidrs": "token_bound_cidrs",
    "explicit_max_ttl": "token_explicit_max_ttl",
}
_SUFFIX = re.compile(r"\w[\w.-]+\w", re.ASCII)
# Vault's responses contain these fields only if they have a value.
_SHOWN_WITH_VALUE = frozenset({"token_bound_cidrs", "bound_cidrs", "token_num_uses"})

FieldReader = Callable[[RequestFields, str], object]


class RoleChange(msgspec.Struct, frozen=True):
    """A role after a request, and warnings for the caller."""

    role: TokenRole
    warnings: tuple[str, ...]


def change_role(role: TokenRole, fields: RequestFields) -> RoleChange:
    """Return the role with the changes of a request. Raises `Malformed`."""
    changes = {name: read(fields, name) for name, read in _READERS.items() if name in fields}
    for older, name in _OLDER.items():
        if name in fields:
            changes[older] = type(changes[name])()
        elif older in fields:
            changes[name] = changes[older]
    changed = msgspec.structs.replace(role, **changes)
    _check_batch(changed)
    return RoleChange(changed, tuple(_warnings(fields, changed)))


def role_response(role: TokenRole) -> Mapping[str, object]:
    """Return a role as the API shows it."""
    document = msgspec.structs.asdict(role)
    shown = {
        name: value for name, value in document.items() if value or name not in _SHOWN_WITH_VALUE
    }
    return {**shown, "allowed_entity_aliases": role.allowed_entity_aliases or None}


def _check_batch(role: TokenRole) -> None:
    """Raise `Malformed` for a role whose batch tokens would have limits that nothing enforces."""
    if role.token_type != TokenKind.BATCH:
        return
    refusals = {
        "non-orphan tokens": not role.orphan,
        "periodic tokens": role.token_period,
        "renewable tokens": role.renewable,
        "tokens with an explicit max TTL": role.token_explicit_max_ttl,
    }
    for kind, is_refused in refusals.items():
        if is_refused:
            raise Malformed(f"'token_type' cannot be 'batch' when role is set to generate {kind}")


def _warnings(fields: RequestFields, role: TokenRole) -> Iterator[str]:
    for older, name in _OLDER.items():
        if older in fields and name in fields:
            yield (
                f"Both '{name}' and deprecated '{older}' value supplied, ignoring the deprecated "
                "value"
            )
    if role.token_explicit_max_ttl > SYSTEM_TTL:
        yield (
            f"Given explicit max TTL of {role.token_explicit_max_ttl} is greater than system/mount "
            f"allowed value of {SYSTEM_TTL} seconds; until this is fixed attempting to create "
            "tokens against this role will result in an error"
        )


# --- fields -------------------------------------------------------------------------------------


def _names(fields: RequestFields, name: str) -> tuple[str, ...]:
    return normalize_policy_names(fields.texts(name))


def _policies(fields: RequestFields, name: str) -> tuple[str, ...]:
    return sanitize_policy_names(fields.texts(name))


def _networks(fields: RequestFields, name: str) -> tuple[str, ...]:
    return tuple(network(text) for text in fields.texts(name) if text)


def _uses(fields: RequestFields, name: str) -> int:
    uses = fields.strict_number(name)
    if uses < 0:
        raise Malformed(f"error parsing role fields: '{name}' cannot be negative")
    return uses


def _type(fields: RequestFields, name: str) -> str:
    if fields.raw(name) is None:
        raise Malformed("Invalid 'token_type' value: null")
    text = fields.text(name)
    if text not in _TYPES:
        raise Malformed(f"invalid 'token_type' value {quote(text)}")
    return text


def _suffix(fields: RequestFields, name: str) -> str:
    text = fields.text(name)
    if text and not _SUFFIX.search(text):
        raise Malformed(
            "given role path suffix contains invalid characters; must match \\w[\\w-.]+\\w"
        )
    if ".." in text:
        raise Malformed("error registering path suffix: path cannot contain parent references")
    return text


_READERS: dict[str, FieldReader] = {
    "allowed_policies": _policies,
    "allowed_policies_glob": _policies,
    "disallowed_policies": _names,
    "disallowed_policies_glob": _names,
    "allowed_entity_aliases": _names,
    "orphan": RequestFields.flag,
    "renewable": RequestFields.flag,
    "path_suffix": _suffix,
    "token_bound_cidrs": _networks,
    "bound_cidrs": _networks,
    "explicit_max_ttl": RequestFields.seconds,
    "token_explicit_max_ttl": RequestFields.seconds,
    "token_no_default_policy": RequestFields.flag,
    "token_num_uses": _uses,
    "period": RequestFields.seconds,
    "token_period": RequestFields.seconds,
    "token_type": _type,
}
