"""Visits: requests of people's browsers, and how a page gets what it shows.

A page asks the API of this very daemon, in the name of the visitor: the same table of routes, the
same rights, the same handlers, the same audit. It has no other way to the store, but to ask whether
a login method is there, so nothing can be seen or done here that the visitor's token does not allow
elsewhere.

Who signs in gets a cookie (`HttpOnly`, `SameSite=Strict`, for `/ui` alone, until the browser is
closed). What changes something must come from a page of ours: `Origin` or `Sec-Fetch-Site` says
so, and the form carries the session's proof. Other services of our host name could set a cookie of
this name for a part of our pages: where there are two, none counts. Over TLS the name is one that
browsers take from encrypted answers alone (RFC 6265bis, section 4.1.3.1).
"""

import hmac
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlencode

import msgspec
import trio

from daemon.acl.audit import Trail
from daemon.parts import Parts
from daemon.web.parameters import Query
from daemon.web.reply import JSON, Reply, text
from daemon.web.request import SHORT, Request
from daemon.web.router import Router
from daemon.web.sessions import Session, Sessions
from storage import garbage
from storage.errors import Denied, Malformed, NotFound, StewardError, UnknownToken
from storage.queries import mounts
from storage.records.codec import encode

PLACE = "/ui/"
PROOF = "proof"  # the field of a form that carries it
COOKIE = "steward_session"
SECURE_COOKIE = f"__Secure-{COOKIE}"
_MOST_FIELDS = 200  # of a form
_LONGEST_FORM = 6 * 1024 * 1024  # bytes; one with a job file of 4 MB fits
_LONG = 64 * 1024  # bytes of JSON that are parsed in a millisecond

# No script but ours, nothing from elsewhere, nobody's frame.
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

_MEANING: dict[int, type[StewardError]] = {403: Denied, 404: NotFound}

T = TypeVar("T")
Ask = Callable[[Request, Trail], Awaitable[Reply]]


