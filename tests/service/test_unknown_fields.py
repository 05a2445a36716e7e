"""Fields of requests that no record has: the answer names them."""

from typing import Any

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
async def test_header_names_unknown_fields_where_an_answer_has_no_warnings(
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
