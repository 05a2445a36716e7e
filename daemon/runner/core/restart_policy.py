"""Decide what happens after the end of an attempt: restart now, restart later, or stop. No I/O.

The rule is Nomad's (source: Nomad's recorded responses `restart-policy`). Attempts are counted per
interval; the first interval begins when the task starts. A restart waits for the delay of the
policy, plus a random part of up to 25 % of this delay.
"""

from collections.abc import Iterable
from enum import Enum, auto

import msgspec

from storage.records import durations
from storage.records.task import RestartPolicy

WITHIN_POLICY = "Restart within policy"
_NONE_ALLOWED = "Policy allows no restarts"
_UNRECOVERABLE = "Error was unrecoverable"
_NO_RETRY = "The exit code is not in steward_retry_exit_codes"
_DELAYED = "Exceeded allowed attempts, applying a delay"
_JITTER = 0.25


class AttemptOutcome(Enum):
    """The outcomes of an attempt that the restart policy distinguishes."""

    SUCCEEDED = auto()
    FAILED = auto()  # ended with an error, or could not start for a temporary reason
    UNRECOVERABLE = auto()  # could not start, and another attempt would fail the same way
    NOT_RETRIED = auto()  # ended with an exit code that the job excludes from retries
    RESTART_WANTED = auto()  # a user or a change action requested a restart
    KILLED = auto()


class RestartAction(Enum):
    """The next action after the end of an attempt."""

    RESTART = auto()
    FAIL = auto()  # final: the task has failed
    FINISH = auto()  # final: the task has succeeded
    ACCEPT = auto()  # final: the task was killed


class RestartDecision(msgspec.Struct, frozen=True):
    """The next action, its reason, and its delay in nanoseconds."""

    action: RestartAction
    reason: str = ""
    delay: int = 0


class RestartHistory(msgspec.Struct, frozen=True):
    """The start of the current interval, and the number of attempts in it."""

    since: int
    count: int = 0


def restore_history(policy: RestartPolicy, began: int, restarts: Iterable[int]) -> RestartHistory:
    """Return the restart history of a task.

    `began` is the start time of the task. `restarts` are the times at which the restart policy
    restarted the task, in nanoseconds.
    """
    history = RestartHistory(since=began)
    for moment in restarts:
        history = _counted(policy, history, moment)
    return history


def _counted(policy: RestartPolicy, history: RestartHistory, now: int) -> RestartHistory:
    if now > history.since + policy.interval:
        history = RestartHistory(since=now)
    return RestartHistory(history.since, history.count + 1)


def decide_restart(
    policy: RestartPolicy,
    history: RestartHistory,
    outcome: AttemptOutcome,
    *,
    once: bool,
    now: int,
    random: float,
) -> tuple[RestartDecision, RestartHistory]:
    """Return the next action, and the restart history that includes this outcome.

    With `once`, the task is not restarted after a success. `random` is a random number in [0, 1).
    """
    if outcome is AttemptOutcome.KILLED:
        return RestartDecision(RestartAction.ACCEPT), history
    if outcome is AttemptOutcome.RESTART_WANTED:
        return RestartDecision(RestartAction.RESTART), history
    if outcome is AttemptOutcome.NOT_RETRIED:
        return RestartDecision(RestartAction.FAIL, _NO_RETRY), history
    done = once and outcome is AttemptOutcome.SUCCEEDED
    if policy.attempts == 0:
        return RestartDecision(RestartAction.FINISH) if done else RestartDecision(
            RestartAction.FAIL, _NONE_ALLOWED
        ), history
    history = _counted(policy, history, now)
    if outcome is AttemptOutcome.UNRECOVERABLE:
        return RestartDecision(RestartAction.FAIL, _UNRECOVERABLE), history
    if done:
        return RestartDecision(RestartAction.FINISH), history
    if history.count <= policy.attempts:
        delay = policy.delay + int(policy.delay * _JITTER * random)
        return RestartDecision(RestartAction.RESTART, WITHIN_POLICY, delay), history
    if policy.mode == "delay":
        return RestartDecision(
            RestartAction.RESTART, _DELAYED, history.since + policy.interval - now
        ), history
    interval = durations.text(policy.interval)
    reason = (
        f"Exceeded allowed attempts {policy.attempts} in interval {interval} "
        f'and mode is "{policy.mode}"'
    )
    return RestartDecision(RestartAction.FAIL, reason), history
