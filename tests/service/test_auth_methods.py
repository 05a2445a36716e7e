"""Auth methods and binding rules of a daemon with ACLs, and logins with a JWT."""

import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.service.daemon import Steward, open_steward
from tests.service.test_workflows import has_ended, shell, workflow
from tests.unit.identity.tokens import KEY, new_key, signed

SECRET = "0f4dc1d2-8a8e-4b77-8b2f-3d1f0a6c5e11"  # noqa: S105  # of a test
PEM = KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
CONFIG = {
    "JWTValidationPubKeys": [PEM],
    "BoundAudiences": ["steward"],
    "BoundIssuer": ["https://ci.example"],
    "ClaimMappings": {"repository": "repo", "team": "team"},
    "ListClaimMappings": {"groups": "groups"},
    "ClockSkewLeeway": "5s",
}
METHOD = {
    "Name": "ci",
    "Type": "JWT",
    "TokenLocality": "local",
    "TokenNameFormat": "${auth_method_name} ${value.repo}",
    "MaxTokenTTL": "15m",
    "Config": CONFIG,
}
OIDC = {
    "Name": "browser",
    "Type": "OIDC",
    "TokenLocality": "global",
    "MaxTokenTTL": 3600 * 10**9,
    "Default": True,
    "Config": {
        "OIDCDiscoveryURL": "https://example.com",
        "OIDCClientID": "me",
        "OIDCClientSecret": "hidden-secret",
    },
}


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Steward]:
    async with open_steward(tmp_path, "--dev", "--acl") as steward:
        await steward.post("/v1/acl/bootstrap", {"BootstrapSecret": SECRET})
        steward.token = SECRET
        yield steward


def claims(**changes: Any) -> dict[str, Any]:
    now = int(time.time())
    good = {
        "iss": "https://ci.example",
        "aud": "steward",
        "exp": now + 60,
        "repository": "acme/web",
        "team": "OPS",
        "groups": ["dev", "ops"],
    }
    return {**good, **changes}


async def log_in(steward: Steward, token: str, method: str = "ci") -> httpx.Response:
    """Log in with a JWT, and without an ACL token."""
    before, steward.token = steward.token, ""
    try:
        body = {"AuthMethodName": method, "LoginToken": token}
        return await steward.request("POST", "/v1/acl/login", body)
    finally:
        steward.token = before


async def bind(steward: Steward, **fields: str) -> dict[str, Any]:
    return dict(await steward.post("/v1/acl/binding-rule", {"AuthMethod": "ci", **fields}))


async def make_policy(steward: Steward, name: str) -> None:
    rules = 'namespace "default" { policy = "read" }'
    await steward.request("POST", f"/v1/acl/policy/{name}", {"Name": name, "Rules": rules})


# ---- changes -----------------------------------------------------------------------------------


async def test_a_method_is_created_changed_listed_and_deleted(guarded: Steward) -> None:
    made = await guarded.post("/v1/acl/auth-method", METHOD)
    assert made["MaxTokenTTL"] == "15m0s"
    assert made["Config"]["ClockSkewLeeway"] == "5s"
    assert made["Config"]["ExpirationLeeway"] == ""
    assert made["CreateIndex"] == made["ModifyIndex"] > 0
    changed = await guarded.post("/v1/acl/auth-method/ci", {"Name": "ci", "MaxTokenTTL": "1h"})
    kept = ("Type", "TokenLocality", "TokenNameFormat", "Config", "CreateTime", "CreateIndex")
    assert [changed[name] for name in kept] == [made[name] for name in kept]
    assert changed["MaxTokenTTL"] == "1h0m0s"
    assert changed["Hash"] != made["Hash"]
    assert await guarded.get("/v1/acl/auth-method/ci") == changed
    guarded.token = ""
    (stub,) = await guarded.get("/v1/acl/auth-methods")
    assert stub == {
        name: changed[name]
        for name in ("Name", "Type", "Default", "Hash", "CreateIndex", "ModifyIndex")
    }
    guarded.token = SECRET
    assert (await guarded.request("DELETE", "/v1/acl/auth-method/ci")).status_code == 200
    assert await guarded.get("/v1/acl/auth-methods") == []
    gone = await guarded.request("DELETE", "/v1/acl/auth-method/ci")
    assert (gone.status_code, gone.text) == (404, "ACL auth-method not found")
    assert (await guarded.request("GET", "/v1/acl/auth-method/ci")).status_code == 404


