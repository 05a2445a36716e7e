"""Tokens, as the secrets side's clients manage them: make, look up, renew, revoke (golden: token-api)."""

from collections.abc import Callable
from typing import TypeVar

import msgspec

from daemon.acl.children import Made, Terms, Wanted, make, normal, renewed, terms_of
from daemon.acl.keyring import new_accessor, new_secret
from daemon.acl.tokens import Issued
from daemon.api import shown
from daemon.api.granted import auth
from daemon.fields import Fields
from daemon.identity import groups, mounts
from daemon.identity.roles import check_network
from daemon.web import envelope
from daemon.web.envelope import Answer
from daemon.web.reply import Reply
from daemon.web.request import Call
from storage import origin
from storage.errors import Malformed, NotFound
from storage.queries import tokens
from storage.readers import Snapshot
from storage.records.acl import SPENT, Token, TokenKind, TokenRole
from storage.records.base import SECOND
from storage.records.times import rfc3339
from storage.writer import Transaction

T = TypeVar("T")

_UNNAMED = "missing token ID"
_TIDYING = (
    "Tidy operation successfully started. Any information from the operation will be printed to "
    "the server logs."
)


# ---- making ----------------------------------------------------------------------------------


async def create(call: Call) -> Answer:
    """Make a token that ends with the caller's."""
    return await _create(call, is_orphan=False)


async def create_orphan(call: Call) -> Answer:
    """Make a token that ends with no other."""
    return await _create(call, is_orphan=True)


async def create_by_role(call: Call) -> Answer:
    """Make a token as a role says."""
    role = call.parts.store.read(lambda db: tokens.find_role(db, call["role"]))
    if role is None:
        raise Malformed(f"unknown role {call['role']}")
    suffix = f"/{role.path_suffix}" if role.path_suffix else ""
    return await _create(call, is_orphan=False, role=role, suffix=suffix)


async def _create(
    call: Call, *, is_orphan: bool, role: TokenRole | None = None, suffix: str = ""
) -> Answer:
    wanted = Wanted(
        maker=call.caller,
        fields=call.fields,
        path=f"{call.name}{suffix}",
        is_orphan=is_orphan,
        has_sudo=_has_sudo(call),
        **({"role": role} if role else {}),
    )
    issued, warnings = await _issue(call, wanted)
    return Answer(auth=auth(issued.secret, issued.token), warnings=warnings)


def _has_sudo(call: Call) -> bool:
    permission = call.caller.grant.permission(call.name)
    return call.caller.grant.everything or (
        permission is not None and "sudo" in permission.capabilities
    )


async def _issue(call: Call, wanted: Wanted) -> tuple[Issued, list[str]]:
    parts = call.parts
    accessor, secret, now = new_accessor(), new_secret(), parts.clock.now()

    def write(tx: Transaction) -> tuple[Made, str]:
        made = make(tx, wanted, accessor=accessor, now=now)
        chosen = made.secret or secret
        if made.token.kind is TokenKind.SERVICE:
            parts.tokens.add(tx, made.token, chosen)
        return made, chosen

    made, chosen = await parts.store.write(write)
    if made.token.kind is TokenKind.SERVICE:
        return Issued(chosen, made.token), list(made.warnings)
    return await parts.tokens.issue(made.token), list(made.warnings)


# ---- looking up ------------------------------------------------------------------------------


async def lookup(call: Call) -> Answer | Reply:
    """Describe the token whose secret the request names; its own if it names none."""
    secret = call.fields.text("token")
    if not secret:
        return await lookup_self(call)
    found = call.parts.store.read(lambda db: call.parts.tokens.find(db, secret))
    if found is None:
        return envelope.errors(403, "bad token")
    return Answer(data=_described(call, found, secret))


async def lookup_self(call: Call) -> Answer:
    """Describe the token that the request shows."""
    return Answer(data=_described(call, call.caller.token, call.token))


async def lookup_accessor(call: Call) -> Answer | Reply:
    """Describe the token of an accessor."""
    found = _of_accessor(call)
    return found if isinstance(found, Reply) else Answer(data=_described(call, found, ""))


def _of_accessor(call: Call) -> Token | Reply:
    accessor = call.fields.text("accessor")
    if not accessor:
        return envelope.listed(400, "missing accessor")
    found = call.parts.store.read(lambda db: tokens.find(db, accessor))
    if found is None or found.has_ended(call.parts.clock.now()):
        return envelope.listed(400, "invalid accessor")
    return found


