"""Run a system program as root: by absolute path, in an empty environment, with a time limit."""

import errno
import os
import select
import signal
from collections.abc import Sequence
from contextlib import ExitStack

_DYING = 100  # milliseconds until a killed program has usually ended


def run(
    words: list[str],
    text: bytes = b"",
    descriptors: Sequence[tuple[int, int]] = (),
    *,
    seconds: int,
) -> tuple[int, str]:
    """Run a program with `text` as its input; return its exit status and its output.

    Each pair in `descriptors` is a descriptor of the launcher, and its number in the program.
    Raises `OSError`, with ETIMEDOUT if the program was killed at its time limit. This function does
    not wait for a killed program that hangs in the kernel; the launcher reaps the program later.
    """
    with ExitStack() as resources:
        input_file, output = (os.memfd_create(name) for name in ("input", "output"))
        for descriptor in (input_file, output):
            resources.callback(os.close, descriptor)
        os.pwrite(input_file, text, 0)
        pairs = [(input_file, 0), (output, 1), (output, 2), *descriptors]
        actions = [(os.POSIX_SPAWN_DUP2, *pair) for pair in pairs]
        pid = os.posix_spawn(words[0], words, {}, file_actions=actions, setsid=True)
        watched = os.pidfd_open(pid)
        resources.callback(os.close, watched)
        waits = select.poll()
        waits.register(watched, select.POLLIN)
        if not waits.poll(1000 * seconds):
            os.kill(pid, signal.SIGKILL)
            if waits.poll(_DYING):
                os.waitpid(pid, 0)
            late = f"{os.path.basename(words[0])} did not end within {seconds} s"
            raise TimeoutError(errno.ETIMEDOUT, late)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return status, os.pread(output, os.fstat(output).st_size, 0).decode(
            errors="replace"
        ).strip()
