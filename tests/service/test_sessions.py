"""Commands inside tasks over a WebSocket of a real daemon (recorded: alloc-exec, actions)."""

import json
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import trio
from wsproto.events import TextMessage

from storage.records.base import SECOND
from tests import websocket_client
from tests.parts.runner.world import Pipe, until_gone
from tests.service.daemon import Steward
from tests.time_limits import HAPPENS_WITHIN
from tests.websocket_client import Conversation

SAY = {"Name": "say", "Command": "/bin/echo", "Args": ["hello", "there"]}


def lingering(job_id: str) -> Any:
    task = {
        "Name": "main",
        "Driver": "raw_exec",
        "Config": {"command": "/bin/sleep", "args": ["600"]},
        "KillTimeout": SECOND,
        "Actions": [SAY],
    }
    return {"ID": job_id, "Type": "batch", "TaskGroups": [{"Name": "web", "Tasks": [task]}]}


@pytest.fixture
async def alloc_id(steward: Steward) -> str:
    (found,) = await steward.run_job(lingering("linger"))
    return str(found["ID"])


def talk(
    steward: Steward, path: str, *, headers: Any = (), **query: str
) -> AbstractAsyncContextManager[Conversation]:
    """Talk with a daemon over a WebSocket while the block runs."""
    return websocket_client.talk(steward.address, path, headers=headers, **query)


async def command(steward: Steward, alloc_id: str, *words: str, **query: str) -> list[Any]:
    """Run a command; return the frames up to the exit frame."""
    path = f"/v1/client/allocation/{alloc_id}/exec"
    given = {"task": "main", "command": json.dumps(words), **query}
    async with talk(steward, path, **given) as socket:
        return await socket.all()


async def upgrade(steward: Steward, path: str, *headers: str) -> trio.SocketStream:
    """Request a WebSocket with custom headers."""
    host, _, port = steward.address.removeprefix("http://").rpartition(":")
    stream = await trio.open_tcp_stream(host, int(port))
    given = {name.partition(":")[0] for name in headers}
    lines = [
        f"GET {path} HTTP/1.1",
        *([] if "Host" in given else [f"Host: {host}:{port}"]),
        *("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"),
        *("Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==", *headers),
    ]
    await stream.send_all(("\r\n".join(lines) + "\r\n\r\n").encode())
    return stream


async def status_of(steward: Steward, path: str, *headers: str) -> int:
    """Return the status of the response to a request for a WebSocket."""
    async with await upgrade(steward, path, *headers) as stream:
        answer = b""
        while b"\r\n" not in answer:
            answer += await stream.receive_some()
    return int(answer.split()[1])


async def test_a_command_runs_without_a_frame_from_the_client(
    steward: Steward, alloc_id: str
) -> None:
    frames = await command(steward, alloc_id, "/bin/sh", "-c", "echo hi; exit 7")
    assert {"stdout": {"data": "aGkK"}} in frames
    assert frames[-1] == {"exited": True, "result": {"exit_code": 7}}


@pytest.mark.parametrize("name", ["alloc_id", "allocID"])
async def test_an_action_is_found_by_either_spelling(
    steward: Steward, alloc_id: str, name: str
) -> None:
    query = {name: alloc_id, "task": "main", "action": "say"}
    async with talk(steward, "/v1/job/linger/action", **query) as socket:
        frames = await socket.all()
    assert {"stdout": {"data": "aGVsbG8gdGhlcmUK"}} in frames


async def test_cross_site_page_cannot_open_a_websocket(steward: Steward, alloc_id: str) -> None:
    path = f"/v1/client/allocation/{alloc_id}/exec"
    assert await status_of(steward, path, "Origin: http://evil.example") == 403
    assert await status_of(steward, path, "Sec-Fetch-Site: cross-site") == 403
    assert await status_of(steward, path, "Host: evil.example") == 421
    assert await status_of(steward, "/v1/jobs") == 404


