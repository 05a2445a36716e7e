"""Job statuses, as dashboards read them."""

from typing import Any

import pytest

from tests.service.daemon import Steward
from tests.service.test_daemon_lifecycle import service


def idle(job_id: str, **fields: Any) -> dict[str, Any]:
    """Return a job without running allocations."""
    task = {"Name": "main", "Driver": "raw_exec", "Config": {"command": "/bin/true"}}
    return {
        "ID": job_id,
        "Type": "batch",
        "TaskGroups": [{"Name": "web", "Count": 0, "Tasks": [task]}],
        **fields,
    }


async def settled(steward: Steward, job_id: str) -> None:
    await steward.until(f"/v1/job/{job_id}", lambda job: job["Status"] == "dead")


async def test_recently_changed_jobs_are_first_on_each_page(steward: Steward) -> None:
    for name in ("a", "b", "c"):
        await steward.register(idle(name))
        await settled(steward, name)
    await steward.register(idle("a", Priority=60))
    await settled(steward, "a")
    first = await steward.request("GET", "/v1/jobs/statuses", per_page=2)
    assert [item["ID"] for item in first.json()] == ["a", "c"]
    token = first.headers["X-Service-NextToken"]
    rest = await steward.get("/v1/jobs/statuses", next_token=token)
    assert [item["ID"] for item in rest] == ["b"]
    turned = await steward.get("/v1/jobs/statuses", reverse=True)
    assert [item["ID"] for item in turned] == ["b", "c", "a"]


async def test_children_are_hidden_unless_requested(steward: Steward) -> None:
    await steward.register(idle("parent", ParameterizedJob={}))
    done = await steward.post("/v1/job/parent/dispatch", {})
    await settled(steward, done["DispatchedJobID"])
    (parent,) = await steward.get("/v1/jobs/statuses")
    assert (parent["ChildStatuses"], parent["Allocs"]) == (["dead"], None)
    both = await steward.get("/v1/jobs/statuses", include_children=True)
    assert {item["ID"] for item in both} == {"parent", done["DispatchedJobID"]}


async def test_named_jobs_are_requested(steward: Steward) -> None:
    for name in ("a", "b", "c"):
        await steward.register(idle(name))
    body = {"jobs": [{"id": "c"}, {"id": "a", "namespace": "default"}, {"id": "nope"}]}
    found = await steward.post("/v1/jobs/statuses", body)
    assert {item["ID"] for item in found} == {"a", "c"}


async def test_number_of_named_jobs_is_limited(steward: Steward) -> None:
    answer = await steward.request("POST", "/v1/jobs/statuses", {"jobs": [{"id": "a"}] * 5_001})
    assert (answer.status_code, "the maximum is 5000" in answer.text) == (400, True)


async def test_filter_applies_to_the_job(steward: Steward) -> None:
    await steward.register(idle("a", Meta={"team": "x"}))
    await steward.register(idle("b"))
    found = await steward.get("/v1/jobs/statuses", filter='Meta.team == "x"')
    assert [item["ID"] for item in found] == ["a"]


async def test_nodes_are_listed_with_their_operating_system_on_request(steward: Steward) -> None:
    (plain,) = await steward.get("/v1/nodes")
    assert "Attributes" not in plain
    whole = await steward.get(f"/v1/node/{plain['ID']}")
    for path in ("/v1/nodes", f"/v1/node/pool/{plain['NodePool']}/nodes"):
        (line,) = await steward.get(path, os="true")
        assert line["Attributes"] == {"os.name": whole["Attributes"]["os.name"]}


async def test_node_filter_can_use_every_attribute(steward: Steward) -> None:
    async def count(expression: str) -> int:
        return len(await steward.get("/v1/nodes", filter=expression))

    assert await count('Attributes["kernel.name"] == "linux"') == 1
    assert await count('Attributes["kernel.name"] == "plan9"') == 0
    assert await count('Drivers.raw_exec.Healthy == true and SecretID == ""') == 1


@pytest.mark.parametrize(
    ("kind", "none"),
    [
        ("evaluations", 'TriggeredBy == "nobody"'),
        ("allocations", 'ClientStatus == "running"'),
        ("deployments", 'Status == "failed"'),
    ],
)
async def test_list_of_a_job_can_be_filtered(steward: Steward, kind: str, none: str) -> None:
    await steward.register(idle("a"))
    await settled(steward, "a")
    assert await steward.get(f"/v1/job/a/{kind}", filter=none) == []
    refused = await steward.request("GET", f"/v1/job/a/{kind}", filter="x =")
    assert (refused.status_code, "1:3 (2)" in refused.text) == (400, True)


