"""Give rights away for good: what a process asks the kernel to take from it.

Nothing here can be undone, and all of it passes on to what the process starts. Landlock and the
capabilities belong to a thread: call these before the first thread starts. A filter reaches every
thread. Each function raises `OSError` when the kernel refuses.
"""

import ctypes
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

_READ = 0b1101  # LANDLOCK_ACCESS_FS_EXECUTE, READ_FILE, READ_DIR
_OF_FILES = 0b1100000000000111  # the rights that a rule about one file may name
# All rights that each version of Landlock knows, from the first.
_KNOWN = (0x1FFF, 0x3FFF, 0x7FFF, 0x7FFF, 0xFFFF)


def give_up_new_privileges() -> None:
    """No program that this process executes gets rights from its file: set-uid bits do nothing."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def give_up_capabilities() -> None:
    """Empty all sets of capabilities, also those that a program of root's would get."""
    _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    with open("/proc/sys/kernel/cap_last_cap", encoding="ascii") as file:
        last = int(file.read())
    with suppress(PermissionError):  # an ordinary user may not, and has none to gain from it
        for capability in range(last + 1):
            _prctl(_PR_CAPBSET_DROP, capability)
    header = struct.pack("=Ii", _CAPABILITY_VERSION, 0)
    _check(_libc().capset(header, bytes(24)))


def filter_calls(program: bytes) -> None:
    """Put a filter of system calls before every thread. New privileges have to be given up before."""
    text = ctypes.create_string_buffer(program, len(program))
    size = len(program) // bpf.SIZE
    form = struct.pack("@HP", size, ctypes.addressof(text))
    number = bpf.numbers(bpf.this_machine())["seccomp"]
    flags = _SECCOMP_FILTER_FLAG_TSYNC
    thread = _check(_libc().syscall(number, _SECCOMP_SET_MODE_FILTER, flags, form))
    if thread:
        raise OSError(0, f"thread {thread} cannot take the filter")


def landlock_version() -> int:
    """Return which version of Landlock the kernel has; 0: none."""
    with suppress(OSError, bpf.Unknown):
        return _landlock("create_ruleset", None, 0, _LANDLOCK_VERSION)
    return 0


def restrict_files(writable: Iterable[str], readable: Iterable[str]) -> bool:
    """Leave of all files those below these paths; return whether the kernel can do that.

    New privileges have to be given up before. A path that does not exist is left out.
    """
    version = landlock_version()
    if not version:
        return False
    every = _KNOWN[min(version, len(_KNOWN)) - 1]
    ruleset = _landlock("create_ruleset", struct.pack("=Q", every), 8, 0)
    try:
        for paths, rights in ((writable, every), (readable, _READ)):
            for path in paths:
                with suppress(FileNotFoundError):
                    _allow(ruleset, path, rights)
        _landlock("restrict_self", ruleset, 0)
    finally:
        os.close(ruleset)
    _restricted.append(version)
    return True


def are_files_restricted() -> bool:
    """Return whether this process has given up files. The kernel tells nobody."""
    return bool(_restricted)


def is_dumpable() -> bool:
    """Return whether other processes of its user can read the memory of this one."""
    return _check(_libc().prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0)) == 1


_restricted: list[int] = []  # the kernel's state, which is the process's as well


def _allow(ruleset: int, path: str, rights: int) -> None:
    place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not os.path.isdir(f"/proc/self/fd/{place}"):
            rights &= _OF_FILES
        rule = struct.pack("=Qi", rights, place)
        _landlock("add_rule", ruleset, _LANDLOCK_PATH_BENEATH, rule, 0)
    finally:
        os.close(place)


def _landlock(name: str, *arguments: object) -> int:
    number = bpf.numbers(bpf.this_machine())[f"landlock_{name}"]
    return _check(_libc().syscall(number, *arguments))


def _prctl(option: int, *arguments: int) -> None:
    _check(_libc().prctl(option, *(ctypes.c_ulong(one) for one in (*arguments, 0, 0, 0, 0)[:4])))


def _check(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
