"""The files of an allocation: list, stat, read, and stream.

Nomad returns errors of `read_file` and `readat` with status 200, as if they were file content. Its
clients rely on that (source: Nomad's recorded responses `client-files-logs`).
"""

import base64
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Iterator
from contextlib import contextmanager
from functools import partial

import trio

from daemon.api.cluster.log_sources import find_source
from daemon.api.cluster.logs import (
    HEARTBEAT,
    NO_ALLOCATION,
    LogStreamFrame,
    parse_flag,
    parse_number,
    parse_origin,
)
from daemon.runner.core.poll_interval import register_follower
from daemon.runner.logs.alloc_files import (
    FEW_ENTRIES,
    AllocFiles,
    File,
    FileAccessDenied,
    FileMetadata,
    mode_text,
)
from daemon.web.reply import TEXT, HandlerReply, text
from daemon.web.request import Request
from daemon.web.stream_auth import while_authorized
from storage import garbage
from storage.errors import Denied, Malformed, NotFound, Refused, StewardError
from storage.records.base import Record
from storage.records.codec import encode
from storage.records.times import rfc3339

_SEES_SECRETS = "read-secrets"  # the capability to list the secret files of tasks

_CHUNK = 64 * 1024  # bytes per read, as in Nomad
_BEYOND = 2**62  # an offset beyond the end of any file; reads at higher ones fail
# Files of tasks are untrusted: a browser must not run them with the UI's origin.
_UNTRUSTED = {"X-Content-Type-Options": "nosniff", "Content-Security-Policy": "sandbox"}


class FileListEntry(Record, frozen=True, kw_only=True):
    """A file in a list."""

    name: str
    is_dir: bool
    size: int
    file_mode: str
    mod_time: str


class FileStat(FileListEntry, frozen=True, kw_only=True):
    """A file with its content type."""

    content_type: str


async def _files(request: Request) -> AllocFiles:
    """Return access to the files of the allocation in the path. Raises `Malformed`, `NotFound`."""
    alloc_id = request["alloc_id"]
    if not alloc_id:
        raise Malformed(NO_ALLOCATION)
    source = await find_source(request, alloc_id)
    logs = {
        f"{task}.{kind}": source.log(task, kind)
        for task in source.tasks
        for kind in ("stdout", "stderr")
    }
    sees_secrets = request.caller.grant.may(source.namespace, _SEES_SECRETS)
    return AllocFiles(source.logs.launcher, alloc_id, source.root, logs, sees_secrets=sees_secrets)


def _path(request: Request) -> str:
    path = request.query.text("path")
    if not path:
        raise Malformed("must provide a file name")
    return path


async def list_dir(request: Request) -> HandlerReply:
    """List a directory of an allocation."""
    files, path = await _files(request), request.query.text("path")
    with _shown(files, "open", path):
        entries = await files.entries(path)
    if len(entries) <= FEW_ENTRIES:
        return HandlerReply(body=_listed(entries))
    return HandlerReply(body=await garbage.in_thread(partial(_listed, entries)))


def _listed(metadata_list: list[FileMetadata]) -> bytes:
    return encode([_entry(info) for info in metadata_list])


def _entry(info: FileMetadata) -> FileListEntry:
    return FileListEntry(
        name=info.name,
        is_dir=info.is_directory,
        size=info.size,
        file_mode=mode_text(info.mode),
        mod_time=rfc3339(info.modified),
    )


async def stat_file(request: Request) -> HandlerReply:
    """Show the properties of a file of an allocation."""
    files, path = await _files(request), _path(request)
    with _shown(files, "stat", path):
        info = (await files.open(path)).info
    return HandlerReply(
        body=FileStat(
            name=info.name,
            is_dir=info.is_directory,
            size=info.size,
            file_mode=mode_text(info.mode),
            mod_time=rfc3339(info.modified),
            content_type=info.kind,
        )
    )


async def read_file(request: Request) -> HandlerReply:
    """Return a file of an allocation."""
    return await _error_as_reply(_content(request, 0, None))


async def read_file_at(request: Request) -> HandlerReply:
    """Return a part of a file of an allocation."""
    return await _error_as_reply(_part(request))


async def _part(request: Request) -> HandlerReply:
    _path(request)
    query = request.query
    # There is no default, so a missing offset is an error.
    offset = parse_number(query, "offset", default="")
    return await _content(
        request, offset, parse_number(query, "limit") if "limit" in query else None
    )


async def _error_as_reply(work: Awaitable[HandlerReply]) -> HandlerReply:
    """Return the reply of `work`. An error becomes a reply with its text, except for `Denied`."""
    try:
        return await work
    except Denied:
        raise
    except StewardError as error:
        return text(str(error))


