"""Fields of requests that no record has: the answer names them."""

from typing import Any
from uuid import UUID

import pytest

from tests.service.daemon import Steward

JOB = {
    "ID": "web",
    "Datacenters": ["*"],
    "TaskGroups": [
        {
            "Name": "g",
            "Count": 0,
            "Tasks": [{"Name": "t", "Driver": "raw_exec", "Config": {"command": "/bin/true"}}],
        }
    ],
}


async def test_warning_of_an_answer_names_the_unknown_fields(steward: Steward) -> None:
    job = {**JOB, "Datacentres": ["a"]}
    for path in ("/v1/jobs", "/v1/job/web", "/v1/job/web/plan", "/v1/validate/job"):
        answer = await steward.request("POST", path, {"Job": job, "Dif": True})
        assert 'unknown field "Job.Datacentres" is ignored' in answer.json()["Warnings"]
        assert 'unknown field "Dif" is ignored' in answer.json()["Warnings"]
        assert "X-Steward-Warning" not in answer.headers


async def test_index_of_a_submission_is_no_unknown_field(steward: Steward) -> None:
    submission = {"Source": "x", "Format": "hcl2", "JobIndex": 7, "JobModifyIndex": 7}
    answer = await steward.post("/v1/jobs", {"Job": JOB, "Submission": submission})
    assert answer["Warnings"] == ""


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/var/a", {"Items": {"a": "b"}}),
        ("/v1/namespace/ops", {"Name": "ops"}),
        ("/v1/operator/scheduler/configuration", {"SchedulerAlgorithm": "spread"}),
        ("/v1/search", {"Prefix": "a", "Context": "jobs"}),
        ("/v1/job/web/dispatch", {"Meta": {"a": "b"}}),
        ("/v1/job/web/revert", {"JobID": "web", "JobVersion": 0}),
    ],
)
async def test_header_names_unknown_fields_if_a_response_has_no_warnings(
    steward: Steward, path: str, body: dict[str, Any]
) -> None:
    await steward.register({**JOB, "Type": "batch", "ParameterizedJob": {"MetaOptional": ["a"]}})
    await steward.register(
        {**JOB, "Type": "batch", "ParameterizedJob": {"MetaOptional": ["b", "a"]}}
    )
    answer = await steward.request("POST", path, {**body, "Stray\r\nX: y": 1})
    assert answer.status_code == 200, answer.text
    assert answer.headers["X-Steward-Warning"] == 'unknown field "Stray  X: y" is ignored'
    assert "X-Steward-Warning" not in (await steward.request("POST", path, body)).headers


@pytest.mark.parametrize(
    ("path", "body", "field", "reason"),
    [
        ("/v1/namespace", {"Name": "ops", "Quota": "q"}, "Quota", "Steward has no quotas"),
        (
            "/v1/namespace/ops",
            {"Name": "ops", "NodePoolConfiguration": {"Allowed": ["a"]}},
            "NodePoolConfiguration",
            "jobs of every namespace may use every node pool",
        ),
        (
            "/v1/operator/scheduler/configuration",
            {"NodeLimitForFeasibilityChecks": 5},
            "NodeLimitForFeasibilityChecks",
            "the scheduler always examines every node",
        ),
    ],
)
async def test_header_names_fields_without_effect(
    steward: Steward, path: str, body: dict[str, Any], field: str, reason: str
) -> None:
    answer = await steward.request("POST", path, body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["X-Steward-Warning"] == f'field "{field}" has no effect: {reason}'


ROLE = {"bound_locations": ["westeurope"]}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/sys/auth/cloud", {"type": "azure", "description": "d"}),
        ("/v1/sys/auth/azure/tune", {"default_lease_ttl": "1h"}),
        ("/v1/sys/mounts/auth/azure/tune", {"max_lease_ttl": "2h"}),
        ("/v1/auth/azure/config", {"tenant_id": str(UUID(int=1)), "resource": "r"}),
        ("/v1/auth/azure/role/web", ROLE),
        ("/v1/auth/token/create", {"ttl": "1h"}),
        ("/v1/auth/token/roles/r", {"orphan": True}),
        ("/v1/identity/entity", {"name": "e"}),
        ("/v1/identity/entity/name/e", {"metadata": {"a": "b"}}),
        ("/v1/identity/group", {"name": "g"}),
        ("/v1/sys/policies/acl/p", {"policy": ""}),
    ],
)
async def test_vault_api_warns_about_unknown_fields(
    steward: Steward, path: str, body: dict[str, Any]
) -> None:
    await steward.request("POST", "/v1/sys/auth/azure", {"type": "azure"})
    said = {**body, "stray": 1, "nothing": {"a": [None, ""]}}
    if path.endswith("/p"):
        said["policy"] = 'path "a" { capabilities = ["read"] }'
    answer = await steward.request("POST", path, said)
    assert answer.status_code == 200, answer.text
    warning = "Endpoint ignored these unrecognized parameters: [stray]"
    assert warning in answer.json()["warnings"]


async def test_mount_warns_about_stored_settings_without_effect(steward: Steward) -> None:
    config = {"passthrough_request_headers": ["X-A"], "odd": 1, "token_type": "default-service"}
    body = {"type": "azure", "local": True, "seal_wrap": False, "options": {}, "config": config}
    answer = await steward.request("POST", "/v1/sys/auth/cloud", body)
    assert answer.json()["warnings"] == [
        "Endpoint ignored these unrecognized parameters: [config.odd]"
    ]
    assert answer.headers["X-Steward-Warning"] == (
        'field "config.passthrough_request_headers" is stored but has no effect; '
        'field "local" is stored but has no effect'
    )


async def test_header_reports_a_stop_of_an_unknown_job(steward: Steward) -> None:
    answer = await steward.request("DELETE", "/v1/job/nope")
    assert answer.status_code == 200
    warning = answer.headers["X-Steward-Warning"]
    assert warning == 'nothing was stopped: there is no job "nope"'
    await steward.register(JOB)
    stopped = await steward.request("DELETE", "/v1/job/web?purge=true")
    assert "X-Steward-Warning" not in stopped.headers
