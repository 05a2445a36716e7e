"""A virtual machine logs in with its cloud identity, and has only its token's permissions."""

import json
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import trio

from tests.service.daemon import Steward, open_steward

SECRET = "0f4dc1d2-8a8e-4b77-8b2f-3d1f0a6c5e22"  # noqa: S105  # of a test
DISPATCHER = 'namespace "default" { capabilities = ["dispatch-job"] }'


def parameterized(namespace: str = "default") -> dict[str, object]:
    task = {"Name": "main", "Driver": "raw_exec", "Config": {"command": "/bin/true"}}
    return {
        "ID": "report",
        "Namespace": namespace,
        "Type": "batch",
        "Datacenters": ["*"],
        "ParameterizedJob": {},
        "TaskGroups": [{"Name": "g", "Tasks": [task]}],
    }


@pytest.fixture
async def steward(tmp_path: Path) -> AsyncIterator[Steward]:
    """Run a daemon that requires tokens and has a small cloud; use its bootstrap token."""
    config = tmp_path / "steward.toml"
    config.write_text("dev_cloud_port = 0\n")
    flags = ("--dev", "--acl", "--dev-cloud", "--config", str(config))
    async with open_steward(tmp_path, *flags) as opened:
        await opened.post("/v1/acl/bootstrap", {"BootstrapSecret": SECRET})
        opened.token = SECRET
        yield opened


def settings(steward: Steward) -> dict[str, str]:
    """Return the environment of a command that runs on the virtual machine of the small cloud."""
    log = steward.log.read_text()
    url = next(line for line in log.splitlines() if "the simulated cloud is at" in line).rpartition(
        " "
    )[2]
    return {
        "STEWARD_CLOUD_METADATA_URL": url,
        "STEWARD_TOKEN_FILE": str(steward.directory / "kept" / "token"),
    }


def kept_token(variables: dict[str, str]) -> str:
    """Return the token that a login has stored; only its user can read the file."""
    kept = Path(variables["STEWARD_TOKEN_FILE"])
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    return kept.read_text().strip()


async def test_machine_logs_in_and_has_only_the_permissions_of_its_token(steward: Steward) -> None:
    variables = settings(steward)
    await steward.request("POST", "/v1/namespace/other", {"Name": "other"})
    for namespace in ("default", "other"):
        await steward.register(parameterized(namespace))
    await steward.request(
        "POST", "/v1/acl/policy/dispatcher", {"Name": "dispatcher", "Rules": DISPATCHER}
    )
    role = {"token_policies": ["dispatcher"], "token_no_default_policy": True}
    assert (await steward.request("POST", "/v1/auth/cloudid/role/dev", role)).status_code == 204

    done = await steward.cli("login", "--role", "dev", **variables)
    assert done.returncode == 0, done.stderr
    steward.token = kept_token(variables)

    dispatched = await steward.post("/v1/job/report/dispatch", {})
    assert dispatched["DispatchedJobID"].startswith("report/dispatch-")
    refused = [
        await steward.request("POST", "/v1/job/report/dispatch", {}, namespace="other"),
        await steward.request("GET", "/v1/job/report"),
        await steward.request("POST", "/v1/jobs", {"Job": parameterized()}),
        await steward.request("GET", "/v1/nodes"),
        await steward.request("GET", "/v1/auth/cloudid/config"),
        await steward.request("GET", "/v1/auth/token/lookup-self"),
        await steward.request("POST", "/v1/sys/auth/other", {"type": "cloudid"}),
    ]
    assert [answer.status_code for answer in refused] == [403] * len(refused)


async def test_commands_use_the_stored_token_of_a_login(steward: Steward) -> None:
    variables = settings(steward)
    await steward.cli("login", "--role", "dev", **variables)
    assert (await steward.cli("status", **variables)).stdout == b"No jobs\n"
    assert (await steward.cli("logout", **variables)).returncode == 0
    assert (await steward.cli("status", **variables)).returncode == 1


async def test_explain_names_the_refusing_rule(steward: Steward) -> None:
    variables = settings(steward)
    good = await steward.cli("auth", "explain", "--role", "dev", **variables, STEWARD_TOKEN=SECRET)
    assert good.returncode == 0
    assert b"bound_subscription_ids" in good.stdout
    other = {"bound_subscription_ids": "00000000-0000-4000-8000-000000000000"}
    await steward.request("POST", "/v1/auth/cloudid/role/dev", other)
    bad = await steward.cli("auth", "explain", "--role", "dev", **variables, STEWARD_TOKEN=SECRET)
    assert bad.returncode == 1
    assert b"bound_subscription_ids: subscription not authorized" in bad.stdout
    refused = await steward.cli("login", "--role", "dev", **variables)
    assert b"subscription not authorized" in refused.stderr


async def test_login_accepts_an_external_token(steward: Steward, tmp_path: Path) -> None:
    done = await steward.cli(
        *("login", "--role", "dev", "--jwt-file", "-", "--no-store"),
        stdin="garbage",
        **settings(steward),
    )
    assert b"malformed jwt" in done.stderr


async def test_host_outside_the_cloud_has_no_metadata_service(steward: Steward) -> None:
    done = await steward.cli(
        "login", "--role", "dev", STEWARD_CLOUD_METADATA_URL="http://127.0.0.1:1"
    )
    assert b"no metadata service at http://127.0.0.1:1" in done.stderr
    assert b"--jwt-file" in done.stderr


