"""The files of an allocation: listed, described, read, and followed while they grow.

Of these routes the peer answers two, `cat` and `readat`, with status 200 and the text of an error
as if it was the file's (golden: client-files-logs); its clients know that.
"""

import base64
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import TypeVar

import trio

from daemon.api.cluster.log_sources import find_source
from daemon.api.cluster.logs import HEARTBEAT, NO_ALLOCATION, Frame, flag, number, origin
from daemon.runner.files import Files, Info, Prohibited, mode_text
from daemon.runner.pace import following
from daemon.web.readers import while_known
from daemon.web.reply import TEXT, Reply, text
from daemon.web.request import Request
from storage.errors import Denied, Malformed, NotFound, Refused, StewardError
from storage.records.base import Record
from storage.records.codec import encode
from storage.records.times import rfc3339

T = TypeVar("T")

_SEES_SECRETS = "read-secrets"  # the capability to list the secret files of tasks

_CHUNK = 64 * 1024  # bytes that a client gets at once, as from the peer
# What a task has written is not a page of ours, whatever a browser takes it for.
_UNTRUSTED = {"X-Content-Type-Options": "nosniff", "Content-Security-Policy": "sandbox"}


class Entry(Record, frozen=True, kw_only=True):
    """A file in a listing."""

    name: str
    is_dir: bool
    size: int
    file_mode: str
    mod_time: str


class Described(Entry, frozen=True, kw_only=True):
    """A file by itself."""

    content_type: str


def _files(request: Request) -> Files:
    """Return the files of the allocation that a path names. Raises `Malformed`, `NotFound`."""
    alloc_id = request["alloc_id"]
    if not alloc_id:
        raise Malformed(NO_ALLOCATION)
    source = find_source(request, alloc_id)
    logs = {
        f"{task}.{kind}": source.log(task, kind)
        for task in source.tasks
        for kind in ("stdout", "stderr")
    }
    sees_secrets = request.caller.grant.may(source.namespace, _SEES_SECRETS)
    return Files(str(source.directory), logs, sees_secrets=sees_secrets)


def _path(request: Request) -> str:
    path = request.query.text("path")
    if not path:
        raise Malformed("must provide a file name")
    return path


async def entries(request: Request) -> Reply:
    """List a directory of an allocation."""
    files, path = _files(request), request.query.text("path")
    found = _shown(files, "open", path, lambda: files.entries(path))
    return Reply(body=[_entry(info) for info in found])


def _entry(info: Info) -> Entry:
    return Entry(
        name=info.name,
        is_dir=info.is_directory,
        size=info.size,
        file_mode=mode_text(info.mode),
        mod_time=rfc3339(info.modified),
    )


async def describe(request: Request) -> Reply:
    """Describe one file of an allocation."""
    files, path = _files(request), _path(request)
    info = _shown(files, "stat", path, lambda: files.info(path))
    return Reply(
        body=Described(
            name=info.name,
            is_dir=info.is_directory,
            size=info.size,
            file_mode=mode_text(info.mode),
            mod_time=rfc3339(info.modified),
            content_type=info.kind,
        )
    )


async def cat(request: Request) -> Reply:
    """Show a file of an allocation."""
    return _told(lambda: _content(request, 0, None))


async def read_at(request: Request) -> Reply:
    """Show a part of a file of an allocation."""

    def part() -> Reply:
        _path(request)
        query = request.query
        # Without a default: an offset that is missing is none.
        offset = number(query, "offset", default="")
        return _content(request, offset, number(query, "limit") if "limit" in query else None)

    return _told(part)


def _told(work: Callable[[], Reply]) -> Reply:
    """Return an answer, or the text of the error in its place."""
    try:
        return work()
    except Denied:
        raise
    except StewardError as error:
        return text(str(error))


