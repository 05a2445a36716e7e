"""The command line against the real daemon, as a user or a script uses it."""

import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from storage.records.base import SECOND
from tests import forks
from tests.forks import Forked, environment
from tests.service.daemon import Steward
from tests.time_limits import HAPPENS_WITHIN

FOREVER = "echo ready; exec sleep 1000"


def job_file(job_id: str, script: str, kind: str = "service", **fields: Any) -> str:
    """Return a job file with one task that runs a shell script, and is not retried."""
    task = {
        "Name": "main",
        "Driver": "raw_exec",
        "Config": {"command": "/bin/sh", "args": ["-c", script]},
        "Resources": {"CPU": 20, "MemoryMB": 20},
        "KillTimeout": SECOND,
        "LogConfig": {"MaxFiles": 1, "MaxFileSizeMB": 1},
    }
    group = {
        "Name": "web",
        "Tasks": [task],
        "EphemeralDisk": {"SizeMB": 10},
        "RestartPolicy": {"Attempts": 0, "Mode": "fail", "Interval": 60 * SECOND},
        "ReschedulePolicy": {"Attempts": 0, "Unlimited": False},
        **fields,
    }
    return json.dumps({"Job": {"ID": job_id, "Type": kind, "TaskGroups": [group]}})


@asynccontextmanager
async def typed(steward: Steward, *words: str, stdin: bytes = b"") -> AsyncIterator[Forked]:
    """Run a command while the block runs."""
    process = await forks.open_process(
        words,
        stdin=forks.PIPE,
        stdout=forks.PIPE,
        stderr=forks.PIPE,
        env=environment(STEWARD_ADDR=steward.address),
    )
    assert process.stdin is not None
    try:
        with trio.fail_after(HAPPENS_WITHIN):
            async with process.stdin as pipe:
                await pipe.send_all(stdin)
            yield process
    finally:
        await process.aclose()


async def read_until(process: Forked, text: bytes) -> bytes:
    assert process.stdout is not None
    said = b""
    while text not in said:
        piece = await process.stdout.receive_some()
        assert piece, said
        said += piece
    return said


async def test_a_wait_continues_after_a_crash_of_the_daemon(
    steward: Steward, tmp_path: Path
) -> None:
    done = tmp_path / "done"
    script = f"echo before; until [ -e {done} ]; do sleep 0.05; done; echo after; exit 3"
    job = job_file("report", script, "batch")
    async with typed(steward, "run", "-logs", "-", stdin=job.encode()) as process:
        await read_until(process, b"before\n")
        await steward.kill_and_restart()
        done.touch()
        assert await read_until(process, b"after\n") == b"after\n"
        assert process.stderr is not None
        said = b""
        async for piece in process.stderr:
            said += piece
        assert await process.wait() == 3
    assert said.count(b"waiting up to 60 s for its restart") == 1
    assert b"incomplete" not in said


async def test_service_is_run_inspected_and_stopped(steward: Steward) -> None:
    run = await steward.cli("job", "run", "-", stdin=job_file("web", FOREVER))
    assert run.returncode == 0, run.stderr
    assert run.stdout.decode().endswith('job "web": version 0 is deployed\n')

    status = (await steward.cli("job", "status", "web")).stdout.decode()
    assert re.search(r"^Status +=\s+running$", status, re.MULTILINE)
    match = re.search(r"^([0-9a-f]{8})  .* run +running ", status, re.MULTILINE)
    assert match is not None, status

    alloc = (await steward.cli("alloc", "status", match[1][:5])).stdout.decode()
    assert 'Task "main" is "running"' in alloc
    assert "Task started by client" in alloc
    assert "Not Enforced Here" in alloc

    logs = await steward.cli("logs", "-n", "1", match[1])
    assert (logs.stdout, logs.returncode) == (b"ready\n", 0)

    node = (await steward.cli("node", "status", "-self")).stdout.decode()
    assert re.search(r"^20/\d+ MHz  20/\d+ MiB  10/\d+ MiB$", node, re.MULTILINE)

    stop = await steward.cli("job", "stop", "web")
    assert stop.returncode == 0, stop.stderr
    assert stop.stdout.decode().endswith('job "web" is stopped: 1 allocation ended\n')
    assert steward.processes() == []
    listed = (await steward.cli("status")).stdout.decode()
    assert re.search(r"^web +service +stopped ", listed, re.MULTILINE)


JOB_FILE = """
variable "greeting" {
  type = string
}
locals {
  script = "echo ${var.greeting} from $NOMAD_TASK_NAME"
}
job "hello" {
  type = "batch"
  dynamic "group" {
    for_each = ["a", "b"]
    labels   = ["group-${group.value}"]
    content {
      task "speaker" {
        driver = "raw_exec"
        config {
          command = "/bin/sh"
          args    = ["-c", local.script]
        }
      }
    }
  }
}
"""