class Visit:
    """One request of a browser, and what its page may ask."""

    def __init__(
        self, request: Request, session: Session | None, ask: Ask, sessions: Sessions, trail: Trail
    ) -> None:
        self.request, self.session = request, session
        self.has_ended = False  # the session: its token is no more
        self.is_unclear = False  # which session: there is more than one cookie of ours
        self._ask, self._sessions, self._trail = ask, sessions, trail
        self._form: dict[str, str] | None = None
        self._cookie: str | None = None  # the session that the browser is told; empty: none

    @property
    def query(self) -> Query:
        """Return what stands behind the question mark."""
        return self.request.query

    @property
    def asks_for_tokens(self) -> bool:
        """Tell whether one has to sign in here at all."""
        return self.request.parts.tokens.asks

    @property
    def now(self) -> int:
        """Return the time, in nanoseconds."""
        return self.request.parts.clock.now()

    @property
    def proof(self) -> str:
        """Return what the forms of this visitor carry."""
        return self.session.proof if self.session else ""

    @property
    def form(self) -> Mapping[str, str]:
        """Return the fields of the form that was sent. Raises `Malformed`."""
        if self._form is None:
            if len(self.request.body) > _LONGEST_FORM:
                raise Malformed(f"the form has more than {_LONGEST_FORM} bytes: send less at once")
            try:
                fields = parse_qsl(
                    self.request.body.decode(),
                    keep_blank_values=True,
                    strict_parsing=bool(self.request.body),
                    max_num_fields=_MOST_FIELDS,
                )
            except (UnicodeDecodeError, ValueError):
                raise Malformed("the body of the request is no form that was filled in") from None
            self._form = dict(fields)
        return self._form

    def __getitem__(self, name: str) -> str:
        """Return what stands in the place of `{name}` in the page's path."""
        return self.request.parameters[name]

    # ---- asking the API

    async def ask(self, method: str, path: str, body: object = None, /, **query: object) -> Reply:
        """Return what the API answers this visitor. Raises what its handlers raise, and `Denied`.

        What the path names is quoted in it: an identifier that ends like an endpoint stays one.
        """
        # Each question is a turn of its own: a page may have a thousand of them.
        await trio.lowlevel.checkpoint()
        words = urlencode({name: _word(value) for name, value in query.items() if value != ""})
        asked = msgspec.structs.replace(
            self.request,
            method=method,
            path=path,
            query=Query(words),
            parameters={},
            body=b"" if body is None else encode(body),
        )
        return await self._ask(asked, self._trail)

    async def get(self, path: str, /, **query: object) -> Any:  # noqa: ANN401  # JSON
        """Return the document that stands at a path of the API."""
        reply = await self.ask("GET", path, **query)
        if reply.stream is not None:  # a list that comes in parts
            whole = b"".join([piece async for piece in reply.stream])
            reply = msgspec.structs.replace(reply, body=whole, stream=None)
        return await self.parsed(reply)

    async def post(self, path: str, body: object = None, /, **query: object) -> Any:  # noqa: ANN401  # JSON
        """Have the API do something; return what it answers."""
        return await self.parsed(await self.ask("POST", path, body, **query))

    async def parsed(self, reply: Reply) -> Any:  # noqa: ANN401  # JSON
        """Return what an answer says; a long one is parsed in a thread."""
        if isinstance(reply.body, bytes) and len(reply.body) > _LONG:
            return await apart(self.said, reply)
        return self.said(reply)

    @staticmethod
    def said(reply: Reply) -> Any:  # noqa: ANN401  # JSON
        """Return what an answer of the API says: a JSON document as such, else its text.

        Raises what a refusal that came as an answer means.
        """
        if reply.body is None and reply.status < 400:
            return None
        body = reply.body if isinstance(reply.body, bytes) else encode(reply.body)
        if reply.status >= 400:
            raise _MEANING.get(reply.status, Malformed)(_complaint(body, reply.content_type))
        return msgspec.json.decode(body) if reply.content_type == JSON else body.decode()

    # ---- signing in

    def can_log_in_at(self, place: str) -> bool:
        """Tell whether a login method is mounted at a path."""
        return self.request.parts.store.read(lambda db: mounts.is_there(db, f"{place}/"))

    async def sign_in(self, secret: str, *, is_own: bool = False) -> None:
        """Begin a session for who shows the secret of a token. Raises `UnknownToken`, `Malformed`.

        `is_own`: the token was made for this session, and ends with it, or now if none begins.
        """
        tokens = self.request.parts.tokens
        try:
            caller = await tokens.authenticate(secret, self.request.address)
            if not secret or caller.token.uses_left is not None:
                raise Malformed("signing in needs a token that may be used any number of times")
            self._trail.known(caller.token.accessor)
            await self.sign_out()
        except StewardError:
            if is_own:
                await tokens.revoke(secret)
            raise
        self.session = self._sessions.begin(secret, self.now, is_own=is_own)
        self._cookie = self.session.name

    async def sign_out(self) -> None:
        """End the session, if there is one, and then its token if that was made for it."""
        ending, self.session, self._cookie = self.session, None, ""
        if ending is None:
            return
        self._sessions.end(ending.name)
        if ending.is_own:
            await self.request.parts.tokens.revoke(ending.token)

    def dressed(self, reply: Reply, *, is_secure: bool) -> Reply:
        """Return an answer with the headers that all have here, and the cookie that has changed."""
        headers = {**HEADERS, "Cache-Control": "no-store", **reply.headers}
        if self._cookie is not None:
            headers["Set-Cookie"] = (
                f"{_cookie(is_secure)}={self._cookie}; Path=/ui; HttpOnly; SameSite=Strict"
                + ("; Secure" if is_secure else "")
                + ("" if self._cookie else "; Max-Age=0")
            )
        return msgspec.structs.replace(reply, headers=headers)


async def apart(make: Callable[..., T], *arguments: object) -> T:
    """Return what is made of many objects, in a thread that is not stopped to look for garbage."""

    def made() -> T:
        with garbage.put_off():
            return make(*arguments)

    return await trio.to_thread.run_sync(made)


PageHandler = Callable[[Visit], Awaitable[Reply]]


class Page(msgspec.Struct, frozen=True):
    """A page of the web interface. `is_file`: the same for everybody, so nobody is asked for."""

    path: str
    handler: PageHandler
    method: str = "GET"
    is_file: bool = False