def _content(request: Request, offset: int, limit: int | None) -> Reply:
    files, path = _files(request), _path(request)
    info = _readable(files, path)
    end = info.size if limit is None else min(info.size, offset + limit)
    # Looked at once before the answer begins: a file that may not be read is told of in its place.
    _asked(files, "open", path, lambda: files.read(path, offset, 0))
    return Reply(stream=_pieces(files, path, offset, end), content_type=TEXT, headers=_UNTRUSTED)


def _readable(files: Files, path: str) -> Info:
    info = _asked(files, "stat", path, lambda: files.info(path))
    if info.is_directory:
        raise Malformed(f'file "{path}" is a directory')
    if not info.is_regular:
        raise Malformed(f'file "{path}" is not a regular file')
    return info


async def _pieces(files: Files, path: str, offset: int, end: int) -> AsyncIterator[bytes]:
    while offset < end:
        piece = _asked(files, "open", path, lambda: files.read(path, offset, _most(offset, end)))  # noqa: B023  # called at once
        if not piece:
            return
        offset += len(piece)
        yield piece
        await trio.lowlevel.checkpoint()


def _most(offset: int, end: int) -> int:
    return min(_CHUNK, end - offset)


async def stream(request: Request) -> Reply:
    """Show a file of an allocation in frames, and what is written to it when `follow` says so."""
    query = request.query
    path = _path(request) if request["alloc_id"] else ""
    follow = flag(query, "follow") if query.text("follow") else True
    offset, begin = number(query, "offset"), origin(query)
    files = _files(request)
    try:
        size = _readable(files, path).size
        _asked(files, "open", path, lambda: files.read(path, 0, 0))
    except (NotFound, Refused) as error:
        raise Malformed(str(error)) from error
    start = max(0, size - offset) if begin == "end" else offset
    if follow:
        frames = while_known(request, _followed(files, path, start))
    else:
        frames = _framed(files, path, start, size)
    return Reply(stream=frames, is_endless=follow, content_type=TEXT, headers=_UNTRUSTED)


async def _framed(files: Files, path: str, offset: int, end: int) -> AsyncGenerator[bytes, None]:
    async for piece in _pieces(files, path, offset, end):
        offset += len(piece)
        yield _frame(piece, path, offset)


async def _followed(files: Files, path: str, offset: int) -> AsyncGenerator[bytes, None]:
    """Yield what a file holds from an offset on, until it is gone; one that shrinks begins anew."""
    with following() as pace:
        while True:
            try:
                size = files.info(path).size
                piece = files.read(path, offset, _CHUNK)
            except (StewardError, OSError):
                yield encode(Frame(file=path, file_event="file deleted"))
                return
            if size < offset:
                offset = 0
                yield encode(Frame(file=path, file_event="file truncated"))
            elif piece:
                offset += len(piece)
                pace.hurry()
                yield _frame(piece, path, offset)
                await trio.lowlevel.checkpoint()
            else:
                await pace.rest()
                if pace.beats():
                    yield HEARTBEAT


def _frame(piece: bytes, path: str, offset: int) -> bytes:
    return encode(Frame(data=base64.b64encode(piece).decode(), file=path, offset=offset))


def _shown(files: Files, verb: str, path: str, work: Callable[[], T]) -> T:
    """Return names and sizes. Raises `Denied` for those of secret files, else as `_asked`."""
    try:
        return _asked(files, verb, path, work)
    except Prohibited as error:
        raise Denied from error


def _asked(files: Files, verb: str, path: str, work: Callable[[], T]) -> T:
    """Return what was asked of the files; what the system says against it, in the peer's form.

    Raises `NotFound` or `Refused`.
    """
    try:
        return work()
    except OSError as error:
        reason = error.strerror or str(error)
        message = f"{verb} {files.full(path)}: {reason[:1].lower()}{reason[1:]}"
        if isinstance(error, FileNotFoundError):
            raise NotFound(message) from error
        raise Refused(message) from error


async def unknown(request: Request) -> Reply:
    """Answer for a question about files that there is not."""
    del request
    return text("Invalid method", 404)
