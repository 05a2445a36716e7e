"""New and changed tokens: the policies and secrets that a request may choose."""

import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import msgspec
import pytest

from daemon.acl.check import Caller
from daemon.acl.grant import CapabilitySet
from daemon.acl.nomad_tokens import (
    TokenRequest,
    apply_token_update,
    is_upload,
    new_token,
    token_digest,
)
from daemon.acl.seal import EnvelopeCipher
from daemon.acl.task_tokens import TaskTokens
from daemon.acl.token_requests import TokenRequestFields, create_token
from daemon.acl.tokens import open_tokens
from daemon.text.request_fields import RequestFields
from storage.errors import Malformed, Refused
from storage.queries import policies
from storage.queries import tokens as rows
from storage.records.acl import JobACL, Policy, Token, TokenRole
from storage.records.base import HOUR, MINUTE, SECOND
from storage.records.task import SecretsConfig
from storage.records.workload import Workload
from storage.store import Store
from tests.samples import NOW

MAKER = Caller(Token(accessor="m", policies=("root",), created_at=NOW), CapabilitySet(()))
WORKLOAD = Workload(
    iss="steward",
    sub="sub",
    aud=[],
    iat=0,
    nbf=0,
    jti="1",
    nomad_namespace="default",
    nomad_job_id="web",
    nomad_allocation_id="alloc",
    nomad_group="g",
    nomad_task="t",
)
UUID_A, UUID_B = (f"{letter * 8}-0000-4000-8000-000000000000" for letter in "ab")


class Clock:
    def __init__(self) -> None:
        self.time = NOW

    def now(self) -> int:
        return self.time


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def task_tokens(store: Store, clock: Clock) -> AsyncIterator[TaskTokens]:
    async with open_tokens(store, clock, EnvelopeCipher({1: bytes(32)}), asks=True) as opened:
        yield TaskTokens(store, opened, clock)


def created(
    store: Store, role: TokenRole | None = None, maker: Caller = MAKER, **fields: object
) -> Token:
    token_request = TokenRequestFields(
        maker=maker,
        fields=RequestFields(fields),
        path="auth/token/create",
        has_sudo=role is None,
        **({"role": role} if role else {}),
    )
    made = store.read(lambda db: create_token(db, token_request, accessor="new", now=NOW))
    return made.token


# ---- policies and secrets of child tokens -------------------------------------------------------


@pytest.mark.parametrize("names", [["reader"], ["team-a"], ["default"], ["reader", "default"]])
async def test_role_allows_its_policies_and_the_default_one(store: Store, names: list[str]) -> None:
    role = TokenRole(name="r", allowed_policies=("reader",), allowed_policies_glob=("team-*",))
    assert set(created(store, role, policies=names).policies) == {*names, "default"}


@pytest.mark.parametrize("name", ["writer", "readers", "tea"])
async def test_role_refuses_other_policies_by_name(store: Store, name: str) -> None:
    role = TokenRole(name="r", allowed_policies=("reader",), allowed_policies_glob=("team-*",))
    with pytest.raises(Malformed) as caught:
        created(store, role, policies=[name])
    named, allowed, patterns = re.findall(r"\(\[(.*?)\]\)", str(caught.value))
    assert named.split() == sorted(['"default"', f'"{name}"'])
    assert (allowed, patterns) == ('"default" "reader"', '"team-*"')


async def test_role_without_policies_gives_no_more_than_the_parent_has(store: Store) -> None:
    role = TokenRole(name="r", orphan=True)
    parent = Caller(Token(accessor="m", policies=("reader",), created_at=NOW), CapabilitySet(()))
    assert created(store, role, parent, policies=["reader"]).policies == ("reader",)
    with pytest.raises(Malformed, match="child policies must be subset of parent"):
        created(store, role, parent, policies=["writer"])


