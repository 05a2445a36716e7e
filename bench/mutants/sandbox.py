"""A sandbox of namespaces for a function, so that a mutant can do no harm to the host.

The function sees only its own processes, a file system that is read-only except for one directory,
and empty directories for temporary files. All its processes end with it. Only root can create such
a sandbox.
"""

import ctypes
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
_WRITABLE = ("/proc", "/dev")
_ESCAPED = re.compile(rb"\\([0-7]{3})")  # an escaped character in the kernel's list of mounts
_libc = ctypes.CDLL(None, use_errno=True)


def run_inside(function: Callable[[], int], writable: Path, seconds: float) -> int | None:
    """Run a function in a sandbox; return its exit status, or None if it did not end in time."""
    outer = os.fork()
    if outer == 0:
        _outer(function, writable, seconds)
    _, status = os.waitpid(outer, 0)
    code = os.waitstatus_to_exitcode(status)
    return None if code == -signal.SIGALRM else code


def _outer(function: Callable[[], int], writable: Path, seconds: float) -> None:
    """Create the namespaces and their first process, which ends together with this process."""
    try:
        os.unshare(os.CLONE_NEWPID | os.CLONE_NEWNS | os.CLONE_NEWIPC)
        inner = os.fork()
        if inner == 0:
            _init(function, writable)
        signal.signal(signal.SIGALRM, lambda *_: os.kill(inner, signal.SIGKILL))
        signal.setitimer(signal.ITIMER_REAL, seconds)
        _, status = os.waitpid(inner, 0)
        code = os.waitstatus_to_exitcode(status)
        if code == -signal.SIGKILL:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGALRM)
        os._exit(code if code >= 0 else 128 - code)
    except BaseException:  # the child of a fork must never return to its caller's code
        traceback.print_exc()
    finally:
        os._exit(3)


def _init(function: Callable[[], int], writable: Path) -> None:
    """As process 1: mount, run the function in a child, and reap all orphaned processes."""
    try:
        _mount(writable)
        main = os.fork()
        if main == 0:
            os.setsid()
            _exit_with(function)
        while True:
            pid, status = os.wait()
            if pid == main:
                code = os.waitstatus_to_exitcode(status)
                os._exit(code if code >= 0 else 128 - code)
    except BaseException:  # the child of a fork must never return to its caller's code
        traceback.print_exc()
    finally:
        os._exit(3)


def _exit_with(function: Callable[[], int]) -> None:
    code = 3
    try:
        code = function()
    except BaseException:  # the child of a fork must never return to its caller's code
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _mount(writable: Path) -> None:
    _call(None, "/", None, _MS_REC | _MS_PRIVATE)
    _call(str(writable), str(writable), None, _MS_BIND)
    lines = Path("/proc/self/mountinfo").read_bytes().split(b"\n")
    places = [_place(line.split(b" ")[4]) for line in lines if line]
    for place in sorted(set(places)):
        if place != str(writable) and not place.startswith(_WRITABLE):
            _call(None, place, None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY)
    _call("proc", "/proc", "proc", 0)
    for place in ("/tmp", "/dev/shm", "/run"):
        _call("tmpfs", place, "tmpfs", 0)


def _place(escaped: bytes) -> str:
    return os.fsdecode(_ESCAPED.sub(lambda code: bytes([int(code[1], 8)]), escaped))


def _call(source: str | None, target: str, kind: str | None, flags: int) -> None:
    def text(value: str | None) -> bytes | None:
        return None if value is None else value.encode()

    if _libc.mount(text(source), text(target), text(kind), flags, None):
        errno = ctypes.get_errno()
        raise OSError(errno, f"mount {target}: {os.strerror(errno)}")
