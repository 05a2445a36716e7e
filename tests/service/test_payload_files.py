"""Input files with the real daemon: from the command line to the task, across a kill."""

import hashlib
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.http_clients import trusted
from tests.service.daemon import Steward, open_steward
from tests.time_limits import HAPPENS_WITHIN

PIECE = 1024 * 1024


@pytest.fixture
async def steward(tmp_path: Path) -> AsyncIterator[Steward]:
    async with open_steward(tmp_path, "--dev") as one:
        yield one


def parent() -> dict[str, Any]:
    task = {
        "Name": "main",
        "Driver": "raw_exec",
        "Config": {"command": "/bin/sh", "args": ["-c", "sha256sum < local/in.bin"]},
        "Artifacts": [{"GetterSource": "payload://in.bin", "RelativeDest": "local/"}],
    }
    group = {"Name": "group", "Tasks": [task], "RestartPolicy": {"Attempts": 0, "Mode": "fail"}}
    return {"ID": "each", "Type": "batch", "ParameterizedJob": {}, "TaskGroups": [group]}


async def output(steward: Steward, job_id: str) -> str:
    (allocation,) = await steward.allocations(job_id.replace("/", "%2F"), "complete")
    path = f"/v1/client/fs/logs/{allocation['ID']}"
    log = await steward.request("GET", path, task="main", type="stdout", plain="true")
    return log.text.split()[0]


async def test_file_of_the_command_line_reaches_the_task(steward: Steward, tmp_path: Path) -> None:
    content = os.urandom(2 * PIECE + 5)
    (tmp_path / "input").write_bytes(content)
    await steward.register(parent())
    for _ in range(2):  # the second time, nothing is uploaded
        words = ("job", "dispatch", "--file", f"in.bin={tmp_path}/input", "--detach", "each")
        done = await steward.cli(*words)
        assert done.returncode == 0, done.stderr.decode()
    children = [item["ID"] for item in await steward.get("/v1/jobs", prefix="each/")]
    assert len(children) == 2
    for child in children:
        assert await output(steward, child) == hashlib.sha256(content).hexdigest()


async def test_directory_with_too_many_files_is_refused_before_its_upload(tmp_path: Path) -> None:
    (tmp_path / "inputs").mkdir()
    for number in range(4):
        (tmp_path / f"inputs/{number}").touch()
    job = {**parent(), "ParameterizedJob": None}
    (tmp_path / "job.json").write_text(json.dumps({"Job": job}))
    words = ("job", "run", "--detach", "--with", f"{tmp_path}/inputs", f"{tmp_path}/job.json")
    (tmp_path / "steward.toml").write_text("artifact_max_files = 3\n")
    flags = ("--dev", "--config", f"{tmp_path}/steward.toml")
    async with open_steward(tmp_path, *flags) as steward:
        done = await steward.cli(*words)
        assert done.returncode != 0
        assert done.stderr.decode().strip() == (
            "steward: --with inputs: members is 4: an archive for tasks may have at most 3 files and "
            "directories (artifact_max_files)"
        )
        assert await steward.get("/v1/jobs") == []
        (tmp_path / "inputs/0").unlink()
        assert (await steward.cli(*words)).returncode == 0


async def test_upload_continues_after_a_kill_of_the_daemon(steward: Steward) -> None:
    content = os.urandom(2 * PIECE)
    digest = hashlib.sha256(content).hexdigest()
    query = {"size": len(content), "offset": 0}
    async with httpx.AsyncClient(verify=trusted(), timeout=HAPPENS_WITHIN) as client:
        path = f"{steward.address}/v1/payload/{digest}"
        answer = await client.put(path, params=query, content=content[:PIECE])
        assert answer.json()["Received"] == PIECE
    await steward.kill_and_restart()
    assert (await steward.get(f"/v1/payload/{digest}"))["Received"] == PIECE
    async with httpx.AsyncClient(verify=trusted(), timeout=HAPPENS_WITHIN) as client:
        again = await client.put(path, params=query, content=content[:PIECE])
        assert again.status_code == 409
        assert f"continue at {PIECE}" in again.text
        query["offset"] = PIECE
        answer = await client.put(path, params=query, content=content[PIECE:])
    assert answer.json() == {
        "Digest": digest,
        "Size": len(content),
        "Received": len(content),
        "IsComplete": True,
    }


async def test_dispatch_without_a_required_file_names_the_option(steward: Steward) -> None:
    await steward.register(parent())
    answer = await steward.request("POST", "/v1/job/each/dispatch", {"Files": {"in.bin": "a" * 64}})
    assert answer.status_code == 400
    assert "upload the file first" in answer.text
    done = await steward.post("/v1/job/each/dispatch", {})
    child = done["DispatchedJobID"].replace("/", "%2F")
    (allocation,) = await steward.allocations(child, "failed")
    events = (await steward.get(f"/v1/allocation/{allocation['ID']}"))["TaskStates"]["main"]
    assert any("--file in.bin=PATH" in event["DisplayMessage"] for event in events["Events"])
