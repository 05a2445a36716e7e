"""Freezes in a real daemon, also across a kill."""

import json
from pathlib import Path

from tests.service.daemon import Steward
from tests.service.test_workflows import shell, workflow


async def test_freeze_delays_runs_across_a_kill_until_its_end(steward: Steward) -> None:
    done = (await steward.cli("freeze", "-strength", "steps", "-until", "+2h", "release")).stdout
    freeze_id = done.decode().split()[1].rstrip(";")
    await steward.register(
        workflow({**shell("a", "exit 0"), "Meta": {"steward_redo": "true"}}, job_id="etl")
    )
    await steward.until("/v1/job/etl/runs", bool)
    await steward.until("/v1/job/etl/run", lambda run: run["Steps"][0]["State"] == "held")
    await steward.kill_and_restart()
    listed = (await steward.cli("freezes")).stdout.decode().splitlines()
    assert listed[1].split()[:4] == [freeze_id, "default", "all", "steps"]
    told = (await steward.cli("job", "explain", "etl")).stdout.decode()
    assert told.count(f"freeze {freeze_id}") == 1
    assert "freeze: release" in told
    assert (await steward.get("/v1/job/etl"))["Status"] == "pending"
    page = await steward.request("GET", "/ui/jobs")
    assert "Freeze of namespace default: release." in page.text
    shown = (await steward.cli("job", "status", "etl")).stdout.decode()
    assert f"held by freeze {freeze_id}" in shown
    await steward.cli("thaw", freeze_id)
    await steward.until("/v1/job/etl", lambda job: job["Status"] == "dead")
    assert (await steward.get("/v1/job/etl/run"))["Status"] == "succeeded"
    found = await steward.get("/v1/operator/audit", path="/v1/freeze")
    assert [(entry["Method"], entry["Path"], entry["Status"]) for entry in found] == [
        ("DELETE", f"/v1/freeze/{freeze_id}", 200),
        ("POST", "/v1/freeze", 200),
    ]
    (owner,) = {entry["Accessor"] for entry in found}
    assert owner == (await steward.get("/v1/acl/token/self"))["AccessorID"]


async def test_run_of_a_held_job_waits_for_the_end_of_the_freeze(
    steward: Steward, tmp_path: Path
) -> None:
    await steward.cli("freeze", "-until", "+2s", "short")
    file = tmp_path / "job.json"
    file.write_text(json.dumps(workflow(shell("a", "exit 3"), job_id="one")))
    done = await steward.cli("run", str(file))
    told = done.stdout.decode()
    assert done.returncode == 1
    assert "held by freeze" in told
    assert 'task "main" exited with code 3' in told


async def test_command_does_not_claim_that_a_held_job_was_placed(steward: Steward) -> None:
    await steward.cli("freeze", "-until", "+2h", "release")
    parent = {**workflow(shell("a", "exit 0"), job_id="etl"), "ParameterizedJob": {}}
    await steward.register(parent)
    told = (await steward.cli("job", "dispatch", "etl")).stdout.decode().splitlines()[-1]
    assert "pending: held by freeze" in told


async def test_freeze_ends_on_time(steward: Steward) -> None:
    await steward.cli("freeze", "-until", "+2s", "short")
    await steward.register(
        workflow({**shell("a", "exit 0"), "Meta": {"steward_redo": "true"}}, job_id="etl")
    )
    await steward.until("/v1/job/etl", lambda job: job["Status"] == "dead")
    found = await steward.get("/v1/freezes")
    assert found[0]["Ended"] == found[0]["Until"]
    run = await steward.get("/v1/job/etl/run")
    assert run["Steps"][0]["Opened"] >= found[0]["Until"]


async def test_a_freeze_of_a_queue_without_jobs_gets_a_warning(steward: Steward) -> None:
    done = await steward.cli("freeze", "-queue", "nope", "release")
    assert done.returncode == 0
    warning = 'Warning: no job of namespace "default" names the queue "nope"'
    assert done.stderr.decode().strip() == warning
