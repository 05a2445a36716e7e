"""A new version of a workflow waits for the active run in a real daemon, across a kill."""

import json
from pathlib import Path

import trio

from tests.service.daemon import Steward
from tests.service.test_workflows import shell, workflow


async def test_command_follows_the_run_that_begins_after_the_active_run(
    steward: Steward, tmp_path: Path
) -> None:
    go_on = tmp_path / "go-on"
    wait = shell("a", f"until [ -e {go_on} ]; do sleep 0.1; done")
    last = {**shell("b", "exit 0"), "Meta": {"steward_needs": "a"}}
    await steward.register(workflow(wait, last, job_id="etl"))
    await steward.allocations("etl", "running")
    later = {
        **workflow(shell("x", "exit 3"), job_id="etl"),
        "Meta": {"steward_run_update": "finish"},
    }
    file = tmp_path / "job.json"
    file.write_text(json.dumps(later))
    done = None

    async def run() -> None:
        nonlocal done
        done = await steward.cli("run", str(file))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        reason = "version 1 waits until run 1 of version 0 has ended"
        await steward.until("/v1/job/etl/state", lambda state: reason in state["Reason"])
        go_on.touch()
    assert done is not None
    told = done.stdout.decode()
    assert done.returncode == 1
    assert "waits until run 1 of version 0 has ended" in told
    assert "run 2 of etl failed: step x failed" in told
    runs = await steward.get("/v1/job/etl/runs")
    assert [(one["Number"], one["Version"], one["Result"]) for one in runs] == [
        (2, 1, "failed"),
        (1, 0, "complete"),
    ]


async def test_waiting_version_survives_a_kill(steward: Steward, tmp_path: Path) -> None:
    go_on = tmp_path / "go-on"
    wait = shell("a", f"until [ -e {go_on} ]; do sleep 0.1; done")
    last = {**shell("b", "exit 0"), "Meta": {"steward_needs": "a"}}
    await steward.register(workflow(wait, last, job_id="etl"))
    await steward.allocations("etl", "running")
    meta = {"Meta": {"steward_run_update": "finish"}}
    await steward.register({**workflow(shell("x", "exit 0"), job_id="etl"), **meta})
    await steward.kill_and_restart()
    assert (await steward.get("/v1/job/etl/run"))["Version"] == 0
    go_on.touch()
    run = await steward.until("/v1/job/etl/run", lambda run: run["Version"] == 1 and run["Ended"])
    assert (run["Number"], run["Status"]) == (2, "succeeded")
    first = await steward.get("/v1/job/etl/run", number="1")
    assert (first["Status"], len(first["Steps"])) == ("succeeded", 2)
