"""HTTP requests to a cloud, with limits on time, size and attempts, and without redirects.

After a temporary error, a request is repeated. The pause before it is the one in the response
(`Retry-After`), or else a growing, slightly random pause. With `CLOUD_SDK_LOG_LEVEL=DEBUG`,
requests and responses are logged, with secrets masked.
"""

import logging
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlencode

import msgspec
import trio

from daemon.version import VERSION
from storage.errors import Malformed, Refused
from storage.records import json_steps
from storage.records.codec import may_have_more_values
from storage.records.identity import MethodConfig

if TYPE_CHECKING:
    import httpx

log = logging.getLogger("steward.identity.cloud")

T = TypeVar("T")

MAX_ANSWER = 4 * 1024 * 1024  # bytes; a list of a thousand identities has half a MiB
MOST_VALUES = 40_000  # values of a response; the event loop decodes these in some milliseconds
MAX_SHOWN = 4096  # characters of a response in an error
ATTEMPT = 30.0  # seconds that one attempt may take
_CONNECT = 10.0  # seconds to get a connection
_KEEP_ALIVE = 60.0  # seconds that an idle connection stays open
_CONNECTIONS = 20
_LONGEST_PAUSE = 120.0  # seconds, even if the cloud asks for more
_AGAIN = frozenset({408, 429, 500, 502, 503, 504})
_RULER = "-" * 80
_SECRETS = re.compile(
    r'((?:client_secret|client_assertion|assertion)=)[^&\s]+|("(?:access_token|client_secret|'
    r'secretText|client_assertion|refresh_token|id_token)"\s*:\s*")(?:[^"\\]|\\.)*'
)


class CloudRequestFailed(Refused):
    """The login cannot be verified: the cloud reports an error, or is not available."""


class CloudUnreachable(CloudRequestFailed):
    """The cloud did not answer."""


class RetryPolicy(msgspec.Struct, frozen=True):
    """The number of retries of a request, and the delays in seconds."""

    times: int = 0
    delay: float = 0.0
    longest: float = 0.0

    @classmethod
    def of(cls, config: MethodConfig) -> "RetryPolicy":
        """Return the policy in a configuration; negative values count as 0."""
        return cls(
            min(max(config.max_retries, 0), 20),
            max(config.retry_delay, 0),
            max(config.max_retry_delay, 0),
        )

    def pause(self, attempt: int, delay: float | None, random: float) -> float:
        """Return the seconds before the next attempt; `random` is uniform in [0, 1)."""
        if delay is not None:
            return min(delay, _LONGEST_PAUSE)
        grown = self.delay * float(2**attempt)
        return min(grown, self.longest or grown, _LONGEST_PAUSE) * (0.8 + random / 2)


class CloudResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The response of the cloud to one request."""

    method: str
    url: str
    status: int
    reason: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def is_good(self) -> bool:
        """Return whether the status reports success."""
        return 200 <= self.status < 300

    @property
    def text(self) -> str:
        """Return the beginning of the body as text, for logs and errors, with masked secrets."""
        return _masked(self.body.decode(errors="replace")[:MAX_SHOWN])

    def described(self, *, with_code: bool = True) -> str:
        """Format the response as the cloud's client libraries do in their errors."""
        head = f"{self.method} {self.url.partition('?')[0]}\n{_RULER}\n"
        status = f"RESPONSE {self.status}: {self.status} {self.reason}\n"
        code = self._code()
        code_line = f"ERROR CODE: {code}\n" if code else "ERROR CODE UNAVAILABLE\n"
        return (
            f"{head}{status}{code_line if with_code else ''}{_RULER}\n{self._shown()}\n{_RULER}\n"
        )

    def _code(self) -> str:
        problem = decoded(self.body, _Problem)
        return problem.error.code if problem and problem.error else ""

    def _shown(self) -> str:
        try:
            return msgspec.json.format(self.text, indent=2)
        except (msgspec.DecodeError, RecursionError):
            return self.text or "Response contained no body"


class _Error(msgspec.Struct, frozen=True):
    code: str = ""
    message: str = ""


class _Problem(msgspec.Struct, frozen=True):
    error: _Error | None = None


def message_of(response: CloudResponse) -> str:
    """Return the cloud's error message, or the formatted response if it has no message."""
    problem = decoded(response.body, _Problem)
    if problem and problem.error and problem.error.message:
        return problem.error.message
    return response.described()


