"""Public documents of the workload identity issuer: discovery and keys."""

from daemon.web.reply import HandlerReply
from daemon.web.request import Request
from storage.read_pool import ReadSnapshot
from storage.records.signing import ALGORITHM

# A new key is published long before it signs.
_KEEP = {"Cache-Control": "public, max-age=3600"}
KEYS = "/.well-known/jwks.json"


def keys(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Show the public keys for verification of workload identity tokens."""
    return HandlerReply(body={"keys": request.parts.issuer.published()}, headers=_KEEP)


def discovery(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Describe the issuer of workload identity tokens (OpenID Connect Discovery)."""
    issuer = request.parts.config.issuer
    described = {
        "issuer": issuer,
        "jwks_uri": f"{issuer}{KEYS}",
        "response_types_supported": ["code"],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": [ALGORITHM],
    }
    return HandlerReply(body=described, headers=_KEEP)
