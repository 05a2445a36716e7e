"""The identity token issuer in the Vault API: configuration, discovery and keys."""

from daemon.identity import federation
from daemon.identity.issuer import LONGEST_TTL, ROTATION
from daemon.web.reply import HandlerReply
from daemon.web.request import RouteCall
from daemon.web.vault_envelope import VaultBody
from storage.errors import NotFound
from storage.queries import settings
from storage.records.base import SECOND

# A new key is published a day before it signs, so a cached copy may be an hour old.
_KEEP = {"Cache-Control": "public, max-age=3600"}
_SET = (
    'If "issuer" is set explicitly, all tokens must be validated against that address, including '
    'those issued by secondary clusters. Setting issuer to "" will restore the default behavior '
    "of using the cluster's api_addr as the issuer."
)
_DEFAULT_KEY = "default"


async def read_config(call: RouteCall) -> VaultBody:
    """Show the issuer URL; empty means the daemon's own address."""
    issuer = call.parts.store.read(lambda db: settings.find(db, settings.OIDC_ISSUER))
    return VaultBody(data={"issuer": issuer})


async def write_config(call: RouteCall) -> VaultBody:
    """Set the issuer URL. A request without it changes nothing."""
    if "issuer" not in call.fields:
        return VaultBody()
    issuer = call.fields.text("issuer").rstrip("/")
    federation.check_base(issuer)
    await call.parts.store.write(lambda tx: settings.put(tx, settings.OIDC_ISSUER, issuer))
    return VaultBody(warnings=[_SET] if issuer else [])


async def discovery(call: RouteCall) -> HandlerReply:
    """Describe the issuer of identity tokens."""
    return _described(call, federation.PATH)


async def plugin_discovery(call: RouteCall) -> HandlerReply:
    """Describe the issuer of the tokens for login methods (plugin identity tokens)."""
    return _described(call, federation.PLUGINS)


def _described(call: RouteCall, path: str) -> HandlerReply:
    config = call.parts.config
    body = call.parts.store.read(lambda db: federation.described(db, config, path))
    return HandlerReply(body=body, headers=_KEEP)


async def keys(call: RouteCall) -> HandlerReply:
    """Show the public keys for verification of the daemon's signatures."""
    return HandlerReply(body={"keys": call.parts.issuer.published()}, headers=_KEEP)


async def read_key(call: RouteCall) -> VaultBody:
    """Show the properties of the named key."""
    if call["key"] != _DEFAULT_KEY:
        raise NotFound("")
    return VaultBody(
        data={
            "algorithm": "RS256",
            "allowed_client_ids": ["*"],
            "rotation_period": ROTATION // SECOND,
            "verification_ttl": LONGEST_TTL // SECOND,
        }
    )
