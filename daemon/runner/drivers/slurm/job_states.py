"""Translate Slurm's job states: reasons for waiting, and exit results. No I/O.

The states are those that `squeue` and `scontrol` print.
"""

import re

import msgspec

from daemon.runner.core.driver import ExitResult

# Only fields without free text: job names are Steward's own. The last field is the user ID.
FORMAT = "%i|%T|%r|%N|%j|%U"
_LINE = re.compile(r"([0-9]+(?:_[0-9]+)?)\|([A-Z_]+)\|([^|]*)\|([^|]*)\|([^|]+)\|([0-9]+)")

# Exit statuses of a wrapper that could not start its task.
UNHEARD, NOT_OURS, NO_DIRECTORY, NO_PROGRAMS = 90, 91, 92, 93

_ACTIVE = frozenset(
    {
        *("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING"),
        *("STAGE_OUT", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESIZING", "SPECIAL_EXIT"),
        *("RESV_DEL_HOLD",),
    }
)
# The job is held after a failed launch and is never launched again automatically.
_STUCK = ("launch failed requeued held", "JobHeldMaxRequeue", "job requeued in held state")
# Error messages after which the outcome of a call is unknown.
_NO_ANSWER = re.compile(
    r"unable to contact|timed out|timeout|connect failure|connection|zero bytes|communication|"
    r"temporarily|socket|controller not responding|i/o error|try again",
    re.IGNORECASE,
)
_PASSING = re.compile(
    r"limit|MaxJobCount|too many|in drain state|not available \(down\)", re.IGNORECASE
)

_WAITS = {
    "None": "the cluster has not considered it yet",
    "Priority": "other waiting jobs of the cluster have precedence",
    "Resources": "the cluster has no free resources",
    "Dependency": "it waits for another job of the cluster",
    "BeginTime": "the cluster will start it later",
    "JobHeldUser": "a user holds it in the cluster: release it with scontrol release",
    "JobHeldAdmin": "an operator of the cluster holds it",
    "Licenses": "it waits for a license of the cluster",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition currently starts no jobs",
    "PartitionConfig": "no host of the partition has the resources that it requests",
    "PartitionTimeLimit": "its time limit exceeds that of the partition",
    "PartitionNodeLimit": "the partition has fewer hosts than it needs, or they are down",
    "NodeDown": "a host that it needs is down",
    "BadConstraints": "no host meets its constraints",
    "ReqNodeNotAvail": "a host that it needs is currently not available",
    "Reservation": "it waits for a reservation of the cluster",
    "Prolog": "the cluster is preparing a host for it",
    "Cleaning": "the cluster cleans up after its last launch",
    "NonZeroExitCode": "it has ended",
}
_LIMITS = re.compile(r"(QOS|Assoc|MaxCpuPer|MaxMemPer|MaxJobs|MaxSubmit|.*Limit)")


class SlurmJobState(msgspec.Struct, frozen=True, kw_only=True):
    """A job as `squeue` lists it; `user` is its user ID.

    The `job_id` of an array element has the form `ARRAY_ELEMENT`.
    """

    job_id: str
    state: str
    reason: str
    host: str
    name: str
    user: int

    @property
    def array_id(self) -> str:
        """Return the ID of the job, or of its array."""
        return self.job_id.partition("_")[0]

    @property
    def element(self) -> int:
        """Return the index of the job in its array; -1 for a job without an array."""
        return int(self.job_id.partition("_")[2] or -1)

    @property
    def is_active(self) -> bool:
        """Return whether the job is running or may run later."""
        return self.state in _ACTIVE

    @property
    def is_waiting(self) -> bool:
        """Return whether the job has no host yet."""
        return self.state in {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT"}

    @property
    def is_stuck(self) -> bool:
        """Return whether the job stays held until an operator releases it."""
        return self.is_waiting and self.reason in _STUCK

    @property
    def lost_its_host(self) -> bool:
        """Return whether the job ended because of its host or by preemption."""
        return self.state in {"NODE_FAIL", "BOOT_FAIL", "PREEMPTED"}

    @property
    def description(self) -> str:
        """Return a description of the state, with Slurm's words in parentheses."""
        if self.state == "CONFIGURING":
            return f"job {self.job_id}: the cluster is preparing {self.host or 'a host'}"
        if self.is_waiting:
            return f"job {self.job_id} waits: {waits(self.reason)}"
        on_host = f" on {self.host}" if self.host else ""
        return f"job {self.job_id} is {self.state.lower().replace('_', ' ')}{on_host}"


def waits(reason: str) -> str:
    """Return why a job waits, with Slurm's reason in parentheses.

    >>> waits("Resources")
    'the cluster has no free resources (Resources)'
    """
    explanation = _WAITS.get(reason.partition(",")[0].strip())
    if explanation is None and reason in _STUCK:
        explanation = "the cluster failed to launch it, and holds it"
    if explanation is None and _LIMITS.match(reason):
        explanation = "a limit of the account, its quality of service or the partition is reached"
    return f"{explanation} ({reason})" if explanation else reason


def parse_job_list(text: str) -> list[SlurmJobState]:
    """Parse the output of `squeue`; ignore lines that do not list a job."""
    job_list = []
    for line in text.split("\n"):
        if fields := _LINE.fullmatch(line):
            job_id, state, reason, host, name, user = fields.groups()
            job_list.append(
                SlurmJobState(
                    job_id=job_id, state=state, reason=reason, host=host, name=name, user=int(user)
                )
            )
    return job_list


def may_have_succeeded(message: str) -> bool:
    """Return whether a failed call may have succeeded, because the controller did not answer."""
    return _NO_ANSWER.search(message) is not None


def may_recover(message: str) -> bool:
    """Return whether a refused submission may succeed later."""
    return _PASSING.search(message) is not None


# --- exit results ---

_STATE = re.compile(r"(?:^|\s)JobState=(\w+)")
_NUMBER = re.compile(r"(?:^|\s)JobId=([0-9]+)")
_EXIT = re.compile(r"(?:^|\s)ExitCode=(\d+):(\d+)")
_REASON = re.compile(r"(?:^|\s)Reason=(\S+)")
_JOB_NAME = re.compile(r"(?:^|\s)JobName=(\S+)")
_SIGNALLED = 128
_KILLED = 9
_LOST = {
    "NODE_FAIL": "its host was lost",
    "BOOT_FAIL": "its host did not start",
    "PREEMPTED": "it was preempted by other jobs of the cluster",
    "CANCELLED": "it was cancelled in the cluster",
    "TIMEOUT": "it reached the time limit of the cluster",
    "DEADLINE": "it missed its deadline in the cluster",
    "OUT_OF_MEMORY": "it used more memory than it requested",
    "REVOKED": "another cluster took it",
}
# The result of a wrapper that was killed by a signal; the cluster may know the reason.
SOMEHOW = (
    "the cluster ended it: a user of the cluster canceled it, a job with a higher priority preempted "
    "it, or it exceeded its time limit there"
)
_OURS = {
    UNHEARD: "its host could not reach this daemon: check wrapper_url",
    NOT_OURS: "the started job was rejected, because another copy had claimed the attempt",
    NO_DIRECTORY: "its directory could not be created on the host: the path exists already, the "
    "pool's directory is not writable, or the disk is full",
    NO_PROGRAMS: "its host has no curl or no tar: install them there",
}


def number_of(output: str, name: str) -> str:
    """Parse the job number in `scontrol` output; empty if the job has another name."""
    number, title = _NUMBER.search(output), _JOB_NAME.search(output)
    return number[1] if number and title and title[1] == name else ""


def end_of(output: str, name: str) -> ExitResult | None:
    """Parse the exit result in `scontrol` output.

    Return None if the job is running or has another name.
    """
    state, title = _STATE.search(output), _JOB_NAME.search(output)
    if state is None or title is None or title[1] != name or state[1] in _ACTIVE:
        return None
    match = _EXIT.search(output)
    code, signal = (int(match[1]), int(match[2])) if match else (0, 0)
    return describe_end(state[1], code, signal)


def ended_by_cluster(output: str) -> bool:
    """Return whether the cluster, not the job's script, has ended the job."""
    state = _STATE.search(output)
    return state is not None and state[1] in _LOST


def describe_end(state: str, code: int, signal: int) -> ExitResult:
    """Return an exit result from the job state, exit code and signal that the cluster reports."""
    if (why := _LOST.get(state)) is not None:
        return ExitResult(
            code=_SIGNALLED + _KILLED,
            signal=_KILLED,
            oom_killed=state == "OUT_OF_MEMORY",
            message=f"{why} (the cluster reports {state})",
        )
    if signal:
        return ExitResult(code=_SIGNALLED + signal, signal=signal, message="as the cluster reports")
    why = _OURS.get(
        code, "the wrapper reported no result; this is the result that the cluster reports"
    )
    number = code - _SIGNALLED if _SIGNALLED < code <= _SIGNALLED + 64 else 0
    return ExitResult(code=code, signal=number, message=why)


# An element that was cancelled while it was pending leaves no record.
CANCELLED = describe_end("CANCELLED", 0, 0)
GONE = ExitResult(
    code=_SIGNALLED + _KILLED,
    signal=_KILLED,
    message="the cluster no longer knows the job: its result is unknown",
)
