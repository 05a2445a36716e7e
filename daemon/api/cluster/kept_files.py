"""Kept files of an allocation: list and download."""

import os
from collections.abc import AsyncIterator, Iterator
from urllib.parse import quote

import trio

from daemon.api.cluster.lookup import load_allocation
from daemon.api.paging import Key, Listing, show
from daemon.jobs.payload_files import PayloadFiles, PayloadLimits
from daemon.runner.core.opened_files import OpenedFile
from daemon.web.reply import HandlerReply
from daemon.web.request import Request
from storage.errors import Malformed, NotFound
from storage.queries import kept_files
from storage.read_pool import ReadSnapshot
from storage.records.codec import encode
from storage.records.kept_file import KeptFile

_PIECE = 256 * 1024
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
_BINARY = "application/octet-stream"


def index(request: Request, db: ReadSnapshot) -> HandlerReply:
    """List the kept files of an allocation, by task and path."""
    allocation = load_allocation(db, request["alloc_id"])
    request.require(allocation.namespace)

    def rows(db: ReadSnapshot, start: Key | None, reverse: bool) -> Iterator[KeptFile]:
        task, _, path = str(start[1]).partition("/") if start else ("", "", "")
        return kept_files.page(db, allocation.id, (task, path) if start else None, reverse=reverse)

    # A dot separates the parts of a key, and names of tasks have dots but no slash.
    listing = Listing[KeptFile](
        rows=rows,
        key=lambda file: ("", f"{file.task}/{file.path}"),
        line=lambda _, file: encode(file),
        is_number=False,
    )
    return show(listing, request.query, db, max(db.table_index("allocations"), 1))


async def read(request: Request) -> HandlerReply:
    """Return the content of the kept file that the parameters `task` and `path` identify."""
    task, path = request.query.text("task"), request.query.text("path")
    if not path:
        raise Malformed("path is missing: give the path of a kept file, as the list shows it")
    kept, content = await request.parts.store.read_any(
        lambda db: _content(request, db, task=task, path=path)
    )
    try:
        file = OpenedFile(await trio.to_thread.run_sync(os.open, content, _READ))
    except FileNotFoundError as error:
        raise NotFound(_lost(path)) from error
    name = quote(path.rpartition("/")[2], safe="")
    headers = {
        "Content-Disposition": f"attachment; filename*=UTF-8''{name}",
        "Content-Security-Policy": "default-src 'none'; sandbox",
        "X-Content-Type-Options": "nosniff",
    }
    return HandlerReply(stream=_read_chunks(file, kept.size), content_type=_BINARY, headers=headers)


def _content(request: Request, db: ReadSnapshot, *, task: str, path: str) -> tuple[KeptFile, str]:
    """Return a kept file and the path of its content. Raises `NotFound` or `Malformed`."""
    allocation = load_allocation(db, request["alloc_id"])
    request.require(allocation.namespace)
    if not task:
        tasks = kept_files.tasks_with(db, allocation.id, path)
        if len(tasks) > 1:
            raise Malformed(f"task is missing: {', '.join(tasks)} each have a kept file {path!r}")
        task = next(iter(tasks), "")
    kept = kept_files.find(db, allocation.id, task, path)
    if kept is None:
        subject = f"task {task!r} of allocation" if task else "allocation"
        raise NotFound(f"{subject} {allocation.id!r} has no kept file {path!r}")
    config = request.parts.config
    files = PayloadFiles(request.parts.store, str(config.payloads_dir), PayloadLimits.of(config))
    content = files.content(db, allocation.namespace, kept.digest)
    if content is None:
        raise NotFound(_lost(path))
    return kept, content


def _lost(path: str) -> str:
    return f"the content of {path!r} is lost: for example, a restored snapshot does not contain it"


async def _read_chunks(file: OpenedFile, size: int) -> AsyncIterator[bytes]:
    offset = 0
    while offset < size:
        chunk = await trio.to_thread.run_sync(os.pread, file.descriptor, _PIECE, offset)
        if not chunk:
            return
        offset += len(chunk)
        yield chunk
