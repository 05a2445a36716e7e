"""Exec sessions in containers, with a stream of this process as the connection to Podman."""

import os
import struct
from typing import Any

import trio
import trio.testing

from daemon.runner.drivers.podman.api import ExecSpec, PodmanClient
from daemon.runner.drivers.podman.exec import PodmanSession


class Commands:
    """A client of Podman with one command, which is a process of this test."""

    def __init__(self) -> None:
        self.state = ExecSpec(running=True, pid=os.getpid())

    async def command(self, name: str) -> ExecSpec:
        return self.state


def piece(stream: int, data: bytes) -> bytes:
    return struct.pack(">B3xL", stream, len(data)) + data


def streams() -> tuple[Any, trio.StapledStream[Any, Any]]:
    """Return both ends of a connection; only the stream methods of a socket are used."""
    return trio.testing.memory_stream_pair()


async def test_output_is_distributed_to_its_streams() -> None:
    ours, theirs = streams()
    commands: Any = Commands()
    early = piece(1, b"early")
    session = PodmanSession(commands, "c", ours, early, tty=False)
    read, codes = list[bytes](), list[int]()

    async def wait() -> None:
        codes.append(await session.wait())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        read.append(await session.read("stdout"))
        nursery.start_soon(theirs.send_all, piece(2, b"fault") + piece(3, b"?") + piece(1, b"x"))
        read += [await session.read("stderr"), await session.read("stdout")]
        commands.state = ExecSpec(exit_code=3)
        await theirs.send_eof()
        read += [await session.read("stdout"), await session.read("stderr")]
    assert (read, codes) == ([b"early", b"fault", b"x", b"", b""], [3])
    await session.close()


async def test_close_ends_a_waiting_reader_and_the_connection() -> None:
    ours, theirs = streams()
    commands: Any = Commands()
    commands.state = ExecSpec(running=True, pid=2**22 + 1)  # no such process
    session = PodmanSession(commands, "c", ours, b"", tty=True)
    assert session.outputs == ["stdout"]
    read = list[bytes]()

    async def wait_for_output() -> None:
        read.append(await session.read("stdout"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_for_output)
        await trio.testing.wait_all_tasks_blocked()
        await session.close()
    assert read == [b""]
    assert await theirs.receive_some(1) == b""
    await session.write(b"x")  # is ignored
    await session.end_input()


class Listing(PodmanClient):
    """A client whose list of containers has this JSON text."""

    def __init__(self, text: bytes) -> None:
        super().__init__("/none")
        self.text = text

    async def _request(self, *given: Any, **options: Any) -> bytes:
        return self.text


async def test_a_list_of_no_containers_may_be_null() -> None:
    assert await Listing(b"null\n").labelled({"a": "b"}) == []
    assert await Listing(b"[]").labelled({"a": "b"}) == []
    assert await Listing(b'[{"Id": "x"}, {"Id": "y"}]').labelled({"a": "b"}) == ["x", "y"]
