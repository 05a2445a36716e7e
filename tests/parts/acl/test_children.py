"""Tokens created with tokens: they never exceed their creator, unless it has `sudo`."""

from collections.abc import Mapping

import msgspec
import pytest

from daemon.acl.check import Caller
from daemon.acl.grant import CapabilitySet
from daemon.acl.token_requests import (
    NewToken,
    RenewalLimits,
    TokenRequestFields,
    create_token,
    renew_token,
    renewal_limits,
)
from daemon.text.request_fields import RequestFields
from storage.errors import Malformed, Refused
from storage.records.acl import Token, TokenKind, TokenRole
from storage.records.base import SECOND
from storage.store import Store
from tests.samples import NOW

MAKER = Token(accessor="maker", policies=("a", "b", "default"), entity_id="e", created_at=NOW)
ROOT = Token(accessor="root", policies=("root",), created_at=NOW)


def made(
    store: Store,
    fields: Mapping[str, object],
    maker: Token = MAKER,
    role: TokenRole | None = None,
    *,
    has_sudo: bool = False,
) -> NewToken:
    token_request = TokenRequestFields(
        maker=Caller(maker, CapabilitySet(())),
        fields=RequestFields(fields),
        role=role or TokenRole(name=""),
        path="auth/token/create",
        has_sudo=has_sudo,
    )
    return store.read(lambda db: create_token(db, token_request, accessor="new", now=NOW))


async def test_token_has_the_policies_of_its_parent_unless_fewer_are_named(store: Store) -> None:
    assert made(store, {}).token.policies == ("a", "b", "default")
    assert made(store, {"policies": ["B"]}).token.policies == ("b", "default")
    assert made(store, {"policies": "b", "no_default_policy": True}).token.policies == ("b",)
    assert made(store, {"no_default_policy": True}).token.policies == ("a", "b")


async def test_durations_of_a_token_are_stored_in_nanoseconds(store: Store) -> None:
    fields = {"ttl": "10m", "explicit_max_ttl": "1h"}
    token = made(store, fields).token
    assert (token.ttl, token.expires_at) == (600 * SECOND, NOW + 600 * SECOND)
    assert (token.explicit_max_ttl, token.period) == (3600 * SECOND, 0)
    periodic = made(store, {"period": "90s"}, ROOT, has_sudo=True).token
    assert (periodic.ttl, periodic.period) == (90 * SECOND, 90 * SECOND)


async def test_token_created_with_a_task_token_ends_with_the_allocation(store: Store) -> None:
    maker = msgspec.structs.replace(MAKER, allocation="alloc")
    assert made(store, {}, maker).token.allocation == "alloc"
    assert made(store, {"type": "batch"}, maker).token.allocation == "alloc"
    assert made(store, {"no_parent": True}, maker, has_sudo=True).token.allocation == ""


async def test_token_created_by_a_token_belongs_to_the_same_entity(store: Store) -> None:
    assert made(store, {}).token.person == MAKER.person == "e"
    nobody = msgspec.structs.replace(MAKER, entity_id="")
    child = made(store, {}, nobody).token
    assert made(store, {}, child).token.person == child.person == "maker"
    assert made(store, {"type": "batch"}, nobody).token.person == "maker"
    of_login = msgspec.structs.replace(nobody, subject="https://ci.example ann")
    assert made(store, {}, of_login).token.person == "https://ci.example ann"
    assert made(store, {"meta": {"subject": "bob"}}, of_login).token.person == of_login.person
    assert made(store, {"no_parent": True}, of_login, has_sudo=True).token.person == "new"


