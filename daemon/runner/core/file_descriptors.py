"""File descriptors of the daemon: their limit, shortages, and close-on-exec."""

import os
import resource
from contextlib import suppress

from storage.errors import is_descriptor_shortage

_STANDARD_ERROR = 2
SHORTAGE_PAUSE = 1.0
_NEEDED = 8  # file descriptors for the setup and start of a task


def raise_fd_limit() -> None:
    """Raise the descriptor limit to its maximum; each running task needs one descriptor."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def is_short() -> bool:
    """Return whether a task that starts now would lack file descriptors."""
    taken: list[int] = []
    try:
        taken.extend(os.eventfd(0) for _ in range(_NEEDED))
    except OSError as error:
        return is_descriptor_shortage(error)
    finally:
        for number in taken:
            os.close(number)
    return False


def set_cloexec() -> None:
    """Set close-on-exec on inherited file descriptors, so that tasks do not inherit them.

    Descriptors that Python opens have the flag already.
    """
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor > _STANDARD_ERROR:
            with suppress(OSError):  # the descriptor of the directory listing itself
                os.set_inheritable(descriptor, False)
