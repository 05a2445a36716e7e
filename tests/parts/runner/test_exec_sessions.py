"""Commands inside a task: input, output, and no remaining processes (recorded: alloc-exec)."""

import base64
import json
import math
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from daemon.runner.core.driver import StartFailed
from storage.errors import Malformed, NotFound, Refused
from tests.parts.runner.conftest import needs_root
from tests.parts.runner.world import (
    Pipe,
    World,
    alive,
    batch,
    environment_of,
    script,
    service,
    until_gone,
)

LINGER = "exec sleep 600"


class Client:
    """The client's end of a session."""

    def __init__(self, *, reads_at_most: float = math.inf) -> None:
        self.frames: list[Any] = []
        self._say, self._heard = trio.open_memory_channel[bytes](100)
        self._left = trio.Event()
        self._reads = reads_at_most
        self.told = trio.Event()  # replaced at every frame

    # ---- called by the daemon

    async def receive(self) -> bytes | None:
        try:
            return await self._heard.receive()
        except trio.EndOfChannel:
            return None

    async def send(self, message: bytes) -> None:
        if len(self.frames) >= self._reads:
            await self._left.wait()
        self.frames.append(json.loads(message))
        self.told.set()
        self.told = trio.Event()

    async def until_lost(self) -> None:
        await self._left.wait()

    # ---- called by tests

    def say(self, frame: object) -> None:
        self._say.send_nowait(frame if isinstance(frame, bytes) else json.dumps(frame).encode())

    def type(self, text: str) -> None:
        self.say({"stdin": {"data": base64.b64encode(text.encode()).decode()}})

    def end_input(self) -> None:
        self.say({"stdin": {"close": True}})

    def leave(self) -> None:
        self._left.set()

    async def until_seen(self, text: str) -> None:
        while text not in self.seen():
            await self.told.wait()

    def seen(self, output: str = "stdout") -> str:
        pieces = [frame[output].get("data", "") for frame in self.frames if output in frame]
        return b"".join(map(base64.b64decode, pieces)).decode()

    @property
    def others(self) -> list[Any]:
        """Return the frames that hold no output."""
        return [frame for frame in self.frames if not any("data" in str(v) for v in frame.values())]


@pytest.fixture
async def running(world: World) -> str:
    """Return an allocation whose task runs."""
    alloc_id = await world.place(service(script(LINGER, env={"COLOR": "blue"})))
    await world.until_status(alloc_id, "running")
    return alloc_id


async def run(world: World, alloc_id: str, *command: str, tty: bool = False) -> Client:
    """Run a command without input to its end."""
    client = Client()
    client.end_input()
    await world.runner.run_exec_session(alloc_id, "main", command, client, tty=tty)
    return client


@asynccontextmanager
async def talking(
    world: World, alloc_id: str, command: Sequence[str], client: Client, *, tty: bool = False
) -> AsyncIterator[None]:
    """Run a command during the block, and then until the command ends."""

    async def talk() -> None:
        await world.runner.run_exec_session(alloc_id, "main", command, client, tty=tty)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(talk)
        yield


async def test_command_prints_and_exits(world: World, running: str) -> None:
    client = await run(world, running, "/bin/sh", "-c", "echo out; echo err >&2; exit 3")
    assert (client.seen(), client.seen("stderr")) == ("out\n", "err\n")
    assert {"stdout": {"close": True}} in client.others
    assert {"stderr": {"close": True}} in client.others
    assert client.others[-1] == {"exited": True, "result": {"exit_code": 3}}


async def test_exit_is_reported_while_input_stays_open(world: World, running: str) -> None:
    client = Client()
    await world.runner.run_exec_session(running, "main", ["/bin/true"], client, tty=False)
    assert client.others[-1] == {"exited": True, "result": {}}


async def test_fatal_signal_has_the_exit_status_of_a_shell(world: World, running: str) -> None:
    client = await run(world, running, "/bin/sh", "-c", "kill -TERM $$")
    assert client.others[-1]["result"] == {"exit_code": 128 + signal.SIGTERM}


