"""Jobs on a real cluster: resources, output, end, and requests while they run."""

import base64
import json
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
import trio

from storage.records.base import SECOND
from tests import websocket_client
from tests.parts.runner.endpoints import listening
from tests.service.daemon import Steward
from tests.service.slurm.cluster import Cluster
from tests.service.slurm.jobs import script
from tests.service.streaming import Stream, open_stream

# The default stop signal of a task is SIGINT.
POLITE = "trap 'echo stopping; exit 0' INT; echo begun; while :; do sleep 1 & wait $!; done"
STUBBORN = "trap '' INT; echo begun; while :; do sleep 1; done"


async def ended(steward: Steward, job: Any) -> Any:
    """Register a job, and return its only allocation when the allocation has ended."""
    await steward.register(job)
    (found,) = await steward.allocations(job["ID"], "complete", "failed", "lost")
    return found


async def running(steward: Steward, job: Any) -> str:
    """Register a job, and return its one allocation when its script has reported its start."""
    await steward.register(job)
    (found,) = await steward.allocations(job["ID"], "running")
    async with following(steward, found["ID"]) as log:
        assert await log.line() == b"begun"
    return str(found["ID"])


def following(steward: Steward, alloc_id: str) -> AbstractAsyncContextManager[Stream]:
    path = f"/v1/client/fs/logs/{alloc_id}"
    return open_stream(steward, path, task="main", type="stdout", plain="true", follow="true")


def ending(allocation: Any) -> Any:
    """Return the event with the exit of an allocation's task."""
    events = allocation["TaskStates"]["main"]["Events"]
    return [event for event in events if event["Type"] == "Terminated"][-1]


async def test_batch_job_gets_its_inputs_and_its_output_is_returned(steward: Steward) -> None:
    template = {"EmbeddedTmpl": "a template\n", "DestPath": "local/made.txt"}
    text = "cat local/made.txt; echo $GREETING; echo wrong >&2"
    job = script("gets", text, Templates=[template], Env={"GREETING": "hello"})
    found = await ended(steward, job)
    assert found["ClientStatus"] == "complete", found
    assert await steward.log_of(found["ID"], "main") == "a template\nhello\n"
    assert await steward.log_of(found["ID"], "main", "stderr") == "wrong\n"


async def test_a_child_gets_its_payload_and_an_artifact(steward: Steward) -> None:
    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some()
            await stream.send_all(b"HTTP/1.0 200 OK\r\nContent-Length: 8\r\n\r\nfetched\n")

    async with listening(serve) as port:
        artifact = {"GetterSource": f"http://127.0.0.1:{port}/a.txt", "RelativeDest": "local/"}
        text = "cat local/in.txt local/a.txt"
        job = script("parent", text, Artifacts=[artifact], DispatchPayload={"File": "in.txt"}) | {
            "ParameterizedJob": {"Payload": "required"}
        }
        await steward.register(job)
        payload = base64.b64encode(b"payload\n").decode()
        child = await steward.post("/v1/job/parent/dispatch", {"Payload": payload})
        (found,) = await steward.allocations(child["DispatchedJobID"], "complete", "failed")
    assert await steward.log_of(found["ID"], "main") == "payload\nfetched\n"


@pytest.mark.parametrize(
    ("text", "status", "code", "number"),
    [("exit 0", "complete", 0, 0), ("exit 3", "failed", 3, 0), ("kill -KILL $$", "failed", 137, 9)],
)
async def test_a_task_ends(
    steward: Steward, text: str, status: str, code: int, number: int
) -> None:
    found = await ended(steward, script("ends", text))
    event = ending(found)
    assert (found["ClientStatus"], event["ExitCode"], event["Signal"]) == (status, code, number)


async def test_missing_program_fails_the_task(steward: Steward) -> None:
    job = script("absent", "", Config={"command": "/no/such/program"})
    found = await ended(steward, job)
    assert (found["ClientStatus"], ending(found)["ExitCode"]) == ("failed", 127)


async def test_job_can_clean_up_during_a_stop(steward: Steward) -> None:
    alloc_id = await running(steward, script("polite", POLITE))
    await steward.delete("/v1/job/polite")
    await steward.allocations("polite", "complete")
    assert await steward.log_of(alloc_id, "main") == "begun\nstopping\n"


async def test_task_that_ignores_its_stop_signal_is_killed(steward: Steward) -> None:
    alloc_id = await running(steward, script("stubborn", STUBBORN, KillTimeout=SECOND))
    await steward.delete("/v1/job/stubborn")
    await steward.allocations("stubborn", "complete", "failed")
    found = await steward.get(f"/v1/allocation/{alloc_id}")
    assert ending(found)["Signal"] == 9


