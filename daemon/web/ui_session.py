"""Requests of browsers: sessions, and the API calls of pages.

A page calls the daemon's API on behalf of its user, with the same routes, permissions, handlers and
audit log as any client. It has no other access to the store, except to check whether a login method
exists. So a page cannot show or do anything that the user's token does not allow.

A login sets a cookie (`HttpOnly`, `SameSite=Strict`, for `/ui` only, until the browser is closed).
A change must come from a Steward page. The header `Origin` or `Sec-Fetch-Site` and the session's
CSRF token in the form prove that. Another service on the same host name could set a cookie of the
same name for a subpath. If a request has two such cookies, both are ignored. Over TLS, the cookie's
name has a prefix that browsers accept only in encrypted responses (RFC 6265bis, section 4.1.3.1).
"""

import hmac
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, unquote, urlencode, urlsplit

import msgspec
import trio

from daemon.acl.audit import AuditScope
from daemon.acl.check import EVERYWHERE, Requirement
from daemon.app.context import AppContext
from daemon.web.fairness import identify
from daemon.web.lazy import import_handler
from daemon.web.parameters import QueryParameters
from daemon.web.reply import JSON, HandlerReply, not_allowed, text
from daemon.web.request import SHORT, Body, Request
from daemon.web.router import Router
from daemon.web.session_store import SessionStore, UiSession
from daemon.web.shared_pages import SharedPages
from storage import garbage
from storage.errors import Denied, Malformed, NotFound, StewardError, UnknownToken
from storage.queries import job_status, mounts
from storage.read_pool import ReadSnapshot
from storage.records.codec import encode

if TYPE_CHECKING:
    from daemon.acl.explain import RequestedCapability

PLACE = "/ui/"
FAULT = """<!doctype html><html lang="en"><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Internal error · Steward</title><link rel="stylesheet" href="/ui/static/style.css">
<main><h1>Internal error</h1>
<p class="message" role="alert">Steward could not show this page: internal error. The daemon's log has the reason.</p>
<p>Jobs and their tasks continue. Reload the page, or open another one:
<a href="/ui/">Overview</a>, <a href="/ui/jobs">Jobs</a>, <a href="/ui/log">Events</a>.</p>
</main></html>"""  # the same for every request, because nothing else is certain to work
PROOF = "proof"  # the form field of the CSRF token
COOKIE = "steward_session"
SECURE_COOKIE = f"__Secure-{COOKIE}"
DENSITY_COOKIE = "steward_density"  # `compact`, or anything else
_ROWS = 25  # rows on one page of a list; a browser lays out 50 jobs in 40 ms
_COMPACT_ROWS = 50
_MOST_FIELDS = 200  # fields of a form
_LONGEST_FORM = 6 * 1024 * 1024  # bytes; a form with a job file of 4 MB fits
_LONG = 64 * 1024  # bytes of JSON that are parsed in a millisecond

# Scripts only from Steward, no external resources, and no embedding in frames.
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; worker-src 'self'; form-action 'self'; base-uri 'none'; "
        "frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

NOT_FOUND = "/ui/not-found"  # the page that all URLs without a page show
_BEFORE_JOB = "/ui/job/"
_JOB = "/ui/job/{job_id}"
_OF_ANOTHER = "this page belongs to another session: reload it"
_MEANING: dict[int, type[StewardError]] = {403: Denied, 404: NotFound}

T = TypeVar("T")
Ask = Callable[[Request, AuditScope], Awaitable[HandlerReply]]