async def test_oidc_method_is_stored_without_its_secret_and_refuses_logins(
    guarded: Steward,
) -> None:
    made = await guarded.post("/v1/acl/auth-method", OIDC)
    assert made["Config"]["OIDCClientSecret"] == "redacted"
    files = [path.read_bytes() for path in guarded.data_dir.rglob("*.db*")]
    assert files
    assert not any(b"hidden-secret" in content for content in files)
    second = await guarded.request("POST", "/v1/acl/auth-method", {**METHOD, "Default": True})
    assert (second.status_code, second.text) == (400, "default method already exists: browser")
    for path in ("auth-url", "complete-auth"):
        body = {"AuthMethodName": "browser", "RedirectURI": "http://x", "ClientNonce": "n"}
        refused = await guarded.request("POST", f"/v1/acl/oidc/{path}", body)
        assert refused.status_code == 501
        assert "supports no OIDC login" in refused.text
    jwt = await log_in(guarded, signed(claims()), "browser")
    assert (jwt.status_code, jwt.text) == (400, "unsupported auth-method type: OIDC")


async def test_a_rule_is_created_changed_listed_and_deleted(guarded: Steward) -> None:
    await guarded.post("/v1/acl/auth-method", METHOD)
    fields = {"Selector": "ops in list.groups", "BindType": "role", "BindName": "ops"}
    made = await bind(guarded, Description="one", **fields)
    path = f"/v1/acl/binding-rule/{made['ID']}"
    changed = await guarded.post(path, {"Description": "two", "BindName": "dev"})
    assert changed["Description"] == "two"
    assert changed["Selector"] == ""  # Nomad keeps only empty bind fields
    assert (changed["BindType"], changed["BindName"]) == ("role", "dev")
    assert changed["CreateIndex"] == made["CreateIndex"] < changed["ModifyIndex"]
    assert await guarded.get(path) == changed
    (stub,) = await guarded.get("/v1/acl/binding-rules")
    assert (stub["ID"], stub["AuthMethod"]) == (made["ID"], "ci")
    moved = await guarded.request("POST", path, {"AuthMethod": "other"})
    assert (moved.status_code, "cannot update auth method" in moved.text) == (400, True)
    assert (await guarded.request("DELETE", path)).status_code == 200
    assert (await guarded.request("DELETE", path)).status_code == 404
    assert (await guarded.request("GET", path)).status_code == 404
    unknown = await guarded.request("POST", path, {"Description": "x"})
    assert (unknown.status_code, unknown.text) == (400, f"cannot find binding rule {made['ID']}")


async def test_only_management_tokens_can_read_and_change_methods(guarded: Steward) -> None:
    await guarded.post("/v1/acl/auth-method", METHOD)
    guarded.token = ""
    for method, path in (
        ("GET", "/v1/acl/auth-method/ci"),
        ("POST", "/v1/acl/auth-method"),
        ("DELETE", "/v1/acl/auth-method/ci"),
        ("GET", "/v1/acl/binding-rules"),
        ("POST", "/v1/acl/binding-rule"),
    ):
        assert (await guarded.request(method, path, {})).status_code == 403, path


async def test_auth_methods_do_not_exist_without_acls(steward: Steward) -> None:
    for method, path in (
        ("GET", "/v1/acl/auth-methods"),
        ("POST", "/v1/acl/auth-method"),
        ("POST", "/v1/acl/login"),
    ):
        answer = await steward.request(method, path, {} if method == "POST" else None)
        assert (answer.status_code, answer.text) == (400, "ACL support disabled"), path


# ---- logins ------------------------------------------------------------------------------------


