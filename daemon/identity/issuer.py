"""The workload identity issuer: signing keys, their rotation, and tokens of tasks.

A new key is published a day before it signs, so that cached copies of the JWKS contain it in time.
An old key stays published while a token that it signed may be valid, or while an allocation that
was placed with this key runs. Private keys are stored encrypted.
"""

import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec
import trio

from daemon.acl.seal import EnvelopeCipher
from daemon.clock import Clock
from daemon.fences import Fences
from storage.errors import Malformed, Refused, UnknownToken, Unsealable
from storage.queries import signing
from storage.records.base import HOUR, SECOND
from storage.records.signing import PublicKey, SigningKey
from storage.records.workload import AUDIENCE, Workload
from storage.store import Store, tolerate_disk_full

if TYPE_CHECKING:
    from daemon.identity.jwt_signing import Claims
    from daemon.identity.keypair import KeyPair

log = logging.getLogger("steward.identity")

_DAY = 24 * HOUR
ROTATION = 30 * _DAY
PUBLISHED_BEFORE = _DAY
# limit of a token's TTL, and time for which a key stays published after its last signature
LONGEST_TTL = 30 * _DAY
_LOOK_AGAIN = HOUR  # longest time between checks, because the system clock may change


class Issuer:
    """Signs claims with the keys of the store, and verifies them. `open_issuer` opens it."""

    def __init__(
        self, store: Store, seal: EnvelopeCipher, clock: Clock, ids: Iterator[str]
    ) -> None:
        self._store, self._seal, self._clock, self._ids = store, seal, clock, ids
        self._keys = store.read(signing.list_all)  # only this object changes the keys
        self._private: dict[str, KeyPair] = {}
        self._has_key = trio.Event()
        if self._keys:
            self._has_key.set()

    @property
    def keys(self) -> list[SigningKey]:
        """Return the keys, sorted by the times from which they sign."""
        return list(self._keys)

    @property
    def active(self) -> SigningKey:
        """Return the key that signs now."""
        return signer(self._keys, self._clock.now())

    def published(self) -> list[PublicKey]:
        """Return the published public keys, which verify Steward's signatures."""
        return [key.public for key in self._keys]

    def sign(self, claims: "Claims", key_id: str = "") -> str:
        """Return claims as a token, signed with the key `key_id`, or by default the active key."""
        from daemon.identity import jwt_signing

        key_id = key_id or self.active.id
        return jwt_signing.sign(claims, key_id, self._private_key(key_id))

    def verify(self, token: str, audience: str) -> dict[str, object]:
        """Return the claims of a token that Steward signed for an audience.

        Raises `InvalidToken`.
        """
        from daemon.identity import jwt_signing

        return jwt_signing.read(token, self.published(), audience, self._clock.now())

    def workload(self, token: str) -> Workload:
        """Return the task that an identity token for Steward's API names. Raises `UnknownToken`."""
        from daemon.identity.jwt_signing import InvalidToken

        try:
            workload = msgspec.convert(self.verify(token, AUDIENCE), Workload)
        except (InvalidToken, msgspec.ValidationError) as error:
            raise UnknownToken(f"failed to parse signed token: {error}") from error
        if not workload.nomad_task:
            raise UnknownToken(
                "failed to parse signed token: it belongs to a service, not to a task"
            )
        return workload

    async def has_key(self) -> None:
        """Wait until the first key exists. It is created while other parts of the daemon start."""
        await self._has_key.wait()

    async def rotate(self, *, signs_from: int | None = None) -> SigningKey:
        """Create a new key, which is published immediately.

        It signs from `signs_from` on, in nanoseconds; a time in the past counts as now. By default
        it signs after one day. Raises `Malformed` for a time so late that the active key would
        become too old.
        """
        from daemon.identity import keypair

        now = self._clock.now()
        if signs_from is not None and signs_from > now + ROTATION:
            days = ROTATION // _DAY
            raise Malformed(f"invalid publish_time: {signs_from} is more than {days} days ahead")
        private = await trio.to_thread.run_sync(keypair.generate)
        key_id = next(self._ids)
        key = SigningKey(
            public=keypair.public(key_id, private),
            created_at=now,
            signs_from=now + PUBLISHED_BEFORE if signs_from is None else max(signs_from, now),
        )
        sealed = self._seal.seal(keypair.dump(private), signing.key_path(key_id))
        await self._store.write(lambda tx: signing.add(tx, key, sealed))
        self._private[key_id] = private
        self._keys = self._store.read(signing.list_all)
        return key

    async def remove(self, key_id: str, *, force: bool) -> None:
        """Delete a key.

        Raises `Refused` for the active key and, without `force`, for a key in use.
        """
        if key_id not in {key.id for key in self._keys}:
            raise Refused("root key not found")
        if key_id == self.active.id:
            raise Refused("active root key cannot be deleted - call rotate first")
        now = self._clock.now()
        idle = [
            key.id
            for key in expired_keys(self._keys, now, self._store.read(signing.of_live_allocations))
        ]
        idle += [key.id for key in self._keys if key.signs_from > now]
        if key_id not in idle and not force:
            raise Refused("root key in use, cannot delete")
        await self._forget(key_id)

    async def rotate_keys(self) -> None:
        """Create a new key when it is due, and delete keys that are no longer needed."""
        now = self._clock.now()
        if rotation_due(self._keys, now):
            await self.rotate(signs_from=None if self._keys else now)
            log.info("a new signing key was created")
        self._has_key.set()
        in_use = self._store.read(signing.of_live_allocations)
        for key in expired_keys(self._keys, now, in_use):
            await self._forget(key.id)

    async def _forget(self, key_id: str) -> None:
        await self._store.write(partial(signing.remove, key_id=key_id))
        self._private.pop(key_id, None)
        self._keys = self._store.read(signing.list_all)

    def _private_key(self, key_id: str) -> "KeyPair":
        """Return the private half of a key. Raises `Unsealable`."""
        from daemon.identity import keypair

        if key_id not in self._private:
            path = signing.key_path(key_id)
            sealed = self._store.read(lambda db: signing.private_key(db, key_id))
            if sealed is None:
                raise Unsealable(f"there is no signing key {key_id}")
            self._private[key_id] = keypair.load(self._seal.unseal(sealed, path))
        return self._private[key_id]


