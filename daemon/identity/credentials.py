"""The daemon's own cloud credentials: access tokens, cached until shortly before they expire.

The sources are, in order: a client secret, Steward's identity token (federation), a token file of
the platform, or the managed identity of the machine. A background task renews the tokens in use
before they expire, with growing pauses after errors. In the meantime, logins use the current token.
"""

import logging
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import urlencode

import msgspec
import trio

from daemon.clock import Clock
from daemon.fences import Fences
from daemon.identity.cloud_endpoints import CloudSettings
from daemon.identity.cloud_http import (
    CloudHttp,
    CloudRequestFailed,
    CloudResponse,
    RetryPolicy,
    decoded,
)
from daemon.identity.resource_id import path
from daemon.identity.single_flight import SingleFlight
from storage.errors import Refused
from storage.records.base import HOUR, MINUTE, SECOND
from storage.records.identity import Mount

log = logging.getLogger("steward.identity.credentials")
_FENCED = "cloud token"

BEFORE_END = 5 * MINUTE  # a token that expires sooner is not used
_NEW = MINUTE  # a token younger than this is not replaced after a rejection
_UNUSED = 3 * HOUR  # a token that was not used for this time is dropped
_LONGEST_RENEWAL = 120.0  # seconds for all attempts together
_ROUND = 30.0  # seconds between checks for expiring tokens
_LONGEST_BACKOFF = 5 * MINUTE
_MOST = 256  # cached tokens; each mount has one or two
_MAX_FILE = 64 * 1024  # bytes of a token file

_MACHINE_TOKEN = "/metadata/identity/oauth2/token"  # noqa: S105  # a path
_BAD_REQUEST = 400
_UNAUTHORIZED = 401
_LONGEST_LIFE = 48 * 3600  # seconds
_SECONDS = re.compile(r"[0-9]{1,18}")
_TOKEN = re.compile(r"[!-~]+")  # characters that a header can contain
_JWT_BEARER = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
_CAPABILITIES = '{"access_token":{"xms_cc":{"values":["CP1"]}}}'


class CloudClient(msgspec.Struct, frozen=True, kw_only=True):
    """The daemon as a client of the cloud, with the settings and the secret of a mount."""

    mount: Mount
    settings: CloudSettings
    secret: str


class CachedToken(msgspec.Struct, kw_only=True):
    """A cached token, and the client with which the next token is requested."""

    token: str
    ends_at: int
    fetched_at: int
    used_at: int
    try_again_at: int = 0
    failures: int = 0
    client: CloudClient
    audience: str


class TokenGrant(msgspec.Struct, frozen=True):
    """The response of a token endpoint; the metadata service writes its numbers as text."""

    access_token: str
    expires_in: int | str = 3600

    @property
    def ttl(self) -> int | None:
        """Return the TTL of the token in seconds, capped; None if it is not a number."""
        text = str(self.expires_in) if isinstance(self.expires_in, int) else self.expires_in
        if not _SECONDS.fullmatch(text):
            return None
        return min(int(text), _LONGEST_LIFE)


Assertion = Callable[[CloudClient], Awaitable[str]]
OnFetched = Callable[
    [CloudClient, str, CachedToken], Awaitable[None]
]  # the arguments are client, audience and new token


