"""The walls around a task: what bubblewrap and setpriv are told, and how one steps inside.

A task sees the system's programs and configuration, read-only, and its own directories; a /proc of
its own processes only, a few harmless devices, and nothing else of this machine. It has no
capability and can gain none: no set-uid program works for it.

A filter of system calls (`daemon/confinement/filters.py`) keeps a task, and every command that
somebody runs inside it, from what ordinary programs never ask of the kernel.

A daemon that is root runs tasks as an unprivileged user of the machine. Any other daemon runs
them as itself, in a user namespace, where that is allowed.
"""

import os
import posixpath
import shutil
from collections.abc import Iterator, Mapping

import msgspec

from daemon.runner.beneath import write_beneath
from daemon.runner.drivers import config
from daemon.runner.drivers.driver import Attempt, InvalidConfig, Mount, StartFailed
from daemon.runner.drivers.scan import children
from daemon.runner.drivers.shim import FILTER, PATH, User
from daemon.runner.env import Directories
from daemon.runner.taskdir import ACCOUNTS, RESOLVER, SECRETS, SHARED

HOME = "/local"  # where a task begins, as it sees it
PLACES = Directories(shared="/alloc", local=HOME, secrets="/secrets")
NETWORK_NONE = "none"

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc")
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_STREAMS = {"fd": "fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}
_HIDDEN = ("/etc/steward",)  # the daemon's own configuration
_TAKEN = frozenset(
    {*_SYSTEM, "/proc", "/dev", "/sys", "/run", HOME, "/secrets", "/alloc", "/tmp"}  # noqa: S108
)
_RESOLVER = "/etc/resolv.conf"
_LEVELS = 2  # of processes between the shell and the task: the sandbox outside and inside


class Tools(msgspec.Struct, frozen=True, kw_only=True):
    """Where the programs are that make and enter a sandbox."""

    bwrap: str
    nsenter: str
    setpriv: str


def find_tools() -> Tools | str:
    """Return the programs of this machine, or what is missing."""
    found = {name: shutil.which(name, path=PATH) for name in ("bwrap", "nsenter", "setpriv")}
    if missing := [name for name, path in found.items() if path is None]:
        return f"a program that it needs is missing: {', '.join(missing)} (package bubblewrap)"
    return Tools(**{name: str(path) for name, path in found.items()})


def mounts(attempt: Attempt) -> dict[str, str]:
    """Return the directories of a task: where it sees them, and where they are."""
    volumes = {place(one): one.source for one in attempt.mounts}
    return volumes | own_directories(attempt)


def own_directories(attempt: Attempt) -> dict[str, str]:
    """Return the directories that were made for a task, as above."""
    home = f"{attempt.directory}/{attempt.task}"
    return {
        inside: os.path.normpath(f"{home}/{outside}") for inside, outside in _from_home().items()
    }


def _from_home() -> dict[str, str]:
    return {
        HOME: "local",
        "/secrets": SECRETS,
        "/alloc": f"../{SHARED}",
        "/tmp": "tmp",  # noqa: S108  # the task's own
    }


def place(mount: Mount) -> str:
    """Return where a task sees a volume.

    Never over the system's programs, with which walls are built, nor below a directory that a
    task can write to: a link there could lead it over them. Raises `InvalidConfig`.
    """
    path = posixpath.normpath(f"/{mount.destination}")
    path = f"/{path.lstrip('/')}"
    if path == "/" or f"/{path.split('/')[1]}" in _TAKEN:
        raise InvalidConfig(
            f"volume {mount.name!r} cannot be mounted at {mount.destination!r}: name a directory"
            " of its own, like /data"
        )
    return path


def _volumes(attempt: Attempt) -> Iterator[str]:
    """Yield what shows a task its volumes. Raises `InvalidConfig` or `StartFailed`."""
    places: list[str] = []
    for mount in attempt.mounts:
        path = place(mount)
        if any(f"{path}/".startswith(f"{one}/") or one.startswith(f"{path}/") for one in places):
            raise InvalidConfig(f"volume {mount.name!r} at {path!r}: another one is in its way")
        places.append(path)
        if not os.path.isdir(mount.source):
            raise StartFailed(f"volume {mount.name!r} is no directory of this machine")
        yield from ("--ro-bind" if mount.read_only else "--bind", mount.source, path)


def on_host(path: str, own: Mapping[str, str]) -> str | None:
    """Return where a path that a task sees is on this machine; None when it sees nothing there."""
    for inside, outside in own.items():
        if path == inside or path.startswith(f"{inside}/"):
            return outside + path.removeprefix(inside)
    return path if path.startswith(tuple(f"{one}/" for one in _SYSTEM)) else None


def walls(
    tools: Tools, attempt: Attempt, user: User | None, directory: str, *, filtered: bool
) -> list[str]:
    """Return the words before a task's own command. `user` is whom it runs as, if not as we do."""
    words = [tools.bwrap, "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    words += ["--die-with-parent"]  # that is the shell, which outlives the daemon
    words += _filter(filtered=filtered)
    if attempt.network_mode == NETWORK_NONE:
        words += ["--unshare-net"]
    for path in _SYSTEM:
        if os.path.islink(path):
            words += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            words += ["--ro-bind", path, path]
    for path in filter(os.path.isdir, _HIDDEN):
        words += ["--tmpfs", path]
    # Named from the task's directory, where the shell has gone: arguments show no allocation.
    words += _resolver(attempt)
    words += _accounts(attempt, user)
    words += ["--proc", "/proc", *_devices()]
    words += _volumes(attempt)
    for inside, outside in _from_home().items():
        words += ["--bind", outside, inside]
    # No task can put anything in the place of the logs that the daemon reads and writes.
    words += ["--ro-bind", f"../{SHARED}/logs", "/alloc/logs"]
    words += ["--remount-ro", "/", "--chdir", directory, "--"]
    return [*words, *_without_rights(tools, user)]


def _filter(*, filtered: bool) -> list[str]:
    return ["--seccomp", str(FILTER)] if filtered else []


def _devices() -> Iterator[str]:
    """Yield the harmless devices.

    Without root, terminals of its own would put the task into a second user namespace, into
    which nobody could follow it: there it has none.
    """
    if os.geteuid() == 0:
        yield from ("--dev", "/dev")
        return
    yield from ("--tmpfs", "/dev", "--tmpfs", "/dev/shm")  # noqa: S108  # the task's own
    for name in _DEVICES:
        yield from ("--dev-bind", f"/dev/{name}", f"/dev/{name}")
    for name, target in _STREAMS.items():
        yield from ("--symlink", f"/proc/self/{target}", f"/dev/{name}")
    yield from ("--remount-ro", "/dev")


def _resolver(attempt: Attempt) -> Iterator[str]:
    """Yield what lets a task look up names: as the machine does, or with servers of its own."""
    place = os.path.realpath(_RESOLVER)
    if attempt.dns is not None:
        config.check_names(attempt.dns)
        lines = [f"nameserver {one}" for one in attempt.dns.servers or ()]
        if searches := attempt.dns.searches:
            lines.append(f"search {' '.join(searches)}")
        if options := attempt.dns.options:
            lines.append(f"options {' '.join(options)}")
        # Beside the claim, where only the daemon's user can write: the task's own directories hold
        # whatever it or an artifact has put there.
        own = f"{RESOLVER}{attempt.task}"
        text = "".join(f"{line}\n" for line in lines)
        write_beneath(attempt.directory, own, text.encode("ascii"), mode=0o644)
        yield from ("--ro-bind", f"../{own}", place)
    elif not place.startswith("/etc/") and os.path.exists(place):
        yield from ("--ro-bind", place, place)


def _accounts(attempt: Attempt, user: User | None) -> Iterator[str]:
    """Yield what gives a name to a user who is no account of the machine: many programs ask for it."""
    if user is None or user.is_account:
        return
    for name, line in (
        ("passwd", f"{user.name}:x:{user.uid}:{user.gid}::{user.home}:/usr/sbin/nologin\n"),
        ("group", f"{user.name}:x:{user.gid}:\n"),
    ):
        with open(f"/etc/{name}", "rb") as file:
            known = file.read()
        end = b"" if known.endswith(b"\n") else b"\n"
        own = f"{ACCOUNTS}{name}.{attempt.task}"
        write_beneath(attempt.directory, own, known + end + line.encode(), mode=0o644)
        yield from ("--ro-bind", f"../{own}", f"/etc/{name}")


def _without_rights(tools: Tools, user: User | None) -> list[str]:
    words = [tools.setpriv, "--no-new-privs", "--inh-caps=-all"]
    if user is not None:
        groups = ",".join(map(str, user.groups)) or str(user.gid)
        words += [f"--reuid={user.uid}", f"--regid={user.gid}", f"--groups={groups}"]
        words += ["--bounding-set=-all"]
    return [*words, "--"]


def way_in(
    tools: Tools,
    attempt: Attempt,
    user: User | None,
    directory: str,
    shim: int,
    *,
    filtered: bool,
) -> list[str]:
    """Return the words before a command that somebody runs inside. Raises `StartFailed`.

    Nobody can step into namespaces behind a filter. So a second bubblewrap, which changes nothing
    else, puts the filter up when the command is inside already.
    """
    main = main_process(shim)
    if main is None:
        raise StartFailed("the task has not begun yet, or has just ended")
    words = [tools.nsenter, f"--target={main}", "--mount", "--pid", "--ipc", "--uts", "--root"]
    if attempt.network_mode == NETWORK_NONE:
        words += ["--net"]
    if user is None and os.geteuid() != 0:
        words += ["--user", "--preserve-credentials"]
    words += ["--"]
    if filtered:
        words += [tools.bwrap, *_filter(filtered=True), "--die-with-parent"]
        words += ["--dev-bind", "/", "/", "--"]
    return [*words, *_without_rights(tools, user), "env", f"--chdir={directory}"]


def main_process(shim: int) -> int | None:
    """Return the task's main process behind the walls, by the shell that waits for it."""
    pids = [shim]
    for _ in range(_LEVELS + 1):
        pids = [child for pid in pids[:1] for child in children(pid)]
    return pids[0] if pids else None
