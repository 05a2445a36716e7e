"""The driver `raw_exec`: a command as a process of this machine, with nothing around it."""

import os
from collections.abc import Mapping, Sequence

import msgspec

from daemon.launcher.client import Launcher
from daemon.launcher.messages import Owner
from daemon.runner.drivers import config, limits, shim
from daemon.runner.drivers.claim import Trace
from daemon.runner.drivers.driver import Attempt, Fingerprint, InvalidConfig, StartFailed
from daemon.runner.drivers.group import Groups
from daemon.runner.drivers.limits import UNLIMITED, Bounds
from daemon.runner.drivers.local import Line, Local
from daemon.runner.drivers.permitted import EVERYBODY, TaskUsers
from daemon.runner.drivers.users import find_command, find_session_command, for_user

_DISABLED = "raw_exec is off: set raw_exec = true in the agent's configuration, or use exec"
_UNENFORCED = {"unenforced.isolation": "a task sees the whole machine as its user does"}


class Settings(msgspec.Struct, frozen=True):
    """What a task may give this driver."""

    command: str
    args: list[str] = []
    work_dir: str = ""


class RawExec(Local):
    """The driver."""

    name = "raw_exec"

    def __init__(
        self,
        groups: Groups,
        inherited: Mapping[str, str],
        launcher: Launcher,
        bounds: Bounds = UNLIMITED,
        processes: int = 0,
        *,
        users: TaskUsers = EVERYBODY,
        enabled: bool = True,
    ) -> None:
        """Unless it is `enabled` no task starts; those that run are found again."""
        super().__init__(groups, inherited, launcher, bounds, processes, users=users)
        self._enabled = enabled

    def fingerprint(self) -> Fingerprint:
        """Return what a node says of the driver."""
        if not self._enabled:
            return Fingerprint(trouble=_DISABLED)
        return self._said({**_UNENFORCED, **limits.said(self._bounds)})

    def owner(self, user: str, alloc_id: str) -> Owner | None:
        """Return whom the files of a task are to belong to. Raises `StartFailed`."""
        return super().owner(self._whom(user), alloc_id)

    def _whom(self, user: str) -> str:
        """Return the name of the user that a task runs as; empty for the daemon's own."""
        return user or (self._users.usual if os.geteuid() == 0 else "")

    def check(self, block: Mapping[str, object]) -> None:
        """Raise `InvalidConfig` unless the block names a command, and nothing unknown."""
        config.read(Settings, block)

    def _line(self, attempt: Attempt, entry: str) -> Line:
        if not self._enabled:
            raise StartFailed(_DISABLED)
        settings = config.read(Settings, attempt.config)
        if attempt.mounts:
            raise InvalidConfig("raw_exec builds no walls: volumes can be mounted with exec")
        env, user = self._surroundings(attempt)
        home = f"{attempt.directory}/{attempt.task}"
        command = find_command(settings.command, home, env.get("PATH"), user)
        directory = _directory(settings, home)
        env.setdefault("PWD", directory)
        argv = [command, *settings.args]
        return self._shell(argv, env, attempt=attempt, directory=directory, entry=entry, user=user)

    def _session_line(
        self, attempt: Attempt, command: Sequence[str], entry: str, trace: Trace
    ) -> tuple[Line, int]:
        del trace
        settings = config.read(Settings, attempt.config)
        env, user = self._surroundings(attempt)
        home = f"{attempt.directory}/{attempt.task}"
        directory = _directory(settings, home)
        env.setdefault("PWD", directory)
        argv = [find_session_command(command[0], directory, env.get("PATH")), *command[1:]]
        line = self._shell(
            argv,
            env,
            attempt=attempt,
            directory=directory,
            entry=entry,
            user=user,
            inside=True,
        )
        return line, user.uid if user else os.geteuid()

    def _surroundings(self, attempt: Attempt) -> tuple[dict[str, str], shim.User | None]:
        """Return the environment, and whom the task runs as if not as the daemon itself."""
        env = dict(attempt.env)
        name = self._whom(attempt.user)
        user = self._users.find(self.name, name) if name else None
        return env if user is None else for_user(env, user, self._inherited), user


def _directory(settings: Settings, home: str) -> str:
    directory = settings.work_dir or home
    if not os.path.isdir(directory):
        raise StartFailed(f'working directory "{directory}" does not exist')
    return directory
