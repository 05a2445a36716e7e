"""Claims signed with our keys, and read again. Needed by tasks with an identity, and by federation."""

from collections.abc import Mapping

import jwt

from daemon.identity.keypair import KeyPair
from storage.errors import StewardError
from storage.records.signing import ALGORITHM, PublicKey

Claims = Mapping[str, object]


class BadToken(StewardError):
    """A token is none of ours, or not valid any more."""


def sign(claims: Claims, key_id: str, private: KeyPair) -> str:
    """Return claims as a signed token."""
    return jwt.encode(dict(claims), private, algorithm=ALGORITHM, headers={"kid": key_id})


def key_of(token: str) -> str | None:
    """Return which key a token claims to be signed with. Raises `BadToken`."""
    try:
        key_id: str | None = jwt.get_unverified_header(token).get("kid")
    except jwt.PyJWTError as error:
        raise BadToken(str(error)) from error
    return key_id


def read(token: str, key: PublicKey, audience: str, now: int) -> dict[str, object]:
    """Return the claims of a token that this key has signed for an audience. Raises `BadToken`.

    `now` is in seconds.
    """
    try:
        # The time is compared with our clock, not the library's.
        claims: dict[str, object] = jwt.decode(
            token,
            jwt.PyJWK(_as_map(key)).key,
            algorithms=[ALGORITHM],
            audience=audience,
            options={"verify_exp": False, "verify_nbf": False, "verify_iat": False},
        )
    except jwt.PyJWTError as error:
        raise BadToken(str(error)) from error
    ends, begins = claims.get("exp"), claims.get("nbf", 0)
    if isinstance(ends, int) and ends <= now:
        raise BadToken("it has expired")
    if not isinstance(begins, int) or begins > now:
        raise BadToken("it is not valid yet")
    return claims


def _as_map(public: PublicKey) -> dict[str, str]:
    return {"kty": public.kty, "kid": public.kid, "alg": public.alg, "n": public.n, "e": public.e}
