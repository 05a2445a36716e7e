"""WebSockets for programs and pages: authentication and routing.

A program sends its token. A page has no token; its browser sends the session cookie. But the
browser also sends this cookie for other pages on the host, even for a task's service on another
port. So a page must use `/ui/v1/…`, where the cookie is valid, and send an `Origin` header. Its
first message must contain a secret that only pages of the session know. The connection ends when
the token is no longer valid. The connection of a page also ends when the user signs out.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus

import msgspec
import trio
from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable

from daemon.acl.audit import AuditScope
from daemon.acl.tokens import STRANGER
from daemon.app.context import AppContext
from daemon.web import request_head as heads
from daemon.web.fairness import Fairness, RequestAccount, charge, identify
from daemon.web.lazy import import_handler
from daemon.web.parameters import QueryParameters
from daemon.web.reply import HandlerReply, message_reply, of_error, text
from daemon.web.request import Request, Route, WebSocketRoute
from daemon.web.request_guard import RequestGuard
from daemon.web.request_head import RequestHead
from daemon.web.router import Router
from daemon.web.stream_auth import RECHECK, StreamSubscriber
from daemon.web.ui_session import UiPages
from daemon.web.websocket import WebSocketChannel, reject_handshake, run_websocket
from storage import request_context
from storage.account import charged_to, counted
from storage.errors import Denied, Malformed

OF_PAGES = "/ui"  # prefix of the path for connections of pages

_NO_ORIGIN = text("pages need an Origin header: this request has none", 403)
_NOTHING = text("there is no WebSocket route for this path", 404)


class WebSockets:
    """All WebSockets of one daemon, until it is `closing`."""

    def __init__(
        self,
        parts: AppContext,
        router: Router[Route],
        pages: UiPages,
        guard: RequestGuard,
        closing: trio.Event,
        fairness: Fairness,
    ) -> None:
        self._parts, self._router, self._pages = parts, router, pages
        self._guard, self._closing, self._fairness = guard, closing, fairness

    async def answer(
        self,
        head: RequestHead,
        address: str,
        client: str,
        receive: ASGIReceiveCallable,
        send: ASGISendCallable,
    ) -> None:
        """Accept a WebSocket for its route, unless a check rejects it.

        The CPU time of the WebSocket is charged to `client`, as for requests (`fairness.py`).
        """
        path, headers = heads.path(head.target), head.headers
        audit_scope = self._parts.audit.open_scope("GET", path, head.query, address)
        try:
            refusal = self._refusal(path, headers)
            query = QueryParameters(head.query, namespace=heads.namespace(headers, path))
        except Malformed as error:
            refusal = of_error(error)
        if refusal:
            audit_scope.ended(refusal.status, message_reply(refusal))
            await reject_handshake(send, refusal)
            return
        routes, parameters = self._router.find(path.removeprefix(OF_PAGES))
        route = next((route for route in routes if isinstance(route, WebSocketRoute)), None)
        if route is None:
            await reject_handshake(send, _NOTHING)
            return
        request = Request(
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

        account = RequestAccount(self._fairness, client)

        async def talk(socket: WebSocketChannel) -> None:
            try:
                with charged_to(account):
                    await counted(
                        account,
                        self._serve(
                            request, headers, route, socket, audit_scope, is_secure=head.is_secure
                        ),
                    )
            finally:
                account.settle()

        await run_websocket(receive, send, talk, self._closing)

    def _refusal(self, path: str, headers: Mapping[str, str]) -> HandlerReply | None:
        if refusal := self._guard.refusal("GET", headers):
            return refusal
        # The guard has compared `Origin` with the daemon's names.
        return _NO_ORIGIN if _is_of_page(path) and not headers.get("origin") else None

    async def _serve(
        self,
        request: Request,
        headers: Mapping[str, str],
        route: WebSocketRoute,
        socket: WebSocketChannel,
        audit_scope: AuditScope,
        *,
        is_secure: bool,
    ) -> None:
        try:
            handshake_token = await socket.handshake(request.query)
            if _is_of_page(request.path):
                request, lasts = await self._pages.speaking(
                    request, headers, handshake_token, is_secure=is_secure
                )
            else:
                request, lasts = await self._speaking(request, headers, handshake_token), _always
            audit_scope.known(request.caller.token.accessor)
            identify(request.caller.token.accessor)
            if request.query.text("command"):
                # imported late: few requests start a session
                from daemon.web.exec_masks import masked_query

                audit_scope.set_query(await masked_query(request))
            await audit_scope.acted()
            await import_handler(route.handler)
            with _traced(request, headers.get("traceparent", ""), route):
                await _while_allowed(request, lasts, route.handler(request, socket))
        except _CutOff:
            raise
        except Denied as error:
            audit_scope.ended(403, str(error))
            raise

    async def _speaking(
        self, request: Request, headers: Mapping[str, str], handshake_token: str
    ) -> Request:
        secret = handshake_token or heads.token(headers, request.path)
        caller = await self._parts.tokens.authenticate(
            secret, request.address, client_key=request.client_key, operator=request.operator
        )
        return msgspec.structs.replace(request, token=secret, caller=caller)


@contextmanager
def _traced(request: Request, parent: str, route: WebSocketRoute) -> Iterator[None]:
    """Record a session as a span if the client's trace is sampled.

    No span is recorded if the caller lacks the permission for the session.
    """
    recorder = request_context.TRACING.recorder
    if recorder is None:
        yield
        return
    request_id, began = next(request.parts.ids), recorder.now()
    origin = recorder.begin_request(request_id, "GET", parent)
    try:
        with request_context.request_scope(origin):
            yield
    finally:
        if request.passed:  # otherwise no permission was found, so there is no span
            attributes: request_context.Attributes = {
                "http.request.method": "GET",
                "http.route": route.path,
                "http.response.status_code": HTTPStatus.SWITCHING_PROTOCOLS,
                "steward.request_id": request_id,
            }
            recorder.end_request(origin, parent, f"GET {route.path}", began, attributes)


class _CutOff(Denied):
    """The caller's access ended during the session.

    The audit log records the start of the session, but no rejection when the session ends.
    """


def _is_of_page(path: str) -> bool:
    return path.startswith(f"{OF_PAGES}/")


def _always() -> bool:
    return True


async def _while_allowed(
    request: Request, lasts: Callable[[], bool], talking: Awaitable[None]
) -> None:
    """Run the session `talking` until it ends, or until the caller loses access.

    `lasts` returns whether the session of a page is still valid. Raises `_CutOff` if the caller
    loses access.
    """
    reader = StreamSubscriber(request)
    is_over = False

    async def watch(scope: trio.CancelScope) -> None:
        nonlocal is_over
        while lasts() and await reader.is_allowed():
            charge()
            await trio.sleep(RECHECK)
        is_over = True
        scope.cancel()

    fault: Exception | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch, nursery.cancel_scope)
        try:
            await talking
        except Exception as error:  # raised again, without the nursery's group
            fault = error
        nursery.cancel_scope.cancel()
    if fault is not None:
        raise fault
    if is_over:
        raise _CutOff
