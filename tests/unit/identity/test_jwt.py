"""Accepted tokens, and the errors for all others."""

import json
import random
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicNumbers
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from daemon.identity import jwt_verification
from daemon.identity.jwt_verification import (
    MAX_LENGTH,
    TimeLeeways,
    UnknownKey,
    all_claims,
    check_bound,
    check_standard,
    parse_jwt,
    read_claims,
    read_public_pem,
    verify_signature,
)
from storage.errors import Refused
from storage.records.base import SECOND
from tests.unit.identity.tokens import (
    AUDIENCE,
    ISSUER,
    KEY,
    NOW,
    claims,
    encoded,
    new_key,
    public,
    signed,
)

KEYS = [public(KEY)]


def accept(text: str, leeway: int = 0) -> None:
    """Check a token completely; raise an error if it is not valid."""
    token = parse_jwt(text)
    verify_signature(token, KEYS)
    check_standard(token, issuer=ISSUER, audience=AUDIENCE, now=NOW, leeway=leeway)
    read_claims(token)


@pytest.mark.parametrize(
    "payload",
    [
        claims(),
        claims(nbf=None),
        claims(aud=["other", AUDIENCE]),
        claims(exp=4102444800.5),
        claims(iat=9999999999, tid="another"),
        claims(nbf=NOW // SECOND + 299),
    ],
)
def test_valid_token_is_accepted(payload: dict[str, Any]) -> None:
    accept(signed(payload))


def test_spaces_around_a_token_are_ignored() -> None:
    accept(f" {signed(claims())}\n")


def test_token_without_a_key_id_is_checked_with_every_key() -> None:
    token = parse_jwt(signed(claims(), header={"kid": ""}))
    verify_signature(token, [public(new_key(), "other"), *KEYS])


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (
            claims(iss="https://evil.example/"),
            "oidc: id token issued by a different provider, "
            f'expected "{ISSUER}" got "https://evil.example/"',
        ),
        (claims(aud="b"), f'oidc: expected audience "{AUDIENCE}" got ["b"]'),
        (claims(aud=["b", "c"]), f'oidc: expected audience "{AUDIENCE}" got ["b" "c"]'),
        (claims(aud=None), f'oidc: expected audience "{AUDIENCE}" got []'),
        (
            claims(exp=None),
            "oidc: token is expired (Token Expiry: 0001-01-01 00:00:00 +0000 UTC)",
        ),
        (
            claims(exp=NOW // SECOND),
            "oidc: token is expired (Token Expiry: 2026-11-18 11:06:40 +0000 UTC)",
        ),
        (claims(exp=-1), "oidc: token is expired (Token Expiry: -1 s after 1970)"),
        (
            claims(nbf=NOW // SECOND + 301),
            "oidc: current time 2026-11-18 11:06:40 +0000 UTC before the nbf (not before) time: "
            "2026-11-18 11:11:41 +0000 UTC",
        ),
    ],
)
def test_token_with_invalid_claims_is_refused(payload: dict[str, Any], text: str) -> None:
    with pytest.raises(Refused) as raised:
        accept(signed(payload))
    assert str(raised.value) == text


def test_leeway_applies_to_both_time_limits() -> None:
    accept(signed(claims(exp=NOW // SECOND - 20, nbf=NOW // SECOND + 320)), leeway=30)


@pytest.mark.parametrize(
    "payload",
    [
        claims(exp="soon"),
        claims(nbf="now"),
        claims(nbf=True),
        claims(aud=[1]),
        claims(iss=5),
        claims(oid=5),
        claims(groups="one"),
        claims(groups=[1]),
        claims(xms_mirid=["a"]),
        b"[]",
        b'"text"',
        b"{",
        b"\xff",
        b'{"exp": 1e400}',
        b'{"exp": ' + b"9" * 400 + b"}",
        b'{"exp": 1, "nbf": -' + b"9" * 400 + b"}",
        b'{"a":' + b"[" * 10_000 + b"]" * 10_000 + b"}",
    ],
)
def test_claims_of_wrong_types_are_refused(payload: dict[str, Any] | bytes) -> None:
    with pytest.raises(Refused):
        accept(signed(payload))


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        ("garbage", "compact JWS format must have three parts"),
        ("a.b", "compact JWS format must have three parts"),
        ("a.b.c.d", "compact JWS format must have three parts"),
        ("a.b.c", "a part is truncated"),
        ("é.b.c", "a part is not base64url"),
        (f"{encoded(b'{}')}.e30.e30", 'unexpected signature algorithm ""; expected ["RS256"]'),
        (f"{encoded(b'[]')}.e30.e30", "its header cannot be read"),
        (f"{encoded(b'nonsense')}.e30.e30", "its header cannot be read"),
        ("a" * (MAX_LENGTH + 1), "longer than"),
    ],
)
def test_malformed_token_is_refused(text: str, refusal: str) -> None:
    with pytest.raises(Refused) as raised:
        parse_jwt(text)
    assert str(raised.value).startswith("oidc: malformed jwt: ")
    assert refusal in str(raised.value)


@pytest.mark.parametrize("algorithm", ["none", "HS256", "PS256", "ES256", "RS384", "rs256"])
def test_only_one_algorithm_is_accepted(algorithm: str) -> None:
    with pytest.raises(Refused) as raised:
        parse_jwt(signed(claims(), header={"alg": algorithm}))
    assert str(raised.value) == (
        f'oidc: malformed jwt: unexpected signature algorithm "{algorithm}"; expected ["RS256"]'
    )


@pytest.mark.parametrize(
    "text",
    [
        signed(claims(), new_key()),
        signed(claims(), header={"kid": "two"}),
        signed(claims(), header={"crit": ["exp"]}),
        signed(claims(), header={"crit": []}),
        signed(claims())[:-8],
    ],
)
def test_token_signed_with_an_unknown_key_is_refused(text: str) -> None:
    with pytest.raises(UnknownKey) as raised:
        verify_signature(parse_jwt(text), KEYS)
    assert str(raised.value) == ("failed to verify signature: failed to verify id token signature")


def test_signature_of_a_small_or_broken_key_is_refused() -> None:
    small = new_key(1024)
    broken = [public(small), public(KEY).__class__(kid="one", n="AQ", e="AA")]
    with pytest.raises(UnknownKey):
        verify_signature(parse_jwt(signed(claims(), small)), broken)


def test_a_key_whose_check_takes_long_signs_nothing() -> None:
    numbers = KEY.public_key().public_numbers()
    slow = RSAPublicNumbers(numbers.n - 2, numbers.n).public_key()
    pem = slow.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    assert read_public_pem(pem) is None
    exponent = encoded((2**31 + 1).to_bytes(4))
    key = msgspec.structs.replace(public(KEY), e=exponent)
    assert jwt_verification._public(key.n, key.e) is None


def test_noncanonical_signature_encoding_is_refused() -> None:
    good = signed(claims())
    last = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    accepted = [char for char in last if _is_accepted(good[:-1] + char)]
    assert accepted == [good[-1]]


def test_no_modified_token_is_accepted() -> None:
    good = signed(claims())
    chance = random.Random(7)  # the same changes each time
    changed = {_changed(good, chance) for _ in range(2000)} - {good}
    assert [text for text in changed if _is_accepted(text)] == []


def _is_accepted(text: str) -> bool:
    try:
        accept(text)
    except Refused:
        return False
    return True


def _changed(text: str, rng: random.Random) -> str:
    at = rng.randrange(len(text))
    kind = rng.randrange(4)
    if kind == 0:
        return text[:at] + chr(rng.randrange(33, 127)) + text[at + 1 :]
    if kind == 1:
        return text[:at] + text[at + 1 :]
    if kind == 2:
        return text[:at] + chr(rng.randrange(0x20, 0x3000)) + text[at:]
    head, _, signature = text.split(".")
    other = json.dumps({**claims(), "oid": str(rng.random())}).encode()
    return f"{head}.{encoded(other)}.{signature}"


@pytest.mark.parametrize(
    "changes",
    [{"iat": "1795000000"}, {"sub": 5}, {"exp": 2**53 + 1}, {"exp": 1e300}, {"exp": 2**63}],
)
def test_ambiguous_claim_is_refused(changes: dict[str, Any]) -> None:
    accept(signed(claims()))
    with pytest.raises(Refused):
        accept(signed(claims(**changes)))


# ---- auth methods of the jobs API ---------------------------------------------------------------

AT = NOW // SECOND


def check(payload: dict[str, Any], leeways: TimeLeeways = TimeLeeways()) -> None:  # noqa: B008  # frozen
    """Check a token of a method that binds an issuer and an audience."""
    check_bound(
        parse_jwt(signed(payload)),
        issuers=["https://other.example/", ISSUER],
        audiences=[AUDIENCE, "b"],
        now=NOW,
        leeways=leeways,
    )


@pytest.mark.parametrize(
    "payload",
    [
        claims(),
        claims(aud=["c", "b"]),
        claims(exp=AT - 60),  # within the clock skew
        claims(nbf=AT + 60),
        claims(exp=None, nbf=None, iat=AT - 200),  # expires 150 s after `iat`, plus the skew
        claims(exp=AT + 200, nbf=None),  # valid from 150 s before `exp`, less the skew
    ],
)
def test_token_within_its_bindings_is_accepted(payload: dict[str, Any]) -> None:
    check(payload)


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (claims(iss="https://evil.example/"), "invalid JWT issuer: https://evil.example/"),
        (claims(aud="c"), "invalid audience"),
        (claims(aud=None), "invalid audience"),
        (claims(exp=AT - 61), "token is expired"),
        (claims(nbf=AT + 61), "token not valid yet"),
        (claims(iat=AT + 61), "token issued in the future"),
        (claims(exp=None, nbf=None), "no issued at"),
        (claims(exp=None, nbf=None, iat=AT - 211), "token is expired"),
        (claims(exp=AT + 211, nbf=None), "token not valid yet"),
        (claims(exp=2**60), "out of range"),
        (claims(exp=-5), "out of range"),
    ],
)
def test_token_outside_its_bindings_is_refused(payload: dict[str, Any], text: str) -> None:
    with pytest.raises(Refused, match=text):
        check(payload)


