"""Kept files with the real daemon: from a task to the API, the command line and the next step."""

import hashlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.service.daemon import Steward, open_steward
from tests.time_limits import HAPPENS_WITHIN


@pytest.fixture
async def steward(tmp_path: Path) -> AsyncIterator[Steward]:
    async with open_steward(tmp_path, "--dev") as one:
        yield one


def group(script: str, keep: str = "", name: str = "make", **more: Any) -> dict[str, Any]:
    task: dict[str, Any] = {
        "Name": "main",
        "Driver": "raw_exec",
        "Config": {"command": "/bin/sh", "args": ["-c", script]},
        "Artifacts": more.pop("artifacts", None),
        "Resources": {"CPU": 20, "MemoryMB": 20},
    }
    if keep:
        task["Meta"] = {"steward_keep": keep}
    return {
        "Name": name,
        "Tasks": [task],
        "RestartPolicy": {"Attempts": 0, "Mode": "fail"},
        "ReschedulePolicy": {"Attempts": 0, "Unlimited": False},
        **more,
    }


def job(*groups: dict[str, Any], name: str = "keeps") -> dict[str, Any]:
    return {"ID": name, "Type": "batch", "TaskGroups": [*groups]}


async def events(steward: Steward, alloc_id: str) -> list[str]:
    states = (await steward.get(f"/v1/allocation/{alloc_id}"))["TaskStates"]
    return [f"{event['Type']}: {event['DisplayMessage']}" for event in states["main"]["Events"]]


async def ended(steward: Steward, job_id: str, number: int) -> list[Any]:
    """Return the allocations of a job when this many of them are complete."""
    path = f"/v1/job/{job_id}/allocations"
    found: list[Any] = await steward.until(
        path, lambda all_: [alloc["ClientStatus"] for alloc in all_] == ["complete"] * number
    )
    return found


async def test_retained_files_remain_after_the_allocation_directory(
    steward: Steward, tmp_path: Path
) -> None:
    script = (
        "mkdir -p out; head -c 3000000 /dev/zero > out/big.csv; echo a > out/a.csv; "
        "ln -s /etc/passwd out/link.csv; mkfifo out/pipe.csv; echo no > out/b.txt; exit 3"
    )
    await steward.register(job(group(script, "out/*.csv, local/none")))
    (allocation,) = await steward.allocations("keeps", "failed")
    told = await events(steward, allocation["ID"])
    assert "Files Kept: Steward keeps 2 files with 3000002 bytes" in told
    left_out = [event for event in told if event.startswith("File Not Kept")]
    assert left_out == [
        "File Not Kept: out/link.csv: it is a link, and links are not followed",
        "File Not Kept: out/pipe.csv: it is not a regular file",
        "File Not Kept: no file matches local/none",
    ]
    await steward.request("PUT", f"/v1/client/allocation/{allocation['ID']}/gc")
    await steward.kill_and_restart()
    path = f"/v1/allocation/{allocation['ID']}/kept"
    found = await steward.get(path)
    assert [(variable["Task"], variable["Path"], variable["Size"]) for variable in found] == [
        ("main", "out/a.csv", 2),
        ("main", "out/big.csv", 3_000_000),
    ]
    answer = await steward.request("GET", f"{path}/file", path="out/big.csv")
    assert answer.content == bytes(3_000_000)
    assert answer.headers["content-disposition"] == "attachment; filename*=UTF-8''big.csv"
    assert "sandbox" in answer.headers["content-security-policy"]
    missing = await steward.request("GET", f"{path}/file", path="../../etc/passwd")
    assert missing.status_code == 404
    done = await steward.cli("alloc", "kept", "--job", "keeps", "out/a.csv", "-o", f"{tmp_path}/a")
    assert done.returncode == 0, done.stderr.decode()
    assert (tmp_path / "a").read_text() == "a\n"
    done = await steward.cli("alloc", "kept", "--job", "keeps", "--to", f"{tmp_path}/all")
    assert done.returncode == 0, done.stderr.decode()
    assert (tmp_path / "all/main/out/big.csv").stat().st_size == 3_000_000
    done = await steward.cli("alloc", "kept", "--job", "keeps")
    assert b"out/a.csv" in done.stdout


