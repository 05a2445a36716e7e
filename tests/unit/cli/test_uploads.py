"""Uploads of the command line while another program uploads the same file."""

import http
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from daemon.cli.core.http_client import RequestRejected
from daemon.cli.core.uploads import upload
from storage.records.codec import encode
from storage.records.payload_file import UploadState

CONTENT = b"content"


class Response(msgspec.Struct):
    state: UploadState

    def decode(self, record: type[UploadState]) -> UploadState:
        return msgspec.json.decode(encode(self.state), type=record)


class Client:
    """A daemon that has received more bytes than its responses report."""

    def __init__(self, *states: UploadState) -> None:
        self._states: Iterator[UploadState] = iter(states)
        self.offsets: list[int] = []

    def fetch(self, _path: str, _record: type[UploadState], **_query: object) -> UploadState:
        self.state = next(self._states)
        return self.state

    def call(self, _method: str, _path: str, piece: bytes, *, offset: int, **_: object) -> Response:
        self.offsets.append(offset)
        if len(self.offsets) == 1:
            raise RequestRejected(http.HTTPStatus.CONFLICT, "continue at 3")
        assert piece == CONTENT[offset:]
        return Response(UploadState(size=7, received=7, is_complete=True))


def run(client: Client, tmp_path: Path) -> None:
    (tmp_path / "input").write_bytes(CONTENT)
    given: Any = client
    upload(given, tmp_path / "input", "default", lambda _received, _size: None)


def test_conflict_continues_at_the_new_offset(tmp_path: Path) -> None:
    client = Client(UploadState(size=7), UploadState(size=7, received=3))
    run(client, tmp_path)
    assert client.offsets == [0, 3]


def test_conflict_ends_if_another_program_has_completed_the_file(tmp_path: Path) -> None:
    client = Client(UploadState(size=7), UploadState(size=7, received=7, is_complete=True))
    run(client, tmp_path)
    assert client.offsets == [0]


def test_conflict_without_a_change_fails(tmp_path: Path) -> None:
    client = Client(UploadState(size=7), UploadState(size=7))
    with pytest.raises(RequestRejected, match="continue at 3"):
        run(client, tmp_path)
