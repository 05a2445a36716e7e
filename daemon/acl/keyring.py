"""Secrets of tokens: random, and stored as keyed hashes only.

A batch token is not stored. Its secret contains its data and a keyed hash of them, so a modified
secret is invalid.
"""

import base64
import binascii
import hashlib
import hmac
import secrets
import string

import msgspec

from storage.records.acl import Token
from storage.records.codec import encode

KEY_SIZE = 32  # bytes
_LETTERS = (string.ascii_letters + string.digits).encode()
_LETTER_OF = bytes(_LETTERS[byte % len(_LETTERS)] for byte in range(256))
# The remaining byte values are dropped: with them, the first letters would be more likely than
# others.
_UNFAIR = bytes(range(256 - 256 % len(_LETTERS), 256))
_LENGTH = 24  # letters of a secret or accessor: 142 random bits
_SERVICE, _BATCH = "s.", "b."
_MARK = 32  # bytes of the hash of a batch token


class Keyring:
    """Hashing of secrets, and encoding of batch tokens."""

    def __init__(self, key: bytes) -> None:
        self._hashing = hashlib.blake2b(key, person=b"token hashes").digest()
        self._marking = hashlib.blake2b(key, person=b"batch tokens").digest()

    def hash(self, secret: str) -> bytes:
        """Return the hash under which a secret is stored."""
        return _keyed(secret.encode(errors="surrogateescape"), self._hashing)

    def batch_secret(self, token: Token) -> str:
        """Return the secret of a batch token, which contains all its data."""
        document = encode(token)
        marked = document + _keyed(document, self._marking)
        return _BATCH + base64.urlsafe_b64encode(marked).decode().rstrip("=")

    def batch_token(self, secret: str) -> Token | None:
        """Return the batch token in a secret, or None if the secret is invalid."""
        if not secret.startswith(_BATCH):
            return None
        text = secret.removeprefix(_BATCH)
        try:
            marked = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            return None
        document, mark = marked[:-_MARK], marked[-_MARK:]
        if not hmac.compare_digest(mark, _keyed(document, self._marking)):
            return None
        return msgspec.json.decode(document, type=Token)


def _keyed(text: bytes, key: bytes) -> bytes:
    return hashlib.blake2b(text, key=key, digest_size=_MARK).digest()


def new_key() -> bytes:
    """Return a random key."""
    return secrets.token_bytes(KEY_SIZE)


def new_secret() -> str:
    """Return a random secret for the Vault API."""
    return _SERVICE + new_accessor()


def new_accessor() -> str:
    """Return a random accessor for the Vault API."""
    text = b""
    while len(text) < _LENGTH:
        text += secrets.token_bytes(2 * _LENGTH).translate(_LETTER_OF, _UNFAIR)
    return text[:_LENGTH].decode()