class RejectedForm(msgspec.Struct, frozen=True):
    """A form that the API rejected: the entered values, and the error in `message`.

    Both are empty if no form was rejected.
    """

    message: str = ""
    values: Mapping[str, str] = {}

    def value(self, name: str, otherwise: object = "") -> object:
        """Return the value that the user entered; for a new form, return `otherwise`."""
        return self.values.get(name, "") if self.message else otherwise

    def has(self, name: str, *, otherwise: bool = False) -> bool:
        """Return whether the user marked a check box; for a new form, return `otherwise`."""
        return name in self.values if self.message else otherwise

    def fault(self, name: str) -> str:
        """Return the error if it concerns the field `name`; otherwise an empty string."""
        return self.message if name in self._fields else ""

    @property
    def rows(self) -> list[tuple[str, str]]:
        """Return the items of a variable from its form, in order, as pairs of name and value.

        The item N is in the fields `name.N` and `value.N`. Items without a name are omitted.
        """
        fields = [name for name, value in self.values.items() if name.startswith("name.") and value]
        return [
            (self.values[field], self.values.get(f"value.{field.removeprefix('name.')}", ""))
            for field in fields
        ]

    @property
    def _fields(self) -> list[str]:
        words = set(re.findall(r"\w+", self.message.lower()))
        named = [name for name in self.values if name.rpartition(".")[2].lower() in words]
        return named or [
            name
            for name, value in self.values.items()
            if any(f"{quote}{value}{quote}" in self.message for quote in "'\"" if value)
        ]


_NONE_REJECTED = RejectedForm()


class SessionView(msgspec.Struct, frozen=True):
    """A session with the name of its token. `is_this` marks the session of this request."""

    session: UiSession
    token_name: str
    is_this: bool


