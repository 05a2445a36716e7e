"""The verifier of JSON web tokens: their form, signature and standard claims. No I/O.

It checks the tokens of directories and Steward's own tokens. PyJWT checks the signature. Only RS256
is accepted, regardless of the token's header. A key comes from the signer's own document, never
from the token. The order of checks is Vault's: form and algorithm, signature, issuer, audience,
expiry, not-before (source: Vault's recorded responses `login-jwt-errors`).
"""

import re
import sys
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Protocol, TypeVar

import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey, RSAPublicNumbers

from daemon.text.go_format import quote
from storage.errors import Malformed, Refused
from storage.records import json_steps
from storage.records.base import SECOND
from storage.records.identity import DirectoryKey
from storage.records.numbers import shorten
from storage.records.signing import ALGORITHM

MAX_KEY_SET = 256 * 1024  # bytes; a key set has a few kilobytes
MOST_KEY_VALUES = 5000  # JSON values of a key set; the event loop decodes these in a millisecond
MAX_LENGTH = 64 * 1024  # characters; a directory's token has about two thousand
BEFORE_LEEWAY = 5 * 60  # seconds that a start time may be ahead, for clock skew
_PARTS = 3
_BASE64URL = re.compile(r"[A-Za-z0-9_-]*")
_KEY_BITS = range(2048, 8193)  # smaller keys are insecure, larger keys take too long
_MOST_EXPONENT = 2**31 - 1  # as in Go; an exponent as long as the modulus would take 20 ms
_ZERO = "0001-01-01 00:00:00 +0000 UTC"
_LATEST = 253402300799  # the last second of the year 9999
_MOST_EXACT = 2**53  # larger JSON numbers lose precision as floats
_LARGEST = sys.float_info.max  # JSON may have larger integers, which no float represents

_Number = int | float | None


class JwtKey(Protocol):
    """A public RSA key: its ID, and modulus and exponent as base64."""

    @property
    def kid(self) -> str:
        """Return the ID that a token's header names."""
        ...

    @property
    def n(self) -> str:
        """Return the modulus."""
        ...

    @property
    def e(self) -> str:
        """Return the exponent."""
        ...


Key = TypeVar("Key", bound=JwtKey)


class UnknownKey(Refused):
    """No known key matches; the directory may have a new key."""

    def __init__(self) -> None:
        super().__init__("failed to verify signature: failed to verify id token signature")


class StandardClaims(msgspec.Struct, frozen=True):
    """The claims that every token has."""

    iss: str = ""
    aud: str | list[str] | None = None
    exp: _Number = None
    nbf: _Number = None
    iat: _Number = None
    sub: str | None = None


class Claims(msgspec.Struct, frozen=True):
    """The claims that a role may bind. The field names are those of the cloud."""

    oid: str | None = None
    appid: str | None = None
    nbf: _Number = None
    groups: list[str | None] | None = None
    xms_az_rid: str | None = None
    xms_mirid: str | None = None
    claim_names: dict[str, object] | None = msgspec.field(name="_claim_names", default=None)
    hasgroups: object = None

    @property
    def names_groups_elsewhere(self) -> bool:
        """Return whether the token only links to its groups, because they do not fit into it."""
        return self.hasgroups is True or "groups" in (self.claim_names or {})


class _PublishedKey(msgspec.Struct, frozen=True):
    kty: str | None = ""
    kid: str | None = ""
    use: str | None = ""
    n: str | None = ""
    e: str | None = ""


class KeySet(msgspec.Struct, frozen=True):
    """A published set of keys (JWKS). Null stands for an absent value."""

    keys: list[_PublishedKey | None]

    def signing_keys(self, most: int) -> list[DirectoryKey]:
        """Return the RSA keys for signatures among the first `most` keys."""
        return [
            DirectoryKey(kid=key.kid or "", n=key.n, e=key.e)
            for key in self.keys[:most]
            if key and key.kty == "RSA" and key.use in ("", None, "sig") and key.n and key.e
        ]


class _Header(msgspec.Struct, frozen=True):
    alg: str = ""
    kid: str = ""
    crit: object = None


class ParsedJwt(msgspec.Struct, frozen=True):
    """A parsed token, not verified yet."""

    header: _Header
    signed: bytes
    payload: bytes
    signature: bytes

    @property
    def kid(self) -> str:
        """Return the key ID in the token's header; empty if there is none."""
        return self.header.kid