class AccessTokenCache:
    """The access tokens of all mounts."""

    def __init__(
        self,
        transport: CloudHttp,
        clock: Clock,
        assertion: Assertion,
        fences: Fences | None = None,
    ) -> None:
        self._fences = fences or Fences(clock)
        self._transport = transport
        self._clock = clock
        self._assertion = assertion
        self._held: dict[tuple[object, ...], CachedToken] = {}
        self._flights: SingleFlight[CachedToken] = SingleFlight()
        self.on_fetched: OnFetched | None = None

    async def access_token(self, client: CloudClient, audience: str) -> str:
        """Return a token for this audience. Raises `Refused`."""
        key = _key(client, audience)
        now = self._clock.now()
        grant = self._held.get(key)
        if grant is None or grant.ends_at - _margin(grant) <= now:
            grant = await self._flights.join(key, lambda: self._fetch(key, client, audience))
        grant.used_at = now
        return grant.token

    def cached_token(self, client: CloudClient, audience: str) -> CachedToken | None:
        """Return the cached token for this audience, unless it expires soon."""
        grant = self._held.get(_key(client, audience))
        return grant if grant and grant.ends_at - _margin(grant) > self._clock.now() else None

    async def refresh(self, client: CloudClient, audience: str) -> None:
        """Fetch a token for this audience, ignoring the cache. Raises `Refused`."""
        key = _key(client, audience)
        await self._flights.join(key, lambda: self._fetch(key, client, audience))

    async def request(
        self, client: CloudClient, audience: str, method: str, url: str, document: object = None
    ) -> CloudResponse:
        """Send a request with an access token to a cloud API; return the response.

        The cloud may reject a token before it expires, after a change of keys or roles. A rejected
        token is dropped and the request is repeated once, unless the token is new. Raises
        `Refused`.
        """
        token = await self.access_token(client, audience)
        answer = await self._send(client, token, method, url, document)
        if answer.status == _UNAUTHORIZED and self._drop_token(_key(client, audience), token):
            token = await self.access_token(client, audience)
            answer = await self._send(client, token, method, url, document)
        return answer

    async def _send(
        self, client: CloudClient, token: str, method: str, url: str, document: object
    ) -> CloudResponse:
        return await self._transport.send(
            method,
            url,
            headers={"Authorization": f"Bearer {token}"},
            document=document,
            retries=RetryPolicy.of(client.settings.config),
        )

    def _drop_token(self, key: tuple[object, ...], token: str) -> bool:
        """Drop a rejected token; return whether a request with a new token may succeed."""
        grant = self._held.get(key)
        if grant is not None and grant.token == token:
            if grant.fetched_at + _NEW > self._clock.now():
                return False
            del self._held[key]
        return True

    def forget(self, accessor: str) -> None:
        """Drop the tokens of a mount."""
        for key in [key for key in self._held if key[0] == accessor]:
            del self._held[key]

    def ages(self) -> dict[str, float]:
        """Return the seconds since the oldest token of each mount was fetched."""
        now = self._clock.now()
        ages: dict[str, float] = {}
        for grant in self._held.values():
            path = grant.client.mount.path
            ages[path] = max(ages.get(path, 0.0), (now - grant.fetched_at) / SECOND)
        return ages

    async def renew(self) -> None:
        """Renew the tokens in use before they expire, until cancelled."""
        while True:
            await trio.sleep(_ROUND)
            await self.renew_due()

    async def renew_due(self) -> None:
        """Renew tokens that expire soon; drop unused tokens."""
        now = self._clock.now()
        # A slow renewal must delay neither other tokens nor its own next attempt.
        with trio.move_on_after(_LONGEST_RENEWAL):
            async with trio.open_nursery() as nursery:
                for key, grant in list(self._held.items()):
                    if grant.used_at + _UNUSED < now or grant.ends_at <= now:
                        self._held.pop(key, None)
                    elif _is_due(grant, now):
                        nursery.start_soon(self._renew, key, grant)

    async def _renew(self, key: tuple[object, ...], cached_token: CachedToken) -> None:
        with self._fences.unless_paused(_FENCED, cached_token.client.mount.path) as has_turn:
            if has_turn:
                await self._renewed(key, cached_token)

    async def _renewed(self, key: tuple[object, ...], cached_token: CachedToken) -> None:
        try:
            fresh = await self._flights.join(
                key, lambda: self._fetch(key, cached_token.client, cached_token.audience)
            )
            fresh.used_at = cached_token.used_at
        except Refused as error:
            cached_token.failures += 1
            pause = min(_LONGEST_BACKOFF, 15 * SECOND * 2**cached_token.failures)
            cached_token.try_again_at = self._clock.now() + pause
            log.warning(
                "the access token of %s could not be renewed: %s",
                cached_token.client.mount.path,
                error,
            )

    async def _fetch(
        self, key: tuple[object, ...], client: CloudClient, audience: str
    ) -> CachedToken:
        granted = await self.granted(client, audience)
        now = self._clock.now()
        grant = self.store(client, audience, granted, now, now + (granted.ttl or 0) * SECOND)
        if self.on_fetched:
            await self.on_fetched(client, audience, grant)
        return grant

    def store(
        self, client: CloudClient, audience: str, granted: TokenGrant, fetched_at: int, ends_at: int
    ) -> CachedToken:
        """Cache a token until shortly before it expires; return the cache entry."""
        cached_token = CachedToken(
            token=granted.access_token,
            ends_at=ends_at,
            fetched_at=fetched_at,
            used_at=self._clock.now(),
            client=client,
            audience=audience,
        )
        while len(self._held) >= _MOST:
            del self._held[min(self._held, key=lambda key: self._held[key].used_at)]
        self._held[_key(client, audience)] = cached_token
        return cached_token

    async def granted(self, client: CloudClient, audience: str) -> TokenGrant:
        """Request a new token for this audience from its source. Raises `Refused`."""
        settings = client.settings
        secret = client.secret
        federated = settings.config.identity_token_audience
        if not secret and not federated:
            secret = settings.environment_secret
        if secret:
            form = {"client_secret": secret}
            return await self._from_directory(settings, audience, form, "ClientSecretCredential")
        if federated or settings.token_file:
            assertion = (
                await self._assertion(client) if federated else await _read(settings.token_file)
            )
            form = {
                "client_assertion": assertion,
                "client_assertion_type": _JWT_BEARER,
                "client_info": "1",
            }
            return await self._from_directory(settings, audience, form, "ClientAssertionCredential")
        return await self._managed_identity_token(settings, audience)

    async def _from_directory(
        self, settings: CloudSettings, audience: str, form: dict[str, str], kind: str
    ) -> TokenGrant:
        base = settings.endpoints.directory
        url = f"{base}{path(settings.tenant_id)}/oauth2/v2.0/token"
        common = {
            "client_id": settings.client_id,
            "grant_type": "client_credentials",
            "scope": f"{audience}/.default openid offline_access profile",
            "claims": _CAPABILITIES,
        }
        try:
            answer = await self._transport.send(
                "POST", url, form={**common, **form}, retries=RetryPolicy.of(settings.config)
            )
        except CloudRequestFailed as error:
            raise CloudRequestFailed(f"{kind} authentication failed. \n{error}") from error
        return _understood(answer, kind)

    async def _managed_identity_token(self, settings: CloudSettings, audience: str) -> TokenGrant:
        """Return a token of the managed identity with the configured client ID.

        If the machine has no such identity, return a token of its only identity.
        """
        kind = "ManagedIdentityCredential"
        query = {"api-version": "2018-02-01", "resource": audience}
        names = [{"client_id": settings.client_id}] if settings.client_id else []
        for name in (*names, {}):
            url = f"{settings.metadata_url}{_MACHINE_TOKEN}?{urlencode({**query, **name})}"
            try:
                answer = await self._transport.send(
                    "GET",
                    url,
                    headers={"Metadata": "true"},
                    retries=RetryPolicy.of(settings.config),
                    is_local=True,
                )
            except CloudRequestFailed as error:
                raise CloudRequestFailed(f"{kind} authentication failed. \n{error}") from error
            # The client may be an application, which is not an identity of a machine.
            if answer.status != _BAD_REQUEST:
                break
        return _understood(answer, kind)


