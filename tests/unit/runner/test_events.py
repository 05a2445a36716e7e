import pytest

from daemon.runner.core import task_events
from daemon.runner.core.driver import ExitResult
from storage.records.allocation import TaskEvent
from storage.records.base import SECOND

NOW = 5


@pytest.mark.parametrize(
    ("end", "text", "details"),
    [
        (ExitResult(), "Exit Code: 0", {"exit_code": "0", "signal": "0", "oom_killed": "false"}),
        (
            ExitResult(code=137, signal=9),
            "Exit Code: 137, Signal: 9",
            {"exit_code": "137", "signal": "9", "oom_killed": "false"},
        ),
        (
            ExitResult(code=1, oom_killed=True, message="too big"),
            'Exit Code: 1, Exit Message: "too big"',
            {
                "exit_code": "1",
                "signal": "0",
                "oom_killed": "true",
                "exit_message": "too big",
            },
        ),
    ],
)
def test_exit_is_described_in_text_and_details(
    end: ExitResult, text: str, details: dict[str, str]
) -> None:
    event = task_events.terminated(NOW, end)
    assert (event.type, event.display_message, event.details) == ("Terminated", text, details)
    assert (event.exit_code, event.signal) == (end.code, end.signal)


def test_restart_within_its_policy_has_only_its_delay() -> None:
    event = task_events.restarting(NOW, "Restart within policy", 232_075_167)
    assert event.display_message == "Task restarting in 232.075167ms"
    assert event.start_delay == 232_075_167
    assert event.details == {
        "restart_reason": "Restart within policy",
        "start_delay": "232075167",
    }


def test_restart_beyond_its_policy_has_a_reason() -> None:
    event = task_events.restarting(NOW, "Exceeded allowed attempts, applying a delay", 4 * SECOND)
    expected = "Exceeded allowed attempts, applying a delay - Task restarting in 4s"
    assert event.display_message == expected


@pytest.mark.parametrize(
    ("event", "kind", "text"),
    [
        (task_events.received(NOW), "Received", "Task received by client"),
        (task_events.task_setup(NOW), "Task Setup", "Building Task Directory"),
        (task_events.started(NOW), "Started", "Task started by client"),
        (
            task_events.killing(NOW, SECOND),
            "Killing",
            "Sent interrupt. Waiting 1s before force killing",
        ),
        (task_events.killed(NOW), "Killed", "Task successfully killed"),
        (
            task_events.waiting_for_shutdown(NOW, 2 * SECOND),
            "Waiting for shutdown delay",
            "Waiting for shutdown_delay of 2s before killing the task.",
        ),
        (
            task_events.skipping_shutdown(NOW, 30 * SECOND),
            "Skipping shutdown delay",
            "Skipping shutdown_delay of 30s before killing the task.",
        ),
        (task_events.sibling_failed(NOW, "a"), "Sibling Task Failed", 'Task\'s sibling "a" failed'),
        (task_events.leader_dead(NOW), "Leader Task Dead", "Leader Task in Group dead"),
        (task_events.main_tasks_dead(NOW), "Main Tasks Dead", "Main tasks in the group died"),
        (task_events.signaling(NOW, "SIGHUP"), "Signaling", "Task being sent a signal"),
        (
            task_events.restart_signaled(NOW, task_events.BY_USER),
            "Restart Signaled",
            "User requested task to restart",
        ),
    ],
)
def test_events_have_the_texts_of_nomad(event: TaskEvent, kind: str, text: str) -> None:
    assert (event.type, event.display_message, event.time) == (kind, text, NOW)


@pytest.mark.parametrize(
    ("event", "name"),
    [
        (task_events.driver_failure(NOW, "why"), "driver_error"),
        (task_events.failed_validation(NOW, "why"), "validation_error"),
        (task_events.setup_failure(NOW, "why"), "setup_error"),
        (task_events.killed(NOW, "why"), "kill_error"),
    ],
)
def test_error_is_in_its_field_the_details_and_the_text(event: TaskEvent, name: str) -> None:
    assert (getattr(event, name), event.details, event.display_message) == (
        "why",
        {name: "why"},
        "why",
    )


def test_task_without_a_restart_has_failed() -> None:
    event = task_events.not_restarting(NOW, "Policy allows no restarts")
    assert event.fails_task
    assert event.details == {"restart_reason": "Policy allows no restarts", "fails_task": "true"}