async def test_a_login_gets_the_roles_and_policies_of_the_matching_rules(
    guarded: Steward,
) -> None:
    await guarded.post("/v1/acl/auth-method", METHOD)
    for name in ("ops-read", "web"):
        await make_policy(guarded, name)
    role = await guarded.post("/v1/acl/role", {"Name": "deployers", "Policies": [{"Name": "web"}]})
    await bind(guarded, BindType="policy", BindName="${value.team}-read")
    await bind(guarded, BindType="policy", BindName="web", Selector="qa in list.groups")
    await bind(guarded, BindType="policy", BindName="missing")
    selector = 'value.repo matches "^acme/" and "ops" in list.groups'
    await bind(guarded, BindType="role", BindName="deployers", Selector=selector)
    answer = await log_in(guarded, signed(claims()))
    assert answer.status_code == 200
    token = answer.json()
    assert (token["Name"], token["Type"], token["Global"]) == ("ci acme/web", "client", False)
    assert token["Policies"] == ["ops-read"]
    assert token["Roles"] == [{"ID": role["ID"], "Name": "deployers"}]
    assert token["ExpirationTTL"] == "15m0s"
    assert all(str(uuid.UUID(token[name])) == token[name] for name in ("AccessorID", "SecretID"))
    guarded.token = token["SecretID"]
    assert await guarded.get("/v1/jobs") == []
    assert (await guarded.request("GET", "/v1/acl/tokens")).status_code == 403


async def test_a_management_rule_overrides_the_others(guarded: Steward) -> None:
    await guarded.post("/v1/acl/auth-method", METHOD)
    await make_policy(guarded, "web")
    await bind(guarded, BindType="policy", BindName="web")
    await bind(guarded, BindType="management", Selector='value.team == "OPS"')
    token = (await log_in(guarded, signed(claims()))).json()
    assert (token["Type"], token["Policies"], token["Roles"]) == ("management", None, None)


async def test_one_person_with_two_logins_counts_as_one_approver(guarded: Steward) -> None:
    await guarded.post("/v1/acl/auth-method", METHOD)
    await bind(guarded, BindType="management")
    job = workflow(shell("publish", "exit 0", keys={"gate": "Publish?", "gate_number": "2"}))
    await guarded.post("/v1/jobs", {"Job": job})
    await guarded.until("/v1/job/etl/run", lambda run: run["Steps"][0]["State"] == "held")
    for subject, status in (("ann", 200), ("ann", 409), ("bob", 200)):
        guarded.token = (await log_in(guarded, signed(claims(sub=subject)))).json()["SecretID"]
        answer = await guarded.request("POST", "/v1/job/etl/run/approve", {"Steps": ["publish"]})
        assert answer.status_code == status, answer.text
    run = await guarded.until("/v1/job/etl/run", has_ended)
    assert run["Status"] == "succeeded"
    ann, bob = "https://ci.example ann", "https://ci.example bob"
    assert [act["Who"] for act in run["Acts"]] == [ann, bob]


async def test_invalid_login_gets_no_token(guarded: Steward) -> None:
    await guarded.post("/v1/acl/auth-method", METHOD)
    await make_policy(guarded, "web")
    selector = '"ops" in list.groups'
    await bind(guarded, BindType="policy", BindName="web", Selector=selector)
    odd = 'value.team == "a b"'
    await bind(guarded, BindType="policy", BindName="${value.team}-read", Selector=odd)
    wrong = [
        (signed(claims(), new_key()), 401, "failed to verify signature"),
        ("no.jwt", 401, "unable to validate provided token"),
        (signed(claims(aud="other")), 401, "invalid audience"),
        (signed(claims(iss="https://evil.example")), 401, "invalid JWT issuer"),
        (signed(claims(exp=1)), 401, "token is expired"),
        (signed(claims(repository={"a": 1})), 400, "claim 'repository' is an object"),
        (signed(claims(team="a b")), 400, 'bind name for bind target is invalid: "a b-read"'),
        (signed(claims(groups=[])), 400, "no role or policy bindings matched"),
        ("", 400, "missing login token"),
    ]
    answers = [await log_in(guarded, token) for token, *_ in wrong]
    assert [answer.status_code for answer in answers] == [status for _, status, _ in wrong]
    texts = zip([answer.text for answer in answers], [text for *_, text in wrong], strict=True)
    assert [told for told, text in texts if text not in told] == []
    unknown = await log_in(guarded, signed(claims()), "no")
    assert (unknown.status_code, unknown.text) == (400, 'auth-method "no" not found')
    assert len(await guarded.get("/v1/acl/tokens")) == 1
