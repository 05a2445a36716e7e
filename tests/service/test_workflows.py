"""Workflows of a real daemon: their graphs, and their runs."""

import json
from pathlib import Path
from typing import Any

from storage.records.base import SECOND
from tests.service.daemon import Steward

FILE = """
job "etl" {
  type = "batch"
  group "extract" {
    task "main" {
      driver = "raw_exec"
      config { command = "/bin/true" }
    }
  }
  group "load" {
    meta { steward_needs = "extract" }
    task "main" {
      driver = "raw_exec"
      config { command = "/bin/true" }
    }
  }
  group "alert" {
    count = 2
    meta {
      steward_needs = "*"
      steward_when  = "failure"
      steward_if    = "needs.load.exit_code > 2"

      steward_gate              = "Page?"
      steward_gate_number       = "2"
      steward_concurrency       = "pager"
      steward_concurrency_slots = "2"
    }
    task "main" {
      driver = "raw_exec"
      config { command = "/bin/true" }
    }
  }
}
"""


async def test_the_graph_of_a_file_is_shown_in_three_forms(
    steward: Steward, tmp_path: Path
) -> None:
    file = tmp_path / "etl.hcl"
    file.write_text(FILE)
    shown = (await steward.cli("job", "graph", str(file))).stdout.decode()
    assert shown.splitlines() == [
        'job "etl": 3 steps in 3 levels',
        "Level  Step     Elements  Begins",
        "1      extract  1         immediately",
        "2      load     1         after success of extract",
        "3      alert    2         after failure of extract, load, if needs.load.exit_code > 2, "
        'with 2 approvals (Page?), with 2 slots of "pager"',
        "Longest chain: extract -> load -> alert",
    ]
    dot = (await steward.cli("job", "graph", "-dot", str(file))).stdout.decode()
    assert '  "load" -> "alert" [style=dashed];' in dot.splitlines()
    mermaid = (await steward.cli("job", "graph", "-mermaid", str(file))).stdout.decode()
    assert "  s1 -. failure .-> s2" in mermaid.splitlines()


async def test_a_graph_with_a_cycle_is_refused_with_its_steps(steward: Steward) -> None:
    groups = [
        {"Name": name, "Meta": {"steward_needs": need}, "Tasks": []}
        for name, need in (("a", "b"), ("b", "a"))
    ]
    job = {"ID": "x", "Type": "batch", "TaskGroups": groups}
    answer = await steward.request("POST", "/v1/jobs/graph", {"Job": job})
    assert (answer.status_code, answer.text) == (
        400,
        "steps wait for each other: a -> b -> a",
    )
    groups[0]["Meta"] = {"steward_when": "often"}
    answer = await steward.request("POST", "/v1/jobs/graph", {"Job": job})
    assert 'is "often", must be success or failure or always' in answer.text
    answer = await steward.request("POST", "/v1/jobs/graph", {})
    assert (answer.status_code, answer.text) == (400, "Job must be specified")


async def test_the_graph_of_a_stored_job_without_keys_has_one_level(steward: Steward) -> None:
    tasks = [{"Name": "main", "Driver": "raw_exec", "Config": {"command": "/bin/true"}}]
    groups = [{"Name": name, "Tasks": tasks} for name in "ab"]
    await steward.register({"ID": "plain", "Type": "batch", "TaskGroups": groups})
    found = await steward.get("/v1/job/plain/graph")
    assert (found["IsWorkflow"], found["Levels"], found["Edges"]) == (False, [["a", "b"]], [])
    assert (await steward.request("GET", "/v1/job/plain/graph", version=7)).status_code == 404
    assert (await steward.request("GET", "/v1/job/none/graph")).status_code == 404


