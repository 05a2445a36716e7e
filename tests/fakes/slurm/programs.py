"""sbatch, scancel, srun, scontrol, and their common functions for output and exit.

The texts are those of the real programs (22.05); tests/service/slurm/test_fakes.py compares them.
"""

import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.fakes.slurm.listing import sinfo, squeue
from tests.fakes.slurm.options import NO_SUCH_JOB, Options, Refused, parse
from tests.fakes.slurm.state import ENDED, Job, State, opened

VERSION = "slurm-wlm 22.05.8"
AWAY = "Unable to contact slurm controller (connect failure)"
MINUTES = re.compile(r"\d+")
SETTINGS = {
    "ClusterName": "fake",
    "KillWait": "5 sec",
    "MaxJobCount": "10000",
    "MinJobAge": "300 sec",
    "SchedulerParameters": "batch_sched_delay=0,bf_interval=2",
}
PR_SET_PDEATHSIG = 1


# --- sbatch ---


def sbatch(directory: Path, options: Options, words: Sequence[str]) -> str:
    """Read a script from standard input, and print its job ID."""
    if words:
        raise Refused(f"sbatch: error: Unable to open file {words[0]}")
    wanted = _wanted(options)
    script = sys.stdin.read()
    if not script:
        raise Refused("sbatch: error: Batch script is empty!")
    if not script.startswith("#!"):
        raise Refused(
            "sbatch: error: This does not look like a batch script.  The first\n"
            "sbatch: error: line must start with #! followed by the path to an interpreter.\n"
            "sbatch: error: For instance: #!/bin/sh"
        )
    with opened(directory) as state:
        _refuse(state, wanted, options)
        number = _submit(state, wanted, script, options.get("array", ""))
        switch = state.known.pop("after_submit", "")
        if switch == "forgotten":  # the controller died before it stored the job
            for job in state.of_array(number):
                del state.jobs[job["id"]]
            state.known["next_id"] = int(number)
    if switch in ("unsure", "forgotten"):
        raise Refused(
            "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
        )
    return number if "parsable" in options else f"Submitted batch job {number}"


def _wanted(options: Options) -> Job:
    minutes = options.get("time", "0")
    if not MINUTES.fullmatch(minutes):
        raise Refused("sbatch: error: Invalid --time specification", 255)
    if not MINUTES.fullmatch(options.get("mem", "0").rstrip("M")):
        raise Refused("sbatch: error: Invalid --mem specification", 255)
    cpus = options.get("cpus-per-task", "1")
    if not cpus.isdecimal():
        raise Refused(f'sbatch: error: Invalid numeric value "{cpus}" for --cpus-per-task.')
    return {
        "name": options.get("job-name", "sbatch"),
        "comment": options.get("comment", "(null)"),
        "partition": options.get("partition", "main"),
        "cpus": int(cpus),
        "memory": int(options.get("mem", "0").rstrip("M")),
        "features": options.get("constraint", ""),
        "minutes": int(minutes),
        "nice": int(options.get("nice", "0")),
        "account": options.get("account", "(null)"),
        "qos": options.get("qos", "(null)"),
        "requeue": "no-requeue" not in options,
        "uid": options.get("uid", str(os.getuid())),
        "stdout": options.get("output", "/dev/null"),
        "stderr": options.get("error", ""),
        "directory": options.get("chdir", os.getcwd()),
        "environment": _exported(options.get("export", "ALL")),
        "held": "hold" in options,
        "reason": "JobHeldUser" if "hold" in options else "None",
    }


def _exported(words: str) -> dict[str, str]:
    """Return the environment that the job inherits: all of it, or the named variables."""
    found: dict[str, str] = {}
    for word in words.split(","):
        name, given, value = word.partition("=")
        if word == "ALL":
            found |= os.environ
        elif given:
            found[name] = value
        elif name in os.environ:
            found[name] = os.environ[name]
    return found


def _refuse(state: State, job: Job, options: Options) -> None:
    failed = "sbatch: error: Batch job submission failed:"
    partition = state.partitions.get(job["partition"])
    if partition is None:
        raise Refused(
            f"sbatch: error: invalid partition specified: {job['partition']}\n"
            f"{failed} Invalid partition name specified"
        )
    nodes = [state.nodes[name] for name in partition["nodes"]]
    features = [part for part in job["features"].split("&") if part]
    known = {part for node in state.nodes.values() for part in node["features"].split(",")}
    if not known.issuperset(features):
        raise Refused(f"{failed} Invalid feature specification")
    if job["memory"] > max(node["memory"] for node in nodes):
        # The real controller also keeps a record in this case.
        state.end(state.jobs[_submit(state, job, "")], "FAILED", "BadConstraints", 1)
        raise Refused(
            f"sbatch: error: Memory specification can not be satisfied\n{failed}"
            " Requested node configuration is not available"
        )
    if options.get("uid") and os.getuid():
        raise Refused("sbatch: error: --uid only permitted by root user")


