"""What follows when a task has ended: again at once, again later, or never. Pure.

The rule is the peer's (golden: restart-policy): attempts are counted in intervals, the first of
which begins with the task; a restart waits its delay and up to a quarter more.
"""

from collections.abc import Iterable
from enum import Enum, auto

import msgspec

from storage.records import durations
from storage.records.task import RestartPolicy

WITHIN_POLICY = "Restart within policy"
_NONE_ALLOWED = "Policy allows no restarts"
_UNRECOVERABLE = "Error was unrecoverable"
_DELAYED = "Exceeded allowed attempts, applying a delay"
_JITTER = 0.25


class Outcome(Enum):
    """How an attempt ended, as far as restarting cares."""

    SUCCEEDED = auto()
    FAILED = auto()  # ended badly, or could not be started for a passing reason
    UNRECOVERABLE = auto()  # could not be started, and never will be
    RESTART_WANTED = auto()  # somebody asked for it
    KILLED = auto()


class Action(Enum):
    """What to do next."""

    RESTART = auto()
    FAIL = auto()  # over, and the task has failed
    FINISH = auto()  # over, and all is well
    ACCEPT = auto()  # over, because it was killed


class Step(msgspec.Struct, frozen=True):
    """What to do next, why, and after how many nanoseconds."""

    action: Action
    reason: str = ""
    delay: int = 0


class History(msgspec.Struct, frozen=True):
    """When the current interval began, and the attempts counted in it."""

    since: int
    count: int = 0


def recall(policy: RestartPolicy, began: int, restarts: Iterable[int]) -> History:
    """Return the history of a task that began, and was restarted by its policy, at these times."""
    history = History(since=began)
    for moment in restarts:
        history = _counted(policy, history, moment)
    return history


def _counted(policy: RestartPolicy, history: History, now: int) -> History:
    if now > history.since + policy.interval:
        history = History(since=now)
    return History(history.since, history.count + 1)


def next_step(
    policy: RestartPolicy,
    history: History,
    outcome: Outcome,
    *,
    once: bool,
    now: int,
    chance: float,
) -> tuple[Step, History]:
    """Return what follows, and the history with this ending in it.

    `once`: success is the end, not a reason to run again. `chance` is random, from 0 up to 1.
    """
    if outcome is Outcome.KILLED:
        return Step(Action.ACCEPT), history
    if outcome is Outcome.RESTART_WANTED:
        return Step(Action.RESTART), history
    done = once and outcome is Outcome.SUCCEEDED
    if policy.attempts == 0:
        return Step(Action.FINISH) if done else Step(Action.FAIL, _NONE_ALLOWED), history
    history = _counted(policy, history, now)
    if outcome is Outcome.UNRECOVERABLE:
        return Step(Action.FAIL, _UNRECOVERABLE), history
    if done:
        return Step(Action.FINISH), history
    if history.count <= policy.attempts:
        delay = policy.delay + int(policy.delay * _JITTER * chance)
        return Step(Action.RESTART, WITHIN_POLICY, delay), history
    if policy.mode == "delay":
        return Step(Action.RESTART, _DELAYED, history.since + policy.interval - now), history
    interval = durations.text(policy.interval)
    reason = (
        f"Exceeded allowed attempts {policy.attempts} in interval {interval} "
        f'and mode is "{policy.mode}"'
    )
    return Step(Action.FAIL, reason), history