async def test_token_ends_with_its_parent_token(store: Store) -> None:
    token = made(store, {}).token
    assert (token.parent, token.entity_id) == ("maker", "e")
    orphan = made(store, {"no_parent": True}, has_sudo=True).token
    assert (orphan.parent, orphan.entity_id) == ("", "")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"policies": ["c"]}, "child policies must be subset of parent"),
        ({"policies": ["root"]}, "child policies must be subset of parent"),
        ({"no_parent": True}, "root or sudo privileges required to create orphan token"),
        ({"period": "1h"}, "root or sudo privileges required to create periodic token"),
        ({"id": "mine"}, "root or sudo privileges required to specify token id"),
        ({"num_uses": -1}, "number of uses cannot be negative"),
        ({"type": "odd"}, "invalid 'token_type' value"),
        ({"ttl": "abc"}, 'time: invalid duration "abc"'),
    ],
)
async def test_token_does_not_exceed_its_parent(
    store: Store, fields: Mapping[str, object], message: str
) -> None:
    with pytest.raises(Malformed) as caught:
        made(store, fields)
    assert str(caught.value) == message


async def test_sudo_does_not_permit_root_tokens(store: Store) -> None:
    assert made(store, {"policies": ["c"]}, has_sudo=True).token.policies == ("c", "default")
    with pytest.raises(Malformed, match="root tokens may not be created"):
        made(store, {"policies": ["root"]}, has_sudo=True)
    assert made(store, {"policies": ["root", "c"]}, ROOT, has_sudo=True).token.policies == ("root",)


async def test_expiring_root_token_creates_no_permanent_token(store: Store) -> None:
    ending = Token(accessor="r", policies=("root",), created_at=NOW, expires_at=NOW + SECOND)
    with pytest.raises(Malformed, match="expiring root tokens"):
        made(store, {}, ending, has_sudo=True)
    assert made(store, {"ttl": "1m"}, ending, has_sudo=True).token.expires_at == NOW + 60 * SECOND


@pytest.mark.parametrize(
    "maker",
    [
        Token(accessor="", kind=TokenKind.BATCH, created_at=NOW),
        Token(accessor="x", uses_left=5, created_at=NOW),
    ],
)
async def test_some_tokens_create_no_child_tokens(store: Store, maker: Token) -> None:
    with pytest.raises(Malformed):
        made(store, {}, maker)


# ---- by a role -------------------------------------------------------------------------------


async def test_token_role_grants_its_properties(store: Store) -> None:
    role = TokenRole(name="r", allowed_policies=("c", "d"), orphan=True, token_period=60)
    token = made(store, {}, role=role).token
    assert token.policies == ("c", "d", "default")
    assert (token.parent, token.role, token.period) == ("", "r", 60 * SECOND)
    assert token.expires_at == NOW + 60 * SECOND


@pytest.mark.parametrize(
    ("role", "policies", "message"),
    [
        (
            TokenRole(name="r", allowed_policies=("c",), allowed_policies_glob=("x-*",)),
            ["d"],
            'token policies (["d" "default"]) must be subset of the role\'s allowed policies '
            '(["c" "default"]) or glob policies (["x-*"])',
        ),
        (
            TokenRole(name="r", disallowed_policies_glob=("ops-*",)),
            ["ops-all"],
            'token policy "ops-all" is disallowed by this role',
        ),
        (
            TokenRole(name="r", allowed_policies=("root",)),
            ["root"],
            "root tokens may not be created without parent token being root",
        ),
        (TokenRole(name="r"), ["root"], "child policies must be subset of parent"),
    ],
)
async def test_token_role_refuses_other_properties(
    store: Store, role: TokenRole, policies: list[str], message: str
) -> None:
    with pytest.raises(Malformed) as caught:
        made(store, {"policies": policies}, role=role)
    assert str(caught.value) == message


async def test_a_role_limits_kind_and_uses(store: Store) -> None:
    token = made(store, {}, role=TokenRole(name="r", token_type="batch")).token
    assert (token.kind, token.renewable) == (TokenKind.BATCH, False)
    assert made(store, {"num_uses": 10}, role=TokenRole(name="r", token_num_uses=3)).token.uses == 3


