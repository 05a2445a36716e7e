"""Snapshot of the whole store, made while the daemon runs and sent as a stream."""

import base64
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO

import trio

from daemon.web.reply import HandlerReply
from daemon.web.request import Request
from storage.errors import Refused, reporting_full_disk
from storage.snapshot import partial_files
from storage.snapshot import save as save_snapshot
from storage.snapshot_archive import pack

_PIECE = 256 * 1024


async def download_snapshot(request: Request) -> HandlerReply:
    """Send a snapshot."""
    parts = request.parts
    directory = parts.config.store_dir
    name = next(parts.ids)
    packed, digest = await trio.to_thread.run_sync(
        _packed, directory, name, limiter=parts.snapshots
    )
    headers = {"Digest": f"sha-256={digest}"}
    return HandlerReply(
        stream=_read_chunks(packed), content_type="application/x-gzip", headers=headers
    )


def _packed(directory: Path, name: str) -> tuple[IO[bytes], str]:
    """Return an archive of the store as an unlinked open file, and its SHA-256 digest in base64.

    Raises `StorageFull`.
    """
    with reporting_full_disk("the store"):
        plain = partial_files(directory) / name
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


async def _read_chunks(packed: IO[bytes]) -> AsyncIterator[bytes]:
    with packed:
        while chunk := await trio.to_thread.run_sync(packed.read, _PIECE):
            yield chunk


async def reject_restore(request: Request) -> HandlerReply:
    """Reject the request, because a running daemon cannot replace its store."""
    raise Refused(
        "a running daemon cannot replace its store: stop it, and run "
        "`steward operator snapshot restore FILE`"
    )
