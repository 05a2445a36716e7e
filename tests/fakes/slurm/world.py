"""The fake cluster as tests hold it: where its programs are, what it was asked, and what goes wrong."""

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
    """Two nodes with 16 processors and 8000 MB each, in the partition `main`; `short` has the second."""

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
            "nodes": nodes,
            "partitions": {"main": {"nodes": list(nodes)}, "short": {"nodes": ["node2"]}},
            "jobs": {},
            "calls": [],
            "faults": [],
        }
        (directory / "state.json").write_text(json.dumps(first))

    # ---- what it knows -------------------------------------------------------------------------

    @property
    def path(self) -> str:
        """The PATH in which its programs are, before those of the machine."""
        return os.pathsep.join([str(self.bin), os.defpath])

    def known(self) -> dict[str, Any]:
        """Return all of its file."""
        with opened(self.directory) as state:
            return state.known

    def jobs(self, name: str = "") -> list[Job]:
        """Return the jobs that it remembers, or those of a name, the oldest first."""
        found: list[Job] = list(self.known()["jobs"].values())
        return [job for job in found if name in ("", job["name"])]

    @property
    def faults(self) -> list[str]:
        """What it was asked and does not know: options that no real program has, mostly."""
        return list(self.known()["faults"])

    def forgive(self) -> None:
        """Forget what it was asked in vain: the test meant it."""
        with opened(self.directory) as state:
            state.known["faults"].clear()

    # ---- the faults of the facts, section 5 -----------------------------------------------------

    def controller_away(self, seconds: float = 0.0) -> None:
        """Let each program hang that long, and then fail; jobs go on."""
        with opened(self.directory) as state:
            state.known["away"] = seconds

    def controller_back(self) -> None:
        """Let it answer again; what jobs have done meanwhile is known."""
        with opened(self.directory) as state:
            state.known.pop("away", None)

    def crash_after_submission(self, how: str) -> None:
        """Let the next sbatch fail without being sure, after the job was taken.

        `unsure`: the job is there all the same; `forgotten`: it is not, and its number is free.
        """
        assert how in ("unsure", "forgotten"), how
        with opened(self.directory) as state:
            state.known["after_submit"] = how

    def forget(self, number: str, *, reuse: bool = False) -> None:
        """Let the controller know nothing of a job; its processes live on.

        So it is after a crash, and when it has ended more than `MinJobAge` ago. With `reuse` the
        next submission gets its number.
        """
        with opened(self.directory) as state:
            del state.jobs[number]
            if reuse:
                state.known["next_id"] = int(number)

    def launch_again(self, number: str) -> None:
        """Let a job come back as pending after a crash: it is launched once more beside itself."""
        with opened(self.directory) as state:
            state.jobs[number].update(state="PENDING", reason="None", node="", code=0)

    def hold_after_failed_launch(self, number: str) -> None:
        """Let the second launch of a job be refused: it is held, and its node drained."""
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
        """Declare a node lost with the jobs that run there; their processes live on."""
        with opened(self.directory) as state:
            state.nodes[node].update(state="down", reason="Not responding")
            for job in state.jobs.values():
                if job["node"] == node and job["state"] == "RUNNING":
                    state.end(job, "NODE_FAIL", "NodeDown")

    def drain(self, node: str, reason: str) -> None:
        """Let nothing new begin on a node."""
        with opened(self.directory) as state:
            state.nodes[node].update(state="drain", reason=reason)

    def resume(self, node: str) -> None:
        """Let a node take jobs again."""
        with opened(self.directory) as state:
            state.nodes[node].update(state="idle", reason="none")

    def preempt(self, number: str) -> None:
        """End a job for one that matters more."""
        self._end(number, "PREEMPTED", "None", signal.SIGTERM)

    def time_out(self, number: str, *, is_signalled: bool = True) -> None:
        """End a job because its time limit has passed; its signals may go astray."""
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
        """End all processes of a job at once, as the loss of its host does."""
        for pid in _with(os.fsencode(self.directory), f"SLURM_JOB_ID={number}\0".encode()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def remove_partition(self, name: str) -> None:
        """Let the cluster have a partition no more."""
        with opened(self.directory) as state:
            del state.partitions[name]

    def next_number(self, number: int) -> None:
        """Let the next submission get this number, whoever had it before."""
        with opened(self.directory) as state:
            state.known["next_id"] = number

    # ---- its end -------------------------------------------------------------------------------

    def close(self) -> None:
        """End all that still runs."""
        mark = os.fsencode(self.directory)
        for pid in _with(mark):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _with(*marks: bytes) -> list[int]:
    """Return the processes that have all these in their arguments or their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with suppress(OSError):
                said = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
                if all(mark in said for mark in marks):
                    found.append(int(entry.name))
    return found


@contextmanager
def fake_slurm(directory: Path) -> Iterator[FakeSlurm]:
    """Offer a cluster while the block runs; nobody may have asked what no real one knows."""
    world = FakeSlurm(directory)
    try:
        yield world
        assert world.faults == []
    finally:
        world.close()
