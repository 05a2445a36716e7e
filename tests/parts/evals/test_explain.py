"""Why what a job lacks is not running: a sentence for each cause."""

import msgspec
import pytest

from daemon.evals.explain import explain
from storage.queries import jobs, periodic
from storage.records.allocation import ClientStatus
from storage.records.base import HOUR, SECOND
from storage.records.explanation import Cause, Reason
from storage.records.group import ReschedulePolicy, Update
from storage.records.job import Job, Parameterized, Periodic
from storage.records.periodic import Slot, SlotOutcome
from storage.records.scope import Constraint
from storage.records.task import Resources
from storage.writer import Transaction
from tests.parts.evals.cluster import Cluster
from tests.samples import NOW, group, job, task
from tests.unit.scheduler.world import small

DELAYED = ReschedulePolicy(delay=30 * SECOND, delay_function="constant", unlimited=True)
ONCE = ReschedulePolicy(attempts=1, interval=HOUR, delay=30 * SECOND, delay_function="constant")


@pytest.fixture
async def full(cluster: Cluster) -> Cluster:
    """A cluster whose only node has room for five of the usual tasks."""
    await cluster.join(small())
    return cluster


async def run(cluster: Cluster, job: Job) -> None:
    await cluster.register(job)
    await cluster.work()


def reasons(cluster: Cluster) -> list[Reason]:
    found = cluster.store.read(lambda db: explain(db, "default", "web"))
    assert found is not None
    return found.reasons


def only(cluster: Cluster, cause: Cause) -> Reason:
    (reason,) = reasons(cluster)
    assert reason.cause == cause
    return reason


async def test_an_unknown_job_has_no_explanation(cluster: Cluster) -> None:
    assert cluster.store.read(lambda db: explain(db, "default", "web")) is None


async def test_of_a_job_that_runs_nothing_is_missing(full: Cluster) -> None:
    await run(full, job("web", group(count=2)))
    await full.run_all()
    assert reasons(full) == []


async def test_too_little_room_is_told_with_amounts(full: Cluster) -> None:
    big = task(resources=Resources(cpu=40, memory_mb=10))
    await run(full, job("web", group("api", big, count=4)))
    await full.run_all()
    reason = only(full, Cause.PLACE)
    assert (reason.task_group, reason.missing) == ("api", 2)
    assert reason.message == (
        "2 allocations not placed, because the only node has too little cpu left; "
        "each needs 40 MHz of cpu, the most that a node has free is 20 MHz"
    )


async def test_a_constraint_that_no_node_meets_is_named(full: Cluster) -> None:
    rule = Constraint(l_target="${meta.zone}", operand="=", r_target="b")
    await run(full, job("web", constraints=[rule]))
    assert only(full, Cause.PLACE).message == (
        "1 allocation not placed, because the only node does not meet ${meta.zone} = b"
    )


async def test_groups_that_are_placed_together_wait_for_each_other(full: Cluster) -> None:
    huge = task(resources=Resources(cpu=4000, memory_mb=10))
    await run(full, job("web", group("a"), group("b", huge), all_at_once=True))
    found = {one.task_group: one.message for one in reasons(full)}
    assert found["a"] == (
        "1 allocation not placed: it is placed together with b, which finds no place"
    )


async def test_what_failed_says_when_it_is_tried_again(full: Cluster) -> None:
    await run(full, job("web", group(reschedule_policy=DELAYED)))
    await full.report(full.wanted()[0], ClientStatus.FAILED)
    await run(full, full.job())
    reason = only(full, Cause.DELAY)
    assert reason.message == "web.web[0] failed once and is placed again at 2026-11-21T01:40:30Z"
    assert (reason.missing, reason.until) == (1, NOW + 30 * SECOND)


async def test_what_failed_too_often_says_so(full: Cluster) -> None:
    await run(full, job("web", group(reschedule_policy=ONCE)))
    await full.report(full.wanted()[0], ClientStatus.FAILED)
    full.wait(31)
    await run(full, full.job())
    await full.report(full.wanted()[0], ClientStatus.FAILED)
    await run(full, full.job())
    assert only(full, Cause.LIMIT).message == (
        "web.web[0] failed 2 times and is not placed again: 1 attempt within 3600s are used up"
    )


async def test_without_a_policy_nothing_is_tried_again(full: Cluster) -> None:
    await run(full, job("web"))
    await full.report(full.wanted()[0], ClientStatus.FAILED)
    assert "its reschedule policy allows no attempt" in only(full, Cause.LIMIT).message


async def test_what_the_scheduler_has_not_seen_waits_for_its_turn(full: Cluster) -> None:
    made = await full.register(job("web", priority=70))
    assert only(full, Cause.TURN).message == (
        f"1 allocation not placed: evaluation {made.id} waits for its turn (priority 70)"
    )


async def test_what_has_a_place_is_starting(full: Cluster) -> None:
    await run(full, job("web"))
    assert only(full, Cause.START).message == "web.web[0] has its place and is starting"


async def test_canaries_that_wait_hold_back_the_rest(full: Cluster) -> None:
    update = Update(max_parallel=1, canary=1, health_check="task_states")
    first = job("web", group(count=2, update=update))
    await run(full, first)
    await full.run_all(healthy=True)
    await full.work()
    changed = group("web", task(env={"A": "2"}), count=2, update=update)
    await run(full, msgspec.structs.replace(first, task_groups=[changed]))
    await full.run_all(healthy=True)
    reason = only(full, Cause.DEPLOYMENT)
    assert reason.missing == 2
    assert reason.message.startswith("2 allocations of an older version not replaced yet: ")
    assert "requires manual promotion" in reason.message


async def test_a_stopped_job_says_so(full: Cluster) -> None:
    await run(full, job("web", stop=True))
    assert only(full, Cause.STOPPED).message == "the job was stopped; run it again to start it"


async def test_a_parameterized_job_waits_to_be_dispatched(full: Cluster) -> None:
    await run(full, job("web", type="batch", parameterized_job=Parameterized()))
    assert only(full, Cause.DISPATCH).missing == 0


async def test_a_periodic_job_says_when_and_why_not(full: Cluster) -> None:
    clocked = job("web", type="batch", periodic=Periodic(enabled=True, spec="@daily"))
    slot = Slot(slot=NOW, decided_at=NOW, outcome=SlotOutcome.SKIPPED, reason="it was late")

    def work(tx: Transaction) -> None:
        jobs.append_version(tx, clocked)
        periodic.advance(tx, "default", "web", followed_to=NOW, next_slot=NOW + HOUR)
        periodic.add_slot(tx, "default", "web", slot)

    await full.store.write(work)
    assert [(one.message, one.until) for one in reasons(full)] == [
        ("its next child is launched at 2026-11-21T02:40:00Z", NOW + HOUR),
        ("the slot of 2026-11-21T01:40:00Z was skipped, because it was late", 0),
    ]


async def test_a_clock_that_is_off_says_so(full: Cluster) -> None:
    off = job("web", type="batch", periodic=Periodic(enabled=False, spec="@daily"))
    await full.store.write(lambda tx: jobs.append_version(tx, off))
    assert only(full, Cause.CLOCK).message == "its clock is off: periodic.enabled is false"
