"""A sandbox of namespaces for a function, so that a mutant can do no harm to the host.

The function sees only its own processes, a file system that is read-only except for one directory,
and empty directories for temporary files. All its processes end with it. Only root can create such
a sandbox.
"""

import ctypes
import os
import re
import select
import signal
import struct
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
_PR_SET_PDEATHSIG = 1
_WRITABLE = ("/proc", "/dev")
_ESCAPED = re.compile(rb"\\([0-7]{3})")  # an escaped character in the kernel's list of mounts
_SECONDS = struct.Struct("d")
_LATE = 200  # exit status
Extend = Callable[[float], None]
_libc = ctypes.CDLL(None, use_errno=True)


def run_inside(function: Callable[[Extend], int], writable: Path, seconds: float) -> int | None:
    """Run a function in a sandbox; return its exit status, or None if it did not end in time.

    The function gets another function, which sets the time that remains from now on, in seconds.
    """
    outer = os.fork()
    if outer == 0:
        _outer(function, writable, seconds)
    _, status = os.waitpid(outer, 0)
    code = os.waitstatus_to_exitcode(status)
    return None if code == _LATE else code


def _outer(function: Callable[[Extend], int], writable: Path, seconds: float) -> None:
    """Create the namespaces and their first process, which ends together with this process."""
    try:
        end_with_parent()
        reading, writing = os.pipe()
        os.unshare(os.CLONE_NEWPID | os.CLONE_NEWNS | os.CLONE_NEWIPC)
        inner = os.fork()
        if inner == 0:
            _init(lambda: function(lambda more: _send(writing, more)), writable)
        if not _ends_in_time(inner, reading, seconds):
            os.kill(inner, signal.SIGKILL)
            os.waitpid(inner, 0)
            os._exit(_LATE)
        _, status = os.waitpid(inner, 0)
        code = os.waitstatus_to_exitcode(status)
        os._exit(code if code >= 0 else 128 - code)
    except BaseException:  # the child of a fork must never return to its caller's code
        traceback.print_exc()
    finally:
        os._exit(3)


def _send(writing: int, seconds: float) -> None:
    os.write(writing, _SECONDS.pack(seconds))


def _ends_in_time(pid: int, reading: int, seconds: float) -> bool:
    """Wait for the end of a process; return False if the time that it last asked for is over."""
    process = os.pidfd_open(pid)
    while ready := select.select([process, reading], [], [], seconds)[0]:
        if process in ready:
            return True
        (seconds,) = _SECONDS.unpack(os.read(reading, _SECONDS.size))
    return False


def _init(function: Callable[[], int], writable: Path) -> None:
    """As process 1: mount, run the function in a child, and reap all orphaned processes."""
    try:
        end_with_parent()
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


def end_with_parent() -> None:
    """Let the kernel kill this process when its parent ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def replace_file(path: Path, text: str) -> None:
    """Let all processes of the sandbox read this text in the file."""
    replacement = Path("/run") / path.name
    replacement.write_text(text, "utf-8")
    _call(str(replacement), str(path), None, _MS_BIND)


def _call(source: str | None, target: str, kind: str | None, flags: int) -> None:
    def text(value: str | None) -> bytes | None:
        return None if value is None else value.encode()

    if _libc.mount(text(source), text(target), text(kind), flags, None):
        errno = ctypes.get_errno()
        raise OSError(errno, f"mount {target}: {os.strerror(errno)}")