@pytest.mark.parametrize("secret", ["s.abc", "a.b"])
async def test_chosen_secret_must_not_resemble_a_generated_secret(
    store: Store, secret: str
) -> None:
    with pytest.raises(Malformed, match="custom token ID"):
        created(store, id=secret)


# ---- tokens of the jobs API ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"type": "other"}, "type"),
        ({"type": "client", "policies": None}, "polic"),
        ({"type": "client", "policies": ["a"], "name": "x" * 257}, "name"),
        ({"type": "client", "policies": ["a"], "global_": True}, "toggle global"),
        ({"type": "client", "policies": ["a"], "expiration_ttl": "1h"}, "expiration time"),
    ],
)
async def test_changed_token_must_meet_the_rules_of_a_new_token(
    store: Store, change: dict[str, object], problem: str
) -> None:
    token = Token(accessor=UUID_A, policies=("a",), created_at=NOW)
    await store.write(lambda tx: rows.add(tx, token, b"secret"))
    request = TokenRequest(accessor_id=UUID_A, **change)
    with pytest.raises(Malformed, match=problem):
        store.read(lambda db: apply_token_update(db, request, NOW))


async def test_change_without_an_expiry_keeps_all_other_fields(store: Store) -> None:
    token = Token(accessor=UUID_A, policies=("a",), created_at=NOW)
    await store.write(lambda tx: rows.add(tx, token, b"secret"))
    request = TokenRequest(accessor_id=UUID_A, type="client", policies=["b"], name="n")
    changed = store.read(lambda db: apply_token_update(db, request, NOW))
    assert (changed.policies, changed.name, changed.created_at) == (("b",), "n", NOW)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"type": "other", "policies": ["a"]}, "type must be client or management"),
        ({"type": "client"}, "missing policies or roles"),
        ({"type": "management", "policies": ["a"]}, "cannot be associated"),
        (
            {"type": "client", "policies": ["a"], "expiration_ttl": -1_000_000_000},
            "not be negative",
        ),
        ({"type": "client", "policies": ["a"], "expiration_ttl": "59s"}, "less than 1m0s"),
        ({"type": "client", "policies": ["a"], "expiration_ttl": "25h"}, "more than 24h0m0s"),
    ],
)
async def test_new_token_that_breaks_a_rule_is_refused(
    store: Store, fields: dict[str, object], problem: str
) -> None:
    request = TokenRequest(**fields)
    with pytest.raises(Malformed, match=problem):
        store.read(lambda db: new_token(db, request, accessor=UUID_A, now=NOW))


async def test_expiry_of_a_token_is_counted_from_now(store: Store) -> None:
    request = TokenRequest(type="client", policies=["a"], expiration_ttl="1m")
    made = store.read(lambda db: new_token(db, request, accessor=UUID_A, now=NOW))
    assert (made.ttl, made.expires_at) == (60 * SECOND, NOW + 60 * SECOND)


@pytest.mark.parametrize(
    ("accessor", "secret", "expected"),
    [(UUID_A, UUID_B, True), (UUID_A, "", False), ("", UUID_B, False), ("x", UUID_B, False)],
)
async def test_upload_names_accessor_and_secret(
    store: Store, accessor: str, secret: str, expected: bool
) -> None:
    request = TokenRequest(accessor_id=accessor, secret_id=secret, type="client")
    assert store.read(lambda db: is_upload(db, request)) is expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"accessor_id": UUID_A, "secret_id": UUID_B, "type": "management"}, False),
        ({"accessor_id": UUID_B, "secret_id": UUID_A, "type": "client"}, False),
    ],
)
async def test_upload_is_a_client_token_with_a_new_accessor(
    store: Store, fields: dict[str, str], expected: bool
) -> None:
    await store.write(lambda tx: rows.add(tx, Token(accessor=UUID_B, created_at=NOW), b"secret"))
    assert store.read(lambda db: is_upload(db, TokenRequest(**fields))) is expected


