"""Identity directories: their issuer name, and the keys with which they sign (JWKS).

Names and keys are stored, so that logins work while a directory is down. A background task renews
them. An unknown key causes one fetch for all waiting logins. After a fetch without a new key,
further fetches are delayed, so that forged tokens cannot flood the directory.
"""

import logging
from functools import partial

import msgspec
import trio

from daemon.clock import Clock
from daemon.config.settings import Settings
from daemon.fences import Fences
from daemon.identity.cloud_endpoints import CloudSettings
from daemon.identity.cloud_http import CloudHttp, CloudRequestFailed, CloudResponse, decoded
from daemon.identity.jwt_verification import (
    MAX_KEY_SET,
    MOST_KEY_VALUES,
    KeySet,
    ParsedJwt,
    UnknownKey,
    matching_keys,
    verify_signature,
)
from daemon.identity.resource_id import path
from daemon.identity.single_flight import SingleFlight
from storage.errors import Refused
from storage.queries import directory_cache, identity, mounts
from storage.records.base import SECOND
from storage.records.codec import may_have_more_values
from storage.records.identity import Directory, DirectoryKey, MethodConfig, Mount
from storage.store import Store
from storage.writer import Transaction

log = logging.getLogger("steward.identity.directory")
_FENCED = "keys of a directory"

MOST_KEYS = 100
_ROUND = 60.0  # seconds between checks for outdated keys
_LONGEST_BACKOFF = 600 * SECOND
_NO_KEYS = "failed to verify signature: fetching keys oidc: get keys failed"


class _Discovery(msgspec.Struct, frozen=True):
    issuer: str
    jwks_uri: str


class _VainFetch(msgspec.Struct, frozen=True):
    """A fetch that did not return the key of a token.

    `problem` is the error of the fetch. It is empty if the directory returned only other keys.
    """

    at: int
    problem: str = ""