async def test_filter_keeps_matching_objects(steward: Steward) -> None:
    await steward.register(idle("a"))
    (found,) = await steward.get("/v1/job/a/evaluations", filter='TriggeredBy == "job-register"')
    assert found["JobID"] == "a"
    assert await steward.get("/v1/namespaces", filter='Name != "default"') == []


async def test_filter_selects_versions(steward: Steward) -> None:
    for number in range(3):
        await steward.register({**idle("a"), "Meta": {"n": f"{number}"}})
    path, wanted = "/v1/job/a/versions", 'Meta.n != "1"'
    found = await steward.get(path, filter=wanted, diffs=True)
    assert [version["Version"] for version in found["Versions"]] == [2, 0]
    (diff,) = found["Diffs"]
    assert [(field["Name"], field["Old"], field["New"]) for field in diff["Fields"]] == [
        ("Meta[n]", "0", "2")
    ]
    against = await steward.get(path, filter=wanted, diffs=True, diff_version=1)
    assert len(against["Diffs"]) == 2


async def test_usage_of_several_allocations_is_summarized(steward: Steward) -> None:
    (one,) = await steward.run_job(service())
    answer = await steward.request("GET", "/v1/client/usage", allocations=f"{one['ID']},unknown")
    (shown,) = answer.json()
    assert shown["ID"] == one["ID"]
    assert shown["Memory"] > 0
    assert shown["Restarts"] == 0
    assert int(answer.headers["X-Service-Index"]) >= one["ModifyIndex"]
    many = await steward.request("GET", "/v1/client/usage", allocations=",".join("x" * 201))
    assert many.status_code == 400
    assert many.text == '"allocations" lists 201 allocations: the maximum is 200'


async def test_jobs_are_listed_by_name_page_by_page(steward: Steward) -> None:
    for name in ("b", "c", "a"):
        await steward.register(idle(name))
    for query, names in (({}, "abc"), ({"reverse": True}, "cba")):
        found, token = "", ""
        while True:
            answer = await steward.request(
                "GET", "/v1/jobs/statuses", sort="name", per_page=2, next_token=token, **query
            )
            found += "".join(item["ID"] for item in answer.json())
            if not (token := answer.headers.get("X-Service-NextToken", "")):
                break
        assert found == names
    answer = await steward.request("GET", "/v1/jobs/statuses", sort="size")
    assert (answer.status_code, answer.text) == (400, "sort = 'size' must be one of change, name")


@pytest.mark.parametrize("end", ["run", "state", "graph", "periodic/pause"])
async def test_job_named_like_an_extension_endpoint_is_managed(steward: Steward, end: str) -> None:
    name = f"dir/{end}"
    job = {"ID": name, "Type": "batch", "TaskGroups": [{"Name": "g", "Count": 0, "Tasks": []}]}
    task = {"Name": "t", "Driver": "raw_exec", "Config": {"command": "/bin/true"}}
    job["TaskGroups"][0]["Tasks"] = [task]
    await steward.register(job)
    assert (await steward.get(f"/v1/job/{name}"))["ID"] == name
    assert (await steward.get(f"/v1/job/{name}/state"))["State"]
    shown = await steward.cli("job", "status", name)
    assert (shown.returncode, name in shown.stdout.decode()) == (0, True)
    await steward.delete(f"/v1/job/{name}", purge=True)
    assert (await steward.request("GET", f"/v1/job/{name}")).status_code == 404


async def test_invalid_extension_parameter_is_a_client_error(steward: Steward) -> None:
    for path, query in (
        ("/v1/job/x/run", {"number": "x"}),
        ("/v1/job/x/run/outputs", {"number": "-1"}),
        ("/v1/job/x/graph", {"version": "x"}),
        ("/v1/calendar/x", {"version": "x"}),
        ("/v1/freezes", {"active": "x"}),
        ("/v1/jobs/statuses", {"states": "x"}),
        ("/v1/jobs/statuses", {"strip": "x"}),
        ("/v1/nodes", {"held": "x"}),
    ):
        answer = await steward.request("GET", path, **query)
        assert answer.status_code == 400, path
        ((name, value),) = query.items()
        assert f"{name} = {value!r} must be" in answer.text
