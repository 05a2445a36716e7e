"""What others need to trust our identity tokens: who signs them, and with which keys."""

from daemon.web.reply import Reply
from daemon.web.request import Request
from storage.readers import Snapshot
from storage.records.signing import ALGORITHM

# A new key is published long before it signs.
_KEEP = {"Cache-Control": "public, max-age=3600"}
KEYS = "/.well-known/jwks.json"


def keys(request: Request, db: Snapshot) -> Reply:
    """Show the keys by which our signatures can be checked."""
    return Reply(body={"keys": request.parts.issuer.published()}, headers=_KEEP)


def discovery(request: Request, db: Snapshot) -> Reply:
    """Describe the issuer of identity tokens, as OpenID Connect Discovery has it."""
    issuer = request.parts.config.issuer
    described = {
        "issuer": issuer,
        "jwks_uri": f"{issuer}{KEYS}",
        "response_types_supported": ["code"],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": [ALGORITHM],
    }
    return Reply(body=described, headers=_KEEP)
