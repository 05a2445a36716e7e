"""A daemon with ACLs: rejections, visible objects, and the bootstrap token."""

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from daemon.config.data_directory import store_dir
from tests.service.daemon import Steward, open_steward

SECRET = "0f4dc1d2-8a8e-4b77-8b2f-3d1f0a6c5e11"  # noqa: S105  # of a test


def job(job_id: str, namespace: str = "default") -> dict[str, object]:
    task = {
        "Name": "main",
        "Driver": "raw_exec",
        "Config": {"command": "/bin/sleep", "args": ["60"]},
    }
    groups = [{"Name": "web", "Tasks": [task]}]
    return {"ID": job_id, "Namespace": namespace, "Datacenters": ["*"], "TaskGroups": groups}


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Steward]:
    """Run a daemon that requires tokens; use its bootstrap token."""
    async with open_steward(tmp_path, "--dev", "--acl") as steward:
        await steward.post("/v1/acl/bootstrap", {"BootstrapSecret": SECRET})
        steward.token = SECRET
        yield steward


async def new_token(steward: Steward, rules: str, name: str = "p") -> str:
    """Create a client token with its own policy; return its secret ID."""
    await steward.request("POST", f"/v1/acl/policy/{name}", {"Name": name, "Rules": rules})
    token = await steward.post("/v1/acl/token", {"Type": "client", "Policies": [name]})
    return str(token["SecretID"])


async def as_(
    steward: Steward, token: str, method: str, path: str, body: Any = None
) -> httpx.Response:
    """Send a request with another token."""
    before, steward.token = steward.token, token
    try:
        return await steward.request(method, path, body)
    finally:
        steward.token = before


async def make_namespace(steward: Steward, name: str) -> None:
    await steward.request("POST", "/v1/namespace", {"Name": name})


# ---- the bootstrap token -------------------------------------------------------------------------


async def test_first_start_writes_a_secret_readable_only_by_the_daemon_user(tmp_path: Path) -> None:
    """The daemon is executed instead of forked, as at a real first start."""
    async with open_steward(tmp_path, executed=True) as steward:
        path = store_dir(steward.data_dir) / "bootstrap-token"
        status = os.stat(path)
        assert status.st_mode & 0o777 == 0o600
        assert status.st_uid == os.geteuid()
        assert str(path) in steward.log.read_text()
        steward.token = ""
        assert (await steward.request("GET", "/v1/jobs")).status_code == 403
        steward.token = path.read_text().strip()
        assert await steward.get("/v1/jobs") == []
        assert steward.token not in steward.log.read_text()
        await steward.restart()
        assert await steward.get("/v1/jobs") == []


async def test_second_bootstrap_is_rejected(tmp_path: Path) -> None:
    async with open_steward(tmp_path) as steward:
        answer = await steward.request("POST", "/v1/acl/bootstrap")
        assert answer.status_code == 400
        assert answer.text.startswith("ACL bootstrap already done (reset index: ")
        index = answer.text.partition("index: ")[2].rstrip(")")
        (steward.data_dir / "acl-bootstrap-reset").write_text(index)
        token = await steward.post("/v1/acl/bootstrap", {"BootstrapSecret": SECRET})
        assert token["SecretID"] == SECRET
        again = await steward.request("POST", "/v1/acl/bootstrap")
        assert again.status_code == 400


async def test_secret_that_is_no_uuid_is_refused(tmp_path: Path) -> None:
    async with open_steward(tmp_path, "--dev", "--acl") as steward:
        answer = await steward.request("POST", "/v1/acl/bootstrap", {"BootstrapSecret": "easy"})
        assert answer.status_code == 400
        assert (await steward.request("POST", "/v1/acl/bootstrap")).status_code == 200


# ---- visible objects -------------------------------------------------------------------------


async def test_list_of_all_namespaces_contains_only_visible_objects(guarded: Steward) -> None:
    await make_namespace(guarded, "other")
    await guarded.register(job("mine"))
    await guarded.register(job("theirs", namespace="other"))
    reader = await new_token(guarded, 'namespace "default" { policy = "read" }')
    for path in ("/v1/jobs", "/v1/evaluations", "/v1/allocations", "/v1/namespaces"):
        everything = await guarded.request("GET", f"{path}?namespace=*")
        response = await as_(guarded, reader, "GET", f"{path}?namespace=*")
        assert "other" in everything.text
        assert "other" not in response.text
        assert "default" in response.text


