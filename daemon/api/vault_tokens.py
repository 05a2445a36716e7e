"""Tokens of the Vault API: create, look up, renew, revoke.

Source: Vault's recorded responses `token-api`.
"""

from collections.abc import Callable
from typing import TypeVar

import msgspec

from daemon.acl.keyring import new_accessor, new_secret
from daemon.acl.token_requests import (
    NewToken,
    RenewalLimits,
    TokenRequestFields,
    create_token,
    renew_token,
    renewal_limits,
)
from daemon.acl.token_roles import change_role, role_response
from daemon.acl.tokens import IssuedToken
from daemon.api import vault_reads
from daemon.api.auth_response import auth_block
from daemon.identity import groups, mounts
from daemon.text.go_format import quote
from daemon.web import vault_envelope
from daemon.web.reply import HandlerReply
from daemon.web.request import RouteCall
from daemon.web.vault_envelope import VaultBody
from storage import request_context
from storage.errors import Malformed, NotFound
from storage.queries import tokens
from storage.read_pool import ReadSnapshot
from storage.records.acl import SPENT, Token, TokenKind, TokenRole
from storage.records.base import SECOND
from storage.records.times import rfc3339
from storage.writer import Transaction

T = TypeVar("T")

# Nanoseconds between the start of a token's TTL and its displayed creation time, as in Vault.
# Clients round the difference to `expire_time` down to whole seconds.
_NOTED_AFTER = 1000
_FEW_POLICIES = 200  # policies that the event loop compares within a millisecond
_UNNAMED = "missing token ID"
_TIDYING = (
    "Tidy operation successfully started. Any information from the operation will be printed to "
    "the server logs."
)


# --- creation ---------------------------------------------------------------------------------


async def create(call: RouteCall) -> VaultBody:
    """Create a token. It is revoked when the caller's token is revoked."""
    return await _create(call, is_orphan=False)


async def create_orphan(call: RouteCall) -> VaultBody:
    """Create a token without a parent."""
    return await _create(call, is_orphan=True)


async def create_by_role(call: RouteCall) -> VaultBody:
    """Create a token with a role."""
    role = call.parts.store.read(lambda db: tokens.find_role(db, call["name"]))
    if role is None:
        raise Malformed(f"unknown role {call['name']}")
    suffix = f"/{role.path_suffix}" if role.path_suffix else ""
    return await _create(call, is_orphan=False, role=role, suffix=suffix)


async def _create(
    call: RouteCall, *, is_orphan: bool, role: TokenRole | None = None, suffix: str = ""
) -> VaultBody:
    _check_entity_alias(call, role)
    token_request = TokenRequestFields(
        maker=call.caller,
        fields=call.fields,
        path=f"{call.name}{suffix}",
        is_orphan=is_orphan,
        has_sudo=_has_sudo(call),
        **({"role": role} if role else {}),
    )
    issued, warnings = await _issue(call, token_request)
    return VaultBody(auth=auth_block(issued.secret, issued.token), warnings=warnings)


def _check_entity_alias(call: RouteCall, role: TokenRole | None) -> None:
    """Raise `Malformed` if a request sets `entity_alias`.

    If Vault also refuses the request, the error is Vault's. A client that asks for a token of an
    entity must not get a token without an entity.
    """
    alias = call.fields.text("entity_alias")
    if not alias:
        return
    if role is None:
        raise Malformed("'entity_alias' is only allowed in combination with token role")
    if alias not in (role.allowed_entity_aliases or ()):
        raise Malformed("invalid 'entity_alias' value")
    raise Malformed(
        f"entity_alias = {quote(alias)}: only a login creates tokens of entities; "
        "log in, or omit the field"
    )


def _has_sudo(call: RouteCall) -> bool:
    permission = call.caller.grant.permission(call.name)
    return call.caller.grant.everything or (
        permission is not None and "sudo" in permission.capabilities
    )


async def _issue(
    call: RouteCall, token_request: TokenRequestFields
) -> tuple[IssuedToken, list[str]]:
    parts = call.parts
    accessor, secret, now = new_accessor(), new_secret(), parts.clock.now()

    def write(tx: Transaction) -> tuple[NewToken, str]:
        new_token = create_token(tx, token_request, accessor=accessor, now=now)
        chosen = new_token.secret or secret
        if new_token.token.kind is TokenKind.SERVICE:
            parts.tokens.add(tx, new_token.token, chosen)
        return new_token, chosen

    role = token_request.role
    named = (*role.allowed_policies, *role.allowed_policies_glob, *role.disallowed_policies)
    is_long = call.is_long or len(named) > _FEW_POLICIES
    created, chosen = await parts.store.write(write, is_long=is_long)
    if created.token.kind is TokenKind.SERVICE:
        return IssuedToken(chosen, created.token), list(created.warnings)
    return await parts.tokens.issue(created.token), list(created.warnings)