async def test_tokens_readable_by_others_are_not_used(steward: Steward) -> None:
    variables = settings(steward)
    await steward.cli("login", "--role", "dev", **variables)
    await trio.Path(variables["STEWARD_TOKEN_FILE"]).chmod(0o644)
    done = await steward.cli("status", **variables)
    assert b"other users can read the token file" in done.stderr


async def test_incomplete_or_invalid_issuer_keeps_the_stored_one(steward: Steward) -> None:
    path = "/v1/identity/oidc/config"
    await steward.request("POST", path, {"issuer": "https://steward.example:8443/"})
    refused = ("https://[::1", "https://a:99999", "https://a:", "https://a]", "https://[::1]x")
    for issuer in refused:
        answer = await steward.request("POST", path, {"issuer": issuer})
        assert answer.status_code == 400, issuer
        assert "invalid issuer" in answer.text
    for body in ({}, {"isuer": "https://other.example"}):
        assert (await steward.request("POST", path, body)).status_code in (200, 204)
    assert (await steward.get(path))["data"]["issuer"] == "https://steward.example:8443"
    answer = await steward.request("POST", path, {"issuer": "https://[::1]:8443"})
    assert answer.status_code == 200
    assert (await steward.request("POST", path, {"issuer": ""})).status_code == 204
    assert (await steward.get(path))["data"]["issuer"] == ""


async def test_public_documents_can_be_exported(steward: Steward, tmp_path: Path) -> None:
    await steward.request("POST", "/v1/identity/oidc/config", {"issuer": "https://steward.example"})
    done = await steward.cli("identity", "export", str(tmp_path / "public"))
    assert done.returncode == 0, done.stderr
    root = tmp_path / "public/v1/identity/oidc/plugins/.well-known"
    described = json.loads((root / "openid-configuration").read_text())
    assert described["issuer"] == "https://steward.example/v1/identity/oidc/plugins"
    assert described["jwks_uri"] == f"{described['issuer']}/.well-known/keys"
    (key,) = json.loads((root / "keys").read_text())["keys"]
    assert key["kty"] == "RSA"


async def test_development_setup_outlasts_the_daemon(steward: Steward) -> None:
    await steward.cli("login", "--role", "dev", **settings(steward))
    steward.log.unlink()
    await steward.kill_and_restart()
    done = await steward.cli("login", "--role", "dev", **settings(steward))
    assert done.returncode == 0, done.stderr


async def test_audit_log_has_the_reason_of_a_refused_login(steward: Steward) -> None:
    variables = settings(steward)
    other = {"bound_service_principal_ids": "another"}
    await steward.request("POST", "/v1/auth/cloudid/role/dev", other)
    await steward.cli("login", "--role", "dev", **variables)
    path = "/v1/auth/cloudid/login"
    (found,) = await steward.until(
        "/v1/operator/audit", lambda shown: shown, refused=True, path=path
    )
    assert found["Status"] == 500
    assert found["Reason"].startswith("role dev: bound_service_principal_ids (oid: ")


async def test_a_second_listener_serves_two_public_documents_and_nothing_else(
    tmp_path: Path,
) -> None:
    config = tmp_path / "steward.toml"
    config.write_text('issuer_bind = "127.0.0.1"\nissuer_port = 0\n')
    async with (
        open_steward(tmp_path, "--dev", "--config", str(config)) as steward,
        httpx.AsyncClient(headers={"Host": "steward.example"}) as client,
    ):
        log = steward.log.read_text()
        line = next(line for line in log.splitlines() if "public documents" in line)
        url = f"http://127.0.0.1:{line.rpartition(' ')[2]}"
        root = f"{url}/v1/identity/oidc/plugins/.well-known"
        described = await client.get(f"{root}/openid-configuration")
        assert described.json()["issuer"].endswith("/v1/identity/oidc/plugins")
        assert "max-age" in described.headers["Cache-Control"]
        assert (await client.get(f"{root}/keys")).json()["keys"]
        others = ("/", "/v1/jobs", "/v1/sys/health", "/v1/auth/cloudid/login", "/v1/agent/self")
        answers = [await client.get(f"{url}{path}") for path in others]
        assert all(answer.status_code in (307, 403, 404) for answer in answers)
        assert (await client.post(f"{root}/keys")).status_code == 405


async def test_metrics_report_the_age_of_the_tokens_of_the_daemon(steward: Steward) -> None:
    done = await steward.cli("login", "--role", "dev", **settings(steward))
    assert done.returncode == 0, done.stderr
    shown = (await steward.request("GET", "/v1/metrics")).json()["Gauges"]
    (age,) = [gauge for gauge in shown if gauge["Name"] == "steward.cloud_token.age_seconds"]
    assert age["Labels"] == {"mount": "cloudid/"}
    assert 0 <= age["Value"] < 60
    (keys,) = [gauge for gauge in shown if gauge["Name"] == "steward.directory_keys.age_seconds"]
    assert keys["Labels"] == {"mount": "cloudid/"}
    assert 0 <= keys["Value"] < 60
    await steward.request("DELETE", "/v1/sys/auth/cloudid")
    shown = (await steward.request("GET", "/v1/metrics")).json()["Gauges"]
    assert [gauge for gauge in shown if gauge["Name"] in (age["Name"], keys["Name"])] == []


async def test_login_finds_the_cloud_of_its_daemon_on_any_port(steward: Steward) -> None:
    variables = settings(steward)
    del variables["STEWARD_CLOUD_METADATA_URL"]
    done = await steward.cli("login", "--role", "dev", **variables)
    assert done.returncode == 0, done.stderr
    assert kept_token(variables)
