"""Updates over the API that keep the counts of groups, or the resources of tasks."""

from typing import Any

import pytest

from tests.service.daemon import Steward


def web(cpu: int, count: int) -> dict[str, Any]:
    task = {
        "Name": "main",
        "Driver": "raw_exec",
        "Config": {"command": "/bin/true"},
        "Resources": {"CPU": cpu, "MemoryMB": 20},
    }
    group = {"Name": "g", "Count": count, "Tasks": [task]}
    return {"ID": "web", "Datacenters": ["*"], "Type": "batch", "TaskGroups": [group]}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["CPU"]),
        ({"PreserveResources": True}, []),
        ({"PreserveCounts": True}, ["CPU"]),
    ],
)
async def test_plan_preserves_the_same_fields_as_the_registration(
    steward: Steward, options: dict[str, bool], expected: list[str]
) -> None:
    await steward.register(web(30, 0))
    body = {"Job": web(50, 0), "Diff": True, **options}
    planned = await steward.post("/v1/job/web/plan", body)
    changed = [
        field["Name"]
        for group in planned["Diff"]["TaskGroups"] or ()
        for task in group["Tasks"] or ()
        for part in task["Objects"] or ()
        for field in part["Fields"]
        if field["Type"] == "Edited"
    ]
    assert changed == expected
    await steward.register(web(50, 0), **options)
    (group,) = (await steward.get("/v1/job/web"))["TaskGroups"]
    assert group["Tasks"][0]["Resources"]["CPU"] == (50 if expected else 30)
