"""Report the restrictions of a process, as read from the kernel (`/proc/PID`).

The configuration states the intended restrictions; this module reports the effective restrictions.
"""

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple

from daemon.confinement import kernel

_MODES = {"0": "no filter", "1": "strict", "2": "filter"}
_LAUNCHER = "steward-launch"  # set by `daemon/launcher/fork.py`
# linux/capability.h, by number
_CAPABILITIES = (
    *("chown", "dac_override", "dac_read_search", "fowner", "fsetid", "kill", "setgid", "setuid"),
    *("setpcap", "linux_immutable", "net_bind_service", "net_broadcast", "net_admin", "net_raw"),
    *("ipc_lock", "ipc_owner", "sys_module", "sys_rawio", "sys_chroot", "sys_ptrace", "sys_pacct"),
    *("sys_admin", "sys_boot", "sys_nice", "sys_resource", "sys_time", "sys_tty_config", "mknod"),
    *("lease", "audit_write", "audit_control", "setfcap", "mac_override", "mac_admin", "syslog"),
    *("wake_alarm", "block_suspend", "audit_read", "perfmon", "bpf", "checkpoint_restore"),
)
_NAMESPACES = ("mnt", "pid", "ipc", "uts", "cgroup", "net")
_CLOSED = "unknown: the daemon's user cannot read it"
_SHOWN = 3  # names in a reason before "and N more"


class Finding(NamedTuple):
    """Whether the restriction `rule` is effective (`holds`), and the reason why or why not."""

    rule: str
    holds: bool
    reason: str


class Confinement(NamedTuple):
    """The remaining privileges of a process, as far as the kernel reports them."""

    user: int  # effective user ID
    capabilities: tuple[str, ...]  # capabilities held, or gained by executing a program
    no_new_privileges: bool
    filter: str
    filters: int
    files_restricted: bool
    dumpable: bool


def of(status: str, *, files_restricted: bool, dumpable: bool) -> Confinement:
    """Return the privileges, from the text of `/proc/PID/status` and the other arguments."""
    fields = _fields(status)
    return Confinement(
        user=int(fields["Uid"].split()[1]),
        capabilities=tuple(_capabilities(fields, can_gain=fields["NoNewPrivs"].strip() != "1")),
        no_new_privileges=fields["NoNewPrivs"].strip() == "1",
        filter=_MODES.get(fields.get("Seccomp", "").strip(), "unknown"),
        filters=int(fields.get("Seccomp_filters", "0")),
        files_restricted=files_restricted,
        dumpable=dumpable,
    )


def of_daemon() -> list[Finding]:
    """Return the findings about this process. Raises `OSError`."""
    return [
        *_of_any(
            of(
                _read("/proc/self/status"),
                files_restricted=kernel.are_files_restricted(),
                dumpable=(dumpable := kernel.is_dumpable()),
            )
        ),
        _landlock(is_restricted=kernel.are_files_restricted()),
        _memory(is_dumpable=dumpable),
        _programs(may_execute=kernel.may_execute()),
    ]


def of_launcher(pid: int) -> list[Finding]:
    """Return the findings about the launcher. Raises `OSError`."""
    status = _read(f"/proc/{pid}/status")
    fields = _fields(status)
    state = of(status, files_restricted=False, dumpable=False)
    findings = _of_any(state)
    threads = int(fields["Threads"])
    findings.append(Finding("threads", threads == 1, _count(threads, "thread")))
    is_own = os.getsid(pid) == pid
    findings.append(
        Finding("session", is_own, "its own session" if is_own else "the daemon's session")
    )
    if state.user:
        # The kernel assigns the files of a non-dumpable process to root, but not their directory.
        findings.append(_memory(is_dumpable=os.stat(f"/proc/{pid}/mem").st_uid == state.user))
    return findings


def of_task(pid: int) -> list[Finding]:
    """Return the findings about a task's process. Raises `OSError` when it has ended."""
    state = of(_read(f"/proc/{pid}/status"), files_restricted=False, dumpable=True)
    return [*_of_any(state), _namespaces(pid), _set_id(pid)]


def _namespaces(pid: int) -> Finding:
    try:
        shared = [name for name in _NAMESPACES if _namespace(pid, name) == _namespace("self", name)]
    except PermissionError:
        return Finding("namespaces", False, _CLOSED)
    own = [name for name in _NAMESPACES if name not in shared]
    reason = (
        f"shares {_abbreviate(shared)} with the daemon" if shared else f"its own {_abbreviate(own)}"
    )
    return Finding("namespaces", not shared, reason)


def _set_id(pid: int) -> Finding:
    try:
        loose = loose_mounts(_read_mounts(pid))
    except PermissionError:
        return Finding("nosuid", False, _CLOSED)
    reason = (
        f"set-user-ID files work below {_abbreviate(loose)}"
        if loose
        else "all writable mounts have nosuid"
    )
    return Finding("nosuid", not loose, reason)


def launcher() -> int | None:
    """Return the process ID of this daemon's launcher, or None."""
    for pid in sorted(_children()):
        with suppress(OSError):
            # Other programs may use this name, but the launcher is the first child.
            if _read(f"/proc/{pid}/comm").strip() == _LAUNCHER:
                return pid
    return None


def user_of(pid: int) -> int:
    """Return the effective user ID of a process. Raises `OSError`."""
    return int(_fields(_read(f"/proc/{pid}/status"))["Uid"].split()[1])


