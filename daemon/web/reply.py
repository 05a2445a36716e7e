"""Answers: what a handler returns, and what the wire gets.

Here alone an error becomes a status. Where the peer answers a client's mistake with 500, so do
we, with its text, because scripts match it: docs/compatibility.md lists them all.
"""

import gzip
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence

import msgspec

from daemon.web.parameters import BadParameter
from storage.errors import (
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
)
from storage.readers import Snapshot
from storage.records.codec import encode

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"
_CONTROLS = re.compile(r"[\x00-\x1f\x7f]")  # no header may hold them, identifiers may
_OF_CONTENT = {"X-Content-Type-Options": "nosniff"}  # a browser takes the type that it is told
_RETRY_AFTER = "1"  # seconds; a write that failed has waited for the lock already
_GZIP_LEVEL = 1  # loopback: the client asked for it, the wire does not need it

# First match wins: a subclass stands before its base.
_STATUS: tuple[tuple[type[StewardError], int], ...] = (
    (BadParameter, 500),
    (Malformed, 400),
    (TooLarge, 413),
    (TooOften, 429),
    (Denied, 403),
    (NotFound, 404),
    (Invalid, 500),
    (Refused, 500),
    (StorageFull, 507),
    (StorageError, 503),
)

_LEADER, _NO_LEADER = (
    {
        f"X-{by}-{name}": value
        for by in ("Service", "Nomad")
        for name, value in (("KnownLeader", known), ("LastContact", "0"))
    }
    for known in ("true", "false")
)


class Part(msgspec.Struct, frozen=True):
    """Some elements of a list, as JSON, and what reads the next ones; None at the end."""

    lines: list[bytes]
    rest: "Callable[[Snapshot], Part] | None" = None


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """What a handler answers.

    `body` is encoded as JSON; bytes are JSON already, None is no body at all. `index` is the state's
    index that the answer shows; reads also say that a leader is known. A stream that is endless ends
    with the daemon, as if that were its end. A list that is too long for one piece is given by its first
    `part`. `later`: more has to be read until the answer is known.
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
    part: Part | None = None
    later: "Callable[[Snapshot], Reply] | None" = None


class Finished(msgspec.Struct, frozen=True):
    """An answer as the wire gets it, but for what the protocol adds: length and date."""

    status: int
    headers: dict[str, str]
    body: bytes = b""
    stream: AsyncIterator[bytes] | None = None  # instead of a body


def read(body: object, index: int, *, next_token: str = "") -> Reply:
    """Return the answer of a read: the body, and the index that it shows."""
    return Reply(body=body, index=index, is_read=True, next_token=next_token)


def listed(lines: Iterable[bytes]) -> bytes:
    """Return elements, which are JSON, as a JSON list."""
    return b"[" + b",".join(lines) + b"]"


def text(body: str, status: int = 200) -> Reply:
    """Return an answer in plain text."""
    return Reply(body=body.encode(), status=status, content_type=TEXT)


def with_remarks(reply: Reply, remarks: Sequence[str]) -> Reply:
    """Return an answer that also says what was passed over of its request, where it has no warnings."""
    if not remarks:
        return reply
    headers = {**reply.headers, "X-Steward-Warning": "; ".join(remarks)}
    return msgspec.structs.replace(reply, headers=headers)


def said(reply: Reply) -> str:
    """Return the text of an answer that is one."""
    return reply.body.decode(errors="replace") if isinstance(reply.body, bytes) else ""


def of_error(error: StewardError) -> Reply:
    """Return the answer that tells of an error."""
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
    index = error.index if isinstance(error, NotFound) else None
    return Reply(
        body=str(error).encode(),
        status=status,
        content_type=TEXT,
        index=index,
        is_read=index is not None,
        headers=retry_headers(error),
    )


def retry_headers(error: StewardError) -> dict[str, str]:
    """Return the header that names the seconds after which a retry may succeed, if one may."""
    return {"Retry-After": _RETRY_AFTER} if isinstance(error, StorageUnavailable) else {}


def finished(reply: Reply, *, pretty: bool = False, gzipped: bool = False) -> Finished:
    """Return an answer in the form that a door sends."""
    has_content = reply.body is not None or reply.stream is not None
    headers = _state_headers(reply)
    if has_content or "Content-Type" in reply.headers:
        headers |= {"Content-Type": reply.content_type, **_OF_CONTENT}
    for name, value in reply.headers.items():
        headers[name] = _in_header(value)
    if reply.stream is not None:
        return Finished(reply.status, headers, stream=reply.stream)
    if reply.body is None:
        return Finished(reply.status, headers)
    body = _body(reply, pretty=pretty)
    if gzipped:
        headers["Content-Encoding"] = "gzip"
        body = gzip.compress(body, _GZIP_LEVEL, mtime=0)
    return Finished(reply.status, headers, body)


def _in_header(value: str) -> str:
    """Return a value as it can stand in a header: one line, which can be written in UTF-8."""
    return _CONTROLS.sub(" ", value).encode(errors="replace").decode()


def _body(reply: Reply, *, pretty: bool) -> bytes:
    body = reply.body if isinstance(reply.body, bytes) else encode(reply.body)
    if pretty and reply.content_type == JSON:
        return msgspec.json.format(body, indent=4) + b"\n"
    return body


def _state_headers(reply: Reply) -> dict[str, str]:
    """Return what tells of the state, in neutral and vendor spelling: clients of either find theirs."""
    state = {}
    if reply.index is not None:
        state["X-Service-Index"] = state["X-Nomad-Index"] = str(reply.index)
    if reply.is_read:
        state |= _LEADER if reply.knows_leader else _NO_LEADER
    if reply.next_token:
        state["X-Service-NextToken"] = state["X-Nomad-NextToken"] = _in_header(reply.next_token)
    return state
