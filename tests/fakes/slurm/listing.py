"""squeue and sinfo: lines in the format of a pattern."""

import os
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.fakes.slurm.options import NO_SUCH_JOB, Options, Refused
from tests.fakes.slurm.state import ENDED, Job, State, opened

STATES = ("PENDING", "RUNNING", "COMPLETING", "REQUEUE_HOLD", *ENDED)
JOB_FIELDS: dict[str, tuple[str, Callable[[Job], object]]] = {
    "i": ("JOBID", lambda job: job["id"]),
    "T": ("STATE", lambda job: job["state"]),
    "r": ("REASON", lambda job: job["reason"]),
    "N": ("NODELIST", lambda job: job["node"]),
    "B": ("EXEC_HOST", lambda job: job["node"] or "n/a"),
    "j": ("NAME", lambda job: job["name"]),
    "k": ("COMMENT", lambda job: job["comment"]),
    "V": ("SUBMIT_TIME", lambda job: _clock(job["submitted"])),
    "S": ("START_TIME", lambda job: _clock(job["started"])),
    "e": ("END_TIME", lambda job: _clock(job["ended"])),
    "P": ("PARTITION", lambda job: job["partition"]),
    "C": ("CPUS", lambda job: job["cpus"]),
    "a": ("ACCOUNT", lambda job: job["account"]),
    "q": ("QOS", lambda job: job["qos"]),
    "y": ("NICE", lambda job: job["nice"]),
    "U": ("UID", lambda job: job["uid"]),
}
LONG_FIELDS = {
    "jobid": JOB_FIELDS["i"][1],
    "state": JOB_FIELDS["T"][1],
    "reason": JOB_FIELDS["r"][1],
    "nodelist": JOB_FIELDS["N"][1],
    "name": JOB_FIELDS["j"][1],
    "comment": JOB_FIELDS["k"][1],
    "submittime": JOB_FIELDS["V"][1],
    "starttime": JOB_FIELDS["S"][1],
    "endtime": JOB_FIELDS["e"][1],
    "exit_code": lambda job: job["code"],
}


def squeue(directory: Path, options: Options, words: Sequence[str]) -> str:
    """Print the jobs that the controller knows, one per line."""
    if words:
        raise Refused(f"squeue: error: Unrecognized option: {words[0]}")
    wanted = options.get("states", "PENDING,RUNNING,COMPLETING")
    for name in wanted.split(","):
        if name.upper() not in (*STATES, "ALL"):
            raise Refused(f"squeue: error: Invalid job state specified: {name}")
    with opened(directory) as state:
        jobs = list(state.jobs.values())
    numbers = options["jobs"].split(",") if "jobs" in options else []
    if len(numbers) == 1 and numbers[0] not in {job["id"] for job in jobs}:
        raise Refused(f"slurm_load_jobs error: {NO_SUCH_JOB}")
    kept = [job for job in jobs if wanted.upper() == "ALL" or job["state"] in wanted.split(",")]
    for option, field in (
        ("jobs", "id"),
        ("name", "name"),
        ("partition", "partition"),
        ("user", "uid"),
    ):
        if option in options:
            kept = [job for job in kept if job[field] in options[option].split(",")]
    if "Format" in options:
        return "\n".join(_long(options["Format"], job) for job in kept)
    pattern = options.get("format", "%i %P %j %T %r %N")
    head = [] if "noheader" in options else [_filled(pattern, JOB_FIELDS, None)]
    return "\n".join([*head, *(_filled(pattern, JOB_FIELDS, job) for job in kept)])


def _long(pattern: str, job: Job) -> str:
    text = ""
    for name, _, after in (part.partition(":") for part in re.findall(r"[^,]+", pattern)):
        if name.lower() not in LONG_FIELDS:
            raise Refused(f"squeue: error: Invalid job format specification: {name}")
        shown = str(LONG_FIELDS[name.lower()](job))
        text += shown + after if after else f"{shown[:20]:<20}"
    return text


def _filled(
    pattern: str, fields: dict[str, tuple[str, Callable[[Any], object]]], row: object
) -> str:
    """Return the pattern with its letters replaced by the row's values or by their titles."""

    def shown(match: re.Match[str]) -> str:
        if match[1] not in fields:
            raise Refused(f"error: Invalid format specification: %{match[1]}")
        title, value = fields[match[1]]
        return title if row is None else str(value(row))

    return re.sub(r"%([A-Za-z])", shown, pattern)


def _clock(second: int) -> str:
    if not second:
        return "N/A"
    pattern = os.environ.get("SLURM_TIME_FORMAT", "%Y-%m-%dT%H:%M:%S")
    return time.strftime(pattern, time.localtime(second))


NODE_FIELDS: dict[str, tuple[str, Callable[[dict[str, Any]], object]]] = {
    "N": ("NODELIST", lambda node: node["name"]),
    "n": ("HOSTNAMES", lambda node: node["name"]),
    "T": ("STATE", lambda node: node["shown"]),
    "c": ("CPUS", lambda node: node["cpus"]),
    "m": ("MEMORY", lambda node: node["memory"]),
    "f": ("AVAIL_FEATURES", lambda node: node["features"] or "(null)"),
    "b": ("ACTIVE_FEATURES", lambda node: node["features"] or "(null)"),
    "E": ("REASON", lambda node: node["reason"]),
    "P": ("PARTITION", lambda node: node["partition"]),
    "a": ("AVAIL", lambda node: "up"),
    "l": ("TIMELIMIT", lambda node: "infinite"),
    "d": ("TMP_DISK", lambda node: 0),
    "D": ("NODES", lambda node: 1),
    "G": ("GRES", lambda node: "(null)"),
    "O": ("CPU_LOAD", lambda node: "0.01"),
    "e": ("FREE_MEM", lambda node: node["memory"]),
    "C": ("CPUS(A/I/O/T)", lambda node: f"{node['used']}/{node['left']}/0/{node['cpus']}"),
}


def sinfo(directory: Path, options: Options, words: Sequence[str]) -> str:
    """Print one line per node and partition."""
    if words:
        raise Refused(f"sinfo: error: Unrecognized option: {words[0]}")
    wanted = options.get("partition", "").split(",")
    with opened(directory) as state:
        rows = [
            _node(state, name, node) | {"partition": partition + "*" * (partition == "main")}
            for partition, known in state.partitions.items()
            if wanted == [""] or partition in wanted
            for name, node in state.nodes.items()
            if name in known["nodes"]
        ]
    pattern = options.get("format", "%N %D %P %T")
    head = [] if "noheader" in options else [_filled(pattern, NODE_FIELDS, None)]
    return "\n".join([*head, *(_filled(pattern, NODE_FIELDS, row) for row in rows)])


def _node(state: State, name: str, node: dict[str, Any]) -> dict[str, Any]:
    left = state.free(name)
    used = node["cpus"] - left
    busy = "allocated" if used and not left else "mixed" if used else "idle"
    shown = {
        "idle": busy,
        "down": "down*",
        "drain": "draining" if used else "drained",
    }[node["state"]]
    return {**node, "name": name, "left": left, "used": used, "shown": shown}
