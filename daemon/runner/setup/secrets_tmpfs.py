"""Secrets directories on tmpfs. They exist while an allocation has tasks.

The launcher mounts and unmounts them (`daemon/launcher/secrets_tmpfs.py`). If mounts are not
permitted, secrets stay on disk, readable only by the task's user.
"""

import logging
import os
from collections.abc import Set

from daemon.launcher.client import Launcher
from daemon.launcher.secrets_tmpfs import mounted

_log = logging.getLogger("steward.runner")


class SecretsTmpfs:
    """The tmpfs mounts below the directory of all allocations."""

    def __init__(self, alloc_dir: str, launcher: Launcher) -> None:
        top = os.path.realpath(alloc_dir)
        self._launcher = launcher
        self._secluded = {path.removeprefix(f"{top}/").partition("/")[0] for path in mounted(top)}

    async def mount_secrets(self, alloc_id: str, task: str, megabytes: int) -> None:
        """Mount a tmpfs for a task's secrets, unless the directory is mounted or has files."""
        self._secluded.add(alloc_id)
        try:
            await self._launcher.mount_secrets(alloc_id, task, megabytes)
        except (
            FileNotFoundError,
            NotADirectoryError,
        ):  # a task has replaced the directory
            pass
        except OSError as error:
            _log.warning("secrets of allocation %s are on disk: %s", alloc_id, error)

    async def release(self, alloc_id: str) -> None:
        """Remove the secrets mounts of an allocation, if any, together with the secrets."""
        if alloc_id not in self._secluded:
            return
        self._secluded.discard(alloc_id)
        try:
            await self._launcher.reveal(alloc_id)
        except OSError as error:
            _log.warning(
                "the secrets mounts of allocation %s cannot be removed: %s", alloc_id, error
            )

    def allocations(self) -> Set[str]:
        """Return the allocations that may have a secrets mount."""
        return frozenset(self._secluded)