def _described(call: Call, token: Token, secret: str) -> dict[str, object]:
    """Return what is known about a token; parts that are empty are left out at some tokens."""
    # Tokens of the jobs side have names of that side.
    is_ours = token.path.startswith("auth/")
    left = (token.expires_at - call.parts.clock.now()) // SECOND if token.expires_at else 0
    shown: dict[str, object] = {
        "accessor": token.accessor,
        "creation_time": token.created_at // SECOND,
        "creation_ttl": token.ttl // SECOND,
        "display_name": token.name if is_ours else "token",
        "entity_id": token.entity_id,
        "expire_time": rfc3339(token.expires_at) if token.expires_at else None,
        "explicit_max_ttl": token.explicit_max_ttl // SECOND,
        "id": secret,
        "issue_time": rfc3339(token.created_at),
        "meta": token.meta,
        "num_uses": token.uses_left or 0,
        "orphan": not token.parent,
        "path": token.path if is_ours else "auth/token/create",
        "policies": sorted(token.policies),
        "renewable": token.renewable,
        "ttl": left,
        "type": token.kind,
    }
    if token.bound_cidrs:
        shown["bound_cidrs"] = token.bound_cidrs
    if token.period:
        shown["period"] = token.period // SECOND
    if token.role:
        shown["role"] = token.role
    if by_identity := _of_identity(call, token):
        shown["identity_policies"] = by_identity
        shown["external_namespace_policies"] = {}
    if token.renewed_at is not None:
        shown["last_renewal"] = rfc3339(token.renewed_at)
        shown["last_renewal_time"] = token.renewed_at // SECOND
    return shown


def _of_identity(call: Call, token: Token) -> list[str]:
    """Return the policies that a token has by its entity and the entity's groups."""
    return call.parts.store.read(lambda db: groups.identity_policies(db, token.entity_id))


async def accessors(call: Call) -> Answer:
    """List the accessors of all tokens."""
    return await shown.one(call, lambda db: {"keys": tokens.accessors(db)})


# ---- renewing --------------------------------------------------------------------------------


async def renew(call: Call) -> Answer:
    """Let the token whose secret the request names live on."""
    secret = call.fields.text("token")
    if not secret:
        raise Malformed(_UNNAMED)
    found = call.parts.store.read(lambda db: call.parts.tokens.find(db, secret))
    if found is None:
        raise Malformed("token not found")
    return await _renew(call, found, secret)


async def renew_self(call: Call) -> Answer:
    """Let the token that the request shows live on."""
    return await _renew(call, call.caller.token, call.token)


async def renew_accessor(call: Call) -> Answer | Reply:
    """Let the token of an accessor live on."""
    found = _of_accessor(call)
    return found if isinstance(found, Reply) else await _renew(call, found, "")


async def _renew(call: Call, token: Token, secret: str) -> Answer:
    increment = _increment(call)
    now = call.parts.clock.now()

    def write(tx: Transaction) -> tuple[Token, int, tuple[str, ...]]:
        present = tokens.find(tx, token.accessor)
        if present is None and token.uses_left == SPENT:
            raise Malformed("token not found")
        present = present or token
        after, span = renewed(present, increment, _terms(tx, present), now)
        call.parts.tokens.note_end(after.expires_at)
        return tokens.update(tx, after), span.ttl, span.warnings

    after, ttl, warnings = await call.parts.store.write(write)
    # The peer forgets here that a token is an orphan (golden: token-self).
    uses = after.uses or after.uses_left or 0
    by_identity = _of_identity(call, after)
    shown = {
        **auth(secret, after, by_identity),
        "lease_duration": ttl,
        "orphan": False,
        "num_uses": uses,
    }
    return Answer(auth=shown, warnings=warnings)


def _increment(call: Call) -> int:
    try:
        return call.fields.signed_seconds("increment")
    except Malformed as error:
        raise Malformed(f"Field validation failed: {error}") from None


def _terms(db: Snapshot, token: Token) -> Terms:
    if token.mount:
        return mounts.terms(db, token)
    return terms_of(token, tokens.find_role(db, token.role) if token.role else None)


# ---- revoking --------------------------------------------------------------------------------


async def revoke(call: Call) -> Answer:
    """End the token whose secret the request names, and those made with it."""
    await _revoke(call, _named(call), tokens.remove)
    return Answer()


async def revoke_self(call: Call) -> Answer:
    """End the token that the request shows, and those made with it."""
    await _revoke(call, call.caller.token, tokens.remove)
    return Answer()


async def revoke_orphan(call: Call) -> Answer:
    """End the token whose secret the request names; those made with it live on."""

    def leave_children(tx: Transaction, accessor: str) -> int:
        tokens.orphan_children(tx, accessor)
        return tokens.remove(tx, accessor)

    await _revoke(call, _named(call), leave_children)
    return Answer()