def shell(name: str, script: str, needs: str = "", **more: Any) -> dict[str, Any]:
    keys = {f"steward_{key}": text for key, text in more.pop("keys", {}).items()}
    meta = {**({"steward_needs": needs} if needs else {}), **keys}
    task = {
        "Name": "main",
        "Driver": "raw_exec",
        "Config": {"command": "/bin/sh", "args": ["-c", script]},
        "Resources": {"CPU": 10, "MemoryMB": 10},
    }
    never = {"Attempts": 0, "Mode": "fail", "Interval": 3600 * SECOND, "Delay": SECOND}
    return {
        "Name": name,
        "Meta": meta,
        "Tasks": [task],
        "RestartPolicy": never,
        "ReschedulePolicy": {"Attempts": 0, "Unlimited": False},
        **more,
    }


def workflow(*groups: dict[str, Any], job_id: str = "etl") -> dict[str, Any]:
    return {"ID": job_id, "Type": "batch", "TaskGroups": list(groups)}


async def begin(steward: Steward, job: dict[str, Any]) -> None:
    """Register a workflow, and wait until its first evaluation has created the run."""
    done = await steward.register(job)
    await steward.until(
        f"/v1/evaluation/{done['EvalID']}", lambda shown: shown["Status"] == "complete"
    )


def has_ended(run: Any) -> bool:
    return run["Status"] in ("succeeded", "failed", "canceled")