# --- lookup -----------------------------------------------------------------------------------


async def lookup(call: RouteCall) -> VaultBody | HandlerReply:
    """Describe the token with the secret in the request, or else the caller's own token."""
    secret = call.fields.text("token")
    if not secret:
        return await lookup_self(call)
    token = call.parts.store.read(lambda db: call.parts.tokens.find(db, secret))
    if token is None:
        return vault_envelope.errors(403, "bad token")
    return VaultBody(data=_described(call, token, secret))


async def lookup_self(call: RouteCall) -> VaultBody:
    """Describe the token of the request."""
    return VaultBody(data=_described(call, call.caller.token, call.token))


async def lookup_accessor(call: RouteCall) -> VaultBody | HandlerReply:
    """Describe the token with this accessor."""
    token = _of_accessor(call)
    return token if isinstance(token, HandlerReply) else VaultBody(data=_described(call, token, ""))


def _of_accessor(call: RouteCall) -> Token | HandlerReply:
    accessor = call.fields.text("accessor")
    if not accessor:
        return vault_envelope.listed(400, "missing accessor")
    token = call.parts.store.read(lambda db: tokens.find(db, accessor))
    if token is None or token.has_ended(call.parts.clock.now()):
        return vault_envelope.listed(400, "invalid accessor")
    return token