async def test_job_in_another_namespace_needs_the_capability_there(guarded: Steward) -> None:
    await make_namespace(guarded, "other")
    writer = await new_token(guarded, 'namespace "default" { policy = "write" }')
    body = {"Job": job("sly", namespace="other")}
    assert (await as_(guarded, writer, "POST", "/v1/jobs", body)).status_code == 403
    there = await new_token(guarded, 'namespace "other" { policy = "write" }', "q")
    assert (await as_(guarded, there, "POST", "/v1/jobs", body)).status_code == 200
    assert (await as_(guarded, there, "GET", "/v1/job/sly?namespace=other")).status_code == 200


async def test_evaluation_from_another_namespace_is_refused(
    guarded: Steward,
) -> None:
    await make_namespace(guarded, "other")
    done = await guarded.register(job("theirs", namespace="other"))
    await guarded.until(
        f"/v1/evaluation/{done['EvalID']}", lambda shown: shown["Status"] == "complete"
    )
    (placed,) = await guarded.get("/v1/allocations", namespace="other")
    writer = await new_token(guarded, 'namespace "default" { policy = "write" }')
    answers = {
        path: (await as_(guarded, writer, method, path)).status_code
        for method, path in (
            ("GET", f"/v1/evaluation/{done['EvalID']}"),
            ("GET", f"/v1/allocation/{placed['ID']}"),
            ("POST", f"/v1/allocation/{placed['ID']}/stop"),
            ("GET", f"/v1/client/fs/ls/{placed['ID']}"),
            ("GET", f"/v1/client/fs/cat/{placed['ID']}?path=alloc"),
            ("GET", f"/v1/client/fs/logs/{placed['ID']}?task=main&type=stdout"),
        )
    }
    assert set(answers.values()) <= {403, 500}
    response = await as_(guarded, writer, "GET", f"/v1/evaluation/{done['EvalID']}/allocations")
    assert response.json() == []


@pytest.mark.parametrize("path", ["/v1/job/web", "/v1/jobs"])
async def test_cached_response_of_one_caller_is_not_shown_to_another(
    guarded: Steward, path: str
) -> None:
    """An empty namespace in the query leaves the choice to the header; a second one is ignored."""
    await make_namespace(guarded, "secret")
    for namespace in ("default", "secret"):
        await guarded.post(
            "/v1/jobs", {"Job": {**job("web", namespace), "Meta": {"of": namespace}}}
        )
    token = await new_token(guarded, 'namespace "default" { policy = "read" }')
    queries = ("?namespace=", "?namespace=&namespace=secret")
    async with httpx.AsyncClient(base_url=guarded.address) as client:
        for _ in range(2):  # the second response comes from the cache
            whole = {"X-Nomad-Token": SECRET, "X-Nomad-Namespace": "secret"}
            answer = await client.get(path + queries[0], headers=whole)
            assert '"Namespace":"secret"' in answer.text
            answer = await client.get(path + queries[1], headers={"X-Nomad-Token": token})
            assert '"Namespace":"default"' in answer.text
            assert '"Namespace":"secret"' not in answer.text


async def test_refusal_does_not_reveal_existing_objects(guarded: Steward) -> None:
    await guarded.register(job("there"))
    nobody = await new_token(guarded, 'namespace "elsewhere" { policy = "write" }')
    response = await as_(guarded, nobody, "GET", "/v1/job/there")
    missing = await as_(guarded, nobody, "GET", "/v1/job/missing")
    assert (response.status_code, response.text) == (missing.status_code, missing.text)
    assert (response.status_code, response.text) == (403, "Permission denied")


# ---- changes take effect immediately ------------------------------------------------------------


