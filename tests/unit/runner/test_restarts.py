import pytest

from daemon.runner.core.restart_policy import (
    AttemptOutcome,
    RestartAction,
    RestartDecision,
    RestartHistory,
    decide_restart,
    restore_history,
)
from storage.records.base import MINUTE, SECOND
from storage.records.task import RestartPolicy

POLICY = RestartPolicy(attempts=2, interval=MINUTE, delay=SECOND, mode="fail")
START = 1_000 * SECOND


def steps(
    policy: RestartPolicy,
    *moments: int,
    outcome: AttemptOutcome = AttemptOutcome.FAILED,
    once: bool = True,
    chance: float = 0.0,
) -> list[RestartDecision]:
    """Return the decisions when a task ends with this outcome at each of these times."""
    history, found = RestartHistory(since=START), []
    for moment in moments:
        step, history = decide_restart(
            policy, history, outcome, once=once, now=START + moment, random=chance
        )
        found.append(step)
    return found


def test_a_failed_task_is_restarted_until_its_attempts_are_used_up() -> None:
    again = RestartDecision(RestartAction.RESTART, "Restart within policy", SECOND)
    end = 'Exceeded allowed attempts 2 in interval 1m0s and mode is "fail"'
    assert steps(POLICY, 1, 2, 3) == [again, again, RestartDecision(RestartAction.FAIL, end)]


def test_attempts_count_again_in_the_next_interval() -> None:
    actions = [step.action for step in steps(POLICY, 0, 1, MINUTE + 1, MINUTE + 2, MINUTE + 3)]
    assert actions == [*[RestartAction.RESTART] * 4, RestartAction.FAIL]


def test_delay_mode_waits_for_the_next_interval() -> None:
    policy = RestartPolicy(attempts=1, interval=5 * SECOND, delay=SECOND, mode="delay")
    reason = "Exceeded allowed attempts, applying a delay"
    assert steps(policy, 0, SECOND)[1] == RestartDecision(RestartAction.RESTART, reason, 4 * SECOND)


@pytest.mark.parametrize(("chance", "delay"), [(0.0, 1.0), (0.5, 1.125), (0.999, 1.24975)])
def test_restart_delay_has_up_to_a_quarter_of_jitter(chance: float, delay: float) -> None:
    (step,) = steps(POLICY, 0, chance=chance)
    assert step.delay == int(delay * SECOND)


def test_zero_attempts_permit_no_restart() -> None:
    policy = RestartPolicy(attempts=0, interval=MINUTE, delay=SECOND, mode="fail")
    assert steps(policy, 0) == [RestartDecision(RestartAction.FAIL, "Policy allows no restarts")]


@pytest.mark.parametrize("attempts", [0, 2])
def test_success_ends_a_one_shot_task(attempts: int) -> None:
    policy = RestartPolicy(attempts=attempts, interval=MINUTE, delay=SECOND, mode="fail")
    assert steps(policy, 0, outcome=AttemptOutcome.SUCCEEDED) == [
        RestartDecision(RestartAction.FINISH)
    ]


def test_success_does_not_end_a_service() -> None:
    actions = [
        step.action for step in steps(POLICY, 0, 1, 2, outcome=AttemptOutcome.SUCCEEDED, once=False)
    ]
    assert actions == [RestartAction.RESTART, RestartAction.RESTART, RestartAction.FAIL]


def test_task_that_can_never_start_is_not_retried() -> None:
    expected = [RestartDecision(RestartAction.FAIL, "Error was unrecoverable")]
    assert steps(POLICY, 0, outcome=AttemptOutcome.UNRECOVERABLE) == expected


def test_restart_on_request_is_immediate_and_not_counted() -> None:
    step, history = decide_restart(
        POLICY,
        RestartHistory(START),
        AttemptOutcome.RESTART_WANTED,
        once=True,
        now=START,
        random=0.9,
    )
    assert (step, history) == (RestartDecision(RestartAction.RESTART), RestartHistory(START))


def test_killed_task_is_not_restarted() -> None:
    assert steps(POLICY, 0, outcome=AttemptOutcome.KILLED) == [
        RestartDecision(RestartAction.ACCEPT)
    ]


def test_restart_history_can_be_restored() -> None:
    moments = [START + 1, START + 2, START + MINUTE + 5, START + MINUTE + 6]
    assert restore_history(POLICY, START, moments[:2]) == RestartHistory(START, 2)
    assert restore_history(POLICY, START, moments) == RestartHistory(START + MINUTE + 5, 2)
