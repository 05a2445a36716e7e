"""The shim: the shell that outlives the daemon, waits for a task and records its exit status.

Its script is passed as an argument, so an upgrade cannot change running shims. It starts in the
working directory of the task. The shim writes its process ID and runs the task in the foreground,
because a background command would ignore SIGINT. The task has its own session. Then the shim writes
the exit status. The shim ignores signals; the daemon signals the task.

Descriptors: 0 is empty, 1 the task's standard output, 2 the claim file, 3 the task's standard
error. Descriptor 4 is the system call filter, if there is one: bubblewrap reads and closes it.
Arguments: the limit on open files, then the command. All users of the host can see arguments. So
two variables hold the values that name the allocation, and the task does not get these variables.
STEWARD_SHIM_PLACE is the task's directory, by which operators find a shim. STEWARD_SHIM_GROUPS has
the files through which the task enters its cgroups, one per line. The first line belongs to the
cgroup by which the launcher kills the task; it is empty without such a cgroup.

Environment variables can make libraries load other files or change their behavior. Programs
that run with more privileges than the task therefore get none of the task's variables. The task's
variables are passed through under other names, and a second shell with the task's privileges
exports them.
"""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from shlex import quote

import msgspec

from daemon.launcher.user_policy import User

_TEXT = """\
trap : HUP INT QUIT TERM
echo "shim $$" >&2 || exit 125
(
  {enter}
  {expose}
  ulimit -S -n "$1" &&{data} umask 022 && shift &&
  unset OLDPWD STEWARD_SHIM_PLACE STEWARD_SHIM_GROUPS &&
  exec {launch} "$@" 2>&3 3>&-
)
s=$?
echo "exit $s" >&2
exit $s
"""
# A command in an exec session already has its own session, and its parent watches it.
_INSIDE = """\
{enter}
{expose}
ulimit -S -n "$1" &&{data} umask 022 && shift &&
unset OLDPWD STEWARD_SHIM_PLACE STEWARD_SHIM_GROUPS &&
exec {launch} "$@"
"""
# Enter the cgroups by writing to each file in the variable.
_ENTER_GROUPS = """set -f; IFS='
'; for g in $STEWARD_SHIM_GROUPS; do echo 0 >"$g" || exit; done; unset IFS; set +f"""
# The OOM killer must choose the daemon and the shim last, but not the task.
_EXPOSE = "{ echo 200 >/proc/self/oom_score_adj; } 2>/dev/null"
# Runs with the task's privileges inside the sandbox. No value appears in an argument.
_EXPORT = 'unset PATH; {export}exec {env} "$@"{closed}'
# Record the task's process ID in the claim, if there is no cgroup by which the launcher kills it.
_NOTE_PID = 'read -r pid rest </proc/self/stat && echo "main $pid" >&2 || exit'

# Variables that a shell reserves, changes or rejects, or that affect the shell itself. The task
# gets them from `env`, the last program before it.
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_SHELLS_OWN = frozenset(
    {
        *("IFS", "PPID", "OPTIND", "OLDPWD", "LINENO", "PS1", "PS2", "PS4", "_"),
        *("ENV", "HOSTALIASES", "LOCALDOMAIN", "NLSPATH", "RES_OPTIONS", "RESOLV_HOST_CONF"),
        *("GETCONF_DIR", "TZDIR", "NIS_PATH", "SHELLOPTS", "SHLVL", "RANDOM", "SECONDS"),
        *("UID", "EUID", "FUNCNEST", "GLOBIGNORE"),
    }
)
_OWN_PREFIXES = (
    *("LD_", "GLIBC_", "GCONV_", "LOCPATH", "MALLOC_", "BASH", "EPOCH"),
    *("STEWARD_ENV_", "STEWARD_SHIM_"),
)
CARRIER = "STEWARD_ENV_"


FILTER = 4  # number of the descriptor of the system call filter


class Tools(msgspec.Struct, frozen=True, kw_only=True):
    """The paths of the programs that run before a task or for its network; empty if missing."""

    sh: str
    setsid: str
    setpriv: str
    env: str
    bwrap: str
    nsenter: str
    stat: str
    ip: str = ""
    nft: str = ""


def find_tools() -> Tools:
    """Return the paths of the programs on this host."""
    names = ("setsid", "setpriv", "env", "bwrap", "nsenter", "stat", "ip", "nft")
    paths = {name: _find(name) for name in names}
    # Prefer dash: it needs half the memory and time of other shells.
    return Tools(sh=_find("dash") or _find("sh"), **paths)