async def revoke_accessor(call: Call) -> Answer | Reply:
    """End the token of an accessor, and those made with it."""
    accessor = call.fields.text("accessor")
    if not accessor:
        return envelope.listed(400, "missing accessor")
    found = call.parts.store.read(lambda db: tokens.find(db, accessor))
    if found is None:
        return Answer(warnings=["No token found with this accessor"])
    await _revoke(call, found, tokens.remove)
    return Answer()


def _named(call: Call) -> Token | None:
    secret = call.fields.text("token")
    if not secret:
        raise Malformed(_UNNAMED)
    return call.parts.store.read(lambda db: call.parts.tokens.find(db, secret))


async def _revoke(
    call: Call, token: Token | None, remove: Callable[[Transaction, str], int]
) -> None:
    if token is None:
        return
    if token.kind is TokenKind.BATCH:
        raise Malformed("batch tokens cannot be revoked")
    accessor = token.accessor
    await call.parts.store.write(lambda tx: remove(tx, accessor))


async def tidy(call: Call) -> Reply:
    """Remove what has ended; the daemon does so by itself all the time."""
    call.parts.tokens.note_end(0)
    reply = envelope.enveloped(
        Answer(warnings=[_TIDYING]), path=call.name, request_id=origin.current()
    )
    return msgspec.structs.replace(reply, status=202)


# ---- roles -----------------------------------------------------------------------------------


async def roles(call: Call) -> Answer:
    """List the roles by whose name tokens are made."""
    return await shown.keys(call, tokens.roles)


async def read_role(call: Call) -> Answer:
    """Show a role."""
    found = call.parts.store.read(lambda db: tokens.find_role(db, call["role"]))
    if found is None:
        raise NotFound("")
    shown = {
        name: [] if value == () and name != "token_bound_cidrs" else value
        for name, value in msgspec.structs.asdict(found).items()
    }
    old = {"period": found.token_period, "explicit_max_ttl": found.token_explicit_max_ttl}
    return Answer(data={**shown, **old})


async def write_role(call: Call) -> Answer:
    """Create a role, or change what the request names of it."""
    name = call["role"]

    def write(tx: Transaction) -> None:
        tokens.put_role(tx, _changed(call, tokens.find_role(tx, name) or TokenRole(name=name)))

    await call.parts.store.write(write)
    return Answer()


def _names(fields: Fields, name: str) -> tuple[str, ...]:
    return normal(fields.texts(name))


def _texts(fields: Fields, name: str) -> tuple[str, ...]:
    return tuple(one for one in fields.texts(name) if one)


def _networks(fields: Fields, name: str) -> tuple[str, ...]:
    found = _texts(fields, name)
    for one in found:
        check_network(one)
    return found


_TYPES = frozenset({"service", "batch", "default-service", "default-batch"})
# What came before the prefix was thought of.
_RENAMED = {"period": "token_period", "explicit_max_ttl": "token_explicit_max_ttl"}
_ROLE_FIELDS: dict[str, Callable[[Fields, str], object]] = {
    "allowed_policies": _names,
    "allowed_policies_glob": _names,
    "disallowed_policies": _names,
    "disallowed_policies_glob": _names,
    "allowed_entity_aliases": _texts,
    "orphan": Fields.flag,
    "renewable": Fields.flag,
    "path_suffix": Fields.text,
    "token_bound_cidrs": _networks,
    "explicit_max_ttl": Fields.seconds,
    "token_explicit_max_ttl": Fields.seconds,
    "token_no_default_policy": Fields.flag,
    "token_num_uses": Fields.strict_number,
    "period": Fields.seconds,
    "token_period": Fields.seconds,
    "token_type": Fields.text,
}


def _changed(call: Call, role: TokenRole) -> TokenRole:
    fields = call.fields
    changes: dict[str, object] = {}
    for name, read in _ROLE_FIELDS.items():
        if name in fields:
            changes[_RENAMED.get(name, name)] = read(fields, name)
    changed = msgspec.structs.replace(role, **changes)
    if changed.token_type not in _TYPES:
        raise Malformed(f"invalid 'token_type' value {changed.token_type!r}")
    if changed.token_num_uses < 0:
        raise Malformed("'token_num_uses' cannot be negative")
    return changed


async def delete_role(call: Call) -> Answer:
    """Remove a role, if it is there."""
    await call.parts.store.write(lambda tx: tokens.remove_role(tx, call["role"]))
    return Answer()


def role_exists(call: Call) -> bool:
    """Tell whether there is a role of the call's name."""
    return call.parts.store.read(lambda db: tokens.find_role(db, call["role"])) is not None
