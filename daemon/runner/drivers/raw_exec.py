"""The driver `raw_exec`: a command as a local process without isolation."""

import os
from collections.abc import Mapping

import msgspec

from daemon.launcher.client import Launcher
from daemon.launcher.messages import TaskCommand, Whose
from daemon.runner.core.driver import Attempt, Fingerprint, InvalidConfig, StartFailed
from daemon.runner.drivers import driver_config, limits
from daemon.runner.drivers.limits import UNLIMITED, LimitEnforcer
from daemon.runner.drivers.process_driver import Common, ProcessDriver
from daemon.runner.drivers.process_group import ProcessGroups

_DISABLED = "raw_exec is off: set raw_exec = true in the agent's configuration, or use exec"
_UNENFORCED = {"unenforced.isolation": "a task can access everything that its user can access"}


class RawExecConfig(msgspec.Struct, frozen=True):
    """The driver configuration of `raw_exec`."""

    command: str
    args: list[str] = []
    work_dir: str = ""


class RawExecDriver(ProcessDriver):
    """Runs commands as local processes without isolation."""

    name = "raw_exec"
    file_owner_rule: Whose = "raw_exec"

    def __init__(
        self,
        groups: ProcessGroups,
        inherited: Mapping[str, str],
        launcher: Launcher,
        bounds: LimitEnforcer = UNLIMITED,
        processes: int = 0,
        *,
        enabled: bool = True,
    ) -> None:
        """Create the driver. Unless `enabled`, no task starts, but running tasks are re-attached.

        `inherited` are the agent's variables that tasks inherit, and `processes` is the default
        limit of processes and threads.
        """
        super().__init__(groups, inherited, launcher, bounds, processes)
        self._enabled = enabled

    def fingerprint(self) -> Fingerprint:
        """Return the node attributes of the driver."""
        if not self._enabled:
            return Fingerprint(trouble=_DISABLED)
        return self._attributes({**_UNENFORCED, **limits.limit_attributes(self._bounds)})

    def check(self, block: Mapping[str, object]) -> None:
        """Raise `InvalidConfig` unless the configuration has a command and no unknown setting."""
        driver_config.read(RawExecConfig, block)

    def _order(self, attempt: Attempt, common: Common) -> TaskCommand:
        if not self._enabled:
            raise StartFailed(_DISABLED)
        settings = driver_config.read(RawExecConfig, attempt.config)
        if attempt.mounts:
            raise InvalidConfig("raw_exec has no sandbox: use exec to mount volumes")
        return TaskCommand(
            **common,
            driver="raw_exec",
            command=os.fsencode(settings.command),
            args=[*map(os.fsencode, settings.args)],
            work_dir=settings.work_dir,
            volumes=[],
            dns=None,
            filter="default",
        )
