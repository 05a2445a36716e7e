"""Downloads of kept files. A downloaded file is complete and verified, or does not exist."""

import hashlib
import os
from contextlib import suppress
from functools import partial
from pathlib import Path

import anyio

from steward_client.errors import InvalidResponse
from steward_client.records import KeptFile
from steward_client.transport import Call, Connection, segment


async def save_kept(
    connection: Connection, alloc_id: str, file: KeptFile, target: str | os.PathLike[str]
) -> None:
    """Write a kept file to a path. Raises `NotFound`, `InvalidResponse` or `OSError`."""
    path = Path(target)
    unfinished = path.with_name(f".{path.name}.unfinished")
    digest = hashlib.sha256()
    call = Call(
        method="GET",
        path=f"/v1/allocation/{segment(alloc_id)}/kept/file",
        query={"task": file.task, "path": file.path},
    )
    try:
        async with (
            await anyio.open_file(unfinished, "wb") as copy,
            connection.stream(call) as chunks,
        ):
            async for chunk in chunks:
                digest.update(chunk)
                await copy.write(chunk)
        if digest.hexdigest() != file.digest:
            raise InvalidResponse(f"the content of {file.path!r} does not match its digest")
        await anyio.to_thread.run_sync(os.replace, unfinished, path)
    finally:
        # After a complete download, the file already has its final name.
        with anyio.CancelScope(shield=True), suppress(FileNotFoundError):
            await anyio.to_thread.run_sync(partial(os.unlink, unfinished))
