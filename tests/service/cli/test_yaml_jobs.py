"""A job file in YAML runs like any other."""

from pathlib import Path

from tests.service.daemon import Steward

JOB = """
ID: from-yaml
Type: batch
TaskGroups:
  - Name: main
    Tasks:
      - Name: main
        Driver: raw_exec
        Config: { command: /bin/echo, args: [hello] }
        Resources: { CPU: 20, MemoryMB: 20 }
"""


async def test_job_in_yaml_is_planned_and_run(steward: Steward, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(JOB)
    planned = await steward.cli("job", "plan", str(file))
    assert planned.returncode == 1, planned.stderr
    done = await steward.cli("job", "run", str(file))
    assert done.returncode == 0, done.stderr
    (allocation,) = await steward.allocations("from-yaml", "complete")
    assert await steward.log_of(allocation["ID"], "main") == "hello\n"


async def test_error_in_yaml_names_its_line(steward: Steward, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("ID: [a\nType: batch\n")
    done = await steward.cli("job", "run", str(file))
    assert done.returncode == 1
    assert b"job.yaml, line 2, column 5: " in done.stderr
