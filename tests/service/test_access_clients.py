"""Nomad's and Vault's client libraries, used for tokens and policies."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.service.daemon import Steward, open_steward

hvac = pytest.importorskip("hvac")
nomad = pytest.importorskip("nomad")

SECRET = "0f4dc1d2-8a8e-4b77-8b2f-3d1f0a6c5e11"  # noqa: S105  # of a test
RULES = 'namespace "default" { policy = "read" }\npath "sys/auth" { capabilities = ["read"] }'


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Steward]:
    """Run a daemon that requires tokens; use its bootstrap token."""
    async with open_steward(tmp_path, "--dev", "--acl") as steward:
        await steward.post("/v1/acl/bootstrap", {"BootstrapSecret": SECRET})
        yield steward


async def driven(steward: Steward, work: Callable[[str], Any]) -> Any:
    """Call blocking work in a thread, with the address of the daemon; return the result."""
    return await trio.to_thread.run_sync(work, steward.address)


def of_secrets(url: str, token: str = SECRET) -> Any:
    return hvac.Client(url=url, token=token)


def of_jobs(url: str, token: str = SECRET) -> Any:
    host, _, port = url.removeprefix("http://").rpartition(":")
    return nomad.Nomad(host=host, port=int(port), token=token, timeout=30)


async def test_policies_are_written_and_read(guarded: Steward) -> None:
    def work(url: str) -> Any:
        client = of_secrets(url)
        client.sys.create_or_update_policy("staff", RULES)
        read = client.sys.read_policy("staff")["data"]["rules"]
        names = client.sys.list_policies()["data"]["keys"]
        client.sys.delete_policy("staff")
        return read, names

    assert await driven(guarded, work) == (RULES, ["default", "root", "staff"])


async def test_token_is_created_renewed_and_revoked(guarded: Steward) -> None:
    def work(url: str) -> None:
        root = of_secrets(url)
        root.sys.create_or_update_policy("staff", RULES)
        made = root.auth.token.create(policies=["staff"], ttl="1h", meta={"who": "anna"})["auth"]
        own = of_secrets(url, made["client_token"])
        assert own.is_authenticated()
        assert own.lookup_token()["data"]["policies"] == ["default", "staff"]
        assert "token/" in own.sys.list_auth_methods()["data"]
        assert own.auth.token.renew_self(increment="10m")["auth"]["lease_duration"] == 600
        looked = root.auth.token.lookup_accessor(made["accessor"])["data"]
        assert (looked["id"], looked["meta"]) == ("", {"who": "anna"})
        assert made["accessor"] in root.auth.token.list_accessors()["data"]["keys"]
        allowed = root.sys.get_capabilities(paths=["sys/auth"], token=made["client_token"])
        assert allowed["data"]["capabilities"] == ["read"]
        root.auth.token.revoke_accessor(made["accessor"])
        assert not own.is_authenticated()
        with pytest.raises(hvac.exceptions.Forbidden):
            own.sys.list_auth_methods()

    await driven(guarded, work)


async def test_roles_and_wrapped_responses_work(guarded: Steward) -> None:
    def work(url: str) -> None:
        client = of_secrets(url)
        client.auth.token.create_or_update_role("ops", allowed_policies=["staff"], orphan=True)
        assert client.auth.token.read_role("ops")["data"]["orphan"] is True
        made = client.auth.token.create(role_name="ops")["auth"]
        assert made["policies"] == ["default", "staff"]
        wrapped = client.sys.wrap({"password": "swordfish"}, ttl=60)["wrap_info"]
        assert client.sys.unwrap(wrapped["token"])["data"] == {"password": "swordfish"}
        with pytest.raises(hvac.exceptions.InvalidRequest):
            client.sys.unwrap(wrapped["token"])

    await driven(guarded, work)


async def test_jobs_api_manages_the_same_tokens(guarded: Steward) -> None:
    def work(url: str) -> None:
        root = of_jobs(url)
        root.acl.create_policy("staff", {"Name": "staff", "Rules": RULES})
        assert root.acl.get_policy("staff")["Rules"] == RULES
        body = {"Name": "anna", "Type": "client", "Policies": ["staff"]}
        made = root.acl.create_token(body)
        own = of_jobs(url, made["SecretID"])
        assert own.jobs.get_jobs() == []
        assert own.acl.get_self_token()["Name"] == "anna"
        assert "token/" in of_secrets(url, made["SecretID"]).sys.list_auth_methods()["data"]
        with pytest.raises(nomad.api.exceptions.URLNotAuthorizedNomadException):
            own.acl.get_tokens()
        changed = {**body, "AccessorID": made["AccessorID"], "Name": "bob"}
        assert root.acl.update_token(made["AccessorID"], changed)["Name"] == "bob"
        root.acl.delete_token(made["AccessorID"])
        with pytest.raises(nomad.api.exceptions.URLNotAuthorizedNomadException):
            own.jobs.get_jobs()

    await driven(guarded, work)