async def test_role_change_takes_effect_immediately(guarded: Steward) -> None:
    for name, level in (("r", "read"), ("w", "write")):
        rules = f'namespace "default" {{ policy = "{level}" }}'
        await guarded.request("POST", f"/v1/acl/policy/{name}", {"Name": name, "Rules": rules})
    role = await guarded.post("/v1/acl/role", {"Name": "staff", "Policies": [{"Name": "r"}]})
    token = await guarded.post("/v1/acl/token", {"Type": "client", "Roles": [{"Name": "staff"}]})
    assert token["Roles"] == [{"ID": role["ID"], "Name": "staff"}]
    secret, body = token["SecretID"], {"Job": job("web")}
    assert (await as_(guarded, secret, "POST", "/v1/jobs", body)).status_code == 403
    changed = {**role, "Policies": [{"Name": "w"}]}
    await guarded.post(f"/v1/acl/role/{role['ID']}", changed)
    assert (await as_(guarded, secret, "POST", "/v1/jobs", body)).status_code == 200
    await guarded.request("DELETE", f"/v1/acl/role/{role['ID']}")
    assert (await as_(guarded, secret, "GET", "/v1/jobs")).status_code == 403


async def test_revoked_token_is_refused_immediately(guarded: Steward) -> None:
    secret = await new_token(guarded, 'namespace "default" { policy = "read" }')
    assert (await as_(guarded, secret, "GET", "/v1/jobs")).status_code == 200
    response = await as_(guarded, secret, "GET", "/v1/acl/token/self")
    await guarded.request("DELETE", f"/v1/acl/token/{response.json()['AccessorID']}")
    assert (await as_(guarded, secret, "GET", "/v1/jobs")).status_code == 403


async def test_secrets_are_shown_once(guarded: Steward) -> None:
    token = await guarded.post("/v1/acl/token", {"Name": "ops", "Type": "management"})
    assert token["SecretID"]
    path = f"/v1/acl/token/{token['AccessorID']}"
    assert (await guarded.get(path))["SecretID"] == ""
    assert (await as_(guarded, token["SecretID"], "GET", path)).json()["SecretID"]
    listed = await guarded.request("GET", "/v1/acl/tokens")
    assert "SecretID" not in listed.text


async def test_lists_can_be_filtered(guarded: Steward) -> None:
    rules = 'namespace "default" { policy = "read" }'
    for name in ("seen", "other"):
        await guarded.request("POST", f"/v1/acl/policy/{name}", {"Name": name, "Rules": rules})
        await guarded.post("/v1/acl/role", {"Name": name, "Policies": [{"Name": name}]})
        await guarded.post("/v1/acl/token", {"Name": name, "Type": "client", "Policies": [name]})
    for path in ("/v1/acl/policies", "/v1/acl/roles", "/v1/acl/tokens"):
        found = await guarded.get(f"{path}?filter=Name%20==%20%22seen%22")
        assert [item["Name"] for item in found] == ["seen"]
        wrong = await guarded.request("GET", f"{path}?filter=Nane%20==%20%22seen%22")
        assert (wrong.status_code, "Nane" in wrong.text) == (400, True)


# method, path, body, the text of the answer
MISTAKES: list[tuple[str, str, Any, str]] = [
    ("GET", "/v1/acl/role/nope", None, "ACL role not found"),
    ("GET", "/v1/acl/role/name/nope", None, "ACL role not found"),
    ("GET", "/v1/acl/token/nope", None, "ACL token not found"),
    ("DELETE", "/v1/acl/role/nope", None, "ACL role not found"),
    (
        "POST",
        "/v1/acl/role",
        {"Name": "a b"},
        "role 0 invalid: 2 errors occurred:\n\t* invalid name 'a b'\n"
        "\t* at least one policy should be specified\n\n",
    ),
    (
        "POST",
        "/v1/acl/role",
        {"Name": "r", "Policies": [{"Name": "nope"}]},
        "role 0 invalid: 1 error occurred:\n\t* cannot find policy nope\n\n",
    ),
    ("POST", "/v1/acl/role/x", {"ID": "y"}, "ACL role ID does not match request path"),
    (
        "POST",
        "/v1/acl/token",
        {"Type": "client", "Policies": ["root"]},
        'token 0 invalid: 1 error occurred:\n\t* policy "root" is built in: '
        "a client token cannot have it\n\n",
    ),
    ("POST", "/v1/acl/token", {"Type": "client", "Roles": [{"ID": "x"}]}, "cannot find role x"),
    (
        "POST",
        "/v1/acl/token",
        {"Type": "management", "ExpirationTTL": "25h"},
        "token 0 invalid: 1 error occurred:\n\t* expiration time cannot be more than 24h0m0s "
        "in the future (was 25h0m0s)\n\n",
    ),
    (
        "POST",
        "/v1/acl/token",
        {"Type": "management", "ExpirationTTL": "soon"},
        "ExpirationTTL or ExpirationTime cannot be read: 'soon' is not a duration such as "
        "250ms or 1h30m",
    ),
    *[
        (
            "POST",
            "/v1/acl/token",
            {"Type": "management", "ExpirationTTL": value},
            f"ExpirationTTL or ExpirationTime cannot be read: {shown} is neither a duration, such "
            "as 1h30m, nor a whole number of nanoseconds",
        )
        for value, shown in ((True, "true"), ([60], "[60]"), (6e10 + 0.5, "60000000000.5"))
    ],
    (
        "POST",
        "/v1/acl/token",
        {"Type": "management", "ExpirationTTL": 1e30},
        "token 0 invalid: 1 error occurred:\n\t* expiration time cannot be more than 24h0m0s in "
        "the future (was 277777777777777783h18m4.624838656s)\n\n",
    ),
    ("POST", "/v1/acl/token", {"AccessorID": "x", "Type": "management"}, "cannot find token x"),
    (
        "POST",
        "/v1/acl/policy/root",
        {"Name": "root"},
        "policy 0 invalid: 1 error occurred:\n\t* invalid name 'root': it is built in\n\n",
    ),
]


