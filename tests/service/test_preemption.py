"""A job of a higher priority preempts one of a lower priority, which waits and runs again."""

from pathlib import Path
from typing import Any

from storage.records.base import SECOND
from tests.service.daemon import Steward

# Ends only when released, and ignores stop signals; reports that it is running.
STUBBORN = (
    "trap '' INT; touch {0}/runs; while [ ! -e {0}/release ]; do sleep 0.05; done; rm {0}/runs"
)
LATER = "[ -e {0}/runs ] && touch {0}/overlap; exec sleep 600"


def sized(job_id: str, priority: int, megabytes: int, script: str) -> dict[str, Any]:
    task = {
        "Name": "main",
        "Driver": "raw_exec",
        "Config": {"command": "/bin/sh", "args": ["-c", script]},
        "KillTimeout": 600 * SECOND,
        "Resources": {"CPU": 20, "MemoryMB": megabytes},
        "LogConfig": {"MaxFiles": 1, "MaxFileSizeMB": 1},
    }
    group = {"Name": "g", "Tasks": [task], "EphemeralDisk": {"SizeMB": 10}}
    return {"ID": job_id, "Type": "service", "Priority": priority, "TaskGroups": [group]}


async def test_preempted_task_ends_before_the_preempting_one_starts_and_is_placed_again(
    steward: Steward, tmp_path: Path
) -> None:
    (node,) = await steward.get("/v1/nodes", resources=True)
    most = node["NodeResources"]["Memory"]["MemoryMB"]
    config = {"PreemptionConfig": {"ServiceSchedulerEnabled": True}}
    await steward.post("/v1/operator/scheduler/configuration", config)
    (low,) = await steward.run_job(sized("low", 20, most * 2 // 3, STUBBORN.format(tmp_path)))
    high = sized("high", 80, most // 2, LATER.format(tmp_path))

    planned = await steward.post("/v1/job/high/plan", {"Job": high})
    assert planned["Annotations"]["DesiredTGUpdates"]["g"]["Preemptions"] == 1
    assert [
        preempted_alloc["ID"] for preempted_alloc in planned["Annotations"]["PreemptedAllocs"]
    ] == [low["ID"]]

    await steward.register(high)
    (placed,) = await steward.until("/v1/job/high/allocations", bool)
    assert placed["PreemptedAllocations"] == [low["ID"]]
    evicted = await steward.get(f"/v1/allocation/{low['ID']}")
    assert evicted["DesiredStatus"] == "evict"
    assert evicted["DesiredDescription"] == f"Preempted by alloc ID {placed['ID']}"
    assert evicted["PreemptedByAllocation"] == placed["ID"]
    found = await steward.until(
        "/v1/job/low/evaluations", lambda shown: any(item["Status"] == "blocked" for item in shown)
    )
    assert "preemption" in {evaluation["TriggeredBy"] for evaluation in found}

    await steward.kill_and_restart()
    assert (await steward.get(f"/v1/allocation/{placed['ID']}"))["ClientStatus"] == "pending"
    (tmp_path / "release").touch()
    await steward.allocations("high", "running")
    assert (await steward.get(f"/v1/allocation/{low['ID']}"))["ClientStatus"] == "complete"
    assert not (tmp_path / "overlap").exists()

    await steward.delete("/v1/job/high", purge=True)
    back = await steward.until("/v1/job/low/allocations", lambda shown: len(shown) == 2)
    assert {item["Name"] for item in back} == {"low.g[0]"}
