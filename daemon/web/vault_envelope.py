"""Responses of the Vault API: the envelope, and errors.

Only this module maps errors of the Vault API to statuses. As in Vault, 400 means invalid input, and
500 means any other error of a login method. Some error texts have the format in which Vault lists
several errors ("1 error occurred: …").
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing

import msgspec

from daemon.text.go_format import multi_error
from daemon.web.reply import HandlerReply, retry_headers
from storage.errors import (
    Denied,
    Invalid,
    Malformed,
    NotFound,
    Refused,
    StewardError,
    StorageError,
    StorageFull,
    TooLarge,
    TooOften,
    Unavailable,
    UnknownToken,
)
from storage.records.codec import encode

_NO_DATA = b'"data":{}'
_DENIED = "permission denied"
_UNREPEATED = (
    "sys/internal/ui/",
    "sys/leases/lookup/",
    "sys/policies/",
    "sys/remount/status/",
    "sys/version-history",
    "sys/wrapping/",
)
_HEADERS = {"Cache-Control": "no-store", "Content-Type": "application/json"}

# First match wins: a subclass comes before its base.
_STATUS: tuple[tuple[type[StewardError], int], ...] = (
    (Malformed, 400),
    (Invalid, 400),
    (TooLarge, 413),
    (TooOften, 429),
    (NotFound, 404),
    (Denied, 403),
    (Refused, 500),
    (Unavailable, 503),
    (StorageFull, 507),
    (StorageError, 503),
)


class VaultBody(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a call, which may be empty.

    For long data, `members` yields the JSON text of the members of `data`, in chunks.
    """

    data: Mapping[str, object] | msgspec.Raw | None = None
    auth: object = None
    wrap_info: object = None
    warnings: Sequence[str] = ()
    members: AsyncGenerator[bytes, None] | None = None

    @property
    def is_empty(self) -> bool:
        """Return whether the result is empty."""
        has_data = self.data is not None or self.members is not None
        return not has_data and not (self.auth or self.wrap_info or self.warnings)


class _Envelope(msgspec.Struct, frozen=True, kw_only=True):
    request_id: str
    lease_id: str = ""
    renewable: bool = False
    lease_duration: int = 0
    data: Mapping[str, object] | msgspec.Raw | None
    wrap_info: object
    warnings: Sequence[str] | None
    auth: object


def enveloped(answer: VaultBody, *, path: str, request_id: str) -> HandlerReply:
    """Return a response in its envelope; an empty response has no body.

    Below `sys/`, older endpoints repeat every key of the data at the top level, as in Vault.
    """
    if answer.is_empty:
        return bodiless(204)
    envelope = _Envelope(
        request_id=request_id,
        data=answer.data,
        wrap_info=answer.wrap_info,
        warnings=answer.warnings or None,
        auth=answer.auth,
    )
    is_repeated = path.startswith("sys/") and not path.startswith(_UNREPEATED)
    if answer.members is not None:
        envelope_text = encode(msgspec.structs.replace(envelope, data={}))
        stream = _enveloped_stream(envelope_text, answer.members, is_repeated=is_repeated)
        return HandlerReply(stream=stream, headers=_HEADERS)
    body: object = envelope
    if answer.data and isinstance(answer.data, Mapping) and is_repeated:
        body = {**answer.data, **msgspec.structs.asdict(envelope)}
    return HandlerReply(body=body, headers=_HEADERS)


async def _enveloped_stream(
    envelope: bytes, members: AsyncGenerator[bytes, None], *, is_repeated: bool
) -> AsyncGenerator[bytes, None]:
    """Yield an envelope, and insert `members` into its empty `data`.

    With `is_repeated`, insert them at the top level too.
    """
    begin, _, end = envelope.partition(_NO_DATA)
    begin += _NO_DATA[:-1]
    read: list[bytes] = []
    async with aclosing(members):
        yield begin[:1] if is_repeated else begin
        async for chunk in members:
            if is_repeated:
                read.append(chunk)
            yield chunk
    if is_repeated:
        yield b"," + begin[1:]
        for chunk in read:
            yield chunk
    yield b"}" + end


def plain(body: object, status: int = 200) -> HandlerReply:
    """Return a response without an envelope."""
    return HandlerReply(body=body, status=status, headers=_HEADERS)


def bodiless(status: int) -> HandlerReply:
    """Return a response with only a status."""
    return HandlerReply(status=status, headers=_HEADERS)


def errors(status: int, *texts: str) -> HandlerReply:
    """Return an error response with these texts."""
    return HandlerReply(body={"errors": texts}, status=status, headers=_HEADERS)


def listed(status: int, text: str) -> HandlerReply:
    """Return an error response whose text has the format of Vault's lists of errors."""
    return errors(status, multi_error([text]))


def of_error(error: StewardError, *, is_login: bool) -> HandlerReply:
    """Return the response for an error.

    The text of `Refused` and `Denied` becomes a list with one element, except for a login and for
    an unknown token. Other texts are sent unchanged.
    """
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
    text = _DENIED if isinstance(error, Denied) else str(error)
    if isinstance(error, Refused | Denied) and not (is_login or isinstance(error, UnknownToken)):
        return listed(status, text)
    reply = errors(status, text) if text else errors(status)
    return msgspec.structs.replace(reply, headers={**reply.headers, **retry_headers(error)})
