"""Secrets of tokens: made at random, kept as keyed hashes only.

A batch token is the one kind of which nothing is kept: its secret is what would stand in its
row, with a keyed hash behind it. Whoever changes a bit of it holds nothing.
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
# Bytes beyond the last multiple are left out, or some letters would be likelier than others.
_UNFAIR = bytes(range(256 - 256 % len(_LETTERS), 256))
_LENGTH = 24  # of a secret or accessor: 142 random bits
_SERVICE, _BATCH = "s.", "b."
_MARK = 32  # bytes of the hash behind a batch token


class Keyring:
    """What turns secrets into hashes, and batch tokens into secrets and back."""

    def __init__(self, key: bytes) -> None:
        self._hashing = hashlib.blake2b(key, person=b"token hashes").digest()
        self._marking = hashlib.blake2b(key, person=b"batch tokens").digest()

    def hash(self, secret: str) -> bytes:
        """Return what stands in the file for a secret."""
        return _keyed(secret.encode(errors="surrogateescape"), self._hashing)

    def batch_secret(self, token: Token) -> str:
        """Return the secret of a batch token, which is all there is of it."""
        document = encode(token)
        marked = document + _keyed(document, self._marking)
        return _BATCH + base64.urlsafe_b64encode(marked).decode().rstrip("=")

    def batch_token(self, secret: str) -> Token | None:
        """Return the batch token of a secret, or None when the secret is none of ours."""
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
    """Return a random secret of the secrets side."""
    return _SERVICE + new_accessor()


def new_accessor() -> str:
    """Return a random accessor of the secrets side."""
    text = b""
    while len(text) < _LENGTH:
        text += secrets.token_bytes(2 * _LENGTH).translate(_LETTER_OF, _UNFAIR)
    return text[:_LENGTH].decode()
