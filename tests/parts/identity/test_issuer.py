"""Steward's signatures: other services can verify them, and successive keys overlap."""

import base64
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from daemon.acl.seal import EnvelopeCipher
from daemon.identity import jwt_signing, keypair
from daemon.identity.issuer import (
    LONGEST_TTL,
    PUBLISHED_BEFORE,
    ROTATION,
    Issuer,
    expired_keys,
    open_issuer,
    rotation_due,
    signer,
)
from daemon.identity.jwt_signing import InvalidToken
from storage.errors import Refused, UnknownToken, Unsealable
from storage.queries import allocations, jobs, signing
from storage.records.base import SECOND
from storage.records.signing import PublicKey, SigningKey
from storage.records.workload import AUDIENCE
from storage.store import Store
from storage.writer import Transaction
from tests.fakes.fakecloud import SigningKey as ForgersKey
from tests.fakes.fakecloud import sign_jwt, verify_jwt_signature
from tests.samples import NOW, job
from tests.unit.identity.tokens import encoded
from tests.unit.runner.placements import placed

SEAL = EnvelopeCipher({1: bytes(32)})


class Clock:
    def __init__(self) -> None:
        self.time = NOW

    def now(self) -> int:
        return self.time


def numbers() -> Iterator[str]:
    yield from (f"key-{number}" for number in range(1, 100))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def issuer(store: Store, clock: Clock) -> Issuer:
    made = Issuer(store, SEAL, clock, numbers())
    await made.rotate_keys()
    return made


def key_ids(issuer: Issuer) -> list[str]:
    return [key.kid for key in issuer.published()]


def signed_with(token: str) -> str:
    return str(part_of(token, 0)["kid"])


def part_of(token: str, number: int) -> dict[str, Any]:
    """Return the header (0) or the claims (1) of a token."""
    return dict(msgspec.json.decode(base64.urlsafe_b64decode(token.split(".")[number] + "==")))


# ---- signatures ---------------------------------------------------------------------------------


async def test_third_party_can_verify_a_signed_token(issuer: Issuer) -> None:
    token = issuer.sign({"sub": "me", "aud": "them"})
    published = msgspec.to_builtins(issuer.published()[0])
    assert verify_jwt_signature(token, published)
    assert part_of(token, 0) == {"alg": "RS256", "kid": "key-1", "typ": "JWT"}
    assert part_of(token, 1) == {"sub": "me", "aud": "them"}


