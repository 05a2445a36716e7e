"""Run a command with a time limit, and report the processes and mounts that it leaves behind.

    reaper.py SECONDS DIRECTORY COMMAND [ARGUMENT]...

After the limit, the command gets SIGINT, so that pytest reports the results so far. A minute later,
the command is killed.

Each process whose parent ends becomes a child of this process. If a process still exists a few
seconds after the end of the command, the command left it behind. The same applies to a mount below
DIRECTORY. Both are reported on standard error and removed.

The exit status is that of the command. It is 70 if the command exits with 0 but leaves something
behind, and 124 after the time limit.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

LEFT = 70
LATE = 124  # as for timeout(1)
GRACE = 5  # seconds in which the last processes may end without a signal
REPORT = 60  # seconds in which a command may report after its time limit
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of linux/prctl.h


def children(pid: int) -> list[int]:
    """Return the children of all threads of a process."""
    pids: list[int] = []
    for place in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # the process has ended
            parent = place.read_text("utf-8", "replace").rpartition(")")[2].split()[1]
            if int(parent) == pid:
                pids.append(int(place.parent.name))
    return pids


def reap() -> bool:
    """Collect the exit status of each child that has ended; return whether children remain."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def run(command: list[str], seconds: int) -> int:
    """Run a command to its end, reap all other processes in the meantime, and return its status."""
    # Keep a reference to the object, because its destructor would collect the exit status.
    main = subprocess.Popen(command)
    is_late = False

    def stop(_: int, __: object) -> None:
        nonlocal is_late
        # `main.send_signal` would collect the exit status for which the loop below waits.
        with suppress(ProcessLookupError):  # the command has just ended
            os.kill(main.pid, signal.SIGKILL if is_late else signal.SIGINT)
        is_late = True
        signal.alarm(REPORT)

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    while True:
        pid, status = os.wait()
        if pid == main.pid:
            signal.alarm(0)
            main.returncode = 0  # the loop has already collected the status
            code = os.waitstatus_to_exitcode(status)
            if is_late:
                print(f"timeout: the command did not end within {seconds} s", file=sys.stderr)
                return LATE
            return code if code >= 0 else 128 - code


def described(pid: int) -> str:
    """Return a line about a process, with its working directory and its command."""
    place = Path(f"/proc/{pid}")
    try:
        command = (
            place.joinpath("cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        )
        return f"process {pid} in {place.joinpath('cwd').readlink()}: {command[-200:].strip()}"
    except OSError:
        return f"process {pid}"


def end_processes() -> list[str]:
    """Wait for the last processes, kill those that remain, and return a line about each."""
    end = time.monotonic() + GRACE
    while reap() and time.monotonic() < end:
        time.sleep(0.05)
    left: list[str] = []
    end = time.monotonic() + GRACE
    # The loop is limited, because a process in an uninterruptible wait survives SIGKILL.
    while reap() and time.monotonic() < end:
        for pid in children(os.getpid()):
            left.append(described(pid))
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    return list(dict.fromkeys(left))


def mounts(directory: str) -> list[str]:
    """Return the mount points below a directory, in the order in which they were mounted."""
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [point for point in points if point.startswith(f"{directory}/")]


def main(seconds: str, directory: str, *command: str) -> int:
    """Run a command and return the exit status for the caller."""
    ctypes.CDLL(None, use_errno=True).prctl(_SUBREAPER, 1, 0, 0, 0)
    status = run([*command], int(seconds))
    left = end_processes()
    for point in reversed(mounts(directory)):
        left.append(f"mount {point}")
        subprocess.run(["umount", "--lazy", point], check=False)
    for process in left:
        print(f"left behind: {process}", file=sys.stderr)
    return LEFT if left and not status else status


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
