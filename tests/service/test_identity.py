"""Identity tokens of a real daemon: their public keys, and tasks that use their tokens."""

import json
from pathlib import Path
from typing import Any

import trio

from tests.fakes.fakecloud import unb64u, verify_jwt_signature
from tests.service.daemon import Steward, as_development, open_steward

ASK = """
import json, os, sys, urllib.request
token = open(os.environ["NOMAD_SECRETS_DIR"] + "/nomad_token").read()
def ask(path, method="GET"):
    request = urllib.request.Request(sys.argv[1] + path, method=method)
    request.add_header("Authorization", "Bearer " + token)
    try:
        return urllib.request.urlopen(request).status
    except urllib.error.HTTPError as error:
        return error.code
print(json.dumps([ask(*one.split("!")) for one in sys.argv[2:]]), flush=True)
"""


def asking(steward: Steward, *asked: str, job_id: str = "nosy", **fields: object) -> Any:
    """Return a job whose task requests these paths with its own token, and prints the responses."""
    task = {
        "Name": "main",
        "Driver": "raw_exec",
        "Config": {"command": "python3", "args": ["-c", ASK, steward.address, *asked]},
        "Identities": [{"Name": "default", "File": True, "Env": True}],
        "Resources": {"CPU": 20, "MemoryMB": 50},
        "LogConfig": {"MaxFiles": 1, "MaxFileSizeMB": 1},
        **fields,
    }
    group = {"Name": "g", "Tasks": [task], "EphemeralDisk": {"SizeMB": 10}}
    return {"ID": job_id, "Type": "batch", "TaskGroups": [group]}


async def answers(steward: Steward, job: Any) -> list[int]:
    await steward.register(job)
    (allocation,) = await steward.allocations(job["ID"], "complete")
    printed: list[int] = json.loads(await steward.log_of(allocation["ID"], "main"))
    return printed


async def test_task_accesses_its_own_job_and_its_variables(tmp_path: Path) -> None:
    async with open_steward(tmp_path, *as_development(tmp_path)) as steward:
        for path in ("nomad/jobs/nosy/g/main", "nomad/jobs/nosy", "nomad/jobs/other", "free"):
            await steward.post(f"/v1/var/{path}", {"Items": {"k": "v"}})
        await steward.register(asking(steward, job_id="other", Driver="nowhere"))
        allowed = (
            "/v1/job/nosy",
            "/v1/job/nosy/allocations",
            "/v1/var/nomad/jobs/nosy/g/main",
            "/v1/var/nomad/jobs/nosy",
            "/v1/acl/token/self",
        )
        refused = (
            "/v1/job/other",
            "/v1/jobs",
            "/v1/var/nomad/jobs/other",
            "/v1/var/free",
            "/v1/nodes",
            "/v1/job/nosy!DELETE",
            "/v1/operator/audit",
        )
        found = await answers(steward, asking(steward, *allowed, *refused))
        assert found[: len(allowed)] == [200] * len(allowed)
        assert found[len(allowed) :] == [403] * len(refused)


async def test_policy_can_grant_a_job_more_permissions(tmp_path: Path) -> None:
    async with open_steward(tmp_path, *as_development(tmp_path)) as steward:
        rules = 'namespace "default" { capabilities = ["list-jobs"] }'
        policy = {"Name": "p", "Rules": rules, "JobACL": {"JobID": "nosy"}}
        await steward.request("PUT", "/v1/acl/policy/p", policy)
        assert await answers(steward, asking(steward, "/v1/jobs")) == [200]
        other = asking(steward, "/v1/jobs", job_id="other")
        assert await answers(steward, other) == [403]


async def test_a_token_ends_with_its_allocation(tmp_path: Path) -> None:
    async with open_steward(tmp_path, *as_development(tmp_path)) as steward:
        job = asking(steward, "/v1/job/nosy")
        script = 'cat "$NOMAD_SECRETS_DIR/nomad_token"'
        job["TaskGroups"][0]["Tasks"][0]["Config"] = {"command": "sh", "args": ["-c", script]}
        await steward.register(job)
        (allocation,) = await steward.allocations("nosy", "complete")
        steward.token, first = await steward.log_of(allocation["ID"], "main"), steward.token
        assert (await steward.request("GET", "/v1/job/nosy")).status_code == 403
        assert first


async def test_third_party_can_verify_a_task_token_which_is_renewed(steward: Steward) -> None:
    job = asking(steward)
    task = job["TaskGroups"][0]["Tasks"][0]
    task["Identities"] = [
        {
            "Name": "them",
            "Audience": ["them.example"],
            "File": True,
            "TTL": 4 * 10**9,
            "ChangeMode": "signal",
            "ChangeSignal": "SIGHUP",
        }
    ]
    script = """
    cat $NOMAD_SECRETS_DIR/nomad_them.jwt; echo
    trap 'cat $NOMAD_SECRETS_DIR/nomad_them.jwt; echo; exit 0' HUP
    while :; do sleep 0.1; done
    """
    task["Config"] = {"command": "sh", "args": ["-c", script]}
    await steward.register(job)
    with trio.fail_after(60):
        (allocation,) = await steward.allocations("nosy", "complete")
    first, second = (await steward.log_of(allocation["ID"], "main")).split()
    (published,) = (await steward.get("/.well-known/jwks.json"))["keys"]
    assert verify_jwt_signature(first, published)
    assert verify_jwt_signature(second, published)
    said = [json.loads(unb64u(token.split(".")[1])) for token in (first, second)]
    assert said[0]["aud"] == said[1]["aud"] == ["them.example"]
    assert said[0]["sub"] == said[1]["sub"] == "global:default:nosy:g:main:them"
    assert said[1]["iat"] > said[0]["iat"]
    assert said[0]["iss"] == steward.address


async def test_issuer_publishes_its_discovery_document(steward: Steward) -> None:
    described = await steward.get("/.well-known/openid-configuration")
    assert described["issuer"] == steward.address
    assert described["jwks_uri"] == f"{steward.address}/.well-known/jwks.json"
    assert described["id_token_signing_alg_values_supported"] == ["RS256"]
    answer = await steward.request("GET", "/.well-known/jwks.json")
    assert answer.headers["Cache-Control"] == "public, max-age=3600"
    (key,) = answer.json()["keys"]
    assert (key["kty"], key["alg"], key["use"]) == ("RSA", "RS256", "sig")
    assert "d" not in key


async def test_signing_keys_survive_a_restart(steward: Steward) -> None:
    before = await steward.get("/.well-known/jwks.json")
    await steward.restart()
    assert await steward.get("/.well-known/jwks.json") == before
