"""What the cluster knows, in one JSON file; who changes it holds a lock meanwhile.

No program of it stays: whoever changes something lets what can begin now begin.
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
    """Return the words that run the main function of a module here, as fast as Python starts."""
    run = f"import sys; sys.path.append('{ROOT}'); from tests.fakes.slurm.{module} import main"
    return [sys.executable, "-I", "-S", "-c", f"{run}; sys.exit(main(*sys.argv[1:]))"]


class State:
    """The open file: plain values in `known`, written back when the lock is given up."""

    def __init__(self, directory: Path, known: dict[str, Any]) -> None:
        self.directory, self.known = directory, known
        self.jobs: dict[str, Job] = known["jobs"]
        self.nodes: dict[str, dict[str, Any]] = known["nodes"]
        self.partitions: dict[str, dict[str, Any]] = known["partitions"]

    def job(self, number: object) -> Job | None:
        """Return a job; None when the controller knows none of this number."""
        return self.jobs.get(str(number))

    def new_id(self) -> str:
        """Return the next number."""
        number = str(self.known["next_id"])
        self.known["next_id"] += 1
        return number

    def serial(self) -> int:
        """Return a number that no other job ever has, unlike its id."""
        self.known["serial"] += 1
        return int(self.known["serial"])

    # ---- what begins ---------------------------------------------------------------------------

    def begin(self) -> None:
        """Start each job that waits and fits somewhere; say of the others why they wait."""
        for job in list(self.jobs.values()):
            if job["state"] == "PENDING" and not job["held"]:
                job["reason"], node = self._place(job)
                if node:
                    self._launch(job, node)

    def _place(self, job: Job) -> tuple[str, str]:
        """Return why it waits, or the node for it."""
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
        """Return how many processors of a node nobody has."""
        taken = [
            job["cpus"]
            for job in self.jobs.values()
            if job["state"] in ("RUNNING", "COMPLETING") and job["node"] == name
        ]
        return int(self.nodes[name]["cpus"] - sum(taken))

    def _launch(self, job: Job, node: str) -> None:
        job.update(state="RUNNING", reason="None", node=node, launch=job["launch"] + 1)
        job["started"] = int(time.time())
        # It takes the lock first, so it finds this launch in the file; and it is nobody's child.
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
        """Note how a job has ended."""
        job.update(state=state, reason=reason, code=code, ended=int(time.time()))


@contextmanager
def opened(directory: Path) -> Iterator[State]:
    """Hold the lock and the state while the block runs; then keep what it changed."""
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
