"""Run commands concurrently, as many at a time as there are CPUs.

    side_by_side.py NAME COMMAND [ARGUMENT]... [-- NAME COMMAND [ARGUMENT]...]...

The output of a successful command is not printed. If a command fails, the others are stopped, and
the output of the failed command is printed. The exit status is that of the failed command, or 128
plus the signal number if a signal ended it.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import IO

SEPARATOR = "--"


def commands(words: Sequence[str]) -> Iterator[list[str]]:
    """Yield the commands between the separators, each with its name."""
    for is_separator, part in groupby(words, lambda word: word == SEPARATOR):
        if not is_separator:
            yield list(part)


def run(waiting: list[list[str]], at_once: int) -> int:
    """Run the commands in their order; return 0, or the status of the first that failed."""
    running: dict[int, tuple[str, subprocess.Popen[bytes], IO[bytes]]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                name, *command = waiting.pop(0)
                print(f"==> {name}: {' '.join(command)}", flush=True)
                output = tempfile.TemporaryFile()  # noqa: SIM115  # closed after its command
                process = subprocess.Popen(command, stdout=output, stderr=output)
                running[process.pid] = name, process, output
            # Do not collect the status here, because `Popen.wait` needs it.
            if (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)) is None:
                continue
            name, process, output = running.pop(ended.si_pid)
            with output:
                if status := process.wait():
                    output.seek(0)
                    sys.stdout.buffer.write(output.read())
                    status = status if status > 0 else 128 - status
                    print(f"{name} failed with status {status}", flush=True)
                    return status
    finally:
        for _, process, output in running.values():
            process.terminate()
            process.wait()
            output.close()
    return 0


if __name__ == "__main__":
    sys.exit(run(list(commands(sys.argv[1:])), os.cpu_count() or 1))
