"""What directories say about themselves: their name, and the keys with which they sign.

Kept in the file, so that logins work while a directory does not answer; renewed by a task before
it is old. A token with an unknown key makes it be fetched again, once for any number of logins,
and after a fetch that brought nothing not again for a while: forged tokens cause no storm.
"""

import logging
from functools import partial

import msgspec
import trio

from daemon.clock import Clock
from daemon.config import Config
from daemon.identity.flight import Flights
from daemon.identity.jwt import Token, UnknownKey, candidates, verify_signature
from daemon.identity.resources import path
from daemon.identity.settings import Settings
from daemon.identity.transport import Failed, Response, Transport, decoded
from storage.errors import Refused
from storage.queries import directories
from storage.records.base import SECOND
from storage.records.identity import Directory, DirectoryKey, Mount
from storage.store import Store

log = logging.getLogger("steward.identity.directory")

MOST_KEYS = 100
_ROUND = 60.0  # seconds between looks at what is old
_LONGEST_BACKOFF = 600 * SECOND
_NO_KEYS = "failed to verify signature: fetching keys oidc: get keys failed"


class _Discovery(msgspec.Struct, frozen=True):
    issuer: str
    jwks_uri: str


class _Key(msgspec.Struct, frozen=True):
    kty: str = ""
    kid: str = ""
    use: str = ""
    n: str = ""
    e: str = ""


class _KeySet(msgspec.Struct, frozen=True):
    keys: list[_Key]


