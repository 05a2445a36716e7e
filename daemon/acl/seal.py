"""Encryption at rest: secrets in the store cannot be read without the root key.

Values are encrypted (AES-256-GCM) with a data key. The store contains the data keys, wrapped with
the root key, which is outside the store (`rootkey.py`). An encrypted value names the version of its
data key and is bound to its path, so a row copied to another path cannot be decrypted.
"""

import os
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from daemon.acl.rootkey import KEY_SIZE, KeySource, RootKey
from storage.errors import Unsealable
from storage.queries import secrets
from storage.queries.secrets import DataKey, SealedSecret
from storage.read_pool import read_once
from storage.store import FILE_NAME, Store
from storage.writer import Transaction

_FORMAT = 1
_HEAD = struct.Struct(">BI")  # format, version of the data key
_NONCE_SIZE = 12
_SALT_SIZE = 16

Random = Callable[[int], bytes]


class EnvelopeCipher:
    """Encryption and decryption of values; `open_seal` creates the object."""

    def __init__(self, keys: Mapping[int, bytes], random: Random = os.urandom) -> None:
        self._ciphers = {version: AESGCM(key) for version, key in keys.items()}
        self._newest = max(keys)
        self._random = random

    def seal(self, plain: bytes, path: str) -> bytes:
        """Encrypt a value; it can only be decrypted with the same path."""
        head = _HEAD.pack(_FORMAT, self._newest)
        nonce = self._random(_NONCE_SIZE)
        bound = head + path.encode()
        return head + nonce + self._ciphers[self._newest].encrypt(nonce, plain, bound)

    def unseal(self, sealed: bytes, path: str) -> bytes:
        """Decrypt a value that was encrypted with this path. Raises `Unsealable`."""
        try:
            form, version = _HEAD.unpack_from(sealed)
            head, rest = sealed[: _HEAD.size], sealed[_HEAD.size :]
            nonce, body = rest[:_NONCE_SIZE], rest[_NONCE_SIZE:]
            if form == _FORMAT:
                return self._ciphers[version].decrypt(nonce, body, head + path.encode())
        except (struct.error, KeyError, ValueError, InvalidTag) as error:
            raise Unsealable(f"the sealed value {path!r} is damaged or misplaced") from error
        raise Unsealable(f"the value {path!r} was sealed by a newer version")


async def open_seal(store: Store, source: KeySource, now: int) -> EnvelopeCipher:
    """Return the cipher for a store's secrets, after decrypting its data keys with the root key.

    A new store gets its first data key. Raises `Unsealable` if the store uses another root key.
    """
    wrapped = store.read(secrets.data_keys)
    if not wrapped:
        root = source.take()
        keys, wrapped = _new_key(root, 1)
        await store.write(lambda tx: secrets.replace_data_keys(tx, wrapped, now))
        return EnvelopeCipher(keys)
    keys, root = _unwrap_with_any(wrapped, source)
    source.settle(root)
    return EnvelopeCipher(keys)


def check_root_key(store: Path, source: KeySource) -> None:
    """Raise `Unsealable` or `Invalid` unless the source has the root key of a closed store."""
    if wrapped := read_once(store / FILE_NAME, secrets.data_keys):
        _unwrap_with_any(wrapped, source)


def fitting(store: Path, source: KeySource) -> int:
    """Return the index of the candidate key that decrypts a closed store.

    Any key decrypts a store without sealed values, so the first candidate does.
    Raises `Unsealable` or `StorageUnusable`.
    """
    wrapped = read_once(store / FILE_NAME, secrets.data_keys)
    origin = _unwrap_with_any(wrapped, source)[1].origin
    return [candidate.origin for candidate in source.candidates()].index(origin)


async def replace_root_key(store: Store, source: KeySource, new: RootKey, now: int) -> int:
    """Encrypt everything again with a new data key and root key; return the number of values.

    One transaction does all the work, so a crash leaves all values under the old key or all under
    the new key. No other write may run at the same time.
    """
    wrapped = store.read(secrets.data_keys)
    if not wrapped:
        raise Unsealable("nothing is sealed in this store yet: there is no key to replace")
    old_keys, _ = _unwrap_with_any(wrapped, source)
    keys, newly_wrapped = _new_key(new, wrapped[-1].version + 1)
    before, after = EnvelopeCipher(old_keys), EnvelopeCipher(keys)
    sealed_values = await store.read_long(secrets.below)
    resealed = [
        SealedSecret(path, after.seal(before.unseal(sealed, path), path))
        for path, sealed in sealed_values
    ]

    def write(tx: Transaction) -> None:
        secrets.replace_data_keys(tx, newly_wrapped, now)
        for sealed_secret in resealed:
            secrets.put(tx, sealed_secret.place, sealed_secret.sealed)

    await store.write(write)
    return len(resealed)


def _new_key(root: RootKey, version: int) -> tuple[dict[int, bytes], list[DataKey]]:
    """Return a new data key twice: unencrypted, and wrapped with the root key."""
    key = AESGCM.generate_key(8 * KEY_SIZE)
    salt = os.urandom(_SALT_SIZE) if root.is_passphrase else b""
    nonce = os.urandom(_NONCE_SIZE)
    wrapped = nonce + AESGCM(root.wrapping_key(salt)).encrypt(nonce, key, _name(version))
    return {version: key}, [DataKey(version, salt, wrapped)]


def _unwrap_with_any(
    wrapped: Sequence[DataKey], source: KeySource
) -> tuple[dict[int, bytes], RootKey]:
    """Return the data keys, and the root key that unwrapped them. Raises `Unsealable`."""
    candidates = source.candidates()
    for root in candidates:
        try:
            return {data_key.version: _unwrap(data_key, root) for data_key in wrapped}, root
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
