import msgspec
import pytest

from daemon.runner.alloc.alloc_health import (
    HealthCriteria,
    can_no_longer_succeed,
    has_failed,
    health_criteria,
    unhealthy_reasons,
    up_since,
)
from storage.records.allocation import DeploymentHealth, TaskState
from storage.records.base import MINUTE, SECOND
from storage.records.group import Update
from storage.records.task import Lifecycle, Task
from storage.records.times import rfc3339
from tests import samples
from tests.samples import NOW
from tests.unit.runner.placements import placed

MAIN = samples.task("main")
PRE = samples.task("pre", lifecycle=Lifecycle(hook="prestart"))
END = samples.task("end", lifecycle=Lifecycle(hook="poststop"))
EARLY, LATE = rfc3339(NOW), rfc3339(NOW + SECOND)
RULE = HealthCriteria(2 * SECOND, 4 * SECOND, for_deployment=True, by_checks=False)


def running(since: str) -> TaskState:
    return TaskState(state="running", started_at=since)


PENDING = TaskState()
DEAD = TaskState(state="dead", started_at=EARLY)
FAILED = TaskState(state="dead", failed=True)


def found_rule(job_type: str, update: Update | None, **fields: object) -> HealthCriteria | None:
    group = samples.group("web", MAIN, update=update)
    job = samples.job("j", group, type=job_type)
    return health_criteria(
        job_type, group, msgspec.structs.replace(placed(job, "n", "a"), **fields)
    )


def test_deployment_health_follows_the_update_block() -> None:
    update = Update(health_check="checks", min_healthy_time=SECOND, healthy_deadline=MINUTE)
    found = found_rule("service", update, deployment_id="d")
    assert found == HealthCriteria(SECOND, MINUTE, for_deployment=True, by_checks=True)


def test_service_without_a_deployment_uses_the_migrate_times() -> None:
    assert found_rule("service", None) == HealthCriteria(
        10 * SECOND, 5 * MINUTE, for_deployment=False, by_checks=True
    )


@pytest.mark.parametrize(
    ("job_type", "update", "fields"),
    [
        ("batch", None, {}),
        ("system", None, {}),
        ("service", Update(health_check="manual"), {"deployment_id": "d"}),
        ("service", None, {"health": DeploymentHealth(healthy=True)}),
    ],
)
def test_other_allocations_have_no_health_criteria(
    job_type: str, update: Update | None, fields: dict[str, object]
) -> None:
    assert found_rule(job_type, update, **fields) is None


@pytest.mark.parametrize(
    ("tasks", "states", "doomed"),
    [
        ([MAIN], {"main": running(EARLY)}, False),
        ([MAIN], {"main": DEAD}, True),
        ([MAIN, PRE], {"main": PENDING, "pre": DEAD}, False),
        ([MAIN, PRE], {"main": PENDING, "pre": FAILED}, True),
        ([MAIN, END], {"main": running(EARLY), "end": PENDING}, False),
    ],
)
def test_allocation_cannot_become_healthy_after_an_unexpected_end(
    tasks: list[Task], states: dict[str, TaskState], doomed: bool
) -> None:
    assert can_no_longer_succeed(tasks, states) is doomed


@pytest.mark.parametrize(
    ("tasks", "states", "since"),
    [
        ([MAIN, samples.task("b")], {"main": running(EARLY), "b": running(LATE)}, LATE),
        ([MAIN, samples.task("b")], {"main": running(EARLY), "b": PENDING}, None),
        ([MAIN, PRE], {"main": running(EARLY), "pre": DEAD}, EARLY),
        ([MAIN, PRE], {"main": running(EARLY), "pre": running(LATE)}, LATE),
        ([MAIN, END], {"main": running(EARLY), "end": PENDING}, EARLY),
    ],
)
def test_allocation_is_running_since_the_start_of_its_last_task(
    tasks: list[Task], states: dict[str, TaskState], since: str | None
) -> None:
    assert up_since(tasks, states) == since


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (PENDING, "Task not running by healthy_deadline of 4s"),
        (running(EARLY), "Task not running for min_healthy_time of 2s by healthy_deadline of 4s"),
        (FAILED, "Unhealthy because of failed task"),
    ],
)
def test_task_has_the_reason_of_its_missing_health(state: TaskState, text: str) -> None:
    assert unhealthy_reasons([MAIN], {"main": state}, RULE, NOW + SECOND) == {"main": text}


def test_task_that_ran_for_the_minimum_time_has_no_reason() -> None:
    assert unhealthy_reasons([MAIN], {"main": running(EARLY)}, RULE, NOW + 3 * SECOND) == {}


@pytest.mark.parametrize(
    ("deployment_id", "state", "failed"),
    [("d", FAILED, True), ("", FAILED, False), ("d", DEAD, False)],
)
def test_deployment_is_notified_of_a_failure_with_manual_health(
    deployment_id: str, state: TaskState, failed: bool
) -> None:
    job = samples.job("j", samples.group("web", MAIN))
    allocation = msgspec.structs.replace(placed(job, "n", "a"), deployment_id=deployment_id)
    assert has_failed(allocation, {"main": state}) is failed