def decoded(body: bytes, kind: type[T]) -> T | None:
    """Decode a JSON body as a record. Null stands for an absent value, as in the cloud's libraries.

    Return None if the body is invalid, or if it may have more than `MOST_VALUES` values.
    """
    if len(body) > MOST_VALUES and may_have_more_values(
        body, MOST_VALUES
    ):  # a value has at least one byte
        return None
    try:
        if b"null" not in body:
            return json_steps.decode_as(body, kind)
        return msgspec.convert(_without_nulls(json_steps.decode(body)), kind)
    except (Malformed, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _without_nulls(value: object) -> object:
    """Return a JSON value without the null members and elements of its objects and lists."""
    if isinstance(value, dict):
        return {name: _without_nulls(item) for name, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value if item is not None]
    return value


class CloudHttp:
    """Connections to the cloud, kept open between requests."""

    def __init__(self, random: Callable[[], float], *, verbose: bool = False) -> None:
        self._random = random
        self._verbose = verbose
        self._client: httpx.AsyncClient | None = None
        self._direct: httpx.AsyncClient | None = None

    async def send(
        self,
        method: str,
        url: str,
        *,
        retries: RetryPolicy = RetryPolicy(),  # noqa: B008  # frozen
        headers: Mapping[str, str] | None = None,
        form: Mapping[str, str] | None = None,
        document: object = None,
        is_local: bool = False,
    ) -> CloudResponse:
        """Send a request and return the response. Raises `CloudUnreachable`.

        With `is_local`, the request bypasses the proxy, because the host itself answers it.
        """
        body, kind = _body(form, document)
        sent = {**(headers or {}), **kind}
        for attempt in range(retries.times + 1):
            try:
                response = await self._send_once(method, url, sent, body, is_local=is_local)
            except CloudUnreachable:
                if attempt == retries.times:
                    raise
                retry_after = None
            else:
                if response.status not in _AGAIN or attempt == retries.times:
                    return response
                retry_after = _retry_after(response.headers)
            await trio.sleep(retries.pause(attempt, retry_after, self._random()))
        raise AssertionError("unreachable")

    async def _send_once(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes, *, is_local: bool
    ) -> CloudResponse:
        self._log("%s %s %s", method, url, _masked(body.decode(errors="replace")))
        problem = f"no answer within {ATTEMPT:.0f} s"
        with trio.move_on_after(ATTEMPT):
            try:
                response = await self._received(method, url, headers, body, is_local=is_local)
            except _errors() as error:
                problem = str(error) or type(error).__name__
            else:
                self._log("%d %s: %s", response.status, url, response.text)
                return response
        self._log("%s %s failed: %s", method, url, problem)
        raise CloudUnreachable(f'{method.capitalize()} "{url}": {problem}')

    async def _received(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes, *, is_local: bool
    ) -> CloudResponse:
        client = self._connected(is_local=is_local)
        async with client.stream(method, url, headers=dict(headers), content=body) as answer:
            chunks, size = [], 0
            async for chunk in answer.aiter_raw():
                size += len(chunk)
                if size > MAX_ANSWER:
                    raise CloudUnreachable(
                        f'{method.capitalize()} "{url}": the answer is larger than {MAX_ANSWER} bytes'
                    )
                chunks.append(chunk)
            return CloudResponse(
                method=method,
                url=url,
                status=answer.status_code,
                reason=answer.reason_phrase,
                headers=dict(answer.headers),
                body=b"".join(chunks),
            )

    def _connected(self, *, is_local: bool) -> "httpx.AsyncClient":
        if is_local:
            self._direct = self._direct or _client(use_proxy=False)
            return self._direct
        self._client = self._client or _client(use_proxy=True)
        return self._client

    async def close(self) -> None:
        """Close all connections."""
        for client in (self._client, self._direct):
            if client:
                await client.aclose()

    def _log(self, form: str, *values: object) -> None:
        if self._verbose:
            log.info(form, *values)


def _client(*, use_proxy: bool) -> "httpx.AsyncClient":
    import httpx  # slow to import, and many daemons have no login methods

    return httpx.AsyncClient(
        timeout=httpx.Timeout(ATTEMPT, connect=_CONNECT),
        limits=httpx.Limits(max_connections=_CONNECTIONS, keepalive_expiry=_KEEP_ALIVE),
        follow_redirects=False,
        trust_env=use_proxy,
        headers={
            "User-Agent": f"steward/{VERSION}",
            "Accept": "application/json",
            "Accept-Encoding": "identity",  # a small response that expands to a huge one is rejected
        },
    )


def _errors() -> tuple[type[Exception], ...]:
    import httpx  # imported late: few daemons have login methods

    # The last one is raised for a host name that cannot be encoded.
    return (httpx.HTTPError, httpx.InvalidURL, httpx.CookieConflict, UnicodeError)


def _body(form: Mapping[str, str] | None, document: object) -> tuple[bytes, Mapping[str, str]]:
    if form is not None:
        return urlencode(form).encode(), {
            "Content-Type": "application/x-www-form-urlencoded; charset=utf-8"
        }
    if document is not None:
        return msgspec.json.encode(document), {"Content-Type": "application/json"}
    return b"", {}


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds to wait according to `Retry-After`, which may be a number or a date."""
    text = headers.get("retry-after", "")
    if text.isdecimal() and len(text) < 10:
        return float(text)
    try:
        until = parsedate_to_datetime(text)
        since = parsedate_to_datetime(headers["date"]) if "date" in headers else datetime.now(UTC)
        return max((until - since).total_seconds(), 0.0)
    except (ValueError, TypeError, OverflowError):  # not a date, or a date without a zone
        return None


def _masked(text: str) -> str:
    return _SECRETS.sub(lambda match: f"{match[1] or match[2]}***", text)