def parse_jwt(text: str) -> ParsedJwt:
    """Parse a token. Raises `Refused`."""
    text = text.strip()
    if len(text) > MAX_LENGTH:
        raise Refused(f"oidc: malformed jwt: longer than {MAX_LENGTH} characters")
    parts = text.split(".")
    if len(parts) != _PARTS:
        raise Refused(
            "oidc: malformed jwt: go-jose/go-jose: compact JWS format must have three parts"
        )
    head = _header(_decoded(parts[0]))
    if head.alg != ALGORITHM:
        raise Refused(
            f"oidc: malformed jwt: unexpected signature algorithm {quote(head.alg)}; "
            f'expected ["{ALGORITHM}"]'
        )
    return ParsedJwt(
        header=head,
        signed=f"{parts[0]}.{parts[1]}".encode(),
        payload=_decoded(parts[1]),
        signature=_signature(parts[2]),
    )


def _decoded(part: str) -> bytes:
    if not _BASE64URL.fullmatch(part):
        raise Refused("oidc: malformed jwt: a part is not base64url")
    try:
        return urlsafe_b64decode(part + "=" * (-len(part) % 4))
    except ValueError:
        raise Refused("oidc: malformed jwt: a part is truncated") from None


def _signature(part: str) -> bytes:
    """Decode a signature; return empty bytes for a non-canonical base64 spelling."""
    signature = _decoded(part)
    return signature if urlsafe_b64encode(signature).rstrip(b"=") == part.encode() else b""