class UiRequest:
    """One UI request, with the API access of its page."""

    def __init__(
        self,
        request: Request,
        session: UiSession | None,
        ask: Ask,
        sessions: SessionStore,
        audit_scope: AuditScope,
        router: Router["UiPage"],
    ) -> None:
        self.request, self.session = request, session
        self.has_ended = False  # the session's token is no longer valid
        self.is_unclear = False  # there are several cookies with this name
        self.is_compact = False  # pages have more lines, with less space between them
        self.shown = ""  # the tag of the page that the browser shows and reloads
        self.shared_pages = SharedPages()
        self.is_short = True  # whether all API replies to the page together stay below `_LONG`
        self._read_bytes = 0  # bytes of these replies
        self.proof_mark = ""  # replaced by the CSRF token, in a page for several sessions
        self._ask, self._sessions, self._trail, self._router = ask, sessions, audit_scope, router
        self._form: dict[str, str] | Malformed | None = None  # the fields, or their error
        self._lacking: dict[tuple[str, ...], str] = {}  # by the arguments of `lacks`
        self._cookie: str | None = None  # the new value of the cookie; empty deletes it
        self._rejected: tuple[str, RejectedForm] | None = None  # the URL of the form, and the form
        self._denied: Request | None = None  # the last call that was denied

    @property
    def query(self) -> QueryParameters:
        """Return the query parameters."""
        return self.request.query

    @property
    def asks_for_tokens(self) -> bool:
        """Return whether users must sign in."""
        return self.request.parts.tokens.asks

    @property
    def rows_per_page(self) -> int:
        """Return the number of rows on one page of a list."""
        return _COMPACT_ROWS if self.is_compact else _ROWS

    @property
    def now(self) -> int:
        """Return the time in nanoseconds."""
        return self.request.parts.clock.now()

    @property
    def proof(self) -> str:
        """Return the CSRF token for forms.

        In a page for several sessions, return a placeholder. The token replaces it later.
        """
        return self.proof_mark or self.session_proof

    @property
    def session_proof(self) -> str:
        """Return the CSRF token of the session."""
        return self.session.proof if self.session else ""

    @property
    def form(self) -> Mapping[str, str]:
        """Return the fields of the form, which is parsed once. Raises `Malformed`."""
        if self._form is None:
            self._form = _fields(self.request.body)
        if isinstance(self._form, Malformed):
            raise self._form.with_traceback(None)
        return self._form

    def __getitem__(self, name: str) -> str:
        """Return the value of the placeholder `{name}` in the page's path."""
        return self.request.parameters[name]

    def lacks(self, target: str, namespace: str = "", path: str = "", method: str = "POST") -> str:
        """Return the missing capability if the user may not send a form, otherwise an empty string.

        `target` is the URL of the form. `namespace` is the namespace of the object, if the URL does
        not contain it; `*` means any. `path` is the path of the variable or of the login method.
        """
        key = (target, namespace, path, method)
        if (capability := self._lacking.get(key)) is None:  # a page may ask once per row
            capability = self._lacking[key] = self._lacks(*key)
        return capability

    def _lacks(self, target: str, namespace: str, path: str, method: str) -> str:
        parts = urlsplit(target)
        pages, values = self._router.find(parts.path)
        calls = next((page.calls for page in pages if page.method == method), "")
        if not calls:
            return ""
        verb, _, address = calls.partition(" ")
        address = address.replace("{mount}", path)
        if (name := values.get("name")) is not None:
            address = address.replace("{name}", quote(name, safe=""))
        right = self.request.parts.rights().of(verb, address, lambda mount: mount == f"{path}/")
        within = namespace or QueryParameters(parts.query).text("namespace") or right.namespace
        named = right.path if right.needs.asks is Requirement.PATH else path
        return _missing_capability(
            self, msgspec.structs.replace(right, namespace=within, path=named)
        )

    @property
    def denied_capability(self) -> str:
        """Return the capability that was missing for the last denied call, or an empty string."""
        call = self._denied
        if call is None:
            return ""
        target = f"{call.path}?{urlencode(call.query.pairs)}"
        try:
            right = self.request.parts.rights().of(call.method, target, self._is_mount)
        except NotFound:  # a call without a route needs no capability
            return ""
        return _missing_capability(self, msgspec.structs.replace(right, path=unquote(right.path)))

    def _is_mount(self, place: str) -> bool:
        return self.can_log_in_at(place.rstrip("/"))

    # --- rejected forms

    async def reopen(self, target: str, message: str) -> HandlerReply:
        """Return the page `target` again, with the rejected form and the values that it contained.

        `message` is the error of the API.
        """
        place = urlsplit(target)
        pages, values = self._router.find(place.path)
        page = next(page for page in pages if page.method == "GET")
        self._rejected = self.request.path, RejectedForm(message, dict(self.form))
        self.request = msgspec.structs.replace(
            self.request,
            path=place.path,
            query=QueryParameters(place.query),
            parameters={name: unquote(value) for name, value in values.items()},
        )
        await import_handler(page.handler)
        return await page.handler(self)

    @property
    def is_reopened(self) -> bool:
        """Return whether the page shows a rejected form."""
        return self._rejected is not None

    def rejected(self, target: str) -> RejectedForm:
        """Return the rejected form if it was sent to this URL, else an empty form."""
        if self._rejected is None or self._rejected[0] != urlsplit(target).path:
            return _NONE_REJECTED
        return self._rejected[1]

    # --- API calls

    async def ask(
        self, method: str, path: str, body: object = None, /, **query: object
    ) -> HandlerReply:
        """Return the API's reply to this user. Raises the errors of its handlers, and `Denied`.

        The caller must escape the identifiers in `path`. Otherwise an identifier such as `a/plan`
        could select the endpoint `plan`.
        """
        # Each call lets other coroutines run, because a page may make a thousand calls.
        await trio.lowlevel.checkpoint()
        words = urlencode(
            {name: _format_query_value(value) for name, value in query.items() if value != ""}
        )
        api_request = msgspec.structs.replace(
            self.request,
            method=method,
            path=path,
            query=QueryParameters(words),
            parameters={},
            body=await build_in_thread(_encoded, body),
        )
        try:
            return await self._ask(api_request, self._trail)
        except Denied:
            self._denied = api_request
            raise

    async def get(self, path: str, /, **query: object) -> Any:  # noqa: ANN401  # JSON
        """Return the document at a path of the API."""
        reply = await self.ask("GET", path, **query)
        if reply.stream is not None:  # a list in parts
            body = b"".join([chunk async for chunk in reply.stream])
            reply = msgspec.structs.replace(reply, body=body, stream=None)
        return await self.parsed(reply)

    async def get_page(
        self, path: str, most: int, after: str, /, **query: object
    ) -> tuple[list[Any], str]:
        """Return at most `most` objects of a list, and the page token of the next page.

        `after` is the page token of this page; it is empty for the first page.
        """
        reply = await self.ask("GET", path, per_page=most, next_token=after, **query)
        return await self.parsed(reply) or [], reply.next_token

    async def post(self, path: str, body: object = None, /, **query: object) -> Any:  # noqa: ANN401  # JSON
        """Send a POST request to the API; return the decoded body of the response."""
        document = await build_in_thread(
            self.decode_reply, await self.ask("POST", path, body, **query)
        )
        garbage.free_in_thread(document)
        return document

    async def parsed(self, reply: HandlerReply) -> Any:  # noqa: ANN401  # JSON
        """Return the decoded body of a reply; a thread decodes a long body."""
        self._read_bytes += len(reply.body) if isinstance(reply.body, bytes) else 0
        self.is_short = self._read_bytes <= _LONG
        if isinstance(reply.body, bytes) and len(reply.body) > _LONG:
            document = await build_in_thread(self.decode_reply, reply)
            garbage.free_in_thread(document)
            return document
        return self.decode_reply(reply)

    @staticmethod
    def decode_reply(reply: HandlerReply) -> Any:  # noqa: ANN401  # JSON
        """Return the body of a reply: a decoded JSON document, or text.

        Raises the matching error for an error response.
        """
        if reply.body is None and reply.status < 400:
            return None
        body = reply.body if isinstance(reply.body, bytes) else encode(reply.body)
        if reply.status >= 400:
            raise _MEANING.get(reply.status, Malformed)(_complaint(body, reply.content_type))
        if reply.content_type != JSON:
            return body.decode()
        from storage import json_pieces  # imported late: a start needs no pages

        return json_pieces.decode(body)

    # --- sessions

    def can_log_in_at(self, path: str) -> bool:
        """Return whether a login method is mounted at a path."""
        return self.request.parts.store.read(lambda db: mounts.exists(db, f"{path}/"))

    async def sign_in(self, secret: str, *, is_own: bool = False) -> None:
        """Start a session for the secret of a token. Raises `UnknownToken`, `Malformed`.

        With `is_own`, the token was created for this session. The token is revoked at the end of
        the session, or immediately if the login fails.
        """
        tokens = self.request.parts.tokens
        try:
            caller = await tokens.authenticate(
                secret, self.request.address, client_key=self.request.client_key
            )
            if not secret or caller.token.uses_left is not None:
                raise Malformed("signing in requires a token without a limit on its uses")
            self._trail.known(caller.token.accessor)
            await self.sign_out()
        except StewardError:
            if is_own:
                await tokens.revoke(secret)
            raise
        self.session, evicted = self._sessions.begin(
            secret,
            self.now,
            is_own=is_own,
            address=self.request.address,
            accessor=caller.token.accessor,
            owner=caller.token.person,
        )
        self._cookie = self.session.name
        for evicted_session in evicted:
            await self._end(evicted_session)

    async def sign_out(self) -> None:
        """Close the session, if any, and revoke its token if the token was created for it."""
        ending, self.session, self._cookie = self.session, None, ""
        if ending is not None:
            await self._end(ending)

    async def sessions(self, most: int) -> tuple[list["SessionView"], int]:
        """Return the user's most recently used sessions, and the number of all their sessions."""
        own_sessions, tokens = self._own_sessions(), self.request.parts.tokens
        session_views: list[SessionView] = []
        for session in own_sessions[:most]:
            await trio.lowlevel.checkpoint()  # each token is read from the store
            with suppress(UnknownToken):  # the session ended in the meantime
                token = (await tokens.identify(session.token, session.address)).token
                session_views.append(SessionView(session, token.name, session is self.session))
        return session_views, len(own_sessions)

    def _own_sessions(self) -> list[UiSession]:
        """Return the sessions of the user's token; for a management token, all sessions."""
        caller, all_ = self.request.caller, self._sessions.all(self.now) if self.session else []
        if caller.grant.everything:
            return all_
        return [session for session in all_ if session.accessor == caller.token.accessor]

    async def end_session(self, id_: str) -> None:
        """End a session, which may be the current one.

        Raises `NotFound` for a session of another user.
        """
        ending = next(
            (own_session for own_session in self._own_sessions() if own_session.id == id_), None
        )
        if ending is None:
            raise NotFound(f"there is no session {id_[:32]}: it has ended, or is not yours")
        if ending is self.session:
            await self.sign_out()
        else:
            await self._end(ending)
        await self._trail.acted()  # a session is not in the store

    async def _end(self, ending: UiSession) -> None:
        self._sessions.end(ending.name)
        if ending.is_own:
            await self.request.parts.tokens.revoke(ending.token)

    def with_page_headers(self, reply: HandlerReply, *, is_secure: bool) -> HandlerReply:
        """Return a response with the headers of all pages, and the session cookie if it changed.

        `is_secure` means that the browser uses TLS.
        """
        headers = {**HEADERS, "Cache-Control": "no-store", **reply.headers}
        if self._cookie is not None:
            headers["Set-Cookie"] = (
                f"{_cookie(is_secure)}={self._cookie}; Path=/ui; HttpOnly; SameSite=Strict"
                + ("; Secure" if is_secure else "")
                + ("" if self._cookie else "; Max-Age=0")
            )
        return msgspec.structs.replace(reply, headers=headers)


