"""State of the cluster in one JSON file, protected by a lock.

The cluster has no daemon: every change of the state also starts the jobs that can run.
"""

import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Job = dict[str, Any]
ROOT = Path(__file__).parents[3]
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED")
UNAVAILABLE = (
    "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"
)


def command(module: str) -> list[str]:
    """Return the command that runs the `main` function of a module in this package.

    The options `-I` and `-S` make Python start faster.
    """
    run = f"import sys; sys.path.append('{ROOT}'); from tests.fakes.slurm.{module} import main"
    return [sys.executable, "-I", "-S", "-c", f"{run}; sys.exit(main(*sys.argv[1:]))"]


class State:
    """The open file: plain values in `known`, stored when the lock is released."""

    def __init__(self, directory: Path, known: dict[str, Any]) -> None:
        self.directory, self.known = directory, known
        self.jobs: dict[str, Job] = known["jobs"]
        self.nodes: dict[str, dict[str, Any]] = known["nodes"]
        self.partitions: dict[str, dict[str, Any]] = known["partitions"]

    def job(self, number: object) -> Job | None:
        """Return a job; None if the controller does not know the ID."""
        return self.jobs.get(str(number))

    def numbered(self, number: str) -> Job | None:
        """Return the job or array element with this number."""
        return next((job for job in self.jobs.values() if job["number"] == number), None)

    def of_array(self, number: str, *states: str) -> list[Job]:
        """Return the elements of an array, or the single job.

        With `states`, return only those in one of these states.
        """
        return [
            job
            for job in self.jobs.values()
            if number in (job["array"], job["id"]) and (not states or job["state"] in states)
        ]

    def new_id(self) -> str:
        """Return the next job ID."""
        number = str(self.known["next_id"])
        self.known["next_id"] += 1
        return number

    def serial(self) -> int:
        """Return a number that is unique among all jobs, unlike the job ID."""
        self.known["serial"] += 1
        return int(self.known["serial"])

    # --- job starts ---

    def begin(self) -> None:
        """Start each pending job that fits on a node; set the pending reason of the others."""
        for job in list(self.jobs.values()):
            if job["state"] == "PENDING" and not job["held"]:
                job["reason"], node = self._place(job)
                if node:
                    self._launch(job, node)

    def _place(self, job: Job) -> tuple[str, str]:
        """Return (pending reason, node) for a job; without a free node, the node is empty."""
        names = self.partitions[job["partition"]]["nodes"]
        able = [name for name in names if self._could(name, job)]
        if not able:
            return "PartitionConfig", ""
        up = [name for name in able if self.nodes[name]["state"] == "idle"]
        if not up:
            return UNAVAILABLE, ""
        free = [name for name in up if self.free(name) >= job["cpus"]]
        return ("None", free[0]) if free else ("Resources", "")

    def _could(self, name: str, job: Job) -> bool:
        node = self.nodes[name]
        return bool(node["cpus"] >= job["cpus"] and job["features"] <= node["features"].split(","))

    def free(self, name: str) -> int:
        """Return the number of free CPUs of a node."""
        taken = [
            job["cpus"]
            for job in self.jobs.values()
            if job["state"] in ("RUNNING", "COMPLETING") and job["node"] == name
        ]
        return int(self.nodes[name]["cpus"] - sum(taken))

    def _launch(self, job: Job, node: str) -> None:
        job.update(state="RUNNING", reason="None", node=node, launch=job["launch"] + 1)
        job["started"] = int(time.time())
        # The child first waits for the lock, so it finds this launch in the file. Init becomes its
        # parent.
        with (self.directory / "node.log").open("ab") as log:
            subprocess.run(
                ["setsid", "--fork", *command("node"), self.directory, job["id"]],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                env={"PATH": os.defpath},
                cwd="/",
                check=True,
            )

    def end(self, job: Job, state: str, reason: str = "None", code: int = 0) -> None:
        """Record the end of a job."""
        job.update(state=state, reason=reason, code=code, ended=int(time.time()))


@contextmanager
def opened(directory: Path) -> Iterator[State]:
    """Hold the lock and the state while the block runs; then store the changes."""
    file = directory / "state.json"
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        state = State(directory, json.loads(file.read_text()))
        try:
            yield state
        finally:
            state.begin()
            whole = directory / "state.new"
            whole.write_text(json.dumps(state.known, indent=1))
            whole.replace(file)
