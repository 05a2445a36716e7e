"""The newest error of an allocation or job: root cause, exit code and last error lines."""

import signal
from collections.abc import Iterator

import msgspec

from daemon.text.task_failure import (
    ERRORS,
    RESTARTING,
    STARTED,
    WAITS,
    is_on_request,
    sentence,
    why_unhealthy,
)
from storage.queries import allocations, runs, tallies
from storage.read_pool import ReadSnapshot
from storage.records.allocation import (
    TIME_LIMIT_EVENT,
    Allocation,
    ClientStatus,
    StoredTaskEvent,
    TaskPhase,
)
from storage.records.deployment import Deployment
from storage.records.failure import TaskError
from storage.records.flow import FlowStatus

_TERMINATED = "Terminated"
_KILLED = frozenset({"Killing", "Killed"})


def newest_error(db: ReadSnapshot, namespace: str, job_id: str) -> TaskError | None:
    """Return the newest error of the allocations of a job, or None.

    For a workflow whose run failed, only steps with the outcome `bad` count.
    """
    run = runs.newest(db, namespace, job_id)
    if run is not None and run.status == FlowStatus.FAILED:
        return _error_of(db, tallies.newest_failed_of_run(db, run))
    ids = [
        *(tally.id for tally in tallies.restarted(db, namespace, job_id, version=-1, most=1)),
        tallies.newest_failed(db, namespace, job_id),
        tallies.any_pending(db, namespace, job_id),
    ]
    errors = filter(None, (_error_of(db, identifier) for identifier in ids))
    return max(errors, key=lambda error: error.time, default=None)


def _error_of(db: ReadSnapshot, alloc_id: str | None) -> TaskError | None:
    allocation = allocations.find(db, alloc_id) if alloc_id else None
    return of_allocation(db, allocation) if allocation is not None else None


def of_allocation(db: ReadSnapshot, allocation: Allocation) -> TaskError | None:
    """Return the error that made an allocation fail, or None.

    This is the error of the task that failed first. If no task failed, it is the newest error. If
    the allocation exceeded its time limit, only errors about this limit count.
    """
    task_errors = list(_errors(db, allocation))
    if allocation.is_overtime:
        limits = [error for error in task_errors if error.kind == TIME_LIMIT_EVENT]
        return min(limits, key=lambda error: error.time, default=None)
    # The task that failed first is the cause. Because of it, Steward stopped the other tasks of the
    # group. Poststop tasks only ran afterwards.
    states = allocation.client.task_states or {}
    failed = [error for error in task_errors if states[error.task].failed]
    if failed:
        return min(failed, key=lambda error: error.time)
    return max(task_errors, key=lambda error: (error.fails_task, error.time), default=None)


def unhealthy_reason(db: ReadSnapshot, allocation: Allocation) -> str:
    """Return why an allocation became unhealthy in its deployment; empty if that is unknown."""
    if allocation.health is None or allocation.health.healthy is not False:
        return ""
    names = allocation.client.task_states or {}
    return why_unhealthy(
        {name: allocations.newest_events(db, allocation.id, name) for name in names}
    )


def unhealthy_reason_of_deployment(db: ReadSnapshot, deployment: Deployment) -> str:
    """Return why an allocation of a deployment is unhealthy; empty if none is unhealthy."""
    if not any(group.unhealthy_allocs for group in deployment.task_groups.values()):
        return ""
    allocs = allocations.readable_of_deployment(db, deployment.id)
    return next(filter(None, (unhealthy_reason(db, alloc) for alloc in allocs)), "")


def _errors(db: ReadSnapshot, allocation: Allocation) -> Iterator[TaskError]:
    for name, state in (allocation.client.task_states or {}).items():
        events = allocations.newest_stored_events(db, allocation.id, name)
        newest = _newest(
            events,
            waits=state.state == TaskPhase.PENDING or state.failed,
            is_complete=allocation.client_status == ClientStatus.COMPLETE,
        )
        if allocation.is_overtime:
            newest = next((event for event in events if event.type == TIME_LIMIT_EVENT), newest)
        if newest is not None:
            error = TaskError(
                allocation_id=allocation.id,
                task_group=allocation.task_group,
                task=name,
                time=newest.time,
                kind=newest.type,
                message=_message(newest),
                exit_code=newest.exit_code,
                signal=_signal_name(newest.signal),
                oom_killed=newest.details.get("oom_killed") == "true",
                restarts=state.restarts,
                stderr=newest.steward_stderr,
                stderr_end=newest.steward_log_ends.get("stderr", 0),
                fails_task=state.failed or state.state == TaskPhase.PENDING,
            )
            yield msgspec.structs.replace(error, summary=sentence(error))


def _newest(
    events: list[StoredTaskEvent], *, waits: bool, is_complete: bool
) -> StoredTaskEvent | None:
    """Return the newest error event.

    With `waits`, the reason why an attempt has not started (such as a failed template) also counts.
    Events before a requested stop do not count, and neither does exit code 0 of a task whose
    allocation is complete. The end of an attempt before a restart on request does not count either.
    """
    is_wanted_end = False
    for event in reversed(events):
        if event.type == RESTARTING:
            is_wanted_end = is_on_request(event)
        elif event.type == _TERMINATED and is_wanted_end:
            is_wanted_end = False
            continue
        waits = waits and event.type != STARTED
        if event.type in ERRORS or (waits and event.type in WAITS):
            return event
        if event.type == _TERMINATED:
            is_wanted = is_complete or any(
                task_event.type in _KILLED for task_event in events if task_event.time <= event.time
            )
            return event if event.exit_code or event.signal or not is_wanted else None
    return None


def _message(event: StoredTaskEvent) -> str:
    return event.message if event.type == _TERMINATED else event.display_message


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name if number else ""
    except ValueError:  # a real-time signal
        return f"signal {number}"
