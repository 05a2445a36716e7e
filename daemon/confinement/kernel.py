"""Drop privileges of a process irrevocably.

Child processes inherit all restrictions. Landlock and capabilities are per thread: call these
functions before the first thread starts. A filter applies to all threads. Each function raises
`OSError` when the kernel refuses.
"""

import ctypes
import errno
import os
import struct
from collections.abc import Iterable
from contextlib import suppress
from functools import cache

from daemon.confinement import bpf

_PR_SET_NO_NEW_PRIVS, _PR_CAPBSET_DROP, _PR_CAP_AMBIENT = 38, 24, 47  # linux/prctl.h
_PR_GET_DUMPABLE = 3
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_CAPABILITY_VERSION = 0x20080522  # linux/capability.h: two words for each set
_SECCOMP_SET_MODE_FILTER, _SECCOMP_FILTER_FLAG_TSYNC = 1, 1  # linux/seccomp.h
_LANDLOCK_VERSION, _LANDLOCK_PATH_BENEATH = 1, 1  # linux/landlock.h

_EXECUTE = 0b1  # LANDLOCK_ACCESS_FS_EXECUTE
_READ = 0b1101  # LANDLOCK_ACCESS_FS_EXECUTE, READ_FILE and READ_DIR
_OF_FILES = 0b1100000000000111  # the rights for rules about single files
# All rights of each Landlock version, from the first on.
_KNOWN = (0x1FFF, 0x3FFF, 0x7FFF, 0x7FFF, 0xFFFF)


def give_up_new_privileges() -> None:
    """Set no_new_privs: executed programs gain no privileges.

    Set-user-ID bits and file capabilities then have no effect.
    """
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def bound_capabilities() -> None:
    """Clear the bounding set of capabilities; without CAP_SETPCAP, leave it unchanged."""
    with open("/proc/sys/kernel/cap_last_cap", encoding="ascii") as file:
        last = int(file.read())
    with suppress(PermissionError):  # ordinary users may not drop capabilities, and cannot gain any
        for capability in range(last + 1):
            _prctl(_PR_CAPBSET_DROP, capability)


def give_up_capabilities() -> None:
    """Clear all capability sets.

    The bounding set is also cleared, so that programs executed as root gain no capabilities.
    """
    _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    bound_capabilities()
    header = struct.pack("=Ii", _CAPABILITY_VERSION, 0)
    _check(_libc().capset(header, bytes(24)))


def filter_calls(program: bytes) -> None:
    """Install a system call filter in all threads; requires no_new_privs."""
    text = ctypes.create_string_buffer(program, len(program))
    size = len(program) // bpf.SIZE
    form = struct.pack("@HP", size, ctypes.addressof(text))
    number = bpf.numbers(bpf.host_architecture())["seccomp"]
    flags = _SECCOMP_FILTER_FLAG_TSYNC
    thread = _check(_libc().syscall(number, _SECCOMP_SET_MODE_FILTER, flags, form))
    if thread:
        raise OSError(0, f"the filter cannot be installed in thread {thread}")


def landlock_version() -> int:
    """Return the Landlock version of the kernel; 0 if it is not available."""
    with suppress(OSError, bpf.Unknown):  # no Landlock, or an unknown architecture
        return _landlock("create_ruleset", None, 0, _LANDLOCK_VERSION)
    return 0


def rules_of_files(writable: Iterable[str], readable: Iterable[str]) -> int | None:
    """Return the descriptor of a Landlock ruleset, or None if the kernel has no Landlock.

    Files below a `writable` path can be read and written, but not executed. Files below a
    `readable` path can be read and executed. Paths that do not exist are ignored.
    """
    version = landlock_version()
    if not version:
        return None
    all_rights = _KNOWN[min(version, len(_KNOWN)) - 1]
    ruleset = _landlock("create_ruleset", struct.pack("=Q", all_rights), 8, 0)
    try:
        for paths, rights in ((writable, all_rights & ~_EXECUTE), (readable, _READ)):
            for path in paths:
                # A path that the process cannot reach needs no rule.
                with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
                    _allow(ruleset, path, rights)
    except BaseException:  # nothing else closes a bare descriptor
        os.close(ruleset)
        raise
    return ruleset


def keep_to(rules: int) -> None:
    """Restrict this process to a Landlock ruleset, and close the ruleset's descriptor."""
    try:
        _landlock("restrict_self", rules, 0)
    finally:
        os.close(rules)
    _restricted.append(rules)


def are_files_restricted() -> bool:
    """Return whether this process has called `keep_to`, which restricts its access to files."""
    return bool(_restricted)


def is_dumpable() -> bool:
    """Return whether other processes of the same user can read this process's memory."""
    return _check(_libc().prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0)) == 1


def may_execute() -> bool:
    """Return whether this process may execute programs, by trying to execute an empty path."""
    try:
        os.execve("", ["none"], {})  # noqa: S606, S607  # no file has this name
    except OSError as error:
        return error.errno == errno.ENOENT


_restricted: list[int] = []  # per process, like the kernel's state


def _allow(ruleset: int, path: str, rights: int) -> None:
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not os.path.isdir(f"/proc/self/fd/{descriptor}"):
            rights &= _OF_FILES
        rule = struct.pack("=Qi", rights, descriptor)
        _landlock("add_rule", ruleset, _LANDLOCK_PATH_BENEATH, rule, 0)
    finally:
        os.close(descriptor)


def _landlock(name: str, *arguments: object) -> int:
    number = bpf.numbers(bpf.host_architecture())[f"landlock_{name}"]
    return _check(_libc().syscall(number, *arguments))


def _prctl(option: int, *arguments: int) -> None:
    _check(
        _libc().prctl(
            option, *(ctypes.c_ulong(argument) for argument in (*arguments, 0, 0, 0, 0)[:4])
        )
    )


def _check(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
