"""The listener: one task per connection, one per request, cancelled when the client goes away.

Requests of the API pass from the server straight to the route table: of the framework they use
the connection, the request and the response, but neither its routing nor its sessions.
"""

import logging
import re
import secrets
import socket
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import cast
from urllib.parse import quote, unquote

import msgspec
import trio
from hypercorn.config import Config as ServerConfig
from hypercorn.typing import (
    ASGIReceiveCallable,
    ASGISendCallable,
    ASGISendEvent,
    Scope,
    WebsocketScope,
)
from hypercorn.utils import wrap_app
from quart import Request as FrameworkRequest
from quart import Response
from quart_trio import QuartTrio
from werkzeug.exceptions import HTTPException, RequestEntityTooLarge

from daemon.acl.audit import Trail
from daemon.acl.check import ANYONE, Asks, Caller, Needs
from daemon.acl.tokens import STRANGER
from daemon.parts import Parts
from daemon.web import blocking, head
from daemon.web.connections import Listener, serve
from daemon.web.crowd import Crowd
from daemon.web.guard import ANY_NAME, Guard, Proxies
from daemon.web.kept import Kept
from daemon.web.parameters import BadParameter, Query
from daemon.web.reply import Reply, of_error, response, said, text
from daemon.web.request import Endpoint, Read, Request, Route, Stream, Talk, Write
from daemon.web.router import Router
from daemon.web.secrets_side import SecretsSide
from daemon.web.socket import MAX_FRAME, NO_UPGRADE
from daemon.web.talks import Talks
from daemon.web.visits import PLACE as FRONT
from daemon.web.visits import Page, Pages
from storage import origin
from storage.errors import Denied, Malformed, NotFound, Refused, StewardError, UnknownToken
from storage.records.numbers import whole

log = logging.getLogger("steward.web")

MAX_BODY = 16 * 1024 * 1024  # bytes; the largest job seen in the wild has 2 MiB
MAX_HEAD = 32 * 1024  # bytes of request line and headers
BODY_TIMEOUT = 60  # seconds for a body to arrive
KEEP_ALIVE = 120  # seconds that an idle connection, or one that dawdles over its headers, lives
CLOSING = 2  # seconds that answers under way get when the daemon ends

REQUEST_ID = "X-Request-Id"  # what a request is called in the log, by its sender or by us
_AN_ID = re.compile(r"[\w.:=+/@-]{1,128}", re.ASCII)

_UNESCAPED = "/$&+,:;=@~"  # in a path, as the peer writes it
_UNKNOWN_REGION = Reply(
    body=b"No path to region", status=500, content_type="text/plain; charset=utf-8"
)


