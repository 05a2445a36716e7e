"""The federation credential: kept warm for every mount that has one, and sealed in the store.

A federated mount has no secret to fall back on. So its access token is fetched at the start and
renewed every hour, whether or not anyone logs in. The store keeps the latest one sealed: a daemon
that starts while the directory is down goes on with it until it ends.
"""

import hashlib
import logging
from collections.abc import Callable, Iterator
from functools import partial

import msgspec
import trio

from daemon.acl.seal import Seal
from daemon.clock import Clock
from daemon.identity.credentials import Client, Credentials, Granted, Held
from daemon.identity.method import warm_place
from storage.errors import Refused, Unsealable
from storage.queries import identity, mounts, secrets
from storage.readers import Snapshot
from storage.records.base import HOUR, MINUTE, SECOND
from storage.records.identity import Mount
from storage.store import Store, unless_full
from storage.writer import Transaction

log = logging.getLogger("steward.identity.warm")

AGE = HOUR  # of a token before it is renewed
_ROUND = 30.0  # seconds between looks
_LONGEST = 120.0  # seconds for one renewal, all attempts together
_LONGEST_PAUSE = 5 * MINUTE


class _Kept(msgspec.Struct, frozen=True):
    """A token as the store keeps it; `whose` is a digest of the settings it was got with."""

    whose: str
    token: str
    ends_at: int
    fetched_at: int


class Warm:
    """Keeps the federation credential of each mount."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        seal: Seal,
        credentials: Credentials,
        client_of: Callable[[Mount], Client],
    ) -> None:
        self._store, self._clock, self._seal = store, clock, seal
        self._credentials = credentials
        self._client_of = client_of
        self._pauses: dict[str, tuple[int, int]] = {}  # accessor -> failures, when to try again
        credentials.on_fetched = self._keep

    def restore(self) -> None:
        """Load the tokens that the store keeps and that have not ended."""
        for client in self._clients():
            place = warm_place(client.mount)
            sealed = self._store.read(partial(secrets.find, place=place))
            if sealed is None:
                continue
            try:
                kept = msgspec.json.decode(self._seal.unseal(sealed, place), type=_Kept)
            except (Unsealable, msgspec.DecodeError) as error:
                log.warning("the access token kept for %s is unusable: %s", place, error)
                continue
            if kept.whose == _whose(client) and kept.ends_at > self._clock.now():
                granted = Granted(kept.token)
                audience = client.settings.endpoints.audience
                self._credentials.hold(client, audience, granted, kept.fetched_at, kept.ends_at)

    async def tend(self) -> None:
        """Keep the tokens warm, for ever."""
        while True:
            await self.look()
            await trio.sleep(_ROUND)

    async def look(self) -> None:
        """Fetch the tokens that are missing, and renew those that are an hour old."""
        with trio.move_on_after(_LONGEST):
            async with trio.open_nursery() as nursery:
                for client in self._clients():
                    if self._is_due(client):
                        nursery.start_soon(self._renew, client)

    def _is_due(self, client: Client) -> bool:
        now = self._clock.now()
        if now < self._pauses.get(client.mount.accessor, (0, 0))[1]:
            return False
        held = self._credentials.held(client, client.settings.endpoints.audience)
        if held is None:
            return True
        held.used_at = now
        return held.fetched_at + AGE <= now

    async def _renew(self, client: Client) -> None:
        accessor = client.mount.accessor
        try:
            await self._credentials.refresh(client, client.settings.endpoints.audience)
        except Refused as error:
            failures = self._pauses.get(accessor, (0, 0))[0] + 1
            pause = min(_LONGEST_PAUSE, 15 * SECOND * 2 ** min(failures, 10))
            self._pauses[accessor] = (failures, self._clock.now() + pause)
            told = "the federation credential of %s could not be renewed: %s"
            log.warning(told, client.mount.path, error)
        else:
            self._pauses.pop(accessor, None)

    def _clients(self) -> Iterator[Client]:
        """Yield the clients of the mounts that the daemon vouches for."""
        for mount in self._store.read(_federated):
            try:
                yield self._client_of(mount)
            except Refused as error:
                log.warning("the configuration of %s is not complete: %s", mount.path, error)

    async def _keep(self, client: Client, audience: str, held: Held) -> None:
        """Seal a token in the store, unless the mount was set up otherwise meanwhile."""
        config = client.settings.config
        if not config.identity_token_audience or audience != client.settings.endpoints.audience:
            return
        place = warm_place(client.mount)
        kept = _Kept(_whose(client), held.token, held.ends_at, held.fetched_at)
        sealed = self._seal.seal(msgspec.json.encode(kept), place)

        def write(tx: Transaction) -> None:
            if identity.config(tx, client.mount.accessor) == config:
                secrets.put(tx, place, sealed)

        async with unless_full("the federation credential is not kept"):
            await self._store.write(write)


def _federated(db: Snapshot) -> list[Mount]:
    """Return the mounts whose configuration names an audience for identity tokens."""
    return [
        mount
        for mount in mounts.every(db)
        if (config := identity.config(db, mount.accessor)) and config.identity_token_audience
    ]


def _whose(client: Client) -> str:
    settings = client.settings
    parts = (
        settings.tenant_id,
        settings.client_id,
        settings.config.identity_token_audience,
        settings.endpoints.directory,
        settings.endpoints.audience,
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