async def test_command_has_the_directories_of_the_task(world: World, running: str) -> None:
    text = "pwd; echo $COLOR $NOMAD_TASK_NAME; umask; ls /proc/$$/fd"
    client = await run(world, running, "sh", "-c", text)
    directory = world.directory(running) / "main"
    assert client.seen().split() == [str(directory), "blue", "main", "0022", "0", "1", "2"]


async def test_input_reaches_the_command_with_its_end(world: World, running: str) -> None:
    client = Client()
    async with talking(world, running, ["/bin/cat"], client):
        client.type("one\n")
        await client.until_seen("one\n")
        client.type("two\n")
        client.end_input()
    assert client.seen() == "one\ntwo\n"


async def test_terminal_size_follows_the_client(world: World, running: str) -> None:
    client = Client()
    text = "trap 'stty size' WINCH; tty >/dev/null && echo ready; read x; stty size; read x"
    async with talking(world, running, ["/bin/sh", "-c", text], client, tty=True):
        await client.until_seen("ready")
        client.say({"tty_size": {"height": 40, "width": 100}})
        client.type("\n")
        await client.until_seen("40 100")
        client.type("\n")
    assert {"stderr": {"close": True}} not in client.frames
    assert client.others[-1] == {"exited": True, "result": {}}


async def test_terminal_is_the_controlling_terminal_of_its_session(
    world: World, running: str
) -> None:
    client = Client()
    text = "echo ready; exec sleep 600"
    async with talking(world, running, ["/bin/sh", "-c", text], client, tty=True):
        await client.until_seen("ready")
        client.type("\x03")
    assert client.others[-1]["result"] == {"exit_code": 128 + signal.SIGINT}


async def test_processes_left_by_an_ended_command_block_no_client(
    world: World, running: str
) -> None:
    client = await run(world, running, "/bin/sh", "-c", "sleep 600 & echo done")
    assert client.seen() == "done\n"
    assert client.others[-1] == {"exited": True, "result": {}}


async def test_slow_client_receives_all_output(world: World, running: str) -> None:
    class Slow(Client):
        async def send(self, message: bytes) -> None:
            await trio.sleep(0.01)
            await super().send(message)

    client = Slow()
    text = "head -c 1000000 /dev/zero | tr '\\0' x; echo end"
    await world.runner.run_exec_session(running, "main", ["/bin/sh", "-c", text], client, tty=False)
    assert client.seen() == "x" * 1000000 + "end\n"


async def test_client_that_does_not_read_blocks_the_command(
    world: World, running: str, pipe: Pipe
) -> None:
    client = Client(reads_at_most=1)
    text = f"echo $$ >{pipe.path}; yes; echo over >{pipe.path}"
    async with talking(world, running, ["/bin/sh", "-c", text], client):
        pid = int(await pipe.line())
        await trio.testing.wait_all_tasks_blocked()
        assert alive(pid)
        client.leave()
    assert len(client.frames) <= 2
    await until_gone(pid)


async def test_disconnected_client_ends_the_command(world: World, running: str, pipe: Pipe) -> None:
    client = Client()
    text = f"trap '' HUP TERM INT; sleep 600 & echo $$ $! >{pipe.path}; wait"
    async with talking(world, running, ["/bin/sh", "-c", text], client):
        pids = [int(pid) for pid in (await pipe.line()).split()]
        client.leave()
    for pid in pids:
        await until_gone(pid)


@pytest.mark.parametrize("shell", [["/bin/bash", "--norc", "--noprofile", "-i"], ["/bin/sh", "-i"]])
async def test_shell_processes_on_a_terminal_end_with_the_connection(
    world: World, running: str, pipe: Pipe, shell: list[str]
) -> None:
    client = Client()
    async with talking(world, running, shell, client, tty=True):
        heedless = f"trap '' HUP; echo heedless >{pipe.path}; exec sleep 601"
        client.type(f"sleep 600 &\nfirst=$!\n({heedless}) &\nstays=$!\n")
        assert await pipe.line() == "heedless"
        client.type(f"sleep 602 & echo $stays $$ $first $! >{pipe.path}\n")
        stays, *pids = [int(pid) for pid in (await pipe.line()).split()]
        assert len(pids) == 3
        client.leave()
    for pid in pids:
        await until_gone(pid)
    assert alive(stays)
    os.kill(stays, signal.SIGKILL)


