"""Directories of `run --with`: uploaded once, and read-only for tasks and children."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.service.daemon import Steward, open_steward

SOURCE = """
job "{name}" {{
  type = "batch"
  {more}
  group "main" {{
    task "main" {{
      driver = "raw_exec"
      config {{
        command = "/bin/sh"
        args    = ["-c", "local/scripts/sub/run.sh; cat local/scripts/data; stat -c %a local/scripts/data"]
      }}
    }}
  }}
}}
"""


@pytest.fixture
async def steward(tmp_path: Path) -> AsyncIterator[Steward]:
    async with open_steward(tmp_path, "--dev") as one:
        yield one


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    folder = tmp_path / "input" / "scripts"
    (folder / "sub").mkdir(parents=True)
    (folder / "data").write_text("content\n")
    (folder / "sub/run.sh").write_text("#!/bin/sh\necho ran\n")
    (folder / "sub/run.sh").chmod(0o755)
    return folder


async def run(steward: Steward, folder: Path, name: str = "uses", more: str = "") -> None:
    source = SOURCE.format(name=name, more=more)
    words = ("job", "run", "--detach", "--with", str(folder), "-")
    done = await steward.cli(*words, stdin=source)
    assert done.returncode == 0, done.stderr.decode()


def payloads(directory: Path) -> list[Path]:
    """Return the stored input files of a daemon."""
    return sorted(one for one in directory.rglob("payloads/**/*") if one.is_file())


async def output(steward: Steward, job_id: str) -> list[str]:
    found = await steward.allocations(job_id.replace("/", "%2F"), "complete")
    return [await steward.log_of(alloc["ID"], "main") for alloc in found]


async def test_tasks_get_the_directory_read_only(steward: Steward, scripts: Path) -> None:
    await run(steward, scripts)
    assert await output(steward, "uses") == ["ran\ncontent\n444\n"]
    (scripts / "data").write_text("changed\n")
    await run(steward, scripts)
    path = "/v1/job/uses/allocations"
    await steward.until(
        path, lambda all_: [alloc["ClientStatus"] for alloc in all_] == ["complete"] * 2
    )
    assert sorted(await output(steward, "uses")) == [
        "ran\nchanged\n444\n",
        "ran\ncontent\n444\n",
    ]


async def test_a_plan_shows_a_changed_directory_and_uploads_nothing(
    steward: Steward, scripts: Path, tmp_path: Path
) -> None:
    source = SOURCE.format(name="uses", more="")
    words = ("job", "plan", "--with", str(scripts), "-")
    new = await steward.cli(*words, stdin=source)
    assert new.returncode == 1, new.stderr.decode()
    assert payloads(tmp_path) == []
    await run(steward, scripts)
    await output(steward, "uses")
    stored = payloads(tmp_path)
    assert stored
    same = await steward.cli(*words, stdin=source)
    assert same.returncode == 0, same.stdout.decode() + same.stderr.decode()
    (scripts / "data").write_text("changed\n")
    changed = await steward.cli(*words, stdin=source)
    assert changed.returncode == 1
    assert "payload://scripts-" in changed.stdout.decode()
    assert payloads(tmp_path) == stored


async def test_children_get_the_directory_of_their_parent(steward: Steward, scripts: Path) -> None:
    await run(steward, scripts, "parent", "parameterized {}")
    child = (await steward.post("/v1/job/parent/dispatch", {}))["DispatchedJobID"]
    assert await output(steward, child) == ["ran\ncontent\n444\n"]


async def test_unknown_file_is_refused(steward: Steward) -> None:
    job = {
        "ID": "x",
        "TaskGroups": [
            {
                "Name": "g",
                "Tasks": [{"Name": "t", "Driver": "raw_exec", "Config": {"command": "/bin/true"}}],
            }
        ],
    }
    answer = await steward.request("POST", "/v1/jobs", {"Job": job, "Files": {"a.tar": "b" * 64}})
    assert answer.status_code == 400
    assert "upload the file first" in answer.text
    assert (await steward.request("GET", "/v1/job/x")).status_code == 404
