"""Claim files, read from disk into the records that the launcher reports."""

import fcntl
import os

from daemon.runner.drivers.claim_file import ClaimRecord, parse

_MOST = 65536  # maximum bytes of a claim: a few lines


def is_held(path: str) -> bool | None:
    """Return whether a shim holds the claim file; None if the file does not exist."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def read(path: str) -> ClaimRecord:
    """Return the contents of a claim file; empty if the file does not exist."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return ClaimRecord()
    try:
        return parse(os.pread(descriptor, _MOST, 0).decode(errors="replace"))
    finally:
        os.close(descriptor)
