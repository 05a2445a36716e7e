"""The daemon as an issuer of identity tokens: who it is to others, and with which keys it signs."""

from daemon.identity import federation
from daemon.identity.issuer import LONGEST_TTL, ROTATION
from daemon.web.envelope import Answer
from daemon.web.reply import Reply
from daemon.web.request import Call
from storage.errors import NotFound
from storage.queries import settings
from storage.records.base import SECOND

# A new key is published a day before it signs, so a copy may be an hour old.
_KEEP = {"Cache-Control": "public, max-age=3600"}
_SET = (
    'If "issuer" is set explicitly, all tokens must be validated against that address, including '
    'those issued by secondary clusters. Setting issuer to "" will restore the default behavior '
    "of using the cluster's api_addr as the issuer."
)
_DEFAULT_KEY = "default"


async def read_config(call: Call) -> Answer:
    """Show under which address others reach the public documents; empty means the daemon's own."""
    issuer = call.parts.store.read(lambda db: settings.find(db, settings.OIDC_ISSUER))
    return Answer(data={"issuer": issuer})


async def write_config(call: Call) -> Answer:
    """Set the address under which others reach the public documents."""
    issuer = call.fields.text("issuer").rstrip("/")
    federation.check_base(issuer)
    await call.parts.store.write(lambda tx: settings.put(tx, settings.OIDC_ISSUER, issuer))
    return Answer(warnings=[_SET] if issuer else [])


async def discovery(call: Call) -> Reply:
    """Describe the issuer of identity tokens."""
    return _described(call, federation.PATH)


async def plugin_discovery(call: Call) -> Reply:
    """Describe the issuer of the tokens with which the daemon vouches for its login methods."""
    return _described(call, federation.PLUGINS)


def _described(call: Call, path: str) -> Reply:
    config = call.parts.config
    body = call.parts.store.read(lambda db: federation.described(db, config, path))
    return Reply(body=body, headers=_KEEP)


async def keys(call: Call) -> Reply:
    """Show the keys by which signatures of the daemon are checked."""
    return Reply(body={"keys": call.parts.issuer.published()}, headers=_KEEP)


async def read_key(call: Call) -> Answer:
    """Show how the one named key is looked after."""
    if call["key"] != _DEFAULT_KEY:
        raise NotFound("")
    return Answer(
        data={
            "algorithm": "RS256",
            "allowed_client_ids": ["*"],
            "rotation_period": ROTATION // SECOND,
            "verification_ttl": LONGEST_TTL // SECOND,
        }
    )
