"""Details of responses that Nomad's clients compare: one test for each earlier difference."""

from typing import Any

import pytest

from tests.service.daemon import Steward

TASK = {"Name": "t", "Driver": "raw_exec", "Config": {"command": "/bin/true"}}


def job(*services: object, task: Any = TASK, **fields: object) -> dict[str, Any]:
    network = {"Mode": "bridge", "DynamicPorts": [{"Label": "http"}]}
    group = {
        "Name": "g",
        "Count": 0,
        "Tasks": [task],
        "Services": list(services),
        "Networks": [network],
    }
    return {"ID": "web", "Datacenters": ["*"], "TaskGroups": [group], **fields}


async def test_empty_region_is_the_local_region(steward: Steward) -> None:
    assert (await steward.request("GET", "/v1/jobs", region="")).status_code == 200
    assert (await steward.request("GET", "/v1/jobs", region="elsewhere")).status_code == 500


async def test_statuses_without_a_body_are_those_of_all_jobs(steward: Steward) -> None:
    await steward.register(job())
    answer = await steward.request("POST", "/v1/jobs/statuses")
    assert [item["ID"] for item in answer.json()] == ["web"]


@pytest.mark.parametrize("path", ["/v1/node/pools", "/v1/node/pool/a"])
async def test_node_pool_without_a_body_is_a_client_error(steward: Steward, path: str) -> None:
    answer = await steward.request("POST", path)
    assert (answer.status_code, answer.text) == (400, "Request body is empty")


@pytest.mark.parametrize(
    ("policy", "error"),
    [
        ({"Type": "vertical_cpu", "Min": None, "Max": None, "Enabled": None}, ""),
        ({"Type": "vertical_cpu"}, ""),
        ({"Type": 3}, "TaskGroups.Tasks.ScalingPolicies.Type of type string"),
        ({"Min": "1"}, "TaskGroups.Tasks.ScalingPolicies.Min of type int64"),
        ({"Enabled": "yes"}, "TaskGroups.Tasks.ScalingPolicies.Enabled of type bool"),
        (7, "TaskGroups.Tasks.ScalingPolicies of type api.ScalingPolicy"),
    ],
)
async def test_wrong_types_in_a_scaling_policy_of_a_task_are_named(
    steward: Steward, policy: object, error: str
) -> None:
    wanted = job(task={**TASK, "ScalingPolicies": [policy]})
    answer = await steward.request("POST", "/v1/jobs", {"Job": wanted})
    assert answer.status_code == (400 if error else 200)
    assert error in answer.text


@pytest.mark.parametrize(("size", "valid"), [(1000, True), (1001, False)])
async def test_description_of_a_version_tag_has_at_most_1000_characters(
    steward: Steward, size: int, valid: bool
) -> None:
    tagged = job(VersionTag={"Name": "a", "Description": "d" * size})
    answer = await steward.post("/v1/validate/job", {"Job": tagged})
    assert (answer["ValidationErrors"] is None) is valid


@pytest.mark.parametrize(
    ("service", "error"),
    [
        ({"Name": "w", "Connect": {"Native": True}}, ""),
        ({"Name": "w", "Connect": {"SidecarService": {}}}, ""),
        ({"Name": "w", "Connect": {}}, "must be exclusively native"),
        ({"Name": "w", "Connect": {"Native": True, "Gateway": {}}}, "requires setting the task"),
        ({"Name": "W", "Connect": {"SidecarService": {}}}, "must not contain uppercase"),
    ],
)
async def test_mesh_of_a_service_is_checked(
    steward: Steward, service: dict[str, object], error: str
) -> None:
    wanted = job({**service, "Provider": "consul", "PortLabel": "80"})
    answer = await steward.post("/v1/validate/job", {"Job": wanted})
    assert (answer["Error"] == "") is (not error)
    assert error in answer["Error"]


async def test_node_of_the_body_is_changed(steward: Steward) -> None:
    (node,) = await steward.get("/v1/nodes")
    path = f"/v1/node/{node['ID']}/eligibility"
    for named, status in ((node["ID"], 200), ("other", 500)):
        body = {"Eligibility": "ineligible", "NodeID": named}
        assert (await steward.request("POST", path, body)).status_code == status


