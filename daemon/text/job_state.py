"""The state of a job in one word, with the reason. All interfaces show the same state. No I/O.

`docs/states.md` has the table. The rules below are in the order of that table: the first rule that
matches decides.
"""

from enum import StrEnum

import msgspec

from daemon.text.placement_message import count_noun
from storage.records.base import SECOND
from storage.records.flow import FlowRun, FlowStatus
from storage.records.freeze import Freeze
from storage.records.job import JobStatus, JobType
from storage.records.times import rfc3339

SETTLED_AFTER = (
    60 * SECOND
)  # run time in nanoseconds after which a restarted task counts as healthy
_ONCE = frozenset({JobType.BATCH, JobType.SYSBATCH})


class State(StrEnum):
    """The state of a job, for people."""

    RUNNING = "running"  # all desired allocations run
    DEGRADED = "degraded"  # some desired allocations run
    DEPLOYING = "deploying"  # a deployment replaces the version
    FAILING = "failing"  # it fails, and is retried
    FAILED = "failed"  # it failed, and is not retried
    BLOCKED = "blocked"  # no node is feasible or has capacity
    PENDING = "pending"  # it is about to start
    COMPLETE = "complete"  # it finished successfully
    STOPPED = "stopped"  # a user stopped it
    SCHEDULED = "scheduled"  # it launches child jobs by schedule or dispatch
    PAUSED = "paused"  # its schedule or its deployment is paused


# The states that need attention, worst first: `Failing` and `Blocked` in every list of problems.
TROUBLE = (State.FAILED, State.FAILING, State.BLOCKED, State.DEGRADED)


ENDED = frozenset({State.FAILED, State.COMPLETE, State.STOPPED})
_NO_ANSWER = "its node does not respond"


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """The number of desired allocations in each client status, without replaced allocations.

    `retried` counts failed and lost allocations that will be rescheduled. `failing` counts pending
    and running allocations that restart after a failure. Of these, `unsettled` counts
    only the running allocations.
    """

    pending: int = 0
    running: int = 0
    unknown: int = 0
    complete: int = 0
    failed: int = 0
    retried: int = 0
    failing: int = 0
    unsettled: int = 0

    @property
    def alive(self) -> int:
        """Return the number of allocations that are not terminal."""
        return self.pending + self.running + self.unknown


class DeploymentFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The latest deployment: its version, its status and its progress."""

    version: int
    status: str
    description: str
    is_active: bool
    healthy: int
    unhealthy: int
    wanted: int


class Runs(msgspec.Struct, frozen=True, kw_only=True):
    """The child jobs of a periodic or parameterized job. Times are in nanoseconds since the epoch.

    `last` is the state of the latest ended child, or None. `kept` counts the retained
    children. `recent` holds the states of the ten latest ended children, newest first.
    """

    last: State | None = None
    last_id: str = ""
    last_reason: str = ""
    last_ended: int = 0
    last_duration: int = 0
    recent: tuple[State, ...] = ()
    active: int = 0
    kept: int = 0
    next_slot: int = 0


class JobFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The input from which the state of a job is derived.

    `wanted` is the sum of the counts of a service's groups, and None for other types of jobs.
    `error` is the latest error of an allocation, and `blocked` the reason for a placement failure.
    `ending` counts the allocations that must stop but are not terminal yet. It is set only for a
    stopped job.
    """

    type: str
    status: str
    version: int
    is_stopped: bool = False
    is_held: bool = False
    is_paused: bool = False  # the schedule is paused
    is_off: bool = False  # the schedule is disabled
    runs: Runs | None = None  # None: it is not a parent
    wanted: int | None = 0
    current: Tally = Tally()
    older: Tally = Tally()
    ending: int = 0
    rollout: DeploymentFacts | None = None
    unhealthy: str = ""  # why an allocation of the deployment is unhealthy
    blocked: str = ""
    error: str = ""
    # The run of the workflow's current version, or an older run that has not ended.
    run: FlowRun | None = None
    held: str = ""  # why no step of the run is active
    waits: str = ""  # why the current version has no run yet, if an earlier run must end first
    freeze: str = ""  # the active freeze that holds the job


class JobState(msgspec.Struct, frozen=True):
    """A state, and a sentence about it without a full stop; the sentence may be empty."""

    word: State
    reason: str = ""


