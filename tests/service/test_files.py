"""The files of an allocation over the API (recorded: client-files-logs)."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
import trio

from daemon.config.data_directory import alloc_dir
from storage.records.base import SECOND
from tests.service.daemon import Steward
from tests.time_limits import HAPPENS_WITHIN


def lingering(job_id: str, text: str = "exec sleep 600") -> Any:
    """Return a job with one task that runs a shell script."""
    task = {
        "Name": "main",
        "Driver": "raw_exec",
        "Config": {"command": "/bin/sh", "args": ["-c", text]},
        "KillTimeout": SECOND,
    }
    return {"ID": job_id, "Type": "batch", "TaskGroups": [{"Name": "web", "Tasks": [task]}]}


@pytest.fixture
async def local(steward: Steward) -> tuple[str, Path]:
    """Return a running allocation and the local directory of its task."""
    (found,) = await steward.run_job(lingering("files"))
    return found["ID"], alloc_dir(steward.data_dir) / found["ID"] / "main/local"


async def ask(steward: Steward, alloc_id: str, verb: str, **query: str) -> httpx.Response:
    return await steward.request("GET", f"/v1/client/fs/{verb}/{alloc_id}?{urlencode(query)}")


class Frames:
    """The frames of a stream, as they come."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream, self._text = stream, ""

    async def next(self) -> Any:
        """Return the next frame."""
        while True:
            try:
                frame, end = json.JSONDecoder().raw_decode(self._text)
            except ValueError:
                piece = await self._stream.receive_some()
                assert piece
                self._text += piece.decode()
            else:
                self._text = self._text[end:]
                return frame

    async def head(self) -> None:
        """Skip the head before the frames."""
        while "\r\n\r\n" not in self._text:
            self._text += (await self._stream.receive_some()).decode()
        self._text = self._text.partition("\r\n\r\n")[2]


@asynccontextmanager
async def frames(steward: Steward, alloc_id: str, path: str) -> AsyncIterator[Frames]:
    """Follow a file while the block runs."""
    host, _, port = steward.address.removeprefix("http://").rpartition(":")
    request = f"GET /v1/client/fs/stream/{alloc_id}?path={path} HTTP/1.0\r\n\r\n"
    with trio.fail_after(HAPPENS_WITHIN):
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            await stream.send_all(request.encode())
            frames = Frames(stream)
            await frames.head()
            yield frames


async def test_file_is_followed_while_it_grows_shrinks_and_is_deleted(
    steward: Steward, local: tuple[str, Path]
) -> None:
    alloc_id, directory = local
    file = directory / "f"
    file.write_text("one")
    async with frames(steward, alloc_id, "/main/local/f") as shown:
        assert await shown.next() == {"Data": "b25l", "File": "/main/local/f", "Offset": 3}
        with file.open("a") as more:
            more.write("two")
        assert await shown.next() == {"Data": "dHdv", "File": "/main/local/f", "Offset": 6}
        file.write_text("x")
        assert await shown.next() == {"File": "/main/local/f", "FileEvent": "file truncated"}
        assert (await shown.next())["Data"] == "eA=="
        file.unlink()
        assert await shown.next() == {"File": "/main/local/f", "FileEvent": "file deleted"}


async def test_large_file_is_sent_completely(steward: Steward, local: tuple[str, Path]) -> None:
    alloc_id, directory = local
    (directory / "large").write_bytes(bytes(range(256)) * 4096)
    answer = await ask(steward, alloc_id, "cat", path="main/local/large")
    assert answer.content == bytes(range(256)) * 4096
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


async def test_files_outside_the_allocation_are_not_shown(
    steward: Steward, local: tuple[str, Path]
) -> None:
    alloc_id, directory = local
    (directory / "out").symlink_to("/etc")
    (directory / "passwd").symlink_to("/etc/passwd")
    answers = {
        (verb, path): await ask(
            steward, alloc_id, verb, path=path, offset="0", limit="9", follow="false"
        )
        for verb in ("ls", "stat", "cat", "readat", "stream")
        for path in ("/main/local/out", "/main/local/out/passwd", "/main/local/passwd", "/../../x")
    }
    statuses = {
        verb: {one.status_code for (of, _), one in answers.items() if of == verb}
        for verb, _ in answers
    }
    assert statuses == {"ls": {500}, "stat": {500}, "cat": {200}, "readat": {200}, "stream": {400}}
    assert {answer.text for answer in answers.values()} == {"Path escapes the alloc directory"}


NONSENSE: list[tuple[str, dict[str, str], int, str]] = [
    ("stream", {"path": "/nope"}, 400, "no such file"),
    ("stream", {"path": "/main"}, 400, 'file "/main" is a directory'),
    ("stream", {"path": "/x", "follow": "x"}, 400, "failed to parse follow field to boolean"),
    ("stream", {"path": "/x", "origin": "x"}, 400, "origin must be start or end"),
    (
        "stream",
        {"path": "/x", "offset": "x"},
        400,
        'error parsing offset: strconv.ParseInt: parsing "x"',
    ),
    ("readat", {"path": "/x", "offset": "-1"}, 200, "error parsing offset: <nil>"),
    ("readat", {"path": "/x", "offset": "1", "limit": "x"}, 200, "error parsing limit"),
    ("readat", {"path": "/x", "offset": str(2**63)}, 200, "value out of range"),
    ("ls", {"path": "/main/local/file"}, 500, "not a directory"),
    ("stat", {"path": "a\0b"}, 500, "invalid argument"),
    ("cat", {"path": "x" * 300}, 200, "file name too long"),
]


async def test_invalid_request_is_refused(steward: Steward, local: tuple[str, Path]) -> None:
    alloc_id, directory = local
    (directory / "file").touch()
    told = [
        (answer.status_code, text if text in answer.text else answer.text)
        for verb, query, _, text in NONSENSE
        for answer in [await ask(steward, alloc_id, verb, **query)]
    ]
    assert told == [(status, text) for _, _, status, text in NONSENSE]


async def test_largest_offset_of_a_followed_file_is_not_taken_for_a_deletion(
    steward: Steward, local: tuple[str, Path]
) -> None:
    alloc_id, directory = local
    (directory / "f").write_text("one")
    path = f"/main/local/f&offset={2**63 - 1}"
    async with frames(steward, alloc_id, path) as shown:
        assert await shown.next() == {"File": "/main/local/f", "FileEvent": "file truncated"}
        assert (await shown.next())["Data"] == "b25l"
