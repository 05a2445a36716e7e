"""The driver `exec`: a command behind walls, on its own, as an unprivileged user.

It is started, watched and ended as by `raw_exec`; `sandbox.py` says what it sees. Inside, its
directories are /alloc, /local and /secrets, and it begins in /local.
"""

import os
import signal as signals
import subprocess
from collections.abc import Mapping, Sequence

import msgspec

from daemon.confinement import bpf, filters
from daemon.launcher.client import Launcher
from daemon.launcher.messages import Owner
from daemon.runner.drivers import config, limits, sandbox, shim
from daemon.runner.drivers.claim import Trace
from daemon.runner.drivers.driver import (
    Attempt,
    Exit,
    Fingerprint,
    InvalidConfig,
    StartFailed,
)
from daemon.runner.drivers.group import Groups
from daemon.runner.drivers.limits import UNLIMITED, Bounds
from daemon.runner.drivers.local import Line, Local
from daemon.runner.drivers.permitted import EVERYBODY, TaskUsers
from daemon.runner.drivers.process import Process, Started
from daemon.runner.drivers.users import DEFAULT_PATH, LAUNCH, for_user, is_trusted
from daemon.runner.env import Directories
from daemon.runner.uids import Uids

_NOBODY = "nobody"  # whom a task runs as that names no user, where there are no numbers for that
_OWN = "task"  # the beginning of the name of a user of an allocation's own
_TRIAL_WITHIN = 10.0  # seconds
_SIGNALLED = 128
_PRIVATE = frozenset({"", "private"})
_OFF = "off"
_FILTERS = frozenset({"", "default", _OFF})
_UNENFORCED = {
    "unenforced.network": "a task uses the node's network unless its group's mode is none",
}


_FILTERED = {"enforced.seccomp": "bubblewrap"}


class Settings(msgspec.Struct, frozen=True):
    """What a task may give this driver."""

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
    def widened(self) -> str:
        """Return what of the block opens the filter of system calls; nothing: it stays closed."""
        if self.seccomp == _OFF:
            return f'seccomp "{_OFF}"'
        return "user_namespaces true" if self.user_namespaces else ""


class Exec(Local):
    """The driver."""

    name = "exec"

    def __init__(
        self,
        groups: Groups,
        inherited: Mapping[str, str],
        launcher: Launcher,
        bounds: Bounds = UNLIMITED,
        processes: int = 0,
        *,
        unfiltered: bool = False,
        users: TaskUsers = EVERYBODY,
        uids: Uids | None = None,
    ) -> None:
        """`unfiltered` lets tasks open the filter of system calls, as far as their blocks say.

        `uids` are of allocations whose tasks name no user.
        """
        super().__init__(groups, inherited, launcher, bounds, processes, users=users)
        self._walls = sandbox.find_tools()
        self._unfiltered, self._uids = unfiltered, uids
        self._no_filter = ""  # why this machine has no filter; found by `fingerprint`

    def fingerprint(self) -> Fingerprint:
        """Return what a node says of the driver; a trial tells whether walls can be built here."""
        if isinstance(self._walls, str):
            return Fingerprint(trouble=self._walls)
        if trouble := _trial(self._walls, b""):
            return Fingerprint(trouble=f"this machine lets us build no sandbox: {trouble}")
        try:
            self._no_filter = _trial(self._walls, filters.of_tasks(bpf.this_machine()))
        except bpf.Unknown as error:
            self._no_filter = str(error)
        said = {"unenforced.seccomp": self._no_filter} if self._no_filter else _FILTERED
        return self._said({**_UNENFORCED, **said, **limits.said(self._bounds)})

    def owner(self, user: str, alloc_id: str) -> Owner | None:
        """Return whom the files of a task are to belong to. Raises `StartFailed` or `OSError`."""
        found = self._user(user, alloc_id)
        return (found.uid, found.gid) if found else None

    def _user(self, name: str, alloc_id: str) -> shim.User | None:
        """Return whom a task runs as if not as the daemon itself. Raises as above."""
        if not name and self._uids and (number := self._uids.of(alloc_id)) is not None:
            return shim.User(
                name=f"{_OWN}{number}",
                uid=number,
                gid=number,
                groups=(number,),
                home=sandbox.HOME,
                is_account=False,
            )
        name = _whom(name)
        return self._users.find(self.name, name) if name else None

    def places(self, directory: str, task: str) -> Directories:
        """Return where a task finds its directories, behind the walls."""
        return sandbox.PLACES

    def check(self, block: Mapping[str, object]) -> None:
        """Raise `InvalidConfig` unless the block names a command, and nothing that opens a wall."""
        self._settings(block)

    def _settings(self, block: Mapping[str, object]) -> Settings:
        settings = config.read(Settings, block)
        if settings.cap_add:
            raise InvalidConfig(f"cap_add {settings.cap_add}: tasks have no capabilities here")
        for name in ("pid_mode", "ipc_mode"):
            if (mode := getattr(settings, name)) not in _PRIVATE:
                raise InvalidConfig(f"{name} {mode!r}: only private is supported")
        if settings.seccomp not in _FILTERS:
            raise InvalidConfig(f'seccomp "{settings.seccomp}": must be default or off')
        if settings.widened and not self._unfiltered:
            raise InvalidConfig(
                f"{settings.widened}: this agent allows it to no task; leave it out, or set "
                "exec_unfiltered = true in the agent's configuration"
            )
        return settings

    def _filter(self, attempt: Attempt) -> bytes:
        """Return the filter of system calls of a task; nothing: it has none."""
        settings = self._settings(attempt.config)
        if self._no_filter or settings.seccomp == _OFF:
            return b""
        machine = bpf.this_machine()
        return filters.of_tasks(machine, user_namespaces=settings.user_namespaces)

    def _line(self, attempt: Attempt, entry: str) -> Line:
        settings = self._settings(attempt.config)
        env, user = self._surroundings(attempt)
        home = f"{attempt.directory}/{attempt.task}"
        directory = settings.work_dir or sandbox.HOME
        command = _find(settings.command, attempt, env.get("PATH"), user)
        filtered = bool(self._filter(attempt))
        wrap = sandbox.walls(self._programs(), attempt, user, directory, filtered=filtered)
        env["PWD"] = directory
        argv = [command, *settings.args]
        return self._shell(argv, env, attempt=attempt, directory=home, entry=entry, wrap=wrap)

    def _session_line(
        self, attempt: Attempt, command: Sequence[str], entry: str, trace: Trace
    ) -> tuple[Line, int]:
        settings = self._settings(attempt.config)
        env, user = self._surroundings(attempt)
        directory = settings.work_dir or sandbox.HOME
        wrap = sandbox.way_in(
            self._programs(),
            attempt,
            user,
            directory,
            trace.shim,
            filtered=bool(self._filter(attempt)),
        )
        home = f"{attempt.directory}/{attempt.task}"
        line = self._shell(
            command, env, attempt=attempt, directory=home, entry=entry, wrap=wrap, inside=True
        )
        return line, user.uid if user else os.geteuid()

    def _programs(self) -> sandbox.Tools:
        if isinstance(self._walls, str):
            raise StartFailed(self._walls)
        return self._walls

    def _surroundings(self, attempt: Attempt) -> tuple[dict[str, str], shim.User | None]:
        """Return the environment, and whom the task runs as if not as the daemon itself."""
        user = self._user(attempt.user, attempt.alloc_id)
        if user is None and os.geteuid() == 0:
            raise StartFailed(
                f'user "{attempt.user}" is the daemon\'s own, and may run no task of exec'
            )
        env = dict(attempt.env)
        return env if user is None else for_user(env, user, self._inherited), user

    def _process(self, started: Started, descriptor: int | None) -> Process:
        return Walled(self._launcher, started, descriptor)