def _key(client: CloudClient, audience: str) -> tuple[object, ...]:
    """Return the cache key of a token. The key differs for each secret and each setting."""
    settings = client.settings
    return (
        client.mount.accessor,
        audience,
        settings.tenant_id,
        settings.client_id,
        client.secret,
        settings.config.identity_token_audience,
        settings.token_file,
    )


def _margin(cached_token: CachedToken) -> int:
    """Return how long before its expiry a token is no longer used, in nanoseconds."""
    return min(BEFORE_END, (cached_token.ends_at - cached_token.fetched_at) // 2)


def _is_due(cached_token: CachedToken, now: int) -> bool:
    """Return whether to renew a token now: it expires soon, and no pause delays the renewal."""
    ttl = cached_token.ends_at - cached_token.fetched_at
    return (
        cached_token.ends_at - min(2 * BEFORE_END, ttl * 3 // 4) <= now
        and cached_token.try_again_at <= now
    )


def _understood(answer: CloudResponse, kind: str) -> TokenGrant:
    if not answer.is_good:
        text = answer.described(with_code=False)
        raise CloudRequestFailed(f"{kind} authentication failed. \n{text}")
    granted = decoded(answer.body, TokenGrant)
    if granted is None or not _TOKEN.fullmatch(granted.access_token) or granted.ttl is None:
        raise CloudRequestFailed(
            f"{kind} authentication failed. \n{answer.url}: the answer holds no token"
        )
    return granted


async def _read(file: str) -> str:
    """Return the content of a file. Raises `Refused`."""

    def read() -> str:
        with Path(file).open() as handle:
            return handle.read(_MAX_FILE).strip()

    try:
        return await trio.to_thread.run_sync(read)
    except (OSError, UnicodeDecodeError) as error:
        raise CloudRequestFailed(
            f"the federated token in {file} cannot be read: {error}"
        ) from error