class DirectoryKeyCache:
    """The cached documents of the directories of all mounts."""

    def __init__(
        self,
        store: Store,
        transport: CloudHttp,
        clock: Clock,
        config: Settings,
        fences: Fences | None = None,
    ) -> None:
        self._fences = fences or Fences(clock)
        self._store = store
        self._transport = transport
        self._clock = clock
        self._config = config
        self._flights: SingleFlight[Directory] = SingleFlight()
        self._in_vain: dict[str, _VainFetch] = {}  # accessor -> last such fetch
        self._used: dict[str, tuple[Mount, CloudSettings]] = {}
        self._failures: dict[str, tuple[int, int]] = {}  # accessor -> number, time of the last

    async def verify(self, mount: Mount, settings: CloudSettings, token: ParsedJwt) -> Directory:
        """Return the directory that signed a token. Raises `Refused`."""
        directory = await self._known(mount, settings)
        if not self._has_key(directory, token):
            if self._may_fetch(mount):
                directory = await self._with_new_keys(mount, settings, token, directory)
            elif problem := self._in_vain[mount.accessor].problem:
                # The directory may have published the key, so the token is no forgery.
                raise CloudRequestFailed(problem)
        self._used[mount.accessor] = (mount, settings)
        verify_signature(token, self._trusted(directory))
        return directory

    async def _with_new_keys(
        self, mount: Mount, settings: CloudSettings, token: ParsedJwt, stored_directory: Directory
    ) -> Directory:
        """Fetch and return the directory, because the token's key is unknown. Raises `Refused`."""
        has_key, problem = False, ""
        try:
            directory = await self._fetched(mount, settings, after=stored_directory)
            has_key = self._has_key(directory, token)
        except CloudRequestFailed as error:
            problem = str(error)
            raise
        finally:
            # Record errors, too: forged tokens must not cause requests while the directory is down.
            if not has_key:
                self._in_vain[mount.accessor] = _VainFetch(self._clock.now(), problem)
        return directory

    def _trusted(self, directory: Directory) -> list[DirectoryKey]:
        """Return the trusted keys: the published keys, and keys that were removed recently."""
        since = self._clock.now() - self._config.cloud_old_keys_seconds * SECOND
        return [key for key in directory.keys if key.gone_at is None or key.gone_at > since]

    def _has_key(self, directory: Directory, token: ParsedJwt) -> bool:
        """Return whether the token's key is known.

        If the token has no key ID, return whether any known key verifies its signature.
        """
        trusted = self._trusted(directory)
        if token.kid:
            return bool(matching_keys(token, trusted))
        try:
            verify_signature(token, trusted)
        except UnknownKey:
            return False
        return True

    def _may_fetch(self, mount: Mount) -> bool:
        last = self._in_vain.get(mount.accessor)
        pause = self._config.cloud_keys_pause_seconds * SECOND
        return last is None or self._clock.now() - last.at >= pause

    async def _known(self, mount: Mount, settings: CloudSettings) -> Directory:
        """Return the stored directory, unless it is too old."""
        stored_directory = self._store.read(lambda db: directory_cache.find(db, mount.accessor))
        longest = self._config.cloud_keys_max_age_seconds * SECOND
        if stored_directory and self._clock.now() - stored_directory.fetched_at < longest:
            return stored_directory
        return await self._fetched(mount, settings, after=stored_directory)

    async def _fetched(
        self, mount: Mount, settings: CloudSettings, *, after: Directory | None
    ) -> Directory:
        async def fetch() -> Directory:
            # Another task's fetch may have ended since the last read.
            now = self._store.read(lambda db: directory_cache.find(db, mount.accessor))
            if now and after and now.fetched_at > after.fetched_at:
                return now
            return await self._fetch(mount, settings, now)

        key = (mount.accessor, settings.tenant_id, settings.endpoints.directory)
        return await self._flights.join(key, fetch)

    async def _fetch(
        self, mount: Mount, settings: CloudSettings, before: Directory | None
    ) -> Directory:
        base = settings.endpoints.directory
        url = f"{base}{path(settings.tenant_id)}/.well-known/openid-configuration"
        answer = await self._transport.send("GET", url)
        if not answer.is_good:
            raise CloudRequestFailed(f"{answer.status} {answer.reason}: {answer.text}")
        discovery = decoded(answer.body, _Discovery)
        if discovery is None:
            raise CloudRequestFailed(f"unable to unmarshal discovery url: {_unreadable(answer)}")
        keys = await self._keys(discovery.jwks_uri)
        same = before if before and before.issuer == discovery.issuer else None
        if same and not keys:  # a directory always has keys, so the known keys stay
            raise CloudRequestFailed(f"{_NO_KEYS}: there are no keys in {discovery.jwks_uri}")
        now = self._clock.now()
        directory = Directory(
            issuer=discovery.issuer, keys=_merged(keys, same, now), fetched_at=now
        )

        def store(tx: Transaction) -> None:
            if _is_current(tx, mount, settings):
                directory_cache.put(tx, mount.accessor, directory)

        await self._store.write(store)
        return directory

    async def _keys(self, url: str) -> list[DirectoryKey]:
        try:
            answer = await self._transport.send("GET", url)
        except Refused as error:
            raise CloudRequestFailed(f"{_NO_KEYS}: {error}") from error
        if not answer.is_good:
            raise CloudRequestFailed(f"{_NO_KEYS}: {answer.status} {answer.reason} {answer.text}")
        if len(answer.body) > MAX_KEY_SET or may_have_more_values(answer.body, MOST_KEY_VALUES):
            raise CloudRequestFailed(
                f"{_NO_KEYS}: {url} has more than {MAX_KEY_SET} bytes or {MOST_KEY_VALUES} values"
            )
        key_set = decoded(answer.body, KeySet)
        if key_set is None:
            raise CloudRequestFailed(f"{_NO_KEYS}: {_unreadable(answer)}")
        return key_set.signing_keys(MOST_KEYS)

    def ages(self) -> dict[str, float]:
        """Return the age of the directory keys of each mount in use, in seconds."""
        now = self._clock.now()
        directories = {
            mount.path: self._store.read(partial(directory_cache.find, mount=accessor))
            for accessor, (mount, _) in self._used.items()
        }
        return {
            path: (now - directory.fetched_at) / SECOND
            for path, directory in directories.items()
            if directory
        }

    # ---- renewal

    async def renew(self) -> None:
        """Refresh the directories in use before their keys are too old. Never return."""
        while True:
            await trio.sleep(_ROUND)
            await self.renew_due()

    async def renew_due(self) -> None:
        """Refresh directories whose last fetch is too old."""
        async with trio.open_nursery() as nursery:  # a slow directory must not delay others
            for accessor, (mount, settings) in list(self._used.items()):
                nursery.start_soon(self._renew, accessor, mount, settings)

    def _is_due(self, accessor: str, directory: Directory) -> bool:
        now = self._clock.now()
        if now - directory.fetched_at < self._config.cloud_keys_refresh_seconds * SECOND:
            return False
        times, last = self._failures.get(accessor, (0, 0))
        return now - last >= min(_LONGEST_BACKOFF, 30 * SECOND * 2**times if times else 0)

    async def _renew(self, accessor: str, mount: Mount, settings: CloudSettings) -> None:
        with self._fences.unless_paused(_FENCED, mount.path) as has_turn:
            if not has_turn:
                return
            stored_directory = self._store.read(partial(directory_cache.find, mount=accessor))
            if stored_directory is None:
                # a new configuration: the next login fetches the keys
                self._used.pop(accessor, None)
                self._failures.pop(accessor, None)
                self._in_vain.pop(accessor, None)
            elif self._is_due(accessor, stored_directory):
                await self._renewed(mount, settings, stored_directory)

    async def _renewed(self, mount: Mount, settings: CloudSettings, directory: Directory) -> None:
        try:
            await self._fetched(mount, settings, after=directory)
            self._failures.pop(mount.accessor, None)
        except Refused as error:
            times, _ = self._failures.get(mount.accessor, (0, 0))
            self._failures[mount.accessor] = (min(times + 1, 10), self._clock.now())
            log.warning(
                "the keys of the directory of %s could not be fetched: %s", mount.path, error
            )


def _is_current(tx: Transaction, mount: Mount, settings: CloudSettings) -> bool:
    """Return whether a mount still trusts the directory that these settings name.

    During a fetch, an operator may change the tenant or delete the mount. The keys of the earlier
    directory must then not be stored: the next login would trust them.
    """
    if mounts.by_accessor(tx, mount.accessor) is None:
        return False
    config, used = identity.config(tx, mount.accessor) or MethodConfig(), settings.config
    return (config.tenant_id, config.environment) == (used.tenant_id, used.environment)


def _merged(keys: list[DirectoryKey], before: Directory | None, now: int) -> list[DirectoryKey]:
    """Return the published keys, followed by earlier keys of the directory.

    An earlier key that is no longer published is marked as removed.
    """
    published = {key.n for key in keys}
    removed_keys = [
        msgspec.structs.replace(key, gone_at=key.gone_at or now)
        for key in (before.keys if before else ())
        if key.n not in published
    ]
    return [*keys, *removed_keys][:MOST_KEYS]


def _unreadable(answer: CloudResponse) -> str:
    return f"unexpected answer: {answer.text[:200]}"
