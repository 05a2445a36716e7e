"""Uploads of input files in chunks. An interrupted upload continues where it ended."""

import hashlib
import os
from functools import partial

import anyio

from steward_client.errors import ApiError, NotFound
from steward_client.transport import Call, Connection
from steward_client.wire import Record

_PIECE = 1024 * 1024  # bytes
_CONFLICT = 409  # another offset is expected, as after a lost response


class _State(Record, frozen=True, kw_only=True):
    size: int = 0
    received: int = 0
    is_complete: bool = False


async def upload(connection: Connection, path: str | os.PathLike[str], *, namespace: str) -> str:
    """Upload a file if the namespace does not have it yet; return its digest. Raises `OSError`."""
    digest, size = await anyio.to_thread.run_sync(_digest, path)
    address = f"/v1/payload/{digest}"
    state = await _state(connection, address, namespace)
    while not state.is_complete:
        offset = state.received
        chunk = await anyio.to_thread.run_sync(partial(_piece, path, offset))
        call = Call(
            method="PUT",
            path=address,
            query={"namespace": namespace, "size": size, "offset": offset},
            body=chunk,
            repeatable=True,
        )
        try:
            state = (await connection.send(call)).decode(_State)
        except ApiError as error:
            if error.status != _CONFLICT:
                raise
            state = await _state(connection, address, namespace)
            if state.received == offset and not state.is_complete:
                raise
    return digest


async def _state(connection: Connection, address: str, namespace: str) -> _State:
    call = Call(method="GET", path=address, query={"namespace": namespace}, repeatable=True)
    try:
        return (await connection.send(call)).decode(_State)
    except NotFound:
        return _State()


def _digest(path: str | os.PathLike[str]) -> tuple[str, int]:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest(), file.tell()


def _piece(path: str | os.PathLike[str], offset: int) -> bytes:
    with open(path, "rb") as file:
        file.seek(offset)
        return file.read(_PIECE)
