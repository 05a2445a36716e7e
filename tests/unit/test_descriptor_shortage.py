"""Errors that mean a lack of file descriptors."""

import errno
import os

import pytest

from storage.errors import is_descriptor_shortage

FULL = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
OF_HOST = OSError(errno.ENFILE, os.strerror(errno.ENFILE))


def caused(cause: BaseException) -> Exception:
    consequence = ValueError("a consequence")
    consequence.__cause__ = cause
    return consequence


@pytest.mark.parametrize(
    "error",
    [
        FULL,
        OF_HOST,
        caused(FULL),
        ExceptionGroup("", [ValueError(), ExceptionGroup("", [caused(OF_HOST)])]),
        ImportError("lib.so: cannot open shared object file: Too many open files"),
    ],
)
def test_shortage_is_found_in_causes_and_groups(error: Exception) -> None:
    assert is_descriptor_shortage(error)


@pytest.mark.parametrize(
    "error", [None, OSError(errno.ENOSPC, "full"), ImportError("no module"), caused(KeyError())]
)
def test_other_errors_are_no_shortage(error: Exception | None) -> None:
    assert not is_descriptor_shortage(error)
