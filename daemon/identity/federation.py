"""Federation: the daemon signs identity tokens for its login methods.

A directory that trusts this issuer exchanges such a token for an access token, so no secret is
stored. The directory must be able to read the discovery document and the JWKS of this issuer. It
must be configured with the token's subject, which never changes for a mount.
"""

import re
from urllib.parse import urlsplit

import msgspec

from daemon.clock import Clock
from daemon.config.settings import Settings
from daemon.identity.credentials import CloudClient
from daemon.identity.issuer import LONGEST_TTL, Issuer
from daemon.version import VERSION
from storage.errors import Invalid
from storage.queries import settings
from storage.read_pool import ReadSnapshot
from storage.records.base import SECOND
from storage.records.identity import Mount
from storage.store import Store

PATH = "/v1/identity/oidc"
PLUGINS = f"{PATH}/plugins"
KEYS = "/.well-known/keys"
_TTL = 3600  # seconds
_ALGORITHMS = (
    "RS256",
    "RS384",
    "RS512",
    "ES256",
    "ES384",
    "ES512",
    "EdDSA",
)  # algorithms that clients support
_BASE = re.compile(r"https?://[^/?#\s@]+(:[0-9]+)?")


class DiscoveryDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The discovery document, which verifiers of the tokens read first."""

    issuer: str
    jwks_uri: str
    response_types_supported: tuple[str, ...] = ("id_token",)
    subject_types_supported: tuple[str, ...] = ("public",)
    id_token_signing_alg_values_supported: tuple[str, ...] = _ALGORITHMS


def issuer_url(db: ReadSnapshot, config: Settings) -> str:
    """Return the address of the public documents."""
    return settings.find(db, settings.OIDC_ISSUER) or config.issuer


def check_base(text: str) -> None:
    """Raise `Invalid` unless a text is empty, or consists of scheme, host and optional port."""
    if text and not _is_base(text):
        raise Invalid(
            "invalid issuer, which must include only a scheme, host, and optional port "
            "(e.g. https://example.com:8200)"
        )


def _is_base(text: str) -> bool:
    if not _BASE.fullmatch(text):
        return False
    try:
        parts = urlsplit(text)
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        port = "" if parts.port is None else f":{parts.port}"
    except ValueError:  # a port out of range, or an incomplete address
        return False
    return parts.netloc.lower() == f"{host}{port}"


def described(db: ReadSnapshot, config: Settings, path: str) -> DiscoveryDocument:
    """Return the discovery document of the issuer at a path."""
    issuer = f"{issuer_url(db, config)}{path}"
    return DiscoveryDocument(issuer=issuer, jwks_uri=f"{issuer}{KEYS}")


def assertion_subject(mount: Mount) -> str:
    """Return the subject that identifies a mount to parties that trust Steward."""
    return f"plugin-identity:root:auth:{mount.accessor}"


class ClientAssertions:
    """A signer of identity tokens for login methods."""

    def __init__(self, store: Store, clock: Clock, issuer: Issuer, config: Settings) -> None:
        self._store, self._clock, self._issuer, self._config = store, clock, issuer, config

    async def assertion(self, client: CloudClient) -> str:
        """Return a token whose subject names the mount."""
        mount, config = client.mount, client.settings.config
        now = self._clock.now() // SECOND
        ttl = min(config.identity_token_ttl or _TTL, LONGEST_TTL // SECOND)
        address = self._store.read(lambda db: issuer_url(db, self._config))
        claims = {
            "iss": f"{address}{PLUGINS}",
            "sub": assertion_subject(mount),
            "aud": [config.identity_token_audience],
            "iat": now,
            "nbf": now,
            "exp": now + ttl,
            "vaultproject.io": {  # a name on the wire: trust policies of clouds match it
                "accessor": mount.accessor,
                "class": "auth",
                "local": mount.local,
                "namespace_id": "root",
                "namespace_path": "",
                "path": mount.path,
                "plugin": mount.type,
                "version": f"v{VERSION}",
            },
        }
        return self._issuer.sign(claims)
