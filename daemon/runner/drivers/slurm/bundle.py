"""The directories, command and secrets of an attempt for its host: an archive, or a shell script.

The shell of the wrapper executes the script without starting a program, so the script costs the
host less CPU. It is possible if the files are few and small.

alloc/             the shared directory of the allocation, without logs
<task>/            local and secrets, with artifacts, templates and tokens
.steward/          for the wrapper: settings, the script of the task, the script of exec sessions,
                   and the script that searches for files to keep
"""

import io
import os
import shlex
import stat
import tarfile
from collections.abc import Mapping
from functools import partial
from typing import IO

import msgspec

from daemon.launcher.shim_script import CARRIER, carrying, is_plain
from daemon.runner.core.driver import Attempt
from daemon.runner.core.task_dir import SECRETS, SHARED, directories
from daemon.runner.core.task_env import TaskDirectories
from daemon.runner.drivers import driver_config
from daemon.runner.drivers.slurm import kept_patterns
from storage.records.base import SECOND

_OWN = ".steward"
_LOGS = f"{SHARED}/logs"
# Seconds after which the wrapper itself enforces the maximum run time, if Steward does not.
_LATE = 5
_UMASK = 0o077  # of the wrapper
_MODES = 0o666  # modes of files that a shell can create
_LONGEST_SCRIPT = 32 * 1024  # bytes
_MOST_MEMBERS = 64  # directories and files of a script
_FORGET = "unset _ SHLVL"  # variables that bash adds to those of its child processes
# Variables have names that tasks do not use, because the script runs in the task's environment.
_FIND = """\
_steward_c={command}
case $_steward_c in
/*) ;;
*) for _steward_p in "$PWD/local/$_steward_c" "$PWD/$_steward_c"; do
    if [ -f "$_steward_p" ] && [ -x "$_steward_p" ]; then _steward_c=$_steward_p; break; fi
done ;;
esac
command -v -- "$_steward_c" >/dev/null 2>&1 || {{ echo missing >{own}/why; exit 127; }}
"""


class SlurmConfig(msgspec.Struct, frozen=True):
    """The driver configuration, as for `raw_exec`."""

    command: str
    args: list[str] = []
    work_dir: str = ""


def home_of(folder: str, attempt: Attempt) -> str:
    """Return the directory of an attempt on its host; `folder` is the directory of the pool."""
    return f"{folder}/steward-{attempt.alloc_id}-{attempt.task}"


def task_dirs_of(folder: str, alloc_id: str, task: str) -> TaskDirectories:
    """Return the task directories on the host."""
    return directories(f"{folder}/steward-{alloc_id}-{task}", task)


def pack(file: IO[bytes], attempt: Attempt, home: str, secret: str) -> None:
    """Write the archive of an attempt that runs in `home` on its host. Raises `OSError`.

    `secret` authenticates the wrapper after its claim.
    """
    scripts = _Scripts.of(attempt, home)
    texts = {"settings": _settings(attempt, secret), **scripts.texts()}
    _write(file, attempt, texts)


def pack_script(attempt: Attempt, home: str, secret: str) -> bytes | None:
    """Return a shell script that has the effects of unpacking the archive and its settings.

    The exit status of the script is not 0 if a file cannot be written. Return None if only an
    archive can hold the files. Raises `OSError`.
    """
    names: list[str] = []
    lines: list[str] = []
    for name in (SHARED, f"{attempt.task}/local", f"{attempt.task}/{SECRETS}"):
        if not _collect(attempt, name, names, lines):
            return None
    scripts = _Scripts.of(attempt, home)
    directories = " ".join(map(shlex.quote, names))
    commands = [
        f"exports={shlex.quote(scripts.exports)}",
        f"{{ {' && '.join(f'[ -d {shlex.quote(name)} ]' for name in names)} || mkdir -p -- {directories}; }}",
        *lines,
        f"umask {_UMASK:03o}",
        *(
            f'printf %s "$exports"{shlex.quote(text)} >{_OWN}/{name}'
            for name, text in (("task", scripts.task), ("session", scripts.session))
        ),
        *([f"printf %s {shlex.quote(scripts.keep)} >{_OWN}/keep"] if scripts.keep else []),
    ]
    text = _settings(attempt, secret) + " &&\n".join(commands) + "\n"
    data = text.encode("utf-8", "surrogateescape")
    return data if len(data) <= _LONGEST_SCRIPT and b"\0" not in data else None


def _collect(attempt: Attempt, name: str, names: list[str], lines: list[str]) -> bool:
    """Add a directory and its content to `names`, and the commands for its files to `lines`.

    Return false if only an archive can hold the content. Raises `OSError`.
    """
    names.append(name)
    with os.scandir(f"{attempt.directory}/{name}") as entries:
        for entry in entries:
            path = f"{name}/{entry.name}"
            if len(names) + len(lines) >= _MOST_MEMBERS:
                return False
            if entry.is_dir(follow_symlinks=False):
                if path == _LOGS:
                    names.append(path)
                elif not _collect(attempt, path, names, lines):
                    return False
            elif not _add_file(entry.path, path, lines):
                return False
    return True


