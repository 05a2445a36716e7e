"""Our own signatures: keys, their rotation, and the tokens that say who a task is.

A new key is published a day before it signs, so that whoever keeps a copy of the published keys
knows it in time; an old one stays published until nothing that it has signed is in use: no token
of it can be valid any more, and nothing that was placed with it runs. The private halves are in
the store, sealed.
"""

import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec
import trio

from daemon.acl.seal import Seal
from daemon.clock import Clock
from storage.errors import Refused, UnknownToken, Unsealable
from storage.queries import signing
from storage.records.base import HOUR, SECOND
from storage.records.signing import PublicKey, SigningKey
from storage.records.workload import AUDIENCE, Workload
from storage.store import Store, unless_full

if TYPE_CHECKING:
    from daemon.identity.keypair import KeyPair
    from daemon.identity.signatures import Claims

log = logging.getLogger("steward.identity")

_DAY = 24 * HOUR
ROTATION = 30 * _DAY
PUBLISHED_BEFORE = _DAY
LONGEST_TTL = 30 * _DAY  # of a token; so long a key stays published when it has signed last
_LOOK_AGAIN = HOUR  # the wall clock may be set meanwhile


class Issuer:
    """Signs claims with the keys of the store, and checks what they have signed. By `open_issuer`."""

    def __init__(self, store: Store, seal: Seal, clock: Clock, ids: Iterator[str]) -> None:
        self._store, self._seal, self._clock, self._ids = store, seal, clock, ids
        self._keys = store.read(signing.every)  # nobody else changes them
        self._private: dict[str, KeyPair] = {}
        self._has_key = trio.Event()

    @property
    def keys(self) -> list[SigningKey]:
        """Return the keys, in the order in which they sign."""
        return list(self._keys)

    @property
    def active(self) -> SigningKey:
        """Return the key that signs now."""
        return signer(self._keys, self._clock.now())

    def published(self) -> list[PublicKey]:
        """Return the public keys by which our signatures can be checked."""
        return [key.public for key in self._keys]

    def sign(self, claims: "Claims", key_id: str = "") -> str:
        """Return claims as a signed token, with the key that signs now unless another is named."""
        from daemon.identity import signatures

        key_id = key_id or self.active.id
        return signatures.sign(claims, key_id, self._private_key(key_id))

    def verify(self, token: str, audience: str) -> dict[str, object]:
        """Return the claims of a token that we have signed for an audience. Raises `BadToken`."""
        from daemon.identity import signatures

        key_id = signatures.key_of(token)
        key = next((one for one in self._keys if one.id == key_id), None)
        if key is None:
            raise signatures.BadToken("it is not signed with a key of this daemon")
        return signatures.read(token, key.public, audience, self._clock.now() // SECOND)

    def workload(self, token: str) -> Workload:
        """Return the task whose identity token for our API this is. Raises `UnknownToken`."""
        from daemon.identity.signatures import BadToken

        try:
            workload = msgspec.convert(self.verify(token, AUDIENCE), Workload)
        except (BadToken, msgspec.ValidationError) as error:
            raise UnknownToken(f"failed to parse signed token: {error}") from error
        if not workload.nomad_task:
            raise UnknownToken("failed to parse signed token: it is a service's, not a task's")
        return workload

    async def has_key(self) -> None:
        """Return when there is a key: the first one of a store is made while other parts open."""
        await self._has_key.wait()

    async def rotate(self, *, at_once: bool) -> SigningKey:
        """Make a new key, which signs at once or when others have had time to learn of it."""
        from daemon.identity import keypair

        now = self._clock.now()
        private = await trio.to_thread.run_sync(keypair.generate)
        key_id = next(self._ids)
        key = SigningKey(
            public=keypair.public(key_id, private),
            created_at=now,
            signs_from=now if at_once else now + PUBLISHED_BEFORE,
        )
        sealed = self._seal.seal(keypair.dump(private), signing.place(key_id))
        await self._store.write(lambda tx: signing.add(tx, key, sealed))
        self._private[key_id] = private
        self._keys = self._store.read(signing.every)
        return key

    async def remove(self, key_id: str, *, force: bool) -> None:
        """Forget a key. Raises `Refused` for the one that signs, and unless forced for one in use."""
        if key_id not in {key.id for key in self._keys}:
            raise Refused("root key not found")
        if key_id == self.active.id:
            raise Refused("active root key cannot be deleted - call rotate first")
        now = self._clock.now()
        idle = [
            key.id
            for key in outdated(self._keys, now, self._store.read(signing.of_live_allocations))
        ]
        idle += [key.id for key in self._keys if key.signs_from > now]
        if key_id not in idle and not force:
            raise Refused("root key in use, cannot delete")
        await self._forget(key_id)

    async def tend(self) -> None:
        """Make a new key when it is time, and forget those that are of no use any more."""
        now = self._clock.now()
        if is_due(self._keys, now):
            await self.rotate(at_once=not self._keys)
            log.info("a new signing key was made")
        self._has_key.set()
        in_use = self._store.read(signing.of_live_allocations)
        for key in outdated(self._keys, now, in_use):
            await self._forget(key.id)

    async def _forget(self, key_id: str) -> None:
        await self._store.write(partial(signing.remove, key_id=key_id))
        self._private.pop(key_id, None)
        self._keys = self._store.read(signing.every)

    def _private_key(self, key_id: str) -> "KeyPair":
        """Return the private half of a key. Raises `Unsealable`."""
        from daemon.identity import keypair

        if key_id not in self._private:
            place = signing.place(key_id)
            sealed = self._store.read(lambda db: signing.private(db, key_id))
            if sealed is None:
                raise Unsealable(f"there is no signing key {key_id}")
            self._private[key_id] = keypair.load(self._seal.unseal(sealed, place))
        return self._private[key_id]


@asynccontextmanager
async def open_issuer(
    store: Store, seal: Seal, clock: Clock, ids: Iterator[str]
) -> AsyncIterator[Issuer]:
    """Give an issuer whose keys are looked after; see `Issuer.has_key`."""
    issuer = Issuer(store, seal, clock, ids)
    async with trio.open_nursery() as nursery:
        await nursery.start(_tend_for_ever, issuer)
        yield issuer
        nursery.cancel_scope.cancel()


async def _tend_for_ever(
    issuer: Issuer, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    task_status.started()
    while True:
        async with unless_full("signing keys stay as they are"):
            await issuer.tend()
        await trio.sleep(_LOOK_AGAIN / SECOND)


# ---- which key when: pure ------------------------------------------------------------------------


def signer(keys: Sequence[SigningKey], now: int) -> SigningKey:
    """Return the key that signs now: the newest whose time has come."""
    return max(
        (key for key in keys if key.signs_from <= now),
        key=lambda key: (key.signs_from, key.created_at),
        default=keys[0],
    )


def is_due(keys: Sequence[SigningKey], now: int) -> bool:
    """Tell whether it is time for a new key."""
    return not keys or now >= keys[-1].signs_from + ROTATION - PUBLISHED_BEFORE


def outdated(keys: Sequence[SigningKey], now: int, in_use: set[str]) -> list[SigningKey]:
    """Return the keys that nobody needs any more; they come in the order in which they sign."""
    return [
        key
        for key, successor in pairwise(keys)
        if now >= successor.signs_from + LONGEST_TTL and key.id not in in_use
    ]
