"""Leases of logins: each token of a login is a lease, named by its path and accessor."""

import msgspec

from daemon.api import vault_reads
from daemon.identity.mounts import path_of
from daemon.web import vault_envelope
from daemon.web.reply import HandlerReply
from daemon.web.request import RouteCall
from daemon.web.vault_envelope import VaultBody
from storage.errors import Invalid
from storage.queries import mounts, tokens
from storage.queries.pages import KeyRange
from storage.read_pool import ReadSnapshot
from storage.records.acl import Token
from storage.records.base import SECOND
from storage.records.times import rfc3339

_UNKNOWN = "invalid lease"


def _login(mount: mounts.MountName) -> str:
    return f"auth/{mount.path}login/"


async def index(call: RouteCall) -> VaultBody:
    """List the entries below a prefix: path segments, or the leases of one login path."""
    prefix = path_of(call["prefix"])

    def look(db: ReadSnapshot, span: KeyRange) -> list[str]:
        names = set[str]()
        for mount in mounts.names(db):
            if _login(mount) == prefix:
                names.update(tokens.issued_by_mount(db, mount.accessor, span))
            elif _login(mount).startswith(prefix) and _has_leases(db, mount):
                part = _login(mount).removeprefix(prefix).partition("/")[0] + "/"
                names.update({part} if part > span.after else ())
        return sorted(names)[: span.most if span.most >= 0 else None]

    return await vault_reads.keys(call, look)


def _has_leases(db: ReadSnapshot, mount: mounts.MountName) -> bool:
    return bool(tokens.issued_by_mount(db, mount.accessor, KeyRange(most=1)))


def _token(call: RouteCall) -> Token | None:
    lease_id = call.fields.text("lease_id")
    if not lease_id:
        raise Invalid("lease_id must be specified")
    path, _, accessor = lease_id.rpartition("/")
    token = call.parts.store.read(lambda db: tokens.find(db, accessor))
    return token if token and token.mount and token.path == path else None


async def look_up(call: RouteCall) -> VaultBody:
    """Show a lease."""
    token = _token(call)
    if token is None:
        raise Invalid(_UNKNOWN)
    ends, now = token.expires_at, call.parts.clock.now()
    return VaultBody(
        data={
            "id": f"{token.path}/{token.accessor}",
            "issue_time": rfc3339(token.created_at),
            "expire_time": rfc3339(ends) if ends else None,
            "last_renewal": rfc3339(token.renewed_at) if token.renewed_at else None,
            "renewable": token.renewable,
            "ttl": (ends - now) // SECOND if ends else 0,
        }
    )


async def renew(call: RouteCall) -> VaultBody:
    """Reject the request. A client renews a login with the token or the accessor instead."""
    if _token(call) is None:
        raise Invalid("lease not found")
    raise Invalid("the lease of a login is renewed at auth/token/renew-accessor")


async def revoke(call: RouteCall) -> VaultBody:
    """Revoke the token of a lease, if it exists."""
    if token := _token(call):
        await call.parts.store.write(lambda tx: tokens.remove(tx, token.accessor))
    else:
        call.warnings.append("nothing was revoked: there is no such lease")
    return VaultBody()


async def revoke_prefix(call: RouteCall) -> VaultBody:
    """Revoke all tokens that logins below a prefix issued."""
    prefix = path_of(call["prefix"])
    if prefix.startswith("auth/token/"):
        raise Invalid("tokens below auth/token are revoked at auth/token/revoke-accessor")
    for mount in call.parts.store.read(mounts.names):
        if _login(mount).startswith(prefix):
            await call.parts.tokens.revoke_mount(mount.accessor)
    return VaultBody()


async def count(call: RouteCall) -> VaultBody:  # every handler is async
    """Count the irrevocable leases: there are none."""
    return VaultBody(data={"counts": {}, "lease_count": 0})


async def tidy(call: RouteCall) -> HandlerReply:
    """Remove expired tokens; the daemon also does this continuously."""
    call.parts.tokens.schedule_expiry(0)
    vault_body = VaultBody(warnings=["Tidy operation successfully started."])
    return msgspec.structs.replace(
        vault_envelope.enveloped(vault_body, path="", request_id=""), status=202
    )
