"""Every route, requested without permission: all are rejected, for any path."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from daemon.acl.check import Requirement
from daemon.api.routes import ROUTES
from daemon.api.vault_routes import ENDPOINTS
from daemon.web.request import Route, WebSocketRoute
from tests.service.daemon import Steward, open_steward

SECRET = "0f4dc1d2-8a8e-4b77-8b2f-3d1f0a6c5e11"  # noqa: S105  # of a test
HIDDEN = "hidden-job"
TASK = {"Name": "main", "Driver": "raw_exec", "Config": {"command": "/bin/sleep", "args": ["60"]}}
GROUP = {"Name": "g", "Tasks": [TASK], "Scaling": {"Min": 1, "Max": 3, "Enabled": True}}
JOB = {"ID": HIDDEN, "Datacenters": ["*"], "TaskGroups": [GROUP]}
STREAM = 2  # seconds after which an endless response is cut off
# Fields that bodies need to be valid on the routes that check a capability in the object's
# namespace.
BODY = {"Job": JOB, "JobID": HIDDEN, "JobVersion": 0, "DeploymentID": "", "All": True}


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Steward]:
    """Run a daemon that requires tokens and runs a job."""
    async with open_steward(tmp_path, "--dev", "--acl") as steward:
        await steward.post("/v1/acl/bootstrap", {"BootstrapSecret": SECRET})
        steward.token = SECRET
        await steward.run_job(JOB)
        await steward.post("/v1/var/app", {"Path": "app", "Items": {"a": "b"}})
        yield steward


async def stranger(steward: Steward) -> str:
    """Return the secret of a token with all permissions, but in another namespace."""
    rules = 'namespace "elsewhere" { policy = "write" variables { path "*" { capabilities = ["write", "read", "destroy", "list"] } } }'
    await steward.request("POST", "/v1/acl/policy/p", {"Name": "p", "Rules": rules})
    token = await steward.post("/v1/acl/token", {"Type": "client", "Policies": ["p"]})
    return str(token["SecretID"])


async def places(steward: Steward) -> dict[str, str]:
    """Return the values of placeholders in paths: existing objects."""
    (alloc,) = await steward.get(f"/v1/job/{HIDDEN}/allocations")
    (policy,) = await steward.get("/v1/scaling/policies")
    (deployment,) = await steward.get(f"/v1/job/{HIDDEN}/deployments")
    return {
        "job_id": HIDDEN,
        "alloc_id": alloc["ID"],
        "profile": "cmdline",
        "eval_id": alloc["EvalID"],
        "node_id": alloc["NodeID"],
        "deployment_id": deployment["ID"],
        "policy_id": policy["ID"],
        "path": "app",
        "name": "default",
        "id": "x",
        "accessor": "x",
        "role_id": "x",
        "rule_id": "x",
        "volume_id": "x",
        "plugin_id": "x",
        "key_id": "x",
        "digest": "a" * 64,
        "freeze_id": "x",
        "anything": "x",
    }


async def knock(
    steward: Steward, route: Route, method: str, path: str, token: str, namespace: str
) -> httpx.Response:
    query = {"namespace": namespace, "task": "main", "type": "stdout", "path": "/", "offset": "0"}
    said = b""
    async with steward._http.stream(
        method,
        f"{steward.address}{path}",
        params=query,
        headers={"X-Service-Token": token},
        json=BODY if method in ("POST", "PUT") else None,
    ) as answer:
        with trio.move_on_after(STREAM):
            async for piece in answer.aiter_bytes():
                said += piece
    return httpx.Response(answer.status_code, content=said)


async def answers(steward: Steward, namespace: str) -> list[tuple[Route, str, httpx.Response]]:
    """Return the response of each route to a caller without permission for the named object."""
    token, found = await stranger(steward), await places(steward)
    return [
        (
            route,
            method,
            await knock(steward, route, method, route.path.format_map(found), token, namespace),
        )
        for route in ROUTES
        if not isinstance(route, WebSocketRoute) and route.needs.asks is not Requirement.NOTHING
        for method in sorted(route.methods - {"PUT"})
    ]


async def test_no_route_is_open_without_a_token(guarded: Steward) -> None:
    opened = {
        f"{method} {route.path}: {answer.status_code}"
        for route, method, answer in await answers(guarded, "default")
        if route.needs.asks is not Requirement.TOKEN and answer.is_success
    }
    assert opened == {  # an empty list, because it has only visible objects
        "GET /v1/deployment/allocations/{deployment_id}: 200",
        "GET /v1/evaluation/{eval_id}/allocations: 200",
    }


async def test_required_capability_is_checked_before_anything_else(
    guarded: Steward,
) -> None:
    before = (Requirement.NAMESPACE, Requirement.SCOPE, Requirement.MANAGEMENT)
    late = {
        f"{method} {route.path}: {answer.status_code}"
        for route, method, answer in await answers(guarded, "default")
        if route.needs.asks in before
        and (answer.status_code, answer.text) != (403, "Permission denied")
    }
    assert late == set()


@pytest.mark.parametrize("namespace", ["default", "*"])
async def test_no_answer_reveals_hidden_data_without_a_token(
    guarded: Steward, namespace: str
) -> None:
    shown = {
        f"{method} {route.path}: {answer.text[:80]}"
        for route, method, answer in await answers(guarded, namespace)
        if answer.is_success and (HIDDEN in answer.text or '"app"' in answer.text)
    }
    assert shown == set()


async def test_no_path_of_the_vault_api_is_open_without_a_token(guarded: Steward) -> None:
    token = await stranger(guarded)
    opened = {
        f"{method} {endpoint.path}: {answer.status_code}"
        for endpoint in ENDPOINTS
        if not endpoint.is_open
        for method in ("GET", "LIST", "POST", "DELETE")
        if (
            answer := await guarded._http.request(
                method,
                f"{guarded.address}{endpoint.path.replace('{mount}', 'token').format_map(Anything())}",
                headers={"X-Service-Token": token},
            )
        ).status_code
        != 403
    }
    assert opened == set()


class Anything(dict[str, Any]):
    """A map that has a value for every placeholder."""

    def __missing__(self, key: str) -> str:
        return "x"