async def test_role_decides_whether_a_token_gets_the_default_policy(store: Store) -> None:
    without = TokenRole(name="r", disallowed_policies=("default",))
    assert made(store, {"policies": ["a"]}, role=without).token.policies == ("a",)
    pattern = TokenRole(name="r", allowed_policies=("a",), disallowed_policies_glob=("def*",))
    assert made(store, {}, role=pattern).token.policies == ("a",)
    silent = TokenRole(name="r", allowed_policies=("a",), token_no_default_policy=True)
    assert made(store, {"policies": ["a"]}, role=silent).token.policies == ("a",)
    with pytest.raises(Malformed, match=r'"default".*must be subset'):
        made(store, {"policies": ["a", "default"]}, role=silent)


async def test_disallowed_policies_of_the_parent_are_refused(store: Store) -> None:
    with pytest.raises(Malformed, match='policy "b" is disallowed'):
        made(store, {}, role=TokenRole(name="r", disallowed_policies=("b",)))


async def test_child_has_the_default_policy_only_if_the_parent_has_it(store: Store) -> None:
    bare = msgspec.structs.replace(MAKER, policies=("a", "b"))
    assert made(store, {}, bare).token.policies == ("a", "b")
    assert made(store, {"policies": ["a"]}, bare).token.policies == ("a",)
    with pytest.raises(Malformed, match="child policies must be subset"):
        made(store, {"policies": ["a", "default"]}, bare)
    assert made(store, {"policies": ["a"]}, bare, has_sudo=True).token.policies == ("a", "default")
    fields = {"policies": ["a", "default"], "no_default_policy": True}
    assert made(store, fields).token.policies == ("a",)


async def test_child_is_bound_to_the_networks_of_its_parent(store: Store) -> None:
    bound = msgspec.structs.replace(MAKER, bound_cidrs=("10.0.0.0/8",))
    for fields in ({}, {"ttl": "1m"}, {"type": "batch"}):
        assert made(store, fields, bound).token.bound_cidrs == ("10.0.0.0/8",)
    grandchild = made(store, {}, made(store, {}, bound).token).token
    assert grandchild.bound_cidrs == ("10.0.0.0/8",)
    assert made(store, {"no_parent": True}, bound, has_sudo=True).token.bound_cidrs == ()
    role = TokenRole(name="r", allowed_policies=("a",), token_bound_cidrs=("192.0.2.0/24",))
    assert made(store, {}, bound, role).token.bound_cidrs == ("192.0.2.0/24",)


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"num_uses": 2}, "num_uses"),
        ({"period": "1h"}, "period"),
        ({"explicit_max_ttl": 60}, "explicit_max_ttl"),
        ({"explicit_max_ttl": 60, "num_uses": 2}, "explicit_max_ttl"),
    ],
)
async def test_batch_token_refuses_limits_that_nothing_enforces(
    store: Store, fields: Mapping[str, object], name: str
) -> None:
    with pytest.raises(Malformed, match=f'^batch tokens cannot have "{name}" set$'):
        made(store, {**fields, "type": "batch"}, has_sudo=True)
    with pytest.raises(Malformed, match=f'^batch tokens cannot have "{name}" set$'):
        made(store, fields, role=TokenRole(name="r", token_type="batch"), has_sudo=True)


async def test_batch_token_refuses_the_number_of_uses_of_a_role(store: Store) -> None:
    role = TokenRole(name="r", allowed_policies=("a",), token_num_uses=2)
    with pytest.raises(Malformed, match='cannot have "num_uses" set'):
        made(store, {"type": "batch"}, role=role)


async def test_caller_of_a_role_needs_sudo_to_choose_a_period(store: Store) -> None:
    role = TokenRole(name="r", allowed_policies=("a",))
    with pytest.raises(Malformed, match="required to create periodic token"):
        made(store, {"period": "87600h"}, role=role)
    assert made(store, {"period": "0"}, role=role).token.period == 0


