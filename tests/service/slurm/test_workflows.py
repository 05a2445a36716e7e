"""Workflows on a real cluster: outputs, lists, needs by element, and kills of the daemon."""

import json
from pathlib import Path
from typing import Any

from tests.service.daemon import Steward
from tests.service.slurm.jobs import POOL, script

PLAN = """echo 'shards=["eu","us","asia"]' > $STEWARD_OUTPUT"""
LOAD = 'echo "path=/data/$STEWARD_EACH_VALUE" > "$STEWARD_OUTPUT"'
CHECK = 'echo "$STEWARD_EACH_VALUE ${PLACE}"; echo checked=yes > "$STEWARD_OUTPUT"'
SUM = 'cat "$NOMAD_TASK_DIR/needs.json"; echo; echo "$PLACES"'


def group(name: str, text: str, env: dict[str, str] | None = None, **meta: str) -> Any:
    """Return a step; `meta` has its keys without the prefix `steward_`."""
    (found,) = script(name, text, Env=env or {})["TaskGroups"]
    return {**found, "Name": name, "Meta": {f"steward_{key}": meta[key] for key in meta}}


def workflow(job_id: str, *groups: Any) -> Any:
    return {"ID": job_id, "Type": "batch", "NodePool": POOL, "TaskGroups": [*groups]}


async def ended(steward: Steward, job_id: str) -> Any:
    """Wait until the run of a job has ended; return the run."""
    ends = {"succeeded", "failed", "canceled"}
    (found,) = await steward.until(
        "/v1/runs", lambda runs: [run["Status"] in ends for run in runs] == [True], prefix=job_id
    )
    return found


async def outputs_of(steward: Steward, job_id: str, step: str) -> list[str]:
    """Return the output of each element of a step, by index."""
    found = await steward.get(f"/v1/job/{job_id}/allocations")
    places = {alloc["Name"]: alloc["ID"] for alloc in found if alloc["TaskGroup"] == step}
    names = [f"{job_id}.{step}[{index}]" for index in range(len(places))]
    return [await steward.log_of(places[name], "main") for name in names]


async def test_outputs_and_lists_work_in_a_cluster(steward: Steward) -> None:
    job = workflow(
        "flow",
        group("plan", PLAN, outputs="shards"),
        group("load", LOAD, needs="plan", for_each="${output.plan.shards}", outputs="path"),
        group("check", CHECK, {"PLACE": "${output.load.path}"}, needs="load[i]"),
        group("sum", SUM, {"PLACES": "${output.load.path}"}, needs="load, check"),
    )
    answer = await steward.register(job)
    assert "Slurm" not in str(answer)
    run = await ended(steward, "flow")
    assert run["Status"] == "succeeded", run
    places = [f"/data/{shard}" for shard in ("eu", "us", "asia")]
    checked = [f"{place.rpartition('/')[2]} {place}\n" for place in places]
    assert await outputs_of(steward, "flow", "check") == checked
    (said,) = await outputs_of(steward, "flow", "sum")
    needs, listed = said.splitlines()
    assert json.loads(listed) == places
    found = json.loads(needs)
    assert found["load"]["outputs"] == {"path": places}
    assert found["check"]["outputs"] == {"checked": ["yes"] * 3}


async def test_missing_declared_output_fails_the_step(steward: Steward) -> None:
    text = 'rm "$STEWARD_OUTPUT"; mkfifo "$STEWARD_OUTPUT"'
    await steward.register(workflow("pipe", group("plan", text, outputs="rows")))
    assert (await ended(steward, "pipe"))["Status"] == "failed"
    (alloc,) = await steward.allocations("pipe", "failed")
    events = alloc["TaskStates"]["main"]["Events"]
    told = [event["DisplayMessage"] for event in events if event["Type"] == "Output Failure"]
    assert "not a regular file" in told[0]


async def test_outputs_that_arrive_while_the_daemon_is_down_are_stored_once(
    steward: Steward, task: Any
) -> None:
    text = f'{task.text}; echo rows=1 > "$STEWARD_OUTPUT"'
    await steward.register(workflow("away", group("plan", text, outputs="rows")))
    await task.until("began")
    await steward.kill()
    task.go()
    await task.until("began", "ended")
    await steward.start()
    assert (await ended(steward, "away"))["Status"] == "succeeded"
    found = await steward.get("/v1/job/away/run/outputs")
    assert "rows" in str(found)
    assert task.lines() == ["began", "ended"]


async def test_retained_files_of_a_host_reach_a_later_step(
    steward: Steward, tmp_path: Path
) -> None:
    make = group("make", "mkdir out; seq 500000 >out/rows; ln -s rows out/link")
    make["Tasks"][0]["Meta"] = {"steward_keep": "out/*"}
    load = group("load", "tail -n 1 local/rows", needs="make")
    artifact = {"GetterSource": "kept://make/out/rows", "RelativeDest": "local/"}
    load["Tasks"][0]["Artifacts"] = [artifact]
    await steward.register(workflow("keeps", make, load))
    assert (await ended(steward, "keeps"))["Status"] == "succeeded"
    assert await outputs_of(steward, "keeps", "load") == ["500000\n"]
    found = await steward.get("/v1/job/keeps/allocations")
    (one,) = [alloc for alloc in found if alloc["TaskGroup"] == "make"]
    told = [event["DisplayMessage"] for event in one["TaskStates"]["main"]["Events"]]
    assert "out/link: it is a link, and links are not followed" in told
    file = tmp_path / "rows"
    await steward.cli("alloc", "kept", one["ID"], "out/rows", "-o", str(file))
    assert file.read_text().splitlines()[-1] == "500000"
