"""The client library hvac with the cloud login method, called as the users of hvac call it."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.fakes import fakecloud
from tests.wire.login import CLIENT_ID, CLIENT_SECRET, RESOURCE, URLS, bootstrap, cloud
from tests.wire.scenarios import daemon

hvac = pytest.importorskip(
    "hvac", reason="the client library is missing: install the group dev of pyproject.toml"
)
MACHINE = (
    f"/subscriptions/{fakecloud.SUB_A}/resourceGroups/rg-one/providers/Microsoft.Compute/"
    "virtualMachines/vm-sys"
)


@pytest.fixture(scope="module")
def world() -> Iterator[tuple[str, str, str]]:
    with cloud() as cloud_url:
        urls = {f"STEWARD_CLOUD_{name.upper()}_URL": cloud_url for name in URLS}
        with daemon("--acl", environment=urls) as url:
            yield url, cloud_url, bootstrap(url)


@pytest.fixture
def operator(world: tuple[str, str, str]) -> Iterator[Any]:
    """Enable and configure the login method at a path, with the calls that hvac has for Azure."""
    url, _, token = world
    client = hvac.Client(url=url, token=token)
    client.sys.enable_auth_method("azure", path="machines", description="ours")
    client.auth.azure.configure(
        tenant_id=fakecloud.TENANT,
        resource=RESOURCE,
        client_id=CLIENT_ID,
        client_secret=CLIENT_SECRET,
        mount_point="machines",
    )
    yield client
    client.sys.disable_auth_method("machines")


def minted(cloud_url: str) -> str:

    answer = httpx.post(
        f"{cloud_url}/_control/mint", json={"resource_id": MACHINE, "audience": RESOURCE}
    )
    token: str = answer.json()["access_token"]
    return token


def test_a_method_is_listed_configured_and_shown(operator: Any) -> None:
    assert operator.sys.is_initialized()
    assert operator.sys.is_sealed() is False
    assert operator.sys.list_auth_methods()["data"]["machines/"]["type"] == "azure"
    config = operator.auth.azure.read_config(mount_point="machines")
    assert config["tenant_id"] == fakecloud.TENANT
    assert "client_secret" not in config
    operator.sys.tune_auth_method("machines", default_lease_ttl="30m")
    tuned = operator.sys.read_auth_method_tuning("machines")
    assert tuned["data"]["default_lease_ttl"] == 1800


def test_roles_are_written_read_listed_and_removed(operator: Any) -> None:
    azure = operator.auth.azure
    azure.create_role(
        name="vm",
        policies=["reader"],
        ttl="1h",
        bound_subscription_ids=[fakecloud.SUB_A],
        bound_service_principal_ids=["0b000000-0000-4000-8000-000000000001"],
        mount_point="machines",
    )
    role = azure.read_role(name="vm", mount_point="machines")
    assert role["token_policies"] == ["reader"]
    assert role["token_ttl"] == 3600
    assert azure.list_roles(mount_point="machines")["keys"] == ["vm"]
    azure.delete_role(name="vm", mount_point="machines")
    with pytest.raises(hvac.exceptions.InvalidPath):
        azure.list_roles(mount_point="machines")


def test_machine_logs_in_and_its_token_is_renewed_and_revoked(
    operator: Any, world: tuple[str, str, str]
) -> None:
    url, cloud_url, _ = world
    operator.auth.azure.create_role(
        name="vm",
        bound_subscription_ids=[fakecloud.SUB_A],
        bound_service_principal_ids=["0b000000-0000-4000-8000-000000000001"],
        mount_point="machines",
    )
    machine = hvac.Client(url=url)
    done: dict[str, Any] = machine.auth.azure.login(
        role="vm",
        jwt=minted(cloud_url),
        subscription_id=fakecloud.SUB_A,
        resource_group_name="rg-one",
        vm_name="vm-sys",
        mount_point="machines",
    )
    assert machine.token == done["auth"]["client_token"]
    assert machine.is_authenticated()
    assert machine.lookup_token()["data"]["meta"]["role"] == "vm"
    assert machine.auth.token.renew_self()["auth"]["client_token"] == machine.token
    with pytest.raises(hvac.exceptions.Forbidden):
        machine.sys.list_auth_methods()
    machine.auth.token.revoke_self()
    assert not machine.is_authenticated()


def test_machine_outside_the_role_is_refused(operator: Any, world: tuple[str, str, str]) -> None:
    url, cloud_url, _ = world
    operator.auth.azure.create_role(
        name="other", bound_service_principal_ids=["another"], mount_point="machines"
    )
    machine = hvac.Client(url=url)
    with pytest.raises(
        hvac.exceptions.InternalServerError, match="service principal not authorized"
    ):
        machine.auth.azure.login(role="other", jwt=minted(cloud_url), mount_point="machines")
