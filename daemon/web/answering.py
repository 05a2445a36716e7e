"""Requests answered from the tables of routes, the same whichever door they came through.

Here is the order of the checks, and the only place that has them: who may knock, the body, where it
leads, who asks, and whether he may. Nothing here knows the framework.
"""

import logging
import re
import secrets
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from urllib.parse import quote, unquote

import msgspec
import trio

from daemon.acl.audit import Trail
from daemon.acl.check import ANYONE, Asks, Caller, Needs
from daemon.acl.tokens import STRANGER
from daemon.parts import Parts
from daemon.web import blocking
from daemon.web import head as heads
from daemon.web.admission import Share, most_connections
from daemon.web.crowd import Crowd
from daemon.web.guard import Guard, Proxies
from daemon.web.head import Head
from daemon.web.kept import Kept
from daemon.web.parameters import BadParameter, Query
from daemon.web.reply import Finished, Reply, finished, of_error, said, text, with_remarks
from daemon.web.request import Endpoint, Read, Request, Route, Stream, Talk, Write
from daemon.web.router import Router
from daemon.web.secrets_side import SecretsSide
from daemon.web.socket import NO_UPGRADE
from daemon.web.visits import PLACE as FRONT
from daemon.web.visits import Page, Pages
from storage import origin
from storage.errors import (
    Denied,
    Malformed,
    NotFound,
    Refused,
    StewardError,
    StorageError,
    UnknownToken,
)
from storage.records.numbers import whole

log = logging.getLogger("steward.web")

REQUEST_ID = "X-Request-Id"  # what a request is called in the log, by its sender or by us
_AN_ID = re.compile(r"[\w.:=+/@-]{1,128}", re.ASCII)

_MAY_WAIT = re.compile(r"index|filter|%")
_LONG = 64 * 1024  # bytes that are compressed, or made readable, in a millisecond
_UNESCAPED = "/$&+,:;=@~"  # in a path, as the peer writes it
_UNKNOWN_REGION = Reply(
    body=b"No path to region", status=500, content_type="text/plain; charset=utf-8"
)

Body = Callable[[], Awaitable[bytes]]
Doorkeeper = Callable[[Request], Reply | None]