def _add_file(source: str, path: str, lines: list[str]) -> bool:
    """Add the command that writes a file; return false if only an archive can hold the file.

    Raises `OSError`.
    """
    if not stat.S_ISREG(os.lstat(source).st_mode):
        return False
    with open(source, "rb", opener=_opened) as file:
        facts = os.fstat(file.fileno())
        mode = stat.S_IMODE(facts.st_mode)
        is_plain_file = stat.S_ISREG(facts.st_mode) and facts.st_nlink == 1
        if not is_plain_file or mode & ~_MODES or facts.st_size > _LONGEST_SCRIPT:
            return False
        data = file.read(_LONGEST_SCRIPT + 1)
    text = data.decode("utf-8", "surrogateescape")
    lines.append(
        f"umask {_MODES & ~mode:03o} && printf %s {shlex.quote(text)} >{shlex.quote(path)}"
    )
    return len(data) <= _LONGEST_SCRIPT


def _opened(path: str, flags: int) -> int:
    """Open a file, but neither follow a symbolic link nor wait for a named pipe."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


class _Scripts(msgspec.Struct, frozen=True, kw_only=True):
    """The scripts of an attempt. `exports` is the beginning of `task` and `session`."""

    exports: str
    task: str
    session: str
    keep: str

    @classmethod
    def of(cls, attempt: Attempt, home: str) -> "_Scripts":
        settings = driver_config.read(SlurmConfig, attempt.config)
        work_dir = shlex.quote(settings.work_dir or f"{home}/{attempt.task}")
        enter = f"cd -- {work_dir} || exit 125\nunset OLDPWD\n"
        find = _FIND.format(
            command=shlex.quote(settings.command), own=shlex.quote(f"{home}/{_OWN}")
        )
        args = " ".join(['"$_steward_c"', *map(shlex.quote, settings.args)])
        exports, launch = _exports(attempt.env)
        return cls(
            exports=exports,
            task=f"{enter}{find}exec {launch}{args}\n",
            session=f'{enter}exec {launch}"$@"\n',
            keep=kept_patterns.searches(attempt.task, attempt.keep) if attempt.keep else "",
        )

    def texts(self) -> dict[str, str]:
        """Return the content of the files by name."""
        texts = {"task": self.exports + self.task, "session": self.exports + self.session}
        return texts | ({"keep": self.keep} if self.keep else {})


def _settings(attempt: Attempt, secret: str) -> str:
    most = attempt.longest // SECOND + _LATE if attempt.longest else 0
    settings_line = f"secret={secret} logs={int(not attempt.log.disabled)} most={most}"
    return f"{settings_line} outputs={shlex.quote(attempt.outputs)}\n"


def pack_files(file: IO[bytes], attempt: Attempt) -> None:
    """Write an archive with the current files only. Raises `OSError`."""
    _write(file, attempt, {})


def _write(file: IO[bytes], attempt: Attempt, texts: Mapping[str, str]) -> None:
    with tarfile.open(fileobj=file, mode="w:gz", compresslevel=1) as archive:
        for name, text in texts.items():
            header = tarfile.TarInfo(f"{_OWN}/{name}")
            data = text.encode("utf-8", "surrogateescape")
            header.size, header.mode = len(data), 0o600
            archive.addfile(header, io.BytesIO(data))
        task = attempt.task
        # A running task may have written outputs already, so its outputs file is left out.
        fits = partial(_plain, without="" if texts else attempt.outputs)
        for name in (SHARED, f"{task}/local", f"{task}/{SECRETS}"):
            if texts or name != SHARED:
                archive.add(f"{attempt.directory}/{name}", name, filter=fits)


def _plain(tar_info: tarfile.TarInfo, without: str) -> tarfile.TarInfo | None:
    """Return an archive member with its owner removed.

    Return None for logs, special files, and the file that `without` names.
    """
    if tar_info.name.startswith(f"{_LOGS}/") or tar_info.name == without:
        return None
    if not (tar_info.isfile() or tar_info.isdir() or tar_info.issym() or tar_info.islnk()):
        return None
    tar_info.uid = tar_info.gid = 0
    tar_info.uname = tar_info.gname = ""
    return tar_info


def _exports(env: Mapping[str, str]) -> tuple[str, str]:
    """Return the shell script that sets variables, and the words before an executed command."""
    plain = {name: value for name, value in env.items() if is_plain(name)}
    special = [f"{name}={value}" for name, value in env.items() if not is_plain(name)]
    carried = {f"{CARRIER}{number}": pair for number, pair in enumerate(special)}
    lines = [f"export {name}={shlex.quote(value)}" for name, value in (plain | carried).items()]
    launch = " ".join(["env", *carrying(carried), ""]) if carried else ""
    return "\n".join([_FORGET, *lines, ""]), launch