def _submit(state: State, job: Job, script: str, elements: str = "") -> str:
    """Add a job, or the elements `0-N` of an array; return the ID."""
    number = state.new_id()
    if not elements:
        _add(state, job, script, id=number, number=number, array="")
        return number
    last = int(elements.removeprefix("0-"))
    if last > state.known["most_elements"]:
        failed = "sbatch: error: Batch job submission failed:"
        raise Refused(f"{failed} Invalid job array specification")
    for element in range(last + 1):
        own = number if element == last else state.new_id()
        _add(state, job, script, id=f"{number}_{element}", number=own, array=number)
    return number


def _add(state: State, job: Job, script: str, **names: str) -> None:
    features = [part for part in job["features"].split("&") if part]
    state.jobs[names["id"]] = {
        **job,
        **names,
        "features": features,
        "script": script,
        "state": "PENDING",
        "node": "",
        "launch": 0,
        "code": 0,
        "submitted": int(time.time()),
        "started": 0,
        "ended": 0,
        "serial": state.serial(),
        "taken": 0,
        "pid": 0,
        "script_pid": 0,
        "steps": [],
    }


# --- scancel ---


def scancel(directory: Path, options: Options, words: Sequence[str]) -> str:
    """Cancel jobs, or send them a signal. Cancelling ignores unknown job IDs."""
    if not words and "name" not in options:
        raise Refused("scancel: error: No job identification provided")
    number = _signal(options["signal"]) if "signal" in options else 0
    with opened(directory) as state:
        named = [job["id"] for job in state.jobs.values() if job["name"] == options.get("name")]
        for word in words or named:
            _end_or_signal(state, word, number, options)
    return ""


def _end_or_signal(state: State, word: str, number: int, options: Options) -> None:
    if not re.fullmatch(r"[0-9]+(_[0-9]+)?", word):
        raise Refused(f"scancel: error: Invalid job id {word}")
    job = state.job(word)
    if job is None and (elements := state.of_array(word)) and not number:
        for one in elements:
            _cancel(state, one, is_alone=False)
        return
    if job is None and (number or "_" in word):
        raise Refused(f"scancel: error: Kill job error on job id {word}: {NO_SUCH_JOB}")
    if job is None or job["state"] in ENDED or options.get("name", job["name"]) != job["name"]:
        return
    if number:
        _send(job, number, everywhere="full" in options)
    elif job["array"] and job["state"] == "PENDING" and "name" in options:
        # As the real program does: with a name, it cancels all elements that are pending.
        _cancel_pending(state, job["array"])
    else:
        _cancel(state, job)


def _cancel(state: State, job: Job, *, is_alone: bool = True) -> None:
    if job["state"] == "PENDING" and job["array"] and is_alone:  # the controller keeps no record
        del state.jobs[job["id"]]
    elif job["state"] == "PENDING":
        state.end(job, "CANCELLED", code=signal.SIGTERM)
    elif job["state"] not in ENDED:
        job["state"] = "COMPLETING"
        if job["pid"]:
            os.kill(job["pid"], signal.SIGTERM)


def _cancel_pending(state: State, number: str) -> None:
    """Replace the pending elements of an array by one record that names no element."""
    pending = state.of_array(number, "PENDING")
    for job in pending:
        del state.jobs[job["id"]]
    state.jobs[number] = {**pending[0], "id": number, "array": ""}
    state.end(state.jobs[number], "CANCELLED", code=signal.SIGTERM)


def _signal(name: str) -> int:
    try:
        return int(name) if name.isdecimal() else signal.Signals[f"SIG{name.removeprefix('SIG')}"]
    except KeyError:
        raise Refused(f"Unknown job signal: {name}") from None


def _send(job: Job, number: int, *, everywhere: bool) -> None:
    if job["script_pid"] and everywhere:
        os.killpg(job["script_pid"], number)
    elif job["script_pid"]:
        os.kill(job["script_pid"], number)


# --- srun ---


def srun(directory: Path, options: Options, words: Sequence[str]) -> str:
    """Run a command inside a running job; exit with the command's status, like the real srun."""
    number = options.get("jobid", "")
    refused = f"srun: error: Unable to confirm allocation for job {number}:"
    with opened(directory) as state:
        job = state.numbered(number)
        if job is None or job["state"] in ENDED:
            raise Refused(f"{refused} {NO_SUCH_JOB}")
        if job["state"] == "PENDING":
            raise Refused(f"{refused} Job is pending execution")
        env = _exported(options.get("export", "ALL")) | {"SLURM_JOB_ID": number}
        step = _step(words, options, env)
        job["steps"].append(step.pid)
    status = step.wait()
    if status < 0:
        raise Refused(
            f"srun: error: {job['node']}: task 0: {signal.strsignal(-status)}", 128 - status
        )
    if status:
        raise Refused(f"srun: error: {job['node']}: task 0: Exited with exit code {status}", status)
    return ""


