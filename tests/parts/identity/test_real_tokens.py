"""Logins with tokens that have the claims of each environment of the cloud."""

import json
from pathlib import Path

import pytest

from storage.errors import Refused
from tests.fakes.fakecloud import SUB_A
from tests.parts.identity.conftest import Cloud, Login

FILE = Path(__file__).with_name("real_tokens.json")
SHAPES = json.loads(FILE.read_text().replace("/SUB/", f"/{SUB_A}/"))
GROUP = f"/subscriptions/{SUB_A}/resourceGroups/rg-one/providers"
VMS = f"{GROUP}/Microsoft.Compute/virtualMachines"
SETS = f"{GROUP}/Microsoft.Compute/virtualMachineScaleSets"
SITES = f"{GROUP}/Microsoft.Web/sites"

ACCEPTED = [
    ("app service, system-assigned", {"resource_id": f"{SITES}/app-one"}),
    ("app service, user-assigned", {"resource_id": f"{SITES}/app-user"}),
    ("container apps, system-assigned", {"resource_id": f"{SITES}/app-one"}),
    ("kubernetes, workload identity", {"resource_id": f"{SITES}/app-user"}),
    ("kubernetes, identity of the nodes", {"vmss_name": "ss-uni-user"}),
    ("kubernetes, identity of the nodes", {"resource_id": f"{SETS}/ss-uni-user"}),
    ("virtual machine, system-assigned", {"vm_name": "vm-sys"}),
    ("virtual machine, system-assigned", {"resource_id": f"{VMS}/vm-sys"}),
    ("virtual machine, user-assigned", {"vm_name": "vm-user"}),
    ("virtual machine, user-assigned", {"resource_id": f"{VMS}/vm-user"}),
    ("scale set, uniform", {"vmss_name": "ss-uni"}),
    ("scale set, uniform, instance", {"vmss_name": "ss-uni"}),
    ("scale set, uniform, instance", {"resource_id": f"{SETS}/ss-uni"}),
    ("scale set, flexible", {"vmss_name": "ss-flex"}),
]
# Logins for a resource that does not have the token's principal, or for which the token was not
# issued.
REFUSED = [
    ("app service, system-assigned", {"resource_id": f"{SITES}/app-user"}),
    ("app service, system-assigned", {"resource_id": f"{VMS}/vm-sys"}),
    ("virtual machine, system-assigned", {"resource_id": f"{SITES}/app-one"}),
    ("virtual machine, system-assigned", {"vm_name": "vm-both"}),
    ("kubernetes, workload identity", {"vm_name": "vm-user"}),
    ("scale set, uniform, instance", {"vmss_name": "ss-uni-user"}),
    ("scale set, uniform, instance", {"vm_name": "ss-uni"}),
    ("scale set, flexible", {"vm_name": "vm-both"}),
]


async def log_in(login: Login, cloud: Cloud, shape: str, where: dict[str, str]) -> str:
    """Log in with a token that has the claims of the environment `shape`.

    The role binds principals and a resource group.

    `where` are further fields of the login. Return the accessor of the issued token.
    """
    claims = SHAPES[shape]
    await login.role("r", bound_service_principal_ids=claims["oid"], bound_resource_groups="rg-one")
    gone = dict.fromkeys(("xms_az_rid", "xms_mirid", "appid"))
    jwt = cloud.mint(claims={**gone, **claims})
    place = {"subscription_id": SUB_A, "resource_group_name": "rg-one", **where}
    return (await login.log_in(jwt, "r", **place)).token.accessor


@pytest.mark.parametrize("shape", [name for name in SHAPES if name != "about"])
async def test_role_of_principals_accepts_every_shape(
    login: Login, cloud: Cloud, shape: str
) -> None:
    claims = SHAPES[shape]
    await login.role("p", bound_service_principal_ids=claims["oid"])
    done = await login.log_in(cloud.mint(claims=claims), "p")
    assert (done.token.meta or {})["app_id"] == claims["appid"]


@pytest.mark.parametrize(("shape", "where"), ACCEPTED)
async def test_role_of_resources_accepts_the_resource_of_a_token(
    login: Login, cloud: Cloud, shape: str, where: dict[str, str]
) -> None:
    assert await log_in(login, cloud, shape, where)


@pytest.mark.parametrize(("shape", "where"), REFUSED)
async def test_role_of_resources_refuses_another_resource(
    login: Login, cloud: Cloud, shape: str, where: dict[str, str]
) -> None:
    with pytest.raises(Refused):
        await log_in(login, cloud, shape, where)


async def test_principals_of_a_flexible_scale_set_are_queried_at_each_login(
    login: Login, cloud: Cloud
) -> None:
    asked = []
    for _ in range(2):
        await log_in(login, cloud, "scale set, flexible", {"vmss_name": "ss-flex"})
        asked.append(len(cloud.asked("resource_manager", "userAssignedIdentities/id-two")))
    assert asked == [1, 2]