class Walled(Process):
    """A task behind walls: its main process stands further down than the shell's own child."""

    is_walled = True

    def _main(self) -> list[int]:
        if self._descriptor is None:
            return []
        main = sandbox.main_process(self._shim)
        return [] if main is None else [main]

    def _has_begun(self) -> bool:
        return bool(self._main())

    def _end(self, trace: Trace) -> Exit:
        end = trace.end
        # The sandbox passes a death by signal on as its own exit status.
        number = end.code - _SIGNALLED
        if not end.signal and not trace.words and number in signals.valid_signals():
            return Exit(code=end.code, signal=number)
        return end


def _whom(user: str) -> str:
    """Return the name of the user that a task runs as; empty for the daemon's own."""
    return user or (_NOBODY if os.geteuid() == 0 else "")


def _trial(tools: sandbox.Tools, program: bytes) -> str:
    """Build a sandbox as for a task, with its filter; return what went wrong, or nothing."""
    with shim.readable(program) as end:
        return _try(tools, [] if end is None else ["--seccomp", str(end)], end)


def _try(tools: sandbox.Tools, words: list[str], end: int | None) -> str:
    walls = ["--unshare-pid", "--unshare-ipc", "--unshare-uts", "--ro-bind", "/", "/"]
    try:
        done = subprocess.run(  # noqa: S603  # our own words
            [
                tools.bwrap,
                *words,
                *walls,
                "--proc",
                "/proc",
                "--dev",
                "/dev",
                "--",
                tools.setpriv,
                "--version",
            ],
            capture_output=True,
            check=False,
            timeout=_TRIAL_WITHIN,
            env={},
            pass_fds=[] if end is None else [end],
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return done.stderr.decode(errors="replace").strip() if done.returncode else ""


def _find(command: str, attempt: Attempt, path: str | None, user: shim.User | None) -> str:
    """Return the file that a command names, as the task sees it. Raises `StartFailed`."""
    own = sandbox.mounts(attempt)
    places = [f"{sandbox.HOME}/{command}"]
    if command.startswith("/"):
        places = [command]
    elif "/" not in command:
        places += [f"{folder}/{command}" for folder in (path or DEFAULT_PATH).split(":") if folder]
    there = [
        (place, outside)
        for place in places
        if command and (outside := sandbox.on_host(place, own)) and os.path.isfile(outside)
        if command.startswith("/") or place != places[0] or is_trusted(outside, user)
    ]
    for place, outside in there:
        if os.access(outside, os.X_OK):
            return place
    if there:
        raise StartFailed(f'{LAUNCH}binary "{there[0][0]}" is not executable')
    raise StartFailed(f'{LAUNCH}binary "{command}" could not be found')
