"""Answers of the secrets side: the envelope around what a call gives back, and errors as a list.

Here alone an error of that side becomes a status. Clients there know 400 for what they sent
wrongly, and 500, with the text in a list of one, for what a method refused.
"""

from collections.abc import Mapping, Sequence

import msgspec

from daemon.jobspec.gotext import multi_error
from daemon.web.reply import Reply, retry_headers
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
    UnknownToken,
)

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

# First match wins: a subclass stands before its base.
_STATUS: tuple[tuple[type[StewardError], int], ...] = (
    (Malformed, 400),
    (Invalid, 400),
    (TooLarge, 413),
    (TooOften, 429),
    (NotFound, 404),
    (Denied, 403),
    (Refused, 500),
    (StorageFull, 507),
    (StorageError, 503),
)


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a call gives back; nothing at all is an answer as well."""

    data: Mapping[str, object] | None = None
    auth: object = None
    wrap_info: object = None
    warnings: Sequence[str] = ()

    @property
    def is_empty(self) -> bool:
        """Tell whether there is nothing to say."""
        return self.data is None and not (self.auth or self.wrap_info or self.warnings)


class _Envelope(msgspec.Struct, frozen=True, kw_only=True):
    request_id: str
    lease_id: str = ""
    renewable: bool = False
    lease_duration: int = 0
    data: Mapping[str, object] | None
    wrap_info: object
    warnings: Sequence[str] | None
    auth: object


def enveloped(answer: Answer, *, path: str, request_id: str) -> Reply:
    """Return an answer in its envelope; one that says nothing has no body.

    Below `sys/`, except for what is newer than that custom, every key of the data stands beside
    the envelope's own as well.
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
    body: object = envelope
    if answer.data and path.startswith("sys/") and not path.startswith(_UNREPEATED):
        body = {**answer.data, **msgspec.structs.asdict(envelope)}
    return Reply(body=body, headers=_HEADERS)


def plain(body: object, status: int = 200) -> Reply:
    """Return an answer that has no envelope."""
    return Reply(body=body, status=status, headers=_HEADERS)


def bodiless(status: int) -> Reply:
    """Return an answer that is a status only."""
    return Reply(status=status, headers=_HEADERS)


def errors(status: int, *texts: str) -> Reply:
    """Return an answer that tells of errors."""
    return Reply(body={"errors": texts}, status=status, headers=_HEADERS)


def listed(status: int, text: str) -> Reply:
    """Return an answer that tells of an error in the form of a list of one."""
    return errors(status, multi_error([text]))


def of_error(error: StewardError, *, is_login: bool) -> Reply:
    """Return the answer that tells of an error.

    What a login or the search for a token's holder refuses stands as it is, the rest as a list.
    """
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
    text = _DENIED if isinstance(error, Denied) else str(error)
    if isinstance(error, Refused | Denied) and not (is_login or isinstance(error, UnknownToken)):
        return listed(status, text)
    reply = errors(status, text) if text else errors(status)
    return msgspec.structs.replace(reply, headers={**reply.headers, **retry_headers(error)})
