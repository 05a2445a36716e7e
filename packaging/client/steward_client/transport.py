"""HTTP with retries: single requests, streams of lines, and the caller's token.

After a failure, a request is repeated if the server cannot have acted on it, or if it is
`repeatable`. A caller marks a request as repeatable if a repetition has no second effect. Examples
are reads, and writes with an idempotency token.
"""

import math
import random
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import Protocol, Self, TypeVar
from urllib.parse import quote, urlsplit

import anyio
import httpx
import msgspec

from steward_client.errors import Denied, InvalidResponse, Unreachable, error_of
from steward_client.wire import UNREADABLE, decode

T = TypeVar("T")
QueryValue = str | int | bool
Query = Mapping[str, QueryValue | list[str] | None]

_CONNECT_WITHIN = 10.0  # timeout in seconds
_ANSWER_WITHIN = 60.0
_SILENT_WITHIN = 45.0  # between chunks; the server sends a keep-alive every ten seconds
LONGEST_PIECE = 64 * 1024 * 1024  # bytes of one object in a stream
_RETRIED = frozenset({429, 502, 503, 504})
_REFUSED = frozenset({429})
_ENCODER = msgspec.json.Encoder()


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of retries, in seconds. The delay between retries doubles up to the longest delay."""

    within: float = 60.0
    first_delay: float = 0.1
    longest_delay: float = 5.0

    def delay(self, attempt: int, chance: float) -> float:
        """Return the delay in seconds after an attempt (0 is the first).

        `chance` is a random number between 0 and 1.
        """
        longest: float = min(self.first_delay * 2.0**attempt, self.longest_delay)
        return longest * (0.5 + chance / 2)


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A response: its body, its index (`X-Nomad-Index`), and the token of the next page."""

    status: int
    body: bytes
    index: int = 0
    next_token: str = ""

    def decode(self, kind: type[T]) -> T:
        """Return the decoded body. Raises `InvalidResponse`."""
        return decode(self.body, kind)


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """A request. `wait` is the time in seconds that a blocking query may take."""

    method: str
    path: str
    query: Query = {}
    body: object = None
    repeatable: bool = False
    wait: float = 0.0
    token: str | None = None  # sent instead of the token of the connection


class TokenSource(Protocol):
    """The source of the token that all requests send."""

    async def token(self) -> str:
        """Return the current token; empty if there is none."""
        ...

    async def replace(self, token: str) -> bool:
        """Replace a token that the server rejected; return whether there is another token."""
        ...


class StaticToken:
    """A token that does not change."""

    def __init__(self, token: str) -> None:
        """Raise `ValueError` for a token that no header can contain. The error does not show it."""
        if token and not (token.isascii() and token.isprintable() and " " not in token):
            raise ValueError(
                "the token contains a line break, a space or another invalid character; if it "
                "comes from a file, remove the end of the line, for example with strip()"
            )
        self._token = token

    async def token(self) -> str:
        """Return the token."""
        return self._token

    async def replace(self, token: str) -> bool:
        """Return False: there is no other token."""
        return False


class Chunks:
    """The body of a response, piece by piece. Raises `Unreachable` when the connection breaks."""

    def __init__(self, response: httpx.Response, address: str) -> None:
        self._response, self._address = response, address
        self._pieces = response.aiter_bytes()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        try:
            return await anext(self._pieces)
        except httpx.TransportError as error:
            raise _unreachable(self._address, error) from error

    async def aclose(self) -> None:
        """Close the connection."""
        await self._response.aclose()
        # Read to the end, although only data that has already arrived is left. Otherwise Trio would
        # report the generators of the HTTP library as abandoned.
        with suppress(httpx.HTTPError, httpx.StreamError):
            async for _ in self._pieces:
                pass


