"""A snapshot of the whole store, made while the daemon works and sent piece by piece."""

import base64
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO

import trio

from daemon.web.reply import Reply
from daemon.web.request import Request
from storage.archive import pack
from storage.errors import Refused
from storage.snapshot import save as save_snapshot
from storage.snapshot import unfinished

_PIECE = 256 * 1024


async def save(request: Request) -> Reply:
    """Send a snapshot."""
    parts = request.parts
    directory = parts.config.store_dir
    name = next(parts.ids)
    packed, digest = await trio.to_thread.run_sync(
        _packed, directory, name, limiter=parts.snapshots
    )
    headers = {"Digest": f"sha-256={digest}"}
    return Reply(stream=_pieces(packed), content_type="application/x-gzip", headers=headers)


def _packed(directory: Path, name: str) -> tuple[IO[bytes], str]:
    """Return an archive of the store, and its sum; no file of that has a name any more."""
    plain = unfinished(directory) / name
    archive = plain.with_suffix(".tgz")
    try:
        summary = save_snapshot(directory, plain)
        with archive.open("xb") as target:
            pack(plain, summary, target)
        packed = archive.open("rb")
    finally:
        plain.unlink(missing_ok=True)
        archive.unlink(missing_ok=True)
    digest = hashlib.file_digest(packed, "sha256").digest()
    packed.seek(0)
    return packed, base64.b64encode(digest).decode()


async def _pieces(packed: IO[bytes]) -> AsyncIterator[bytes]:
    with packed:
        while piece := await trio.to_thread.run_sync(packed.read, _PIECE):
            yield piece


async def restore(request: Request) -> Reply:
    """Refuse: a store is not exchanged under the daemon that works on it."""
    raise Refused(
        "a daemon that works cannot exchange its store: stop it, and run "
        "`steward operator snapshot restore FILE`"
    )
