"""The progress of a workflow: a line for each step that changed, and no other."""

import pytest

from daemon.cli.core.flow_runs import step_row
from daemon.cli.core.output import ProgressDisplay
from storage.records.flow import RunStepView, StepState


def step(name: str, state: StepState, *, good: int = 0, total: int = 1) -> RunStepView:
    return RunStepView(
        name=name,
        state=state,
        attempt=1,
        outcome=None,
        since=0,
        good=good,
        total=total,
        level=1,
        needs=[],
        waits_for=["plan"] if state == StepState.WAITING else [],
    )


def test_only_changed_steps_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    display = ProgressDisplay()
    plan, load = step("plan", StepState.RUNNING), step("load", StepState.WAITING, total=3)
    display.show([step_row(plan), step_row(load)])
    display.show([step_row(plan), step_row(load)])
    load = step("load", StepState.RUNNING, good=2, total=3)
    display.show([step_row(plan), step_row(load)])
    assert capsys.readouterr().out == (
        "step  plan  running\nstep  load  waiting  0/3  waits for plan\nstep  load  running  2/3\n"
    )