class Unread(Exception):
    """The body of a request cannot be had; `reply` says why."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply)
        self.reply = reply


class Way(msgspec.Struct, frozen=True):
    """Where a request leads: its path with percent signs resolved, and what serves it there.

    `route` is the one for its method; pages and the secrets side have tables of their own.
    """

    path: str
    is_secret: bool = False  # of the secrets side, whose answers are short and have secrets in them
    routes: Sequence[Route] = ()
    route: Route | None = None
    parameters: Mapping[str, str] = {}


class Answering:
    """What answers requests from the tables of routes, whichever door they came through."""

    def __init__(
        self,
        parts: Parts,
        routes: Iterable[Route],
        endpoints: Iterable[Endpoint],
        closing: trio.Event,
        pages: Iterable[Page] = (),
        doorkeeper: Doorkeeper | None = None,
    ) -> None:
        """`doorkeeper` may refuse a request whose body has not been read, after the guard."""
        self._parts, self._closing = parts, closing
        self._doorkeeper = doorkeeper
        self.router: Router[Route] = Router(routes)
        self.pages = Pages(parts, pages, self._asked)
        self._secrets_side = SecretsSide(parts, endpoints)
        self.guard = Guard(parts.config, socket.gethostname())
        self._proxies = Proxies(parts.config.trusted_proxies)
        self._random = secrets.SystemRandom().random
        self._kept = Kept()
        self._crowd = Crowd(most_connections(Share.PORT))

    def way(self, head: Head) -> Way:
        """Return where a request leads."""
        path = heads.path(head.target)
        if SecretsSide.serves(path):
            return Way(path, is_secret=True)
        if "//" in path:
            return Way(path)
        routes, parameters = self.router.find(path)
        return Way(path, False, routes, _for_method(routes, head.method), parameters)

    async def answer(self, head: Head, body: Body, way: Way | None = None) -> Finished:
        """Answer one request, under the id that its sender or else we give it.

        `body` gives all of it, or raises `Unread`; it is not asked for when the head is refused.
        `way` is where it leads, if that has been found out.
        """
        request_id = self.id_of(head.headers)
        with origin.serving(request_id):
            answer = await self._answered(head, body, way or self.way(head))
        answer.headers[REQUEST_ID] = request_id
        return answer

    def close(self) -> None:
        """End the answers that have no end of their own. `closing` tells the others."""
        self._crowd.close()

    def is_hot(self, head: Head, way: Way) -> bool:
        """Tell whether a request leads to a route for small requests, answered in one piece."""
        route = way.route
        if isinstance(route, Read):
            return head.method == "GET" and not route.long
        if isinstance(route, Write):
            return route.hot
        try:
            return way.is_secret and self._secrets_side.is_hot(head.method, way.path)
        except StorageError:  # whoever answers says so
            return False

    def may_wait(self, head: Head) -> bool:
        """Tell whether an answer may take its time: of a write, and of a read that waits or filters.

        In whatever way that is written.
        """
        return head.method != "GET" or _MAY_WAIT.search(head.query) is not None

    def id_of(self, headers: Mapping[str, str]) -> str:
        """Return what a request is called in the log."""
        given = headers.get(REQUEST_ID.lower(), "")
        return given if _AN_ID.fullmatch(given) else next(self._parts.ids)

    async def _answered(self, head: Head, body: Body, way: Way) -> Finished:
        """Answer one request; the last resort turns a defect into a plain 500."""
        path, address = way.path, self.address(head)
        trail = self._parts.audit.begin(head.method, path, head.query, address)
        pretty = gzipped = False
        try:
            gzipped = "gzip" in head.headers.get("accept-encoding", "") and not way.is_secret
            query = Query(head.query, namespace=heads.namespace(head.headers, path))
            pretty = query.text("pretty", "0") != "0"
            with trail.watching():
                reply = self._refusal(head, way, query, address)
                if reply is None:
                    # The server closes a connection whose request was not read.
                    asked = self._request(head, way, query, address, await body())
                    reply = await self._reply(head, asked, way, trail)
        except StewardError as error:
            reply = of_error(error)
        except Unread as error:
            reply = error.reply
        except Exception:
            log.exception("request failed: %s %s", head.method, path)
            reply = text("internal error: see the daemon's log", 500)
        trail.ended(reply.status, said(reply) if reply.status >= 400 else "")
        log.debug("%s %s: %d", head.method, path, reply.status)
        made = partial(finished, reply, pretty=pretty, gzipped=gzipped)
        if isinstance(reply.body, bytes) and len(reply.body) > _LONG and (pretty or gzipped):
            return await trio.to_thread.run_sync(made)
        return made()

    def _refusal(self, head: Head, way: Way, query: Query, address: str) -> Reply | None:
        """Return what refuses a request before its body is read."""
        refusal = self.guard.refusal(head.method, head.headers)
        if refusal is None and self._doorkeeper is not None:
            refusal = self._doorkeeper(self._request(head, way, query, address, b""))
        return refusal

    async def _reply(self, head: Head, asked: Request, way: Way, trail: Trail) -> Reply:
        route = way.route
        if route is None:
            return await self._without_route(head, asked, way, trail)
        if isinstance(route, Talk):
            return text(NO_UPGRADE, 500)
        if "GET" in route.methods:
            _check_everywhere(asked.query)
        if _is_for_another(asked.query, route, self._parts.config.region):
            return _UNKNOWN_REGION
        return await self._served(route, asked, trail)

    async def _without_route(self, head: Head, asked: Request, way: Way, trail: Trail) -> Reply:
        """Answer what the other tables may have, or nothing has."""
        if way.is_secret and way.path == heads.cleaned(way.path):
            return await self._secrets_side.answer(asked, head.headers, trail)
        if self.pages.has(way.path):
            return await self.pages.answer(asked, head.headers, trail, is_secure=head.is_secure)
        if way.routes:
            return text("Invalid method", 405)
        return self._elsewhere(way.path, head.query)

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
        routes, parameters = self.router.find(asked.path)
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
            reply = await blocking.answer(
                route,
                asked,
                kept=self._kept,
                crowd=self._crowd,
                closing=self._closing,
                random=self._random,
            )
            if route.shows_secrets and self._parts.config.audit_reads:
                await trail.acted()
            reply = with_remarks(reply, asked.remarks())
            if reply.stream is not None:
                return msgspec.structs.replace(reply, stream=self._crowd.hold(reply.stream))
            return reply
        reply = await route.handler(asked)
        if reply.stream is not None:
            held = self._crowd.hold(reply.stream, is_endless=reply.is_endless)
            return msgspec.structs.replace(reply, stream=held)
        if isinstance(route, Write) and route.acts:
            await trail.acted()
        return with_remarks(reply, asked.remarks())

    def _request(self, head: Head, way: Way, query: Query, address: str, body: bytes) -> Request:
        """Return a request of somebody who is not known yet."""
        return Request(
            parts=self._parts,
            method=head.method,
            path=way.path,
            parameters=way.parameters,
            query=query,
            body=body,
            token=heads.token(head.headers, way.path),
            address=address,
            peer=head.peer,
            accept=head.headers.get("accept", ""),
            caller=STRANGER,
            needs=way.route.needs if way.route else ANYONE,
        )

    def address(self, head: Head) -> str:
        """Return the address from which the client speaks."""
        return self._proxies.client(head.client, head.headers.get("x-forwarded-for", ""))

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

    def _elsewhere(self, path: str, query: str) -> Reply:
        """Answer for a path that nothing serves: show the way where there is one."""
        cleaned = heads.cleaned(path)
        if path == "/" and (self.pages.has(FRONT) or self.router.find(FRONT)[0]):
            cleaned = FRONT
        elif self.pages.has(f"{cleaned}/") or self.router.is_folder(cleaned):
            cleaned += "/"
        if cleaned == path:
            return Reply(status=404)
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
    return (query.text("region") or region) != region


def _escaped(target: str) -> str:
    return (
        target.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&#34;")
    )


def _for_method(routes: Sequence[Route], method: str) -> Route | None:
    for route in routes:
        if method in route.methods or (isinstance(route, Read) and route.any_method):
            return route
    return None


def _check_everywhere(query: Query) -> None:
    """Refuse what the peer refuses on every read, whether it means anything there or not."""
    if not query:
        return
    try:
        query.flag("stale")
    except BadParameter:
        raise Malformed("Expect `true` or `false` for `stale` query string parameter") from None
    per_page = query.text("per_page")
    sign_free = per_page.removeprefix("-").removeprefix("+")
    is_number = sign_free.isascii() and sign_free.isdecimal()
    if per_page and not (is_number and -(2**31) <= whole(per_page) < 2**31):
        raise Malformed("Expect a number for `per_page` query string parameter")
