"""The driver `raw_exec`: a command as a process of this machine, with nothing around it."""

import os
from collections.abc import Mapping, Sequence

import msgspec

from daemon.runner.drivers import config, limits, shim
from daemon.runner.drivers.claim import Trace
from daemon.runner.drivers.driver import Attempt, Fingerprint, InvalidConfig, StartFailed
from daemon.runner.drivers.local import Line, Local
from daemon.runner.drivers.users import find_command, find_session_command, find_user, for_user

_UNENFORCED = {"unenforced.isolation": "a task sees the whole machine as its user does"}


class Settings(msgspec.Struct, frozen=True):
    """What a task may give this driver."""

    command: str
    args: list[str] = []
    work_dir: str = ""


class RawExec(Local):
    """The driver."""

    name = "raw_exec"

    def fingerprint(self) -> Fingerprint:
        """Return what a node says of the driver."""
        return self._said({**_UNENFORCED, **limits.said(self._bounds)})

    def check(self, block: Mapping[str, object]) -> None:
        """Raise `InvalidConfig` unless the block names a command, and nothing unknown."""
        config.read(Settings, block)

    def _line(self, attempt: Attempt, entry: str) -> Line:
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
        user = find_user(attempt.user) if attempt.user else None
        return env if user is None else for_user(env, user, self._inherited), user


def _directory(settings: Settings, home: str) -> str:
    directory = settings.work_dir or home
    if not os.path.isdir(directory):
        raise StartFailed(f'working directory "{directory}" does not exist')
    return directory