def _header(raw: bytes) -> _Header:
    try:
        return msgspec.json.decode(raw, type=_Header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(f"oidc: malformed jwt: its header cannot be read: {error}") from error


def verify_signature(token: ParsedJwt, keys: Sequence[JwtKey]) -> None:
    """Check that one of the keys signed this token. Raises `UnknownKey`."""
    # Imported late: the import takes memory and time, and many daemons check no tokens.
    from jwt.algorithms import RSAAlgorithm

    if token.header.crit is not None:
        raise UnknownKey  # Steward supports no critical extensions
    rs256 = RSAAlgorithm(RSAAlgorithm.SHA256)
    for key in matching_keys(token, keys):
        public = _public(key.n, key.e)
        if public is not None and rs256.verify(token.signed, public, token.signature):
            return
    raise UnknownKey


def matching_keys(token: ParsedJwt, keys: Iterable[Key]) -> list[Key]:
    """Return the keys that may have signed a token; all keys if the token names no key."""
    return [key for key in keys if token.kid in ("", key.kid)]


@lru_cache(maxsize=64)
def _public(n: str, e: str) -> RSAPublicKey | None:
    """Return a key, or None if its parameters are invalid."""
    try:
        modulus, exponent = (int.from_bytes(_decoded(number)) for number in (n, e))
        if modulus.bit_length() not in _KEY_BITS or exponent > _MOST_EXPONENT:
            return None
        return RSAPublicNumbers(exponent, modulus).public_key()
    except (ValueError, Refused):
        return None


def read_public_pem(pem: str) -> DirectoryKey | None:
    """Return the RSA key in a PEM public key or certificate.

    Return None if there is no RSA key, or if the size or exponent of the key is not accepted.
    """
    # Imported late: few auth methods have keys in their configuration.
    from cryptography.hazmat.primitives.serialization import load_pem_public_key
    from cryptography.x509 import load_pem_x509_certificate

    data = pem.strip().encode()
    try:
        if b"BEGIN CERTIFICATE" in data:
            public = load_pem_x509_certificate(data).public_key()
        else:
            public = load_pem_public_key(data)  # type: ignore[assignment]  # a narrower union
    except (ValueError, UnsupportedAlgorithm):
        return None
    if not isinstance(public, RSAPublicKey) or public.key_size not in _KEY_BITS:
        return None
    numbers = public.public_numbers()
    if numbers.e > _MOST_EXPONENT:
        return None
    return DirectoryKey(kid="", n=_encoded(numbers.n), e=_encoded(numbers.e))


def _encoded(number: int) -> str:
    octets = number.to_bytes((number.bit_length() + 7) // 8)
    return urlsafe_b64encode(octets).rstrip(b"=").decode()


def check_standard(
    token: ParsedJwt, *, issuer: str, audience: str, now: int, leeway: int = 0
) -> None:
    """Check the standard claims of a directory's token. Raises `Refused`.

    `now` is in nanoseconds. `leeway` extends the validity at both ends, in seconds.
    """
    claims = read_standard(token)
    if claims.iss != issuer:
        raise Refused(
            "oidc: id token issued by a different provider, "
            f"expected {quote(issuer)} got {quote(claims.iss)}"
        )
    check_audience(claims, audience)
    if claims.exp is None:
        raise _expired(claims)
    check_times(claims, now, before=BEFORE_LEEWAY + leeway, after=leeway)


def check_audience(claims: StandardClaims, audience: str) -> None:
    """Check that a token is for an audience. Raises `Refused`."""
    audiences = [claims.aud] if isinstance(claims.aud, str) else claims.aud or []
    if audience not in audiences:
        listed = " ".join(map(quote, audiences))
        raise Refused(f"oidc: expected audience {quote(audience)} got [{listed}]")


def check_times(claims: StandardClaims, now: int, *, before: int = 0, after: int = 0) -> None:
    """Check that a token is valid now. Raises `Refused`.

    `now` is in nanoseconds. The validity starts `before` seconds early and ends `after` seconds
    late. A token without an expiry time does not expire.
    """
    ends, begins = claims.exp, claims.nbf
    if ends is not None and (ends > _MOST_EXACT or (int(ends) + after) * SECOND <= now):
        raise _expired(claims)
    if begins is not None and (int(begins) - before) * SECOND > now:
        raise Refused(
            f"oidc: current time {format_timestamp(now // SECOND)} before the nbf (not before) time: "
            f"{format_timestamp(begins)}"
        )


def _expired(claims: StandardClaims) -> Refused:
    return Refused(f"oidc: token is expired (Token Expiry: {format_timestamp(claims.exp)})")


class TimeLeeways(msgspec.Struct, frozen=True):
    """Tolerances for the times of a token, in seconds.

    The validity of a token without `exp` ends `expiration` seconds after its start. The validity of
    a token without a start begins `not_before` seconds before its end. `skew` extends the validity
    at both ends.
    """

    expiration: int = 150
    not_before: int = 150
    skew: int = 60


def check_bound(
    token: ParsedJwt,
    *,
    issuers: Sequence[str],
    audiences: Sequence[str],
    now: int,
    leeways: TimeLeeways,
) -> None:
    """Check issuer, audience and times against the bindings of an auth method. Raises `Refused`.

    `now` is in nanoseconds. Empty `issuers` or `audiences` accept every token.
    """
    claims = read_standard(token)
    if issuers and claims.iss not in issuers:
        raise Refused(f"invalid JWT issuer: {claims.iss}")
    audience = [claims.aud] if isinstance(claims.aud, str) else claims.aud or []
    if audiences and not set(audience).intersection(audiences):
        listed = " ".join(map(quote, audience))
        raise Refused(f"invalid audience (aud) claim: [{listed}] is not bound")
    _check_bound_times(claims, now // SECOND, leeways)


def _check_bound_times(claims: StandardClaims, now: int, leeways: TimeLeeways) -> None:
    times = {"exp": claims.exp, "nbf": claims.nbf, "iat": claims.iat}
    if not any(times.values()):
        raise Refused(
            "no issued at (iat), not before (nbf), or expiration time (exp) claims in token"
        )
    if any(time is not None and not 0 <= time <= _MOST_EXACT for time in times.values()):
        raise Refused(
            "a time of the token is out of range: iat, nbf and exp are seconds since 1970"
        )
    issued, start, end = (int(time or 0) for time in (claims.iat, claims.nbf, claims.exp))
    end = end or max(start, issued) + leeways.expiration
    start = start or issued or end - leeways.not_before
    if now > end + leeways.skew:
        raise Refused(f"token is expired (exp): {format_timestamp(end)}")
    if now < start - leeways.skew:
        raise Refused(f"token not valid yet (nbf): {format_timestamp(start)}")
    if now < issued - leeways.skew:
        raise Refused(f"token issued in the future (iat): {format_timestamp(issued)}")


def all_claims(token: ParsedJwt) -> dict[str, object]:
    """Return all claims of a token. Raises `Refused`."""
    try:
        return json_steps.decode_as(token.payload, dict[str, object])
    except (Malformed, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(f"its claims cannot be read: {error}") from error


def read_standard(token: ParsedJwt) -> StandardClaims:
    """Return the standard claims. Raises `Refused`."""
    try:
        claims = msgspec.json.decode(token.payload, type=StandardClaims)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(f"oidc: failed to unmarshal claims: {error}") from error
    for number in (claims.exp, claims.nbf, claims.iat):
        if number is not None and not abs(number) <= _LARGEST:  # also false for NaN
            value = shorten(str(number))
            raise Refused(f"oidc: failed to unmarshal claims: {value} is not a time")
    return claims


def read_claims(token: ParsedJwt) -> Claims:
    """Return the claims that a role may bind. Raises `Refused`."""
    try:
        return json_steps.decode_as(token.payload, Claims)
    except (Malformed, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(f"a claim has the wrong type: {error}") from error


def format_timestamp(seconds: float | None) -> str:
    """Format a time as Vault does; a time out of range is shown as a number."""
    if seconds is None:
        return _ZERO
    if not 0 <= seconds <= _LATEST:
        return f"{seconds} s after 1970"
    moment = datetime.fromtimestamp(int(seconds), UTC).replace(tzinfo=None)
    return f"{moment.isoformat(' ')} +0000 UTC"
