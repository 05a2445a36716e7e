"""Sign claims with Steward's keys, for tasks and federation, and verify such tokens."""

from collections.abc import Mapping, Sequence

import jwt
import msgspec

from daemon.identity.jwt_verification import (
    check_audience,
    check_times,
    parse_jwt,
    read_standard,
    verify_signature,
)
from daemon.identity.keypair import KeyPair
from storage.errors import Refused, StewardError
from storage.records.signing import ALGORITHM, PublicKey

Claims = Mapping[str, object]

_PREFIXES = ("oidc: malformed jwt: ", "oidc: ")  # prefixes of Vault's error texts


class InvalidToken(StewardError):
    """A token was not signed by Steward, or is no longer valid."""


def sign(claims: Claims, key_id: str, private: KeyPair) -> str:
    """Return claims as a signed token."""
    return jwt.encode(dict(claims), private, algorithm=ALGORITHM, headers={"kid": key_id})


def read(token: str, keys: Sequence[PublicKey], audience: str, now: int) -> dict[str, object]:
    """Return the claims of a token that one of `keys` has signed for an audience.

    The token must name its key. `now` is in nanoseconds. Raises `InvalidToken`.
    """
    try:
        parsed = parse_jwt(token)
        named = [key for key in keys if key.kid == parsed.kid]
        if not named:
            raise InvalidToken("it is not signed with a key of this daemon")
        verify_signature(parsed, named)
        claims = read_standard(parsed)
        check_audience(claims, audience)
        check_times(claims, now)
    except Refused as error:
        raise InvalidToken(_without_prefix(str(error))) from error
    return msgspec.json.decode(parsed.payload, type=dict[str, object])


def _without_prefix(text: str) -> str:
    for prefix in _PREFIXES:
        text = text.removeprefix(prefix)
    return text