async def test_a_signal_reaches_the_task(steward: Steward) -> None:
    text = "trap 'echo heard; exit 5' USR1; echo begun; while :; do sleep 1 & wait $!; done"
    alloc_id = await running(steward, script("hears", text))
    await steward.post(f"/v1/client/allocation/{alloc_id}/signal", {"Signal": "SIGUSR1"})
    (found,) = await steward.allocations("hears", "failed")
    assert ending(found)["ExitCode"] == 5
    assert await steward.log_of(alloc_id, "main") == "begun\nheard\n"


async def test_growing_log_is_followed(steward: Steward) -> None:
    text = "echo begun; until [ -e local/go ]; do sleep 0.1; done; echo more"
    alloc_id = await running(steward, script("follows", text))
    async with following(steward, alloc_id) as log:
        assert await log.line() == b"begun"
        said = await steward.cli("exec", alloc_id, "touch", "local/go")
        assert said.returncode == 0, said.stderr
        assert await log.line() == b"more"


async def command(steward: Steward, alloc_id: str, *words: str, **query: str) -> list[Any]:
    """Run a command inside the task; return the frames up to the exit frame."""
    path = f"/v1/client/allocation/{alloc_id}/exec"
    given = {"task": "main", "command": json.dumps(words), **query}
    async with websocket_client.talk(steward.address, path, **given) as socket:
        return await socket.all()


def told(frames: list[Any], kind: str = "stdout") -> str:
    """Return the output of a command."""
    pieces = [frame[kind]["data"] for frame in frames if frame.get(kind, {}).get("data")]
    return b"".join(base64.b64decode(piece) for piece in pieces).decode()


async def test_commands_run_inside_with_and_without_a_terminal(steward: Steward) -> None:
    action = {"Name": "where", "Command": "/bin/cat", "Args": ["local/where"]}
    text = "echo here >local/where; echo begun; sleep 600"
    alloc_id = await running(steward, script("inside", text, Actions=[action]))
    plain = await command(steward, alloc_id, "/bin/sh", "-c", "echo out; echo err >&2; exit 7")
    assert (told(plain), told(plain, "stderr")) == ("out\n", "err\n")
    assert plain[-1]["result"]["exit_code"] == 7
    with_terminal = await command(steward, alloc_id, "/usr/bin/tty", tty="true")
    assert told(with_terminal).startswith("/dev/pts/")
    assert with_terminal[-1] == {"exited": True, "result": {}}
    path = "/v1/job/inside/action"
    asked = {"task": "main", "group": "group", "action": "where", "allocID": alloc_id}
    async with websocket_client.talk(steward.address, path, **asked) as socket:
        frames = await socket.all()
    assert told(frames) == "here\n"


async def test_cancellation_in_the_cluster_is_reported(steward: Steward, cluster: Cluster) -> None:
    alloc_id = await running(steward, script("cancelled", "echo begun; exec sleep 600"))
    cluster.run("scancel", f"--name=alloc-{alloc_id}")
    (found,) = await steward.allocations("cancelled", "failed", "lost")
    assert "(the cluster reports CANCELLED)" in ending(found)["DisplayMessage"]


async def test_job_ends_at_its_time_limit(steward: Steward) -> None:
    job = script("long", "echo begun; sleep 600")
    job["TaskGroups"][0]["MaxRunDuration"] = SECOND
    found = await ended(steward, job)
    assert found["ClientStatus"] == "complete", found
    events = [event["Type"] for event in found["TaskStates"]["main"]["Events"]]
    assert "Max Run Duration Exceeded" in events


async def test_a_hundred_children_run_once_each(steward: Steward, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    job = script("many", f"echo $NOMAD_JOB_ID >>{ran}") | {"ParameterizedJob": {}}
    job["TaskGroups"][0]["Tasks"][0]["Resources"] = {"CPU": 1, "MemoryMB": 10}
    await steward.register(job)
    children = []
    for _ in range(100):
        child = await steward.post("/v1/job/many/dispatch", {})
        children.append(child["DispatchedJobID"])
    for child in children:
        await steward.allocations(child, "complete")
    assert sorted(ran.read_text().split()) == sorted(children)


async def test_a_pool_is_checked(steward: Steward) -> None:
    done = await steward.cli("pool", "check", "hpc")
    said = done.stdout.decode()
    assert done.returncode == 0, said
    steps = [line.split()[1] for line in said.splitlines()]
    assert steps[:5] == ["programs", "version", "partition", "hosts", "limits"]
    assert {"submitted", "output", "result", "cleaned"} <= set(steps)
    assert [line for line in said.splitlines() if not line.startswith("ok ")] == []