async def test_steps_run_in_the_order_of_their_needs(steward: Steward, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    await begin(
        steward,
        workflow(
            shell("last", f"echo last >>{trace}", "left, right"),
            shell("left", f"echo left >>{trace}", "first"),
            shell("right", f"echo right >>{trace}", "first"),
            shell("first", f"env | grep -c ^NOMAD_META_steward; echo first >>{trace}"),
        ),
    )
    run = await steward.until("/v1/job/etl/run", has_ended)
    assert (run["Status"], run["Number"], run["Reason"]) == ("succeeded", 1, "")
    lines = trace.read_text().split()
    assert (lines[0], sorted(lines[1:3]), lines[3:]) == ("first", ["left", "right"], ["last"])
    (listed,) = await steward.get("/v1/runs")
    assert (listed["JobID"], listed["Status"]) == ("etl", "succeeded")
    (of_job,) = await steward.get("/v1/job/etl/runs")
    assert (of_job["Result"], of_job["Number"]) == ("complete", 1)
    assert (await steward.get("/v1/job/etl/state"))["State"] == "complete"
    (first,) = [
        item
        for item in await steward.get("/v1/job/etl/allocations")
        if item["TaskGroup"] == "first"
    ]
    assert await steward.log_of(first["ID"], "main") == "0\n"


async def test_failure_starts_a_handler_and_fails_the_command(
    steward: Steward, tmp_path: Path
) -> None:
    file = tmp_path / "etl.json"
    job = workflow(
        shell("load", "echo no disk >&2; exit 7"),
        shell("report", "exit 0", "load"),
        shell("page", "exit 0", "*", keys={"when": "failure"}),
    )
    file.write_text(json.dumps({"Job": job}))
    done = await steward.cli("job", "run", "-wait", str(file))
    assert done.returncode == 7, done.stderr
    shown = await steward.cli("runs", "status", "etl")
    _, _, *lines = shown.stdout.decode().splitlines()
    assert [line.split()[:3] for line in lines[:3]] == [
        ["!", "load", "failed"],
        ["/", "report", "skipped"],
        ["+", "page", "succeeded"],
    ]
    assert lines[3:5] == ["", "Last Error"]
    assert lines[5].endswith('task "main" exited with code 7')
    assert lines[6:] == ["    no disk"]
    waited = await steward.cli("runs", "wait", "etl")
    assert waited.returncode == 7
    *_, error, stderr, ending = waited.stdout.decode().splitlines()
    assert error.endswith('task "main" exited with code 7')
    assert (stderr, ending) == ("    no disk", "run 1 of etl failed: step load failed")
    listed = (await steward.cli("runs", "etl")).stdout.decode().splitlines()
    assert listed[1].split()[:4] == ["etl", "1", "0", "failed"]
    assert (await steward.cli("runs")).stdout.decode().splitlines() == listed
    missing = await steward.cli("runs", "status", "-run", "9", "etl")
    assert (missing.returncode, b"no run 9" in missing.stderr) == (1, True)
    explained = (await steward.cli("job", "explain", "etl")).stdout.decode()
    assert 'group "report": it was skipped: step load was not successful' in explained
    assert explained.endswith('task "main" exited with code 7\n    no disk\n')


async def test_allowed_failure_does_not_fail_the_command(steward: Steward, tmp_path: Path) -> None:
    file = tmp_path / "etl.json"
    script = "echo bad >&2; test $NOMAD_ALLOC_INDEX != 1"
    load = shell("load", script, Count=2, keys={"failures_allowed": "1"})
    file.write_text(json.dumps({"Job": workflow(load, shell("report", "exit 0", "load"))}))
    for option in ("-wait", "-logs"):
        done = await steward.cli("job", "run", option, str(file))
        assert done.returncode == 0, done.stdout
    assert (await steward.get("/v1/job/etl/state"))["State"] == "complete"
    listed = await steward.cli("runs", "list", "-status", "succeeded")
    assert listed.stdout.decode().splitlines()[1].split()[:4] == ["etl", "1", "0", "succeeded"]
    file.write_text(json.dumps({"Job": workflow(shell("load", "echo no disk >&2; exit 4"))}))
    failed = (await steward.cli("job", "run", str(file))).stdout.decode()
    assert 'failed: task "main" exited with code 4\n    no disk\n' in failed


async def test_a_run_continues_after_a_kill_of_the_daemon(steward: Steward, tmp_path: Path) -> None:
    go = tmp_path / "go"
    await begin(
        steward,
        workflow(
            shell("a", f"until [ -e {go} ]; do sleep 0.05; done"),
            shell("b", "exit 0", "a"),
        ),
    )
    await steward.allocations("etl", "running")
    await steward.kill()
    go.touch()
    await steward.start()
    run = await steward.until("/v1/job/etl/run", has_ended)
    assert [step["State"] for step in run["Steps"]] == ["succeeded", "succeeded"]


async def test_run_list_is_filtered_and_paged(steward: Steward) -> None:
    for name in ("one", "two", "three"):
        groups = (shell("a", "exit 0"), shell("b", "exit 0", "a"))
        await begin(steward, workflow(*groups, job_id=name))
        await steward.until(f"/v1/job/{name}/run", has_ended)
    names = [item["JobID"] for item in await steward.get("/v1/runs", per_page=2)]
    assert names == ["three", "two"]
    assert [item["JobID"] for item in await steward.get("/v1/runs", prefix="t")] == ["three", "two"]
    assert await steward.get("/v1/runs", status="failed") == []
    bad = await steward.request("GET", "/v1/runs", status="great")
    assert (bad.status_code, "must be one of running" in bad.text) == (400, True)
    found = await steward.get("/v1/runs", filter='JobID == "one"')
    assert [item["JobID"] for item in found] == ["one"]
    assert (await steward.request("GET", "/v1/job/one/run", number=5)).status_code == 404


async def test_plan_shows_the_graph_and_places_ready_steps(steward: Steward) -> None:
    job = workflow(shell("a", "exit 0"), shell("b", "exit 0", "a"))
    planned = await steward.post("/v1/job/etl/plan", {"Job": job, "Diff": True})
    updates = planned["Annotations"]["DesiredTGUpdates"]
    assert {name: one["Place"] for name, one in updates.items()} == {"a": 1, "b": 0}
    assert planned["Flow"]["Levels"] == [["a"], ["b"]]
    plain = {**job, "TaskGroups": [shell("a", "exit 0")]}
    assert "Flow" not in await steward.post("/v1/job/etl/plan", {"Job": plain})


async def test_plan_command_shows_a_picture_of_a_workflow_only(
    steward: Steward, tmp_path: Path
) -> None:
    file = tmp_path / "etl.hcl"
    file.write_text(FILE)
    shown = (await steward.cli("job", "plan", "-no-diff", str(file))).stdout.decode()
    assert shown.splitlines()[:5] == [
        'job "etl": 3 steps in 3 levels; 1 can begin now',
        "    extract -> load",
        "    extract, load -> alert x2 (on failure, condition, gate with 2 approvals, "
        '2 slots of "pager")',
        '    slot of "pager": 0 of 1 in use (1 by default)',
        "",
    ]
    plain = "\n".join(line for line in FILE.splitlines() if "steward_" not in line)
    file.write_text(plain)
    shown = (await steward.cli("job", "plan", "-no-diff", str(file))).stdout.decode()
    assert shown.splitlines()[0] == "All allocations can be placed."


async def test_users_control_a_run_with_commands(steward: Steward, tmp_path: Path) -> None:
    mended = tmp_path / "mended"
    await begin(
        steward,
        workflow(
            shell("load", f"test -e {mended}"),
            shell("publish", "exit 0", "load", keys={"gate": "Publish?"}),
        ),
    )
    await steward.until("/v1/job/etl/run", has_ended)
    preview = await steward.cli("runs", "rerun", "-preview", "etl")
    assert preview.stdout.decode() == "run 1 of etl would run again: load, publish\n"
    mended.touch()
    done = await steward.cli("runs", "rerun", "-note", "mended", "etl")
    assert done.stdout.decode() == "run 1 of etl runs again: load, publish\n"
    held = await steward.until("/v1/job/etl/run", lambda run: run["Steps"][1]["State"] == "held")
    assert held["Steps"][1]["Reason"] == "gate: Publish?"
    explained = (await steward.cli("job", "explain", "etl")).stdout.decode()
    assert "it is held: gate: Publish?" in explained
    refused = await steward.cli("runs", "accept", "etl", "publish")
    assert (refused.returncode, refused.stderr) == (
        1,
        b"steward: step publish is held; only a failure can be accepted\n",
    )
    done = await steward.cli("runs", "approve", "etl", "publish")
    assert done.stdout.decode() == "run 1 of etl has an approval for: publish\n"
    run = await steward.until("/v1/job/etl/run", has_ended)
    assert (run["Status"], run["Attempt"]) == ("succeeded", 2)
    assert [(act["Act"], act["Note"], act["Who"]) for act in run["Acts"]] == [
        ("rerun", "mended", "anonymous"),
        ("approve", "", "anonymous"),
    ]
    answer = await steward.request("POST", "/v1/job/etl/run/cancel")
    assert (answer.status_code, answer.text) == (409, "run 1 has ended: succeeded")
    answer = await steward.request("POST", "/v1/job/none/run/cancel")
    assert answer.status_code == 404


async def test_outputs_reach_later_steps(steward: Steward) -> None:
    plan = shell(
        "plan",
        r"""printf 'rows=12\ntext="a\\nb"\n' > "$STEWARD_OUTPUT" """,
        keys={"outputs": "rows, text"},
    )
    split = shell("split", 'echo "part=p$NOMAD_ALLOC_INDEX" > "$STEWARD_OUTPUT"', "plan", Count=2)
    load = shell(
        "load",
        'cat "$NOMAD_TASK_DIR/needs.json"; echo; echo "$ROWS $0 $1"',
        "split",
    )
    task = load["Tasks"][0]
    task["Env"] = {"ROWS": "${output.plan.rows}"}
    task["Config"]["args"] += ["${output.split.part}", "${output.split[1].part}"]
    few = shell("few", "exit 0", "plan", keys={"if": "needs.plan.outputs.rows < 12"})
    await begin(steward, workflow(plan, split, load, few))
    run = await steward.until("/v1/job/etl/run", has_ended)
    assert [step["State"] for step in run["Steps"]] == ["succeeded"] * 3 + ["skipped"]
    allocs = await steward.get("/v1/job/etl/allocations")
    (one,) = [alloc["ID"] for alloc in allocs if alloc["TaskGroup"] == "load"]
    answer = await steward.request(
        "GET", f"/v1/client/fs/cat/{one}", path="alloc/logs/main.stdout.0"
    )
    first, second = answer.text.splitlines()
    assert json.loads(first) == {
        "split": {
            "outcome": "good",
            "state": "succeeded",
            "reason": "",
            "exit_code": 0,
            "failed": 0,
            "total": 2,
            "outputs": {"part": ["p0", "p1"]},
        }
    }
    assert second == '12 ["p0","p1"] p1'
    found = await steward.get("/v1/job/etl/run/outputs", step="plan")
    assert [(item["Step"], item["Element"], item["Outputs"]) for item in found] == [
        ("plan", 0, {"rows": "12", "text": "a\nb"})
    ]
    shown = (await steward.cli("runs", "outputs", "etl", "split")).stdout.decode().splitlines()
    assert [line.split() for line in shown] == [
        ["Step", "Element", "Name", "Value"],
        ["split", "0", "part", "p0"],
        ["split", "1", "part", "p1"],
    ]
    answer = await steward.request("GET", "/v1/job/etl/run/outputs", step="none")
    assert (answer.status_code, answer.text) == (404, "run 1 has no step 'none'")


async def test_later_step_reads_the_outputs_of_an_accepted_step(steward: Steward) -> None:
    plan = shell("plan", "exit 1", keys={"outputs": "rows"})
    load = shell("load", 'test "$0" = "1 2" && echo "got=$0" > "$STEWARD_OUTPUT"', "plan")
    load["Tasks"][0]["Config"]["args"] += ["${output.plan.rows}"]
    await begin(steward, workflow(plan, load))
    await steward.until("/v1/job/etl/run", has_ended)
    refused = await steward.cli("runs", "accept", "-output", "path=x", "etl", "plan")
    assert (refused.returncode, refused.stderr) == (
        1,
        b"steward: Outputs must also contain rows, as steward_outputs of step plan requires\n",
    )
    for output in ("rows", "rows=1 -output rows=2"):
        refused = await steward.cli("runs", "accept", *f"-output {output} etl plan".split())
        assert refused.returncode == 1
    done = await steward.cli("runs", "accept", "-output", "rows=1 2", "etl", "plan")
    assert done.stdout.decode() == "run 1 of etl changes: plan, load\n"
    run = await steward.until("/v1/job/etl/run", has_ended)
    assert run["Status"] == "succeeded"
    found = await steward.get("/v1/job/etl/run/outputs")
    assert [(item["Step"], item["Outputs"]) for item in found] == [
        ("load", {"got": "1 2"}),
        ("plan", {"rows": "1 2"}),
    ]


async def test_one_step_runs_with_the_outputs_of_an_earlier_run(steward: Steward) -> None:
    plan = shell("plan", 'echo "rows=12" > "$STEWARD_OUTPUT"; echo x > kept')
    plan["Tasks"][0]["Meta"] = {"steward_keep": "kept"}
    load = shell(
        "load",
        'test "$0" = 12 && echo "got=$(cat local/kept)" > "$STEWARD_OUTPUT"',
        "plan",
        Count=2,
    )
    task = load["Tasks"][0]
    task["Config"]["args"] += ["${output.plan.rows}"]
    task["Artifacts"] = [{"GetterSource": "kept://plan/kept", "RelativeDest": "local/"}]
    await begin(steward, workflow(plan, load, shell("after", "sleep 300", "load")))
    refused = await steward.cli("runs", "step", "etl", "load")
    assert (refused.returncode, refused.stderr) == (
        1,
        b"steward: run 1 is running: a step can run alone only after the run has ended\n",
    )
    await steward.until("/v1/job/etl/run", lambda run: run["Steps"][2]["State"] == "running")
    await steward.cli("runs", "cancel", "-now", "etl")
    await steward.until("/v1/job/etl/run", has_ended)
    done = await steward.cli("runs", "step", "-index", "1", "-note", "fixed", "etl", "load")
    assert done.stdout.decode() == "run 2 of etl runs only load[1], with the outputs of run 1\n"
    run = await steward.until("/v1/job/etl/run", has_ended)
    assert (run["Status"], run["Trigger"], run["OnlyStep"], run["OnlyElement"]) == (
        *("succeeded", "step-by-hand"),
        *("load", 1),
    )
    assert [(one["Act"], one["Note"]) for one in run["Acts"]] == [("step", "fixed")]
    outputs = await steward.get("/v1/job/etl/run/outputs")
    assert [(item["Step"], item["Element"], item["Outputs"]) for item in outputs] == [
        ("load", 0, {"got": "x"}),
        ("load", 1, {"got": "x"}),
        ("plan", 0, {"rows": "12"}),
    ]
    shown = (await steward.cli("runs", "status", "etl")).stdout.decode()
    assert "one step by hand: load[1], with the outputs of run 1" in shown
    assert "only step load[1]" in (await steward.cli("runs", "list", "etl")).stdout.decode()
    state = await steward.get("/v1/job/etl/state")
    assert (state["State"], state["Reason"]) == ("complete", "only step load[1] ran, by hand")
    answer = await steward.request("POST", "/v1/job/etl/run/step", {"Steps": ["none"]})
    assert (answer.status_code, answer.text) == (
        400,
        "version 1 has no step 'none'; it has plan, load, after",
    )


async def test_templates_read_outputs_and_items(steward: Steward) -> None:
    plan = shell("plan", """echo 'rows=12' > "$STEWARD_OUTPUT" """)
    split = shell("split", 'echo "part=p$NOMAD_ALLOC_INDEX" > "$STEWARD_OUTPUT"', "plan", Count=2)
    load = shell(
        "load",
        'echo "got=$(cat $NOMAD_TASK_DIR/x) $FROM" > "$STEWARD_OUTPUT"',
        "split",
        keys={"for_each": '["eu"]'},
    )
    text = """{{ output "plan" "rows" }} {{ output "split" "part" 1 }}
{{- range output "split" "part" | parseJSON }} {{ . }}{{ end }} {{ env "STEWARD_EACH_VALUE" }}"""
    load["Tasks"][0]["Templates"] = [
        {"EmbeddedTmpl": text, "DestPath": "local/x"},
        {"EmbeddedTmpl": 'FROM={{ output "plan" "rows" }}', "DestPath": "local/e", "Envvars": True},
    ]
    await begin(steward, workflow(plan, split, load))
    await steward.until("/v1/job/etl/run", has_ended)
    found = await steward.get("/v1/job/etl/run/outputs", step="load")
    assert [item["Outputs"]["got"] for item in found] == ["12 p1 p0 p1 eu 12"]
    (element,) = (await steward.get("/v1/job/etl/run", elements="load"))["Elements"]
    assert (element["Key"], element["Value"], element["State"]) == ("0", "eu", "succeeded")


async def test_elements_of_a_step_are_listed_in_pages_and_by_a_command(steward: Steward) -> None:
    script = 'test "$NOMAD_ALLOC_INDEX" != 1 || exit 5'
    await begin(steward, workflow(shell("a", script, Count=3), shell("b", "exit 0", "a")))
    await steward.until("/v1/job/etl/run", has_ended)
    answer = await steward.request("GET", "/v1/job/etl/run", elements="a", per_page=2)
    assert [(item["State"], item["ExitCode"]) for item in answer.json()["Elements"]] == [
        ("succeeded", 0),
        ("failed", 5),
    ]
    assert [item["Name"] for item in answer.json()["Steps"]] == ["a"]
    assert answer.headers["X-Nomad-NextToken"] == "2"
    page = await steward.get("/v1/job/etl/run", elements="a", per_page=2, next_token="2")
    (last,) = page["Elements"]
    assert "Elements" not in await steward.get("/v1/job/etl/run")
    assert (last["Index"], last["Attempt"]) == (2, 1)
    assert (await steward.get("/v1/allocation/" + last["AllocID"]))["Name"] == "etl.a[2]"
    shown = await steward.cli("runs", "elements", "-state", "failed", "etl", "a")
    (_, failed) = shown.stdout.decode().splitlines()
    assert failed.split()[:4] == ["1", "failed", "1", "5"]
    answer = await steward.request("GET", "/v1/job/etl/run", elements="none")
    assert (answer.status_code, answer.text) == (404, "run 1 has no step 'none'")


async def test_a_success_without_its_outputs_is_a_failure(steward: Steward) -> None:
    await begin(steward, workflow(shell("plan", "exit 0", keys={"outputs": "rows, text"})))
    run = await steward.until("/v1/job/etl/run", has_ended)
    assert (run["Status"], run["Reason"]) == ("failed", "step plan failed")
    explained = (await steward.cli("job", "explain", "etl")).stdout.decode()
    assert "the step has not written its output rows, text" in explained


async def test_each_element_of_a_list_gets_its_item(steward: Steward) -> None:
    plan = shell("plan", """echo 'shards={"eu": {"n": 1}, "us": "y"}' > "$STEWARD_OUTPUT" """)
    load = shell(
        "load",
        'echo "got=$0 $1 $STEWARD_EACH_VALUE" > "$STEWARD_OUTPUT"',
        "plan",
        keys={"for_each": "${output.plan.shards}"},
    )
    load["Tasks"][0]["Config"]["args"] += ["${each.key}", "${each.value.n}"]
    await begin(steward, workflow(plan, load))
    await steward.until("/v1/job/etl/run", has_ended)
    found = await steward.get("/v1/job/etl/run/outputs", step="load")
    assert [item["Outputs"]["got"] for item in found] == ['eu 1 {"n":1}', "us  y"]


async def test_child_runs_again_with_the_fixed_version_of_its_parent(steward: Steward) -> None:
    first = shell("a", 'echo "rows=1" > "$STEWARD_OUTPUT"')
    broken = {
        **workflow(first, shell("b", "exit 1", "a"), job_id="nightly"),
        "ParameterizedJob": {"MetaOptional": ["day"]},
    }
    await steward.register(broken)
    answer = await steward.request("POST", "/v1/job/nightly/dispatch", {"Meta": {"day": "mon"}})
    child = answer.json()["DispatchedJobID"]
    path = f"/v1/job/{child.replace('/', '%2F')}"
    await steward.until(path, lambda one: one["Status"] == "dead")
    mended = shell("b", 'test "$NOMAD_META_day" = mon && test "$0" = 1', "a")
    mended["Tasks"][0]["Config"]["args"] += ["${output.a.rows}"]
    await steward.register({**broken, "TaskGroups": [first, mended]})
    shown = await steward.cli("runs", "rerun", "-preview", "-version", "1", child)
    assert shown.stdout.decode().endswith("would run again: b\n")
    await steward.cli("runs", "rerun", "-version", "1", child)
    run = await steward.until(f"{path}/run", lambda one: one["Number"] == 2 and has_ended(one))
    assert (run["Status"], [one["Attempt"] for one in run["Steps"]]) == ("succeeded", [1, 2])
    stored = await steward.get(path)
    assert (stored["ParentID"], stored["Meta"]["day"]) == ("nightly", "mon")


async def test_elements_follow_their_counterparts_across_a_kill(steward: Steward) -> None:
    plan = """echo 'shards=["eu", "us"]' > $STEWARD_OUTPUT"""
    load = 'test ${each.value} = eu || sleep 3; echo "path=/${each.value}" > $STEWARD_OUTPUT'
    check = 'echo "seen=${each.key}:${each.value}:${output.load.path}" > $STEWARD_OUTPUT'
    await begin(
        steward,
        workflow(
            shell("plan", plan),
            shell("load", load, "plan", keys={"for_each": "${output.plan.shards}"}),
            shell("check", check, "load[i]"),
        ),
    )
    early = await steward.until("/v1/job/etl/run", lambda run: run["Steps"][2]["Good"] == 1)
    assert early["Steps"][1]["Outcome"] is None
    await steward.kill_and_restart()
    run = await steward.until("/v1/job/etl/run", has_ended)
    assert [(step["State"], step["Good"]) for step in run["Steps"]] == [
        ("succeeded", 1),
        ("succeeded", 2),
        ("succeeded", 2),
    ]
    shown = (await steward.cli("runs", "outputs", "etl")).stdout.decode()
    assert "0:eu:/eu" in shown
    assert "1:us:/us" in shown
