"""A limit for the time that a client's request waits for the launcher."""

from daemon.launcher.client import Impatience, LauncherSilent
from storage.errors import Unavailable


class BoundedWait(Impatience):
    """A context manager that limits the time of each launcher request in the block.

    Raises `Unavailable` after that time.
    """

    def __exit__(self, kind: object, error: BaseException | None, *rest: object) -> None:
        """Restore the previous limit, and report a silent launcher to the client."""
        super().__exit__(kind, error, *rest)
        if isinstance(error, LauncherSilent):
            raise Unavailable(
                f"{error}; the launcher, which opens the files and logs of tasks, is stopped, or a "
                "file system blocks it; retry, and see /v1/agent/health and the daemon's log"
            ) from None
