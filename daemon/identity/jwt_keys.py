"""The public keys of auth methods: from their configuration, a JWKS URL or a discovery URL.

Fetched keys are cached in memory. A token with an unknown key causes one fetch for all waiting
logins. After a fetch without that key, further fetches are delayed, so that forged tokens cannot
flood the provider. The egress policy of the daemon applies, redirects are not followed, and size
and time are limited.
"""

from collections.abc import Sequence
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec
import trio

from daemon.identity.jwt_verification import (
    MAX_KEY_SET,
    MOST_KEY_VALUES,
    KeySet,
    ParsedJwt,
    UnknownKey,
    matching_keys,
    read_public_pem,
    verify_signature,
)
from daemon.identity.key_cache import CacheKey, FetchedKeys, KeyCache, put_last
from daemon.net import http_client
from daemon.net.egress_policy import EgressDenied
from daemon.net.http_client import HttpError, Permit
from daemon.text.go_format import quote
from storage.errors import Malformed, Refused
from storage.records import json_steps
from storage.records.auth_method import AuthMethod, AuthMethodConfig
from storage.records.base import SECOND
from storage.records.codec import may_have_more_values
from storage.records.identity import DirectoryKey

T = TypeVar("T")

MOST_KEYS = 100
_FETCH_WITHIN = 10.0  # seconds
_MAX_AGE = 300 * SECOND
_PAUSE = 30 * SECOND  # after a fetch without the wanted key
_PAUSE_AFTER_ERROR = 10 * SECOND
_SHOWN = 200  # characters of a provider's text in an error
_WELL_KNOWN = "/.well-known/openid-configuration"


class _Discovery(msgspec.Struct, frozen=True):
    issuer: str
    jwks_uri: str


class MethodKeys:
    """The signing keys of login methods, fetched when a login needs them."""

    def __init__(self, cache: KeyCache) -> None:
        self._cached, self._failures = cache.fetched, cache.failures
        self._flights = cache.flights

    async def verify(
        self, method: AuthMethod, token: ParsedJwt, *, now: int, permit: Permit
    ) -> None:
        """Check that a key of the method signed the token. Raises `UnknownKey` or `Refused`.

        `now` is in nanoseconds.
        """
        config = method.config or AuthMethodConfig()
        if config.jwt_validation_pub_keys:
            verify_signature(token, _static_keys(config, token))
            return
        key = (method.name, method.modify_index)
        cached = self._cached.get(key)
        if cached is None or _should_fetch(cached, token, now):
            cached = await self._fetched(key, config, now, permit)
        if not matching_keys(token, cached.keys):
            tried = cached.in_vain_at if now - cached.in_vain_at < _PAUSE else now
            put_last(self._cached, key, msgspec.structs.replace(cached, in_vain_at=tried))
            raise UnknownKey
        verify_signature(token, cached.keys)

    async def _fetched(
        self, key: CacheKey, config: AuthMethodConfig, now: int, permit: Permit
    ) -> FetchedKeys:
        failed_at, text = self._failures.get(key, (0, ""))
        if text and now - failed_at < _PAUSE_AFTER_ERROR:
            raise Refused(text)
        try:
            keys = await self._flights.join(key, lambda: fetch_keys(config, permit))
        except Refused as error:
            put_last(self._failures, key, (now, str(error)))
            raise
        self._failures.pop(key, None)
        fetched_keys = FetchedKeys(keys, now)
        put_last(self._cached, key, fetched_keys)
        return fetched_keys


def _should_fetch(fetched_keys: FetchedKeys, token: ParsedJwt, now: int) -> bool:
    """Return whether to fetch keys: the cached keys are too old, or the token's key is missing.

    If a fetch did not return the requested key, a missing key causes no fetch for a while.
    """
    if now - fetched_keys.fetched_at >= _MAX_AGE:
        return True
    return not matching_keys(token, fetched_keys.keys) and now - fetched_keys.in_vain_at >= _PAUSE


def _static_keys(config: AuthMethodConfig, token: ParsedJwt) -> list[DirectoryKey]:
    """Return the keys of the configuration; they have no ID, so each may be the token's key."""
    keys = map(read_public_pem, config.jwt_validation_pub_keys or ())
    return [msgspec.structs.replace(key, kid=token.kid) for key in keys if key]


async def fetch_keys(config: AuthMethodConfig, permit: Permit) -> Sequence[DirectoryKey]:
    """Return the keys that a provider publishes. Raises `Refused`."""
    url, authority = config.jwks_url, config.jwks_ca_cert
    with trio.move_on_after(_FETCH_WITHIN):
        if not url:
            authority = "\n".join(config.discovery_ca_pem or ())
            url = await _discovered(config.oidc_discovery_url, authority, permit)
        published = await _document(url, authority, permit, KeySet)
        return published.signing_keys(MOST_KEYS)
    raise Refused(f"unable to get validation keys: no answer within {_FETCH_WITHIN:.0f} s")


async def _discovered(provider: str, authority: str, permit: Permit) -> str:
    """Return the URL of the keys that a provider's discovery document names. Raises `Refused`."""
    base = provider.rstrip("/")
    discovery = await _document(f"{base}{_WELL_KNOWN}", authority, permit, _Discovery)
    failed = f"unable to get validation keys from {_shown(base)}: its discovery document names"
    if discovery.issuer.rstrip("/") != base:
        raise Refused(f"{failed} a different issuer, {quote(discovery.issuer[:_SHOWN])}")
    is_secure = base.lower().startswith("https://")
    if is_secure and not discovery.jwks_uri.lower().startswith("https://"):
        raise Refused(f"{failed} a key URL without https, {_shown(discovery.jwks_uri)[:_SHOWN]}")
    return discovery.jwks_uri


async def _document(url: str, authority: str, permit: Permit, kind: type[T]) -> T:
    """Return a document of the provider, decoded as `kind`. Raises `Refused`."""
    failed = f"unable to get validation keys from {_shown(url)}"
    body = bytearray()
    try:
        async with http_client.send_request(
            url,
            headers=[("accept", "application/json"), ("accept-encoding", "identity")],
            authority_pem=authority,
            permit=permit,
        ) as answer:
            if answer.status != 200:
                raise Refused(f"{failed}: the provider answered with the status {answer.status}")
            async for chunk in answer.body:
                body += chunk
                if len(body) > MAX_KEY_SET:
                    raise Refused(f"{failed}: the answer is larger than {MAX_KEY_SET} bytes")
    except (HttpError, EgressDenied) as error:
        raise Refused(f"{failed}: {error}") from error
    if may_have_more_values(bytes(body), MOST_KEY_VALUES):
        raise Refused(f"{failed}: the answer has more than {MOST_KEY_VALUES} JSON values")
    try:
        return json_steps.decode_as(bytes(body), kind)
    except (Malformed, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(f"{failed}: the answer is not a JSON document of keys: {error}") from error


def _shown(url: str) -> str:
    """Return a URL without its query and user, because they may be secret."""
    try:
        target = urlsplit(url)
    except ValueError:
        return "the URL"
    return f"{target.scheme}://{target.netloc.rpartition('@')[2]}{target.path}"