async def build_in_thread(make: Callable[..., T], *arguments: object) -> T:
    """Call `make` in a thread without garbage collection; return its result.

    Use this function if the result consists of many objects.
    """
    return await garbage.in_thread(partial(make, *arguments))


PageHandler = Callable[[UiRequest], Awaitable[HandlerReply]]


class UiPage(msgspec.Struct, frozen=True):
    """A page of the web interface.

    `is_file` means that it is a static file, which needs no session. If a form is sent to this
    page, `calls` is the method and path of the resulting API call. Pages show the form as disabled
    if the user lacks the permission for that call.
    """

    path: str
    handler: PageHandler
    method: str = "GET"
    is_file: bool = False
    calls: str = ""


class UiPages:
    """All pages of the web interface, from the table of pages."""

    def __init__(self, parts: AppContext, pages: Iterable[UiPage], ask: Ask) -> None:
        self._parts, self._ask = parts, ask
        self._router: Router[UiPage] = Router(pages)
        self._sessions = SessionStore(lambda: secrets.token_urlsafe(32))
        self._shared_pages = SharedPages()

    def has(self, path: str) -> bool:
        """Return whether a request for a path gets a page, or the error page for unknown URLs."""
        pages = self._router.find(path)[0]
        return bool(pages or (path.startswith(PLACE) and self._router.find(NOT_FOUND)[0]))

    async def answer(
        self,
        request: Request,
        headers: Mapping[str, str],
        audit_scope: AuditScope,
        long_body: Body | None = None,
        *,
        is_secure: bool,
    ) -> HandlerReply:
        """Answer a request for a page. The path of the request is percent-encoded.

        If the form is long, `long_body` reads it after the session was checked.
        """
        pages, parameters = self._find(request)
        page = next((candidate for candidate in pages if candidate.method == request.method), None)
        if page is None and request.method == "GET":
            (page,), parameters = self._router.find(NOT_FOUND)
        if page is None:
            methods = [candidate.method for candidate in pages]
            return not_allowed(methods) if pages else HandlerReply(status=404)
        request = msgspec.structs.replace(request, parameters=parameters, token="", peer=None)
        names = _names(headers, is_secure=is_secure)
        ui_request = UiRequest(
            request, self._session(names), self._ask, self._sessions, audit_scope, self._router
        )
        ui_request.is_unclear = len(names) > 1
        ui_request.is_compact = "compact" in _values(headers, DENSITY_COOKIE)
        ui_request.shared_pages = self._shared_pages
        ui_request.shown = headers.get("if-none-match", "").strip('"')
        if not page.is_file:
            await self._recognize(ui_request, audit_scope)
        if request.method != "GET" and (
            reason := await self._refusal(ui_request, headers, long_body)
        ):
            return ui_request.with_page_headers(text(reason, 403), is_secure=is_secure)
        await import_handler(page.handler)
        reply = self._while_signed_in(await page.handler(ui_request), ui_request.session)
        if pages and page not in pages:  # the URL of a form, which takes no other method
            reply = msgspec.structs.replace(reply, status=405)
        return ui_request.with_page_headers(reply, is_secure=is_secure)

    def _find(self, request: Request) -> tuple[Sequence[UiPage], Mapping[str, str]]:
        """Return the pages at an escaped path, and the values of the placeholders in the path.

        An escaped slash belongs to an identifier: `/ui/job/a%2Frun` is the page of the job `a/run`.
        Some clients and proxies do not escape such a slash. So `/ui/job/a/run` is also the page of
        the job `a/run`, if that job exists and the job `a` does not.
        """
        pages, values = self._router.find(request.path)
        if pages:
            values = {name: unquote(value) for name, value in values.items()}
        else:
            pages, values = self._router.find(unquote(request.path))
        if not pages or not pages[0].path.startswith(f"{_JOB}/") or request.method != "GET":
            return pages, values
        full_id = unquote(request.path.removeprefix(_BEFORE_JOB))

        def is_whole(db: ReadSnapshot) -> bool:
            names = (values["job_id"], full_id)
            short, long = (job_status.load_summary(db, request.namespace, name) for name in names)
            return short is None and long is not None

        if not self._parts.store.read(is_whole):
            return pages, values
        return self._router.find(f"{_BEFORE_JOB}x")[0], {"job_id": full_id}

    async def _refusal(
        self, ui_request: UiRequest, headers: Mapping[str, str], long_body: Body | None
    ) -> str:
        """Read a form; return why it is rejected, or an empty string.

        A form must come from a page of this session.

        Raises `Malformed`, and the errors of `long_body`.
        """
        if reason := _head_refusal(headers):
            return reason
        if long_body is not None:
            if ui_request.session is None and ui_request.asks_for_tokens:
                return _OF_ANOTHER
            ui_request.request = msgspec.structs.replace(ui_request.request, body=await long_body())
        if len(ui_request.request.body) > SHORT:
            await ui_request.request.parts.admission.run(
                ui_request.request.client, lambda: ui_request.form
            )
        has_proof = hmac.compare_digest(
            ui_request.form.get(PROOF, "").encode(), ui_request.proof.encode()
        )
        return "" if has_proof else _OF_ANOTHER

    def _while_signed_in(self, reply: HandlerReply, session: UiSession | None) -> HandlerReply:
        """Return a reply whose stream ends with the session."""
        if reply.stream is None or session is None:
            return reply
        stream = self._until_end(reply.stream, session)
        return msgspec.structs.replace(reply, stream=stream)

    async def _until_end(
        self, chunks: AsyncIterator[bytes], session: UiSession
    ) -> AsyncIterator[bytes]:
        """Yield chunks, including heartbeats, while a session is valid."""
        has, now = self._sessions.has, self._parts.clock.now
        async with aclosing(chunks) as open_chunks:  # type: ignore[type-var]  # a generator
            async for chunk in open_chunks:
                if not has(session, now()):
                    return
                yield chunk

    async def speaking(
        self, request: Request, headers: Mapping[str, str], proof: str, *, is_secure: bool
    ) -> tuple[Request, Callable[[], bool]]:
        """Return a page's WebSocket request with the user's token, and a function.

        The function returns whether the session is still valid. `proof` is the CSRF token in the
        page's first message. Raises `Denied` for a page of another session, and `UnknownToken` for
        an invalid token.
        """
        session = self._session(_names(headers, is_secure=is_secure))
        session_proof = session.proof if session else ""
        if not hmac.compare_digest(proof.encode(), session_proof.encode()):
            raise Denied
        secret = session.token if session else ""
        caller = await self._parts.tokens.identify(secret, request.address)
        speaking = msgspec.structs.replace(request, token=secret, peer=None, caller=caller)
        now, has = self._parts.clock.now, self._sessions.has
        return speaking, lambda: session is None or has(session, now())

    def _session(self, names: list[str]) -> UiSession | None:
        return self._sessions.find(names[0], self._parts.clock.now()) if len(names) == 1 else None

    async def _recognize(self, ui_request: UiRequest, audit_scope: AuditScope) -> None:
        """Find the session of a request; a session with an invalid token counts as ended."""
        secret = ui_request.session.token if ui_request.session else ""
        audit_scope.set_caller(ui_request.request.namespace, "")
        try:
            # A session's secret was valid once, so a failure is not a guess and is not counted.
            caller = await self._parts.tokens.identify(secret, ui_request.request.address)
        except UnknownToken:
            await ui_request.sign_out()
            ui_request.has_ended, secret = True, ""
            caller = await self._parts.tokens.identify("")
        audit_scope.known(caller.token.accessor)
        identify(caller.token.accessor)
        ui_request.request = msgspec.structs.replace(
            ui_request.request, token=secret, caller=caller
        )


