import pytest

from daemon.cli.core.follow import (
    AllocationOutcome,
    _standstill_rows,
    allocation_outcome,
    allocation_row,
    current_allocations,
    describe_outcome,
    unfinished,
    why_failed,
    with_replacements,
)
from daemon.cli.core.output import ProgressRow
from daemon.text.task_failure import ERRORS
from storage.records.deployment import Deployment, DeploymentGroup, DeploymentStatus
from storage.records.evaluation import EvalStatus
from storage.records.failure import TaskError
from tests.samples import evaluation, job
from tests.unit.cli.samples import allocation_line, task_state

CRASHED = {
    "main": task_state(
        ("Started", "Task started by client"),
        ("Terminated", "Exit Code: 2"),
        ("Restarting", "Task restarting in 15s"),
        ("Terminated", "Exit Code: 3"),
        ("Not Restarting", "Exceeded allowed attempts 1"),
        state="dead",
        failed=True,
    ),
    "side": task_state(("Killed", "Task successfully killed"), state="dead"),
}


@pytest.mark.parametrize(
    ("status", "followup", "service", "batch"),
    [
        ("pending", "", AllocationOutcome.OPEN, AllocationOutcome.OPEN),
        ("running", "", AllocationOutcome.GOOD, AllocationOutcome.OPEN),
        ("complete", "", AllocationOutcome.GOOD, AllocationOutcome.GOOD),
        ("failed", "", AllocationOutcome.BAD, AllocationOutcome.BAD),
        ("lost", "", AllocationOutcome.BAD, AllocationOutcome.BAD),
        ("failed", "e2", AllocationOutcome.BAD, AllocationOutcome.OPEN),
        ("unknown", "", AllocationOutcome.OPEN, AllocationOutcome.OPEN),
    ],
)
def test_service_is_followed_until_running_and_a_batch_job_until_its_end(
    status: str, followup: str, service: AllocationOutcome, batch: AllocationOutcome
) -> None:
    line = allocation_line(client_status=status, followup_eval_id=followup)
    assert allocation_outcome(line, runs_to_its_end=False) is service
    assert allocation_outcome(line, runs_to_its_end=True) is batch


def test_allocations_are_followed_to_their_replacements() -> None:
    first = allocation_line("a1", next_allocation="a2", create_index=10)
    second = allocation_line("a2", eval_id="e2", next_allocation="a3", create_index=20)
    third = allocation_line("a3", eval_id="e3", create_index=30)
    other = allocation_line("a4", eval_id="e0", create_index=5)
    allocs = with_replacements([third, other, second, first], {"a1"})
    assert allocs == [first, second, third]
    assert current_allocations(allocs) == [third]


def test_pending_allocation_shows_its_newest_event() -> None:
    states = {"main": task_state(("Received", "Task received by client"), state="pending")}
    row = allocation_row(allocation_line(client_status="pending", task_states=states))
    assert row == ProgressRow(
        "allocation", "a1", "web.web[0]", "pending", "Task received by client"
    )


def test_allocation_that_will_stop_is_reported() -> None:
    assert allocation_row(allocation_line(desired_status="stop")).detail == "stopping"


def test_failure_is_reported_with_the_newest_events_that_have_a_reason() -> None:
    line = allocation_line(client_status="failed", task_states=CRASHED)
    assert why_failed(line) == 'task "main": Exit Code: 3; Exceeded allowed attempts 1'


def test_failure_without_events_is_reported_with_its_description() -> None:
    line = allocation_line(client_status="failed", client_description="Failed tasks")
    assert why_failed(line) == "Failed tasks"


def test_summary_counts_allocations_and_explains_failures() -> None:
    failed = allocation_line("abcdefgh-1", client_status="failed", followup_eval_id="e9")
    lines = [allocation_line("a1"), allocation_line("a2"), failed]
    assert describe_outcome(lines) == (
        "allocations: 1 failed, 2 running\n"
        "allocation abcdefgh failed: no reason is given; it will be retried later"
    )


def test_summary_has_the_root_cause_and_the_last_lines() -> None:
    line = allocation_line("abcdefgh-1", client_status="failed", task_states=CRASHED)
    error = TaskError(
        allocation_id=line.id,
        task_group="web",
        task="main",
        time=1,
        kind="Terminated",
        stderr="no disk left\n",
        summary='task "main" exited with code 3',
    )
    assert describe_outcome([line], {line.id: error}).splitlines() == [
        "allocations: 1 failed",
        'allocation abcdefgh failed: task "main" exited with code 3',
        "    no disk left",
    ]


@pytest.mark.parametrize("kind", sorted({*ERRORS, "Template"}))
def test_each_cause_precedes_its_consequence(kind: str) -> None:
    states = {
        "main": task_state(
            (kind, "the cause"),
            ("Not Restarting", "Policy allows no restarts"),
            state="dead",
            failed=True,
        )
    }
    line = allocation_line(client_status="failed", task_states=states)
    assert why_failed(line) == 'task "main": the cause; Policy allows no restarts'


def test_evaluation_without_changes_is_reported() -> None:
    assert describe_outcome([]) == "nothing had to be placed"


@pytest.mark.parametrize(
    ("status", "description", "words"),
    [
        (EvalStatus.FAILED, "it broke", "evaluation e1 is failed: it broke"),
        (
            EvalStatus.CANCELED,
            "",
            "evaluation e1 is canceled: no reason is given; a newer evaluation replaces it",
        ),
    ],
)
def test_evaluation_without_a_decision_is_explained(
    status: EvalStatus, description: str, words: str
) -> None:
    assert unfinished(evaluation(job(), status=status, status_description=description)) == words


@pytest.mark.parametrize(
    ("status", "healthy", "promoted", "shown"),
    [
        (DeploymentStatus.RUNNING, 1, False, ["waits for: steward job promote web"]),
        (DeploymentStatus.RUNNING, 0, False, []),
        (DeploymentStatus.RUNNING, 1, True, []),
        (DeploymentStatus.PAUSED, 0, True, ["waits for: steward deployment resume 0123abcd"]),
        (DeploymentStatus.SUCCESSFUL, 1, False, []),
    ],
)
def test_deployment_waiting_for_promotion_names_the_command(
    status: DeploymentStatus, healthy: int, promoted: bool, shown: list[str]
) -> None:
    group = DeploymentGroup(
        desired_canaries=1, desired_total=2, healthy_allocs=healthy, promoted=promoted
    )
    deployment = Deployment(
        id="0123abcd-0000-4000-8000-000000000000",
        namespace="default",
        job_id="web",
        job_version=1,
        job_create_index=1,
        job_modify_index=1,
        job_spec_modify_index=1,
        task_groups={"g": group},
        status=status,
        status_description="",
        eval_priority=50,
        create_index=1,
        modify_index=1,
        create_time=1,
        modify_time=1,
    )
    assert [row.status + row.detail for row in _standstill_rows(deployment)] == shown
