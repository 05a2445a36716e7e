"""What the cluster says of a job, in our words: why it waits, whether it is over, how it ended.

The words are those of `squeue` and `scontrol` (facts, Slurm, section 4). Pure.
"""

import re

import msgspec

from daemon.runner.drivers.driver import Exit

# No field of it is free text: a name is one that was asked for. The last is the user's number.
FORMAT = "%i|%T|%r|%N|%j|%U"
_LINE = re.compile(r"([0-9]+)\|([A-Z_]+)\|([^|]*)\|([^|]*)\|([^|]+)\|([0-9]+)")

# Statuses with which the wrapper ends that has brought no task there.
UNHEARD, NOT_OURS, NO_DIRECTORY, NO_PROGRAMS = 90, 91, 92, 93

_ACTIVE = frozenset(
    {
        *("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING"),
        *("STAGE_OUT", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESIZING", "SPECIAL_EXIT"),
        *("RESV_DEL_HOLD",),
    }
)
# Held because the cluster could not, or must not, launch it again: it never will by itself.
_STUCK = ("launch failed requeued held", "JobHeldMaxRequeue", "job requeued in held state")
# What makes an answer of a program one that says nothing about its work (facts, section 5).
_NO_ANSWER = re.compile(
    r"unable to contact|timed out|timeout|connect failure|connection|zero bytes|communication|"
    r"temporarily|socket|controller not responding|i/o error|try again",
    re.IGNORECASE,
)
_PASSING = re.compile(
    r"limit|MaxJobCount|too many|in drain state|not available \(down\)", re.IGNORECASE
)

_WAITS = {
    "None": "the cluster has not looked at it yet",
    "Priority": "others that wait in the cluster come first",
    "Resources": "the cluster has no room at the moment",
    "Dependency": "it waits for another job of the cluster",
    "BeginTime": "the cluster starts it later",
    "JobHeldUser": "somebody holds it in the cluster: scontrol release lets it go on",
    "JobHeldAdmin": "an operator of the cluster holds it",
    "Licenses": "it waits for a licence of the cluster",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition starts nothing at the moment",
    "PartitionConfig": "no host of the partition can hold it, as it is configured now",
    "PartitionTimeLimit": "it may run for longer than the partition allows",
    "PartitionNodeLimit": "the partition has not as many hosts as it needs, or they are down",
    "NodeDown": "a host that it needs is down",
    "BadConstraints": "no host meets its constraints",
    "ReqNodeNotAvail": "a host that it needs cannot be had at the moment",
    "Reservation": "it waits for a reservation of the cluster",
    "Prolog": "the cluster makes a host ready for it",
    "Cleaning": "the cluster cleans up after its last launch",
    "NonZeroExitCode": "it has ended",
}
_LIMITS = re.compile(r"(QOS|Assoc|MaxCpuPer|MaxMemPer|MaxJobs|MaxSubmit|.*Limit)")


class Sighting(msgspec.Struct, frozen=True, kw_only=True):
    """A job as the cluster lists it; `user` is the number of whom it runs as."""

    job_id: str
    state: str
    reason: str
    host: str
    name: str
    user: int

    @property
    def is_active(self) -> bool:
        """Tell whether it may run, now or later."""
        return self.state in _ACTIVE

    @property
    def is_waiting(self) -> bool:
        """Tell whether it has no host yet."""
        return self.state in {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT"}

    @property
    def is_stuck(self) -> bool:
        """Tell whether it will never be launched unless somebody lets it."""
        return self.is_waiting and self.reason in _STUCK

    @property
    def lost_its_host(self) -> bool:
        """Tell whether it ended because of what became of its host, or who else came."""
        return self.state in {"NODE_FAIL", "BOOT_FAIL", "PREEMPTED"}

    @property
    def said(self) -> str:
        """Return where it stands, in one plain clause with the cluster's own words behind it."""
        if self.state == "CONFIGURING":
            return f"job {self.job_id}: the cluster makes {self.host or 'a host'} ready"
        if self.is_waiting:
            return f"job {self.job_id} waits: {waits(self.reason)}"
        at = f" on {self.host}" if self.host else ""
        return f"job {self.job_id} is {self.state.lower().replace('_', ' ')}{at}"


def waits(reason: str) -> str:
    """Return why a job waits, in plain words with the cluster's own behind them.

    >>> waits("Resources")
    'the cluster has no room at the moment (Resources)'
    """
    known = _WAITS.get(reason.partition(",")[0].strip())
    if known is None and reason in _STUCK:
        known = "the cluster failed to launch it, and holds it"
    if known is None and _LIMITS.match(reason):
        known = "a limit of the account, its quality of service or the partition is reached"
    return f"{known} ({reason})" if known else reason


def sightings(text: str) -> list[Sighting]:
    """Return the jobs that `squeue` has listed; lines that are none of its own are passed over."""
    found = []
    for line in text.split("\n"):
        if fields := _LINE.fullmatch(line):
            job_id, state, reason, host, name, user = fields.groups()
            found.append(
                Sighting(
                    job_id=job_id, state=state, reason=reason, host=host, name=name, user=int(user)
                )
            )
    return found


def says_nothing(message: str) -> bool:
    """Tell whether a program that failed may have done its work: nobody answered it."""
    return _NO_ANSWER.search(message) is not None


def may_pass(message: str) -> bool:
    """Tell whether a refused submission may be taken later."""
    return _PASSING.search(message) is not None


# ---- how it ended --------------------------------------------------------------------------------

_STATE = re.compile(r"(?:^|\s)JobState=(\w+)")
_EXIT = re.compile(r"(?:^|\s)ExitCode=(\d+):(\d+)")
_REASON = re.compile(r"(?:^|\s)Reason=(\S+)")
_JOB_NAME = re.compile(r"(?:^|\s)JobName=(\S+)")
_SIGNALLED = 128
_KILLED = 9
_LOST = {
    "NODE_FAIL": "its host was lost",
    "BOOT_FAIL": "its host did not start",
    "PREEMPTED": "it had to make room for other jobs of the cluster",
    "CANCELLED": "it was cancelled in the cluster",
    "TIMEOUT": "it ran for as long as the cluster lets it",
    "DEADLINE": "it was not done by its deadline in the cluster",
    "OUT_OF_MEMORY": "it took more memory than it has",
    "REVOKED": "another cluster took it",
}
# What is known where a wrapper tells that it was signalled, and no more; then the cluster is asked.
SOMEHOW = (
    "the cluster ended it: somebody cancelled it there, it had to make room, or its time limit there "
    "has passed"
)
_OURS = {
    UNHEARD: "its host could not reach this daemon: look at wrapper_url",
    NOT_OURS: "what the cluster started was not let in: the attempt was claimed by another copy",
    NO_DIRECTORY: "its directory could not be made on the host: something is there already, the "
    "pool's directory is not writable, or the disk is full",
    NO_PROGRAMS: "its host has no curl or no tar: install them there",
}


def end_of(shown: str, name: str) -> Exit | None:
    """Return how a job ended that `scontrol` has shown; None when that is not its name, or it goes on."""
    state, title = _STATE.search(shown), _JOB_NAME.search(shown)
    if state is None or title is None or title[1] != name or state[1] in _ACTIVE:
        return None
    found = _EXIT.search(shown)
    code, signal = (int(found[1]), int(found[2])) if found else (0, 0)
    return told(state[1], code, signal)


def is_its_doing(shown: str) -> bool:
    """Tell whether the cluster has ended a job that `scontrol` has shown, and not its own script."""
    state = _STATE.search(shown)
    return state is not None and state[1] in _LOST


def told(state: str, code: int, signal: int) -> Exit:
    """Return an end as the cluster tells it: nothing else is known of it."""
    if (why := _LOST.get(state)) is not None:
        return Exit(
            code=_SIGNALLED + _KILLED,
            signal=_KILLED,
            oom_killed=state == "OUT_OF_MEMORY",
            message=f"{why} (the cluster says {state})",
        )
    if signal:
        return Exit(code=_SIGNALLED + signal, signal=signal, message="the cluster says so")
    why = _OURS.get(code, "its wrapper did not say how it ended; the cluster says so")
    number = code - _SIGNALLED if _SIGNALLED < code <= _SIGNALLED + 64 else 0
    return Exit(code=code, signal=number, message=why)


GONE = Exit(
    code=_SIGNALLED + _KILLED,
    signal=_KILLED,
    message="the cluster does not know the job any more: how it ended is unknown",
)
