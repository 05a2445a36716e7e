"""What wrappers on hosts of a cluster may ask, and nothing else: the whole of their listener.

Each call shows the secret of one attempt and concerns that one alone (`slurm/desk.py`).
"""

import re
from collections.abc import Awaitable, Callable

from daemon.acl.check import ANYONE
from daemon.acl.failures import Failures
from daemon.parts import Wrappers
from daemon.web.reply import Reply, text
from daemon.web.request import Request, Route, Stream, Write
from storage.errors import Denied, StewardError

MOST = 160 * 1024  # bytes of a body: wrappers send pieces of at most 128 KiB
_PLACE = "/v1/wrapper/"
_SPAN = 20.0  # seconds that a wrapper waits for an order
_PLAIN = "text/plain; charset=utf-8"
_PACKED = "application/gzip"
_NUMBER = re.compile(r"[0-9]{1,15}")
_WORD = re.compile(r"[a-z]{0,16}")
_CODES = range(256)
_TOO_OFTEN = text("too many secrets that are nobody's: ask again later", 429)

Answer = Callable[[Wrappers, Request], Awaitable[Reply]]


def doorkeeper() -> Callable[[Request], Reply | None]:
    """Return what refuses who shows no secret of ours before anything of a body is read, and in time does not listen."""
    failures = Failures()

    def refusal(request: Request) -> Reply | None:
        desk = request.parts.wrappers
        if not request.path.startswith(_PLACE):
            return None
        if desk is None or not request.token:
            return text("show the secret of an attempt", 401)
        try:
            desk.admit(request.token)
        except Denied:
            if failures.are_too_many(request.address, request.parts.clock.now()):
                return _TOO_OFTEN
            raise
        return None

    return refusal


def _answering(answer: Answer) -> Callable[[Request], Awaitable[Reply]]:
    """Return a handler that has the desk answer."""

    async def handler(request: Request) -> Reply:
        desk = request.parts.wrappers
        if desk is None:
            raise Denied
        try:
            return await answer(desk, request)
        except OSError as error:  # the disk: what could not be taken is sent again
            return text(f"{error.strerror or error}", 507)
        except StewardError as error:
            status = getattr(error, "status", None)
            if status is None:
                raise
            return text(str(error), status)

    return handler


def _number(request: Request, name: str) -> int:
    """Return a parameter that is a number, 0 when it is missing. Raises `BadNumber`."""
    given = request.query.text(name, "0") or "0"
    if not _NUMBER.fullmatch(given):
        raise BadNumber(f"{name} = {given!r}: write a number of at most 15 digits")
    return int(given)


class BadNumber(StewardError):
    """A parameter is not what it has to be."""

    status = 400


async def claim(desk: Wrappers, request: Request) -> Reply:
    """Give an attempt, with all it brings along, to the first who claims it."""
    query = request.query
    path = await desk.claim(
        request.token,
        nonce=query.text("nonce"),
        job_id=query.text("job"),
        host=query.text("host"),
    )
    return Reply(stream=desk.pieces(path), content_type=_PACKED)


async def files(desk: Wrappers, request: Request) -> Reply:
    """Give the files of an attempt as they are now."""
    return Reply(stream=desk.pieces(await desk.files(request.token)), content_type=_PACKED)


async def log(desk: Wrappers, request: Request) -> Reply:
    """Take a piece of output, and say from where to go on."""
    offset = _number(request, "offset")
    taken = await desk.log(request.token, request["kind"], offset, request.body)
    return Reply(body=f"{taken}\n".encode(), content_type=_PLAIN)


async def orders(desk: Wrappers, request: Request) -> Reply:
    """Give orders, as soon as there are any; the question is a sign of life."""
    used = (_number(request, "user"), _number(request, "system"), _number(request, "pages"))
    said = await desk.orders(request.token, _number(request, "seen"), used, _SPAN)
    return Reply(body=said.encode(), content_type=_PLAIN)


async def result(desk: Wrappers, request: Request) -> Reply:
    """Take how a task ended."""
    code, why = _number(request, "code"), request.query.text("why")
    if code not in _CODES or not _WORD.fullmatch(why):
        raise BadNumber(f"code = {code}, why = {why!r}: write a code up to 255, and a word")
    await desk.result(request.token, code, why)
    return Reply(body=b"ok\n", content_type=_PLAIN)


def routes() -> list[Route]:
    """Return all that a listener for wrappers answers."""
    calls = {"claim": claim, "files": files, "log/{kind}": log, "result": result}
    return [
        Stream(f"{_PLACE}orders", _answering(orders), ANYONE),
        *(
            Write("POST", f"{_PLACE}{path}", _answering(answer), ANYONE)
            for path, answer in calls.items()
        ),
    ]
