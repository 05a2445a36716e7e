"""Records the lines that this process and its forks execute, in a file that processes share.

The first test run of an area sets `PYTHONPATH` to this directory, so every Python process of the
tests imports this module first. `MUTANT_LINES` is a directory with two files. `places.json` has the
position of each source file in `lines`, and `lines` has one character for each line: `1` if a
process executed the line, otherwise `0`. Writing to shared memory needs neither a system call nor a
descriptor, so it also works in confined processes.
"""

import json
import mmap
import os
import sys
from contextlib import suppress
from pathlib import Path
from types import CodeType

_TOOL = 1  # `sys.monitoring.COVERAGE_ID`, which Python 3.11 does not have
_EXECUTED = ord("1")


def record(directory: Path) -> mmap.mmap:
    """Record the lines that this process executes from now on; return the shared memory."""
    places: dict[str, int] = json.loads((directory / "places.json").read_text())
    with (directory / "lines").open("r+b") as file:
        lines = mmap.mmap(file.fileno(), 0)

    def execute(code: CodeType, line: int) -> object:
        place = places.get(code.co_filename)
        if place is not None:
            lines[place + line] = _EXECUTED
        return sys.monitoring.DISABLE  # until the next test or fork

    sys.monitoring.use_tool_id(_TOOL, "steward mutants")
    sys.monitoring.register_callback(_TOOL, sys.monitoring.events.LINE, execute)
    sys.monitoring.set_events(_TOOL, sys.monitoring.events.LINE)
    os.register_at_fork(after_in_child=sys.monitoring.restart_events)
    return lines


if __name__ == "sitecustomize" and "MUTANT_LINES" in os.environ:
    with suppress(OSError):  # a process that cannot read the directory records nothing
        record(Path(os.environ["MUTANT_LINES"]))