def _step(words: Sequence[str], options: Options, env: dict[str, str]) -> "subprocess.Popen[bytes]":
    die = ctypes.CDLL(None).prctl  # a step ends with its srun

    def prepare() -> None:
        die(PR_SET_PDEATHSIG, signal.SIGKILL)

    try:
        return subprocess.Popen(
            list(words),
            env=env,
            cwd=options.get("chdir"),
            preexec_fn=prepare,
            start_new_session="pty" not in options,
        )
    except FileNotFoundError:
        raise Refused(
            f"slurmstepd: error: execve(): {words[0]}: No such file or directory\n"
            "srun: error: node1: task 0: Exited with exit code 2",
            2,
        ) from None


# --- scontrol ---


def scontrol(directory: Path, options: Options, words: Sequence[str]) -> str:
    """Print the controller's record of an object, or change a node."""
    match list(words):
        case ["ping"]:
            return "Slurmctld(primary) at fake is UP"
        case ["version"]:
            return VERSION
        case ["show", "config"]:
            return "\n".join(f"{name:<23} = {value}" for name, value in SETTINGS.items())
        case ["show", "job", number]:
            return _show_job(directory, number)
        case ["show", "partition", name]:
            return _show_partition(directory, name)
    raise Refused(f"invalid keyword: {' '.join(words)}")


def _show_job(directory: Path, number: str) -> str:
    with opened(directory) as state:
        job = state.job(number)
    if job is None:
        raise Refused(f"slurm_load_jobs error: {NO_SUCH_JOB}")
    code = f"{os.waitstatus_to_exitcode(job['code'] & 0xFF00)}:{job['code'] & 0x7F}"
    return (
        f"JobId={job['number']} JobName={job['name']} JobState={job['state']} Reason={job['reason']}"
        f" Requeue={int(job['requeue'])} BatchFlag=1 ExitCode={code} Partition={job['partition']}"
        f" NodeList={job['node']} BatchHost={job['node']} Comment={job['comment']} "
    )


def _show_partition(directory: Path, name: str) -> str:
    with opened(directory) as state:
        known = state.partitions.get(name)
        cpus = sum(state.nodes[node]["cpus"] for node in known["nodes"]) if known else 0
    if known is None:
        raise Refused(f"Partition {name} not found", aloud=True)
    nodes = "node[1-2]" if len(known["nodes"]) == 2 else known["nodes"][0]
    return (
        f"PartitionName={name} AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL MaxNodes=UNLIMITED"
        f" MaxTime=UNLIMITED Nodes={nodes} State=UP TotalCPUs={cpus} TotalNodes={len(known['nodes'])}"
    )


# --- common ---

PROGRAMS: dict[str, Callable[[Path, Options, Sequence[str]], str]] = {
    "sbatch": sbatch,
    "squeue": squeue,
    "scancel": scancel,
    "srun": srun,
    "sinfo": sinfo,
    "scontrol": scontrol,
}
WITHOUT_CONTROLLER = {
    "sbatch": "sbatch: error: Batch job submission failed: ",
    "squeue": "slurm_load_jobs error: ",
    "scancel": "scancel: error: Kill job error on job id {}: ",
    "srun": "srun: error: Unable to confirm allocation for job {}: ",
    "sinfo": "slurm_load_partitions: ",
    "scontrol": "slurm_load_jobs error: ",
}


def main(program: str, place: str, *given: str) -> int:
    """Run one of the programs; return its exit status."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    directory = Path(place)
    try:
        try:
            options, words = parse(program, given)
        except Refused as error:
            with opened(directory) as state:
                state.known["faults"].append(str(error))
            raise
        if "version" in options or words == ["version"]:
            said = VERSION
        else:
            _contact(program, directory, options, words)
            said = PROGRAMS[program](directory, options, words)
    except Refused as error:
        print(error, file=sys.stdout if error.aloud else sys.stderr)
        return error.status
    if said:
        sys.stdout.write(f"{said}\n")
    return 0


def _contact(program: str, directory: Path, options: Options, words: Sequence[str]) -> None:
    """Contact the controller; if it does not respond, wait for a while and raise the error."""
    with opened(directory) as state:
        state.known["calls"].append([program, *words])
        away = state.known.get("away")
    if away is not None:
        if words == ["ping"]:
            raise Refused("Slurmctld(primary) at fake is DOWN", aloud=True)
        time.sleep(away)
        number = options.get("jobid") or next(iter(words), "")
        text = WITHOUT_CONTROLLER[program].format(number) + AWAY
        raise Refused(text, 8 if program == "scancel" else 1)