class Door(QuartTrio):
    """The framework's application, answering from our route table."""

    def __init__(
        self,
        parts: Parts,
        routes: Iterable[Route],
        endpoints: Iterable[Endpoint],
        closing: trio.Event,
        pages: Iterable[Page] = (),
    ) -> None:
        super().__init__("steward", static_folder=None)
        self.config["MAX_CONTENT_LENGTH"] = MAX_BODY
        self.config["BODY_TIMEOUT"] = BODY_TIMEOUT
        self._parts, self._closing = parts, closing
        self._router: Router[Route] = Router(routes)
        self._pages = Pages(parts, pages, self._asked)
        self._secrets_side = SecretsSide(parts, endpoints)
        self._guard = Guard(parts.config, socket.gethostname())
        self._proxies = Proxies(parts.config.trusted_proxies)
        self._random = secrets.SystemRandom().random
        self._kept = Kept()
        self._talks = Talks(parts, self._router, self._pages, self._guard, closing)
        self._crowd = Crowd()

    async def handle_request(self, request: FrameworkRequest) -> Response:
        """Answer one request, under the id that its sender or else we give it."""
        headers = head.headers(request.scope)
        request_id = self._id_of(headers)
        with origin.serving(request_id):
            answer = await self._handled(request, headers)
        answer.headers[REQUEST_ID] = request_id
        return answer

    def _id_of(self, headers: Mapping[str, str]) -> str:
        given = headers.get(REQUEST_ID.lower(), "")
        return given if _AN_ID.fullmatch(given) else next(self._parts.ids)

    async def _handled(self, request: FrameworkRequest, headers: Mapping[str, str]) -> Response:
        """Answer one request; the last resort turns a defect into a plain 500."""
        path, asked_for = head.path(request), request.query_string.decode("latin-1")
        address = self._address(request.scope, headers)
        trail = self._parts.audit.begin(request.method, path, asked_for, address)
        pretty = gzipped = False
        try:
            # What the secrets side says is short, and has secrets in it.
            gzipped = "gzip" in headers.get("accept-encoding", "") and not SecretsSide.serves(path)
            query = Query(asked_for, namespace=head.namespace(headers, path))
            pretty = query.text("pretty", "0") != "0"
            asked = self._request(request, headers, path=path, query=query, address=address)
            with trail.watching():
                reply = await self._reply(request, asked, headers, trail)
        except StewardError as error:
            reply = of_error(error)
        except RequestEntityTooLarge:
            reply = text(f"the body is larger than {MAX_BODY} bytes", 413)
        except HTTPException as error:  # the framework's: a body that came too late, and the like
            reply = text(error.description or error.name, error.code or 400)
        except Exception:
            log.exception("request failed: %s %s", request.method, request.path)
            reply = text("internal error: see the daemon's log", 500)
        trail.ended(reply.status, said(reply))
        log.debug("%s %s: %d", request.method, path, reply.status)
        return response(reply, pretty=pretty, gzipped=gzipped)

    async def _reply(
        self,
        request: FrameworkRequest,
        asked: Request,
        headers: Mapping[str, str],
        trail: Trail,
    ) -> Reply:
        if refusal := self._guard.refusal(request.method, headers):
            return refusal
        # The server closes a connection whose request was not read.
        asked = msgspec.structs.replace(asked, body=cast(bytes, await request.get_data()))
        path, query = asked.path, asked.query
        if self._secrets_side.serves(path) and path == head.cleaned(path):
            return await self._secrets_side.answer(asked, headers, trail)
        if self._pages.has(path):
            is_secure = request.scope["scheme"] == "https"
            return await self._pages.answer(asked, headers, trail, is_secure=is_secure)
        routes, parameters = self._router.find(path) if "//" not in path else ([], {})
        if not routes:
            return self._elsewhere(path, request)
        route = _for_method(routes, request.method)
        if route is None:
            return text("Invalid method", 405)
        if isinstance(route, Talk):
            return text(NO_UPGRADE, 500)
        if "GET" in route.methods:
            _check_everywhere(query)
        if _is_for_another(query, route, self._parts.config.region):
            return _UNKNOWN_REGION
        asked = msgspec.structs.replace(asked, parameters=parameters, needs=route.needs)
        return await self._served(route, asked, trail)

    async def _served(self, route: Read | Write | Stream, asked: Request, trail: Trail) -> Reply:
        """Answer a request for which there is a route. Raises `Denied`, and what its handler raises."""
        trail.ask(asked.namespace, asked.token)
        caller = await self._caller(route.needs, asked)
        trail.known(caller.token.accessor)
        return await self._allowed(route, msgspec.structs.replace(asked, caller=caller), trail)

    async def _asked(self, asked: Request, trail: Trail) -> Reply:
        """Answer what a page asks in the name of its visitor. Raises as the routes do."""
        if SecretsSide.serves(asked.path):
            return await self._secrets_side.answer(asked, {}, trail)
        routes, parameters = self._router.find(asked.path)
        route = _for_method(routes, asked.method)
        if route is None or isinstance(route, Talk):
            raise NotFound(f"nothing answers {asked.method} {asked.path}")
        parameters = {name: unquote(value) for name, value in parameters.items()}
        asked = msgspec.structs.replace(asked, parameters=parameters, needs=route.needs)
        return await self._allowed(route, asked, trail)

    async def _allowed(self, route: Read | Write | Stream, asked: Request, trail: Trail) -> Reply:
        """Have a route answer a caller who is known, if he may. Raises `Denied`, and what it raises."""
        job_id = asked.parameters.get("job_id", "")
        if not asked.caller.has(route.needs, asked.namespace, job_id):
            raise Denied
        if isinstance(route, Read):
            return await blocking.answer(
                route,
                asked,
                kept=self._kept,
                crowd=self._crowd,
                closing=self._closing,
                random=self._random,
            )
        reply = await route.handler(asked)
        if reply.stream is not None:
            return msgspec.structs.replace(reply, stream=self._crowd.hold(reply.stream))
        if isinstance(route, Write) and route.acts:
            await trail.acted()
        return reply

    async def talk(
        self, scope: WebsocketScope, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> None:
        """Let a WebSocket through to its route, unless something speaks against it."""
        headers = head.headers(scope)
        with origin.serving(self._id_of(headers)):
            await self._talks.answer(scope, headers, self._address(scope, headers), receive, send)

    def _request(
        self,
        request: FrameworkRequest,
        headers: Mapping[str, str],
        *,
        path: str,
        query: Query,
        address: str,
    ) -> Request:
        """Return a request, not read yet, of somebody who is not known yet."""
        return Request(
            parts=self._parts,
            method=request.method,
            path=path,
            parameters={},
            query=query,
            body=b"",
            token=head.token(headers, path),
            address=address,
            peer=head.peer(request.scope),
            accept=headers.get("accept", ""),
            caller=STRANGER,
            needs=ANYONE,
        )

    def _address(self, scope: Scope, headers: Mapping[str, str]) -> str:
        """Return the address from which the client speaks."""
        client = cast("tuple[str, int] | None", scope.get("client"))
        return self._proxies.client(client[0] if client else "", headers.get("x-forwarded-for", ""))

    async def _caller(self, needs: Needs, asked: Request) -> Caller:
        """Return who asks. Raises `UnknownToken`; a few endpoints also say why."""
        tokens = self._parts.tokens
        if needs.asks is Asks.NOTHING:
            return tokens.resolve("")
        try:
            return await tokens.authenticate(asked.token, asked.address, operator=asked.operator)
        except UnknownToken as error:
            if needs.tells_why is None or error.reason == str(error):
                raise
            raise Refused(f"{needs.tells_why}{error.reason}") from None

    def _elsewhere(self, path: str, request: FrameworkRequest) -> Reply:
        """Answer for a path that nothing serves: show the way where there is one."""
        cleaned = head.cleaned(path)
        if path == "/" and (self._pages.has(FRONT) or self._router.find(FRONT)[0]):
            cleaned = FRONT
        elif self._pages.has(f"{cleaned}/") or self._router.is_folder(cleaned):
            cleaned += "/"
        if cleaned == path:
            return Reply(status=404)
        query = request.query_string.decode("latin-1")
        escaped = quote(cleaned, safe=_UNESCAPED)  # what stands in a header must fit there
        target = f"{escaped}?{query}" if query else escaped
        body = f'<a href="{_escaped(target)}">Temporary Redirect</a>.\n\n'
        return Reply(
            body=body.encode(),
            status=307,
            content_type="text/html; charset=utf-8",
            headers={"Location": target, "Cache-Control": "no-store"},
        )


def _is_for_another(query: Query, route: Route, region: str) -> bool:
    """Tell whether a request names a region that is not this daemon's, on a route that minds."""
    if isinstance(route, Write) and route.in_any_region:
        return False
    return query.text("region", region) != region


def _escaped(target: str) -> str:
    return (
        target.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&#34;")
    )


def _for_method(routes: list[Route], method: str) -> Route | None:
    for route in routes:
        if method in route.methods or (isinstance(route, Read) and route.any_method):
            return route
    return None


def _check_everywhere(query: Query) -> None:
    """Refuse what the peer refuses on every read, whether it means anything there or not."""
    try:
        query.flag("stale")
    except BadParameter:
        raise Malformed("Expect `true` or `false` for `stale` query string parameter") from None
    per_page = query.text("per_page")
    sign_free = per_page.removeprefix("-").removeprefix("+")
    is_number = sign_free.isascii() and sign_free.isdecimal()
    if per_page and not (is_number and -(2**31) <= whole(per_page) < 2**31):
        raise Malformed("Expect a number for `per_page` query string parameter")


class _Shielded:
    """The application as the server sees it, ending its answers without being interrupted.

    After `Connection: close` the server closes the socket from inside the application's last
    `send`. The framework cancels itself at that moment, and the socket would stay open for ever.
    """

    def __init__(self, app: Door) -> None:
        self._app = app

    async def __call__(
        self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> None:
        if scope["type"] == "websocket":
            await self._app.talk(scope, receive, send)
            return

        async def shielded(message: ASGISendEvent) -> None:
            if message.get("more_body", True):  # a head says nothing of it
                await send(message)
                return
            with trio.CancelScope(shield=True):
                await send(message)

        await self._app(scope, receive, shielded)


def in_public(parts: Parts) -> Parts:
    """Return the same parts for what anybody may read, under whatever name they call us."""
    config = msgspec.structs.replace(parts.config, host_names=[ANY_NAME])
    return msgspec.structs.replace(parts, config=config)


@asynccontextmanager
async def open_web(
    parts: Parts,
    routes: Iterable[Route],
    endpoints: Iterable[Endpoint],
    listeners: Sequence[Listener],
    pages: Iterable[Page] = (),
) -> AsyncIterator[None]:
    """Answer what comes in at the listeners from these tables.

    When the block ends, waiting readers get their answer at once and other answers two seconds.
    """
    settings = ServerConfig()
    settings.errorlog = logging.getLogger("steward.web.server")
    settings.errorlog.setLevel(logging.WARNING)
    settings.include_server_header = False
    settings.h11_max_incomplete_size = MAX_HEAD
    settings.keep_alive_timeout = KEEP_ALIVE
    settings.keep_alive_max_requests = 2**31
    settings.graceful_timeout = CLOSING
    settings.websocket_max_message_size = MAX_FRAME
    closing = trio.Event()
    app = wrap_app(_Shielded(Door(parts, routes, endpoints, closing, pages)), MAX_BODY, "asgi")
    async with trio.open_nursery() as nursery:
        await nursery.start(serve, app, settings, listeners, closing)
        try:
            yield
        finally:
            closing.set()
            parts.store.wake_all()
