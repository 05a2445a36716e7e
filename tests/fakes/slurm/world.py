"""The fake cluster as seen by tests: the PATH of its programs, its requests and its faults."""

import json
import os
import shlex
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.fakes.slurm.programs import PROGRAMS
from tests.fakes.slurm.state import Job, command, opened

FEATURES = ("all,node1", "all,node2")


class FakeSlurm:
    """Two nodes with 16 CPUs and 8000 MB each, in partition `main`; `short` has the second node."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.bin = directory / "bin"
        self.bin.mkdir(parents=True)
        for name in PROGRAMS:
            script = self.bin / name
            words = shlex.join([*command("programs"), name, str(directory)])
            script.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
            script.chmod(0o755)
        nodes = {
            f"node{number}": {
                "cpus": 16,
                "memory": 8000,
                "features": features,
                "state": "idle",
                "reason": "none",
            }
            for number, features in enumerate(FEATURES, 1)
        }
        first = {
            "next_id": 1,
            "serial": 0,
            "kill_wait": 0.2,
            "most_elements": 1000,
            "nodes": nodes,
            "partitions": {"main": {"nodes": list(nodes)}, "short": {"nodes": ["node2"]}},
            "jobs": {},
            "calls": [],
            "faults": [],
        }
        (directory / "state.json").write_text(json.dumps(first))

    # --- state ---

    @property
    def path(self) -> str:
        """Return a PATH with the fake programs before the programs of the host."""
        return os.pathsep.join([str(self.bin), os.defpath])

    def known(self) -> dict[str, Any]:
        """Return the contents of the state file."""
        with opened(self.directory) as state:
            return state.known

    def jobs(self, name: str = "") -> list[Job]:
        """Return the known jobs, or those with a name, the oldest first."""
        jobs: list[Job] = list(self.known()["jobs"].values())
        return [job for job in jobs if name in ("", job["name"])]

    @property
    def faults(self) -> list[str]:
        """Return the unknown requests, mostly options that no real program has."""
        return list(self.known()["faults"])

    def forgive(self) -> None:
        """Clear the unknown requests, because the test intended them."""
        with opened(self.directory) as state:
            state.known["faults"].clear()

    # --- faults of the cluster ---

    def controller_away(self, seconds: float = 0.0) -> None:
        """Let each program hang for this time, and then fail; jobs keep running."""
        with opened(self.directory) as state:
            state.known["away"] = seconds

    def controller_back(self) -> None:
        """Let the controller respond again; it then knows the progress of the jobs."""
        with opened(self.directory) as state:
            state.known.pop("away", None)

    def crash_after_submission(self, how: str) -> None:
        """Let the next sbatch fail with an unknown outcome, after the submission.

        `unsure`: the job exists anyway. `forgotten`: the job does not exist, and its ID is free.
        """
        assert how in ("unsure", "forgotten"), how
        with opened(self.directory) as state:
            state.known["after_submit"] = how

    def forget(self, number: str, *, reuse: bool = False) -> None:
        """Let the controller lose a job, whose processes keep running.

        This happens after a crash, and when the job ended more than `MinJobAge` ago. With `reuse`
        the next submission gets its ID.
        """
        with opened(self.directory) as state:
            del state.jobs[number]
            if reuse:
                state.known["next_id"] = int(number)

    def launch_again(self, number: str) -> None:
        """Return a job to pending after a crash.

        The job is launched again, in addition to its first launch.
        """
        with opened(self.directory) as state:
            state.jobs[number].update(state="PENDING", reason="None", node="", code=0)

    def hold_after_failed_launch(self, number: str) -> None:
        """Let the second launch of a job fail: the job is held, and its node drained."""
        with opened(self.directory) as state:
            job = state.jobs[number]
            state.nodes[job["node"]].update(state="drain", reason="Duplicate jobid")
            job.update(
                state="PENDING",
                reason="launch failed requeued held",
                held=True,
                node="",
                launch=job["launch"] + 1,
            )

    def node_down(self, node: str) -> None:
        """Declare a node lost with its running jobs, whose processes keep running."""
        with opened(self.directory) as state:
            state.nodes[node].update(state="down", reason="Not responding")
            for job in state.jobs.values():
                if job["node"] == node and job["state"] == "RUNNING":
                    state.end(job, "NODE_FAIL", "NodeDown")

    def drain(self, node: str, reason: str) -> None:
        """Drain a node: it starts no further jobs."""
        with opened(self.directory) as state:
            state.nodes[node].update(state="drain", reason=reason)

    def resume(self, node: str) -> None:
        """Let a node accept jobs again."""
        with opened(self.directory) as state:
            state.nodes[node].update(state="idle", reason="none")

    def preempt(self, number: str) -> None:
        """Preempt a job by one with a higher priority."""
        self._end(number, "PREEMPTED", "None", signal.SIGTERM)

    def time_out(self, number: str, *, is_signalled: bool = True) -> None:
        """End a job at its time limit; without `is_signalled`, its processes get no signal."""
        self._end(number, "TIMEOUT", "TimeLimit", signal.SIGKILL, is_signalled=is_signalled)

    def _end(
        self, number: str, name: str, reason: str, code: int, *, is_signalled: bool = True
    ) -> None:
        with opened(self.directory) as state:
            job = state.jobs[number]
            state.end(job, name, reason, code)
            if job["pid"] and is_signalled:
                os.kill(job["pid"], signal.SIGTERM)

    def kill(self, number: str) -> None:
        """Kill all processes of a job immediately, like the loss of its host."""
        own = self.known()["jobs"].get(number, {}).get("number", number)
        for pid in _with(os.fsencode(self.directory), f"SLURM_JOB_ID={own}\0".encode()):
            with suppress(ProcessLookupError):  # the process has ended
                os.kill(pid, signal.SIGKILL)

    def remove_partition(self, name: str) -> None:
        """Remove a partition from the cluster."""
        with opened(self.directory) as state:
            del state.partitions[name]

    def most_elements(self, number: int) -> None:
        """Refuse arrays whose last element has a higher number."""
        with opened(self.directory) as state:
            state.known["most_elements"] = number

    def next_number(self, number: int) -> None:
        """Give the next submission this ID, even if an earlier job had it."""
        with opened(self.directory) as state:
            state.known["next_id"] = number

    # --- shutdown ---

    def close(self) -> None:
        """Kill all running jobs."""
        mark = os.fsencode(self.directory)
        for pid in _with(mark):
            with suppress(ProcessLookupError):  # the process has ended
                os.kill(pid, signal.SIGKILL)


def _with(*marks: bytes) -> list[int]:
    """Return the IDs of processes that have all these texts in their arguments or environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with suppress(OSError):  # the process has ended
                said = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
                if all(mark in said for mark in marks):
                    found.append(int(entry.name))
    return found


@contextmanager
def fake_slurm(directory: Path) -> Iterator[FakeSlurm]:
    """Provide a cluster while the block runs; at the end, check for unknown requests."""
    world = FakeSlurm(directory)
    try:
        yield world
        assert world.faults == []
    finally:
        world.close()
