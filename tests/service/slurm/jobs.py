"""Jobs for the pool of a cluster, and functions that wait for them."""

from pathlib import Path
from typing import Any

import trio

from tests.service.daemon import Steward
from tests.service.slurm.cluster import PAUSE
from tests.time_limits import HAPPENS_WITHIN

POOL = "hpc"
Document = dict[str, Any]


def script(job_id: str, text: str, **task: object) -> Document:
    """Return a batch job with one task that runs a script; it is never retried."""
    config = {"command": "/bin/sh", "args": ["-c", text]}
    one = {
        "Name": "main",
        "Driver": "slurm",
        "Config": config,
        "Resources": {"CPU": 100, "MemoryMB": 50},
        "LogConfig": {"MaxFiles": 1, "MaxFileSizeMB": 1},
        **task,
    }
    group = {
        "Name": "group",
        "RestartPolicy": {"Attempts": 0, "Mode": "fail"},
        "ReschedulePolicy": {"Attempts": 0, "Unlimited": False},
        "EphemeralDisk": {"SizeMB": 10},
        "Tasks": [one],
    }
    return {"ID": job_id, "Type": "batch", "NodePool": POOL, "TaskGroups": [group]}


class Task:
    """A task that writes a line when it begins, waits for a signal, and writes another line when it
    ends.
    """

    def __init__(self, directory: Path) -> None:
        self._lines, self._sign = directory / "lines", directory / "go"
        wait = f"until [ -e {self._sign} ]; do sleep 0.1; done"
        self.text = (
            f"echo began >>{self._lines}; echo 1; {wait}; echo ended >>{self._lines}; echo 2"
        )

    def go(self) -> None:
        """Let the task continue."""
        self._sign.touch()

    def lines(self) -> list[str]:
        """Return the lines that the task has written."""
        return self._lines.read_text().splitlines() if self._lines.exists() else []

    async def until(self, *lines: str) -> None:
        """Poll until the job has written exactly this text."""
        with trio.fail_after(HAPPENS_WITHIN):
            while self.lines() != list(lines):  # noqa: ASYNC110  # a file has no event
                await trio.sleep(PAUSE)


async def submitted(steward: Steward, job: Any) -> str:
    """Register a job, and return its one allocation when the cluster has accepted it."""
    await steward.register(job)
    found = await steward.until(f"/v1/job/{job['ID']}/allocations", was_submitted)
    return str(found[0]["ID"])


def was_submitted(allocations: Any) -> bool:
    states = [alloc["TaskStates"] or {} for alloc in allocations]
    return any(
        "was submitted" in event["DisplayMessage"]
        for state in states
        for event in state.get("main", {"Events": []})["Events"]
    )


async def completed(steward: Steward, job_id: str, alloc_id: str, task: Task) -> None:
    """Assert that the one allocation of a job completes, ran once, and printed all its lines."""
    (found,) = await steward.allocations(job_id, "complete", "failed", "lost")
    assert (found["ClientStatus"], found["ID"]) == ("complete", alloc_id), found
    assert task.lines() == ["began", "ended"]
    assert await steward.log_of(alloc_id, "main") == "1\n2\n"