async def test_a_job_file_is_validated_planned_run_and_can_be_read_back(steward: Steward) -> None:
    given = ("-var", "greeting=hi", "-")
    valid = await steward.cli("job", "validate", *given, stdin=JOB_FILE)
    assert (valid.returncode, valid.stdout) == (0, b"Job validation successful\n"), valid.stderr
    planned = await steward.cli("job", "plan", *given, stdin=JOB_FILE)
    assert planned.returncode == 1, planned.stderr

    run = await steward.cli("job", "run", *given, stdin=JOB_FILE)
    assert run.returncode == 0, run.stderr
    assert run.stdout.decode().endswith('job "hello": allocations: 2 complete\n')
    logs = await steward.cli("logs", "-job", "hello")
    assert logs.stdout == b"hi from speaker\n"

    kept = await steward.get("/v1/job/hello/submission", version=0)
    assert kept["Source"] == JOB_FILE
    assert (kept["Format"], kept["VariableFlags"]) == ("hcl2", {"greeting": "hi"})
    again = {"JobHCL": kept["Source"], "VariableFlags": kept["VariableFlags"]}
    parsed = await steward.post("/v1/jobs/parse", again)
    registered = await steward.post("/v1/jobs", {"Job": parsed})
    assert registered["EvalID"]
    assert len((await steward.get("/v1/job/hello/versions"))["Versions"]) == 1


@pytest.mark.parametrize(
    ("script", "status", "ending"),
    [
        ("echo done", 0, "allocations: 1 complete"),
        ("exit 3", 1, "Exit Code: 3"),
    ],
)
async def test_a_batch_job_is_followed_to_its_end(
    steward: Steward, script: str, status: int, ending: str
) -> None:
    done = await steward.cli("run", "-", stdin=job_file("once", script, "batch"))
    assert done.returncode == status, done.stderr
    assert ending in done.stdout.decode()


async def test_waiting_run_prints_the_task_output_and_returns_its_exit_code(
    steward: Steward,
) -> None:
    script = "echo out; echo oh >&2; exit 7"
    done = await steward.cli("run", "-logs", "-", stdin=job_file("once", script, "batch"))
    assert (done.returncode, done.stdout) == (7, b"out\n"), done.stderr
    assert b"oh\n" in done.stderr
    assert b'job "once": allocations: 1 failed' in done.stderr
    again = await steward.cli("run", "-logs", "-", stdin=job_file("once", script, "batch"))
    assert (again.returncode, again.stdout) == (7, b"out\n"), again.stderr
    late = await steward.cli("run", "-timeout", "0s", "-", stdin=job_file("web", FOREVER))
    assert late.returncode == 124, late.stderr
    assert b"the job continues" in late.stderr
    await steward.allocations("web", "running")


async def test_unplaceable_job_exits_with_2_and_a_reason(steward: Steward) -> None:
    huge = json.loads(job_file("huge", FOREVER))
    huge["Job"]["TaskGroups"][0]["Tasks"][0]["Resources"]["MemoryMB"] = 100_000_000
    done = await steward.cli("job", "run", "-", stdin=json.dumps(huge))
    assert done.returncode == 2, done.stderr
    reason = "the only node has less than 100000000 MiB of memory left"
    assert reason in done.stdout.decode()
    assert reason in (await steward.cli("job", "status", "huge")).stdout.decode()


async def test_invalid_job_is_refused_with_the_invalid_field(steward: Steward) -> None:
    wrong = json.loads(job_file("wrong", FOREVER))
    wrong["Job"]["TaskGroups"][0]["Tasks"] = []
    done = await steward.cli("job", "run", "-", stdin=json.dumps(wrong))
    assert (done.returncode, done.stdout) == (1, b"")
    assert "Task group web: Missing tasks" in done.stderr.decode()


async def test_interrupt_during_a_follow_does_not_stop_the_job(steward: Steward) -> None:
    source = job_file("long", FOREVER, "batch").encode()
    async with typed(steward, "job", "run", "-", stdin=source) as process:
        await read_until(process, b"  running")
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 130
        assert process.stderr is not None
        assert b"no longer waiting; the job continues" in await process.stderr.receive_some()
    [allocation] = await steward.allocations("long", "running")
    assert allocation["DesiredStatus"] == "run"


