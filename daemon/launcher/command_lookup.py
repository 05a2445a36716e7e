"""Find the executable file of a task's command, as the task itself would find it."""

import os
import stat
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from daemon.launcher.channel import Refusal
from daemon.launcher.user_policy import User

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_LAUNCH = "failed to launch command with executor: rpc error: code = Unknown desc = "
_INSIDE = "rpc error: code = Unknown desc = failed to start command: "


class CommandFile(NamedTuple):
    """A file that a task sees at `task_path`, and that the launcher opens at `path`.

    `path` is relative to the open directory `above`; if `above` is None, `path` is absolute.
    """

    task_path: str
    path: str
    above: int | None = None


def find(
    command: str,
    task_files: Iterable[CommandFile],
    path: str | None,
    find_file: Callable[[str], CommandFile | None],
    user: User | None,
) -> str:
    """Return the path of a command's executable: one of `task_files`, or a file in the search path.

    A file of the task counts only if no user except root and the task's user can write to it.
    `find_file` returns the file at a path in the task. `path` is the search path. Raises `Refusal`
    if no file is found, or if the file is not executable.
    """
    if command.startswith("/"):
        files = [find_file(command)]
    else:
        files = [file for file in task_files if is_trusted(file, user)]
        folders = [] if "/" in command else (path or DEFAULT_PATH).split(":")
        files += [find_file(f"{folder}/{command}") for folder in folders if folder]
    existing = [file for file in files if command and file and _is_file(file)]
    for file in existing:
        if _is_executable(file):
            return file.task_path
    if existing:
        raise Refusal(f'{_LAUNCH}binary "{existing[0].task_path}" is not executable')
    raise Refusal(f'{_LAUNCH}binary "{command}" could not be found')


def find_in_session(command: str, directory: str, path: str | None) -> str:
    """Return the file of a command in an exec session, as a shell in `directory` would find it.

    Raises `Refusal` with Nomad's message (source: Nomad's recorded responses `alloc-exec`).
    """
    if "/" in command:
        candidate = os.path.join(directory, command)
        for mode, reason in (
            (os.F_OK, "no such file or directory"),
            (os.X_OK, "permission denied"),
        ):
            is_there = os.access(candidate, mode, effective_ids=True)
            if not is_there or (os.path.isdir(candidate) and mode == os.X_OK):
                raise Refusal(f"{_INSIDE}fork/exec {command}: {reason}")
        return candidate
    folders = [folder for folder in (path or DEFAULT_PATH).split(":") if folder]
    for candidate in (f"{folder}/{command}" for folder in folders if command):
        file = CommandFile(candidate, candidate)
        if _is_file(file) and _is_executable(file):
            return candidate
    raise Refusal(f'{_INSIDE}exec: "{command}": executable file not found in $PATH')


def is_trusted(file: CommandFile, user: User | None) -> bool:
    """Return whether only root and the task's user can change a file and its directory."""
    uids = {0, os.getuid(), user.uid if user else 0}
    gids = {0, os.getgid(), user.gid if user else 0}
    try:
        paths = (file.path, os.path.dirname(file.path) or ".")
        facts = [os.stat(path, dir_fd=file.above) for path in paths]
    except (OSError, ValueError):
        return False
    return all(
        status.st_uid in uids
        and not status.st_mode & stat.S_IWOTH
        and (status.st_gid in gids or not status.st_mode & stat.S_IWGRP)
        for status in facts
    )


def below(path: str, mounts: Sequence[tuple[str, int]]) -> CommandFile | None:
    """Return the file that a task sees at `path`, or None if `path` is not below a mount.

    Each pair in `mounts` is a path in the task, and a descriptor of the directory mounted there.
    """
    for inside, above in mounts:
        if path.startswith(f"{inside}/"):
            return CommandFile(path, path.removeprefix(f"{inside}/").lstrip("/") or ".", above)
    return None


def _is_file(file: CommandFile) -> bool:
    try:
        return stat.S_ISREG(os.stat(file.path, dir_fd=file.above).st_mode)
    except (OSError, ValueError):
        return False


def _is_executable(file: CommandFile) -> bool:
    return os.access(file.path, os.X_OK, dir_fd=file.above, effective_ids=True)
