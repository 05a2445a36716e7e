"""The reason why a request of the runner failed, as a text for users in a task event."""

import errno

import pytest

from daemon.net.http_client import reason
from storage.errors import describe_error

REFUSED = OSError(errno.ECONNREFUSED, "Error connecting to ('127.0.0.1', 1): Connection refused")
UNREACHABLE = OSError(errno.ENETUNREACH, "Error connecting to ('::1', 1): Network is unreachable")


def unconnected(*errors: Exception) -> OSError:
    error = OSError("all attempts to connect to nowhere:1 failed")
    error.__cause__ = ExceptionGroup("multiple connection attempts failed", list(errors))
    return error


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (unconnected(REFUSED), "Connection refused"),
        (unconnected(REFUSED, REFUSED), "Connection refused"),
        (unconnected(REFUSED, UNREACHABLE), "Connection refused; Network is unreachable"),
        (ExceptionGroup("outer", [ExceptionGroup("inner", [REFUSED])]), "Connection refused"),
        (ValueError("no address"), "no address"),
        (EOFError(), "EOFError"),
    ],
)
def test_reason_names_each_cause_once_without_the_exception_group(
    error: Exception, words: str
) -> None:
    assert reason(error) == words


def test_unexpected_error_is_reported_without_its_exception_group() -> None:
    group = ExceptionGroup("in a nursery", [OSError("disk"), ExceptionGroup("", [KeyError("a")])])
    assert describe_error(group) == "OSError('disk'); KeyError('a')"
    assert describe_error(KeyError("a")) == "KeyError('a')"