def _missing_capability(ui_request: UiRequest, right: "RequestedCapability") -> str:
    """Return the capability that a user lacks for a call; empty if they have it."""
    needs, caller = right.needs, ui_request.request.caller
    if right.namespace == EVERYWHERE:
        right = msgspec.structs.replace(
            right, needs=msgspec.structs.replace(needs, everywhere=True)
        )
    if needs.asks is Requirement.VARIABLE and not right.path:  # a new variable: any path
        rules = caller.grant.variables.all.values()
        if any(not rule.capabilities.isdisjoint(needs.any_of) for rule in rules):
            return ""
        right = msgspec.structs.replace(right, path="PATH")
    from daemon.acl.explain import explain  # imported late: only a page with a form needs it

    decision = explain(caller, right)
    return "" if decision.allowed else decision.needs.replace("the namespace *", "any namespace")


def _encoded(body: object) -> bytes:
    """Return the body of a request: bytes as they are, and anything else as JSON."""
    if isinstance(body, bytes):
        return body
    return b"" if body is None else encode(body)


def _fields(body: bytes) -> dict[str, str] | Malformed:
    """Return the fields of a form, or the error if the form is invalid."""
    if len(body) > _LONGEST_FORM:
        return Malformed(f"the form has more than {_LONGEST_FORM} bytes: send less")
    from daemon.text import url_forms  # imported late, because a start needs no form

    try:
        return dict(url_forms.pairs(body, _MOST_FIELDS, is_strict=bool(body)))
    except ValueError:
        return Malformed("the body of the request is not a valid form")


