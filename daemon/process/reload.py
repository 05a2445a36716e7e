"""Reload of the settings of a running daemon: SIGHUP, `systemctl reload steward`.

A reload applies the certificate and the settings in `LIVE`. No other part keeps a copy of these
settings. The reload reads and checks all of them before it changes the first. So after an error,
nothing has changed.
"""

import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path

from daemon.acl.lockout import LockoutPolicy
from daemon.app.context import AppContext
from daemon.config.settings import FIELDS, Settings
from daemon.jobspec.policies import JobPolicySet
from daemon.web.connections import ConnectionListeners
from storage.errors import StewardError
from storage.records.base import SECOND

LIVE = ("job_policies", "lockout_seconds", "lockout_threshold", "log_level")
_CERTIFICATE = ("tls_cert", "tls_key")

log = logging.getLogger("steward")


class SettingsReloader:
    """Holds the settings of the daemon, and reloads them from their sources."""

    def __init__(
        self,
        config: Settings,
        read: Callable[[], Settings],
        listeners: ConnectionListeners,
        parts: AppContext,
        read_own: Callable[[str], Awaitable[int]],
        wrappers: ConnectionListeners | None = None,
    ) -> None:
        """Initialize; `read_own` opens a configured file that only root can read.

        `wrappers` are the listeners for cluster hosts, if there are any.
        """
        self._config, self._read, self._read_own = config, read, read_own
        self._listeners, self._parts, self._wrappers = listeners, parts, wrappers

    async def __call__(self) -> None:
        """Reload all settings. If a setting is invalid, log an error and change nothing."""
        try:
            fresh = self._read()
            policies = JobPolicySet(fresh.job_policies)
            async with self._opened(fresh) as opened:
                renewed: list[tuple[ConnectionListeners, Settings]] = []
                if self._wrappers and fresh.of_wrappers.is_encrypted:
                    renewed.append((self._wrappers, fresh.of_wrappers))
                if fresh.is_encrypted == self._config.is_encrypted:
                    renewed.append((self._listeners, fresh))
                for listeners, config in renewed:
                    listeners.check(config, opened)
                for listeners, config in renewed:
                    listeners.reload(config, opened)
        except StewardError as error:
            log.error("the settings are unchanged: %s", error)  # noqa: TRY400  # no defect
            return
        self._parts.policies.become(policies)
        self._parts.tokens.failures.lock_out = LockoutPolicy(
            fresh.lockout_threshold, fresh.lockout_seconds * SECOND
        )
        self._parts.monitor.change(fresh.log_level)
        log.info("reloaded the certificate and the settings")
        if later := self._differing(fresh):
            log.warning(
                "these settings change only with a restart of the daemon: %s", ", ".join(later)
            )

    @asynccontextmanager
    async def _opened(self, fresh: Settings) -> AsyncIterator[dict[Path, Path]]:
        """Yield a readable path for each file that only root can read; the launcher opens it.

        A file that cannot be opened is left out. The check of the settings then reports it.
        """
        opened: dict[Path, Path] = {}
        with ExitStack() as stack:
            for path in fresh.certificate_files:
                if os.access(path, os.R_OK):
                    continue
                with suppress(OSError):  # the reload then reports the unreadable file
                    descriptor = await self._read_own(str(path))
                    stack.callback(os.close, descriptor)
                    opened[path] = Path(f"/proc/self/fd/{descriptor}")
            yield opened

    def _differing(self, fresh: Settings) -> list[str]:
        """Return the names of changed settings that need a restart."""
        both = fresh.is_encrypted and self._config.is_encrypted
        fixed = FIELDS.keys() - {*LIVE, *(_CERTIFICATE if both else ())}
        return sorted(name for name in fixed if getattr(fresh, name) != getattr(self._config, name))
