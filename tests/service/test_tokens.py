"""Tokens of the Vault API on a real daemon: roles, entities, wrapped responses, both APIs."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from daemon.config.data_directory import store_dir
from storage.records.base import SECOND
from storage.records.times import nanoseconds
from tests.service.daemon import Steward, open_steward

SECRET = "0f4dc1d2-8a8e-4b77-8b2f-3d1f0a6c5e11"  # noqa: S105  # of a test


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Steward]:
    """Run a daemon that requires tokens; use its bootstrap token."""
    async with open_steward(tmp_path, "--dev", "--acl") as steward:
        await steward.post("/v1/acl/bootstrap", {"BootstrapSecret": SECRET})
        steward.token = SECRET
        yield steward


async def ask(
    steward: Steward, token: str, method: str, path: str, body: Any = None, **headers: str
) -> httpx.Response:
    """Send a request with this token."""
    return await steward._http.request(
        method,
        f"{steward.address}/v1/{path}",
        json=body,
        headers={"X-Service-Token": token, **headers},
    )


async def new_token(steward: Steward, **fields: Any) -> str:
    answer = await ask(steward, SECRET, "POST", "auth/token/create", fields)
    return str(answer.json()["auth"]["client_token"])


async def write_policy(steward: Steward, name: str, text: str) -> None:
    answer = await ask(steward, SECRET, "POST", f"sys/policies/acl/{name}", {"policy": text})
    assert answer.status_code == 204


async def test_one_policy_applies_to_both_apis(guarded: Steward) -> None:
    await write_policy(
        guarded,
        "both",
        'path "sys/auth" { capabilities = ["read"] } namespace "default" { policy = "read" }',
    )
    token = await new_token(guarded, policies=["both"])
    assert (await ask(guarded, token, "GET", "sys/auth")).status_code == 200
    assert (await ask(guarded, token, "GET", "jobs")).status_code == 200
    assert (await ask(guarded, token, "GET", "sys/auth/cloudid")).status_code == 403
    assert (await ask(guarded, token, "GET", "nodes")).status_code == 403
    listed = await guarded.get("/v1/acl/policies")
    assert [item["Name"] for item in listed] == ["both"]


@pytest.mark.parametrize(
    ("writes", "last"),
    [
        ([{"cas": -1}], 204),
        ([{"cas": 0}], 400),
        ([{}, {"cas": -1}], 400),
        ([{}, {"cas": "1"}], 204),
        ([{}, {}, {"cas": 1}], 400),
        ([{"cas_required": True}], 400),
        ([{"cas": -1, "cas_required": True}, {}], 400),
        ([{"cas": -1, "cas_required": True}, {"cas": 1}, {}], 204),
        ([{"cas": None}], 204),
        ([{"cas": 1.5}], 400),
    ],
)
async def test_policy_is_written_only_if_it_has_the_expected_version(
    guarded: Steward, writes: list[dict[str, object]], last: int
) -> None:
    path = "sys/policies/acl/p"
    answers = [
        await ask(guarded, SECRET, "POST", path, {"policy": f'path "{number}" {{}}', **fields})
        for number, fields in enumerate(writes)
    ]
    assert [answer.status_code for answer in answers] == [204] * (len(writes) - 1) + [last]
    found = await ask(guarded, SECRET, "GET", path)
    done = sum(answer.status_code == 204 for answer in answers)
    assert (found.status_code, found.json().get("data", {}).get("version", 0)) == (
        200 if done else 404,
        done,
    )


@pytest.mark.parametrize(
    ("path", "alias", "error"),
    [
        ("create", "bob", "is only allowed in combination with token role"),
        ("create-orphan", "bob", "is only allowed in combination with token role"),
        ("create/r", "eve", "invalid 'entity_alias' value"),
        ("create/r", "bob", "only a login creates tokens of entities"),
        ("create/r", "", ""),
    ],
)
async def test_token_is_never_created_without_its_requested_entity(
    guarded: Steward, path: str, alias: str, error: str
) -> None:
    await ask(guarded, SECRET, "POST", "auth/token/roles/r", {"allowed_entity_aliases": ["bob"]})
    answer = await ask(guarded, SECRET, "POST", f"auth/token/{path}", {"entity_alias": alias})
    assert (answer.status_code, error in answer.text) == (400 if error else 200, True)


async def test_only_one_of_two_writers_changes_the_built_in_policy(guarded: Steward) -> None:
    path, body = "sys/policies/acl/default", {"policy": 'path "a" {}', "cas": 1}
    answers = [await ask(guarded, SECRET, "POST", path, body) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [204, 400]
    assert "did not match the current version" in answers[1].text


async def test_jobs_api_keeps_the_demand_for_a_version(guarded: Steward) -> None:
    path, body = "sys/policies/acl/p", {"policy": 'path "a" {}'}
    await ask(guarded, SECRET, "POST", path, {**body, "cas": -1, "cas_required": True})
    await guarded.request("POST", "/v1/acl/policy/p", {"Name": "p", "Rules": 'path "b" {}'})
    assert (await ask(guarded, SECRET, "POST", path, body)).status_code == 400


async def test_vault_api_keeps_the_tasks_and_the_description_of_a_policy(
    guarded: Steward,
) -> None:
    of_task = {"Namespace": "default", "JobID": "web", "Group": "g", "Task": "t"}
    rules = 'namespace "default" { policy = "read" }'
    policy = {"Name": "p", "Description": "of the web job", "Rules": rules, "JobACL": of_task}
    await guarded.request("POST", "/v1/acl/policy/p", policy)
    before = await guarded.get("/v1/acl/policy/p")
    await write_policy(guarded, "p", rules)
    after = await guarded.get("/v1/acl/policy/p")
    names = ("Description", "JobACL", "Rules", "Hash")
    assert {name: after[name] for name in names} == {name: before[name] for name in names}
    assert after["JobACL"] == of_task


async def test_client_token_of_the_jobs_api_is_valid_for_the_vault_api(
    guarded: Steward,
) -> None:
    await write_policy(guarded, "p", 'path "auth/token/lookup-self" { capabilities = ["read"] }')
    made = await guarded.post("/v1/acl/token", {"Type": "client", "Policies": ["p"]})
    answer = await ask(guarded, made["SecretID"], "GET", "auth/token/lookup-self")
    assert answer.json()["data"]["accessor"] == made["AccessorID"]
    revoked = await ask(
        guarded, SECRET, "POST", "auth/token/revoke-accessor", {"accessor": made["AccessorID"]}
    )
    assert revoked.status_code == 204
    assert (await ask(guarded, made["SecretID"], "GET", "acl/token/self")).status_code == 403


ACCESSOR, CHOSEN = "b306571d-a3fa-42d2-ac5b-bbe49d8c3c7f", "c28ba0f6-ab8d-4e4d-b9f0-7f9f5d1c2e3a"
UPLOADED = {"AccessorID": ACCESSOR, "SecretID": CHOSEN, "Type": "client", "Policies": ["p"]}


async def test_uploaded_token_keeps_its_accessor_and_secret(
    guarded: Steward,
) -> None:
    path = f"/v1/acl/token/{ACCESSOR}"
    made = await guarded.post(path, UPLOADED)
    assert (made["AccessorID"], made["SecretID"]) == (ACCESSOR, CHOSEN)
    own = await ask(guarded, CHOSEN, "GET", "acl/token/self")
    assert own.json()["AccessorID"] == ACCESSOR
    other = {**UPLOADED, "SecretID": "e4a19d23-8f5b-42c1-a7d3-6e0f1b2c4a5d", "Name": "n"}
    assert (await guarded.post(path, other))["Name"] == "n"  # a change that keeps the secret
    assert (await ask(guarded, CHOSEN, "GET", "acl/token/self")).status_code == 200
    assert (await ask(guarded, other["SecretID"], "GET", "acl/token/self")).status_code == 403


@pytest.mark.parametrize(
    "change",
    [
        {"AccessorID": "short"},
        {"SecretID": ""},
        {"SecretID": "guess-me"},
        {"Type": "management", "Policies": None},
    ],
)
async def test_invalid_upload_is_reported_as_a_missing_token(
    guarded: Steward, change: dict[str, object]
) -> None:
    body = {**UPLOADED, **change}
    answer = await guarded.request("POST", f"/v1/acl/token/{body['AccessorID']}", body)
    assert (answer.status_code, answer.text) == (400, f"cannot find token {body['AccessorID']}")


async def test_secret_in_use_cannot_be_uploaded(guarded: Steward) -> None:
    body = {**UPLOADED, "SecretID": SECRET}
    answer = await guarded.request("POST", f"/v1/acl/token/{ACCESSOR}", body)
    assert (answer.status_code, answer.text) == (400, "cannot create a token with a duplicate ID")


async def test_role_creates_tokens_and_can_be_changed(guarded: Steward) -> None:
    role = {"allowed_policies": "a,b", "period": "1h", "orphan": True}
    path = "auth/token/roles/ops"
    assert (await ask(guarded, SECRET, "POST", path, role)).status_code == 204
    shown = (await ask(guarded, SECRET, "GET", path)).json()["data"]
    assert shown["allowed_policies"] == ["a", "b"]
    assert shown["token_period"] == 3600
    made = await ask(guarded, SECRET, "POST", "auth/token/create/ops", {})
    assert made.json()["auth"]["policies"] == ["a", "b", "default"]
    assert made.json()["auth"]["orphan"] is True
    listed = await ask(guarded, SECRET, "LIST", "auth/token/roles")
    assert listed.json()["data"]["keys"] == ["ops"]
    assert (await ask(guarded, SECRET, "DELETE", path)).status_code == 204
    token = made.json()["auth"]["client_token"]
    renewed = await ask(guarded, SECRET, "POST", "auth/token/renew", {"token": token})
    assert renewed.status_code == 500
    assert "could not be found, not renewing" in renewed.text
    unknown = await ask(guarded, SECRET, "POST", "auth/token/create/ops", {})
    assert unknown.status_code == 400


async def test_names_of_token_roles_are_simple(guarded: Steward) -> None:
    for name in ("a%2Fb", "-x", "x-", "a b"):
        for path in (f"auth/token/roles/{name}", f"auth/token/create/{name}"):
            refused = await ask(guarded, SECRET, "POST", path, {})
            assert (refused.status_code, "unsupported path" in refused.text) == (404, True), path
    assert (await ask(guarded, SECRET, "POST", "auth/token/roles/Ops.x-1", {})).status_code == 204


async def test_unknown_token_cannot_be_revoked_as_an_orphan(guarded: Steward) -> None:
    path = "auth/token/revoke-orphan"
    refused = await ask(guarded, SECRET, "POST", path, {"token": "s.unknown"})
    assert (refused.status_code, refused.json()["errors"]) == (400, ["token to revoke not found"])


async def wrap(steward: Steward) -> httpx.Response:
    """Request a response that is wrapped for a minute."""
    says, ttl = {"password": "swordfish"}, {"X-Service-Wrap-TTL": "60"}
    return await ask(steward, SECRET, "POST", "sys/wrapping/wrap", says, **ttl)


async def test_wrapped_response_is_unwrapped_once(guarded: Steward) -> None:
    answer = await wrap(guarded)
    wrapping = answer.json()["wrap_info"]["token"]
    assert "swordfish" not in answer.text
    kept = b"".join(path.read_bytes() for path in store_dir(guarded.data_dir).glob("steward.db*"))
    assert b"swordfish" not in kept
    again = await ask(guarded, "", "POST", "sys/wrapping/rewrap", {"token": wrapping})
    newer = again.json()["wrap_info"]["token"]
    assert (await ask(guarded, wrapping, "POST", "sys/wrapping/unwrap")).status_code == 400
    first = await ask(guarded, newer, "POST", "sys/wrapping/unwrap")
    assert first.json()["data"] == {"password": "swordfish"}
    assert (await ask(guarded, newer, "POST", "sys/wrapping/unwrap")).status_code == 400


@pytest.mark.parametrize("path", ["jobs", "auth/token/lookup-self"])
async def test_any_other_use_consumes_a_wrapping_token(guarded: Steward, path: str) -> None:
    wrapping = (await wrap(guarded)).json()["wrap_info"]["token"]
    assert (await ask(guarded, wrapping, "GET", path)).status_code == 403
    assert (await ask(guarded, wrapping, "POST", "sys/wrapping/unwrap")).status_code == 400


async def test_wrapping_ttl_is_limited_by_the_policy(guarded: Steward) -> None:
    await write_policy(
        guarded,
        "wrapped-only",
        'path "sys/auth" { capabilities = ["read"] min_wrapping_ttl = 30 max_wrapping_ttl = 60 }',
    )
    token = await new_token(guarded, policies=["wrapped-only"])
    statuses = [
        (await ask(guarded, token, "GET", "sys/auth", **{"X-Vault-Wrap-TTL": span})).status_code
        for span in ("0", "29", "30", "60", "61")
    ]
    assert statuses == [403, 403, 200, 200, 403]


async def test_batch_token_ends_with_its_parent(guarded: Steward) -> None:
    maker = await new_token(guarded)
    made = await ask(
        guarded, maker, "POST", "auth/token/create", {"type": "batch", "policies": ["default"]}
    )
    batch = made.json()["auth"]["client_token"]
    assert (await ask(guarded, batch, "GET", "auth/token/lookup-self")).status_code == 200
    await ask(guarded, maker, "POST", "auth/token/revoke-self")
    assert (await ask(guarded, batch, "GET", "auth/token/lookup-self")).status_code == 403


async def test_tokens_survive_a_restart(guarded: Steward) -> None:
    token = await new_token(guarded, ttl="1h")
    await guarded.restart()
    assert (await ask(guarded, token, "GET", "auth/token/lookup-self")).status_code == 200


CROOKED = (
    "sys/policies/acl/../../auth",
    "sys/policies/acl/%2e%2e/%2e%2e/auth",
    "sys/policies/acl/..%2f..%2fauth",
    "sys/policies//acl",
    "sys/policies/acl/x%00",
    "sys/policies/acl/%ff",
)


async def test_path_variant_cannot_bypass_its_rule(guarded: Steward) -> None:
    await write_policy(guarded, "p", 'path "sys/policies/acl/*" { capabilities = ["read"] }')
    token = await new_token(guarded, policies=["p"])
    answers = [
        await guarded._http.get(
            httpx.URL(guarded.address, raw_path=f"/v1/{path}".encode()),
            headers={"X-Service-Token": token},
        )
        for path in CROOKED
    ]
    assert {answer.status_code for answer in answers} <= {307, 400, 403, 404, 500}
    assert not any("accessor" in answer.text for answer in answers)


async def test_token_secrets_are_shown_again_only_if_stored_by_configuration(
    tmp_path: Path,
) -> None:
    config = tmp_path / "steward.toml"
    config.write_text("keep_token_secrets = true\n")
    flags = ("--dev", "--acl", "--config", str(config))
    async with open_steward(tmp_path, *flags) as steward:
        await steward.post("/v1/acl/bootstrap", {"BootstrapSecret": SECRET})
        steward.token = SECRET
        made = await steward.post("/v1/acl/token", {"Type": "management", "Name": "tool"})
        path, secret = f"/v1/acl/token/{made['AccessorID']}", made["SecretID"]
        assert (await steward.get(path))["SecretID"] == secret
        body = {"AccessorID": made["AccessorID"], "Type": "management", "Name": "other"}
        assert (await steward.post(path, body))["SecretID"] == secret
        child = await new_token(steward, policies=["default"])
        (own,) = [item for item in await steward.get("/v1/acl/tokens") if item["Name"] == "other"]
        assert "SecretID" not in own
        lookup = await ask(steward, child, "GET", "auth/token/lookup-self")
        accessor = lookup.json()["data"]["accessor"]
        assert (await steward.get(f"/v1/acl/token/{accessor}"))["SecretID"] == ""


@pytest.mark.parametrize(
    ("name", "shown"),
    [("", "token"), ("ops", "token-ops"), ("My!Token+*#Name", "token-My-Token---Name")],
)
async def test_invalid_characters_of_a_display_name_are_replaced(
    guarded: Steward, name: str, shown: str
) -> None:
    made = await ask(guarded, SECRET, "POST", "auth/token/create", {"display_name": name})
    own = made.json()["auth"]["client_token"]
    found = await ask(guarded, own, "GET", "auth/token/lookup-self")
    assert found.json()["data"]["display_name"] == shown


async def test_issue_and_expire_times_of_a_token_differ_by_less_than_its_ttl(
    guarded: Steward,
) -> None:
    made = await ask(guarded, SECRET, "POST", "auth/token/create", {"ttl": "60s"})
    own = made.json()["auth"]["client_token"]
    data = (await ask(guarded, own, "GET", "auth/token/lookup-self")).json()["data"]
    issued, ends = (nanoseconds(data[name]) for name in ("issue_time", "expire_time"))
    assert (ends - issued) // SECOND == 59


async def test_renewal_without_an_increment_reuses_the_previous_one(guarded: Steward) -> None:
    made = await ask(guarded, SECRET, "POST", "auth/token/create", {"ttl": "1h"})
    token = {"token": made.json()["auth"]["client_token"]}
    spans = []
    for increment in ({}, {"increment": "30m"}, {}, {"increment": "2h"}, {}):
        answer = await ask(guarded, SECRET, "POST", "auth/token/renew", {**token, **increment})
        spans.append(answer.json()["auth"]["lease_duration"])
    assert spans == [3600, 1800, 1800, 7200, 7200]


async def test_help_names_the_paths_of_an_area(guarded: Steward) -> None:
    answer = await ask(guarded, SECRET, "GET", "auth/token?help=1")
    assert answer.status_code == 200
    assert "    auth/token/create\n" in answer.json()["help"]


async def test_token_method_cannot_be_tuned(guarded: Steward) -> None:
    path = "sys/mounts/auth/token/tune"
    answer = await ask(guarded, SECRET, "POST", path, {"default_lease_ttl": "1h"})
    assert (answer.status_code, "auth/token cannot be tuned" in answer.text) == (400, True)


async def test_only_daemon_is_the_active_member(guarded: Steward) -> None:
    answer = (await ask(guarded, SECRET, "GET", "sys/ha-status")).json()
    (member,) = answer["nodes"]
    assert (member["active_node"], member["api_address"]) == (True, guarded.address)
    assert answer["data"]["nodes"] == [member]


async def test_policy_of_wrapping_tokens_cannot_be_changed(guarded: Steward) -> None:
    path = "sys/policies/acl/response-wrapping"
    rules = {"policy": 'path "a" { capabilities = ["read"] }'}
    for method, verb in (("POST", "update"), ("DELETE", "delete")):
        refused = await ask(guarded, SECRET, method, path, rules if verb == "update" else None)
        assert f'cannot {verb} \\"response-wrapping\\" policy' in refused.text
        assert refused.status_code == 400


async def test_older_name_of_the_text_of_a_policy_works_only_at_the_older_path(
    guarded: Steward,
) -> None:
    rules = {"rules": 'path "a" { capabilities = ["read"] }'}
    old = await ask(guarded, SECRET, "PUT", "sys/policy/old", rules)
    assert old.status_code == 200
    assert old.json()["warnings"] == ["'rules' is deprecated, please use 'policy' instead"]
    new = await ask(guarded, SECRET, "PUT", "sys/policies/acl/new", rules)
    assert (new.status_code, new.json()["errors"]) == (
        400,
        ["'policy' parameter not supplied or empty"],
    )