async def _content(request: Request, offset: int, limit: int | None) -> HandlerReply:
    files, path = await _files(request), _path(request)
    file, info = await _readable(files, path)
    end = info.size if limit is None else min(info.size, offset + limit)
    # The file is opened before the response begins, so that an error can replace the content.
    with _with_nomad_errors(files, "open", path):
        file.read(offset, 0)
    chunks = _read_chunks(files, path, file, offset, end)
    return HandlerReply(stream=chunks, content_type=TEXT, headers=_UNTRUSTED)


async def _readable(files: AllocFiles, path: str) -> tuple[File, FileMetadata]:
    with _with_nomad_errors(files, "stat", path):
        file = await files.open(path)
        info = file.info
    if info.is_directory:
        raise Malformed(f'file "{path}" is a directory')
    if not info.is_regular:
        raise Malformed(f'file "{path}" is not a regular file')
    return file, info


async def _read_chunks(
    files: AllocFiles, path: str, file: File, offset: int, end: int
) -> AsyncIterator[bytes]:
    while offset < end:
        with _with_nomad_errors(files, "open", path):
            chunk = await file.fetch(offset, _chunk_size(offset, end))
        if not chunk:
            return
        offset += len(chunk)
        yield chunk
        await trio.lowlevel.checkpoint()


def _chunk_size(offset: int, end: int) -> int:
    return min(_CHUNK, end - offset)


async def stream_file(request: Request) -> HandlerReply:
    """Stream a file of an allocation in frames; with `follow`, also stream data appended later."""
    query = request.query
    path = _path(request) if request["alloc_id"] else ""
    follow = parse_flag(query, "follow") if query.text("follow") else True
    offset, begin = parse_number(query, "offset"), parse_origin(query)
    files = await _files(request)
    try:
        file, info = await _readable(files, path)
        with _with_nomad_errors(files, "open", path):
            file.read(0, 0)
    except (NotFound, Refused) as error:
        raise Malformed(str(error)) from error
    start = max(0, info.size - offset) if begin == "end" else min(offset, _BEYOND)
    if follow:
        frames = while_authorized(request, _followed(files, path, file, start))
    else:
        frames = _framed(files, path, file, start, info.size)
    return HandlerReply(stream=frames, is_endless=follow, content_type=TEXT, headers=_UNTRUSTED)


async def _framed(
    files: AllocFiles, path: str, file: File, offset: int, end: int
) -> AsyncGenerator[bytes, None]:
    async for chunk in _read_chunks(files, path, file, offset, end):
        offset += len(chunk)
        yield _frame(chunk, path, offset)


async def _followed(
    files: AllocFiles, path: str, file: File, offset: int
) -> AsyncGenerator[bytes, None]:
    """Yield the content of a file from an offset on, until the file is deleted.

    If the file shrinks, start again at its beginning.
    """
    with register_follower() as pace:
        while True:
            try:
                chunk = await file.fetch(offset, _CHUNK)
                if not chunk:  # another file may have this name now
                    file = await files.open(path)
                    chunk = await file.fetch(offset, _CHUNK)
                size = file.info.size
            except (StewardError, OSError):
                yield encode(LogStreamFrame(file=path, file_event="file deleted"))
                return
            if size < offset:
                offset = 0
                yield encode(LogStreamFrame(file=path, file_event="file truncated"))
            elif chunk:
                offset += len(chunk)
                pace.reset()
                yield _frame(chunk, path, offset)
                await trio.lowlevel.checkpoint()
            else:
                await pace.wait()
                if pace.needs_keepalive():
                    yield HEARTBEAT


def _frame(chunk: bytes, path: str, offset: int) -> bytes:
    return encode(LogStreamFrame(data=base64.b64encode(chunk).decode(), file=path, offset=offset))


@contextmanager
def _shown(files: AllocFiles, verb: str, path: str) -> Iterator[None]:
    """Convert errors of `list_dir` and `stat_file` to Nomad's errors.

    An error about a secret file becomes `Denied`.
    """
    try:
        with _with_nomad_errors(files, verb, path):
            yield
    except FileAccessDenied as error:
        raise Denied from error


@contextmanager
def _with_nomad_errors(files: AllocFiles, verb: str, path: str) -> Iterator[None]:
    """Convert operating system errors to Nomad's errors. Their text begins with `verb`.

    A missing file becomes `NotFound`; any other error becomes `Refused`.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        message = f"{verb} {files.full(path)}: {reason[:1].lower()}{reason[1:]}"
        if isinstance(error, FileNotFoundError):
            raise NotFound(message) from error
        raise Refused(message) from error


async def file_not_found(request: Request) -> HandlerReply:
    """Reject an unknown kind of request about files."""
    del request
    return text("Invalid method", 404)