class Directories:
    """The directories of all mounts."""

    def __init__(self, store: Store, transport: Transport, clock: Clock, config: Config) -> None:
        self._store = store
        self._transport = transport
        self._clock = clock
        self._config = config
        self._flights: Flights[Directory] = Flights()
        self._in_vain: dict[str, int] = {}  # accessor -> when a fetch brought nothing
        self._used: dict[str, tuple[Mount, Settings]] = {}
        self._failures: dict[str, tuple[int, int]] = {}  # accessor -> how many, when the last

    async def verify(self, mount: Mount, settings: Settings, token: Token) -> Directory:
        """Return the directory that signed a token. Raises `Refused`."""
        directory = await self._known(mount, settings)
        if not self._has_key(directory, token) and self._may_fetch(mount):
            directory = await self._with_new_keys(mount, settings, token, directory)
        self._used[mount.accessor] = (mount, settings)
        verify_signature(token, self._trusted(directory))
        return directory

    async def _with_new_keys(
        self, mount: Mount, settings: Settings, token: Token, known: Directory
    ) -> Directory:
        """Return a directory fetched for a key that is unknown. Raises `Refused`."""
        found = False
        try:
            directory = await self._fetched(mount, settings, after=known)
            found = self._has_key(directory, token)
        finally:
            # Also when the directory is away: forged tokens must not knock at it all the time.
            if not found:
                self._in_vain[mount.accessor] = self._clock.now()
        return directory

    def _trusted(self, directory: Directory) -> list[DirectoryKey]:
        """Return the keys that count: those that are published, and those gone not long ago."""
        since = self._clock.now() - self._config.cloud_old_keys_seconds * SECOND
        return [key for key in directory.keys if key.gone_at is None or key.gone_at > since]

    def _has_key(self, directory: Directory, token: Token) -> bool:
        """Tell whether the key that a token names is known; without a name, whether one fits."""
        trusted = self._trusted(directory)
        if token.kid:
            return bool(candidates(token, trusted))
        try:
            verify_signature(token, trusted)
        except UnknownKey:
            return False
        return True

    def _may_fetch(self, mount: Mount) -> bool:
        last = self._in_vain.get(mount.accessor)
        pause = self._config.cloud_keys_pause_seconds * SECOND
        return last is None or self._clock.now() - last >= pause

    async def _known(self, mount: Mount, settings: Settings) -> Directory:
        """Return what is known of a directory, unless it is too old to be believed."""
        known = self._store.read(lambda db: directories.find(db, mount.accessor))
        longest = self._config.cloud_keys_max_age_seconds * SECOND
        if known and self._clock.now() - known.fetched_at < longest:
            return known
        return await self._fetched(mount, settings, after=known)

    async def _fetched(
        self, mount: Mount, settings: Settings, *, after: Directory | None
    ) -> Directory:
        async def fetch() -> Directory:
            # Somebody else's fetch may have ended between our look and now.
            now = self._store.read(lambda db: directories.find(db, mount.accessor))
            if now and after and now.fetched_at > after.fetched_at:
                return now
            return await self._fetch(mount, settings, now)

        return await self._flights.join((mount.accessor, settings.tenant_id), fetch)

    async def _fetch(self, mount: Mount, settings: Settings, before: Directory | None) -> Directory:
        base = settings.endpoints.directory
        url = f"{base}{path(settings.tenant_id)}/.well-known/openid-configuration"
        answer = await self._transport.send("GET", url)
        if not answer.is_good:
            raise Failed(f"{answer.status} {answer.reason}: {answer.text}")
        discovery = decoded(answer.body, _Discovery)
        if discovery is None:
            raise Failed(f"unable to unmarshal discovery url: {_unreadable(answer)}")
        keys = await self._keys(discovery.jwks_uri)
        same = before if before and before.issuer == discovery.issuer else None
        if same and not keys:  # no directory has none: those that are known stay
            raise Failed(f"{_NO_KEYS}: there is none in {discovery.jwks_uri}")
        now = self._clock.now()
        directory = Directory(
            issuer=discovery.issuer, keys=_merged(keys, same, now), fetched_at=now
        )
        await self._store.write(lambda tx: directories.put(tx, mount.accessor, directory))
        return directory

    async def _keys(self, url: str) -> list[_Key]:
        try:
            answer = await self._transport.send("GET", url)
        except Refused as error:
            raise Failed(f"{_NO_KEYS}: {error}") from error
        if not answer.is_good:
            raise Failed(f"{_NO_KEYS}: {answer.status} {answer.reason} {answer.text}")
        found = decoded(answer.body, _KeySet)
        if found is None:
            raise Failed(f"{_NO_KEYS}: {_unreadable(answer)}")
        return [
            key
            for key in found.keys[:MOST_KEYS]
            if key.kty == "RSA" and key.use in ("", "sig") and key.n and key.e
        ]

    # ---- renewal

    async def renew(self) -> None:
        """Fetch anew what is in use before it is old, for ever."""
        while True:
            await trio.sleep(_ROUND)
            await self.renew_due()

    async def renew_due(self) -> None:
        """Fetch anew what was fetched too long ago."""
        async with trio.open_nursery() as nursery:  # a slow directory holds up no other
            for accessor, (mount, settings) in list(self._used.items()):
                known = self._store.read(partial(directories.find, mount=accessor))
                if known is None:
                    del self._used[accessor]  # a new configuration: the next login fetches
                    self._failures.pop(accessor, None)
                    self._in_vain.pop(accessor, None)
                elif self._is_due(accessor, known):
                    nursery.start_soon(self._renew, mount, settings, known)

    def _is_due(self, accessor: str, known: Directory) -> bool:
        now = self._clock.now()
        if now - known.fetched_at < self._config.cloud_keys_refresh_seconds * SECOND:
            return False
        times, last = self._failures.get(accessor, (0, 0))
        return now - last >= min(_LONGEST_BACKOFF, 30 * SECOND * 2**times if times else 0)

    async def _renew(self, mount: Mount, settings: Settings, known: Directory) -> None:
        try:
            await self._fetched(mount, settings, after=known)
            self._failures.pop(mount.accessor, None)
        except Refused as error:
            times, _ = self._failures.get(mount.accessor, (0, 0))
            self._failures[mount.accessor] = (min(times + 1, 10), self._clock.now())
            log.warning(
                "the keys of the directory of %s could not be fetched: %s", mount.path, error
            )


def _merged(keys: list[_Key], before: Directory | None, now: int) -> list[DirectoryKey]:
    """Return the keys that are published now, and those that were before, marked as gone."""
    published = {key.n for key in keys}
    gone = [
        msgspec.structs.replace(key, gone_at=key.gone_at or now)
        for key in (before.keys if before else ())
        if key.n not in published
    ]
    return [*(DirectoryKey(kid=key.kid, n=key.n, e=key.e) for key in keys), *gone][:MOST_KEYS]


def _unreadable(answer: Response) -> str:
    return f"the answer is not what it should be: {answer.text[:200]}"
