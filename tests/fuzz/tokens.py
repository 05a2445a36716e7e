"""Login tokens: signed ones and forged ones."""

import hashlib
import hmac
import json
import random
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

from tests.fuzz.texts import ODD, changed
from tests.unit.identity.tokens import AUDIENCE, ISSUER, KEY, NOW, claims, encoded, public, signed

KEYS = [public(KEY)]
SECRETS = (KEYS[0].n.encode(), KEYS[0].e.encode(), b"", b"one")  # a public key is not a secret
_VALUES: tuple[Any, ...] = (
    *(None, True, 0, -1, 1.5, 1e308, 2**63, 2**70, "", "x", "\x00", [], {}, [None], [[]]),
    *([AUDIENCE, 1], {"a": {}}, "9" * 400, ISSUER, AUDIENCE, ISSUER.upper(), [AUDIENCE], NOW),
)
_CLAIMS = ("iss", "aud", "exp", "nbf", "iat", "oid", "appid", "groups", "xms_mirid", "hasgroups")
_CLAIMS = (*_CLAIMS, "xms_az_rid", "_claim_names", "sub", "tid")
_HEADERS: tuple[Mapping[str, Any], ...] = (
    *({"alg": "none"}, {"alg": "HS256"}, {"alg": "RS512"}, {"alg": "rs256"}, {"alg": ["RS256"]}),
    *({"alg": 1}, {"kid": ""}, {"kid": "two"}, {"kid": 1}, {"kid": None}, {"kid": "one\x00"}),
    *({"crit": ["exp"]}, {"crit": []}, {"jku": ISSUER}, {"b64": False}, {"typ": "JWE"}),
    *({"jwk": {"kty": "RSA", "n": KEYS[0].n, "e": "AQAB"}}, {"x5c": ["x"]}, {"zip": "DEF"}),
)
_RAW = (b"", b"null", b"[]", b"{", b'{"iss":1e999}', b'{"exp":1e999}', b"\xff", b"[" * 5000)


@cache
def genuine() -> frozenset[str]:
    """Return correctly signed tokens: valid ones, and a token with each odd claim."""
    chance = random.Random(1)
    payloads: list[Any] = [claims(), claims(aud=["other", AUDIENCE]), *_RAW]
    for _ in range(300):
        names = chance.choices(_CLAIMS, k=chance.randint(1, 3))
        payloads.append({**claims(), **{name: chance.choice(_VALUES) for name in names}})
    headed = [signed(claims(), header=dict(header)) for header in _HEADERS]
    return frozenset([*map(signed, payloads), *headed])


def tokens(seed: int, count: int) -> Iterator[str]:
    """Yield `count` tokens for the parsers, each made from a genuine token."""
    chance, pool = random.Random(seed), sorted(genuine())
    for _ in range(count):
        forge = chance.choice(_FORGERIES)
        yield forge(chance.choice(pool), chance)


def _bits(token: str, rng: random.Random) -> str:
    at = rng.randrange(len(token))
    return token[:at] + rng.choice("Ab9-_=.+/ é") + token[at + 1 :]


def _parts(token: str, rng: random.Random) -> str:
    """Return a token with one part replaced by an odd text or by another part of the token."""
    parts = token.split(".")
    others = (*ODD, encoded(rng.choice(_RAW)), encoded(rng.randbytes(256)), *parts)
    parts[rng.randrange(len(parts))] = rng.choice(others)
    return ".".join(parts[: rng.choice((3, 3, 3, 2))] + [""] * rng.choice((0, 0, 0, 1)))


def _claims(token: str, rng: random.Random) -> str:
    """Return a token with other claims under its old signature."""
    head, _, signature = token.split(".")
    said = {**claims(), rng.choice(_CLAIMS): rng.choice(_VALUES)}
    return f"{head}.{encoded(json.dumps(said).encode())}.{signature}"


def _by_secret(_: str, rng: random.Random) -> str:
    """Return a token signed with a public secret."""
    head = {**rng.choice(_HEADERS), "alg": rng.choice(("HS256", "none", "RS256"))}
    text = f"{encoded(json.dumps(head).encode())}.{encoded(json.dumps(claims()).encode())}"
    secret = rng.choice(SECRETS)
    return f"{text}.{encoded(hmac.new(secret, text.encode(), hashlib.sha256).digest())}"


_FORGERIES: tuple[Callable[[str, random.Random], str], ...] = (
    *(lambda token, _: token, lambda token, _: f" {token}\n", _bits, _bits, _parts, _parts),
    *(changed, _claims, _by_secret),
)
