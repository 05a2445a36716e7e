"""Replies of handlers, and their conversion to HTTP responses.

Only this module maps errors of the jobs API to statuses. Where Nomad reports an error of the client
as 500, Steward does the same with Nomad's text, because scripts match it. docs/compatibility.md
lists these cases.
"""

import gzip
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence

import msgspec

from daemon.web.parameters import InvalidParameter
from storage.errors import (
    CredentialRejected,
    Denied,
    Invalid,
    Malformed,
    NotFound,
    Refused,
    StewardError,
    StorageError,
    StorageFull,
    StorageUnavailable,
    TooLarge,
    TooOften,
    Unavailable,
)
from storage.read_pool import ReadSnapshot
from storage.records.codec import encode

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"
_CONTROLS = re.compile(r"[\x00-\x1f\x7f]")  # invalid in headers, but possible in identifiers
_OF_CONTENT = {"X-Content-Type-Options": "nosniff"}  # a browser must not guess another type
_RETRY_AFTER = "1"  # seconds; a failed write has already waited for the lock
_RETRY_PART_AFTER = "5"  # seconds; the failed request has already waited before
_GZIP_LEVEL = 1  # the client requested compression, but loopback does not need it

# First match wins: a subclass comes before its base.
_STATUS: tuple[tuple[type[StewardError], int], ...] = (
    (InvalidParameter, 500),
    (Malformed, 400),
    (TooLarge, 413),
    (TooOften, 429),
    (Denied, 403),
    (NotFound, 404),
    (Invalid, 500),
    (CredentialRejected, 401),
    (Refused, 500),
    (Unavailable, 503),
    (StorageFull, 507),
    (StorageError, 503),
)

_LEADER, _NO_LEADER = (
    {
        f"X-{by}-{name}": value
        for by in ("Service", "Nomad")
        for name, value in (("KnownLeader", has_leader), ("LastContact", "0"))
    }
    for has_leader in ("true", "false")
)


class ListPart(msgspec.Struct, frozen=True):
    """A part of a long list: some elements in JSON, one for each item of `lines`.

    `rest` reads the next part, and is None for the last part. If `is_cut` is true, an item of
    `lines` may be only a piece of an element.
    """

    lines: list[bytes]
    rest: "Callable[[ReadSnapshot], ListPart] | None" = None
    is_cut: bool = False


class HandlerReply(msgspec.Struct, frozen=True, kw_only=True):
    """The reply of a handler.

    `body` is encoded as JSON. Bytes are already JSON, and None means no body. `index` is the state
    index of the response. With `is_read`, the headers say whether a leader is known. When the
    daemon stops, an endless stream ends as if it were complete. `part` is the first part of a long
    list. If `later` is set, the reply is not complete: `later` reads more and returns the
    next reply.
    """

    body: object = None
    index: int | None = None
    status: int = 200
    is_read: bool = False
    knows_leader: bool = True
    next_token: str = ""
    content_type: str = JSON
    headers: Mapping[str, str] = {}
    stream: AsyncIterator[bytes] | None = None
    is_endless: bool = False
    part: ListPart | None = None
    later: "Callable[[ReadSnapshot], HandlerReply] | None" = None


_WARNING = "X-Steward-Warning"


class WireResponse(msgspec.Struct, frozen=True):
    """A response without the protocol's own headers: length and date."""

    status: int
    headers: dict[str, str]
    body: bytes = b""
    stream: AsyncIterator[bytes] | None = None  # the body in chunks, instead of `body`


def read_reply(body: object, index: int, *, next_token: str = "") -> HandlerReply:
    """Return the reply of a read: the body, and its index."""
    return HandlerReply(body=body, index=index, is_read=True, next_token=next_token)


def listed(lines: Iterable[bytes]) -> bytes:
    """Return JSON elements as a JSON list."""
    return b"[" + b",".join(lines) + b"]"


def text(body: str, status: int = 200) -> HandlerReply:
    """Return a reply in plain text."""
    return HandlerReply(body=body.encode(), status=status, content_type=TEXT)


def not_allowed(methods: Iterable[str]) -> HandlerReply:
    """Return the reply to a method that a path does not have; `methods` are those that it has."""
    allow = ", ".join(sorted(set(methods)))
    return msgspec.structs.replace(text("Invalid method", 405), headers={"Allow": allow})


def with_remarks(reply: HandlerReply, remarks: Sequence[str]) -> HandlerReply:
    """Return a reply with further warnings in a header, for bodies without a field for warnings."""
    if not remarks:
        return reply
    earlier = reply.headers.get(_WARNING)
    headers = {**reply.headers, _WARNING: "; ".join([*filter(None, [earlier]), *remarks])}
    return msgspec.structs.replace(reply, headers=headers)


def message_reply(reply: HandlerReply) -> str:
    """Return the text of a plain-text reply."""
    return reply.body.decode(errors="replace") if isinstance(reply.body, bytes) else ""


def of_error(error: StewardError) -> HandlerReply:
    """Return the reply for an error."""
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
    index = error.index if isinstance(error, NotFound) else None
    return HandlerReply(
        body=str(error).encode(),
        status=status,
        content_type=TEXT,
        index=index,
        is_read=index is not None,
        headers=retry_headers(error),
    )


def retry_headers(error: StewardError) -> dict[str, str]:
    """Return the `Retry-After` header for an error, or no header if a retry cannot succeed."""
    if isinstance(error, TooOften) and error.retry_after:
        return {"Retry-After": str(error.retry_after)}
    if isinstance(error, Unavailable):
        return {"Retry-After": _RETRY_PART_AFTER}
    return {"Retry-After": _RETRY_AFTER} if isinstance(error, StorageUnavailable) else {}


def to_wire(reply: HandlerReply, *, pretty: bool = False, gzipped: bool = False) -> WireResponse:
    """Return the final response, optionally indented or compressed."""
    has_content = reply.body is not None or reply.stream is not None
    headers = _state_headers(reply)
    if has_content or "Content-Type" in reply.headers:
        headers |= {"Content-Type": reply.content_type, **_OF_CONTENT}
    for name, value in reply.headers.items():
        headers[name] = _in_header(value)
    if reply.stream is not None:
        return WireResponse(reply.status, headers, stream=reply.stream)
    if reply.body is None:
        return WireResponse(reply.status, headers)
    body = _body(reply, pretty=pretty)
    if gzipped:
        headers["Content-Encoding"] = "gzip"
        body = gzip.compress(body, _GZIP_LEVEL, mtime=0)
    return WireResponse(reply.status, headers, body)


def _in_header(value: str) -> str:
    """Return a value in a form that is valid in a header: one line, in UTF-8."""
    return _CONTROLS.sub(" ", value).encode(errors="replace").decode()


def _body(reply: HandlerReply, *, pretty: bool) -> bytes:
    body = reply.body if isinstance(reply.body, bytes) else encode(reply.body)
    if pretty and reply.content_type == JSON:
        return msgspec.json.format(body, indent=4) + b"\n"
    return body


def _state_headers(reply: HandlerReply) -> dict[str, str]:
    """Return the headers about the state, under neutral names and under Nomad's names."""
    state = {}
    if reply.index is not None:
        state["X-Service-Index"] = state["X-Nomad-Index"] = str(reply.index)
    if reply.is_read:
        state |= _LEADER if reply.knows_leader else _NO_LEADER
    if reply.next_token:
        state["X-Service-NextToken"] = state["X-Nomad-NextToken"] = _in_header(reply.next_token)
    return state
