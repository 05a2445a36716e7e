"""The validation of auth methods and binding rules, against a store."""

import itertools
import uuid
from functools import partial
from typing import Any

import pytest
import trio
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from daemon.acl.keyring import Keyring
from daemon.acl.lockout import AT_ONCE
from daemon.acl.tokens import TokenStore
from daemon.config.settings import Settings
from daemon.identity.auth_methods import MOST_ITEMS, put_method
from daemon.identity.binding_rules import MOST_RULES, put_rule
from daemon.identity.jwt_keys import MethodKeys
from daemon.identity.jwt_login import JwtLoginRequest, log_in
from daemon.identity.key_cache import KeyCache
from storage.errors import CredentialRejected, Malformed, TooOften
from storage.queries import auth_methods
from storage.records.auth_method import (
    AuthMethod,
    AuthMethodRequest,
    BindingRule,
    BindingRuleRequest,
)
from storage.records.base import MINUTE
from storage.records.codec import decode, encode
from storage.store import Store
from tests.unit.identity.tokens import KEY, NOW, claims, new_key, signed

PEM = KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
CONFIG = {"JWTValidationPubKeys": [PEM]}
METHOD = {
    "Name": "ci",
    "Type": "JWT",
    "TokenLocality": "local",
    "MaxTokenTTL": "15m",
    "Config": CONFIG,
}


async def put(store: Store, document: dict[str, Any]) -> AuthMethod:
    """Store a method as a request gives it."""
    given = decode(AuthMethodRequest, encode(document))
    return await store.write(partial(put_method, request=given, now=NOW))


async def put_one_rule(store: Store, number: int = 0, **fields: str) -> BindingRule:
    document = {"AuthMethod": "ci", "BindType": "policy", "BindName": "x", **fields}
    rule = decode(BindingRuleRequest, encode(document))
    return await store.write(partial(put_rule, request=rule, fresh=f"rule-{number:04}", now=NOW))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"Name": "a b"}, "invalid name 'a b'"),
        ({"TokenLocality": "here"}, "invalid token locality 'here', must be one of local, global"),
        ({"Type": "SAML"}, "invalid token type 'SAML', must be one of JWT, OIDC"),
        ({"Config": None}, "invalid config: missing auth method Config"),
        ({"MaxTokenTTL": "25h"}, "invalid MaxTokenTTL value '25h0m0s' (should be between 1m0s"),
        ({"MaxTokenTTL": 30 * 10**9}, "invalid MaxTokenTTL value '30s'"),
        ({"TokenNameFormat": "x" * 70_000}, "TokenNameFormat is longer than 65536"),
        ({"Config": {}}, "requires either OIDCDiscoveryURL, or JWKS URL"),
        ({"Config": {"JWTValidationPubKeys": ["x"]}}, "JWTValidationPubKeys[0] is not a PEM"),
        ({"Config": {**CONFIG, "SigningAlgs": ["ES256"]}}, "add RS256"),
        ({"Config": {**CONFIG, "ExpirationLeeway": "25h"}}, "use at most 24h"),
        ({"Config": {**CONFIG, "BoundAudiences": ["x"] * 101}}, "BoundAudiences has 101 entries"),
        ({"Config": {**CONFIG, "JWKSCACert": "x" * 70_000}}, "JWKSCACert has a string of more"),
        ({"Type": "OIDC"}, "missing OIDCDiscoveryURL; missing OIDCClientID"),
    ],
)
async def test_invalid_method_is_refused(store: Store, change: dict[str, Any], text: str) -> None:
    with pytest.raises(Malformed) as told:
        await put(store, {**METHOD, **change})
    assert text in str(told.value)
    assert store.read(lambda db: auth_methods.find(db, "ci")) is None


async def test_longest_list_of_a_method_is_stored(store: Store) -> None:
    made = await put(store, {**METHOD, "Config": {**CONFIG, "BoundAudiences": ["x"] * MOST_ITEMS}})
    assert made.config is not None
    assert made.config.bound_audiences == ["x"] * MOST_ITEMS


async def test_client_secret_is_stored_as_a_mask_only_if_the_method_has_one(store: Store) -> None:
    config = {"OIDCDiscoveryURL": "https://example.com", "OIDCClientID": "me"}
    public = await put(store, {**METHOD, "Type": "OIDC", "Config": config})
    config["OIDCClientSecret"] = "hidden"
    secret = await put(store, {**METHOD, "Type": "OIDC", "Config": config})
    shown = [made.config and made.config.oidc_client_secret for made in (public, secret)]
    assert shown == ["", "redacted"]


async def test_update_keeps_omitted_fields(store: Store) -> None:
    made = await put(store, {**METHOD, "Default": True})
    changed = await put(store, {"Name": "ci", "MaxTokenTTL": "1m"})
    assert (changed.type, changed.config) == (made.type, made.config)
    assert changed.token_name_format == "${auth_method_type}-${auth_method_name}"  # noqa: S105  # a template
    assert (changed.max_token_ttl, changed.default) == (MINUTE, False)


