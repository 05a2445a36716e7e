"""Job policies of a real daemon apply to every route that registers or scales a job."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.service.daemon import Steward, open_steward

POLICIES = """
[[job_policies]]
name = "counts"
level = "soft-mandatory"
rule = "all TaskGroups as group { group.Count <= 1 }"

[[job_policies]]
name = "owner"
level = "advisory"
rule = "Meta.owner is not empty"
message = "say who owns the job"
"""
ADVICE = '1 warning:\n\n* policy "owner" (advisory): say who owns the job'


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Steward]:
    file = tmp_path / "steward.toml"
    file.write_text(POLICIES)
    async with open_steward(tmp_path, "--dev", "--config", str(file)) as running:
        yield running


def job(count: int, **fields: Any) -> dict[str, Any]:
    sleeping = {"Name": "main", "Driver": "raw_exec", "Config": {"command": "/bin/true"}}
    group = {"Name": "web", "Count": count, "Tasks": [sleeping]}
    update = {"MaxParallel": 0}
    return {"ID": "web", "Type": "service", "TaskGroups": [group], "Update": update, **fields}


async def denied(steward: Steward, path: str, body: object) -> bool:
    answer = await steward.request("POST", path, body)
    return answer.status_code == 403 and 'is denied: policy "counts"' in answer.text


async def test_job_policy_applies_to_every_registration_route(guarded: Steward) -> None:
    assert await denied(guarded, "/v1/jobs", {"Job": job(2)})
    assert await denied(guarded, "/v1/job/web/plan", {"Job": job(2)})
    assert (await guarded.request("GET", "/v1/job/web")).status_code == 404
    overriding = {"Job": job(2), "PolicyOverride": True}
    planned = await guarded.post("/v1/job/web/plan", overriding)
    assert 'policy "counts" (soft-mandatory)' in planned["Warnings"]
    await guarded.post("/v1/jobs", overriding)
    assert (await guarded.post("/v1/jobs", {"Job": job(1)}))["Warnings"] == ADVICE
    assert await denied(guarded, "/v1/job/web", {"Job": job(2)})
    assert await denied(guarded, "/v1/job/web/revert", {"JobID": "web", "JobVersion": 0})
    scaling = {"Target": {"Group": "web"}, "Count": 2, "Message": "more"}
    assert await denied(guarded, "/v1/job/web/scale", scaling)
    scaled = await guarded.post("/v1/job/web/scale", {**scaling, "PolicyOverride": True})
    assert 'policy "counts" (soft-mandatory)' in scaled["Warnings"]


async def test_unreadable_policy_prevents_the_start(tmp_path: Path) -> None:
    file = tmp_path / "steward.toml"
    file.write_text('[[job_policies]]\nname = "p"\nrule = "Prio < 5"\n')
    with pytest.raises(AssertionError, match='job_policies, "p", rule: Prio: there is no field'):
        async with open_steward(tmp_path, "--dev", "--config", str(file)):
            pass
