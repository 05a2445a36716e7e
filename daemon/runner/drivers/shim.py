"""The shell that stands between the daemon and a task: it outlives the daemon and keeps the exit.

The text is handed over with the command, so that an upgrade cannot change what already runs. The
shell says who it is, runs the task in the foreground (a background command would ignore SIGINT,
which ends most tasks) and in a session of its own, and writes its exit status down. Signals that
reach the shell itself do nothing; the daemon signals the task.

Descriptors: 0 nothing, 1 the task's standard output, 2 the claim file, 3 the task's standard error,
4 the filter of system calls, where there is one: bubblewrap reads it and closes it.
Arguments: the limit of open files, then the command. All users of a machine can see these, so two
variables, which the task does not get, hold the working directory and the files by which one enters
the groups of processes, one a line (the first line is empty where there is no group by which a task
is ended): both name the allocation.
"""

import fcntl
import os
import re
import shlex
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache

import msgspec

_TEXT = """\
trap : HUP INT QUIT TERM
echo "shim $$" >&2 || exit 125
(
  {enter}
  {expose}
  cd -- "$STEWARD_SHIM_PLACE" && ulimit -S -n "$1" &&{data} umask 022 && shift &&
  unset OLDPWD STEWARD_SHIM_PLACE STEWARD_SHIM_GROUPS &&
  exec {launch} "$@" 2>&3 3>&-
)
s=$?
echo "exit $s" >&2
exit $s
"""
# A command that somebody runs inside the task: in a session already, watched by who started it.
_INSIDE = """\
{enter}
{expose}
cd -- "$STEWARD_SHIM_PLACE" && ulimit -S -n "$1" &&{data} umask 022 && shift &&
unset OLDPWD STEWARD_SHIM_PLACE STEWARD_SHIM_GROUPS &&
exec {launch} "$@"
"""
# Into the group of processes and those that bound it, or, where there is no group by which a task
# is ended, a note of the task's own pid.
_ENTER_GROUPS = """set -f; IFS='
'; for g in $STEWARD_SHIM_GROUPS; do echo 0 >"$g" || exit; done; unset IFS; set +f"""
# The daemon and the shim are the last that the kernel ends when memory runs out; the task is not.
_EXPOSE = "{ echo 200 >/proc/self/oom_score_adj; } 2>/dev/null"
_NOTE_PID = 'read -r pid rest </proc/self/stat && echo "main $pid" >&2 || exit'

# What a shell keeps to itself, changes or chokes on, and what would change the shell itself: the
# task gets these from `env`, the last link before it.
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_SHELLS_OWN = frozenset(
    {
        *("IFS", "PPID", "OPTIND", "OLDPWD", "LINENO", "PS1", "PS2", "PS4", "_"),
        *("SHELLOPTS", "SHLVL", "RANDOM", "SECONDS", "UID", "EUID", "FUNCNEST", "GLOBIGNORE"),
    }
)
_OWN_PREFIXES = (
    *("LD_", "GLIBC_", "GCONV_", "LOCPATH", "MALLOC_", "BASH", "EPOCH"),
    *("STEWARD_ENV_", "STEWARD_SHIM_"),
)
_CARRIER = "STEWARD_ENV_"


FILTER = 4  # the last of the descriptors above
_BEYOND = 10  # a descriptor from here on is none of them


class Tools(msgspec.Struct, frozen=True, kw_only=True):
    """Where the programs are that make up the chain before a task."""

    sh: str
    setsid: str
    setpriv: str  # nothing where it is missing: then no other users
    env: str


def find_tools() -> Tools | None:
    """Return the programs of this machine, or None when one that is needed is missing."""
    # The smaller shell first: half the memory and time of the other ones.
    shell = shutil.which("dash", path=PATH) or shutil.which("sh", path=PATH)
    setsid, env = shutil.which("setsid", path=PATH), shutil.which("env", path=PATH)
    if not (shell and setsid and env):
        return None
    setpriv = shutil.which("setpriv", path=PATH)
    return Tools(sh=shell, setsid=setsid, setpriv=setpriv or "", env=env)


PATH = "/usr/bin:/bin:/usr/sbin:/sbin"


