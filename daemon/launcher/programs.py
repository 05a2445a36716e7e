"""Run client programs of clusters, as the user of a task or of the daemon.

The policy contains their paths. Each program takes only arguments in a fixed format, so that no
value can be read as an option. A program inherits neither descriptors nor environment variables of
the launcher, and gains no privileges. The daemon reads the program's output. The launcher kills the
program at its time limit.

Notification commands run in the same way, as the daemon's user. The policy contains their paths and
arguments. The daemon sends only the name of a command and its input.
"""

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Final

from daemon.launcher import sandbox
from daemon.launcher.alloc_dir import own_ids
from daemon.launcher.channel import Refusal, read_sealed
from daemon.launcher.messages import MOST_PAYLOAD, LauncherPolicy, ProgramCommand
from daemon.launcher.shim_script import PATH, Tools
from daemon.launcher.task_start import ends, of_new_session
from daemon.launcher.user_policy import UserPolicy, being

SECONDS = 30  # time limit of a program; a session in a job has none
NOTIFY: Final = "notify"  # program name in requests for a notification command
_COMMANDS_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_TERMINAL = "xterm"
_NUMBER, _VALUE, _JOB = "-?[0-9]{1,19}", r"[^\n]{0,131000}", "[0-9]{1,19}(?:_[0-9]{1,9})?"
_NAME = "[A-Za-z0-9_][A-Za-z0-9_.:-]{0,254}"


def _options(*options: str) -> str:
    return rf"(?:(?:{'|'.join(options)})\n)*"


# The arguments of each program, each ended by a newline.
_FORMS: Mapping[str, re.Pattern[str]] = {
    name: re.compile(form)
    for name, form in {
        "sbatch": _options(
            "--parsable|--no-requeue|--export=ALL|--chdir=/|--(?:input|output|error)=/dev/null",
            f"--(?:job-name|comment|partition|constraint|account|qos)={_VALUE}",
            f"--(?:nodes|ntasks|cpus-per-task|mem|tmp|time|nice)={_NUMBER}|--array=0-[0-9]{{1,9}}",
        ),
        "squeue": _options(f"-[hr]|--(?:states=all|(?:user|jobs)={_JOB}|(?:format|name)={_VALUE})"),
        "scancel": rf"--name={_VALUE}\n[0-9]{{1,19}}\n|(?:[0-9]{{1,19}}_[0-9]{{1,9}}\n)+",
        "scontrol": rf"show\nconfig\n|-o\nshow\n(?:job\n{_JOB}|partition\n{_NAME})\n",
        "sinfo": rf"--version\n|{_options(f'-h|-N|--(?:partition|format)={_VALUE}')}",
        "srun": rf"--jobid={_NUMBER}\n--overlap\n-Q\n--chdir=/\n(?:--pty\n)?",
    }.items()
}
_SHELL = "/bin/sh"  # the shell of a session; arguments after it are not options of srun
# Variables of a job's wrapper, which `sbatch` passes on.
_WRAPPERS = re.compile(r"STEWARD_[A-Z_]{1,64}|PATH")


def start(
    policy: LauncherPolicy,
    tools: Tools,
    users: UserPolicy,
    program_command: ProgramCommand,
    descriptors: Sequence[int],
    *,
    is_terminal: bool,
) -> tuple[int, list[int]]:
    """Start a program; return its process ID, its pidfd, and the daemon's ends of its streams.

    The sealed file in `descriptors` is the input of the program. Raises `Refusal`, `OSError` or
    `ValueError`.
    """
    if program_command.program == NOTIFY:
        command = _command(policy, program_command, has_input=bool(descriptors) and not is_terminal)
        env = {"PATH": _COMMANDS_PATH, "LANG": "C.UTF-8"}
    else:
        command = _checked_command(policy, program_command)
        env = _environment(policy, program_command, is_terminal=is_terminal)
    user = users.of_program(program_command.user)
    if not tools.setpriv:
        raise Refusal("the program setpriv is missing: no program can change its user")
    with ExitStack() as resources:
        own_ends, actions = ends(user, resources, is_terminal=is_terminal)
        for descriptor in descriptors:
            read_sealed(descriptor, MOST_PAYLOAD)
            os.lseek(descriptor, 0, os.SEEK_SET)
            actions.append((os.POSIX_SPAWN_DUP2, descriptor, 0))
        pid = _spawn([*sandbox.without_rights(tools, user), *command], env, actions)
        return pid, [os.pidfd_open(pid), *map(os.dup, own_ends)]


def _command(policy: LauncherPolicy, command: ProgramCommand, *, has_input: bool) -> list[str]:
    """Return the path and the arguments of a notification command. Raises `Refusal`."""
    plain = ProgramCommand(program=NOTIFY, user="", args=command.args)
    if not has_input or command != plain or len(command.args) != 1:
        raise Refusal("a notification request must consist of a command's name and its input")
    if (arguments := policy.commands.get(command.args[0])) is None:
        raise Refusal(f"{command.args[0]!r} was not in notify_commands at the daemon's start")
    return arguments


def _checked_command(policy: LauncherPolicy, command: ProgramCommand) -> list[str]:
    """Return the path of the program and its checked arguments. Raises `Refusal`."""
    if (path := policy.programs.get(command.program)) is None:
        raise Refusal(
            f"{command.program} was not in the daemon's PATH at its start: install the cluster's client"
            " programs, and restart the daemon"
        )
    if not _FORMS[command.program].fullmatch("".join(f"{word}\n" for word in command.args)):
        raise Refusal(f"{command.program} was called with arguments that are not permitted")
    if [_SHELL][: command.program == "srun"] != [*map(os.fsdecode, command.command[:1])]:
        raise Refusal(f"{command.program} was called with a command that is not permitted")
    return [path, *command.args, *map(os.fsdecode, command.command)]


def _environment(
    policy: LauncherPolicy, command: ProgramCommand, *, is_terminal: bool
) -> dict[str, str]:
    if command.config and command.config not in policy.cluster_configs:
        raise Refusal(f"{command.config!r} is not the cluster_config of a pool")
    if command.program != "sbatch" and command.env:
        raise Refusal(f"{command.program} takes no variables")
    for name in command.env:
        if not _WRAPPERS.fullmatch(name):
            raise Refusal(f"{name!r} is not a variable of a job's wrapper")
    env = {"PATH": PATH, "LC_ALL": "C", "SLURM_TIME_FORMAT": "%s"}
    env |= {"SLURM_CONF": command.config} if command.config else {}
    env |= {"TERM": command.terminal or _TERMINAL} if is_terminal else {}
    return env | command.env


def _spawn(words: list[str], env: Mapping[str, str], actions: Sequence[tuple[object, ...]]) -> int:
    with being(own_ids()):  # jobs inherit its umask
        pid = os.posix_spawn(words[0], words, env, file_actions=actions, **of_new_session())
    # The process may have ended.
    with suppress(OSError), open(f"/proc/{pid}/oom_score_adj", "w") as file:
        file.write("0")  # the program must not inherit the launcher's protection
    return pid
