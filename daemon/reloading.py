"""What a running daemon reads anew when it is asked to: SIGHUP, `systemctl reload steward`.

The certificate, and those settings that nothing was built upon: `LIVE`. All of them are read and
checked before the first is changed, so a mistake leaves everything as it was.
"""

import logging
from collections.abc import Callable

from daemon.acl.failures import LockOut
from daemon.config import FIELDS, Config
from daemon.jobspec.policies import Policies
from daemon.parts import Parts
from daemon.web.connections import Listeners
from storage.errors import StewardError
from storage.records.base import SECOND

LIVE = ("job_policies", "lockout_seconds", "lockout_threshold", "log_level")
_CERTIFICATE = ("tls_cert", "tls_key")

log = logging.getLogger("steward")


class Reloading:
    """The settings with which the daemon has started, and how they are read again."""

    def __init__(
        self,
        config: Config,
        read: Callable[[], Config],
        listeners: Listeners,
        parts: Parts,
        wrappers: Listeners | None = None,
    ) -> None:
        """`wrappers` are where what runs on clusters is heard, if anywhere."""
        self._config, self._read = config, read
        self._listeners, self._parts, self._wrappers = listeners, parts, wrappers

    def __call__(self) -> None:
        """Read everything anew; what is wrong changes nothing, and is logged."""
        try:
            fresh = self._read()
            policies = Policies(fresh.job_policies)
            if self._wrappers and fresh.of_wrappers.is_encrypted:
                self._wrappers.reload(fresh.of_wrappers)
            if fresh.is_encrypted == self._config.is_encrypted:
                self._listeners.reload(fresh)
        except StewardError as error:
            log.error("the old settings stay: %s", error)  # noqa: TRY400  # no defect
            return
        self._parts.policies.become(policies)
        self._parts.tokens.failures.lock_out = LockOut(
            fresh.lockout_threshold, fresh.lockout_seconds * SECOND
        )
        self._parts.monitor.change(fresh.log_level)
        log.info("the certificate was read anew, and the settings")
        if later := self._differing(fresh):
            log.warning("these change with a restart of the daemon: %s", ", ".join(later))

    def _differing(self, fresh: Config) -> list[str]:
        """Return the settings that are not as they were when the daemon started, and stay so."""
        both = fresh.is_encrypted and self._config.is_encrypted
        fixed = FIELDS.keys() - {*LIVE, *(_CERTIFICATE if both else ())}
        return sorted(name for name in fixed if getattr(fresh, name) != getattr(self._config, name))
