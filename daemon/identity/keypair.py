"""Private keys for signing: generate, encode and decode. Loaded only when a key is used.

Like the public key, a private key is encoded as a JSON Web Key (RFC 7518, section 6.3). The
library's own formats would also load the code for SSH keys and passwords, which takes 1 MiB of
memory.
"""

import base64

import msgspec
from cryptography.hazmat.primitives.asymmetric import rsa

from storage.records.signing import PublicKey

_BITS = 2048

KeyPair = rsa.RSAPrivateKey


class _PrivateKey(msgspec.Struct, frozen=True, kw_only=True):
    """All parameters of an RSA private key, named as in a JSON Web Key."""

    n: str
    e: str
    d: str
    p: str
    q: str
    dp: str
    dq: str
    qi: str


def generate() -> KeyPair:
    """Return a new key. This takes a tenth of a second; other threads can run in this time."""
    return rsa.generate_private_key(public_exponent=65537, key_size=_BITS)


def load(octets: bytes) -> KeyPair:
    """Decode a private key from the bytes that `dump` returned."""
    key = msgspec.json.decode(octets, type=_PrivateKey)
    return rsa.RSAPrivateNumbers(
        p=_number(key.p),
        q=_number(key.q),
        d=_number(key.d),
        dmp1=_number(key.dp),
        dmq1=_number(key.dq),
        iqmp=_number(key.qi),
        public_numbers=rsa.RSAPublicNumbers(e=_number(key.e), n=_number(key.n)),
    ).private_key()


def dump(private: KeyPair) -> bytes:
    """Encode a private key as bytes, without encryption."""
    numbers = private.private_numbers()
    key = _PrivateKey(
        n=_text(numbers.public_numbers.n),
        e=_text(numbers.public_numbers.e),
        d=_text(numbers.d),
        p=_text(numbers.p),
        q=_text(numbers.q),
        dp=_text(numbers.dmp1),
        dq=_text(numbers.dmq1),
        qi=_text(numbers.iqmp),
    )
    return msgspec.json.encode(key)


def public(key_id: str, private: KeyPair) -> PublicKey:
    """Return the public half of a key."""
    numbers = private.public_key().public_numbers()
    return PublicKey(kid=key_id, n=_text(numbers.n), e=_text(numbers.e))


def _text(number: int) -> str:
    octets = number.to_bytes((number.bit_length() + 7) // 8, "big")
    return base64.urlsafe_b64encode(octets).rstrip(b"=").decode()


def _number(text: str) -> int:
    return int.from_bytes(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), "big")
