"""A client without a token, or with a token of few capabilities, against a daemon with access
control."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.service.daemon import Steward, open_steward

SECRET = "0f4dc1d2-8a8e-4b77-8b2f-3d1f0a6c5e11"  # noqa: S105  # of a test
SCRIPT = 'printf s3cret > "$NOMAD_SECRETS_DIR/password.txt"; exec sleep 600'
TASK = {
    "Name": "main",
    "Driver": "raw_exec",
    "Config": {"command": "/bin/sh", "args": ["-c", SCRIPT]},
}
JOB = {"ID": "hidden", "Type": "batch", "TaskGroups": [{"Name": "g", "Tasks": [TASK]}]}
READ_FILES = 'namespace "default" { capabilities = ["read-job", "read-logs", "read-fs"] }'
READ_SECRETS = 'namespace "default" { capabilities = ["read-fs", "read-secrets"] }'
VERBS = ("ls", "stat", "cat", "readat", "stream")


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Steward]:
    """Run a daemon that requires tokens and runs a job with a secret file."""
    async with open_steward(tmp_path, "--dev", "--acl") as steward:
        await steward.post("/v1/acl/bootstrap", {"BootstrapSecret": SECRET})
        steward.token = SECRET
        yield steward


async def token_with(steward: Steward, rules: str) -> str:
    """Return the secret of a new token with these rules."""
    await steward.request("POST", "/v1/acl/policy/p", {"Name": "p", "Rules": rules})
    token = await steward.post("/v1/acl/token", {"Type": "client", "Policies": ["p"]})
    return str(token["SecretID"])


async def ask(steward: Steward, alloc: str, verb: str, path: str) -> httpx.Response:
    query = {"path": path, "offset": "0", "limit": "99", "follow": "false"}
    return await steward.request("GET", f"/v1/client/fs/{verb}/{alloc}", **query)


async def running(steward: Steward) -> Any:
    """Return the ID of the job's allocation as soon as the task has written the secret."""
    (alloc,) = await steward.run_job(JOB)
    secret = next(steward.data_dir.rglob("password.txt"), None)
    while secret is None or not secret.stat().st_size:
        await steward.get("/v1/agent/self")
        secret = next(steward.data_dir.rglob("password.txt"), None)
    return alloc["ID"]


async def test_caller_with_read_fs_sees_no_secret_files(guarded: Steward) -> None:
    alloc = await running(guarded)
    guarded.token = await token_with(guarded, READ_FILES)
    there = {(verb, "main/secrets/password.txt") for verb in VERBS}
    missing = {(verb, "main/secrets/nothing.txt") for verb in VERBS}
    answers = {key: await ask(guarded, alloc, *key) for key in sorted(there | missing)}
    for verb in VERBS:
        known = answers[verb, "main/secrets/password.txt"]
        guess = answers[verb, "main/secrets/nothing.txt"]
        assert known.status_code == guess.status_code
        assert known.text.replace("password", "nothing") == guess.text
        assert "s3cret" not in known.text
    for place in ("main/secrets", "main/private"):
        assert (await ask(guarded, alloc, "ls", place)).status_code == 403
        assert (await ask(guarded, alloc, "stat", place)).status_code == 403
    listed = (await ask(guarded, alloc, "ls", "main")).json()
    assert {"secrets", "private"} & {item["Name"] for item in listed} == set()


async def test_caller_with_read_secrets_lists_secret_files(guarded: Steward) -> None:
    alloc = await running(guarded)
    guarded.token = await token_with(guarded, READ_SECRETS)
    listed = (await ask(guarded, alloc, "ls", "main/secrets")).json()
    assert [(item["Name"], item["Size"]) for item in listed] == [("password.txt", 6)]
    read = await ask(guarded, alloc, "cat", "main/secrets/password.txt")
    assert read.text == "Reading secret file prohibited: main/secrets/password.txt"


@pytest.mark.parametrize("token", ["", "garbage", "11111111-1111-1111-1111-111111111111"])
@pytest.mark.parametrize("path", ["/v1/metrics", "/v1/event/stream"])
async def test_caller_without_token_gets_neither_metrics_nor_events(
    guarded: Steward, path: str, token: str
) -> None:
    await guarded.register(JOB)
    guarded.token = token
    answer = await guarded.request("GET", path)
    assert answer.status_code == 403
    assert "hidden" not in answer.text


@pytest.mark.parametrize(
    ("rules", "is_shown"),
    [
        (READ_FILES, True),
        ('agent { policy = "read" }', True),
        ('namespace "elsewhere" { policy = "write" }', False),
        ('node { policy = "read" }', False),
    ],
)
async def test_metrics_name_only_jobs_that_the_token_may_see(
    guarded: Steward, rules: str, is_shown: bool
) -> None:
    await guarded.register(JOB)
    guarded.token = await token_with(guarded, rules)
    answer = await guarded.request("GET", "/v1/metrics")
    assert answer.status_code == 200
    assert ("hidden" in answer.text) is is_shown


async def test_anonymous_policy_for_the_agent_opens_metrics(guarded: Steward) -> None:
    rules = {"Name": "anonymous", "Rules": 'agent { policy = "read" }'}
    await guarded.request("POST", "/v1/acl/policy/anonymous", rules)
    guarded.token = ""
    assert (await guarded.request("GET", "/v1/metrics")).status_code == 200


async def test_setting_opens_metrics(tmp_path: Path) -> None:
    config = tmp_path / "steward.toml"
    config.write_text("metrics_public = true\n")
    async with open_steward(tmp_path, "--dev", "--acl", "--config", str(config)) as steward:
        assert (await steward.request("GET", "/v1/metrics")).status_code == 200
