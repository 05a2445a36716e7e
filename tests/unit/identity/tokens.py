"""Tokens that a directory signs, and forged tokens."""

import json
from base64 import urlsafe_b64encode
from typing import Any

from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256

from storage.records.base import SECOND
from storage.records.identity import DirectoryKey

NOW = 1_795_000_000 * SECOND
ISSUER = "https://directory.example/tenant/"
AUDIENCE = "api://steward"


def new_key(bits: int = 2048) -> RSAPrivateKey:
    return generate_private_key(public_exponent=65537, key_size=bits)


KEY = new_key()


def encoded(raw: bytes) -> str:
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


def public(key: RSAPrivateKey, kid: str = "one") -> DirectoryKey:
    numbers = key.public_key().public_numbers()
    size = (numbers.n.bit_length() + 7) // 8
    return DirectoryKey(kid=kid, n=encoded(numbers.n.to_bytes(size)), e=encoded(b"\x01\x00\x01"))


def claims(**changes: Any) -> dict[str, Any]:
    """Return the claims of a good token, with some changed; None leaves one out."""
    now = NOW // SECOND
    good = {"iss": ISSUER, "aud": AUDIENCE, "exp": now + 60, "nbf": now - 60, "oid": "someone"}
    return {name: value for name, value in {**good, **changes}.items() if value is not None}


def signed(
    payload: dict[str, Any] | bytes,
    key: RSAPrivateKey = KEY,
    header: dict[str, Any] | None = None,
) -> str:
    head = {"alg": "RS256", "kid": "one", **(header or {})}
    raw = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    text = f"{encoded(json.dumps(head).encode())}.{encoded(raw)}"
    return f"{text}.{encoded(key.sign(text.encode(), PKCS1v15(), SHA256()))}"
