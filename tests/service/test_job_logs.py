"""The logs of all allocations of a job together, and those whose allocation is gone."""

from typing import Any

import trio

from daemon.datadir import alloc_dir
from storage.records.base import SECOND
from tests.patience import HAPPENS_WITHIN
from tests.service.daemon import Steward
from tests.service.streaming import open_stream


def printing(job_id: str, text: str, **fields: Any) -> Any:
    task = {
        "Name": "main",
        "Driver": "raw_exec",
        "Config": {"command": "/bin/sh", "args": ["-c", text]},
        "Resources": {"CPU": 20, "MemoryMB": 20},
        "KillTimeout": SECOND,
    }
    group = {"Name": "web", "Count": 2, "Tasks": [task]}
    return {"ID": job_id, "TaskGroups": [group], **fields}


async def test_all_that_a_job_prints_is_shown_together_as_it_comes(steward: Steward) -> None:
    text = "echo up $NOMAD_ALLOC_INDEX; echo trouble >&2; exec sleep 600"
    await steward.run_job(printing("talk", text, Update={"MaxParallel": 0}))
    async with open_stream(steward, "/v1/job/talk/logs", follow=True, contains="up") as stream:
        lines = [(await stream.line()).decode() for _ in range(2)]
        target = {"Group": "web"}
        await steward.post("/v1/job/talk/scale", {"Count": 3, "Target": target, "Message": "more"})
        lines.append((await stream.line()).decode())
    found = {
        f"{one['ID'][:8]} main | up {one['Name'].rpartition('[')[2][:-1]}"
        for one in await steward.get("/v1/job/talk/allocations")
    }
    assert set(lines) == found
    shown = await steward.cli("logs", "--stderr", "talk")
    assert shown.stdout.decode().count("main | trouble\n") == 3, shown.stderr
    assert b" up " not in shown.stdout


async def test_logs_outlive_their_allocation_and_its_job(steward: Steward) -> None:
    await steward.register(printing("gone", "echo last words; exit 0", Type="batch"))
    (one, other) = await steward.allocations("gone", "complete")
    query = {"task": "main", "type": "stdout", "plain": True}
    path = f"/v1/client/fs/logs/{one['ID']}"
    directory = alloc_dir(steward.data_dir) / one["ID"]
    with trio.fail_after(HAPPENS_WITHIN):
        while directory.exists():  # nobody tells
            await steward.request("GET", "/v1/client/gc")
            await trio.sleep(0.02)
    assert (await steward.request("GET", path, **query)).text == "last words\n"
    merged = (await steward.request("GET", "/v1/job/gone/logs")).text
    assert sorted(merged.splitlines()) == sorted(
        f"{alloc['ID'][:8]} main | last words" for alloc in (one, other)
    )
    await steward.delete("/v1/job/gone", purge=True)
    await steward.kill_and_restart()
    assert (await steward.request("GET", path, **query)).text == "last words\n"
    unknown = await steward.request("GET", f"/v1/client/fs/logs/{'0' * 36}", **query)
    assert unknown.status_code == 404
    gone = await steward.request("GET", "/v1/job/gone/logs")
    assert (gone.status_code, gone.text) == (404, "job not found")


async def test_logs_that_are_gone_are_said_to_be(steward: Steward) -> None:
    await steward.register(printing("silent", "exit 0", Type="batch"))
    (one, _) = await steward.allocations("silent", "complete")
    directory = alloc_dir(steward.data_dir) / one["ID"]
    with trio.fail_after(HAPPENS_WITHIN):
        while directory.exists():  # nobody tells
            await steward.request("GET", "/v1/client/gc")
            await trio.sleep(0.02)
    path = f"/v1/client/fs/logs/{one['ID']}"
    answer = await steward.request("GET", path, task="main", type="stdout", plain=True)
    assert answer.status_code == 404
    assert "are gone: it printed nothing" in answer.text
