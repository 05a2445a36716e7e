"""The health of an allocation, as deployments count it. No I/O.

The rules are Nomad's (source: Nomad's recorded responses `deploy-no-stable`, `restart-policy`). An
allocation is healthy when all its tasks have run for a minimum time without a restart. It is
unhealthy when a deadline passes before that, or when a task has ended permanently. Health is
tracked for all allocations of service jobs, and for all allocations of a deployment.
"""

from collections.abc import Iterable, Mapping

import msgspec

from daemon.runner.core.lifecycle import hook, is_sidecar
from storage.records import durations
from storage.records.allocation import Allocation, TaskPhase, TaskState
from storage.records.base import SECOND
from storage.records.group import Migrate, TaskGroup
from storage.records.job import JobType
from storage.records.service import OWN_OUTPUT, CheckResult, CheckStatus
from storage.records.task import Hook, Task
from storage.records.times import nanoseconds

_BY_HAND = "manual"
_BY_CHECKS = "checks"
UNHEALTHY_SERVICES = "Services not healthy by deadline"
_MOST_CHECKS = 5  # failing checks named in a reason


class HealthCriteria(msgspec.Struct, frozen=True):
    """The minimum healthy time and the deadline, both in nanoseconds.

    If `for_deployment` is false, the reasons why tasks are unhealthy are not recorded. If
    `by_checks` is true, the service checks must also pass.
    """

    min_healthy_time: int
    deadline: int
    for_deployment: bool
    by_checks: bool


def health_criteria(
    job_type: str, group: TaskGroup, allocation: Allocation
) -> HealthCriteria | None:
    """Return the health criteria of an allocation.

    Return None if the health of the allocation is not tracked or is already decided.
    """
    if allocation.health is not None and allocation.health.healthy is not None:
        return None
    if allocation.deployment_id:
        update = group.update
        if update is None or update.health_check == _BY_HAND:
            return None
        return HealthCriteria(
            update.min_healthy_time,
            update.healthy_deadline,
            for_deployment=True,
            by_checks=update.health_check == _BY_CHECKS,
        )
    if job_type != JobType.SERVICE:
        return None
    migrate = group.migrate or Migrate()
    return HealthCriteria(
        migrate.min_healthy_time,
        migrate.healthy_deadline,
        for_deployment=False,
        by_checks=migrate.health_check == _BY_CHECKS,
    )


def can_no_longer_succeed(tasks: Iterable[Task], states: Mapping[str, TaskState]) -> bool:
    """Return whether the allocation can no longer become healthy."""
    return any(
        states[task.name].failed or (_is_dead(states[task.name]) and _should_run(task))
        for task in tasks
    )


def has_failed(allocation: Allocation, states: Mapping[str, TaskState]) -> bool:
    """Return whether a deployment counts the allocation as failed.

    The result does not depend on the allocation's health, which a user may have set.
    """
    return bool(allocation.deployment_id) and any(state.failed for state in states.values())


def up_since(tasks: Iterable[Task], states: Mapping[str, TaskState]) -> str | None:
    """Return the timestamp at which the last task started; None unless all tasks are running."""
    counted = [task for task in tasks if hook(task) != Hook.POSTSTOP]
    running = [states[task.name] for task in counted if not _has_done_its_part(task, states)]
    if any(state.state != TaskPhase.RUNNING for state in running):
        return None
    return max((state.started_at or "" for state in running), default="")


def unhealthy_reasons(
    tasks: Iterable[Task], states: Mapping[str, TaskState], rule: HealthCriteria, now: int
) -> dict[str, str]:
    """Return the reasons, by task name, why tasks are not healthy at the deadline."""
    reasons = {}
    for task in tasks:
        if hook(task) != Hook.POSTSTOP and (text := _complaint(states[task.name], rule, now)):
            reasons[task.name] = text
    return reasons


def failing_checks(task: str, failing: Iterable[CheckResult]) -> str:
    """Return a text that lists the failing checks of a task; empty if all checks pass."""
    checks = [result for result in failing if result.task in ("", task)]
    return "; ".join(map(_of_check, checks[:_MOST_CHECKS]))


def _of_check(result: CheckResult) -> str:
    how = "has no result"
    if result.status == CheckStatus.FAILURE:
        how = f"fails{_cause_of(result)}"
    return f'check "{result.check}" of service "{result.service}" {how}'


def _cause_of(result: CheckResult) -> str:
    """Return the status that a check got, or else Steward's own message about the failure."""
    if result.status_code:
        return f" with status {result.status_code}"
    message = result.output.removeprefix(OWN_OUTPUT)
    return f": {message}" if message != result.output else ""


def _complaint(state: TaskState, rule: HealthCriteria, now: int) -> str:
    deadline, least = durations.text(rule.deadline), durations.text(rule.min_healthy_time)
    if state.failed:
        return "Unhealthy because of failed task"
    if state.state == TaskPhase.PENDING:
        return f"Task not running by healthy_deadline of {deadline}"
    started = nanoseconds(state.started_at) if state.started_at else now
    if state.state == TaskPhase.RUNNING and now - started < rule.min_healthy_time:
        return f"Task not running for min_healthy_time of {least} by healthy_deadline of {deadline}"
    return UNHEALTHY_SERVICES if rule.by_checks else ""


def _is_dead(state: TaskState) -> bool:
    return state.state == TaskPhase.DEAD


def _should_run(task: Task) -> bool:
    """Return whether a task should run until its allocation ends."""
    return not hook(task) or (is_sidecar(task) and hook(task) != Hook.POSTSTOP)


def _has_done_its_part(task: Task, states: Mapping[str, TaskState]) -> bool:
    return not _should_run(task) and _is_dead(states[task.name])


def seconds(span: int) -> float:
    """Convert a duration from nanoseconds to seconds."""
    return span / SECOND
