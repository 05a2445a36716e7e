"""The merged logs of all allocations of a job, including deleted allocations."""

from typing import Any

import msgspec
import trio

from daemon.config.data_directory import alloc_dir
from storage.records.base import SECOND
from tests.service.daemon import Steward
from tests.service.streaming import open_stream
from tests.time_limits import HAPPENS_WITHIN


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


async def test_all_output_of_a_job_is_streamed_together(steward: Steward) -> None:
    text = "echo up $NOMAD_ALLOC_INDEX; echo trouble >&2; exec sleep 600"
    await steward.run_job(printing("talk", text, Update={"MaxParallel": 0}))
    async with open_stream(steward, "/v1/job/talk/logs", follow=True, contains="up") as stream:
        lines = [(await stream.line()).decode() for _ in range(2)]
        target = {"Group": "web"}
        await steward.post("/v1/job/talk/scale", {"Count": 3, "Target": target, "Message": "more"})
        lines.append((await stream.line()).decode())
    found = {
        f"{item['ID'][:8]} main | up {item['Name'].rpartition('[')[2][:-1]}"
        for item in await steward.get("/v1/job/talk/allocations")
    }
    assert set(lines) == found
    shown = await steward.cli("logs", "--stderr", "talk")
    assert shown.stdout.decode().count("main | trouble\n") == 3, shown.stderr
    assert b" up " not in shown.stdout


async def test_logs_remain_after_their_allocation_and_job(steward: Steward) -> None:
    await steward.register(printing("gone", "echo last words; exit 0", Type="batch"))
    (one, other) = await steward.allocations("gone", "complete")
    query = {"task": "main", "type": "stdout", "plain": True}
    path = f"/v1/client/fs/logs/{one['ID']}"
    directory = alloc_dir(steward.data_dir) / one["ID"]
    with trio.fail_after(HAPPENS_WITHIN):
        while directory.exists():  # no event reports this
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


async def test_deleted_logs_are_reported(steward: Steward) -> None:
    await steward.register(printing("silent", "exit 0", Type="batch"))
    (one, _) = await steward.allocations("silent", "complete")
    directory = alloc_dir(steward.data_dir) / one["ID"]
    with trio.fail_after(HAPPENS_WITHIN):
        while directory.exists():  # no event reports this
            await steward.request("GET", "/v1/client/gc")
            await trio.sleep(0.02)
    path = f"/v1/client/fs/logs/{one['ID']}"
    answer = await steward.request("GET", path, task="main", type="stdout", plain=True)
    assert answer.status_code == 404
    assert "has no logs: its tasks wrote no output" in answer.text


async def test_logs_of_several_allocations_are_merged_by_time(steward: Steward) -> None:
    text = (
        'i=$NOMAD_ALLOC_INDEX; echo "2026-01-01T00:00:0${i}Z early $i"; '
        'echo "2026-01-01T00:00:1${i}Z late $i"'
    )
    await steward.register(printing("merged", text, Type="batch"))
    await steward.allocations("merged", "complete", "complete")
    shown = (await steward.cli("logs", "merged")).stdout.decode()
    told = [line.partition("Z ")[2] for line in shown.splitlines()]
    assert told == ["early 0", "early 1", "late 0", "late 1"]
    since = await steward.cli("logs", "--since", "2026-01-01T00:00:11Z", "merged")
    assert [line.partition("Z ")[2] for line in since.stdout.decode().splitlines()] == ["late 1"]
    assert (await steward.cli("logs", "--since", "1h", "merged")).stdout == b""
    wrong = await steward.cli("logs", "--since", "noon", "merged")
    assert wrong.returncode == 1
    assert "-since 'noon' is neither a time such as" in wrong.stderr.decode()


async def test_previous_attempt_is_shown_separately(steward: Steward) -> None:
    # The second attempt keeps running, so the first one is the previous attempt.
    text = "if test -e $NOMAD_TASK_DIR/x; then echo second; exec sleep 600; fi; "
    text += "touch $NOMAD_TASK_DIR/x; echo first word; echo first end; exit 3"
    given = printing("again", text)
    given["TaskGroups"][0] |= {
        "Count": 1,
        "RestartPolicy": {"Attempts": 3, "Delay": 0, "Interval": 60 * SECOND, "Mode": "delay"},
    }
    await steward.register(given)
    await steward.until(
        "/v1/job/again/allocations",
        lambda found: any(
            (task := (alloc["TaskStates"] or {}).get("main"))
            and task["Restarts"] == 1
            and task["State"] == "running"
            for alloc in found
        ),
    )
    (one,) = await steward.get("/v1/job/again/allocations")
    query = {"task": "main", "type": "stdout", "plain": True, "follow": True}
    async with open_stream(steward, f"/v1/client/fs/logs/{one['ID']}", **query) as stream:
        assert [(await stream.line()).decode() for _ in range(3)][-1] == "second"
    before = await steward.cli("logs", "--previous", one["ID"][:8])
    assert before.stdout.decode() == "first word\nfirst end\n"
    merged = await steward.cli("job", "logs", "--previous", "--contains", "end", "again")
    assert merged.stdout.decode() == f"{one['ID'][:8]} main | first end\n"
    found = await steward.cli("logs", "--contains", "sec", one["ID"])
    assert found.stdout.decode() == "second\n"


