"""The API of the listener for wrappers, which run tasks on cluster hosts.

Each call has the secret of one attempt and concerns only that attempt (`slurm/wrapper_api.py`).
"""

import re
from collections.abc import Awaitable, Callable

from daemon.acl.check import ANYONE
from daemon.acl.lockout import FailedLogins
from daemon.app.context import WrapperProtocol
from daemon.web.reply import HandlerReply, text
from daemon.web.request import Request, Route, StreamRoute, WriteRoute
from storage.errors import Denied, StewardError

MOST = 1024 * 1024  # bytes of a body; only a chunk of a file to keep is this long
_PLACE = "/v1/wrapper/"
_SPAN = 20.0  # seconds that a wrapper waits for a command
_PLAIN = "text/plain; charset=utf-8"
_PACKED = "application/gzip"
_NUMBER = re.compile(r"[0-9]{1,15}")
_WORD = re.compile(r"[a-z]{0,16}")
_CODES = range(256)
_TOO_OFTEN = text("too many requests with unknown secrets: try again later", 429)

Answer = Callable[[WrapperProtocol, Request], Awaitable[HandlerReply]]


def authenticate_wrapper() -> Callable[[Request], HandlerReply | None]:
    """Return a check that rejects a request without a valid secret before its body is read.

    After too many invalid secrets from a client, the check answers each further invalid secret with
    status 429.
    """
    failures = FailedLogins()

    def refusal(request: Request) -> HandlerReply | None:
        wrappers = request.parts.wrappers
        if not request.path.startswith(_PLACE):
            return None
        if wrappers is None or not request.token:
            return text("the request needs the secret of an attempt", 401)
        try:
            wrappers.admit(request.token)
        except Denied:
            if failures.are_too_many(request.client_key, request.parts.clock.now()):
                return _TOO_OFTEN
            raise
        return None

    return refusal


def _answering(answer: Answer) -> Callable[[Request], Awaitable[HandlerReply]]:
    """Return a handler that calls `answer` with the wrapper API, and converts errors to replies."""

    async def handler(request: Request) -> HandlerReply:
        wrappers = request.parts.wrappers
        if wrappers is None:
            raise Denied
        try:
            return await answer(wrappers, request)
        except OSError as error:  # a disk error: the wrapper sends the chunk again
            return text(f"{error.strerror or error}", 507)
        except StewardError as error:
            status = getattr(error, "status", None)
            if status is None:
                raise
            return text(str(error), status)

    return handler


def _number(request: Request, name: str) -> int:
    """Return a numeric parameter, 0 if it is missing. Raises `BadNumber`."""
    value = request.query.text(name, "0") or "0"
    if not _NUMBER.fullmatch(value):
        raise BadNumber(f"{name} = {value!r}: write a number of at most 15 digits")
    return int(value)


class BadNumber(StewardError):
    """A numeric parameter of a request is invalid."""

    status = 400


async def claim(wrapper_protocol: WrapperProtocol, request: Request) -> HandlerReply:
    """Return an attempt with its artifacts to the first wrapper that claims it."""
    query = request.query
    path = await wrapper_protocol.claim(
        request.token,
        nonce=query.text("nonce"),
        job_id=query.text("job"),
        host=query.text("host"),
    )
    return HandlerReply(stream=wrapper_protocol.pieces(path), content_type=_PACKED)


async def files(wrapper_protocol: WrapperProtocol, request: Request) -> HandlerReply:
    """Return the current files of an attempt."""
    return HandlerReply(
        stream=wrapper_protocol.pieces(await wrapper_protocol.files(request.token)),
        content_type=_PACKED,
    )


async def log(wrapper_protocol: WrapperProtocol, request: Request) -> HandlerReply:
    """Store a chunk of output, and return the offset of the next chunk."""
    offset = _number(request, "offset")
    taken = await wrapper_protocol.log(request.token, request["kind"], offset, request.body)
    return HandlerReply(body=f"{taken}\n".encode(), content_type=_PLAIN)


async def read_commands(wrapper_protocol: WrapperProtocol, request: Request) -> HandlerReply:
    """Return commands as soon as there are any; the request is also a heartbeat."""
    used = (_number(request, "user"), _number(request, "system"), _number(request, "pages"))
    commands = await wrapper_protocol.orders(request.token, _number(request, "seen"), used, _SPAN)
    return HandlerReply(body=commands.encode(), content_type=_PLAIN)


async def list_kept(wrapper_protocol: WrapperProtocol, request: Request) -> HandlerReply:
    """Return the files that the wrapper must send, chosen from the list in the request."""
    paths = await wrapper_protocol.list_kept(
        request.token,
        request.body,
        is_root=_number(request, "root") == 1,
        is_whole=_number(request, "whole") == 1,
    )
    return HandlerReply(body=paths.encode(), content_type=_PLAIN)


async def keep(wrapper_protocol: WrapperProtocol, request: Request) -> HandlerReply:
    """Store a chunk of a file that Steward keeps."""
    await wrapper_protocol.keep(
        request.token,
        _number(request, "file"),
        _number(request, "offset"),
        request.body,
        is_end=_number(request, "end") == 1,
    )
    return HandlerReply(body=b"ok\n", content_type=_PLAIN)


async def report_result(wrapper_protocol: WrapperProtocol, request: Request) -> HandlerReply:
    """Store the result of a task. The body of the request is the outputs file of the task."""
    code, why = _number(request, "code"), request.query.text("why")
    outputs, kept_files = request.query.text("outputs"), request.query.text("kept")
    if code not in _CODES:
        raise BadNumber(f"code = {code}: write a number up to 255")
    for name, word in (("why", why), ("outputs", outputs), ("kept", kept_files)):
        if not _WORD.fullmatch(word):
            raise BadNumber(f"{name} = {word!r}: write at most 16 lower-case letters")
    await wrapper_protocol.result(request.token, code, why, outputs, kept_files, request.body)
    return HandlerReply(body=b"ok\n", content_type=_PLAIN)


def routes() -> list[Route]:
    """Return all routes of the listener for wrappers."""
    calls = {
        "claim": claim,
        "files": files,
        "log/{kind}": log,
        "kept": list_kept,
        "kept/file": keep,
        "result": report_result,
    }
    return [
        StreamRoute(f"{_PLACE}orders", _answering(read_commands), ANYONE),
        *(
            WriteRoute("POST", f"{_PLACE}{path}", _answering(answer), ANYONE)
            for path, answer in calls.items()
        ),
    ]