HELD_BY_FREEZE = "held by freeze "  # prefix of the reason of a held job


def held_by(freeze: Freeze) -> str:
    """Return why a job waits: a freeze holds it, or the freeze that held it has just ended."""
    if freeze.ended:
        return f"freeze {freeze.id} has ended, and the job is about to begin"
    by = f" of {freeze.person}" if freeze.person else ""
    until = f" until {rfc3339(freeze.until // SECOND * SECOND)}" if freeze.until else ""
    return f"{HELD_BY_FREEZE}{freeze.id}{by}{until}: {freeze.reason}"


def job_state(facts: JobFacts) -> JobState:
    """Return the state of a job."""
    if facts.is_stopped:
        left = facts.current.alive + facts.older.alive + facts.ending
        return JobState(
            State.STOPPED, f"{count_noun(left, 'allocation')} still stopping" if left else ""
        )
    if facts.runs is not None:
        return _of_parent(facts, facts.runs)
    if facts.is_held:
        return JobState(State.PENDING, "waits for other child jobs of its parent to end")
    if facts.rollout is not None and facts.rollout.is_active:
        return _of_rollout(facts, facts.rollout)
    if facts.type in _ONCE:
        return _of_batch(facts)
    return _of_service(facts)


def _of_parent(facts: JobFacts, runs: Runs) -> JobState:
    if facts.is_paused:
        return JobState(State.PAUSED, _last(runs))
    if facts.is_off:
        return JobState(State.PAUSED, "its schedule is disabled: periodic.enabled is false")
    if runs.last in (State.FAILED, State.BLOCKED, State.FAILING):
        failed = sum(run == State.FAILED for run in runs.recent)
        often = f"; {failed} of the last {len(runs.recent)} failed" if len(runs.recent) > 1 else ""
        return JobState(
            State.FAILING, f"the last run failed{_format_reason(runs.last_reason)}{often}"
        )
    if facts.status == JobStatus.DEAD:
        return JobState(State.COMPLETE)
    return JobState(State.SCHEDULED, facts.freeze or _last(runs))


def _last(runs: Runs) -> str:
    if runs.last is None:
        return "no run has ended yet"
    if runs.last == State.STOPPED:
        return "the last run was stopped"
    how = (
        "succeeded"
        if runs.last == State.COMPLETE
        else f"{runs.last}{_format_reason(runs.last_reason)}"
    )
    return f"the last run {how}"


def _format_reason(reason: str) -> str:
    return f": {reason}" if reason else ""


def _of_rollout(facts: JobFacts, rollout: DeploymentFacts) -> JobState:
    progress = f"version {rollout.version}: {rollout.healthy} of {rollout.wanted} healthy"
    if rollout.unhealthy:
        progress = f"{progress}, {rollout.unhealthy} unhealthy"
    if rollout.status == "paused":
        return JobState(State.PAUSED, f"the deployment is paused; {progress}")
    problem = facts.blocked or (
        facts.error if facts.current.failing or facts.current.failed else ""
    )
    if problem and not _stable_count(facts):
        word = State.BLOCKED if facts.blocked and not facts.current.alive else State.FAILING
        return JobState(word, f"{problem} ({progress})")
    return JobState(State.DEPLOYING, f"{progress}{_format_reason(problem or facts.unhealthy)}")


def _of_failed_run(facts: JobFacts, run: FlowRun) -> str:
    if not facts.error:
        return run.reason
    separator = "; " if ": " in run.reason else ": "  # the reason has a cause of another step
    return f"{run.reason}{separator}{facts.error}"


def _of_run(facts: JobFacts) -> JobState:
    """Return the state of a workflow whose run has not ended.

    A failed task is not a failed run, because later steps may handle the failure.
    """
    now = facts.current
    if now.failing or now.retried:
        return JobState(State.FAILING, facts.error or "it failed and is retried")
    if now.running or now.unknown:
        beside = f"{now.failed} failed" if now.failed else ""
        only = f"only step {facts.run.only}, by hand" if facts.run and facts.run.only else ""
        reason = _joined(only, beside, facts.blocked, facts.freeze, facts.waits)
        return JobState(State.RUNNING, reason)
    if facts.blocked:
        return JobState(State.BLOCKED, facts.blocked)
    return JobState(State.PENDING, _joined(facts.freeze or facts.held or facts.error, facts.waits))