async def test_a_log_is_followed_until_an_interrupt(steward: Steward) -> None:
    script = "echo one; echo two; while :; do sleep 0.05; echo more; done"
    [allocation] = await steward.run_job(json.loads(job_file("web", script))["Job"])
    async with typed(steward, "logs", "-f", "-job", "web") as process:
        said = await read_until(process, b"more\n")
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 0
    assert said.startswith(b"one\ntwo\nmore\n")
    async with typed(steward, "logs", "-f", "-n", "2", allocation["ID"]) as process:
        said = await read_until(process, b"more\nmore\nmore\n")
    assert b"one" not in said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize(
    "words", [["-job"], ["-n", "1", "-job"], ["-contains", "m", "-job"], []], ids=" ".join
)
async def test_a_followed_log_reports_that_the_daemon_stopped(
    steward: Steward, words: list[str], number: int
) -> None:
    script = "while :; do echo more; sleep 0.05; done"
    await steward.run_job(json.loads(job_file("web", script))["Job"])
    async with typed(steward, "logs", "-f", *words, "web") as process:
        await read_until(process, b"more\n")
        await steward.stop(number)
        assert await process.wait() == 1
        assert process.stderr is not None
        said = await process.stderr.receive_some()
    assert b"the output is incomplete, because the daemon stopped" in said or (
        number == signal.SIGKILL and b"cannot reach the daemon" in said
    )
    await steward.start()


@pytest.mark.parametrize("words", [["-job"], ["-n", "1", "-job"], ["-contains", "m", "-job"], []])
async def test_a_followed_log_ends_with_its_task(steward: Steward, words: list[str]) -> None:
    script = "echo more; while test ! -e $NOMAD_TASK_DIR/over; do sleep 0.05; done"
    [allocation] = await steward.run_job(json.loads(job_file("web", script))["Job"])
    async with typed(steward, "logs", "-f", *words, "web") as process:
        await read_until(process, b"more\n")
        await steward.cli("stop", "-detach", "web")
        assert await process.wait() == 0
    assert allocation["JobID"] == "web"


async def test_inspected_job_can_run_again_unchanged(steward: Steward) -> None:
    await steward.cli("job", "run", "-", stdin=job_file("web", FOREVER))
    before = await steward.task_pids("web")
    inspected = (await steward.cli("job", "inspect", "web")).stdout.decode()
    again = await steward.cli("job", "run", "-json", "-", stdin=inspected)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["Evaluation"]["Status"] == "complete"
    history = json.loads((await steward.cli("job", "history", "-json", "web")).stdout)
    assert [version["Version"] for version in history] == [0]
    assert await steward.task_pids("web") == before


async def test_a_changed_job_has_a_history(steward: Steward) -> None:
    for count in (1, 2):
        await steward.cli("run", "-", stdin=job_file("web", FOREVER, Count=count))
    lines = (await steward.cli("job", "history", "web")).stdout.decode().splitlines()
    assert [line.split()[0] for line in lines] == ["Version", "1", "0"]
    older = await steward.cli("inspect", "-version", "0", "-t", ".Job.TaskGroups[0].Count", "web")
    assert older.stdout == b"1\n"


async def test_registration_enforces_the_given_index(steward: Steward) -> None:
    await steward.cli("run", "-detach", "-", stdin=job_file("web", FOREVER))
    stale = await steward.cli("run", "-check-index", "0", "-", stdin=job_file("web", FOREVER))
    assert stale.returncode == 1
    assert b"Enforcing job modify index 0: job already exists" in stale.stderr


async def test_purged_job_is_deleted(steward: Steward) -> None:
    await steward.cli("run", "-", stdin=job_file("web", FOREVER))
    stop = await steward.cli("stop", "-purge", "-yes", "we")
    assert stop.returncode == 0, stop.stderr
    assert (await steward.cli("job", "status")).stdout == b"No jobs\n"
    gone = await steward.cli("job", "status", "web")
    assert (gone.returncode, gone.stdout) == (1, b"")


async def test_closed_pipe_causes_no_error(steward: Steward) -> None:
    await steward.cli("run", "-", stdin=job_file("web", "while :; do echo line; done"))
    async with typed(steward, "logs", "-f", "-job", "web") as process:
        await read_until(process, b"line\n")
        assert process.stdout is not None
        await process.stdout.aclose()
        await process.wait()
        assert process.stderr is not None
        assert await process.stderr.receive_some() == b""


async def test_stopped_daemon_is_reported_in_one_sentence(steward: Steward) -> None:
    await steward.stop()
    done = await steward.cli("job", "status")
    assert done.returncode == 1
    assert done.stderr.decode().count("\n") == 1
    assert steward.address in done.stderr.decode()


async def test_shell_gets_the_exit_status(steward: Steward) -> None:
    script = '"$PYTHON" -m daemon run "$FILE" >/dev/null 2>&1; echo $?'
    done = await trio.run_process(
        ["/bin/sh", "-c", script],
        capture_stdout=True,
        env=environment(PYTHON=sys.executable, FILE=os.devnull, STEWARD_ADDR=steward.address),
    )
    assert done.stdout == b"1\n"
