"""The driver `exec`: a command in a sandbox, as an unprivileged user.

Processes are started, watched and killed as in `raw_exec`; `daemon/launcher/sandbox.py` sets up the
sandbox. Inside, the task's directories are /alloc, /local and /secrets, and the working directory
is /local.
"""

import os
import signal as signals
from collections.abc import Mapping
from typing import Literal

import msgspec

from daemon.launcher.channel import Refusal
from daemon.launcher.client import Launcher
from daemon.launcher.messages import DnsSettings, MountedVolume, TaskCommand, Whose
from daemon.launcher.sandbox import mount_targets
from daemon.launcher.user_policy import OWN_HOME
from daemon.runner.core.driver import Attempt, ExitResult, Fingerprint, InvalidConfig
from daemon.runner.core.task_env import TaskDirectories
from daemon.runner.drivers import driver_config, limits
from daemon.runner.drivers.claim_file import ClaimRecord
from daemon.runner.drivers.limits import UNLIMITED, LimitEnforcer
from daemon.runner.drivers.process_driver import Common, ProcessDriver
from daemon.runner.drivers.process_group import ProcessGroups
from daemon.runner.drivers.process_handle import ProcessHandle, StartedTask

_SIGNALLED = 128
_PRIVATE = frozenset({"", "private"})
_OFF = "off"
_FILTERS = frozenset({"", "default", _OFF})
_UNENFORCED = {
    "unenforced.network": "a task uses the node's network unless its group's mode is none or bridge",
}


PLACES = TaskDirectories(shared="/alloc", local=OWN_HOME, secrets="/secrets")
_FILTERED = {"enforced.seccomp": "bubblewrap"}


class ExecConfig(msgspec.Struct, frozen=True):
    """The driver configuration of `exec`."""

    command: str
    args: list[str] = []
    work_dir: str = ""
    pid_mode: str = ""
    ipc_mode: str = ""
    cap_add: list[str] = []
    cap_drop: list[str] = []
    seccomp: str = ""
    user_namespaces: bool = False

    @property
    def filter(self) -> Literal["default", "namespaces", "off"]:
        """Return the system call filter of the task."""
        if self.seccomp == _OFF:
            return "off"
        return "namespaces" if self.user_namespaces else "default"

    @property
    def widened(self) -> str:
        """Return the setting that relaxes the system call filter, or an empty string."""
        if self.seccomp == _OFF:
            return f'seccomp "{_OFF}"'
        return "user_namespaces true" if self.user_namespaces else ""


class ExecDriver(ProcessDriver):
    """Runs commands in a sandbox."""

    name = "exec"
    file_owner_rule: Whose = "exec"

    def __init__(
        self,
        groups: ProcessGroups,
        inherited: Mapping[str, str],
        launcher: Launcher,
        bounds: LimitEnforcer = UNLIMITED,
        processes: int = 0,
        *,
        unfiltered: bool = False,
    ) -> None:
        """Create the driver; with `unfiltered`, tasks may relax the system call filter.

        `inherited` are the agent's variables that tasks inherit, and `processes` is the default
        limit of processes and threads.
        """
        super().__init__(groups, inherited, launcher, bounds, processes)
        self._unfiltered = unfiltered

    def fingerprint(self) -> Fingerprint:
        """Return the node attributes; a trial run detects whether sandboxes work on this host."""
        probe = self._launcher.walls
        if probe.walls:
            return Fingerprint(trouble=probe.walls)
        filtered = {"unenforced.seccomp": probe.no_filter} if probe.no_filter else _FILTERED
        return self._attributes(
            {**_UNENFORCED, **filtered, **limits.limit_attributes(self._bounds)}
        )

    def task_dirs(self, directory: str, task: str) -> TaskDirectories:
        """Return the task directories inside the sandbox."""
        return PLACES

    def check(self, block: Mapping[str, object]) -> None:
        """Raise `InvalidConfig` unless the configuration has a command and is permitted."""
        self._settings(block)

    def _settings(self, block: Mapping[str, object]) -> ExecConfig:
        settings = driver_config.read(ExecConfig, block)
        if settings.cap_add:
            raise InvalidConfig(
                f"cap_add {settings.cap_add}: exec grants no capabilities; remove it"
            )
        for name in ("pid_mode", "ipc_mode"):
            if (mode := getattr(settings, name)) not in _PRIVATE:
                raise InvalidConfig(f"{name} {mode!r}: only private is supported")
        if settings.seccomp not in _FILTERS:
            raise InvalidConfig(f'seccomp "{settings.seccomp}": must be default or off')
        if settings.widened and not self._unfiltered:
            raise InvalidConfig(
                f"{settings.widened}: the agent's configuration does not permit it; remove it, or set "
                "exec_unfiltered = true in the agent's configuration"
            )
        return settings

    def _order(self, attempt: Attempt, common: Common) -> TaskCommand:
        settings = self._settings(attempt.config)
        dns = attempt.dns
        if dns is not None:
            driver_config.check_names(dns)
        elif attempt.network_mode == "bridge":
            # Imported late, because few groups use the bridge.
            from daemon.runner.drivers.bridged_names import host_servers

            dns = host_servers()
        mounts = [
            MountedVolume(
                name=mount.name,
                volume=mount.volume,
                path=mount.source,
                destination=mount.destination,
                read_only=mount.read_only,
            )
            for mount in attempt.mounts
        ]
        try:
            mount_targets(mounts)
        except Refusal as error:
            raise InvalidConfig(str(error)) from None
        return TaskCommand(
            **common,
            driver="exec",
            command=os.fsencode(settings.command),
            args=[*map(os.fsencode, settings.args)],
            work_dir=settings.work_dir,
            volumes=mounts,
            dns=None
            if dns is None
            else DnsSettings(
                servers=dns.servers or [], searches=dns.searches or [], options=dns.options or []
            ),
            filter=settings.filter,
        )

    def _process(self, started: StartedTask, descriptor: int | None) -> ProcessHandle:
        return SandboxedTask(self._launcher, started, descriptor)


class SandboxedTask(ProcessHandle):
    """A sandboxed task, whose main process is not a direct child of the shim."""

    is_walled = True

    def _end(self, trace: ClaimRecord) -> ExitResult:
        end = trace.end
        # bwrap exits with 128 plus the signal number when its child is killed.
        number = end.code - _SIGNALLED
        if not end.signal and not trace.words and number in signals.valid_signals():
            return ExitResult(code=end.code, signal=number)
        return end
