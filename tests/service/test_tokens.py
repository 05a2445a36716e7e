"""Tokens of the secrets side on a real daemon: roles, entities, wrapped answers, both sides at once."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from daemon.datadir import store_dir
from tests.service.daemon import Steward, open_steward

SECRET = "0f4dc1d2-8a8e-4b77-8b2f-3d1f0a6c5e11"  # noqa: S105  # of a test


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Steward]:
    """Run a daemon that asks for tokens, and hold the first one."""
    async with open_steward(tmp_path, "--dev", "--acl") as steward:
        await steward.post("/v1/acl/bootstrap", {"BootstrapSecret": SECRET})
        steward.token = SECRET
        yield steward


async def ask(
    steward: Steward, token: str, method: str, path: str, body: Any = None, **headers: str
) -> httpx.Response:
    """Ask with a token of choice."""
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


async def test_one_policy_guards_both_sides(guarded: Steward) -> None:
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
    assert [one["Name"] for one in listed] == ["both"]


async def test_a_client_token_of_the_jobs_side_is_one_of_the_secrets_side(
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


async def test_a_role_makes_tokens_and_can_be_changed(guarded: Steward) -> None:
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


async def wrap(steward: Steward) -> httpx.Response:
    """Have something wrapped for a minute."""
    says, ttl = {"password": "swordfish"}, {"X-Service-Wrap-TTL": "60"}
    return await ask(steward, SECRET, "POST", "sys/wrapping/wrap", says, **ttl)


async def test_a_wrapped_answer_is_given_out_once(guarded: Steward) -> None:
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
async def test_any_other_use_spends_a_wrapping_token(guarded: Steward, path: str) -> None:
    wrapping = (await wrap(guarded)).json()["wrap_info"]["token"]
    assert (await ask(guarded, wrapping, "GET", path)).status_code == 403
    assert (await ask(guarded, wrapping, "POST", "sys/wrapping/unwrap")).status_code == 400


async def test_the_bounds_of_a_rule_hold_for_wrapping(guarded: Steward) -> None:
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


async def test_a_batch_token_ends_with_its_maker(guarded: Steward) -> None:
    maker = await new_token(guarded)
    made = await ask(
        guarded, maker, "POST", "auth/token/create", {"type": "batch", "policies": ["default"]}
    )
    batch = made.json()["auth"]["client_token"]
    assert (await ask(guarded, batch, "GET", "auth/token/lookup-self")).status_code == 200
    await ask(guarded, maker, "POST", "auth/token/revoke-self")
    assert (await ask(guarded, batch, "GET", "auth/token/lookup-self")).status_code == 403


async def test_tokens_live_on_over_a_restart(guarded: Steward) -> None:
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


async def test_a_path_cannot_be_written_around_its_rule(guarded: Steward) -> None:
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


async def test_secrets_of_tokens_are_shown_again_only_where_a_setting_keeps_them(
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
        (own,) = [one for one in await steward.get("/v1/acl/tokens") if one["Name"] == "other"]
        assert "SecretID" not in own
        lookup = await ask(steward, child, "GET", "auth/token/lookup-self")
        accessor = lookup.json()["data"]["accessor"]
        assert (await steward.get(f"/v1/acl/token/{accessor}"))["SecretID"] == ""