def test_leeways_of_the_method_are_used() -> None:
    with pytest.raises(Refused, match="token is expired"):
        check(claims(exp=AT - 1), TimeLeeways(skew=0))


def test_all_claims_are_read() -> None:
    assert all_claims(parse_jwt(signed({"a": [1, {"b": None}]}))) == {"a": [1, {"b": None}]}
    with pytest.raises(Refused, match="claims cannot be read"):
        all_claims(parse_jwt(signed(b"[1]")))
    slow = b'{"a":[' + b"1.5e300," * 5000 + b"1]}"  # a single call would hold the GIL for 50 ms
    with pytest.raises(Refused, match="the body has more than 200 numbers with"):
        all_claims(parse_jwt(signed(slow)))


def test_a_public_key_is_read_from_pem() -> None:
    pem = KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    key = read_public_pem(pem)
    assert key is not None
    verify_signature(parse_jwt(signed(claims(), header={"kid": ""})), [key])


def test_unsafe_rsa_key_is_refused() -> None:
    weak = new_key(1024).public_key()
    curve = generate_private_key(SECP256R1()).public_key()
    forms = [
        key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
        for key in (weak, curve)
    ]
    assert [read_public_pem(pem) for pem in (*forms, "", "-----BEGIN", "no key")] == [None] * 5
