"""Uploads of input files in chunks; an interrupted upload continues where it stopped."""

import hashlib
import http
from collections.abc import Callable
from pathlib import Path

from daemon.cli.core.http_client import ApiClient, RequestRejected
from storage.errors import Invalid
from storage.records.payload_file import UploadState

_PIECE = 1024 * 1024  # bytes


def parse_file(text: str) -> tuple[str, Path]:
    """Split the text `NAME=PATH` into its name and its path. Raises `Invalid`."""
    name, sign, path = text.partition("=")
    if not name or not sign or not path:
        raise Invalid(f"--file {text!r} is not NAME=PATH")
    return name, Path(path)


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file. Raises `Invalid` if the file cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise Invalid(f"cannot read the file {path}: {error.strerror}") from error


def upload(
    client: ApiClient,
    path: Path,
    namespace: str,
    tell: Callable[[int, int], None],
    members: int | None = None,
) -> str:
    """Upload a file unless the daemon has it; return the digest of the file.

    `tell` is called with the number of bytes sent so far and the size. If the file is an archive,
    `members` is the number of its files and directories. Raises `Invalid` if the file cannot be
    read.
    """
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            size = file.tell()
            address = f"/v1/payload/{digest}"
            state = _state(client, address, namespace, members)
            while not state.is_complete:
                file.seek(state.received)
                chunk, offset = file.read(_PIECE), state.received
                try:
                    state = client.call(
                        "PUT", address, chunk, namespace=namespace, size=size, offset=offset
                    ).decode(UploadState)
                except RequestRejected as error:
                    if error.status != http.HTTPStatus.CONFLICT:
                        raise
                    # Another program uploads the same file, or an answer was lost.
                    state = _state(client, address, namespace)
                    if state.received == offset and not state.is_complete:
                        raise
                tell(state.received, size)
    except OSError as error:
        raise Invalid(f"cannot read the file {path}: {error.strerror}") from error
    return digest


def _state(
    client: ApiClient, address: str, namespace: str, members: int | None = None
) -> UploadState:
    """Return the state of an upload. The daemon refuses an archive with too many `members`."""
    counts = {} if members is None else {"members": members}
    try:
        return client.fetch(address, UploadState, namespace=namespace, **counts)
    except RequestRejected as error:
        if error.status == http.HTTPStatus.NOT_FOUND:
            return UploadState()
        raise
