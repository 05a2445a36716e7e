"""Resolution of a Vault API path to its endpoint."""

import pytest

from daemon.web.request import Endpoint, RouteCall
from daemon.web.vault_envelope import VaultBody
from daemon.web.vault_router import MAX_MOUNT_DEPTH, VaultRouter


async def handle(call: RouteCall) -> VaultBody:
    return VaultBody()


TABLE = VaultRouter(
    [
        Endpoint("/v1/sys/auth", read=handle),
        Endpoint("/v1/sys/auth/{path}/tune", read=handle),
        Endpoint("/v1/sys/auth/{path}", read=handle),
        Endpoint("/v1/auth/token/lookup", read=handle),
        Endpoint("/v1/auth/{mount}/config", read=handle),
        Endpoint("/v1/auth/{mount}/role", list=handle),
        Endpoint("/v1/auth/{mount}/role/{name}", read=handle),
    ]
)
MOUNTS = {"cloudid/", "team/dir/", "role/"}


@pytest.mark.parametrize(
    ("path", "endpoint", "parameters"),
    [
        ("sys/auth", "/v1/sys/auth", {}),
        ("sys/auth/a b", "/v1/sys/auth/{path}", {"path": "a b"}),
        ("sys/auth/a/b/tune", "/v1/sys/auth/{path}/tune", {"path": "a/b"}),
        ("auth/token/lookup", "/v1/auth/token/lookup", {}),
        ("auth/cloudid/config", "/v1/auth/{mount}/config", {}),
        ("auth/team/dir/config", "/v1/auth/{mount}/config", {}),
        ("auth/cloudid/role/", "/v1/auth/{mount}/role", {}),
        ("auth/role/role/x", "/v1/auth/{mount}/role/{name}", {"name": "x"}),
        ("auth/cloudid/role/a.b-c_d", "/v1/auth/{mount}/role/{name}", {"name": "a.b-c_d"}),
    ],
)
def test_path_is_routed_to_its_endpoint(
    path: str, endpoint: str, parameters: dict[str, str]
) -> None:
    found = TABLE.find(path, MOUNTS.__contains__)
    assert found is not None
    assert found.endpoint is not None
    assert (found.endpoint.path, found.parameters) == (endpoint, parameters)


@pytest.mark.parametrize(
    "path",
    [
        "auth/cloudid",
        "auth/cloudid/",
        "auth/cloudid/config/",
        "auth/cloudid/role/-a",
        "auth/cloudid/role/a-",
        "auth/cloudid/role/a/b",
        "auth/cloudid/role/röle",
        "auth/cloudid/role/a\n",
        "auth/token/nothing",
        "sys/nothing",
    ],
)
def test_a_mount_serves_only_its_own_paths(path: str) -> None:
    found = TABLE.find(path, MOUNTS.__contains__)
    assert found is not None
    assert found.endpoint is None


@pytest.mark.parametrize("path", ["auth/nothing/config", "auth/team/config", "auth/"])
def test_path_without_a_mount_is_not_found(path: str) -> None:
    assert TABLE.find(path, MOUNTS.__contains__) is None


def test_longest_mount_of_a_path_serves_it() -> None:
    found = TABLE.find("auth/team/dir/config", {"team/", "team/dir/"}.__contains__)
    assert found is not None
    assert found.mount == "team/dir/"
    assert found.endpoint is not None


@pytest.mark.parametrize(("depth", "is_found"), [(MAX_MOUNT_DEPTH, True), (17, False)])
def test_depth_of_a_mount_is_limited(depth: int, is_found: bool) -> None:
    mount = "a/" * depth
    found = TABLE.find(f"auth/{mount}config", {mount}.__contains__)
    assert (found is not None) is is_found


def test_parameter_matches_more_than_a_name_except_for_a_name() -> None:
    found = TABLE.find("sys/auth/a/b/c/tune", MOUNTS.__contains__)
    assert found is not None
    assert found.parameters == {"path": "a/b/c"}
    assert found.mount == "sys/"
