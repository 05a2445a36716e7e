"""Login with the identity of the host, and a new login when the token is revoked or expired."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from steward_client import Client, CloudLogin, Denied, LoginFailed

from tests.client_library.programs import Backend
from tests.service.daemon import Steward, open_steward

SECRET = "0f4dc1d2-8a8e-4b77-8b2f-3d1f0a6c5e22"  # noqa: S105  # of a test
READER = 'namespace "default" { policy = "read" }'


@pytest.fixture
async def steward(tmp_path: Path) -> AsyncIterator[Steward]:
    """Run a daemon with a small cloud, ACLs and a role."""
    config = tmp_path / "steward.toml"
    config.write_text("dev_cloud_port = 0\n")
    flags = ("--dev", "--acl", "--dev-cloud", "--config", str(config))
    async with open_steward(tmp_path, *flags) as opened:
        await opened.post("/v1/acl/bootstrap", {"BootstrapSecret": SECRET})
        opened.token = SECRET
        policy = {"Name": "reader", "Rules": READER}
        await opened.request("POST", "/v1/acl/policy/reader", policy)
        role = {"token_policies": ["reader"]}
        assert (await opened.request("POST", "/v1/auth/cloudid/role/dev", role)).status_code == 204
        yield opened


def metadata_url(steward: Steward) -> str:
    log = steward.log.read_text()
    return next(
        line for line in log.splitlines() if "the simulated cloud is at" in line
    ).rpartition(" ")[2]


async def test_revoked_token_is_replaced_by_a_new_login(backend: Backend, steward: Steward) -> None:
    login = CloudLogin(role="dev", metadata_url=metadata_url(steward))

    async def program() -> tuple[str, str]:
        async with Client(steward.address, login=login) as client:
            tokens = client._connection.tokens
            first = await tokens.token()
            await client.request("POST", "/v1/auth/token/revoke-self", body={})
            await client.jobs()
            return first, await tokens.token()

    first, second = await backend.run(program)
    assert first != second


async def test_denied_request_is_not_repeated(backend: Backend, steward: Steward) -> None:
    login = CloudLogin(role="dev", metadata_url=metadata_url(steward))

    async def program() -> tuple[str, str]:
        async with Client(steward.address, login=login) as client:
            before = await client._connection.tokens.token()
            with pytest.raises(Denied):
                await client.stop("nothing")
            return before, await client._connection.tokens.token()

    before, after = await backend.run(program)
    assert before == after


async def test_login_without_a_role_fails_with_the_reason(
    backend: Backend, steward: Steward
) -> None:
    login = CloudLogin(role="missing", metadata_url=metadata_url(steward))

    async def program() -> None:
        async with Client(steward.address, login=login) as client:
            await client.jobs()

    with pytest.raises(LoginFailed, match="missing"):
        await backend.run(program)
