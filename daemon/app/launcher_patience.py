"""A limit for the time that a client's request waits for the launcher."""

from collections.abc import Iterator
from contextlib import contextmanager

from daemon.launcher.client import LauncherSilent, impatient
from storage.errors import Unavailable


@contextmanager
def bounded_wait() -> Iterator[None]:
    """Run the block, but do not wait long for the launcher. Raises `Unavailable` instead."""
    with impatient():
        try:
            yield
        except LauncherSilent as error:
            raise Unavailable(
                f"{error}; it opens files and logs of tasks, and it is stopped, or a file system "
                "blocks it; retry, and see /v1/agent/health and the daemon's log"
            ) from None
