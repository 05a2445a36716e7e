"""The seal around everything secret: what the file holds cannot be read without the root key.

Values are sealed (AES-256-GCM) with a data key; data keys are kept in the file, wrapped by the
root key, which comes from outside (`rootkey.py`). A sealed value names the version of its data
key and is bound to its place, so a row that is moved to another place does not open.
"""

import os
import struct
from collections.abc import Callable, Mapping, Sequence

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from daemon.acl.rootkey import KEY_SIZE, KeySource, RootKey
from storage.errors import Unsealable
from storage.queries import secrets
from storage.queries.secrets import DataKey, Secret
from storage.store import Store
from storage.writer import Transaction

_FORMAT = 1
_HEAD = struct.Struct(">BI")  # format, version of the data key
_NONCE_SIZE = 12
_SALT_SIZE = 16

Random = Callable[[int], bytes]


class Seal:
    """Seals and opens values. Made by `open_seal`."""

    def __init__(self, keys: Mapping[int, bytes], random: Random = os.urandom) -> None:
        self._ciphers = {version: AESGCM(key) for version, key in keys.items()}
        self._newest = max(keys)
        self._random = random

    def seal(self, plain: bytes, place: str) -> bytes:
        """Return a value as the file may hold it at its place."""
        head = _HEAD.pack(_FORMAT, self._newest)
        nonce = self._random(_NONCE_SIZE)
        bound = head + place.encode()
        return head + nonce + self._ciphers[self._newest].encrypt(nonce, plain, bound)

    def unseal(self, sealed: bytes, place: str) -> bytes:
        """Return what was sealed for this place. Raises `Unsealable`."""
        try:
            form, version = _HEAD.unpack_from(sealed)
            head, rest = sealed[: _HEAD.size], sealed[_HEAD.size :]
            nonce, body = rest[:_NONCE_SIZE], rest[_NONCE_SIZE:]
            if form == _FORMAT:
                return self._ciphers[version].decrypt(nonce, body, head + place.encode())
        except (struct.error, KeyError, ValueError, InvalidTag) as error:
            raise Unsealable(f"what is sealed as {place!r} is damaged or misplaced") from error
        raise Unsealable(f"what is sealed as {place!r} was sealed by a newer version")


async def open_seal(store: Store, source: KeySource, now: int) -> Seal:
    """Return the seal of a store, with its data keys; a new store gets its first one.

    Raises `Unsealable` when the root key is not the one of this store.
    """
    wrapped = store.read(secrets.data_keys)
    if not wrapped:
        root = source.take()
        keys, wrapped = _new_key(root, 1)
        await store.write(lambda tx: secrets.replace_data_keys(tx, wrapped, now))
        return Seal(keys)
    keys, root = _unwrap_with_any(wrapped, source)
    source.settle(root)
    return Seal(keys)


async def rekey(store: Store, source: KeySource, new: RootKey, now: int) -> int:
    """Seal everything anew, with a new data key under a new root key; return how many values.

    All in one write: a crash leaves everything under the old key, or everything under the new
    one. Nothing else may write meanwhile.
    """
    wrapped = store.read(secrets.data_keys)
    if not wrapped:
        raise Unsealable("nothing is sealed in this store yet: there is no key to replace")
    old_keys, _ = _unwrap_with_any(wrapped, source)
    keys, newly_wrapped = _new_key(new, wrapped[-1].version + 1)
    before, after = Seal(old_keys), Seal(keys)
    found = await store.read_long(secrets.below)
    resealed = [
        Secret(place, after.seal(before.unseal(sealed, place), place)) for place, sealed in found
    ]

    def write(tx: Transaction) -> None:
        secrets.replace_data_keys(tx, newly_wrapped, now)
        for one in resealed:
            secrets.put(tx, one.place, one.sealed)

    await store.write(write)
    return len(resealed)


def _new_key(root: RootKey, version: int) -> tuple[dict[int, bytes], list[DataKey]]:
    """Return a new data key, and the same as the file may hold it."""
    key = AESGCM.generate_key(8 * KEY_SIZE)
    salt = os.urandom(_SALT_SIZE) if root.is_passphrase else b""
    nonce = os.urandom(_NONCE_SIZE)
    wrapped = nonce + AESGCM(root.wrapping_key(salt)).encrypt(nonce, key, _name(version))
    return {version: key}, [DataKey(version, salt, wrapped)]


def _unwrap_with_any(
    wrapped: Sequence[DataKey], source: KeySource
) -> tuple[dict[int, bytes], RootKey]:
    """Return the data keys, and the root key that opened them. Raises `Unsealable`."""
    candidates = source.candidates()
    for root in candidates:
        try:
            return {one.version: _unwrap(one, root) for one in wrapped}, root
        except InvalidTag:
            continue
    raise Unsealable(
        f"this store was not sealed with {' or '.join(root.origin for root in candidates)}: "
        "name the right key with --key-file, or ask for the passphrase with --ask-passphrase"
    )


def _unwrap(key: DataKey, root: RootKey) -> bytes:
    if root.is_passphrase is not bool(key.salt):
        raise InvalidTag
    nonce, body = key.wrapped[:_NONCE_SIZE], key.wrapped[_NONCE_SIZE:]
    return AESGCM(root.wrapping_key(key.salt)).decrypt(nonce, body, _name(key.version))


def _name(version: int) -> bytes:
    return f"steward data key {version}".encode()