def _joined(*texts: str) -> str:
    return "; ".join(filter(None, texts))


def _of_ended_run(facts: JobFacts, run: FlowRun) -> JobState:
    """Return the state of a workflow whose run has ended.

    The run can succeed despite failed tasks, if the job allows these failures or a user accepted
    them.
    """
    if run.status == FlowStatus.SUCCEEDED:
        return JobState(State.COMPLETE, f"only step {run.only} ran, by hand" if run.only else "")
    if run.status == FlowStatus.FAILED:
        return JobState(State.FAILED, _of_failed_run(facts, run))
    named = run.reason.startswith("canceled by ")
    return JobState(State.STOPPED, f"the run was {run.reason}" if named else _of_canceled(run))


def _of_canceled(run: FlowRun) -> str:
    return f"the run was canceled{_format_reason(run.reason)}"


def _of_batch(facts: JobFacts) -> JobState:
    now = facts.current
    if facts.run is not None:
        is_at_work = not facts.run.status.has_ended
        return _of_run(facts) if is_at_work else _of_ended_run(facts, facts.run)
    if now.failing or now.retried:
        return JobState(State.FAILING, facts.error or "it failed and is retried")
    # A failure is final only when nothing runs: other allocations may still complete the job.
    if now.failed and not now.alive:
        return JobState(State.FAILED, facts.error)
    if now.running or now.unknown:
        beside = f"{now.failed} failed" if now.failed else ""
        return JobState(State.RUNNING, "; ".join(filter(None, (beside, facts.blocked))))
    if facts.blocked:
        return JobState(State.BLOCKED, facts.blocked)
    if now.pending or facts.status == JobStatus.PENDING:
        return JobState(State.PENDING, facts.freeze or facts.error)
    return JobState(State.COMPLETE, "" if now.complete else "it had nothing to do")


def _of_service(facts: JobFacts) -> JobState:
    now, before = facts.current, facts.older
    running, steady = now.running + before.running, _stable_count(facts)
    desired = facts.wanted
    if desired is None:
        desired = now.alive + now.failed + before.alive
    problem = _worst_problem(facts)
    if problem and steady > 0:
        return JobState(State.DEGRADED, f"{steady} of {desired} running: {problem}")
    if now.failing or before.failing or now.retried:
        return JobState(State.FAILING, problem)
    if facts.blocked and not running:
        return JobState(State.BLOCKED, facts.blocked)
    if now.failed or _is_given_up(facts):
        return JobState(State.FAILED, problem)
    if running < desired:
        return _of_lacking(facts, running, desired)
    if not running and (now.unknown or before.unknown):
        return JobState(State.DEGRADED, _NO_ANSWER)
    if not running and not now.pending and facts.status != JobStatus.PENDING:
        return JobState(State.COMPLETE, "" if now.complete else "no allocation is desired")
    return JobState(State.RUNNING if running else State.PENDING)


def _stable_count(facts: JobFacts) -> int:
    """Return the number of running allocations that have not failed recently."""
    now, before = facts.current, facts.older
    return now.running - now.unsettled + before.running - before.unsettled


def _of_lacking(facts: JobFacts, running: int, desired: int) -> JobState:
    if running:
        return JobState(State.DEGRADED, f"{running} of {desired} running")
    if facts.current.unknown or facts.older.unknown:
        return JobState(State.DEGRADED, _NO_ANSWER)
    if facts.status == JobStatus.DEAD and facts.current.complete and not facts.current.pending:
        return JobState(State.COMPLETE)
    return JobState(State.PENDING, facts.error)


def _worst_problem(facts: JobFacts) -> str:
    """Return the worst problem of a service as the end of a sentence, or an empty string."""
    if facts.current.failing or facts.older.failing or facts.current.failed:
        return facts.error or "an allocation failed"
    if facts.blocked:
        return facts.blocked
    if facts.rollout is not None and _is_given_up(facts):
        message = ": ".join(filter(None, (facts.rollout.description, facts.unhealthy)))
        return f"the deployment of version {facts.version} failed{_format_reason(message)}"
    return ""


def _is_given_up(facts: JobFacts) -> bool:
    rollout = facts.rollout
    return rollout is not None and rollout.version == facts.version and rollout.status == "failed"
