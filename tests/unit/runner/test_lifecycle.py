from collections.abc import Mapping

import pytest

from daemon.runner.core.lifecycle import (
    GroupShutdown,
    ShutdownCause,
    client_status,
    group_shutdown_cause,
    is_one_shot,
    kill_order,
    may_start,
)
from storage.records.allocation import TaskState
from storage.records.task import Lifecycle, Task
from tests import samples

PENDING = TaskState(state="pending")
RUNNING = TaskState(state="running")
DONE = TaskState(state="dead")
FAILED = TaskState(state="dead", failed=True)

MAIN = samples.task("main")
PRE = samples.task("pre", lifecycle=Lifecycle(hook="prestart"))
SIDE = samples.task("side", lifecycle=Lifecycle(hook="prestart", sidecar=True))
POST = samples.task("post", lifecycle=Lifecycle(hook="poststart"))
END = samples.task("end", lifecycle=Lifecycle(hook="poststop"))
LEAD = samples.task("lead", leader=True)
TASKS = [MAIN, PRE, SIDE, POST, END]


def states(**task_state: TaskState) -> Mapping[str, TaskState]:
    return {**{task.name: PENDING for task in [*TASKS, LEAD]}, **task_state}


@pytest.mark.parametrize(
    ("task", "present", "may"),
    [
        (PRE, {}, True),
        (SIDE, {}, True),
        (MAIN, {}, False),
        (MAIN, {"pre": DONE}, False),
        (MAIN, {"pre": RUNNING, "side": RUNNING}, False),
        (MAIN, {"pre": FAILED, "side": RUNNING}, False),
        (MAIN, {"pre": DONE, "side": RUNNING}, True),
        (POST, {"pre": DONE, "side": RUNNING}, False),
        (POST, {"main": RUNNING}, True),
        (POST, {"main": DONE}, True),
        (POST, {"main": FAILED}, False),
        (END, {"main": DONE, "pre": DONE, "post": DONE, "side": RUNNING}, False),
        (END, {"main": FAILED, "pre": DONE, "post": DONE, "side": DONE}, True),
    ],
)
def test_task_starts_when_its_predecessors_are_in_their_required_state(
    task: Task, present: dict[str, TaskState], may: bool
) -> None:
    assert may_start(task, TASKS, states(**present)) is may


@pytest.mark.parametrize(
    ("tasks", "present", "expected"),
    [
        ([MAIN], {"main": RUNNING}, None),
        ([MAIN, PRE], {"main": PENDING, "pre": DONE}, None),
        (
            [MAIN, PRE],
            {"main": PENDING, "pre": FAILED},
            GroupShutdown(ShutdownCause.SIBLING_FAILED, "pre"),
        ),
        ([MAIN, LEAD], {"main": RUNNING, "lead": DONE}, GroupShutdown(ShutdownCause.LEADER_DEAD)),
        (
            [MAIN, LEAD],
            {"main": RUNNING, "lead": FAILED},
            GroupShutdown(ShutdownCause.SIBLING_FAILED, "lead"),
        ),
        ([MAIN, SIDE], {"main": DONE, "side": RUNNING}, GroupShutdown(ShutdownCause.MAINS_DEAD)),
        ([MAIN, SIDE], {"main": DONE, "side": DONE}, None),
        ([MAIN, END], {"main": FAILED, "end": RUNNING}, None),
    ],
)
def test_remaining_tasks_of_a_group_are_stopped_when_required(
    tasks: list[Task], present: dict[str, TaskState], expected: GroupShutdown | None
) -> None:
    assert group_shutdown_cause(tasks, states(**present)) == expected


def test_leaders_are_killed_first_sidecars_last_and_poststop_tasks_never() -> None:
    names = [[task.name for task in step] for step in kill_order([*TASKS, LEAD])]
    assert names == [["lead"], ["main", "pre", "post"], ["side"]]


@pytest.mark.parametrize(
    ("job_type", "task", "once"),
    [
        ("batch", MAIN, True),
        ("sysbatch", MAIN, True),
        ("service", MAIN, False),
        ("system", MAIN, False),
        ("service", PRE, True),
        ("batch", SIDE, False),
        ("service", END, True),
    ],
)
def test_success_ends_one_shot_tasks(job_type: str, task: Task, once: bool) -> None:
    assert is_one_shot(job_type, task) is once


@pytest.mark.parametrize(
    ("present", "expected"),
    [
        ([PENDING], ("pending", "No tasks have started")),
        ([RUNNING, PENDING], ("running", "Tasks are running")),
        ([FAILED, RUNNING], ("running", "Tasks are running")),
        ([DONE, FAILED], ("failed", "Failed tasks")),
        ([DONE, DONE], ("complete", "All tasks have completed")),
    ],
)
def test_status_of_an_allocation_follows_from_its_tasks(
    present: list[TaskState], expected: tuple[str, str]
) -> None:
    assert client_status(present) == expected
