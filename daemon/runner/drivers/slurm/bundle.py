"""The archive with an attempt's directories, command and secrets for its host.

alloc/             the shared directory of the allocation, without logs
<task>/            local and secrets, with artifacts, templates and tokens
.steward/          for the wrapper: settings, the script of the task, the script of exec sessions,
                   and the script that searches for files to keep
"""

import io
import shlex
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
    settings = driver_config.read(SlurmConfig, attempt.config)
    own, work_dir = f"{home}/{_OWN}", shlex.quote(settings.work_dir or f"{home}/{attempt.task}")
    enter = f"cd -- {work_dir} || exit 125\nunset OLDPWD\n"
    command = shlex.quote(settings.command)
    find = _FIND.format(command=command, own=shlex.quote(own))
    args = " ".join(['"$_steward_c"', *map(shlex.quote, settings.args)])
    most = attempt.longest // SECOND + _LATE if attempt.longest else 0
    settings_line = f"secret={secret} logs={int(not attempt.log.disabled)} most={most}"
    settings_line += f" outputs={shlex.quote(attempt.outputs)}\n"
    texts = {
        "settings": settings_line,
        "task": _script(attempt.env, f"{enter}{find}", args),
        "session": _script(attempt.env, enter, '"$@"'),
    }
    if attempt.keep:
        texts["keep"] = kept_patterns.searches(attempt.task, attempt.keep)
    _write(file, attempt, texts)


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


def _script(env: Mapping[str, str], before: str, words: str) -> str:
    """Return a shell script that sets variables and executes a command.

    `before` are lines that run after the variables are set; `words` are the command, quoted for the
    shell.
    """
    plain = {name: value for name, value in env.items() if is_plain(name)}
    special = [f"{name}={value}" for name, value in env.items() if not is_plain(name)]
    carried = {f"{CARRIER}{number}": pair for number, pair in enumerate(special)}
    lines = [f"export {name}={shlex.quote(value)}" for name, value in (plain | carried).items()]
    launch = ["env", *carrying(carried), words] if carried else [words]
    return "\n".join([*lines, f"{before}exec {' '.join(launch)}", ""])