async def test_stop_marks_the_allocation_for_rescheduling(steward: Steward) -> None:
    running = job(task={**TASK, "Config": {"command": "/bin/sleep", "args": ["60"]}})
    running["TaskGroups"][0] |= {"Count": 1, "Networks": None}
    (alloc,) = await steward.run_job(running)
    path = f"/v1/allocation/{alloc['ID']}"
    refused = await steward.request("POST", f"{path}/stop", reschedule="maybe")
    assert "as a bool" in refused.text
    await steward.post(f"{path}/stop", reschedule="true")
    assert (await steward.get(path))["DesiredTransition"]["Reschedule"] is True


async def test_related_evaluations_are_shown_on_request(steward: Steward) -> None:
    wanted = job(
        Constraints=[{"LTarget": "${attr.kernel.name}", "RTarget": "none", "Operand": "="}]
    )
    wanted["TaskGroups"][0]["Count"] = 1
    done = await steward.register(wanted)
    path = f"/v1/evaluation/{done['EvalID']}"
    first = await steward.until(path, lambda shown: shown["Status"] == "complete")
    assert "RelatedEvals" not in first
    (related,) = (await steward.get(path, related=True))["RelatedEvals"]
    assert (related["ID"], related["Status"]) == (first["BlockedEval"], "blocked")
    assert related["PreviousEval"] == first["ID"]
    assert "FailedTGAllocs" not in related


async def test_mock_driver_task_prints_before_its_end(steward: Steward) -> None:
    task = {"Name": "t", "Driver": "mock_driver", "Config": {"stdout_string": "hello"}}
    group = {"Name": "g", "Tasks": [task]}
    await steward.register(
        {"ID": "m", "Type": "batch", "Datacenters": ["*"], "TaskGroups": [group]}
    )
    (allocation,) = await steward.allocations("m", "complete")
    assert await steward.log_of(allocation["ID"], "t") == "hello"


async def test_path_without_its_name_is_a_client_error(steward: Steward) -> None:
    errors = {
        "/v1/acl/auth-method/": "missing ACL auth-method name",
        "/v1/acl/binding-rule/": "missing ACL binding rule ID",
        "/v1/acl/policy/": "Missing Policy Name",
        "/v1/acl/role/": "missing ACL role ID",
        "/v1/acl/role/name/": "missing ACL role name",
        "/v1/acl/token/": "Missing Token Accessor",
        "/v1/namespace/": "Missing Namespace Name",
        "/v1/service/": "missing service name",
        "/v1/var/": "missing variable path",
        "/v1/var%2F": "missing variable path",
    }
    for path, error in errors.items():
        for method in ("GET", "POST", "DELETE"):
            answer = await steward.request(method, path)
            assert (answer.status_code, answer.text) == (400, error), (method, path)


async def test_incomplete_path_of_a_service_instance_is_a_client_error(steward: Steward) -> None:
    for path, error in (("x/", "missing service id"), ("x/y/z", "invalid URI")):
        answer = await steward.request("DELETE", f"/v1/service/{path}")
        assert (answer.status_code, answer.text) == (400, error)


async def test_requests_about_an_unknown_node_are_not_answered_for_this_node(
    steward: Steward,
) -> None:
    unknown = "11111111-2222-4333-8444-555555555555"
    for path, status in (("/v1/client/stats", 404), ("/v1/client/gc", 500)):
        answer = await steward.request("GET", path, node_id=unknown)
        assert (answer.status_code, answer.text) == (status, f"Unknown node {unknown}")
        (node,) = await steward.get("/v1/nodes")
        assert (await steward.request("GET", path, node_id=node["ID"])).status_code == 200


async def test_unknown_type_of_volumes_is_not_found(steward: Steward) -> None:
    answer = await steward.request("GET", "/v1/volumes", type="other")
    assert (answer.status_code, answer.text) == (404, "resource not found")
    assert await steward.get("/v1/volumes", type="csi") == []


@pytest.mark.parametrize("version", ["18446744073709551616", "9" * 60, "-1", "1.0", "%2B1", ""])
async def test_number_beyond_those_of_nomad_is_no_version_of_a_submission(
    steward: Steward, version: str
) -> None:
    answer = await steward.request("GET", f"/v1/job/web/submission?version={version}")
    assert answer.status_code == 400
    assert answer.text == "Unable to parse job submission version parameter"
    largest = await steward.request("GET", "/v1/job/web/submission?version=18446744073709551615")
    assert (largest.status_code, largest.text) == (404, "job source not found")