def _find(name: str) -> str:
    paths = [f"{folder}/{name}" for folder in PATH.split(":")]
    return next((path for path in paths if os.access(path, os.X_OK)), "")


PATH = "/usr/bin:/bin:/usr/sbin:/sbin"


def command_line(
    tools: Tools,
    argv: Sequence[str],
    env: Mapping[str, str],
    *,
    shim_dir: str,
    entry: str,
    open_files: int,
    data: int = 0,
    user: User | None = None,
    wrap: Sequence[str] = (),
    inside: bool = False,
    apart: bool = False,
    closed: Sequence[int] = (),
) -> tuple[list[str], dict[str, str]]:
    """Return the arguments and the environment of the shim.

    No value of a variable appears in an argument, because all users of the host can see arguments.
    `wrap` has the programs that run between the shell and the command. With `inside`, the shell
    executes the command instead of watching it. `data` is RLIMIT_DATA in KiB, 0 for no limit.
    `apart` means that the programs in `wrap` run with other privileges than the command. They then
    get no variables of the task, and the command does not get the descriptors `closed`.
    """
    plain = {name: value for name, value in env.items() if is_plain(name)}
    special = {name: value for name, value in env.items() if name not in plain}
    passed, carried = ({"PATH": PATH}, plain | special) if apart else (plain, special)
    carriers = {name: f"{CARRIER}{number}" for number, name in enumerate(carried)}
    # In a sandbox the command may be a bare name without a PATH; `env` still finds it.
    is_last = bool(special) or bool(closed)
    last = [quote(tools.env), *carrying(carriers[name] for name in special)] if is_last else []
    command = _user_and_sandbox(tools, user, wrap)
    if apart:
        command += _exporting(tools, [carriers[name] for name in plain], last, closed)
    else:
        command += last
    steps = [] if inside or entry.partition("\n")[0] else [_NOTE_PID]
    if entry.strip():
        steps.append(_ENTER_GROUPS)
    enter = "\n".join(steps)
    most = f" ulimit -d {data} &&" if data else ""
    launch = " ".join(command if inside else [quote(tools.setsid), *command])
    form = _INSIDE if inside else _TEXT
    text = form.format(enter=enter, expose=_EXPOSE, data=most, launch=launch)
    line = [tools.sh, "-c", text, "steward-shim", str(open_files), *argv]
    values = {carriers[name]: f"{name}={value}" for name, value in carried.items()}
    own = {"STEWARD_SHIM_PLACE": shim_dir, "STEWARD_SHIM_GROUPS": entry}
    return line, passed | values | own


@lru_cache(maxsize=4096)  # most names are the same for all tasks
def is_plain(name: str) -> bool:
    """Return whether a shell passes a variable with this name on unchanged."""
    return (
        _PLAIN.fullmatch(name) is not None
        and name not in _SHELLS_OWN
        and not name.startswith(_OWN_PREFIXES)
    )


def _user_and_sandbox(tools: Tools, user: User | None, wrap: Sequence[str]) -> list[str]:
    """Return the shell words that change the user and build the sandbox."""
    command = []
    if user is not None:
        groups = ",".join(map(str, user.groups)) or str(user.gid)
        command += [
            quote(tools.setpriv),
            f"--reuid={user.uid} --regid={user.gid} --groups={groups} --inh-caps=-all --",
        ]
    return [*command, *map(quote, wrap)]


def _exporting(
    tools: Tools, carriers: Sequence[str], last: Sequence[str], closed: Sequence[int]
) -> list[str]:
    """Return the arguments of a second shell, which exports variables and runs a command.

    `carriers` are the variables that hold the texts `NAME=VALUE`. The shell puts the words in
    `last` before the command, and closes the descriptors `closed`.
    """
    values = " ".join(f'"${name}"' for name in carriers)
    export = f"export {values}; unset {' '.join(carriers)}; " if carriers else ""
    shut = "".join(f" {descriptor}<&-" for descriptor in closed)
    text = _EXPORT.format(export=export, env=" ".join(last), closed=shut)
    return [quote(tools.sh), "-c", quote(text), "sh"]


def carrying(carriers: Iterable[str]) -> list[str]:
    """Return arguments for `env` that replace the variables `carriers` by the task's variables."""
    names = list(carriers)
    return [*(f"-u {name}" for name in names), *(f'"${name}"' for name in names)]
