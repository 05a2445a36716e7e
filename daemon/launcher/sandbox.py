"""The sandbox of a task: arguments of bubblewrap and setpriv, and how to enter a sandbox.

A task sees the system's programs and configuration read-only, and its own directories. It has a
private /proc and a few harmless devices, and sees nothing else of the host. It has no capabilities
and cannot gain any: set-user-ID programs have no effect.

In tasks and exec sessions, a system call filter blocks calls that ordinary programs never make.

As root, tasks run as an unprivileged user of the host. Otherwise they run as the launcher's user in
a user namespace, if permitted.
"""

import os
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import NamedTuple

from daemon.launcher.alloc_dir import LOCAL, SECRETS, TMP
from daemon.launcher.channel import Refusal
from daemon.launcher.claims_and_logs import LOGS, SHARED, put
from daemon.launcher.messages import AllowedVolume, DnsSettings, MountedVolume, TaskCommand
from daemon.launcher.safe_open import resolver
from daemon.launcher.shim_script import FILTER, Tools
from daemon.launcher.shims import children, is_ours
from daemon.launcher.user_policy import OWN_HOME, User

NOT_THERE = "the task has not started yet, or has just ended"
# Prefixes of files for a task, next to the claim files.
RESOLVER, ACCOUNTS = ".resolv.", ".accounts."
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc")
# The paths at which a task sees its directories, and their paths relative to the task directory.
OWN = {OWN_HOME: LOCAL, "/secrets": SECRETS, f"/{SHARED}": f"../{SHARED}", "/tmp": TMP}  # noqa: S108
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_STREAMS = {"fd": "fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}
_HIDDEN = ("/etc/steward",)  # the daemon's configuration
_TAKEN = frozenset({*SYSTEM, "/proc", "/dev", "/sys", "/run", *OWN})
_RESOLVER = "/etc/resolv.conf"
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_COMPARE = """\
while [ "$1" != -- ]; do
  [ "$("$0" -c %d:%i "$1")" = "$2" ] || { echo "the volume at $1 was replaced" >&2; exit 1; }
  shift 2
done
shift
exec "$@"
"""
# Descriptor numbers for the namespaces that an exec session enters; 4 is the filter's.
_NUMBERS = (3, 5, 6, 7, 8, 9)
_FILES = {"mount": "mnt"}
_LEVELS = 2  # processes between the shim and the task: bwrap outside and inside
_READABLE = 0o644


def mount_target(mount: MountedVolume) -> str:
    """Return the path at which a task sees a volume. Raises `Refusal`.

    The path must not hide the system's programs, because they build the sandbox. It must not be
    below a directory that a task can write to. A link there could redirect the mount to these
    programs.
    """
    path = posixpath.normpath(f"/{mount.destination}")
    path = f"/{path.lstrip('/')}"
    if path == "/" or f"/{path.split('/')[1]}" in _TAKEN or "\0" in path:
        raise Refusal(
            f"volume {mount.name!r} cannot be mounted at {mount.destination!r}: choose a separate"
            " directory, such as /data"
        )
    return path


def mount_targets(mounts: Sequence[MountedVolume]) -> list[str]:
    """Return the paths at which a task sees its volumes. Raises `Refusal`."""
    targets: list[str] = []
    for mount in mounts:
        path = mount_target(mount)
        if any(f"{path}/".startswith(f"{top}/") or top.startswith(f"{path}/") for top in targets):
            raise Refusal(f"volume {mount.name!r} at {path!r} conflicts with another volume")
        targets.append(path)
    return targets


class SandboxMount(NamedTuple):
    """A volume: its path in the task, its path on the host, and a descriptor of that directory."""

    path: str
    source: str
    is_read_only: bool
    descriptor: int


def volumes(
    task: TaskCommand, allowed: Mapping[str, AllowedVolume], roots: Sequence[str], stack: ExitStack
) -> list[SandboxMount]:
    """Return the volumes of a task; `stack` closes their descriptors. Raises `Refusal`.

    A volume that is not in `allowed` must be below one of `roots`, after links are resolved.
    """
    mounts = []
    for mount, path in zip(task.volumes, mount_targets(task.volumes), strict=True):
        volume = allowed.get(mount.volume)
        source = os.path.realpath(mount.path if volume is None else volume.path)
        is_below = any(f"{source}/".startswith(f"{root.rstrip('/')}/") for root in roots)
        try:
            if not mount.path or (volume is None and not is_below):
                raise NotADirectoryError
            descriptor = _without_links(source)
        except OSError:
            raise Refusal(f"volume {mount.name!r} is not a directory on this host") from None
        stack.callback(os.close, descriptor)
        is_read_only = mount.read_only or (volume is not None and volume.read_only)
        mounts.append(SandboxMount(path, source, is_read_only, descriptor))
    return mounts


def _without_links(path: str) -> int:
    """Return a descriptor of a directory whose path was checked.

    Raises `OSError` for a link that was created after the check.
    """
    top = os.open("/", _DIRECTORY)
    try:
        return resolver(follows=False)(top, path.lstrip("/") or ".", _DIRECTORY)
    finally:
        os.close(top)


def _compared(tools: Tools, mounts: Sequence[SandboxMount]) -> list[str]:
    """Return a command line that stops the start of a task if one of its volumes was replaced.

    Bubblewrap resolves the path of a volume again after the check, so the path may then lead to
    another directory. The command runs in the sandbox, before any program of the task.
    """
    pairs: list[str] = []
    for mount in mounts:
        facts = os.fstat(mount.descriptor)
        pairs += [mount.path, f"{facts.st_dev}:{facts.st_ino}"]
    return [tools.sh, "-c", _COMPARE, tools.stat, *pairs, "--"] if pairs else []


def around(
    tools: Tools,
    task_command: TaskCommand,
    mounts: Sequence[SandboxMount],
    user: User | None,
    *,
    folder: int,
    task: str,
    filtered: bool,
    alone: bool,
) -> list[str]:
    """Return the command line that builds a sandbox; the task's command is appended to it.

    The command line must be started in the task directory. `folder` is a descriptor of the
    allocation directory. `user` is None if the task has the launcher's user. With `filtered`, the
    sandbox installs a system call filter. With `alone`, the sandbox gives the task an empty
    network. Raises `OSError`.
    """
    args = [tools.bwrap, "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    args += ["--die-with-parent"]  # the parent is the shim, which outlives the daemon
    args += _filter(filtered=filtered)
    args += ["--unshare-net"] if alone else []
    for path in SYSTEM:
        if os.path.islink(path):
            args += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            args += ["--ro-bind", path, path]
    for path in filter(os.path.isdir, _HIDDEN):
        args += ["--tmpfs", path]
    # These paths are relative to the task directory, the shim's working directory. So the arguments
    # do not reveal the allocation.
    args += _names(folder, task, task_command.dns)
    args += _accounts(folder, task, user)
    args += ["--proc", "/proc", *_devices()]
    for mount in mounts:
        args += ["--ro-bind" if mount.is_read_only else "--bind", mount.source, mount.path]
    for inside, outside in OWN.items():
        args += ["--bind", outside, inside]
    # A separate mount, so that no task can replace the logs that the daemon reads and writes.
    args += ["--ro-bind", f"../{SHARED}/{LOGS}", f"/{SHARED}/{LOGS}"]
    args += ["--remount-ro", "/", "--chdir", OWN_HOME, "--"]
    args += _compared(tools, mounts)
    args += without_rights(tools, user)
    # Executed with the task's privileges, so that inaccessible directories stay inaccessible.
    return args + ([tools.env, f"--chdir={task_command.work_dir}"] if task_command.work_dir else [])


def _filter(*, filtered: bool) -> list[str]:
    return ["--seccomp", str(FILTER)] if filtered else []


def _devices() -> Iterator[str]:
    """Yield the arguments that create the device files of a sandbox.

    Without root, private terminals would need a second user namespace, which no exec session could
    enter. The task therefore has no private terminals.
    """
    if os.geteuid() == 0:
        yield from ("--dev", "/dev")
        return
    yield from ("--tmpfs", "/dev", "--tmpfs", "/dev/shm")  # noqa: S108  # private to the task
    for name in _DEVICES:
        yield from ("--dev-bind", f"/dev/{name}", f"/dev/{name}")
    for name, target in _STREAMS.items():
        yield from ("--symlink", f"/proc/self/{target}", f"/dev/{name}")
    yield from ("--remount-ro", "/dev")


def _names(folder: int, task: str, dns: DnsSettings | None) -> Iterator[str]:
    """Yield the arguments that mount `resolv.conf`: the host's file, or a file made from `dns`."""
    resolved = os.path.realpath(_RESOLVER)
    if dns is not None:
        lines = [f"nameserver {server}" for server in dns.servers]
        lines += [f"search {' '.join(dns.searches)}"] if dns.searches else []
        lines += [f"options {' '.join(dns.options)}"] if dns.options else []
        # Next to the claim, where only the launcher can write: the task's own directories hold
        # files of the task and of artifacts.
        text = "".join(f"{line}\n" for line in lines)
        put(folder, f"{RESOLVER}{task}", text.encode("ascii"), _READABLE)
        yield from ("--ro-bind", f"../{RESOLVER}{task}", resolved)
    elif not resolved.startswith("/etc/") and os.path.exists(resolved):
        yield from ("--ro-bind", resolved, resolved)


def _accounts(folder: int, task: str, user: User | None) -> Iterator[str]:
    """Create account files for a user without an account; yield the arguments that mount them.

    The files are the host's, with a line for this user: many programs look up their user's name.
    """
    if user is None or user.is_account:
        return
    for name, line in (
        ("passwd", f"{user.name}:x:{user.uid}:{user.gid}::{user.home}:/usr/sbin/nologin\n"),
        ("group", f"{user.name}:x:{user.gid}:\n"),
    ):
        with open(f"/etc/{name}", "rb") as file:
            content = file.read()
        end = b"" if content.endswith(b"\n") else b"\n"
        put(folder, f"{ACCOUNTS}{name}.{task}", content + end + line.encode(), _READABLE)
        yield from ("--ro-bind", f"../{ACCOUNTS}{name}.{task}", f"/etc/{name}")


def without_rights(tools: Tools, user: User | None) -> list[str]:
    """Return the arguments that drop all privileges of a command and change to a user."""
    command = [tools.setpriv, "--no-new-privs", "--inh-caps=-all"]
    if user is not None:
        groups = ",".join(map(str, user.groups)) or str(user.gid)
        command += [f"--reuid={user.uid}", f"--regid={user.gid}", f"--groups={groups}"]
        command += ["--bounding-set=-all"]
    return [*command, "--"]


def enter_arguments(
    tools: Tools,
    task_command: TaskCommand,
    user: User | None,
    namespaces: Mapping[str, tuple[int, int]],
    *,
    filtered: bool,
    is_terminal: bool,
) -> list[str]:
    """Return the command line that enters a sandbox; an exec session's command is appended to it.

    `namespaces` is the result of `opened`. A process with a filter cannot enter namespaces. A
    second bubblewrap, which changes nothing else, therefore installs the filter after the command
    has entered the namespaces.

    On a terminal, the command leads a session that begins inside the PID namespace. Otherwise the
    numbers of its session and its process group would be 0 there, and no shell could control jobs.
    """
    numbers = {kind: number for kind, (_, number) in namespaces.items()}
    command = [tools.nsenter, *(f"--{kind}=/proc/self/fd/{fd}" for kind, fd in numbers.items())]
    command += ["--preserve-credentials"] if "user" in namespaces else []
    command += ["--"]
    if filtered:
        command += [tools.bwrap, *_filter(filtered=True), "--die-with-parent"]
        command += ["--dev-bind", "/", "/", "--"]
    command += [tools.setsid, "-c"] if is_terminal else []
    chdir = f"--chdir={task_command.work_dir or OWN_HOME}"
    return [*command, *without_rights(tools, user), tools.env, chdir]


def opened(
    shim: int, user: User | None, stack: ExitStack, *, alone: bool
) -> dict[str, tuple[int, int]]:
    """Open the namespaces of the sandbox below a shim.

    Return a pair for each kind of namespace: a descriptor, and its number in the child process.
    All namespaces belong to one process. That process is still below the shim after the last
    namespace was opened, so its process ID was not reused. Raises `Refusal`.
    """
    kinds = ["user"] if user is None and os.geteuid() != 0 else []
    kinds += ["mount", "pid", "ipc", "uts", *(["net"] if alone else [])]
    sandbox, descriptors = sandbox_of(shim), {}
    with suppress(OSError):  # refused below, because some are missing
        for kind, number in zip(kinds, _NUMBERS, strict=False):
            name = f"/proc/{sandbox}/ns/{_FILES.get(kind, kind)}"
            descriptors[kind] = os.open(name, os.O_RDONLY | os.O_CLOEXEC), number
            stack.callback(os.close, descriptors[kind][0])
    if sandbox is None or len(descriptors) < len(kinds) or sandbox_of(shim) != sandbox:
        raise Refusal(NOT_THERE)
    return descriptors


def sandbox_of(shim: int) -> int | None:
    """Return the ID of the bwrap process inside the sandbox, or None.

    The task itself may have entered another mount namespace, in which the programs that the
    launcher runs are replaced. The bwrap process belongs to Steward, and is inside the sandbox as
    soon as it has started the task.
    """
    pids, sandbox = [shim], 0
    for _ in range(_LEVELS + 1):
        sandbox = pids[0] if pids else 0
        pids = children(sandbox) if sandbox else []
    return sandbox if pids and is_ours(sandbox) else None