def _described(call: RouteCall, token: Token, secret: str) -> dict[str, object]:
    """Return the description of a token, without those empty parts that Vault leaves out."""
    # Tokens of the jobs API have paths of that API.
    is_ours = token.path.startswith("auth/")
    left = (token.expires_at - call.parts.clock.now()) // SECOND if token.expires_at else 0
    document: dict[str, object] = {
        "accessor": token.accessor,
        "creation_time": token.created_at // SECOND,
        "creation_ttl": token.ttl // SECOND,
        "display_name": token.name if is_ours else "token",
        "entity_id": token.entity_id,
        "expire_time": rfc3339(token.expires_at) if token.expires_at else None,
        "explicit_max_ttl": token.explicit_max_ttl // SECOND,
        "id": secret,
        "issue_time": rfc3339(token.created_at + _NOTED_AFTER),
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
        document["bound_cidrs"] = token.bound_cidrs
    if token.period:
        document["period"] = token.period // SECOND
    if token.role:
        document["role"] = token.role
    if by_identity := _of_identity(call, token):
        document["identity_policies"] = by_identity
        document["external_namespace_policies"] = {}
    if token.renewed_at is not None:
        document["last_renewal"] = rfc3339(token.renewed_at)
        document["last_renewal_time"] = token.renewed_at // SECOND
    return document


def _of_identity(call: RouteCall, token: Token) -> list[str]:
    """Return the policies that a token has through its entity and the entity's groups."""
    return call.parts.store.read(lambda db: groups.identity_policies(db, token.entity_id))


async def accessors(call: RouteCall) -> VaultBody:
    """List the accessors of all tokens."""
    return await vault_reads.keys(call, tokens.accessors)


# --- renewal ----------------------------------------------------------------------------------


async def renew(call: RouteCall) -> VaultBody:
    """Renew the token with the secret in the request."""
    secret = call.fields.text("token")
    if not secret:
        raise Malformed(_UNNAMED)
    token = call.parts.store.read(lambda db: call.parts.tokens.find(db, secret))
    if token is None:
        raise Malformed("token not found")
    return await _renew(call, token, secret)


async def renew_self(call: RouteCall) -> VaultBody:
    """Renew the token of the request."""
    return await _renew(call, call.caller.token, call.token)


async def renew_accessor(call: RouteCall) -> VaultBody | HandlerReply:
    """Renew the token with this accessor."""
    token = _of_accessor(call)
    return token if isinstance(token, HandlerReply) else await _renew(call, token, "")


async def _renew(call: RouteCall, token: Token, secret: str) -> VaultBody:
    increment = _increment(call)
    now = call.parts.clock.now()

    def write(tx: Transaction) -> tuple[Token, int, tuple[str, ...]]:
        present = tokens.find(tx, token.accessor)
        if present is None and token.uses_left == SPENT:
            raise Malformed("token not found")
        present = present or token
        after, span = renew_token(present, increment, _terms(tx, present), now)
        call.parts.tokens.schedule_expiry(after.expires_at)
        return tokens.update(tx, after), span.ttl, span.warnings

    after, ttl, warnings = await call.parts.store.write(write)
    # The response has no orphan flag (Vault's recorded responses: token-self).
    uses = after.uses or after.uses_left or 0
    by_identity = _of_identity(call, after)
    auth = {
        **auth_block(secret, after, by_identity),
        "lease_duration": ttl,
        "orphan": False,
        "num_uses": uses,
    }
    return VaultBody(auth=auth, warnings=warnings)


def _increment(call: RouteCall) -> int:
    try:
        return call.fields.signed_seconds("increment")
    except Malformed as error:
        raise Malformed(f"Field validation failed: {error}") from None


def _terms(db: ReadSnapshot, token: Token) -> RenewalLimits:
    if token.mount:
        return mounts.renewal_limits(db, token)
    return renewal_limits(token, tokens.find_role(db, token.role) if token.role else None)


# --- revocation -------------------------------------------------------------------------------


async def revoke(call: RouteCall) -> VaultBody:
    """Revoke the token with the secret in the request, and its children."""
    token = _named(call)
    await _revoke(call, token, tokens.remove)
    if token is None:
        call.warnings.append("nothing was revoked: there is no token with this secret")
    return VaultBody()


async def revoke_self(call: RouteCall) -> VaultBody:
    """Revoke the token of the request, and its children."""
    await _revoke(call, call.caller.token, tokens.remove)
    return VaultBody()


async def revoke_orphan(call: RouteCall) -> VaultBody:
    """Revoke the token with the secret in the request; its children stay valid."""
    token = _named(call)
    if token is None:
        raise Malformed("token to revoke not found")

    def leave_children(tx: Transaction, accessor: str) -> int:
        tokens.orphan_children(tx, accessor)
        return tokens.remove(tx, accessor)

    await _revoke(call, token, leave_children)
    return VaultBody()


async def revoke_accessor(call: RouteCall) -> VaultBody | HandlerReply:
    """Revoke the token with this accessor, and its children."""
    accessor = call.fields.text("accessor")
    if not accessor:
        return vault_envelope.listed(400, "missing accessor")
    token = call.parts.store.read(lambda db: tokens.find(db, accessor))
    if token is None:
        return VaultBody(warnings=["No token found with this accessor"])
    await _revoke(call, token, tokens.remove)
    return VaultBody()


def _named(call: RouteCall) -> Token | None:
    secret = call.fields.text("token")
    if not secret:
        raise Malformed(_UNNAMED)
    return call.parts.store.read(lambda db: call.parts.tokens.find(db, secret))


async def _revoke(
    call: RouteCall, token: Token | None, remove: Callable[[Transaction, str], int]
) -> None:
    if token is None:
        return
    if token.kind is TokenKind.BATCH:
        raise Malformed("batch tokens cannot be revoked")
    accessor = token.accessor
    await call.parts.store.write(lambda tx: remove(tx, accessor))


async def tidy(call: RouteCall) -> HandlerReply:
    """Remove expired tokens; the daemon also does this continuously."""
    call.parts.tokens.schedule_expiry(0)
    reply = vault_envelope.enveloped(
        VaultBody(warnings=[_TIDYING]), path=call.name, request_id=request_context.current()
    )
    return msgspec.structs.replace(reply, status=202)


# --- roles ------------------------------------------------------------------------------------


async def roles(call: RouteCall) -> VaultBody:
    """List the token roles."""
    return await vault_reads.keys(call, tokens.roles)


async def read_role(call: RouteCall) -> VaultBody:
    """Show a role."""
    role = call.parts.store.read(lambda db: tokens.find_role(db, call["name"]))
    if role is None:
        raise NotFound("")
    return VaultBody(data=role_response(role))


async def write_role(call: RouteCall) -> VaultBody:
    """Create a role, or change the given fields."""
    name = call["name"]

    def write(tx: Transaction) -> tuple[str, ...]:
        changed = change_role(tokens.find_role(tx, name) or TokenRole(name=name), call.fields)
        tokens.put_role(tx, changed.role)
        return changed.warnings

    return VaultBody(warnings=await call.parts.store.write(write, is_long=call.is_long))


async def delete_role(call: RouteCall) -> VaultBody:
    """Delete a role, if it exists."""
    existed = await call.parts.store.write(lambda tx: tokens.remove_role(tx, call["name"]))
    call.note_deletion("token role", call["name"], existed=existed)
    return VaultBody()


def role_exists(call: RouteCall) -> bool:
    """Return whether the role in the path exists."""
    return call.parts.store.read(lambda db: tokens.find_role(db, call["name"])) is not None
