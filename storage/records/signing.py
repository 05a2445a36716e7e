"""The signing keys of this installation, with public keys in JWKS form."""

import msgspec

ALGORITHM = "RS256"  # supported by every verifier


class PublicKey(msgspec.Struct, frozen=True, kw_only=True):
    """A public key as a JSON Web Key (RFC 7517); `n` and `e` are base64."""

    use: str = "sig"
    kty: str = "RSA"
    kid: str
    alg: str = ALGORITHM
    n: str
    e: str


class SigningKey(msgspec.Struct, frozen=True, kw_only=True):
    """A signing key; its private key is a secret. Times are in nanoseconds.

    The public key is published as soon as the key is created. The key signs from `signs_from` until
    the next key begins to sign.
    """

    public: PublicKey
    created_at: int
    signs_from: int

    @property
    def id(self) -> str:
        """Return the key ID, which tokens state in their header."""
        return self.public.kid
