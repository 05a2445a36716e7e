"""Whom a task runs as, and with which program: questions to the machine before a task starts."""

import os
import pwd
import stat
from collections.abc import Mapping

from daemon.runner.drivers.driver import StartFailed
from daemon.runner.drivers.shim import User
from storage.records.numbers import whole

LAUNCH = "failed to launch command with executor: rpc error: code = Unknown desc = "
_INSIDE = "rpc error: code = Unknown desc = failed to start command: "
_USER = "failed driver config validation: failed to identify user"
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def entry_of(name: str) -> pwd.struct_passwd:
    """Return what this machine knows of a user, by name or number. Raises `KeyError`."""
    return pwd.getpwuid(whole(name)) if name.isdecimal() else pwd.getpwnam(name)


def find_user(name: str) -> User | None:
    """Return the user of that name or number; None when it is the daemon's own.

    Raises `StartFailed` when there is no such user, or the daemon may not run tasks as that one.
    """
    try:
        entry = entry_of(name)
    except (KeyError, OverflowError):
        raise StartFailed(f'{_USER} "{name}": user: unknown user {name}') from None
    if entry.pw_uid == os.geteuid():
        return None
    if os.geteuid() != 0:
        own = pwd.getpwuid(os.geteuid()).pw_name
        raise StartFailed(f'{_USER} "{name}": the agent runs as {own} and cannot become {name}')
    return User(
        name=entry.pw_name,
        uid=entry.pw_uid,
        gid=entry.pw_gid,
        groups=tuple(os.getgrouplist(entry.pw_name, entry.pw_gid)),
        home=entry.pw_dir,
    )


def for_user(env: Mapping[str, str], user: User, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return a task's environment with the user's own home and name in the place of the agent's."""
    personal = {"HOME": user.home, "USER": user.name, "LOGNAME": user.name}
    fitting = {
        name: value for name, value in personal.items() if env.get(name) == inherited.get(name)
    }
    return {**env, **fitting}


def find_command(command: str, directory: str, path: str | None, user: User | None = None) -> str:
    """Return the file that a command names: in the task's directory, or on the search path.

    In the task's directory it counts only if nobody else than root and the task's user can have put
    it there. Raises `StartFailed` when there is none, or it cannot be executed.
    """
    own = [f"{directory}/local/{command}", f"{directory}/{command}"]
    places = [place for place in own if is_trusted(place, user)]
    if command.startswith("/"):
        places = [command]
    elif "/" not in command:
        places += [f"{folder}/{command}" for folder in (path or DEFAULT_PATH).split(":") if folder]
    there = [place for place in places if command and os.path.isfile(place)]
    for place in there:
        if os.access(place, os.X_OK):
            return place
    if there:
        raise StartFailed(f'{LAUNCH}binary "{there[0]}" is not executable')
    raise StartFailed(f'{LAUNCH}binary "{command}" could not be found')


def is_trusted(place: str, user: User | None) -> bool:
    """Return whether nobody but root and a task's user can change a file and its folder."""
    uids = {0, os.geteuid(), user.uid if user else 0}
    gids = {0, os.getegid(), user.gid if user else 0}
    try:
        found = [os.stat(place), os.stat(os.path.dirname(place))]
    except OSError:
        return False
    return all(
        one.st_uid in uids
        and not one.st_mode & stat.S_IWOTH
        and (one.st_gid in gids or not one.st_mode & stat.S_IWGRP)
        for one in found
    )


def find_session_command(command: str, directory: str, path: str | None) -> str:
    """Return the file that a command inside a task names, as a shell there would find it.

    Raises `StartFailed` in the words of the peer (golden: alloc-exec).
    """
    if "/" in command:
        place = os.path.join(directory, command)
        for mode, reason in (
            (os.F_OK, "no such file or directory"),
            (os.X_OK, "permission denied"),
        ):
            if not os.access(place, mode) or (os.path.isdir(place) and mode == os.X_OK):
                raise StartFailed(f"{_INSIDE}fork/exec {command}: {reason}")
        return place
    folders = [folder for folder in (path or DEFAULT_PATH).split(":") if folder]
    for place in (f"{folder}/{command}" for folder in folders if command):
        if os.path.isfile(place) and os.access(place, os.X_OK):
            return place
    raise StartFailed(f'{_INSIDE}exec: "{command}": executable file not found in $PATH')
