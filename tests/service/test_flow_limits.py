"""Limits of runs, and runs that a bad step stops, in a real daemon across kills."""

from pathlib import Path

from tests.service.daemon import Steward
from tests.service.test_flow_times import step
from tests.service.test_workflows import workflow


async def test_limited_run_starts_its_elements_in_order_across_a_kill(
    steward: Steward, tmp_path: Path
) -> None:
    """The task of each step writes its name when it begins and when it ends."""
    log, go = tmp_path / "log", tmp_path / "go"
    text = f"echo begin >> {log}; until test -e {go}; do sleep 0.1; done; echo end >> {log}"
    await steward.register(
        {
            **workflow(*(step(name, text) for name in ("a", "b", "c")), job_id="etl"),
            "Meta": {"steward_run_parallel": "1"},
        }
    )
    await steward.allocations("etl", "running")
    await steward.kill_and_restart()
    run = await steward.until("/v1/job/etl/run", lambda run: run["Steps"][0]["State"] == "running")
    assert [one["State"] for one in run["Steps"]] == ["running", "held", "held"]
    go.touch()
    ended = await steward.until("/v1/job/etl/run", lambda run: run["Ended"])
    assert ended["Status"] == "succeeded"
    opened = [one["Opened"] for one in ended["Steps"]]
    assert opened == sorted(opened)
    assert log.read_text().split() == ["begin", "end"] * 3


async def test_bad_step_stops_its_run_across_a_kill(steward: Steward, tmp_path: Path) -> None:
    wait, go = "exec sleep 600", tmp_path / "go"
    await steward.register(
        {
            **workflow(
                step("a", f"until test -e {go}; do sleep 0.1; done; exit 7", outputs="x"),
                step("b", wait),
                step("tidy", wait, needs="b", when="always"),
                job_id="etl",
            ),
            "Meta": {"steward_run_on_failure": "stop", "steward_run_cleanup": "3s"},
        }
    )
    await steward.allocations("etl", "running")
    await steward.until(
        "/v1/job/etl/run",
        lambda run: [one["State"] for one in run["Steps"]] == ["running", "running", "waiting"],
    )
    go.touch()
    await steward.kill_and_restart()
    run = await steward.until(
        "/v1/job/etl/run", lambda run: run["Steps"][2]["State"] in ("open", "running")
    )
    assert (run["Status"], run["Steps"][1]["State"]) == ("stopping", "canceled")
    await steward.kill_and_restart()
    ended = await steward.until("/v1/job/etl/run", lambda run: run["Ended"])
    assert (ended["Status"], ended["Reason"]) == ("failed", "step a failed")
    assert not await steward.task_pids("etl")