def _cookie(is_secure: bool) -> str:
    return SECURE_COOKIE if is_secure else COOKIE


def _names(headers: Mapping[str, str], *, is_secure: bool) -> list[str]:
    """Return the values of all session cookies in a request; other services may have set some.

    `is_secure` means that the browser uses TLS, for which the cookie has another name.
    """
    return _values(headers, _cookie(is_secure))


def _values(headers: Mapping[str, str], cookie: str) -> list[str]:
    pairs = (part.strip().partition("=") for part in headers.get("cookie", "").split(";"))
    return [value for name, _, value in pairs if name == cookie]


def _format_query_value(value: object) -> str:
    """Format a value for a query."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _complaint(body: bytes, kind: str) -> str:
    """Return the message of an error response; the Vault API sends a list of errors."""
    if kind != JSON:
        return body.decode()
    document = msgspec.json.decode(body)
    if document is None:
        return "the request is invalid"
    errors = document.get("errors") if isinstance(document, dict) else None
    return "; ".join(str(error) for error in errors) if errors else body.decode()


def _head_refusal(headers: Mapping[str, str]) -> str:
    """Return why the headers of a form show that it does not come from a page of Steward.

    The guard has already compared `Origin` with the daemon's names, and checked `Sec-Fetch-Site`.
    This function requires one of these headers.
    """
    if not (headers.get("origin") or headers.get("sec-fetch-site")):
        return "forms are accepted only from browsers: this request has neither Origin nor Sec-Fetch-Site"
    kind = headers.get("content-type", "").partition(";")[0].strip()
    if kind != "application/x-www-form-urlencoded":
        return "a form must be sent as application/x-www-form-urlencoded"
    return ""
