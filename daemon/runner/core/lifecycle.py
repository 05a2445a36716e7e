"""The start and stop order of the tasks of a group. No I/O.

The rules are Nomad's (source: Nomad's recorded responses `lifecycle-hooks`). Prestart tasks start
first. Main tasks start when all prestart tasks have succeeded and all prestart sidecars are
running. Poststart tasks start when all main tasks have started, poststop tasks when all other tasks
are dead. The other tasks stop when a task fails or when the leader ends. Sidecars stop with the
last main task.
"""

from collections.abc import Iterable, Mapping
from enum import Enum, auto

import msgspec

from storage.records.allocation import ClientStatus, TaskPhase, TaskState
from storage.records.job import JobType
from storage.records.task import Hook, Task
from storage.records.times import nanoseconds

States = Mapping[str, TaskState]


class ShutdownCause(Enum):
    """The reason why the remaining tasks of a group must stop."""

    SIBLING_FAILED = auto()
    LEADER_DEAD = auto()
    MAINS_DEAD = auto()


class GroupShutdown(msgspec.Struct, frozen=True):
    """The decision to stop the remaining tasks of a group; `task` is the task that caused it."""

    why: ShutdownCause
    task: str = ""


def hook(task: Task) -> str:
    """Return the lifecycle hook of a task; empty for main tasks."""
    return task.lifecycle.hook if task.lifecycle else ""


def is_sidecar(task: Task) -> bool:
    """Return whether a task is a sidecar, which runs as long as the main tasks."""
    return bool(task.lifecycle and task.lifecycle.sidecar)


def is_one_shot(job_type: str, task: Task) -> bool:
    """Return whether a task is complete after its first success and must not be restarted."""
    if hook(task):
        return not is_sidecar(task) or hook(task) == Hook.POSTSTOP
    return job_type in {JobType.BATCH, JobType.SYSBATCH}


def may_start(task: Task, tasks: Iterable[Task], states: States) -> bool:
    """Return whether a task may start now, given the states of the other tasks."""
    other_tasks = [other for other in tasks if other.name != task.name]
    match hook(task):
        case Hook.PRESTART:
            return True
        case Hook.POSTSTART:
            return all(_has_started(states[task.name]) for task in other_tasks if not hook(task))
        case Hook.POSTSTOP:
            return all(
                _is_dead(states[task.name]) for task in other_tasks if hook(task) != Hook.POSTSTOP
            )
        case _:
            first = [task for task in other_tasks if hook(task) == Hook.PRESTART]
            return all(_is_out_of_the_way(task, states[task.name]) for task in first)


def _has_started(state: TaskState) -> bool:
    return state.state == TaskPhase.RUNNING or (_is_dead(state) and not state.failed)


def _is_dead(state: TaskState) -> bool:
    return state.state == TaskPhase.DEAD


def _is_out_of_the_way(task: Task, state: TaskState) -> bool:
    if is_sidecar(task):
        return state.state == TaskPhase.RUNNING
    return _is_dead(state) and not state.failed


def group_shutdown_cause(tasks: Iterable[Task], states: States) -> GroupShutdown | None:
    """Return why the running tasks must stop, or None."""
    members = [task for task in tasks if hook(task) != Hook.POSTSTOP]
    dead = [member for member in members if _is_dead(states[member.name])]
    living = [member for member in members if not _is_dead(states[member.name])]
    if not living:
        return None
    if any(member.leader and not states[member.name].failed for member in dead):
        return GroupShutdown(ShutdownCause.LEADER_DEAD)
    if failed := next((member.name for member in dead if states[member.name].failed), None):
        return GroupShutdown(ShutdownCause.SIBLING_FAILED, failed)
    if all(is_sidecar(member) for member in living):
        return GroupShutdown(ShutdownCause.MAINS_DEAD)
    return None


def kill_order(tasks: Iterable[Task]) -> list[list[Task]]:
    """Return the tasks in stop order; tasks in one list stop together."""
    members = [task for task in tasks if hook(task) != Hook.POSTSTOP]
    leaders = [member for member in members if member.leader]
    rest = [member for member in members if not member.leader]
    steps = [
        leaders,
        [member for member in rest if not is_sidecar(member)],
        [member for member in rest if is_sidecar(member)],
    ]
    return [step for step in steps if step]


def first_start_time(states: Iterable[TaskState]) -> int | None:
    """Return the earliest start time of the tasks in nanoseconds; None if none has started."""
    return min(
        (nanoseconds(state.started_at) for state in states if state.started_at), default=None
    )


def client_status(states: Iterable[TaskState]) -> tuple[ClientStatus, str]:
    """Return the status and the description of an allocation.

    The status is failed only when no task is running: until then the allocation holds its
    resources. Source: Nomad's recorded responses `task-events`.
    """
    states = list(states)
    phases = {state.state for state in states}
    if TaskPhase.RUNNING in phases:
        return ClientStatus.RUNNING, "Tasks are running"
    if TaskPhase.PENDING in phases:
        return ClientStatus.PENDING, "No tasks have started"
    if any(state.failed for state in states):
        return ClientStatus.FAILED, "Failed tasks"
    return ClientStatus.COMPLETE, "All tasks have completed"
