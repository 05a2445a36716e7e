"""The order of the tasks of a group: who may start when, and who goes when another ends. Pure.

golden: lifecycle-hooks. Prestart tasks come first; main tasks when those have ended well, or run
beside; poststart tasks when all mains run; poststop tasks when everything else has ended. A task
that fails takes the others along, so does a leader that ends; sidecars go with the last main.
"""

from collections.abc import Iterable, Mapping
from enum import Enum, auto

import msgspec

from storage.records.allocation import ClientStatus, TaskPhase, TaskState
from storage.records.job import JobType
from storage.records.task import Hook, Task
from storage.records.times import nanoseconds

States = Mapping[str, TaskState]


class Why(Enum):
    """Why the rest of a group has to go."""

    SIBLING_FAILED = auto()
    LEADER_DEAD = auto()
    MAINS_DEAD = auto()


class Departure(msgspec.Struct, frozen=True):
    """The rest of a group has to go, because of `task`."""

    why: Why
    task: str = ""


def hook(task: Task) -> str:
    """Return when a task runs, relative to the main tasks; nothing for those."""
    return task.lifecycle.hook if task.lifecycle else ""


def is_sidecar(task: Task) -> bool:
    """Tell whether a task accompanies the main tasks as long as they run."""
    return bool(task.lifecycle and task.lifecycle.sidecar)


def runs_once(job_type: str, task: Task) -> bool:
    """Tell whether a task has done its work when it ends well, so that it is not started again."""
    if hook(task):
        return not is_sidecar(task) or hook(task) == Hook.POSTSTOP
    return job_type in {JobType.BATCH, JobType.SYSBATCH}


def may_start(task: Task, tasks: Iterable[Task], states: States) -> bool:
    """Tell whether it is a task's turn."""
    others = [one for one in tasks if one.name != task.name]
    match hook(task):
        case Hook.PRESTART:
            return True
        case Hook.POSTSTART:
            return all(_has_started(states[one.name]) for one in others if not hook(one))
        case Hook.POSTSTOP:
            return all(_is_dead(states[one.name]) for one in others if hook(one) != Hook.POSTSTOP)
        case _:
            first = [one for one in others if hook(one) == Hook.PRESTART]
            return all(_is_out_of_the_way(one, states[one.name]) for one in first)


def _has_started(state: TaskState) -> bool:
    return state.state == TaskPhase.RUNNING or (_is_dead(state) and not state.failed)


def _is_dead(state: TaskState) -> bool:
    return state.state == TaskPhase.DEAD


def _is_out_of_the_way(task: Task, state: TaskState) -> bool:
    if is_sidecar(task):
        return state.state == TaskPhase.RUNNING
    return _is_dead(state) and not state.failed


def departure(tasks: Iterable[Task], states: States) -> Departure | None:
    """Return why the tasks that still live have to go, if they have to."""
    members = [one for one in tasks if hook(one) != Hook.POSTSTOP]
    dead = [one for one in members if _is_dead(states[one.name])]
    living = [one for one in members if not _is_dead(states[one.name])]
    if not living:
        return None
    if any(one.leader and not states[one.name].failed for one in dead):
        return Departure(Why.LEADER_DEAD)
    if failed := next((one.name for one in dead if states[one.name].failed), None):
        return Departure(Why.SIBLING_FAILED, failed)
    if all(is_sidecar(one) for one in living):
        return Departure(Why.MAINS_DEAD)
    return None


def order_of_killing(tasks: Iterable[Task]) -> list[list[Task]]:
    """Return the tasks in the order in which they are ended, those of one step together."""
    members = [one for one in tasks if hook(one) != Hook.POSTSTOP]
    leaders = [one for one in members if one.leader]
    rest = [one for one in members if not one.leader]
    steps = [
        leaders,
        [one for one in rest if not is_sidecar(one)],
        [one for one in rest if is_sidecar(one)],
    ]
    return [step for step in steps if step]


def first_start(states: Iterable[TaskState]) -> int | None:
    """Return when the first of these tasks began, nanoseconds; None: none has."""
    return min((nanoseconds(one.started_at) for one in states if one.started_at), default=None)


def client_status(states: Iterable[TaskState]) -> tuple[ClientStatus, str]:
    """Return what an allocation is doing, and the same in words (golden: task-events).

    It has failed only when nothing of it runs any more: until then it holds its resources.
    """
    states = list(states)
    phases = {one.state for one in states}
    if TaskPhase.RUNNING in phases:
        return ClientStatus.RUNNING, "Tasks are running"
    if TaskPhase.PENDING in phases:
        return ClientStatus.PENDING, "No tasks have started"
    if any(one.failed for one in states):
        return ClientStatus.FAILED, "Failed tasks"
    return ClientStatus.COMPLETE, "All tasks have completed"