@asynccontextmanager
async def open_issuer(
    store: Store,
    seal: EnvelopeCipher,
    clock: Clock,
    ids: Iterator[str],
    fences: Fences | None = None,
) -> AsyncIterator[Issuer]:
    """Yield an issuer, and rotate its keys while the block runs.

    The first key may not exist at the beginning of the block (`Issuer.has_key`).
    """
    issuer = Issuer(store, seal, clock, ids)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_start_rotation, issuer, fences or Fences(clock))
        yield issuer
        nursery.cancel_scope.cancel()


async def _start_rotation(issuer: Issuer, fences: Fences) -> None:
    """Rotate the keys. An error in the first rotation aborts the start of the daemon."""
    if not issuer.keys:
        async with tolerate_disk_full("there is no signing key yet"):
            await issuer.rotate_keys()
    await fences.keep_running("signing keys", partial(_rotate_forever, issuer))


async def _rotate_forever(issuer: Issuer) -> None:
    while True:
        async with tolerate_disk_full("cannot rotate the signing keys"):
            await issuer.rotate_keys()
        await trio.sleep(_LOOK_AGAIN / SECOND)


# --- choice of keys, without I/O ---


def signer(keys: Sequence[SigningKey], now: int) -> SigningKey:
    """Return the key that signs now: the newest key with a start time in the past."""
    return max(
        (key for key in keys if key.signs_from <= now),
        key=lambda key: (key.signs_from, key.created_at),
        default=keys[0],
    )


def rotation_due(keys: Sequence[SigningKey], now: int) -> bool:
    """Return whether a new key is due."""
    return not keys or now >= keys[-1].signs_from + ROTATION - PUBLISHED_BEFORE


def expired_keys(keys: Sequence[SigningKey], now: int, in_use: set[str]) -> list[SigningKey]:
    """Return the keys that no token or allocation needs. `keys` is sorted by `signs_from`."""
    return [
        key
        for key, successor in pairwise(keys)
        if now >= successor.signs_from + LONGEST_TTL and key.id not in in_use
    ]
