"""Conversations: WebSockets let through to their routes, for programs and for pages.

A program shows its token. A page cannot: what a browser sends along is its cookie, to whatever page
asks, also to one of a task's service on another port of this host. So a page talks below `/ui`
(`/ui/v1/…`, where the cookie goes), must say where it comes from, and says first what only a page
of the session knows. Either way a conversation is over when its token is, and that of a page when
its visitor has signed out.
"""

from collections.abc import Awaitable, Callable, Mapping

import msgspec
import trio
from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable

from daemon.acl.audit import Trail
from daemon.acl.tokens import STRANGER
from daemon.parts import Parts
from daemon.web import head as heads
from daemon.web.guard import Guard
from daemon.web.head import Head
from daemon.web.parameters import Query
from daemon.web.readers import RECHECK, Reader
from daemon.web.reply import Reply, of_error, said, text
from daemon.web.request import Request, Route, Talk
from daemon.web.router import Router
from daemon.web.socket import Socket, converse, refuse
from daemon.web.visits import Pages
from storage.errors import Denied, Malformed

OF_PAGES = "/ui"  # before the path of a route: a page talks with it

_NO_ORIGIN = text("pages are let through by their Origin: this request has none", 403)
_NOTHING = text("nothing talks over a WebSocket here", 404)


class Talks:
    """All conversations of one daemon, until it is `closing`."""

    def __init__(
        self, parts: Parts, router: Router[Route], pages: Pages, guard: Guard, closing: trio.Event
    ) -> None:
        self._parts, self._router, self._pages = parts, router, pages
        self._guard, self._closing = guard, closing

    async def answer(
        self,
        head: Head,
        address: str,
        receive: ASGIReceiveCallable,
        send: ASGISendCallable,
    ) -> None:
        """Let a WebSocket through to its route, unless something speaks against it."""
        path, headers = heads.path(head.target), head.headers
        trail = self._parts.audit.begin("GET", path, head.query, address)
        try:
            refusal = self._refusal(path, headers)
            query = Query(head.query, namespace=heads.namespace(headers, path))
        except Malformed as error:
            refusal = of_error(error)
        if refusal:
            trail.ended(refusal.status, said(refusal))
            await refuse(send, refusal)
            return
        routes, parameters = self._router.find(path.removeprefix(OF_PAGES))
        route = next((one for one in routes if isinstance(one, Talk)), None)
        if route is None:
            await refuse(send, _NOTHING)
            return
        asked = Request(
            parts=self._parts,
            method="GET",
            path=path,
            parameters=parameters,
            query=query,
            body=b"",
            token="",
            address=address,
            peer=head.peer,
            caller=STRANGER,
            needs=route.needs,
        )

        async def talk(socket: Socket) -> None:
            await self._talk(asked, headers, route, socket, trail, is_secure=head.is_secure)

        await converse(receive, send, talk, self._closing)

    def _refusal(self, path: str, headers: Mapping[str, str]) -> Reply | None:
        if refusal := self._guard.refusal("GET", headers):
            return refusal
        # The guard has compared it with our own name.
        return _NO_ORIGIN if _is_of_page(path) and not headers.get("origin") else None

    async def _talk(
        self,
        asked: Request,
        headers: Mapping[str, str],
        route: Talk,
        socket: Socket,
        trail: Trail,
        *,
        is_secure: bool,
    ) -> None:
        try:
            shown = await socket.handshake(asked.query)
            if _is_of_page(asked.path):
                asked, lasts = self._pages.speaking(asked, headers, shown, is_secure=is_secure)
            else:
                asked, lasts = await self._speaking(asked, headers, shown), _always
            trail.known(asked.caller.token.accessor)
            await trail.acted()
            await _while_known(asked, lasts, route.handler(asked, socket))
        except _CutOff:
            raise
        except Denied as error:
            trail.ended(403, str(error))
            raise

    async def _speaking(self, asked: Request, headers: Mapping[str, str], shown: str) -> Request:
        secret = shown or heads.token(headers, asked.path)
        caller = await self._parts.tokens.authenticate(
            secret, asked.address, operator=asked.operator
        )
        return msgspec.structs.replace(asked, token=secret, caller=caller)


class _CutOff(Denied):
    """Who talks may no longer; nobody was refused, and the audit has what was begun."""


def _is_of_page(path: str) -> bool:
    return path.startswith(f"{OF_PAGES}/")


def _always() -> bool:
    return True


async def _while_known(asked: Request, lasts: Callable[[], bool], talking: Awaitable[None]) -> None:
    """Talk until that has ended. Raises `_CutOff` when it was the speaker's right to speak that has."""
    reader = Reader(asked)
    is_over = False

    async def watch(scope: trio.CancelScope) -> None:
        nonlocal is_over
        while lasts() and reader.is_known():  # noqa: ASYNC110  # as for other readers
            await trio.sleep(RECHECK)
        is_over = True
        scope.cancel()

    fault: Exception | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch, nursery.cancel_scope)
        try:
            await talking
        except Exception as error:  # raised again, without the nursery around it
            fault = error
        nursery.cancel_scope.cancel()
    if fault is not None:
        raise fault
    if is_over:
        raise _CutOff