class User(msgspec.Struct, frozen=True, kw_only=True):
    """Whom a task runs as."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str
    is_account: bool = True  # of the machine


def command_line(
    tools: Tools,
    argv: Sequence[str],
    env: Mapping[str, str],
    *,
    directory: str,
    entry: str,
    open_files: int,
    data: int = 0,
    user: User | None = None,
    wrap: Sequence[str] = (),
    inside: bool = False,
) -> tuple[list[str], dict[str, str]]:
    """Return the arguments and the environment with which to start the shell.

    No value of a variable shows in an argument of the shell, which all users of a machine can see.
    `wrap` is what stands between the shell and the command; the shell's own programs must not see
    the variables that it carries past. With `inside` the shell becomes the command instead of
    watching it. `data` is how much each process may map for itself, KiB; 0: what it likes.
    """
    plain = {name: value for name, value in env.items() if _is_plain(name)}
    special = [f"{name}={value}" for name, value in env.items() if not _is_plain(name)]
    carried = {f"{_CARRIER}{number}": pair for number, pair in enumerate(special)}
    words = _launch(tools, list(carried), user, wrap)
    steps = [] if inside or entry.partition("\n")[0] else [_NOTE_PID]
    if entry.strip():
        steps.append(_ENTER_GROUPS)
    enter = "\n".join(steps)
    most = f" ulimit -d {data} &&" if data else ""
    if inside:
        text = _INSIDE.format(enter=enter, expose=_EXPOSE, data=most, launch=" ".join(words))
    else:
        launch = " ".join([shlex.quote(tools.setsid), *words])
        text = _TEXT.format(enter=enter, expose=_EXPOSE, data=most, launch=launch)
    line = [tools.sh, "-c", text, "steward-shim", str(open_files), *argv]
    own = {"STEWARD_SHIM_PLACE": directory, "STEWARD_SHIM_GROUPS": entry}
    return line, plain | carried | own


@contextmanager
def readable(text: bytes) -> Iterator[int | None]:
    """Give a descriptor from which a program reads a short text; None where there is nothing.

    It is a pipe that holds the whole: each program has its own, and reads it from the start.
    """
    if not text:
        yield None
        return
    reader, writer = os.pipe2(
        os.O_CLOEXEC | os.O_NONBLOCK
    )  # a text that it cannot hold is an error
    try:
        end = fcntl.fcntl(reader, fcntl.F_DUPFD_CLOEXEC, _BEYOND)
        os.set_blocking(reader, True)
        if os.write(writer, text) < len(text):
            raise OSError(f"{len(text)} bytes are too many for a pipe")
    finally:
        os.close(reader)
        os.close(writer)
    try:
        yield end
    finally:
        os.close(end)


def script(env: Mapping[str, str], before: str, words: str) -> str:
    """Return lines of a shell that becomes a command with these variables besides its own.

    `before` are lines that come before, with the variables set; `words` are the command's, as the
    shell is to read them.
    """
    plain = {name: value for name, value in env.items() if _is_plain(name)}
    special = [f"{name}={value}" for name, value in env.items() if not _is_plain(name)]
    carried = {f"{_CARRIER}{number}": pair for number, pair in enumerate(special)}
    lines = [f"export {name}={shlex.quote(value)}" for name, value in (plain | carried).items()]
    launch = ["env", *_carrying(carried), words] if carried else [words]
    return "\n".join([*lines, f"{before}exec {' '.join(launch)}", ""])


@lru_cache(maxsize=4096)  # most names are the same for every task
def _is_plain(name: str) -> bool:
    return (
        _PLAIN.fullmatch(name) is not None
        and name not in _SHELLS_OWN
        and not name.startswith(_OWN_PREFIXES)
    )


def _launch(tools: Tools, carriers: list[str], user: User | None, wrap: Sequence[str]) -> list[str]:
    """Return the shell words before the task's own command."""
    words = []
    if user is not None:
        groups = ",".join(map(str, user.groups)) or str(user.gid)
        words += [
            shlex.quote(tools.setpriv),
            f"--reuid={user.uid} --regid={user.gid} --groups={groups} --inh-caps=-all --",
        ]
    words += map(shlex.quote, wrap)
    if carriers:
        words += [shlex.quote(tools.env), *_carrying(carriers)]
    return words


def _carrying(carriers: Iterable[str]) -> list[str]:
    """Return the words with which `env` sets what these variables carry."""
    names = list(carriers)
    return [*(f"-u {name}" for name in names), *(f'"${name}"' for name in names)]
