"""Times of steps and runs in a real daemon, across kills."""

from typing import Any

from storage.records.base import SECOND
from tests.service.daemon import Steward
from tests.service.test_workflows import begin, shell, workflow


def step(name: str, text: str, **keys: str) -> dict[str, Any]:
    meta = {f"steward_{key}": value for key, value in keys.items()}
    return {**shell(name, text), "Meta": meta}


async def test_step_starts_on_time_or_expires_across_a_kill(steward: Steward) -> None:
    await begin(
        steward,
        workflow(
            step("a", "exit 0", not_before="+2s"),
            step("late", "exit 0", not_before="+1h", not_after="2000-01-01T00:00:00Z"),
            step("b", "exit 0", needs="a"),
            job_id="etl",
        ),
    )
    held = await steward.until("/v1/job/etl/run", lambda run: run["Steps"][0]["State"] == "held")
    assert held["Steps"][0]["Reason"].startswith("time: it begins at ")
    await steward.kill_and_restart()
    run = await steward.until("/v1/job/etl/run", lambda run: run["Ended"])
    states = {one["Name"]: one["State"] for one in run["Steps"]}
    assert states == {"a": "succeeded", "late": "skipped", "b": "succeeded"}
    assert run["Reason"] == "step late missed its time: it had to begin before 2000-01-01T00:00:00Z"
    first = run["Steps"][0]
    assert first["Opened"] >= held["Steps"][0]["Since"] + 2 * SECOND


async def test_run_and_its_cleanup_time_out_across_kills(steward: Steward) -> None:
    wait = "exec sleep 600"
    await steward.register(
        {
            **workflow(
                step("a", wait, outputs="x"),
                step("tidy", wait, needs="a", when="failure"),
                job_id="etl",
            ),
            "Meta": {"steward_run_timeout": "3s", "steward_run_cleanup": "3s"},
        }
    )
    await steward.allocations("etl", "running")
    await steward.kill_and_restart()
    run = await steward.until(
        "/v1/job/etl/run", lambda run: run["Steps"][1]["State"] in ("open", "running")
    )
    assert (run["Status"], run["Steps"][0]["State"]) == ("stopping", "canceled")
    await steward.kill_and_restart()
    ended = await steward.until("/v1/job/etl/run", lambda run: run["Ended"])
    assert (ended["Status"], ended["Reason"]) == ("failed", "timeout: the run took longer than 3s")
    assert ended["Ended"] >= run["Deadline"]
    assert not await steward.task_pids("etl")
