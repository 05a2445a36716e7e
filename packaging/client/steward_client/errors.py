"""Errors of the client library, by their meaning.

ClientError
├ Unreachable        no usable response: no connection, or the server is overloaded
├ InvalidResponse    the response does not have the form of this API
├ ApiError           the server returned an error
│ ├ BadRequest       400, 413, 422: the request is wrong
│ ├ Denied           401, 403: the token lacks a permission, or is not valid
│ ├ NotFound         404
│ └ Conflict         409: the object changed since it was read, or its lock is held
├ DispatchesFailed   the server refused some of many dispatches
├ EventsLost         the server no longer has some of the requested events
├ LockLost           the lock of a variable expired, or was released by another client
├ ExecFailed         the server ended an exec session with an error
├ LoginFailed        the host has no identity token, or the server issued no token for it
└ TaskFailed         the function of a remote call failed
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from steward_client.records import Dispatched


class ClientError(Exception):
    """The base of all errors of this library."""


class Unreachable(ClientError):
    """No usable response arrived.

    `refused` is true if the server cannot have acted on the request, so that a repetition is safe.
    `retry_after` is the delay in seconds that the server requested, or None. `untrusted` is true if
    the client does not trust the server's certificate. The client does not repeat such a request.
    """

    def __init__(
        self,
        message: str,
        *,
        refused: bool = False,
        retry_after: float | None = None,
        untrusted: bool = False,
    ) -> None:
        super().__init__(message)
        self.refused = refused
        self.retry_after = retry_after
        self.untrusted = untrusted


class InvalidResponse(ClientError):
    """The response does not have the form of this API."""


class ApiError(ClientError):
    """The server returned an error: its HTTP status, and its text."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{text or 'no message'} (status {status})")
        self.status = status
        self.text = text


class BadRequest(ApiError):
    """The server rejected the request because the request itself is wrong."""


class Denied(ApiError):
    """The token lacks a permission, or is not valid."""


class NotFound(ApiError):
    """The object does not exist."""


class Conflict(ApiError):
    """The object changed since it was read, or another client holds its lock."""


class DispatchesFailed(ClientError):
    """The server refused some of many dispatches.

    `failures` maps the number of a dispatch, counted from 0, to the reason; `children` has the
    children of the other dispatches.
    """

    def __init__(self, failures: Mapping[int, str], children: "Mapping[int, Dispatched]") -> None:
        number = min(failures)
        super().__init__(
            f"{len(failures)} of {len(failures) + len(children)} dispatches failed; "
            f"number {number}: {failures[number]}"
        )
        self.failures = failures
        self.children = children


class EventsLost(ClientError):
    """The server no longer stores the events from `first_index` to `last_index`, inclusive."""

    def __init__(self, first_index: int, last_index: int) -> None:
        super().__init__(
            f"the events {first_index} to {last_index} are no longer stored: "
            f"read the current state, and continue with the events after {last_index}"
        )
        self.first_index = first_index
        self.last_index = last_index


class LockLost(ClientError):
    """The lock of a variable expired, or another client released it."""


class ExecFailed(ClientError):
    """The server ended an exec session with an error."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{text or 'the session ended without a result'} (close code {code})")
        self.code = code
        self.text = text


class LoginFailed(ClientError):
    """The host has no identity token, or the server issued no token for it."""


class TaskFailed(ClientError):
    """The function of a remote call raised an exception, or its task did not end normally.

    `remote_traceback` is the traceback of the function as text; it is empty if there is no
    traceback.
    """

    def __init__(self, message: str, *, remote_traceback: str = "") -> None:
        super().__init__(message)
        self.remote_traceback = remote_traceback


_BY_STATUS: dict[int, type[ApiError]] = {
    400: BadRequest,
    401: Denied,
    403: Denied,
    404: NotFound,
    409: Conflict,
    413: BadRequest,
    422: BadRequest,
}


def error_of(status: int, text: str) -> ApiError:
    """Return the error for a response with this status."""
    return _BY_STATUS.get(status, ApiError)(status, text)
