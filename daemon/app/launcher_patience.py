"""A limit for the time that a client's request waits for the launcher."""

from collections.abc import Iterator
from contextlib import contextmanager

from daemon.launcher.client import LauncherSilent, impatient
from storage.errors import Unavailable


@contextmanager
def bounded_wait() -> Iterator[None]:
    """Limit the time of each launcher request in the block. Raises `Unavailable` after that time."""
    with impatient():
        try:
            yield
        except LauncherSilent as error:
            raise Unavailable(
                f"{error}; the launcher, which opens the files and logs of tasks, is stopped, or a "
                "file system blocks it; retry, and see /v1/agent/health and the daemon's log"
            ) from None
