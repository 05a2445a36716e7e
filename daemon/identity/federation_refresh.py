"""Federation credentials, renewed in the background and stored encrypted.

A federated mount has no client secret. So its access token is fetched at the start and renewed
every hour, independently of logins. The latest token is stored encrypted. A daemon that starts
while the directory is down uses the stored token until it expires.
"""

import hashlib
import logging
from collections.abc import Callable
from functools import partial

import msgspec
import trio

from daemon.acl.seal import EnvelopeCipher
from daemon.clock import Clock
from daemon.fences import Fences
from daemon.identity.credentials import AccessTokenCache, CachedToken, CloudClient, TokenGrant
from daemon.identity.method_config import federation_token_path
from storage.errors import Refused, Unsealable
from storage.queries import identity, mounts, secrets
from storage.queries.mounts import MountName
from storage.records.base import HOUR, MINUTE, SECOND
from storage.records.identity import Mount
from storage.store import Store, tolerate_disk_full
from storage.writer import Transaction

log = logging.getLogger("steward.identity.warm")
_FENCED = "warm cloud token"

AGE = HOUR  # age at which a token is renewed
_ROUND = 30.0  # seconds between checks for due renewals
_LONGEST = 120.0  # seconds for one renewal, all attempts together
_LONGEST_PAUSE = 5 * MINUTE


class _Kept(msgspec.Struct, frozen=True):
    """A stored token; `whose` is a digest of the settings with which it was fetched."""

    whose: str
    token: str
    ends_at: int
    fetched_at: int


class FederationTokenRefresher:
    """Keeps the federation credential of each mount."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        seal: EnvelopeCipher,
        credentials: AccessTokenCache,
        client_of: Callable[[Mount], CloudClient],
        fences: Fences | None = None,
    ) -> None:
        self._fences = fences or Fences(clock)
        self._store, self._clock, self._seal = store, clock, seal
        self._credentials = credentials
        self._client_of = client_of
        self._pauses: dict[str, tuple[int, int]] = {}  # accessor -> failures, next attempt
        self._fetched_at: dict[str, int] = {}  # accessor -> time of the last success
        # While renewals fail: accessor -> time of the last success, or of the first failure.
        self._failing_since: dict[str, tuple[Mount, int]] = {}
        credentials.on_fetched = self._store_token

    def forget(self, accessor: str) -> None:
        """Drop the renewal times and failures of a changed or deleted mount.

        Earlier failures then do not delay the next renewal.
        """
        self._pauses.pop(accessor, None)
        self._fetched_at.pop(accessor, None)
        self._failing_since.pop(accessor, None)

    def failing_ages(self) -> dict[str, float]:
        """Return the seconds since the last successful renewal, for each mount that now fails.

        For a mount without a successful renewal, return the seconds since the first failure.
        """
        now = self._clock.now()
        return {mount.path: (now - since) / SECOND for mount, since in self._failing_since.values()}

    def restore(self) -> None:
        """Load the stored tokens that have not expired."""
        for name in self._store.read(mounts.names):
            with self._fences.unless_paused(_FENCED, name.path) as has_turn:
                client = self._client(name) if has_turn else None
                if client is not None:
                    self._restore(client)

    def _restore(self, client: CloudClient) -> None:
        path = federation_token_path(client.mount)
        sealed = self._store.read(partial(secrets.find, path=path))
        if sealed is None:
            return
        try:
            stored = msgspec.json.decode(self._seal.unseal(sealed, path), type=_Kept)
        except (Unsealable, msgspec.DecodeError) as error:
            log.warning("the stored access token of %s is unusable: %s", path, error)
            return
        if stored.whose == _client_label(client) and stored.ends_at > self._clock.now():
            granted = TokenGrant(stored.token)
            audience = client.settings.endpoints.audience
            self._credentials.store(client, audience, granted, stored.fetched_at, stored.ends_at)
            self._fetched_at[client.mount.accessor] = stored.fetched_at

    async def run(self) -> None:
        """Renew the tokens, indefinitely."""
        while True:
            await self.refresh()
            await trio.sleep(_ROUND)

    async def refresh(self) -> None:
        """Fetch the tokens that are missing, and renew those that are an hour old."""
        with trio.move_on_after(_LONGEST):
            async with trio.open_nursery() as nursery:
                for name in self._store.read(mounts.names):
                    nursery.start_soon(self._renew, name)

    def _is_due(self, client: CloudClient) -> bool:
        now = self._clock.now()
        if now < self._pauses.get(client.mount.accessor, (0, 0))[1]:
            return False
        cached_token = self._credentials.cached_token(client, client.settings.endpoints.audience)
        if cached_token is None:
            return True
        cached_token.used_at = now
        return cached_token.fetched_at + AGE <= now

    async def _renew(self, name: MountName) -> None:
        with self._fences.unless_paused(_FENCED, name.path) as has_turn:
            client = self._client(name) if has_turn else None
            if client is not None and self._is_due(client):
                await self._renewed(client)

    async def _renewed(self, client: CloudClient) -> None:
        accessor = client.mount.accessor
        try:
            await self._credentials.refresh(client, client.settings.endpoints.audience)
        except Refused as error:
            failures = self._pauses.get(accessor, (0, 0))[0] + 1
            pause = min(_LONGEST_PAUSE, 15 * SECOND * 2 ** min(failures, 10))
            self._pauses[accessor] = (failures, self._clock.now() + pause)
            since = self._fetched_at.get(accessor, self._clock.now())
            self._failing_since.setdefault(accessor, (client.mount, since))
            message = "the federation credential of %s could not be renewed: %s"
            log.warning(message, client.mount.path, error)
        else:
            self._pauses.pop(accessor, None)

    def _client(self, name: MountName) -> CloudClient | None:
        """Return the client of a mount that uses federation; None for any other mount."""
        mount = self._store.read(partial(mounts.by_accessor, accessor=name.accessor))
        if mount is None:  # deleted since the list was read
            return None
        config = self._store.read(partial(identity.config, mount=mount.accessor))
        if config is None or not config.identity_token_audience:
            return None
        try:
            return self._client_of(mount)
        except Refused as error:
            log.warning("the configuration of %s is not complete: %s", mount.path, error)
            return None

    async def _store_token(
        self, client: CloudClient, audience: str, cached_token: CachedToken
    ) -> None:
        """Store an encrypted token, unless the mount's configuration changed since the request."""
        config = client.settings.config
        if not config.identity_token_audience or audience != client.settings.endpoints.audience:
            return
        self._fetched_at[client.mount.accessor] = cached_token.fetched_at
        self._failing_since.pop(client.mount.accessor, None)
        path = federation_token_path(client.mount)
        stored = _Kept(
            _client_label(client), cached_token.token, cached_token.ends_at, cached_token.fetched_at
        )
        sealed = self._seal.seal(msgspec.json.encode(stored), path)

        def write(tx: Transaction) -> None:
            if identity.config(tx, client.mount.accessor) == config:
                secrets.put(tx, path, sealed)

        async with tolerate_disk_full("cannot store the federation credential"):
            await self._store.write(write)


def _client_label(client: CloudClient) -> str:
    settings = client.settings
    parts = (
        settings.tenant_id,
        settings.client_id,
        settings.config.identity_token_audience,
        settings.endpoints.directory,
        settings.endpoints.audience,
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
