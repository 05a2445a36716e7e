"""Dispatch of requests to the tables of routes, for the HTTP server and the fast path.

This module defines the order of the checks: origin, body, route, authentication, authorization. A
long body is read last. This module does not know the framework.
"""

import logging
import re
import secrets
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from urllib.parse import quote, unquote

import msgspec
import trio

from daemon.acl.audit import AuditScope
from daemon.acl.check import ANYONE, Caller, RequiredCapability, Requirement
from daemon.acl.tokens import STRANGER
from daemon.app.context import AppContext
from daemon.app.launcher_patience import BoundedWait
from daemon.web import blocking
from daemon.web import request_head as heads
from daemon.web.admission import Share, most_connections
from daemon.web.fairness import Fairness, RequestAccount, counting, identify
from daemon.web.lazy import import_handler
from daemon.web.parameters import InvalidParameter, QueryParameters
from daemon.web.reply import (
    HandlerReply,
    WireResponse,
    message_reply,
    not_allowed,
    of_error,
    text,
    to_wire,
    with_remarks,
)
from daemon.web.request import (
    SHORT_BODY,
    Body,
    Endpoint,
    ReadRoute,
    Request,
    Route,
    StreamRoute,
    WebSocketRoute,
    WriteRoute,
)
from daemon.web.request_guard import RequestGuard, TrustedProxies
from daemon.web.request_head import RequestHead
from daemon.web.request_timers import RequestTimer
from daemon.web.response_cache import ResponseCache
from daemon.web.router import BEFORE_JOB, Router, is_own
from daemon.web.stream_limit import StreamLimit
from daemon.web.ui_session import FAULT, UiPage, UiPages
from daemon.web.ui_session import HEADERS as PAGE_HEADERS
from daemon.web.ui_session import PLACE as FRONT
from daemon.web.vault_api import VaultApi
from storage import request_context
from storage.account import charged_to, counted
from storage.errors import (
    Denied,
    Malformed,
    NotFound,
    Refused,
    StewardError,
    StorageError,
    TooLarge,
    UnknownToken,
)
from storage.queries import job_status
from storage.read_pool import ReadSnapshot
from storage.records.acl import ANONYMOUS
from storage.records.numbers import parse_integer

log = logging.getLogger("steward.web")

