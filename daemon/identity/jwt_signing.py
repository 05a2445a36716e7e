"""Signing and verification of claims with Steward's keys, for tasks and federation."""

from collections.abc import Mapping

import jwt

from daemon.identity.keypair import KeyPair
from storage.errors import StewardError
from storage.records.signing import ALGORITHM, PublicKey

Claims = Mapping[str, object]


class InvalidToken(StewardError):
    """A token was not signed by Steward, or is no longer valid."""


def sign(claims: Claims, key_id: str, private: KeyPair) -> str:
    """Return claims as a signed token."""
    return jwt.encode(dict(claims), private, algorithm=ALGORITHM, headers={"kid": key_id})


def key_of(token: str) -> str | None:
    """Return which key a token claims to be signed with. Raises `InvalidToken`."""
    try:
        key_id: str | None = jwt.get_unverified_header(token).get("kid")
    except jwt.PyJWTError as error:
        raise InvalidToken(str(error)) from error
    return key_id


def read(token: str, key: PublicKey, audience: str, now: int) -> dict[str, object]:
    """Return the claims of a token that this key has signed for an audience. Raises `InvalidToken`.

    `now` is in seconds.
    """
    try:
        # The times are compared with `now` below, not by the library.
        claims: dict[str, object] = jwt.decode(
            token,
            jwt.PyJWK(_as_map(key)).key,
            algorithms=[ALGORITHM],
            audience=audience,
            options={"verify_exp": False, "verify_nbf": False, "verify_iat": False},
        )
    except jwt.PyJWTError as error:
        raise InvalidToken(str(error)) from error
    ends, begins = claims.get("exp"), claims.get("nbf", 0)
    if isinstance(ends, int) and ends <= now:
        raise InvalidToken("it has expired")
    if not isinstance(begins, int) or begins > now:
        raise InvalidToken("it is not valid yet")
    return claims


def _as_map(public: PublicKey) -> dict[str, str]:
    return {"kty": public.kty, "kid": public.kid, "alg": public.alg, "n": public.n, "e": public.e}