async def test_own_token_is_verified(issuer: Issuer) -> None:
    token = issuer.sign({"sub": "me", "aud": ["us"], "exp": NOW // SECOND + 60})
    assert issuer.verify(token, "us")["sub"] == "me"


def forged(token: str) -> str:
    head, _, signature = token.split(".")
    other = encoded(msgspec.json.encode({**part_of(token, 1), "sub": "root"}))
    return f"{head}.{other}.{signature}"


def unsigned(token: str) -> str:
    return sign_jwt({"kid": "key-1"}, part_of(token, 1), ForgersKey.new(), "none")


def signed_with_the_public_key(token: str) -> str:
    return sign_jwt({"kid": "key-1"}, part_of(token, 1), ForgersKey.new(), "HS256")


@pytest.mark.parametrize(
    "change", [forged, unsigned, signed_with_the_public_key, lambda token: "x"]
)
async def test_token_signed_by_others_is_refused(issuer: Issuer, change: object) -> None:
    token = issuer.sign({"sub": "me", "aud": "us"})
    with pytest.raises(InvalidToken):
        issuer.verify(change(token), "us")


@pytest.mark.parametrize(
    "claims",
    [
        {"aud": "them"},
        {},
        {"aud": "us", "exp": NOW // SECOND},
        {"aud": "us", "nbf": NOW // SECOND + 1},
        {"aud": "us", "nbf": "soon"},
    ],
)
async def test_own_token_with_another_audience_or_time_is_refused(
    issuer: Issuer, claims: dict[str, object]
) -> None:
    with pytest.raises(InvalidToken):
        issuer.verify(issuer.sign(claims), "us")


async def test_reason_for_a_refused_token_does_not_name_another_issuer(issuer: Issuer) -> None:
    with pytest.raises(InvalidToken) as raised:
        issuer.verify("x", "us")
    assert str(raised.value) == "go-jose/go-jose: compact JWS format must have three parts"


async def test_service_token_is_no_workload_token(issuer: Issuer) -> None:
    times = {"iat": NOW // SECOND, "nbf": NOW // SECOND, "jti": "1", "iss": "http://issuer"}
    names = ("nomad_namespace", "nomad_job_id", "nomad_allocation_id", "nomad_group")
    every = {**dict.fromkeys(names, "x"), **times, "sub": "s", "aud": [AUDIENCE]}
    assert issuer.workload(issuer.sign({**every, "nomad_task": "main"})).nomad_task == "main"
    with pytest.raises(UnknownToken) as caught:
        issuer.workload(issuer.sign({**every, "nomad_service": "web"}))
    assert "it belongs to a service, not to a task" in caught.value.reason


async def test_a_token_of_another_installation_is_refused(
    issuer: Issuer, store: Store, clock: Clock
) -> None:
    token = jwt_signing.sign({"aud": "us"}, "key-1", keypair.generate())
    with pytest.raises(InvalidToken):
        issuer.verify(token, "us")


async def test_private_keys_are_encrypted_and_survive_a_restart(
    issuer: Issuer, store: Store, clock: Clock
) -> None:
    again = Issuer(store, SEAL, clock, numbers())
    assert issuer.verify(again.sign({"aud": "us"}), "us") == {"aud": "us"}
    with pytest.raises(Unsealable):
        Issuer(store, EnvelopeCipher({1: b"x" * 32}), clock, numbers()).sign({})


# ---- rotation ----------------------------------------------------------------------------------


async def test_new_key_is_published_before_its_first_signature(
    issuer: Issuer, clock: Clock
) -> None:
    clock.time += ROTATION - PUBLISHED_BEFORE
    await issuer.rotate_keys()
    assert key_ids(issuer) == ["key-1", "key-2"]
    assert signed_with(issuer.sign({})) == "key-1"
    clock.time += PUBLISHED_BEFORE
    assert signed_with(issuer.sign({})) == "key-2"


async def test_signature_of_an_old_key_is_verified_while_the_token_is_valid(
    issuer: Issuer, clock: Clock
) -> None:
    token = issuer.sign({"aud": "us"})
    await issuer.rotate(signs_from=clock.now())
    clock.time += LONGEST_TTL - 1
    await issuer.rotate_keys()
    assert "key-1" in key_ids(issuer)
    assert issuer.verify(token, "us")
    clock.time += 1
    await issuer.rotate_keys()
    assert "key-1" not in key_ids(issuer)
    with pytest.raises(InvalidToken):
        issuer.verify(token, "us")


async def test_key_created_on_request_signs_immediately(issuer: Issuer, clock: Clock) -> None:
    clock.time += 1
    await issuer.rotate(signs_from=clock.now())
    assert signed_with(issuer.sign({})) == "key-2"


async def test_named_key_signs_regardless_of_the_current_key(issuer: Issuer, clock: Clock) -> None:
    await issuer.rotate(signs_from=clock.now())
    assert signed_with(issuer.sign({}, "key-1")) == "key-1"


async def test_no_key_is_rotated_before_the_due_time(issuer: Issuer, clock: Clock) -> None:
    clock.time += ROTATION - PUBLISHED_BEFORE - 1
    await issuer.rotate_keys()
    assert key_ids(issuer) == ["key-1"]


def key(name: str, signs_from: int) -> SigningKey:
    public = PublicKey(kid=name, n="", e="")
    return SigningKey(public=public, created_at=signs_from, signs_from=signs_from)


def test_newest_active_key_signs() -> None:
    keys = [key("a", 1), key("b", 5), key("c", 9)]
    assert [signer(keys, now).id for now in (1, 4, 5, 8, 9)] == ["a", "a", "b", "b", "c"]


def test_oldest_key_signs_after_the_clock_was_set_back() -> None:
    assert signer([key("a", 5), key("b", 9)], 1).id == "a"


def test_missing_key_is_due_for_rotation() -> None:
    assert rotation_due([], NOW)


def test_key_used_by_a_running_allocation_does_not_expire() -> None:
    keys = [key("a", 0), key("b", 1), key("c", 2)]
    assert [expired_key.id for expired_key in expired_keys(keys, 2 + LONGEST_TTL, {"a"})] == ["b"]


async def test_keys_of_running_allocations_are_found(store: Store) -> None:
    plain = placed(job(), "n", "a1")
    placement = msgspec.structs.replace(plain.placement, signing_key_id="key-7")
    live = msgspec.structs.replace(plain, placement=placement)

    def write(tx: Transaction) -> None:
        jobs.append_version(tx, job())
        allocations.add(tx, live, NOW)

    await store.write(write)
    assert store.read(signing.of_live_allocations) == {"key-7"}


async def test_new_store_gets_its_first_key_during_the_start(store: Store, clock: Clock) -> None:
    async with open_issuer(store, SEAL, clock, numbers()) as issuer:
        await issuer.has_key()
        assert key_ids(issuer) == ["key-1"]


async def test_key_can_be_deleted_only_when_unused(issuer: Issuer, clock: Clock) -> None:
    first = issuer.active.id
    with pytest.raises(Refused, match="active root key cannot be deleted"):
        await issuer.remove(first, force=True)
    clock.time += SECOND
    second = (await issuer.rotate(signs_from=clock.now())).id
    with pytest.raises(Refused, match="root key in use, cannot delete"):
        await issuer.remove(first, force=False)
    with pytest.raises(Refused, match="root key not found"):
        await issuer.remove("key-99", force=True)
    coming = (await issuer.rotate()).id
    await issuer.remove(coming, force=False)  # this key has signed no token
    await issuer.remove(first, force=True)
    assert key_ids(issuer) == [second]
    clock.time += LONGEST_TTL + SECOND
    third = (await issuer.rotate(signs_from=clock.now())).id
    clock.time += LONGEST_TTL
    await issuer.remove(second, force=False)
    assert key_ids(issuer) == [third]
