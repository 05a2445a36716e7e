"""The keys with which this installation signs: their public halves, as others are told of them."""

import msgspec

ALGORITHM = "RS256"  # what every verifier knows


class PublicKey(msgspec.Struct, frozen=True, kw_only=True):
    """The public half of a key as a JSON Web Key (RFC 7517); `n` and `e` are base64."""

    use: str = "sig"
    kty: str = "RSA"
    kid: str
    alg: str = ALGORITHM
    n: str
    e: str


class SigningKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key; its private half is a secret. Times are nanoseconds.

    It is published from the moment it is made, and signs from `signs_from` until the next one does.
    """

    public: PublicKey
    created_at: int
    signs_from: int

    @property
    def id(self) -> str:
        """Return the name by which a token says with which key it is signed."""
        return self.public.kid
