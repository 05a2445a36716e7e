"""How the daemon itself is known to the cloud: access tokens, kept until shortly before they end.

A client secret, an identity token of our own (federation), a token that the platform writes to a
file, or the managed identity of the machine, in this order. Tokens that are in use are
renewed by a task before they end, with growing pauses while that fails; logins go on meanwhile
with the one they have.
"""

import logging
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import urlencode

import msgspec
import trio

from daemon.clock import Clock
from daemon.identity.flight import Flights
from daemon.identity.resources import path
from daemon.identity.settings import Settings
from daemon.identity.transport import Failed, Response, Retries, Transport, decoded
from storage.errors import Refused
from storage.records.base import HOUR, MINUTE, SECOND
from storage.records.identity import Mount

log = logging.getLogger("steward.identity.credentials")

BEFORE_END = 5 * MINUTE  # a token that ends sooner is not used again
_NEW = MINUTE  # a token younger than this is not exchanged for another when it is refused
_UNUSED = 3 * HOUR  # a token that nobody asked for so long is let go
_LONGEST_RENEWAL = 120.0  # seconds, all attempts together
_ROUND = 30.0  # seconds between looks at what is about to end
_LONGEST_BACKOFF = 5 * MINUTE
_MOST = 256  # tokens kept; there are one or two for each mount
_MAX_FILE = 64 * 1024  # bytes of a file with a token

_MACHINE_TOKEN = "/metadata/identity/oauth2/token"  # noqa: S105  # a path
_BAD_REQUEST = 400
_UNAUTHORIZED = 401
_LONGEST_LIFE = 48 * 3600  # seconds
_SECONDS = re.compile(r"[0-9]{1,18}")
_TOKEN = re.compile(r"[!-~]+")  # what a header can hold
_JWT_BEARER = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
_CAPABILITIES = '{"access_token":{"xms_cc":{"values":["CP1"]}}}'


class Client(msgspec.Struct, frozen=True, kw_only=True):
    """Who asks: a mount, how it is set up, and the secret it has."""

    mount: Mount
    settings: Settings
    secret: str


class Held(msgspec.Struct, kw_only=True):
    """A token that is kept, and how to get the next one."""

    token: str
    ends_at: int
    fetched_at: int
    used_at: int
    try_again_at: int = 0
    failures: int = 0
    client: Client
    audience: str


class Granted(msgspec.Struct, frozen=True):
    """The answer of a token endpoint; the metadata service writes its numbers as text."""

    access_token: str
    expires_in: int | str = 3600

    @property
    def life(self) -> int | None:
        """Return for how many seconds the token is valid, at most; None when that is no number."""
        text = str(self.expires_in) if isinstance(self.expires_in, int) else self.expires_in
        if not _SECONDS.fullmatch(text):
            return None
        return min(int(text), _LONGEST_LIFE)


Assertion = Callable[[Client], Awaitable[str]]
OnFetched = Callable[[Client, str, Held], Awaitable[None]]  # the text is the audience