class Pages:
    """All pages of the web interface, and who visits them. Made of the table of pages."""

    def __init__(self, parts: Parts, pages: Iterable[Page], ask: Ask) -> None:
        self._parts, self._ask = parts, ask
        self._router: Router[Page] = Router(pages)
        self._sessions = Sessions(lambda: secrets.token_urlsafe(32))

    def has(self, path: str) -> bool:
        """Tell whether there is a page at a path."""
        return bool(self._router.find(path)[0])

    async def answer(
        self, asked: Request, headers: Mapping[str, str], trail: Trail, *, is_secure: bool
    ) -> Reply:
        """Answer a request for a page that there is."""
        found, parameters = self._router.find(asked.path)
        page = next((one for one in found if one.method == asked.method), None)
        if page is None:
            return text("Invalid method", 405)
        asked = msgspec.structs.replace(asked, parameters=parameters, token="", peer=None)
        names = _names(headers, is_secure=is_secure)
        visit = Visit(asked, self._session(names), self._ask, self._sessions, trail)
        visit.is_unclear = len(names) > 1
        if len(asked.body) > SHORT:  # it is told of where it is used
            with suppress(Malformed):
                await asked.parts.admission.run(asked.address, lambda: visit.form)
        if not page.is_file:
            await self._recognize(visit, trail)
        if asked.method != "GET" and (reason := _refusal(visit, headers)):
            return visit.dressed(text(reason, 403), is_secure=is_secure)
        return visit.dressed(await page.handler(visit), is_secure=is_secure)

    def speaking(
        self, asked: Request, headers: Mapping[str, str], proof: str, *, is_secure: bool
    ) -> tuple[Request, Callable[[], bool]]:
        """Return what a page of ours asks over a WebSocket, in its visitor's name, and how long it may.

        Raises `Denied` for a page of another session, `UnknownToken` when the token has ended.
        """
        session = self._session(_names(headers, is_secure=is_secure))
        known = session.proof if session else ""
        if not hmac.compare_digest(proof.encode(), known.encode()):
            raise Denied
        secret = session.token if session else ""
        caller = self._parts.tokens.resolve(secret, asked.address)
        speaking = msgspec.structs.replace(asked, token=secret, peer=None, caller=caller)
        now, has = self._parts.clock.now, self._sessions.has
        return speaking, lambda: session is None or has(session, now())

    def _session(self, names: list[str]) -> Session | None:
        return self._sessions.find(names[0], self._parts.clock.now()) if len(names) == 1 else None

    async def _recognize(self, visit: Visit, trail: Trail) -> None:
        """Find out whose session it is; one whose token has ended is none any more."""
        secret = visit.session.token if visit.session else ""
        trail.ask(visit.request.namespace, "")
        try:
            # No guess of a secret, so it is not counted: that of a session was right once.
            caller = self._parts.tokens.resolve(secret, visit.request.address)
        except UnknownToken:
            await visit.sign_out()
            visit.has_ended, secret = True, ""
            caller = self._parts.tokens.resolve("")
        trail.known(caller.token.accessor)
        visit.request = msgspec.structs.replace(visit.request, token=secret, caller=caller)


def _cookie(is_secure: bool) -> str:
    return SECURE_COOKIE if is_secure else COOKIE


def _names(headers: Mapping[str, str], *, is_secure: bool) -> list[str]:
    """Return what the cookies of our name say; those of other services have any form."""
    pairs = (one.strip().partition("=") for one in headers.get("cookie", "").split(";"))
    return [value for name, _, value in pairs if name == _cookie(is_secure)]


def _word(value: object) -> str:
    """Return a value as a query has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _complaint(body: bytes, kind: str) -> str:
    """Return what a refusal says: of a document of the secrets side its errors."""
    if kind != JSON:
        return body.decode()
    said = msgspec.json.decode(body)
    if said is None:
        return "this cannot be asked for"
    errors = said.get("errors") if isinstance(said, dict) else None
    return "; ".join(str(one) for one in errors) if errors else body.decode()


def _refusal(visit: Visit, headers: Mapping[str, str]) -> str:
    """Return why a form is not taken: it must come from a page of ours, and of this session.

    The guard has compared `Origin` with our name already, and has looked at `Sec-Fetch-Site`;
    here one of them must be there.
    """
    if not (headers.get("origin") or headers.get("sec-fetch-site")):
        return "forms are taken from browsers: this request has neither Origin nor Sec-Fetch-Site"
    kind = headers.get("content-type", "").partition(";")[0].strip()
    if kind != "application/x-www-form-urlencoded":
        return "a form must be sent as application/x-www-form-urlencoded"
    if not hmac.compare_digest(visit.form.get(PROOF, "").encode(), visit.proof.encode()):
        return "this page is of another session: load it again"
    return ""