async def test_replaced_allocation_shows_the_previous_attempt(steward: Steward) -> None:
    text = "echo of $NOMAD_ALLOC_ID; exit 3"
    given = printing("moved", text, Type="batch")
    given["TaskGroups"][0] |= {
        "Count": 1,
        "RestartPolicy": {"Attempts": 0, "Mode": "fail"},
        "ReschedulePolicy": {
            "Attempts": 1,
            "Interval": 60 * SECOND,
            "Delay": SECOND * 5,
            "DelayFunction": "constant",
        },
    }
    await steward.register(given)
    found = await steward.until(
        "/v1/job/moved/allocations",
        lambda found: [alloc["ClientStatus"] for alloc in found] == ["failed", "failed"],
    )
    old = next(alloc for alloc in found if alloc["NextAllocation"])
    new = next(alloc for alloc in found if not alloc["NextAllocation"])
    shown = await steward.cli("logs", "--previous", new["ID"])
    assert shown.stdout.decode() == f"of {old['ID']}\n"
    nothing = await steward.cli("logs", "--previous", old["ID"])
    assert nothing.stdout == b""
    assert b"there is no earlier attempt" in nothing.stderr


async def _lines(steward: Steward, what: str = "lines", **query: object) -> Any:
    return await steward.get(f"/v1/job/talk/logs/{what}", **query)


async def test_lines_of_a_job_are_pages_merged_by_time_and_name_their_task(
    steward: Steward,
) -> None:
    text = (
        "i=0; while [ $i -lt 40 ]; do echo out $i; echo err $i >&2; i=$((i+1)); done; "
        "echo needle of $NOMAD_ALLOC_INDEX; printf half; exec sleep 600"
    )
    await steward.run_job(printing("talk", text, Update={"MaxParallel": 0}))
    page: Any = {}
    with trio.fail_after(HAPPENS_WITHIN):
        while len(page.get("Lines", ())) < 2 * 82:  # no event reports a written line
            page = await _lines(steward, lines=1000)
            await trio.sleep(0.02)
    running = await steward.allocations("talk", "running")
    assert {line["Allocation"] for line in page["Lines"]} == {alloc["ID"] for alloc in running}
    assert {(line["Task"], line["Stream"]) for line in page["Lines"]} == {
        ("main", "stdout"),
        ("main", "stderr"),
    }
    times = [line["Time"] for line in page["Lines"]]
    assert times == sorted(times)
    assert sum(bool(line.get("Unfinished")) for line in page["Lines"]) == 2
    assert "Before" not in page

    # Pages of fifty lines, read from the end to the start, have the same lines in total.
    found: list[tuple[str, int]] = []
    before = ""
    while True:
        part = await _lines(steward, lines=50, before=before)
        found = [(line["Log"], line.get("At", 0)) for line in part["Lines"]] + found
        before = part.get("Before", "")
        if not before:
            break
    assert len(found) == len(set(found))
    assert set(found) == {(line["Log"], line.get("At", 0)) for line in page["Lines"]}

    only = await _lines(steward, type="stderr", lines=1000)
    assert {line["Stream"] for line in only["Lines"]} == {"stderr"}
    hits = await _lines(steward, "search", contains="NEEDLE", context=0)
    assert sorted(line["Text"] for line in hits["Lines"]) == ["needle of 0", "needle of 1"]
    assert all(line["Matches"] for line in hits["Lines"])
    bad = await steward.request("GET", "/v1/job/talk/logs/lines", before="17")
    assert bad.status_code == 400
    assert "is not a cursor" in bad.text


async def test_lines_of_a_job_follow_new_allocations_and_a_restart_of_the_daemon(
    steward: Steward,
) -> None:
    text = "echo up $NOMAD_ALLOC_INDEX; exec sleep 600"
    await steward.run_job(printing("talk", text, Update={"MaxParallel": 0}))
    path = "/v1/job/talk/logs/lines"
    seen: list[str] = []
    after = ""
    while len(seen) < 2:  # no event reports a written line
        page = await _lines(steward, after=after or "00000000.0o:0")
        seen += [line["Text"] for line in page["Lines"]]
        after = page.get("After", "")
    await steward.kill_and_restart()
    async with open_stream(steward, path, follow=True, after=after) as stream:
        target = {"Group": "web"}
        await steward.post("/v1/job/talk/scale", {"Count": 3, "Target": target, "Message": "more"})
        told: Any = {}
        while not told.get("Lines"):
            told = msgspec.json.decode(await stream.line())
    assert [line["Text"] for line in told["Lines"]] == ["up 2"]
    assert sorted(seen) == ["up 0", "up 1"]