async def test_management_token_has_the_root_policy_only(store: Store) -> None:
    request = TokenRequest(type="management", global_=True)
    made = store.read(lambda db: new_token(db, request, accessor=UUID_A, now=NOW))
    assert (made.policies, made.is_global) == (("root",), True)
    assert (made.ttl, made.expires_at) == (0, None)


@pytest.mark.parametrize(
    ("span", "problems"),
    [
        (MINUTE, []),
        (24 * HOUR, []),
        (MINUTE - 1, ["less than 1m0s"]),
        (24 * HOUR + 1, ["more than 24h0m0s"]),
        (-1, ["not be negative", "before create time", "less than 1m0s"]),
    ],
)
async def test_life_of_a_token_is_a_minute_to_a_day(
    store: Store, span: int, problems: list[str]
) -> None:
    request = TokenRequest(type="client", policies=["a"], expiration_ttl=span)
    if not problems:
        made = store.read(lambda db: new_token(db, request, accessor=UUID_A, now=NOW))
        assert made.expires_at == NOW + span
        return
    with pytest.raises(Malformed) as caught:
        store.read(lambda db: new_token(db, request, accessor=UUID_A, now=NOW))
    found = [line for line in str(caught.value).splitlines() if "* " in line]
    assert all(problem in line for problem, line in zip(problems, found, strict=True))