class Credentials:
    """The access tokens of all mounts."""

    def __init__(self, transport: Transport, clock: Clock, assertion: Assertion) -> None:
        self._transport = transport
        self._clock = clock
        self._assertion = assertion
        self._held: dict[tuple[object, ...], Held] = {}
        self._flights: Flights[Held] = Flights()
        self.on_fetched: OnFetched | None = None

    async def access_token(self, client: Client, audience: str) -> str:
        """Return a token for this audience. Raises `Refused`."""
        key = _key(client, audience)
        now = self._clock.now()
        held = self._held.get(key)
        if held is None or held.ends_at - _margin(held) <= now:
            held = await self._flights.join(key, lambda: self._fetch(key, client, audience))
        held.used_at = now
        return held.token

    def held(self, client: Client, audience: str) -> Held | None:
        """Return the token that is held for this audience and not about to end."""
        held = self._held.get(_key(client, audience))
        return held if held and held.ends_at - _margin(held) > self._clock.now() else None

    async def refresh(self, client: Client, audience: str) -> None:
        """Fetch a token for this audience, whatever is held. Raises `Refused`."""
        key = _key(client, audience)
        await self._flights.join(key, lambda: self._fetch(key, client, audience))

    async def ask(
        self, client: Client, audience: str, method: str, url: str, document: object = None
    ) -> Response:
        """Return what an interface of the cloud answers to a client. Raises `Refused`.

        A token that is refused before its end (keys were changed, a role was assigned anew) is
        let go and the question asked once more, unless it is a new one: then the refusal is meant.
        """
        token = await self.access_token(client, audience)
        answer = await self._send(client, token, method, url, document)
        if answer.status == _UNAUTHORIZED and self._let_go(_key(client, audience), token):
            token = await self.access_token(client, audience)
            answer = await self._send(client, token, method, url, document)
        return answer

    async def _send(
        self, client: Client, token: str, method: str, url: str, document: object
    ) -> Response:
        return await self._transport.send(
            method,
            url,
            headers={"Authorization": f"Bearer {token}"},
            document=document,
            retries=Retries.of(client.settings.config),
        )

    def _let_go(self, key: tuple[object, ...], token: str) -> bool:
        """Let go of a token that is refused; tell whether another may do better."""
        held = self._held.get(key)
        if held is not None and held.token == token:
            if held.fetched_at + _NEW > self._clock.now():
                return False
            del self._held[key]
        return True

    def forget(self, accessor: str) -> None:
        """Let go of the tokens of a mount."""
        for key in [key for key in self._held if key[0] == accessor]:
            del self._held[key]

    def ages(self) -> dict[str, float]:
        """Return the seconds since the oldest token of each mount was fetched."""
        now = self._clock.now()
        ages: dict[str, float] = {}
        for held in self._held.values():
            path = held.client.mount.path
            ages[path] = max(ages.get(path, 0.0), (now - held.fetched_at) / SECOND)
        return ages

    async def renew(self) -> None:
        """Renew what is in use before it ends, for ever."""
        while True:
            await trio.sleep(_ROUND)
            await self.renew_due()

    async def renew_due(self) -> None:
        """Renew the tokens that end soon; let go of those that nobody uses."""
        now = self._clock.now()
        # One that is slow holds up no other, and not its own next attempt for ever.
        with trio.move_on_after(_LONGEST_RENEWAL):
            async with trio.open_nursery() as nursery:
                for key, held in list(self._held.items()):
                    if held.used_at + _UNUSED < now or held.ends_at <= now:
                        self._held.pop(key, None)
                    elif _is_due(held, now):
                        nursery.start_soon(self._renew, key, held)

    async def _renew(self, key: tuple[object, ...], held: Held) -> None:
        try:
            fresh = await self._flights.join(
                key, lambda: self._fetch(key, held.client, held.audience)
            )
            fresh.used_at = held.used_at
        except Refused as error:
            held.failures += 1
            pause = min(_LONGEST_BACKOFF, 15 * SECOND * 2**held.failures)
            held.try_again_at = self._clock.now() + pause
            log.warning(
                "the access token of %s could not be renewed: %s", held.client.mount.path, error
            )

    async def _fetch(self, key: tuple[object, ...], client: Client, audience: str) -> Held:
        granted = await self.granted(client, audience)
        now = self._clock.now()
        held = self.hold(client, audience, granted, now, now + (granted.life or 0) * SECOND)
        if self.on_fetched:
            await self.on_fetched(client, audience, held)
        return held

    def hold(
        self, client: Client, audience: str, granted: Granted, fetched_at: int, ends_at: int
    ) -> Held:
        """Hold a token until shortly before it ends."""
        held = Held(
            token=granted.access_token,
            ends_at=ends_at,
            fetched_at=fetched_at,
            used_at=self._clock.now(),
            client=client,
            audience=audience,
        )
        while len(self._held) >= _MOST:
            del self._held[min(self._held, key=lambda one: self._held[one].used_at)]
        self._held[_key(client, audience)] = held
        return held

    async def granted(self, client: Client, audience: str) -> Granted:
        """Return a fresh token for this audience. Raises `Refused`."""
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
        return await self._from_machine(settings, audience)

    async def _from_directory(
        self, settings: Settings, audience: str, form: dict[str, str], kind: str
    ) -> Granted:
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
                "POST", url, form={**common, **form}, retries=Retries.of(settings.config)
            )
        except Failed as error:
            raise Failed(f"{kind} authentication failed. \n{error}") from error
        return _understood(answer, kind)

    async def _from_machine(self, settings: Settings, audience: str) -> Granted:
        """Return a token of the machine's identity: of the one that is named, else of its only one."""
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
                    retries=Retries.of(settings.config),
                    is_local=True,
                )
            except Failed as error:
                raise Failed(f"{kind} authentication failed. \n{error}") from error
            # The client may be an application, which no machine has for an identity.
            if answer.status != _BAD_REQUEST:
                break
        return _understood(answer, kind)


def _key(client: Client, audience: str) -> tuple[object, ...]:
    """Return what a token belongs to: another secret or setting asks for another token."""
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


def _margin(held: Held) -> int:
    """Return how long before its end a token is not used any more."""
    return min(BEFORE_END, (held.ends_at - held.fetched_at) // 2)


def _is_due(held: Held, now: int) -> bool:
    """Tell whether it is time to renew a token: some time before it is not used any more."""
    life = held.ends_at - held.fetched_at
    return held.ends_at - min(2 * BEFORE_END, life * 3 // 4) <= now and held.try_again_at <= now


def _understood(answer: Response, kind: str) -> Granted:
    if not answer.is_good:
        text = answer.described(with_code=False)
        raise Failed(f"{kind} authentication failed. \n{text}")
    granted = decoded(answer.body, Granted)
    if granted is None or not _TOKEN.fullmatch(granted.access_token) or granted.life is None:
        raise Failed(f"{kind} authentication failed. \n{answer.url}: the answer holds no token")
    return granted


async def _read(file: str) -> str:
    """Return what a file holds. Raises `Refused`."""

    def read() -> str:
        with Path(file).open() as handle:
            return handle.read(_MAX_FILE).strip()

    try:
        return await trio.to_thread.run_sync(read)
    except (OSError, UnicodeDecodeError) as error:
        raise Failed(f"the federated token in {file} cannot be read: {error}") from error
