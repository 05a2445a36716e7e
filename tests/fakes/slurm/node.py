"""The child that runs one job: it starts the script and reports the exit status.

Like the step daemon of a node, it is independent: the script keeps running even if the controller
loses the job. On SIGTERM, the child ends the job, first with SIGTERM and then with SIGKILL.
"""

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from pwd import getpwuid

from tests.fakes.slurm.state import Job, opened

NOWHERE = "/tmp"  # noqa: S108  # real nodes run jobs without a directory here
WATCHED = {signal.SIGCHLD, signal.SIGTERM}


def main(place: str, number: str) -> None:
    """Run the job with this number in the state file to completion."""
    directory = Path(place)
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    with opened(directory) as state:
        job = state.job(number)
        if job is None or job["launch"] == job["taken"]:
            return
        if job["state"] == "COMPLETING":  # cancelled before its start
            state.end(job, "CANCELLED", code=signal.SIGTERM)
        if job["state"] != "RUNNING":
            return
        serial, launch = job["serial"], job["launch"]
        job["taken"] = launch
        child = _started(directory, job)
        job.update(pid=os.getpid(), script_pid=child.pid)
        patience = state.known["kill_wait"]
    status = _until_ended(child, patience)
    with opened(directory) as state:
        now = state.job(number)
        # The controller ignores the report if it has lost, ended or relaunched the job.
        if now is not None and (now["serial"], now["launch"]) == (serial, launch):
            for step in now["steps"]:
                _kill(step)
            if now["state"] == "COMPLETING":
                state.end(now, "CANCELLED", code=signal.SIGTERM)
            elif now["state"] == "RUNNING":
                failed = "JobLaunchFailure" if status & 0x7F else "NonZeroExitCode"
                name = "FAILED" if status else "COMPLETED"
                state.end(now, name, failed if status else "None", status)


def _started(directory: Path, job: Job) -> "subprocess.Popen[bytes]":
    place = directory / job["node"]
    place.mkdir(exist_ok=True)
    script = place / f"{job['id']}-{job['launch']}"
    script.write_text(job["script"])
    script.chmod(0o700)
    folder = job["directory"] if os.path.isdir(job["directory"]) else NOWHERE
    with open(job["stdout"], "ab") as out, open(job["stderr"] or job["stdout"], "ab") as err:
        return subprocess.Popen(
            [script],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            cwd=folder,
            env=_environment(directory, job),
            start_new_session=True,
            preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED),
        )


def _environment(directory: Path, job: Job) -> dict[str, str]:
    user = getpwuid(os.getuid())
    return {
        "HOME": user.pw_dir,
        "LOGNAME": user.pw_name,
        "USER": user.pw_name,
        "PATH": os.defpath,
        "TMPDIR": NOWHERE,
        **job["environment"],
        "ENVIRONMENT": "BATCH",
        "SLURM_CONF": str(directory / "slurm.conf"),
        "SLURM_JOB_ID": job["number"],
        "SLURM_JOBID": job["number"],
        **_element(job),
        "SLURM_JOB_NAME": job["name"],
        "SLURM_JOB_PARTITION": job["partition"],
        "SLURM_JOB_NODELIST": job["node"],
        "SLURMD_NODENAME": job["node"],
        "SLURM_CPUS_ON_NODE": str(job["cpus"]),
    }


def _element(job: Job) -> dict[str, str]:
    """Return the variables of an array's element."""
    array, _, element = job["id"].partition("_")
    return {"SLURM_ARRAY_JOB_ID": array, "SLURM_ARRAY_TASK_ID": element} if element else {}


def _until_ended(child: "subprocess.Popen[bytes]", patience: float) -> int:
    """Return the wait status of the script when its session has no process left.

    After SIGTERM, the processes have `patience` seconds until SIGKILL.
    """
    ends: float | None = None
    while True:
        left = None if ends is None else max(0.0, ends - time.monotonic())
        told = signal.sigwait(WATCHED) if left is None else _wait(left)
        if told == signal.SIGTERM and ends is None:
            _signal(child.pid, signal.SIGCONT)
            _signal(child.pid, signal.SIGTERM)
            ends = time.monotonic() + patience
        if told is None:
            _signal(child.pid, signal.SIGKILL)
            ends = None
        ended, status = os.waitpid(child.pid, os.WNOHANG)
        if ended:
            _kill(child.pid)  # remaining processes of the script
            return status


def _wait(seconds: float) -> int | None:
    found = signal.sigtimedwait(WATCHED, seconds)
    return None if found is None else found.si_signo


def _signal(root: int, number: int) -> None:
    """Signal all processes of a job in any session: its tree of descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):  # the process has ended
                said = (entry / "stat").read_text().rpartition(")")[2].split()
                children.setdefault(int(said[1]), []).append(int(entry.name))
    found = [root]
    for item in found:  # the tree can grow in the meantime
        found += children.get(item, [])
    for item in reversed(found):
        with suppress(ProcessLookupError):  # the process has ended
            os.kill(item, number)


def _kill(leader: int, number: int = signal.SIGKILL) -> None:
    with suppress(ProcessLookupError):  # the process has ended
        os.killpg(leader, number)