async def test_expiry_of_a_token_can_be_a_time(store: Store) -> None:
    time = datetime.fromtimestamp((NOW + HOUR) // SECOND, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    request = TokenRequest(type="client", policies=["a"], expiration_time=time)
    made = store.read(lambda db: new_token(db, request, accessor=UUID_A, now=NOW))
    assert made.expires_at == (NOW + HOUR) // SECOND * SECOND


@pytest.mark.parametrize("span", ["soon", 1.5, True, [], {"a": "b"}])
async def test_unreadable_life_gives_no_token(store: Store, span: object) -> None:
    request = TokenRequest(type="client", policies=["a"], expiration_ttl=span)
    with pytest.raises(Malformed, match="ExpirationTTL or ExpirationTime cannot be read"):
        store.read(lambda db: new_token(db, request, accessor=UUID_A, now=NOW))


@pytest.mark.parametrize("ended_at", [NOW - 1, NOW])
async def test_expired_token_cannot_be_changed(store: Store, ended_at: int) -> None:
    token = Token(accessor=UUID_A, policies=("a",), created_at=0, expires_at=ended_at)
    await store.write(lambda tx: rows.add(tx, token, b"secret"))
    request = TokenRequest(accessor_id=UUID_A, type="client", policies=["b"])
    with pytest.raises(Malformed, match=f"cannot find token {UUID_A}"):
        store.read(lambda db: apply_token_update(db, request, NOW))


def test_digest_changes_with_each_writable_field() -> None:
    base = Token(accessor="a", name="n", policies=("p",), created_at=NOW, create_index=1)
    changes = ({"name": "m"}, {"policies": ("q",)}, {"is_global": True}, {"roles": ("r",)})
    digests = {token_digest(msgspec.structs.replace(base, **change)) for change in ({}, *changes)}
    assert len(digests) == len(changes) + 1
    assert token_digest(msgspec.structs.replace(base, accessor="b")) == token_digest(base)
    management = msgspec.structs.replace(base, policies=("root",))
    assert token_digest(management) not in digests
    assert token_digest(msgspec.structs.replace(management, policies=("root", "p"))) == (
        token_digest(management)
    )


def test_built_in_token_has_no_digest() -> None:
    assert token_digest(Token(accessor="a", created_at=NOW)) is None


# ---- tokens of tasks ----------------------------------------------------------------------------


async def with_role(store: Store, **fields: object) -> SecretsConfig:
    role = TokenRole(name="web", **fields)
    await store.write(lambda tx: rows.put_role(tx, role))
    return SecretsConfig(role="web")


async def test_task_token_has_the_policies_of_its_role(
    store: Store, task_tokens: TaskTokens
) -> None:
    block = await with_role(store, allowed_policies=("reader",))
    made = await task_tokens.make(WORKLOAD, block)
    found = store.read(lambda db: rows.find(db, made.accessor))
    assert found is not None
    assert set(found.policies) == {"reader", "default"}
    assert found.allocation == "alloc"
    assert made.ttl == found.ttl > 0


async def test_role_without_policies_gives_a_task_no_token(
    store: Store, task_tokens: TaskTokens
) -> None:
    block = await with_role(store, disallowed_policies=("x",))
    with pytest.raises(Refused, match="has no allowed_policies"):
        await task_tokens.make(WORKLOAD, block)


async def test_no_role_gives_a_task_the_root_policy(store: Store, task_tokens: TaskTokens) -> None:
    block = await with_role(store, allowed_policies=("root",))
    with pytest.raises(Refused):
        await task_tokens.make(WORKLOAD, block)
    assert store.read(lambda db: db.all("SELECT 1 FROM tokens WHERE document LIKE '%root%'")) == []


@pytest.mark.parametrize(("period", "ttl"), [(0, 3600), (600, 600)])
async def test_task_token_has_the_period_of_its_role(
    store: Store, task_tokens: TaskTokens, period: int, ttl: int
) -> None:
    block = await with_role(store, allowed_policies=("reader",), token_period=period)
    made = await task_tokens.make(WORKLOAD, block)
    assert (made.expires_at - made.renewed_at) // 10**9 == ttl


async def test_task_token_secret_is_checked_against_its_accessor(
    store: Store, task_tokens: TaskTokens
) -> None:
    made = await task_tokens.make(WORKLOAD, SecretsConfig())
    assert task_tokens.is_secret(made.accessor, made.secret)
    assert not task_tokens.is_secret(made.accessor, "other")
    assert not task_tokens.is_secret("other", made.secret)


async def test_task_token_is_renewed_until_it_expires(
    task_tokens: TaskTokens, clock: Clock
) -> None:
    made = await task_tokens.make(WORKLOAD, SecretsConfig())
    assert (made.ttl, made.renewed_at) == (3600 * SECOND, NOW)
    clock.time += 60 * SECOND
    renewed = await task_tokens.renew(made.accessor)
    assert (renewed.renewed_at, renewed.expires_at) == (clock.time, made.expires_at + MINUTE)
    assert task_tokens.find(made.accessor) == renewed
    clock.time = renewed.expires_at
    assert task_tokens.find(made.accessor) is None
    with pytest.raises(Refused, match="has expired or was revoked"):
        await task_tokens.renew(made.accessor)


async def test_ended_task_token_is_neither_found_nor_renewed(task_tokens: TaskTokens) -> None:
    made = await task_tokens.make(WORKLOAD, SecretsConfig())
    await task_tokens.end(made.accessor)
    assert task_tokens.find(made.accessor) is None
    with pytest.raises(Refused, match="has expired or was revoked"):
        await task_tokens.renew(made.accessor)


async def test_task_token_has_the_policies_of_its_job_and_names_its_task(
    store: Store, task_tokens: TaskTokens
) -> None:
    attached = Policy(name="attached", job_acl=JobACL(namespace="default", job_id="web"))
    await store.write(lambda tx: policies.put(tx, attached))
    made = await task_tokens.make(WORKLOAD, SecretsConfig(policies=["Reader"]))
    found = store.read(lambda db: rows.find(db, made.accessor))
    assert found is not None
    assert set(found.policies) == {"reader", "default", "attached"}
    assert (found.parent, found.path, found.renewable) == ("", "auth/token/create", True)
    assert found.meta == {
        "namespace": "default",
        "job": "web",
        "allocation": "alloc",
        "task": "t",
    }
    assert found.name == "token-web-t"