async def test_a_private_key_is_not_stored(store: Store) -> None:
    assertion = {"KeySource": "private_key", "PrivateKey": {"PemKey": "hidden"}}
    config = {
        "OIDCDiscoveryURL": "https://example.com",
        "OIDCClientID": "me",
        "OIDCClientAssertion": assertion,
    }
    await put(store, {**METHOD, "Type": "OIDC", "Config": config})
    stored = encode(store.read(lambda db: auth_methods.find(db, "ci"))).decode()
    assert "hidden" not in stored
    assert '"PemKey":"redacted"' in stored


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"BindName": ""}, "bind name is missing"),
        ({"BindName": "x" * 1025}, "bind name longer than 1024"),
        ({"BindType": ""}, "bind type is missing"),
        ({"BindType": "group"}, 'unsupported bind type: "group"'),
        ({"BindType": "management"}, "bind name should be empty"),
        ({"Selector": "a =="}, "selector is invalid"),
        ({"Selector": "a" * 2049}, "selector longer than 2048"),
        ({"Description": "a" * 257}, "description longer than 256"),
        ({"AuthMethod": ""}, "auth method is missing"),
        ({"AuthMethod": "no"}, "ACL auth method no not found"),
        ({"ID": "no"}, "cannot find binding rule no"),
    ],
)
async def test_invalid_rule_is_refused(store: Store, fields: dict[str, str], text: str) -> None:
    await put(store, METHOD)
    with pytest.raises(Malformed) as told:
        await put_one_rule(store, **fields)
    assert text in str(told.value)


async def test_the_rules_of_a_method_are_limited(store: Store) -> None:
    await put(store, METHOD)
    for number in range(MOST_RULES):
        last = await put_one_rule(store, number)
    with pytest.raises(Malformed, match="has 500 binding rules"):
        await put_one_rule(store, MOST_RULES)
    changed = await put_one_rule(store, ID=last.id, Description="a change is possible")
    assert changed.id == last.id


async def test_rules_of_a_method_are_deleted_with_the_method(store: Store) -> None:
    await put(store, METHOD)
    await put(store, {**METHOD, "Name": "other"})
    await put_one_rule(store, 1)
    binding_rule = await put_one_rule(store, 2, AuthMethod="other")
    with store.watch("binding_rules/rule-0001") as changes, trio.fail_after(5):
        assert await store.write(lambda tx: auth_methods.remove(tx, "ci"))
        await changes.wait()
    assert store.read(lambda db: auth_methods.find_rule(db, "rule-0001")) is None
    assert store.read(lambda db: auth_methods.find_rule(db, binding_rule.id)) == binding_rule
    await put(store, METHOD)
    assert store.read(lambda db: auth_methods.rules_of(db, "ci", 9)) == []


async def test_new_method_does_not_inherit_rules_of_an_earlier_one(store: Store) -> None:
    rule = BindingRule(id="old", auth_method="ci", bind_type="management")
    await store.write(lambda tx: auth_methods.put_rule(tx, rule))
    with pytest.raises(Malformed, match="1 binding rules of an earlier method have the name ci"):
        await put(store, METHOD)
    await store.write(lambda tx: auth_methods.remove_rule(tx, "old"))
    await put(store, METHOD)


@pytest.mark.parametrize(
    ("first", "second", "is_same"),
    [
        ({"sub": "ann"}, {"sub": "ann", "jti": "2"}, True),
        ({"sub": "ann"}, {"sub": "bob"}, False),
        ({"sub": "ann"}, {"sub": "ann", "iss": "https://other.example"}, False),
        ({}, {"jti": "2"}, True),  # no claim distinguishes the two logins
        ({"iss": None}, {"iss": None, "jti": "2"}, True),
    ],
)
async def test_logins_with_the_same_subject_have_the_same_entity(
    store: Store, first: dict[str, Any], second: dict[str, Any], is_same: bool
) -> None:
    await put(store, METHOD)
    await put_one_rule(store, BindType="management", BindName="")
    tokens = TokenStore(store, Clock(), Keyring(bytes(32)), asks=True)
    people = []
    for changes in (first, second):
        issued = await log_in(
            store,
            tokens,
            MethodKeys(KeyCache()),
            Settings(),
            JwtLoginRequest(auth_method_name="ci", login_token=signed(claims(**changes))),
            client_key="127.0.0.1",
            ids=(str(uuid.uuid4()) for _ in itertools.count()),
            now=NOW,
        )
        people.append(tokens.resolve(issued.secret).token.person)
    assert (people[0] == people[1]) is is_same


class Clock:
    """A clock that shows a fixed time."""

    def now(self) -> int:
        return NOW


async def test_forged_logins_are_rate_limited_and_a_valid_one_passes(store: Store) -> None:
    await put(store, METHOD)
    rule = {"BindType": "management", "BindName": ""}
    await put_one_rule(store, **rule)
    tokens = TokenStore(store, Clock(), Keyring(bytes(32)), asks=True)

    async def attempt(jwt: str) -> str:
        issued = await log_in(
            store,
            tokens,
            MethodKeys(KeyCache()),
            Settings(),
            JwtLoginRequest(auth_method_name="ci", login_token=jwt),
            client_key="127.0.0.1",
            ids=(str(uuid.uuid4()) for _ in itertools.count()),
            now=NOW,
        )
        return issued.secret

    forged = signed(claims(), new_key())
    for _ in range(AT_ONCE):
        with pytest.raises(CredentialRejected):
            await attempt(forged)
    with pytest.raises(TooOften):
        await attempt(forged)
    with pytest.raises(CredentialRejected):  # expired, but no forgery
        await attempt(signed(claims(exp=1)))
    assert tokens.resolve(await attempt(signed(claims()))).grant.everything