async def test_terminal_command_that_ignores_signals_ends_with_the_connection(
    world: World, running: str, pipe: Pipe
) -> None:
    client = Client()
    text = f"trap '' HUP TERM INT; echo $$ >{pipe.path}; sleep 600; sleep 600"
    async with talking(world, running, ["/bin/sh", "-c", text], client, tty=True):
        pid = int(await pipe.line())
        client.leave()
    await until_gone(pid)


async def test_a_command_ends_with_its_task(held_world: World, pipe: Pipe) -> None:
    alloc_id = await held_world.place(service(script(LINGER)))
    await held_world.until_status(alloc_id, "running")
    client = Client()
    text = f"echo $$ >{pipe.path}; sleep 600; :"
    async with talking(held_world, alloc_id, ["/bin/sh", "-c", text], client):
        pid = int(await pipe.line())
        assert environment_of(pid)["NOMAD_ALLOC_ID"] == alloc_id
        await held_world.stop(alloc_id)
    await held_world.until_done(alloc_id)
    assert client.others[-1]["result"] == {"exit_code": 137}


@needs_root
async def test_a_command_runs_as_the_tasks_user(world: World) -> None:
    alloc_id = await world.place(service(script(LINGER, user="nobody")))
    await world.until_status(alloc_id, "running")
    assert (await run(world, alloc_id, "id", "-un")).seen() == "nobody\n"
    assert (
        (await run(world, alloc_id, "sh", "-c", "id -un; tty", tty=True))
        .seen()
        .startswith("nobody\r\n/dev/pts/")
    )


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("/no/such", "fork/exec /no/such: no such file or directory"),
        ("/etc/passwd", "fork/exec /etc/passwd: permission denied"),
        ("/usr", "fork/exec /usr: permission denied"),
        ("no-such", 'exec: "no-such": executable file not found in $PATH'),
        ("", 'exec: "": executable file not found in $PATH'),
    ],
)
async def test_a_command_that_cannot_be_run_is_refused(
    world: World, running: str, command: str, reason: str
) -> None:
    with pytest.raises(StartFailed) as told:
        await run(world, running, command)
    prefix = "rpc error: code = Unknown desc = failed to start command: "
    assert str(told.value) == prefix + reason


async def test_text_that_no_process_accepts_is_refused(world: World, running: str) -> None:
    with pytest.raises(StartFailed, match="null"):
        await run(world, running, "/bin/echo", "a\0b")


async def test_exec_needs_a_running_task(world: World, running: str) -> None:
    with pytest.raises(Refused, match=r"^task not found$"):
        await world.runner.run_exec_session(running, "nope", ["/bin/true"], Client(), tty=False)
    with pytest.raises(NotFound, match="Unknown allocation"):
        await run(world, "nope", "/bin/true")
    done = await world.place(batch(script("exit 0"), job_id="done"))
    await world.until_done(done)
    with pytest.raises(Refused, match="not running"):
        await run(world, done, "/bin/true")


@pytest.mark.parametrize("frame", [b"x", b"[]", b'{"stdin": {"data": "?"}}', b'{"tty_size": 1}'])
async def test_unreadable_frame_ends_the_command(world: World, running: str, frame: bytes) -> None:
    client = Client()
    client.say(frame)
    with pytest.raises(Malformed, match="a frame cannot be read"):
        await world.runner.run_exec_session(running, "main", ["/bin/cat"], client, tty=False)


async def test_unknown_frames_are_ignored(world: World, running: str) -> None:
    client = Client()
    for frame in ({}, {"version": 1}, {"stdin": None}, {"stdin": {"data": None}}):
        client.say(frame)
    client.end_input()
    await world.runner.run_exec_session(running, "main", ["/bin/cat"], client, tty=False)
    assert client.others[-1] == {"exited": True, "result": {}}


async def test_deeply_nested_frame_is_a_client_error(world: World, running: str) -> None:
    client = Client()
    client.say(b'{"x":' + b"[" * 100_000)
    with pytest.raises(Malformed, match="a frame cannot be read"):
        await world.runner.run_exec_session(running, "main", ["/bin/cat"], client, tty=False)
