"""Workflows of a real daemon: their graphs, and their runs."""

from pathlib import Path

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
        "1      extract  1         at once",
        "2      load     1         after success of extract",
        "3      alert    2         after failure of extract, load, if needs.load.exit_code > 2",
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
