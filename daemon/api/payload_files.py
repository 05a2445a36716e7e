"""Input files of dispatched jobs: uploads in chunks."""

from http import HTTPStatus

from daemon.jobs.payload_files import OffsetConflict, PayloadFiles, PayloadLimits
from daemon.web import reply
from daemon.web.reply import HandlerReply
from daemon.web.request import Request
from storage.errors import Malformed, TooLarge
from storage.read_pool import ReadSnapshot


def _files(request: Request) -> PayloadFiles:
    config = request.parts.config
    return PayloadFiles(request.parts.store, str(config.payloads_dir), PayloadLimits.of(config))


def show(request: Request, db: ReadSnapshot) -> HandlerReply:
    """Show the state of an upload: how many bytes were received, and whether it is complete.

    `members` is the number of files and directories in an archive, which tasks will unpack.
    """
    members = request.query.own_natural("members") or 0
    if members > (most := request.parts.config.artifact_max_files):
        raise TooLarge(
            f"members is {members}: an archive for tasks may have at most {most} files and "
            "directories (artifact_max_files)"
        )
    return HandlerReply(body=_files(request).state(db, request.namespace, request["digest"]))


async def receive(request: Request) -> HandlerReply:
    """Store a chunk of a file. The chunk begins at `offset`; the whole file has `size` bytes."""
    parts, query = request.parts, request.query
    size = query.own_natural("size")
    if size is None:
        raise Malformed("size is missing: give the size of the whole file in bytes")
    try:
        done = await _files(request).receive(
            request.namespace,
            request["digest"],
            request.body,
            size=size,
            offset=query.own_natural("offset") or 0,
            now=parts.clock.now(),
        )
    except OffsetConflict as error:
        return reply.text(str(error), HTTPStatus.CONFLICT)
    return HandlerReply(body=done)