class Lines:
    """The complete lines of a stream. An incomplete last line is omitted."""

    def __init__(self, chunks: Chunks) -> None:
        self._chunks = chunks
        self._lines: deque[bytes] = deque()
        self._rest = b""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        while not self._lines:
            if len(self._rest) > LONGEST_PIECE:
                raise InvalidResponse(f"a line of the stream has more than {LONGEST_PIECE} bytes")
            *lines, self._rest = (self._rest + await anext(self._chunks)).split(b"\n")
            self._lines.extend(lines)
        return self._lines.popleft()


class Connection:
    """The connections to one server."""

    def __init__(
        self,
        address: str,
        *,
        namespace: str,
        region: str,
        retry: Retry,
        verify: ssl.SSLContext | bool,
        transport: httpx.AsyncBaseTransport | None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        socket = _socket_of(address)
        if socket and transport is None:
            transport = httpx.AsyncHTTPTransport(uds=socket)
        self.address = "http://localhost" if socket else address.rstrip("/")
        self.given_address = address  # for errors
        self.socket = socket
        self.verify = verify
        self.namespace = namespace
        self.region = region
        self.retry = retry
        self.tokens: TokenSource = StaticToken("")
        self._chance = chance
        self._http = httpx.AsyncClient(
            verify=verify,
            transport=transport,
            timeout=httpx.Timeout(_ANSWER_WITHIN, connect=_CONNECT_WITHIN, pool=None),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
        )

    async def __aenter__(self) -> Self:
        await self._http.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._http.__aexit__(kind, error, traceback)

    # --- requests ---

    async def send(self, call: Call) -> Answer:
        """Return the response. Raises `ApiError` and `Unreachable`."""
        last = anyio.current_time() + self.retry.within
        attempt = 0
        while True:
            try:
                return await self._authorized(call)
            except Unreachable as error:
                delay = error.retry_after or self.delay(attempt)
                may_repeat = call.repeatable or error.refused
                if error.untrusted or not may_repeat or anyio.current_time() + delay > last:
                    raise
            await anyio.sleep(delay)
            attempt += 1

    def delay(self, attempt: int) -> float:
        """Return the delay in seconds after an attempt (0 is the first)."""
        return self.retry.delay(attempt, self._chance())

    async def _authorized(self, call: Call) -> Answer:
        """Send a request with the current token, or with a new one if the token is not valid."""
        token = await self.tokens.token() if call.token is None else call.token
        try:
            return await self._once(call, token)
        except Denied:
            if call.token is not None or not await self.tokens.replace(token):
                raise
        return await self._once(call, await self.tokens.token())

    async def _once(self, call: Call, token: str) -> Answer:
        try:
            response = await self._http.send(self._request(call, token, call.wait))
        except httpx.TransportError as error:
            raise _unreachable(self.given_address, error) from error
        return _answer(response)

    def _request(self, call: Call, token: str, wait: float) -> httpx.Request:
        if not call.path.startswith("/"):  # it would become a part of the host name
            raise ValueError(f"the path {call.path!r} does not start with /")
        headers = dict(headers_of(token))
        content = None
        if call.body is not None:
            headers["Content-Type"] = "application/json"
            content = call.body if isinstance(call.body, bytes) else _ENCODER.encode(call.body)
        timeout = httpx.Timeout(_ANSWER_WITHIN + wait * 17 / 16, connect=_CONNECT_WITHIN, pool=None)
        return self._http.build_request(
            call.method,
            f"{self.address}{call.path}",
            params=httpx.QueryParams(self.query(call.query)),
            content=content,
            headers=headers,
            timeout=timeout,
        )

    def query(self, query: Query) -> list[tuple[str, str | int | float | bool | None]]:
        """Return query parameters in wire form, with the namespace and region of the connection."""
        parameters = {"namespace": self.namespace, "region": self.region, **query}
        return [
            (name, _text(entry))
            for name, value in parameters.items()
            if value is not None and value != ""
            for entry in (value if isinstance(value, list) else [value])
        ]

    # --- streams ---

    @asynccontextmanager
    async def stream(self, call: Call) -> AsyncIterator[Chunks]:
        """Open a stream; yield its chunks.

        Raises `ApiError` and `Unreachable`. Reading a chunk can also raise `Unreachable`.

        A stream is not repeated, because only its reader knows the position at which to continue.
        """
        token = await self.tokens.token()
        request = self._request(call, token, 0)
        request.extensions["timeout"] = httpx.Timeout(
            _SILENT_WITHIN, connect=_CONNECT_WITHIN, pool=None
        ).as_dict()
        try:
            response = await self._http.send(request, stream=True)
        except httpx.TransportError as error:
            raise _unreachable(self.given_address, error) from error
        if not response.is_success:
            await self._refuse(response, token)
        chunks = Chunks(response, self.given_address)
        try:
            yield chunks
        finally:
            with anyio.CancelScope(shield=True):
                await chunks.aclose()

    async def _refuse(self, response: httpx.Response, token: str) -> None:
        try:
            await response.aread()
        except httpx.TransportError as error:
            raise _unreachable(self.given_address, error) from error
        try:
            _answer(response)
        except Denied as error:
            if await self.tokens.replace(token):
                raise Unreachable("the token was replaced", refused=True) from error
            raise


def _socket_of(address: str) -> str | None:
    """Return the path of the socket at an address, or None for HTTP. Raises `ValueError`."""
    target = urlsplit(address)
    if target.scheme == "unix" and target.path.strip("/"):
        return target.path
    try:
        is_port_valid = target.port != 0
    except ValueError:  # not a number from 0 to 65535
        is_port_valid = False
    if target.scheme not in ("http", "https") or not target.hostname or not is_port_valid:
        raise ValueError(
            f"the address {address!r} is not http://HOST:PORT, https://HOST:PORT or unix:///PATH"
        )
    return None


def _unreachable(address: str, error: httpx.TransportError) -> Unreachable:
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        return not_connected(address, error)
    return Unreachable(f"{address}: {str(error) or type(error).__name__}")


def not_connected(address: str, error: Exception) -> Unreachable:
    """Return the error for a connection that could not be opened."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLCertVerificationError):
        cause = cause.__cause__ or cause.__context__
    if cause is not None:
        message = f"the server's certificate is not trusted: {cause.verify_message}"
        return Unreachable(f"{address}: {message}", refused=True, untrusted=True)
    return Unreachable(f"{address}: {str(error) or type(error).__name__}", refused=True)


def segment(text: str) -> str:
    """Return an identifier, encoded as a segment of a path."""
    return quote(text, safe="")


def headers_of(token: str) -> Mapping[str, str]:
    """Return the headers that send a token; empty for no token."""
    return {"X-Nomad-Token": token} if token else {}


def _text(value: QueryValue) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _answer(response: httpx.Response) -> Answer:
    status = response.status_code
    if status in _RETRIED:
        raise Unreachable(
            f"{error_of(status, response.text.strip())}",
            refused=status in _REFUSED,
            retry_after=_number(response.headers.get("Retry-After", "")),
        )
    if not response.is_success:  # including a redirect: the server has not acted
        raise error_of(status, _message(response))
    return Answer(
        status=status,
        body=response.content,
        index=int(_number(response.headers.get("X-Nomad-Index", "")) or 0),
        next_token=response.headers.get("X-Nomad-NextToken", ""),
    )


class _Errors(msgspec.Struct):
    errors: list[str]


def _message(response: httpx.Response) -> str:
    """Return the text of an error. The Vault API sends a list of strings."""
    if not response.content.startswith(b'{"errors"'):
        return response.text.strip()
    try:
        return "; ".join(msgspec.json.decode(response.content, type=_Errors).errors)
    except UNREADABLE:
        return response.text.strip()


def _number(text: str) -> float | None:
    """Return the number in a header; None if it is not a finite number of at least 0."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0 <= number < math.inf else None