async def test_invalid_input_is_reported(guarded: Steward) -> None:
    answers = [await guarded.request(method, path, body) for method, path, body, _ in MISTAKES]
    assert [answer.text for answer in answers] == [text for *_, text in MISTAKES]
    assert {answer.status_code for answer in answers} == {400, 404}


async def test_token_expires_after_a_number_of_nanoseconds_in_any_spelling(
    guarded: Steward,
) -> None:
    for number in (b"60000000000", b"6e10", b"60000000000.0"):
        body = msgspec.Raw(b'{"Type": "management", "ExpirationTTL": %b}' % number)
        assert (await guarded.post("/v1/acl/token", body))["ExpirationTTL"] == "1m0s"


async def test_one_time_token_transfers_a_token(guarded: Steward) -> None:
    secret = await new_token(guarded, 'namespace "default" { policy = "read" }')
    made = (await as_(guarded, secret, "POST", "/v1/acl/token/onetime")).json()["OneTimeToken"]
    assert made["OneTimeSecretID"] not in ("", secret)
    body = {"OneTimeSecretID": made["OneTimeSecretID"]}
    path = "/v1/acl/token/onetime/exchange"
    token = (await as_(guarded, "", "POST", path, body)).json()["Token"]
    assert (token["SecretID"], token["AccessorID"]) == (secret, made["AccessorID"])
    assert (await as_(guarded, "", "POST", path, body)).status_code == 403


async def test_one_time_token_transfers_a_batch_token(guarded: Steward) -> None:
    fields = {"type": "batch", "policies": ["default"], "ttl": "1h"}
    batch = (await guarded.post("/v1/auth/token/create", fields))["auth"]["client_token"]
    made = (await as_(guarded, batch, "POST", "/v1/acl/token/onetime")).json()["OneTimeToken"]
    body = {"OneTimeSecretID": made["OneTimeSecretID"]}
    exchanged = await as_(guarded, "", "POST", "/v1/acl/token/onetime/exchange", body)
    assert exchanged.json()["Token"]["SecretID"] == batch


async def test_request_without_a_token_creates_no_one_time_token(guarded: Steward) -> None:
    refusal = await as_(guarded, "", "POST", "/v1/acl/token/onetime")
    assert (refusal.status_code, refusal.text) == (
        400,
        "a one-time token represents an existing token: send that token with the request",
    )


async def test_caller_lists_its_own_policies(guarded: Steward) -> None:
    await guarded.request("POST", "/v1/acl/policy/other", {"Name": "other", "Rules": ""})
    token = await new_token(guarded, 'node { policy = "read" }')
    mine = await as_(guarded, token, "GET", "/v1/acl/policy/self")
    assert [policy["Name"] for policy in mine.json()] == ["p"]
    everything = await guarded.get("/v1/acl/policy/self")
    assert [policy["Name"] for policy in everything] == ["other", "p"]
    assert (await as_(guarded, "", "GET", "/v1/acl/policy/self")).json() == []