async def test_same_origin_page_can_open_a_websocket(steward: Steward, alloc_id: str) -> None:
    path = f"/v1/client/allocation/{alloc_id}/exec"
    headers = [(b"Origin", steward.address.encode()), (b"Sec-Fetch-Site", b"same-origin")]
    query = {"task": "main", "command": '["/bin/echo","x"]'}
    async with talk(steward, path, headers=headers, **query) as socket:
        frames = await socket.all()
    assert {"stdout": {"data": "eAo="}} in frames


FAULTS = [
    (
        {"task": "main", "command": "[1]"},
        1011,
        "cannot unmarshal number into Go value of type string",
    ),
    (
        {"task": "main", "command": "{}"},
        1011,
        "cannot unmarshal object into Go value of type []string",
    ),
    ({"task": "main", "command": "[]"}, 1008, "command is not present"),
    ({"task": "main", "command": "null"}, 1008, "command is not present"),
    (
        {"task": "main", "command": '["x"]', "ws_handshake": "maybe"},
        1008,
        "ws_handshake value is not",
    ),
    ({"task": "main", "command": '["no-such"]'}, 1011, "executable file not found in $PATH"),
]


async def test_error_is_reported_when_the_session_ends(steward: Steward, alloc_id: str) -> None:
    told = [
        (socket.code, reason if reason in socket.reason else socket.reason)
        for query, _, reason in FAULTS
        for socket in [await _end(steward, alloc_id, query)]
    ]
    assert told == [(code, reason) for _, code, reason in FAULTS]


async def _end(steward: Steward, alloc_id: str, query: Any) -> Conversation:
    async with talk(steward, f"/v1/client/allocation/{alloc_id}/exec", **query) as socket:
        assert await socket.all() == []
    return socket


async def test_a_lost_connection_ends_the_command(
    steward: Steward, alloc_id: str, tmp_path: Path
) -> None:
    pipe = Pipe(tmp_path / "pipe")
    words = json.dumps(["/bin/sh", "-c", f"echo $$ >{pipe.path}; exec sleep 600"])
    query = urlencode({"task": "main", "command": words})
    async with await upgrade(steward, f"/v1/client/allocation/{alloc_id}/exec?{query}"):
        pid = int(await pipe.line())
    pipe.close()
    with trio.fail_after(HAPPENS_WITHIN):
        await until_gone(pid)


async def test_oversized_message_ends_the_websocket(steward: Steward, alloc_id: str) -> None:
    query = {"task": "main", "command": '["/bin/cat"]'}
    path = f"/v1/client/allocation/{alloc_id}/exec"
    async with talk(steward, path, **query) as socket:
        await socket.accepted()
        await socket.send(TextMessage(data="x" * 2_000_000))
        await socket.all()
    assert socket.code == 1009


async def test_websockets_end_with_the_daemon(steward: Steward, alloc_id: str) -> None:
    query = {"task": "main", "command": '["/bin/cat"]'}
    path = f"/v1/client/allocation/{alloc_id}/exec"
    async with talk(steward, path, **query) as socket, trio.open_nursery() as nursery:
        await socket.accepted()
        nursery.start_soon(steward.stop)
        await socket.all()
    assert (socket.code, socket.reason) == (1001, "the daemon is shutting down")


@pytest.mark.parametrize(
    ("name", "warning"),
    [
        ("CONT", None),
        ("sigcont", None),
        ("SIGFOO\r\nX: y", "unknown signal 'SIGFOO\\r\\nX: y': SIGINT was sent instead"),
    ],
)
async def test_unknown_signal_is_named_in_a_warning(
    steward: Steward, alloc_id: str, name: str, warning: str | None
) -> None:
    path = f"/v1/client/allocation/{alloc_id}/signal"
    answer = await steward.request("POST", path, {"Signal": name, "TaskName": "main"})
    assert answer.json() == {"Index": 0}
    assert answer.headers.get("X-Steward-Warning") == warning