def main_process(pids: Iterable[int], *, is_walled: bool) -> int | None:
    """Return the oldest process of a task, or None.

    With a sandbox (`is_walled`), only processes in the sandbox count, except bwrap itself.
    """
    outside = _levels("self")
    for pid in sorted(pids):
        with suppress(OSError):  # it has ended
            levels = _levels(pid)
            # The first process inside is bwrap itself.
            if not is_walled or (len(levels) > len(outside) and levels[-1] != "1"):
                return pid
    return None


def mount_flags(path: str, mountinfo: str) -> Finding:
    """Return the finding about whether set-user-ID and device files work below a directory."""
    options: list[str] = []
    longest = -1
    for mount_point, words in _mounts(mountinfo):
        is_above = mount_point == "/" or f"{path}/".startswith(f"{mount_point}/")
        if is_above and len(mount_point) >= longest:
            options, longest = words, len(mount_point)
    missing = [option for option in ("nosuid", "nodev") if option not in options]
    reason = f"{path} is mounted without {' and '.join(missing)}"
    return Finding(
        "nosuid", not missing, reason if missing else f"{path} is mounted with nosuid and nodev"
    )


def mounts() -> str:
    """Return the text of this process's `mountinfo`, its mount table. Raises `OSError`."""
    return _read_mounts("self")


def loose_mounts(mountinfo: str) -> list[str]:
    """Return the mount points that are writable and lack `nosuid`."""
    return [
        mount_point
        for mount_point, words in _mounts(mountinfo)
        if "rw" in words and "nosuid" not in words
    ]


def _of_any(confinement: Confinement) -> list[Finding]:
    """Return the findings that apply to any process."""
    capabilities = confinement.capabilities
    return [
        Finding(
            "user",
            confinement.user != 0,
            f"uid {confinement.user}" if confinement.user else "uid 0, root",
        ),
        Finding(
            "capabilities",
            not capabilities,
            _abbreviate([f"cap_{capability}" for capability in capabilities]) or "none",
        ),
        Finding(
            "no_new_privileges",
            confinement.no_new_privileges,
            "set-user-ID programs have no effect"
            if confinement.no_new_privileges
            else "a set-user-ID program can raise its privileges",
        ),
        Finding(
            "system_calls",
            confinement.filter == _MODES["2"],
            _count(confinement.filters, "filter") if confinement.filters else confinement.filter,
        ),
    ]


def _landlock(*, is_restricted: bool) -> Finding:
    if is_restricted:
        return Finding("files", True, "Landlock")
    version = kernel.landlock_version()
    reason = f"Landlock {version} is not in use" if version else "this kernel has no Landlock"
    return Finding("files", False, f"{reason}: only owners and modes of files limit its access")


def _programs(*, may_execute: bool) -> Finding:
    reason = "it can execute programs" if may_execute else "it cannot execute programs"
    return Finding("programs", not may_execute, reason)


def _memory(*, is_dumpable: bool) -> Finding:
    reason = (
        "other processes of its user can read it"
        if is_dumpable
        else "other processes of its user cannot read it"
    )
    return Finding("memory", not is_dumpable, reason)


def _fields(status: str) -> dict[str, str]:
    return dict(line.split(":", 1) for line in status.splitlines() if ":" in line)


def _capabilities(fields: Mapping[str, str], *, can_gain: bool) -> list[str]:
    """Return the capabilities that a process has or can gain, given its `/proc/PID/status`.

    The inheritable set and the bounding set count only if the process can gain capabilities
    (`can_gain`) or runs as root.
    """
    mask = 0
    is_root = fields["Uid"].split()[1] == "0"
    gained = ("CapInh", "CapBnd") if can_gain or is_root else ()
    for name in ("CapPrm", "CapEff", "CapAmb", *gained):
        mask |= int(fields[name], 16)
    names = dict(enumerate(_CAPABILITIES))
    numbers = [number for number in range(mask.bit_length()) if mask >> number & 1]
    return [names.get(number, str(number)) for number in numbers]


def _mounts(mountinfo: str) -> Iterable[tuple[str, list[str]]]:
    """Yield mount points with their options, in mount order."""
    for line in mountinfo.removesuffix("\n").split("\n"):  # a path may have other line ends
        words = line.split(" ")
        mount_point = words[4].encode("latin-1", "replace").decode("unicode_escape")
        yield mount_point, words[5].split(",")


def _children() -> Iterable[int]:
    for thread in os.listdir("/proc/self/task"):
        with suppress(OSError):  # the thread has ended
            yield from map(int, _read(f"/proc/self/task/{thread}/children").split())


def _levels(pid: int | str) -> list[str]:
    """Return the IDs of a process in each of its PID namespaces, outermost first."""
    return _fields(_read(f"/proc/{pid}/status")).get("NSpid", "").split()


def _namespace(pid: int | str, name: str) -> str:
    return os.readlink(f"/proc/{pid}/ns/{name}")


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def _read_mounts(pid: int | str) -> str:
    with open(f"/proc/{pid}/mountinfo", "rb") as file:
        return file.read().decode(errors="replace")


def _abbreviate(names: list[str]) -> str:
    more = len(names) - _SHOWN
    # One more name is shorter than "and 1 more".
    if more <= 1:
        return ", ".join(names)
    return f"{', '.join(names[:_SHOWN])} and {more} more"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
