from typing import Any

import pytest

from daemon.cli.commands.wait_for_job import _whole, exit_status
from daemon.cli.core.follow import EXIT_NOT_PLACED, FollowResult
from storage.records.allocation import TaskEvent, TaskPhase, TaskStateWithEvents
from storage.records.flow import FlowRunView, FlowStatus, RunStepView, StepState
from tests.samples import evaluation, job
from tests.unit.cli.samples import allocation_line


def ended(*, at: int = 1, failed: bool = True, **about: Any) -> TaskStateWithEvents:
    event = TaskEvent(type=about.pop("type", "Terminated"), time=at, **about)
    return TaskStateWithEvents(state=TaskPhase.DEAD, failed=failed, events=[event])


def status(status: int = 1, **states: TaskStateWithEvents) -> int:
    line = allocation_line("a1", task_states=states)
    return exit_status(FollowResult(status, "", evaluation(job()), [line]))


@pytest.mark.parametrize(
    ("states", "code"),
    [
        ({"main": ended(exit_code=3)}, 3),
        ({"main": ended(exit_code=137, signal=9)}, 137),
        ({"main": ended(signal=9)}, 137),
        ({"main": ended(type="Driver Failure")}, 1),
        ({"a": ended(at=9, exit_code=4), "b": ended(at=2, exit_code=5)}, 5),
        ({"a": ended(type="Driver Failure"), "b": ended(at=2, exit_code=5)}, 5),
        ({"main": ended(failed=False, type="Max Run Duration Exceeded")}, 124),
    ],
)
def test_exit_status_is_that_of_the_first_failed_task(
    states: dict[str, TaskStateWithEvents], code: int
) -> None:
    assert status(**states) == code


def test_intended_stop_is_no_failure() -> None:
    assert status(0, main=ended(failed=False, exit_code=143, signal=15)) == 0


def test_unplaced_job_has_no_exit_code() -> None:
    assert exit_status(FollowResult(EXIT_NOT_PLACED, "", evaluation(job()))) == 2


def test_replaced_allocation_is_not_counted() -> None:
    first = allocation_line("a1", task_states={"main": ended(exit_code=3)}, next_allocation="a2")
    second = allocation_line("a2", task_states={"main": ended(failed=False)})
    assert exit_status(FollowResult(0, "", evaluation(job()), [first, second])) == 0


@pytest.mark.parametrize(("run_status", "code"), [("succeeded", 0), ("failed", 7)])
def test_workflow_run_determines_the_exit_status(run_status: str, code: int) -> None:
    step = RunStepView(
        name="a", state=StepState.FAILED, exit_code=7, level=0, needs=[], waits_for=[]
    )
    run = FlowRunView(
        namespace="default",
        job_id="etl",
        number=1,
        version=0,
        status=FlowStatus(run_status),
        steps=[step],
        acts=[],
    )
    line = allocation_line("a1", task_states={"main": ended(exit_code=3)})
    status = 0 if run_status == "succeeded" else 1
    assert exit_status(FollowResult(status, "", evaluation(job()), [line], run)) == code


def test_lines_are_printed_whole() -> None:
    assert list(_whole(iter([b"a", b"b\nc", b"\nd"]))) == [b"ab\n", b"c\n", b"d"]


def test_start_of_an_endless_line_is_not_buffered() -> None:
    pieces = iter([b"a\n" + b"x" * 40_000, b"x" * 40_000, b"y", b"z\n"])
    assert next(read := _whole(pieces)) == b"a\n"
    assert next(read) == b"x" * 80_000
    assert list(read) == [b"yz\n"]