_ASSISTANT = "mcp"  # the query parameter `via` of `steward mcp`
# Other methods share one name in spans, because a client can send any text as method.
_METHODS = frozenset(
    {"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "LIST", "TRACE", "CONNECT"}
)
_OTHER_METHOD = "_OTHER"  # the value of OpenTelemetry's conventions
_WITHOUT_ROUTE = frozenset({404, 405})
REQUEST_ID = "X-Request-Id"  # the ID of a request in the log, from its client or generated
_NO_SPAN = nullcontext()
_AN_ID = re.compile(r"[\w.:=+/@-]{1,128}", re.ASCII)

_MAY_WAIT = re.compile(r"index|filter|%")
_LONG = 64 * 1024  # bytes that are compressed or indented in a millisecond
_UNESCAPED = "/$&+,:;=@~"  # characters that Nomad does not escape in a path
_UNKNOWN_REGION = HandlerReply(
    body=b"No path to region", status=500, content_type="text/plain; charset=utf-8"
)
# Nomad's text for a request without an upgrade
_NO_UPGRADE = "websocket connection not found in context"

Doorkeeper = Callable[[Request], HandlerReply | None]


class BodyUnavailable(Exception):
    """The body of a request cannot be read; `reply` has the reason."""

    def __init__(self, reply: HandlerReply) -> None:
        super().__init__(reply)
        self.reply = reply


class RouteMatch(msgspec.Struct, frozen=True):
    """The target of a request: its decoded path, and the route.

    `route` is the route for the method of the request. It is None for pages and the Vault API,
    which have their own tables.
    """

    path: str
    is_secret: bool = False  # true for the Vault API, whose responses are short and contain secrets
    routes: Sequence[Route] = ()
    route: Route | None = None
    parameters: Mapping[str, str] = {}


class _RequestSpan:
    """The span of one request, up to the head of its response."""

    def __init__(
        self, recorder: request_context.SpanRecorder, head: RequestHead, request_id: str
    ) -> None:
        self._recorder, self._id = recorder, request_id
        self._method = head.method if head.method in _METHODS else _OTHER_METHOD
        self._parent = head.headers.get("traceparent", "")
        self._began = recorder.now()
        self.permission = request_context.Permission()
        self.origin = recorder.begin_request(request_id, head.method, self._parent)

    def end(self, match: RouteMatch, answer: WireResponse) -> None:
        """Record the span, and add the trace ID to the response.

        No span is recorded for a request without a route or without a permission.
        """
        trace = self.origin.partition(" ")[2]
        if not trace:
            return
        answer.headers["traceparent"] = trace
        if match.route is None and answer.status in _WITHOUT_ROUTE:
            return
        if not self.permission.is_shown:  # clients without permission must not fill the span queue
            return
        # Paths of the Vault API may hold secrets.
        route = (
            match.route.path if match.route else "the Vault API" if match.is_secret else "a page"
        )
        attributes: request_context.Attributes = {
            "http.request.method": self._method,
            "http.route": route,
            "http.response.status_code": answer.status,
            "steward.request_id": self._id,
        }
        name = f"{self._method} {route}"
        self._recorder.end_request(self.origin, self._parent, name, self._began, attributes)


class Dispatcher:
    """The dispatcher of requests to the tables of routes."""

    def __init__(
        self,
        parts: AppContext,
        routes: Iterable[Route],
        endpoints: Iterable[Endpoint],
        closing: trio.Event,
        pages: Iterable[UiPage] = (),
        authenticate_wrapper: Doorkeeper | None = None,
    ) -> None:
        """Create the dispatcher of these routes, endpoints and pages.

        `authenticate_wrapper` runs after the guard, and may reject a request before its body is
        read.
        """
        self._parts, self._closing = parts, closing
        self._doorkeeper = authenticate_wrapper
        self.router: Router[Route] = Router(routes)
        self._of_jobs = self.router.find(f"{BEFORE_JOB}x")[0]
        self.pages = UiPages(parts, pages, self._answer_page_call)
        self._secrets_side = VaultApi(parts, endpoints)
        self.guard = RequestGuard(parts.config, socket.gethostname())
        self._proxies = TrustedProxies(parts.config.trusted_proxies)
        self._random = secrets.SystemRandom().random
        self._kept = ResponseCache()
        self.fairness = Fairness(parts.config.client_cpu_percent)
        self._stream_limit = StreamLimit(most_connections(Share.PORT))

    def target_of(self, head: RequestHead) -> RouteMatch:
        """Return the target of a request."""
        path = heads.path(head.target)
        if VaultApi.serves(path):
            return RouteMatch(path, is_secret=True)
        if "//" in path:
            return RouteMatch(path)
        routes, parameters = self._routes(path, head.method)
        return RouteMatch(path, False, routes, _for_method(routes, head.method), parameters)

    def _routes(self, path: str, method: str) -> tuple[Sequence[Route], Mapping[str, str]]:
        """Return the routes of a path, and the parameters in the path.

        The last segments of the path may name an endpoint of Steward, or be part of a job ID. If
        the endpoint does not accept the method, return the routes of a job. Its ID is then
        everything after `/v1/job/`.
        """
        routes, parameters = self.router.find(path)
        is_foreign = bool(routes) and _for_method(routes, method) is None
        if is_foreign and is_own(routes[0].path):
            return self._of_jobs, {"job_id": path.removeprefix(BEFORE_JOB)}
        return routes, parameters

    def _of_existing_job(self, route: Route, request: Request, path: str) -> tuple[Route, Request]:
        """Return the route and the request, corrected if the end of the path belongs to a job ID.

        A path such as `/v1/job/a/state` can be the endpoint `state` of the job `a`, or the job
        `a/state`. The job `a/state` is read if it exists and the job `a` does not. `path` is the
        decoded path.
        """
        if request.method != "GET" or not is_own(route.path):
            return route, request
        namespace, full_id = request.namespace, path.removeprefix(BEFORE_JOB)

        def is_whole(db: ReadSnapshot) -> bool:
            return (
                job_status.load_summary(db, namespace, request["job_id"]) is None
                and job_status.load_summary(db, namespace, full_id) is not None
            )

        of_job = _for_method(self._of_jobs, "GET")
        if of_job is None or not self._parts.store.read(is_whole):
            return route, request
        parameters = {"job_id": full_id}
        return of_job, msgspec.structs.replace(request, parameters=parameters, needs=of_job.needs)

    async def answer(
        self, head: RequestHead, body: Body, match: RouteMatch | None = None
    ) -> WireResponse:
        """Answer one request, under the request ID that the client sent, or under a new request ID.

        `body` reads the body, or raises `BodyUnavailable` or `Unavailable`. It is not called if the
        head is rejected, nor for a long body from a client without permission. `match` is passed if
        the target is already known.
        """
        request_id = origin = self.id_of(head.headers)
        match = match or self.target_of(head)
        span: _RequestSpan | None = None
        if request_context.TRACING.recorder is not None:
            span = _RequestSpan(request_context.TRACING.recorder, head, request_id)
            origin = span.origin
        account = RequestAccount(self.fairness, self.client(head))
        scope = request_context.permission_scope(span.permission) if span else _NO_SPAN
        with request_context.request_scope(origin), charged_to(account), scope:
            answer = await counted(account, self._answered(head, body, match))
        account.settle()
        answer.headers[REQUEST_ID] = request_id
        if span is not None:
            span.end(match, answer)
        if answer.stream is not None:
            stream = counting(account, answer.stream)
            return msgspec.structs.replace(answer, stream=stream)
        return answer

    def client(self, head: RequestHead) -> str:
        """Return the local user or the address for which the limits count a request.

        Return an empty string for an operator, because operators have no such limits.
        """
        if head.peer is not None and head.peer.is_operator:
            return ""
        address = self.address(head)
        return head.user if head.user and address == head.client else address

    def close(self) -> None:
        """Close the endless streams. The event `closing` closes the other responses."""
        self._stream_limit.close()

    def is_hot(self, head: RequestHead, match: RouteMatch) -> bool:
        """Return whether the fast path serves the route of a request."""
        route = match.route
        if isinstance(route, ReadRoute):
            return head.method == "GET" and not route.long
        if isinstance(route, WriteRoute):
            return route.hot
        try:
            return match.is_secret and self._secrets_side.is_hot(head.method, match.path)
        except StorageError:  # the handler reports the error
            return False

    def may_wait(self, head: RequestHead) -> bool:
        """Return whether a response may take long: a write, or a read that blocks or filters.

        Any query with a percent-encoded character counts, because it can contain such a parameter.
        """
        return head.method != "GET" or _MAY_WAIT.search(head.query) is not None

    def id_of(self, headers: Mapping[str, str]) -> str:
        """Return the ID of a request: the ID that the client sent, or a new ID."""
        request_id = headers.get(REQUEST_ID.lower(), "")
        return request_id if _AN_ID.fullmatch(request_id) else next(self._parts.ids)

    async def _answered(self, head: RequestHead, body: Body, match: RouteMatch) -> WireResponse:
        """Answer one request; convert an unexpected error to a 500."""
        path, address = match.path, self.address(head)
        audit_scope = self._parts.audit.open_scope(head.method, path, head.query, address)
        pretty = gzipped = False
        try:
            gzipped = heads.accepts_gzip(head.headers) and not match.is_secret
            query = QueryParameters(head.query, namespace=heads.namespace(head.headers, path))
            pretty = query.text("pretty", "0") != "0"
            with audit_scope.watching():
                reply = self._refusal(head, match, query, address)
                if reply is None:
                    # A short body is read first, so that the connection stays open after an error.
                    # For a long body, the caller is checked first.
                    long_body = body if heads.has_long_body(head) else None
                    short_body = b"" if long_body else await body()
                    request = self._request(head, match, query, address, short_body)
                    with BoundedWait():
                        reply = await self._reply(head, request, match, audit_scope, long_body)
        except StewardError as error:
            reply = of_error(error)
        except BodyUnavailable as error:
            reply = error.reply
        except Exception:
            log.exception("request failed: %s %s", head.method, path)
            reply = _fault(path)
        audit_scope.ended(reply.status, message_reply(reply) if reply.status >= 400 else "")
        log.debug("%s %s: %d", head.method, path, reply.status)
        convert = partial(to_wire, reply, pretty=pretty, gzipped=gzipped)
        if isinstance(reply.body, bytes) and len(reply.body) > _LONG and (pretty or gzipped):
            return await trio.to_thread.run_sync(convert)
        return convert()

    def _refusal(
        self, head: RequestHead, match: RouteMatch, query: QueryParameters, address: str
    ) -> HandlerReply | None:
        """Return the rejection of a request before its body is read, or None."""
        acts = isinstance(match.route, StreamRoute) and match.route.acts
        refusal = self.guard.refusal(head.method, head.headers, has_effect=acts)
        if refusal is None and self._doorkeeper is not None:
            refusal = self._doorkeeper(self._request(head, match, query, address, b""))
        return refusal

    async def _reply(
        self,
        head: RequestHead,
        request: Request,
        match: RouteMatch,
        audit_scope: AuditScope,
        long_body: Body | None,
    ) -> HandlerReply:
        """Answer a request that the guard accepts; `long_body` reads the body if it is long."""
        route = match.route
        if route is None:
            return await self._without_route(head, request, match, audit_scope, long_body)
        if isinstance(route, WebSocketRoute):
            return text(_NO_UPGRADE, 500)
        if "GET" in route.methods:
            _check_everywhere(request.query)
        if _is_for_another(request.query, route, self._parts.config.region):
            return _UNKNOWN_REGION
        route, request = self._of_existing_job(route, request, match.path)
        if isinstance(route, WebSocketRoute):
            return text(_NO_UPGRADE, 500)
        return await self._served(route, request, audit_scope, long_body)

    async def _without_route(
        self,
        head: RequestHead,
        request: Request,
        match: RouteMatch,
        audit_scope: AuditScope,
        long_body: Body | None,
    ) -> HandlerReply:
        """Answer a request without a route: by a page, the Vault API, a redirect, or an error."""
        if match.is_secret and match.path == heads.clean_path(match.path):
            return await self._secrets_side.answer(request, head.headers, audit_scope, long_body)
        if self.pages.has(match.path):
            escaped = heads.escaped_path(head.target)
            request = msgspec.structs.replace(request, path=escaped)
            return await self.pages.answer(
                request, head.headers, audit_scope, long_body, is_secure=head.is_secure
            )
        if match.routes:
            return not_allowed(method for route in match.routes for method in route.methods)
        return self._answer_unrouted(match.path, head.query)

    async def _served(
        self,
        route: ReadRoute | WriteRoute | StreamRoute,
        request: Request,
        audit_scope: AuditScope,
        long_body: Body | None,
    ) -> HandlerReply:
        """Answer a request with a route. Raises `Denied`, and the errors of its handler."""
        audit_scope.set_caller(request.namespace, request.token)
        caller = await self._caller(route.needs, request)
        audit_scope.known(caller.token.accessor)
        identify(caller.token.accessor)
        request = msgspec.structs.replace(request, caller=caller)
        return await self._allowed(route, request, audit_scope, long_body)

    async def _answer_page_call(self, request: Request, audit_scope: AuditScope) -> HandlerReply:
        """Answer an API request of a page on behalf of its user.

        Raises the errors of the routes.
        """
        if VaultApi.serves(request.path):
            return await self._secrets_side.answer(request, {}, audit_scope)
        routes, parameters = self._routes(request.path, request.method)
        route = _for_method(routes, request.method)
        if route is None:
            raise NotFound(f"there is no route for {request.method} {request.path}")
        parameters = {name: unquote(value) for name, value in parameters.items()}
        request = msgspec.structs.replace(request, parameters=parameters, needs=route.needs)
        route, request = self._of_existing_job(route, request, unquote(request.path))
        if isinstance(route, WebSocketRoute):
            raise NotFound(f"there is no route for {request.method} {request.path}")
        return await self._allowed(route, request, audit_scope)

    async def _allowed(
        self,
        route: ReadRoute | WriteRoute | StreamRoute,
        request: Request,
        audit_scope: AuditScope,
        long_body: Body | None = None,
    ) -> HandlerReply:
        """Call a route for an authenticated caller, if authorized.

        Raises `Denied`, and the errors of the route's handler.
        """
        job_id = request.parameters.get("job_id", "")
        if not request.caller.has(route.needs, request.namespace, job_id):
            raise Denied
        if long_body is not None:
            request = msgspec.structs.replace(
                request, body=await self._long_body(request, long_body)
            )
        if route.needs.asks is not Requirement.NOTHING:
            request_context.show_permission()
        person = request.caller.token.person if self._parts.tokens.asks else ""
        with RequestTimer(request.method, route.path), request_context.person_scope(person):
            reply = await self._handled(route, request, audit_scope)
        if self._parts.tokens.asks:
            reply = await self._masked(route, request, reply)
        # Data that an assistant reads may leave this host, so a read is recorded like a change.
        # Reads of public data are not, because each entry is a write.
        is_known = request.caller.token.accessor not in ("", ANONYMOUS)
        is_open = route.needs.asks is Requirement.NOTHING
        if request.query.text("via") == _ASSISTANT and is_known and not is_open:
            await audit_scope.acted()
        return reply

    async def _masked(
        self, route: ReadRoute | WriteRoute | StreamRoute, request: Request, reply: HandlerReply
    ) -> HandlerReply:
        """Return a reply with masks in place of the sensitive variables of job files."""
        masks = self._parts.job_masks
        if masks is None or (reply.stream is None and not await masks.jobs()):
            return reply
        from daemon.web import job_masks  # imported late: few stores have such values

        return await job_masks.masked(route, request, reply)

    async def _long_body(self, request: Request, long_body: Body) -> bytes:
        """Return a long body, if the caller may send one on this route.

        Raises `Denied`, `TooLarge`, `Unavailable` or `BodyUnavailable`.
        """
        is_checked = self._doorkeeper is not None or not self._parts.tokens.asks
        if not (is_checked or request.caller.may_send_much(request.needs)):
            if request.needs.asks is Requirement.NOTHING:
                raise TooLarge(f"the body is larger than {SHORT_BODY} bytes")
            raise Denied
        return await long_body()

    async def _handled(
        self, route: ReadRoute | WriteRoute | StreamRoute, request: Request, audit_scope: AuditScope
    ) -> HandlerReply:
        """Call the handler of a route."""
        await import_handler(route.handler)
        if isinstance(route, ReadRoute):
            reply = await blocking.answer(
                route,
                request,
                cache=self._kept,
                stream_limit=self._stream_limit,
                closing=self._closing,
                random=self._random,
            )
            if route.shows_secrets and self._parts.config.audit_reads:
                await audit_scope.acted()
            reply = with_remarks(reply, request.remarks())
            if reply.stream is not None:
                return msgspec.structs.replace(reply, stream=self._stream_limit.count(reply.stream))
            return reply
        reply = await route.handler(request)
        if route.acts:
            await audit_scope.acted()
        if reply.stream is not None:
            stream = self._stream_limit.count(reply.stream, is_endless=reply.is_endless)
            return msgspec.structs.replace(reply, stream=stream)
        return with_remarks(reply, request.remarks())

    def _request(
        self,
        head: RequestHead,
        match: RouteMatch,
        query: QueryParameters,
        address: str,
        body: bytes,
    ) -> Request:
        """Return a request that is not authenticated yet."""
        return Request(
            parts=self._parts,
            method=head.method,
            path=match.path,
            parameters=match.parameters,
            query=query,
            body=body,
            token=heads.token(head.headers, match.path),
            address=address,
            user=self.client(head),
            peer=head.peer,
            accept=head.headers.get("accept", ""),
            caller=STRANGER,
            needs=match.route.needs if match.route else ANYONE,
        )

    def address(self, head: RequestHead) -> str:
        """Return the address of the client."""
        return self._proxies.client(head.client, head.headers.get("x-forwarded-for", ""))

    async def _caller(self, needs: RequiredCapability, request: Request) -> Caller:
        """Return the caller. Raises `UnknownToken`.

        For an unknown token, a few endpoints raise `Refused` instead, with the reason.
        """
        tokens = self._parts.tokens
        if needs.asks is Requirement.NOTHING:
            return await tokens.identify("")
        try:
            return await tokens.authenticate(
                request.token,
                request.address,
                client_key=request.client_key,
                operator=request.operator,
            )
        except UnknownToken as error:
            if needs.tells_why is None or error.reason == str(error):
                raise
            raise Refused(f"{needs.tells_why}{error.reason}") from None

    def _answer_unrouted(self, path: str, query: str) -> HandlerReply:
        """Answer a path without a route: with a redirect to a similar path, or with 404."""
        cleaned = heads.clean_path(path)
        if path == "/" and (self.pages.has(FRONT) or self.router.find(FRONT)[0]):
            cleaned = FRONT
        elif self.pages.has(f"{cleaned}/") or self.router.is_folder(cleaned):
            cleaned += "/"
        if cleaned == path:
            return HandlerReply(status=404)
        escaped = quote(cleaned, safe=_UNESCAPED)  # the header allows only escaped characters
        target = f"{escaped}?{query}" if query else escaped
        body = f'<a href="{_escaped(target)}">Temporary Redirect</a>.\n\n'
        return HandlerReply(
            body=body.encode(),
            status=307,
            content_type="text/html; charset=utf-8",
            headers={"Location": target, "Cache-Control": "no-store"},
        )


def _fault(path: str) -> HandlerReply:
    """Return the response after an unexpected failure: a page for a browser, or plain text."""
    if not path.startswith(FRONT):
        return text("internal error: see the daemon's log", 500)
    headers = {**PAGE_HEADERS, "Cache-Control": "no-store"}
    kind = "text/html; charset=utf-8"
    return HandlerReply(body=FAULT.encode(), status=500, content_type=kind, headers=headers)


def _is_for_another(query: QueryParameters, route: Route, region: str) -> bool:
    """Return whether a request names another region, on a route that checks the region."""
    if isinstance(route, WriteRoute) and route.in_any_region:
        return False
    return (query.text("region") or region) != region


def _escaped(target: str) -> str:
    return (
        target.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&#34;")
    )


def _for_method(routes: Sequence[Route], method: str) -> Route | None:
    for route in routes:
        if method in route.methods or (isinstance(route, ReadRoute) and route.any_method):
            return route
    return None


def _check_everywhere(query: QueryParameters) -> None:
    """Reject parameters that Nomad rejects on every read, even if they are not used."""
    if not query:
        return
    try:
        query.flag("stale")
    except InvalidParameter:
        raise Malformed("Expect `true` or `false` for `stale` query string parameter") from None
    per_page = query.text("per_page")
    sign_free = per_page.removeprefix("-").removeprefix("+")
    is_number = sign_free.isascii() and sign_free.isdecimal()
    if per_page and not (is_number and -(2**31) <= parse_integer(per_page) < 2**31):
        raise Malformed("Expect a number for `per_page` query string parameter")