async def test_next_step_gets_the_files(steward: Steward) -> None:
    content = os.urandom(2000).hex()
    make = group(f"mkdir out; printf %s {content} > out/rows.csv", "out/*")
    source = [{"GetterSource": "kept://make/out/rows.csv", "RelativeDest": "local/"}]
    use = group(
        "sha256sum < local/rows.csv",
        name="use",
        artifacts=source,
        Meta={"steward_needs": "make"},
    )
    await steward.register(job(make, use, name="flow"))
    found = await ended(steward, "flow", 2)
    (last,) = [item for item in found if item["TaskGroup"] == "use"]
    path = f"/v1/client/fs/logs/{last['ID']}"
    log = await steward.request("GET", path, task="main", type="stdout", plain="true")
    assert log.text.split()[0] == hashlib.sha256(content.encode()).hexdigest()


async def test_elements_get_the_files_of_their_index(steward: Steward) -> None:
    items = '["x", "y"]'
    make = group('echo "$STEWARD_EACH_VALUE" > f', "f", Count=1, Meta={"steward_for_each": items})
    artifacts = [
        {"GetterSource": "kept://make/f", "RelativeDest": "local/own"},
        {"GetterSource": "kept://make/f?element=1", "RelativeDest": "local/second"},
    ]
    use = group(
        "cat local/own/f local/second/f",
        name="use",
        artifacts=artifacts,
        Meta={"steward_needs": "make", "steward_for_each": items},
    )
    await steward.register(job(make, use, name="lists"))
    found = await ended(steward, "lists", 4)
    printed = set()
    for item in found:
        if item["TaskGroup"] == "use":
            path = f"/v1/client/fs/logs/{item['ID']}"
            log = await steward.request("GET", path, task="main", type="stdout", plain="true")
            printed.add(log.text)
    assert printed == {"x\ny\n", "y\ny\n"}


async def test_step_that_retains_nothing_is_refused(steward: Steward) -> None:
    source = [{"GetterSource": "kept://make/f", "RelativeDest": "local/"}]
    needs = {"steward_needs": "make"}
    jobs = {
        "keeps no files": job(
            group("true"), group("true", name="use", artifacts=source, Meta=needs)
        ),
        "does not come before it": job(
            group("true", "f", Meta={"steward_needs": "use"}),
            group("true", name="use", artifacts=source),
        ),
        "below the task directory": job(group("true", "../x")),
        "secrets cannot be kept": job(group("true", "secrets/*")),
    }
    for text, one in jobs.items():
        answer = await steward.request("PUT", "/v1/jobs", {"Job": one})
        assert answer.status_code == 500  # as in Nomad
        assert text in answer.text


async def test_limits_of_the_namespace_are_reported(tmp_path: Path) -> None:
    settings = tmp_path / "settings.toml"
    settings.write_text("payload_max_mb = 2\npayload_namespace_mb = 3\n")
    async with open_steward(tmp_path, "--dev", "--config", str(settings)) as steward:
        script = (
            "head -c 2500000 /dev/zero > a; head -c 1900000 /dev/urandom > b; "
            "head -c 1900000 /dev/urandom > c; echo d > d"
        )
        await steward.register(job(group(script, "?")))
        (allocation,) = await steward.allocations("keeps", "complete")
        told = [event for event in await events(steward, allocation["ID"]) if "Not Kept" in event]
        assert told[0] == "File Not Kept: a: it has 2500000 bytes, more than 2097152"
        assert "c: it has 1900000 bytes" in told[1]
        assert "that are left in its namespace" in told[1]
        found = await steward.get(f"/v1/allocation/{allocation['ID']}/kept")
        assert [variable["Path"] for variable in found] == ["b", "d"]


async def test_task_that_ends_without_a_daemon_retains_its_files(steward: Steward) -> None:
    await steward.register(job(group("mkfifo go; echo a > a; read line < go", "a")))
    (allocation,) = await steward.allocations("keeps", "running")
    (directory,) = steward.directory.glob(f"**/{allocation['ID']}/main")
    await steward.kill()
    with trio.fail_after(HAPPENS_WITHIN):
        await trio.to_thread.run_sync((directory / "go").write_text, "on\n")
    await steward.start()
    (allocation,) = await steward.allocations("keeps", "complete")
    found = await steward.get(f"/v1/allocation/{allocation['ID']}/kept")
    assert [(variable["Path"], variable["Size"]) for variable in found] == [("a", 2)]