async def test_lesser_limit_of_request_and_role_is_named_in_a_warning(store: Store) -> None:
    role = TokenRole(
        name="r", allowed_policies=("default",), token_explicit_max_ttl=60, token_period=30
    )
    fields = {"explicit_max_ttl": "2m", "period": "10s"}
    by_both = made(store, fields, role=role, has_sudo=True)
    assert list(by_both.warnings) == [
        "Explicit max TTL specified both during creation call and in role; using the lesser value "
        "of 60 seconds",
        "Period specified both during creation call and in role; using the lesser value of 10 "
        "seconds",
    ]
    assert list(made(store, {}, role=role).warnings) == []


@pytest.mark.parametrize("name", ["ttl", "lease", "period", "explicit_max_ttl"])
async def test_negative_durations_are_refused_by_name(store: Store, name: str) -> None:
    with pytest.raises(Malformed, match=f"^{name} must be positive$"):
        made(store, {name: "-1h"}, has_sudo=True)


async def test_policy_of_wrapping_tokens_cannot_be_assigned(store: Store) -> None:
    for maker in (MAKER, ROOT):
        with pytest.raises(Malformed, match='cannot assign policy "response-wrapping"'):
            made(store, {"policies": ["response-wrapping"]}, maker, has_sudo=True)


# ---- renewing --------------------------------------------------------------------------------


def lived(**fields: object) -> Token:
    given = {"ttl": 600 * SECOND, "renewable": True, "expires_at": NOW + 600 * SECOND, **fields}
    return Token(accessor="x", created_at=NOW, **given)


@pytest.mark.parametrize(
    ("token", "increment", "terms", "ttl"),
    [
        (lived(), 0, RenewalLimits(ttl=600), 600),
        (lived(), 120, RenewalLimits(ttl=600), 120),
        (lived(), 0, RenewalLimits(ttl=600, max_ttl=700), 600),
        (lived(), 7200, RenewalLimits(ttl=600, max_ttl=700), 600),
        (lived(), 7200, RenewalLimits(ttl=600, period=90), 90),
        (lived(explicit_max_ttl=650 * SECOND), 0, RenewalLimits(ttl=600), 550),
        (lived(), -5, RenewalLimits(ttl=600), 600),
    ],
)
def test_a_token_is_renewed_within_its_limits(
    token: Token, increment: int, terms: RenewalLimits, ttl: int
) -> None:
    now = NOW + 100 * SECOND
    after, span = renew_token(token, increment, terms, now)
    assert (span.ttl, after.expires_at, after.renewed_at) == (ttl, now + ttl * SECOND, now)


def test_renewal_limits_are_those_of_the_role_and_of_the_last_renewal() -> None:
    token = lived(period=90 * SECOND, role="r")
    assert renewal_limits(lived(), None) == RenewalLimits(ttl=600)
    assert renewal_limits(lived(period=90 * SECOND), None).period == 90
    assert renewal_limits(token, TokenRole(name="r")).period == 0
    assert renewal_limits(token, TokenRole(name="r", token_period=30)).period == 30
    renewed = lived(renewed_at=NOW + 500 * SECOND)
    assert renewal_limits(renewed, None).ttl == 100
    assert renewal_limits(lived(expires_at=None), None).ttl == 600


def test_token_of_a_deleted_role_is_not_renewed() -> None:
    with pytest.raises(Refused, match="'r' could not be found"):
        renewal_limits(lived(role="r"), None)


@pytest.mark.parametrize(
    ("token", "message"),
    [
        (lived(renewable=False), "lease is not renewable"),
        (lived(expires_at=None), "lease is not renewable"),
        (lived(kind=TokenKind.BATCH), "batch tokens cannot be renewed"),
    ],
)
def test_some_tokens_are_not_renewed(token: Token, message: str) -> None:
    with pytest.raises(Malformed, match=message):
        renew_token(token, 0, RenewalLimits(ttl=600), NOW)
