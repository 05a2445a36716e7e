"""A daemon's promises and its running tasks, compared after each crash."""

from collections import Counter
from pathlib import Path
from typing import Any


class Starts:
    """The file of starts. Each task appends a line with its allocation and its process."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "starts"

    def _lines(self) -> list[list[str]]:
        text = self.path.read_text() if self.path.exists() else ""
        return [line.split() for line in text.splitlines()]

    def pids(self) -> dict[str, int]:
        """Return the process ID of each allocation that has started."""
        return {alloc_id: int(pid) for alloc_id, pid, *_ in self._lines()}

    def counts(self) -> Counter[str]:
        """Return the number of starts of each allocation's task."""
        return Counter(alloc_id for alloc_id, *_ in self._lines())

    def alive(self) -> set[str]:
        """Return the allocations with a running task."""
        return {alloc_id for alloc_id, pid in self.pids().items() if is_alive(pid, alloc_id)}


def job(job_id: str, kind: str, command: str, **fields: Any) -> dict[str, Any]:
    """Return a job of one task that runs a shell command."""
    return {
        "ID": job_id,
        "Type": kind,
        **fields,
        "TaskGroups": [
            {
                "Name": "g",
                "RestartPolicy": {"Attempts": 0, "Mode": "fail"},
                "ReschedulePolicy": {"Attempts": 0, "Unlimited": False},
                "EphemeralDisk": {"SizeMB": 10},
                "Tasks": [
                    {
                        "Name": "t",
                        "Driver": "raw_exec",
                        "Config": {"command": "/bin/sh", "args": ["-c", command]},
                        "Resources": {"CPU": 1, "MemoryMB": 10},
                        "KillTimeout": 100_000_000,
                        "LogConfig": {"MaxFiles": 1, "MaxFileSizeMB": 1},
                    }
                ],
            }
        ],
    }


def is_alive(pid: int, alloc_id: str) -> bool:
    """Return whether a process is the sleeping task of an allocation.

    The pid alone is not enough. On a busy host pids wrap around within minutes.
    """
    process = Path("/proc", str(pid))
    try:
        name, state = (process / "stat").read_text().split(" ", 3)[1:3]
        environment = (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return False
    is_its = f"NOMAD_ALLOC_ID={alloc_id}".encode() in environment
    return is_its and name == "(sleep)" and state not in "ZX"
