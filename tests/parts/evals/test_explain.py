"""The reasons why a job has too few running allocations: a sentence for each cause."""

from typing import Any

import msgspec
import pytest

from daemon.evals import deployment_actions
from daemon.evals.explain import explain_job, next_retry
from daemon.evals.scheduler_config import configure
from daemon.runner.core import task_events
from storage.queries import allocated_resources, allocations, jobs, periodic
from storage.records.allocation import Allocation, ClientStatus, TaskState
from storage.records.base import HOUR, SECOND
from storage.records.constraints import Constraint
from storage.records.explanation import Cause, Reason
from storage.records.group import EphemeralDisk, ReschedulePolicy, TaskGroup, Update, Volume
from storage.records.job import Job, Parameterized, Periodic
from storage.records.node import NodeCPU, NodeStatus
from storage.records.operator_api import PreemptionConfig, SchedulerConfig
from storage.records.periodic import Slot, SlotOutcome
from storage.records.task import Device, Network, Port, Resources, Task
from storage.writer import Transaction
from tests.parts.evals.cluster import Cluster
from tests.samples import NOW, group, job, task
from tests.unit.scheduler.world import ROLLING, node, resources, small

DELAYED = ReschedulePolicy(delay=30 * SECOND, delay_function="constant", unlimited=True)
ONCE = ReschedulePolicy(attempts=1, interval=HOUR, delay=30 * SECOND, delay_function="constant")


@pytest.fixture
async def full(cluster: Cluster) -> Cluster:
    """A cluster whose only node has capacity for five default tasks."""
    await cluster.join(small())
    return cluster


async def run(cluster: Cluster, job: Job) -> None:
    await cluster.register(job)
    await cluster.work()


def reasons(cluster: Cluster) -> list[Reason]:
    found = cluster.store.read(lambda db: explain_job(db, "default", "web"))
    assert found is not None
    return found.reasons


def only(cluster: Cluster, cause: Cause) -> Reason:
    (reason,) = reasons(cluster)
    assert reason.cause == cause
    return reason


async def test_an_unknown_job_has_no_explanation(cluster: Cluster) -> None:
    assert cluster.store.read(lambda db: explain_job(db, "default", "web")) is None


async def test_running_job_lacks_no_allocations(full: Cluster) -> None:
    await run(full, job("web", group(count=2)))
    await full.run_all()
    assert reasons(full) == []
    found = full.store.read(lambda db: explain_job(db, "default", "web"))
    assert found is not None
    assert found.running == 2


async def test_insufficient_capacity_is_reported_with_amounts(full: Cluster) -> None:
    big = task(resources=Resources(cpu=40, memory_mb=10))
    await run(full, job("web", group("api", big, count=4)))
    await full.run_all()
    reason = only(full, Cause.PLACE)
    assert (reason.task_group, reason.missing) == ("api", 2)
    assert reason.message == (
        "2 allocations not placed, because the only node has too little cpu left; "
        "each needs 40 MHz of cpu, and a node has at most 20 MHz free"
    )


async def test_constraint_without_a_feasible_node_is_named(full: Cluster) -> None:
    rule = Constraint(l_target="${meta.zone}", operand="=", r_target="b")
    await run(full, job("web", constraints=[rule]))
    assert only(full, Cause.PLACE).message == (
        "1 allocation not placed, because the only node does not meet ${meta.zone} = b; "
        "node-1 has a"
    )


async def test_a_constraint_is_reported_with_the_value_of_the_node(full: Cluster) -> None:
    rule = Constraint(l_target="${attr.kernel.name}", operand="=", r_target="plan9")
    await run(full, job("web", group(constraints=[rule])))
    message = only(full, Cause.PLACE).message
    assert message.startswith(
        "1 allocation not placed, because the only node does not meet ${attr.kernel.name} = plan9; "
    )
    assert message.endswith(" has linux")


HOST = node(
    node_resources=resources(
        cpu=NodeCPU(cpu_shares=1000, total_cpu_cores=4, reservable_cpu_cores=[0, 1, 2, 3])
    )
)
WEB = [Network(mode="host", reserved_ports=[Port(label="web", value=8080)])]


def asking(**needs: Any) -> Task:
    return task(resources=Resources(**{"cpu": 10, "memory_mb": 10, **needs}))


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (
            group("web", asking(memory_mb=99_999)),
            "the only node has too little memory left; each needs 99999 MiB of memory, "
            "and a node has at most 24105 MiB free",
        ),
        (
            group("web", ephemeral_disk=EphemeralDisk(size_mb=999_999)),
            "the only node has too little disk left; each needs 999999 MiB of disk, "
            "and a node has at most 258019 MiB free",
        ),
        (
            group("web", asking(cpu=0, cores=5)),
            "the only node has too few free cores; each needs 5 cores, "
            "and a node has at most 4 cores free",
        ),
        (
            group("web", asking(devices=[Device(name="acme/gpu", count=2)])),
            "the only node lacks a device that its tasks need; it asks for 2 of acme/gpu",
        ),
        (
            group("web", task(driver="podman")),
            "the only node lacks a driver of its tasks; it asks for podman",
        ),
        (
            group("web", volumes={"v": Volume(name="v", type="host", source="data")}),
            "the only node lacks a host volume that it needs; it asks for data",
        ),
    ],
)
async def test_missing_resource_is_named(cluster: Cluster, wanted: TaskGroup, found: str) -> None:
    await cluster.join(HOST)
    await run(cluster, job("web", wanted))
    assert only(cluster, Cause.PLACE).message == f"1 allocation not placed, because {found}"


@pytest.mark.parametrize(
    ("namespace", "who"), [("default", 'job "other"'), ("ops", "another namespace")]
)
async def test_holder_of_a_port_is_named_within_a_namespace(
    cluster: Cluster, namespace: str, who: str
) -> None:
    await cluster.join(HOST)
    await cluster.register(job("other", group(networks=WEB), namespace=namespace))
    await cluster.work()
    await run(cluster, job("web", group(networks=WEB)))
    (holder,) = cluster.store.read(lambda db: allocated_resources.of_port(db, HOST.id, 8080))
    assert only(cluster, Cause.PLACE).message == (
        "1 allocation not placed, because the only node has a port in use (reserved port collision "
        f"web=8080); port 8080 is held by allocation {holder.id[:8]} of {who}"
    )


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (
            {"scheduling_eligibility": "ineligible"},
            'node "node-1" is ineligible for placements; make it eligible with: '
            "steward node eligibility -enable node-1",
        ),
        (
            {"drain": True, "scheduling_eligibility": "ineligible"},
            'node "node-1" is being drained; cancel the drain with: steward node drain -disable node-1',
        ),
        ({"status": NodeStatus.DOWN}, 'node "node-1" is down'),
        (
            {"datacenter": "dc9"},
            'node "node-1" is in datacenter dc9, not in one of the job (dc1, dc2)',
        ),
        ({"node_pool": "gpu"}, 'no node is in pool "default"'),
    ],
)
async def test_ineligible_node_has_a_reason(
    cluster: Cluster, changed: dict[str, Any], why: str
) -> None:
    await cluster.join(node(**changed))
    await run(cluster, job("web", datacenters=["dc1", "dc2"]))
    assert only(cluster, Cause.NODE).message == f"1 allocation not placed, because {why}"


async def make_room(full: Cluster) -> None:
    """Preempt an allocation of the job `low` for the job `web`."""
    preemption_config = PreemptionConfig(service_scheduler_enabled=True)
    await configure(full.store, SchedulerConfig(preemption_config=preemption_config))
    await run(full, job("low", group("web", asking(cpu=80)), priority=20))
    await full.run_all(job_id="low")
    await run(full, job("web", group("web", asking(cpu=60)), priority=80))


async def test_preempted_allocation_no_longer_desired_has_no_reason(full: Cluster) -> None:
    await make_room(full)
    await run(full, job("low", group("web", asking(cpu=80), count=0), priority=20))
    found = full.store.read(lambda db: explain_job(db, "default", "low"))
    assert found is not None
    assert found.reasons == []


async def test_preempted_and_preempting_jobs_are_explained(
    full: Cluster,
) -> None:
    await make_room(full)
    assert only(full, Cause.START).message == (
        "web.web[0] is placed and starts after the end of 1 earlier allocation"
    )
    found = full.store.read(lambda db: explain_job(db, "default", "low"))
    assert found is not None
    assert [(reason.cause, reason.message) for reason in found.reasons] == [
        (Cause.PREEMPTED, 'low.web[0] was preempted by job "web", which has a higher priority'),
        (
            Cause.PLACE,
            "1 allocation not placed, because the only node has too little cpu left; "
            "each needs 80 MHz of cpu, and a node has at most 0 MHz free",
        ),
    ]
    await full.run_all(job_id="low")
    await full.report(full.wanted()[0], ClientStatus.COMPLETE)
    await full.work()
    await full.run_all(job_id="low")
    after = full.store.read(lambda db: explain_job(db, "default", "low"))
    assert after is not None
    assert after.reasons == []


async def test_preemption_by_a_deleted_allocation_names_no_job(full: Cluster) -> None:
    await make_room(full)
    (by,) = full.wanted()
    await full.store.write(
        lambda tx: tx.execute("DELETE FROM allocations WHERE id = :id", {"id": by.id})
    )
    found = full.store.read(lambda db: explain_job(db, "default", "low"))
    assert found is not None
    assert (
        found.reasons[0].message
        == "low.web[0] was preempted by another job, which has a higher priority"
    )


@pytest.mark.parametrize("kind", ["system", "sysbatch"])
async def test_system_allocations_are_never_rescheduled(full: Cluster, kind: str) -> None:
    await run(full, job("web", type=kind))
    await full.report(full.wanted()[0], ClientStatus.FAILED)
    assert only(full, Cause.LIMIT).message == (
        f"web.web[0] failed once and is not placed again: {kind} jobs are never rescheduled"
    )


async def test_rollout_is_explained_with_its_condition_and_deadline(full: Cluster) -> None:
    update = Update(max_parallel=1, health_check="task_states", progress_deadline=600 * SECOND)
    first = job("web", group(count=2, update=update))
    await run(full, first)
    await full.run_all(healthy=True)
    await full.work()
    changed = group("web", task(env={"A": "2"}), count=2, update=update)
    await run(full, msgspec.structs.replace(first, task_groups=[changed]))
    await full.run_all()
    assert only(full, Cause.DEPLOYMENT).message.endswith(
        "; 0 of 2 allocations are healthy, more must become healthy, by 2026-11-21T01:50:00Z at the latest"
    )


async def test_failed_allocation_has_the_time_of_the_next_attempt(full: Cluster) -> None:
    await run(full, job("web", group(reschedule_policy=DELAYED)))
    await full.report(full.wanted()[0], ClientStatus.FAILED)
    await run(full, full.job())
    reason = only(full, Cause.DELAY)
    assert reason.message == "web.web[0] failed once and is placed again at 2026-11-21T01:40:30Z"
    assert (reason.missing, reason.until) == (1, NOW + 30 * SECOND)


async def test_allocation_that_failed_too_often_is_reported(full: Cluster) -> None:
    await run(full, job("web", group(reschedule_policy=ONCE)))
    await full.report(full.wanted()[0], ClientStatus.FAILED)
    full.wait(31)
    await run(full, full.job())
    await full.report(full.wanted()[0], ClientStatus.FAILED)
    await run(full, full.job())
    assert only(full, Cause.LIMIT).message == (
        "web.web[0] failed 2 times and is not placed again: 1 attempt within 3600s are used up"
    )


async def test_allocation_without_a_policy_is_not_retried(full: Cluster) -> None:
    await run(full, job("web"))
    await full.report(full.wanted()[0], ClientStatus.FAILED)
    assert "its reschedule policy allows no attempt" in only(full, Cause.LIMIT).message


async def test_allocation_that_failed_with_its_deployment_is_not_retried(full: Cluster) -> None:
    await run(full, job("web", group(update=ROLLING, reschedule_policy=ONCE)))
    await full.report(full.wanted()[0], ClientStatus.FAILED, healthy=False)
    deployment = full.deployment()
    await deployment_actions.fail(full.store, deployment.id, now=NOW, eval_id="by-hand")
    await full.work()
    assert only(full, Cause.DEPLOYMENT).message == (
        "web.web[0] failed once and is not placed again, because "
        f"deployment {deployment.id} is failed (deployment marked as failed)"
    )


# ---- the attempts of one allocation --------------------------------------------------------------


def tries(cluster: Cluster, alloc: Allocation) -> tuple[int, int, str, int]:
    found = cluster.store.read(lambda db: next_retry(db, allocations.find(db, alloc.id) or alloc))
    return found.attempts, found.restarts, found.message, found.next_time


async def test_allocation_is_explained_with_past_and_next_attempts(full: Cluster) -> None:
    await run(full, job("web", group(reschedule_policy=ONCE)))
    (first,) = full.wanted()
    await full.report(first, ClientStatus.RUNNING)
    assert tries(full, first) == (1, 0, "needs no retry: it is running", 0)
    await full.report(first, ClientStatus.FAILED)
    await run(full, full.job())
    at = NOW + 30 * SECOND
    assert tries(full, first) == (1, 0, "is placed again at 2026-11-21T01:40:30Z", at)
    full.wait(31)
    await full.work()
    second = full.wanted()[-1]
    assert tries(full, first) == (1, 0, f"was placed again as allocation {second.id}", 0)
    await full.report(second, ClientStatus.FAILED)
    await run(full, full.job())
    limit = "is not placed again: 1 attempt within 3600s are used up"
    assert tries(full, second) == (2, 0, limit, 0)
    await run(full, msgspec.structs.replace(full.job(), stop=True))
    assert tries(full, second)[2].startswith("is not retried: ")


async def test_allocation_is_explained_with_the_next_restart_of_its_task(full: Cluster) -> None:
    await run(full, job("web"))
    (one,) = full.wanted()
    waiting = TaskState(state="pending", restarts=2)
    event = task_events.restarting(NOW, "", 5 * SECOND)

    def work(tx: Transaction) -> None:
        client = msgspec.structs.replace(one.client, task_states={"main": waiting})
        allocations.set_client(tx, msgspec.structs.replace(one, client=client), NOW)
        allocations.add_events(tx, one.id, {"main": [event]})

    await full.store.write(work)
    text = 'task "main" is started again at 2026-11-21T01:40:05Z'
    assert tries(full, one) == (1, 2, text, NOW + 5 * SECOND)


async def test_failed_allocation_follows_the_policy_of_its_version(full: Cluster) -> None:
    await run(full, job("web"))
    await full.report(full.wanted()[0], ClientStatus.FAILED)
    await run(full, job("web", group(reschedule_policy=DELAYED)))
    assert "its reschedule policy allows no attempt" in only(full, Cause.LIMIT).message


async def test_failure_of_an_older_batch_version_is_not_counted(full: Cluster) -> None:
    await run(full, job("web", type="batch"))
    await full.report(full.wanted()[0], ClientStatus.FAILED)
    big = task(resources=Resources(cpu=4000, memory_mb=10))
    await run(full, job("web", group("web", big), type="batch"))
    assert only(full, Cause.PLACE).missing == 1


async def test_evaluation_the_scheduler_has_not_seen_is_queued(full: Cluster) -> None:
    made = await full.register(job("web", priority=70))
    assert only(full, Cause.TURN).message == (
        f"1 allocation not placed: evaluation {made.id} is queued (priority 70)"
    )


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ("paused", "paused (deployment is paused)"),
        ("failed", "failed (deployment marked as failed)"),
    ],
)
async def test_deployment_that_prevents_placements_is_named(
    full: Cluster, state: str, text: str
) -> None:
    await run(full, job("web", group(count=6, update=ROLLING)))
    deployment_id = full.deployment().id
    if state == "paused":
        await deployment_actions.pause(full.store, deployment_id, paused=True, now=NOW, eval_id="e")
    else:
        await deployment_actions.fail(full.store, deployment_id, now=NOW, eval_id="e")
    await full.work()
    await full.join(small("node-2"))
    await full.work()
    (reason,) = [reason for reason in reasons(full) if reason.cause != Cause.START]
    assert (reason.cause, reason.message) == (
        Cause.DEPLOYMENT,
        f"1 allocation not placed: deployment {deployment_id} is {text}",
    )


async def test_placed_allocation_is_starting(full: Cluster) -> None:
    await run(full, job("web"))
    assert only(full, Cause.START).message == "web.web[0] is placed and starting"


async def test_waiting_canaries_block_the_remaining_rollout(full: Cluster) -> None:
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
    assert "; 0 of 1 allocations are healthy, more must become healthy" in reason.message


async def test_stopped_job_is_explained_as_stopped(full: Cluster) -> None:
    await run(full, job("web", stop=True))
    assert only(full, Cause.STOPPED).message == "the job was stopped; run it again to start it"


async def test_parameterized_job_is_explained_as_waiting_for_a_dispatch(full: Cluster) -> None:
    await run(full, job("web", type="batch", parameterized_job=Parameterized()))
    assert only(full, Cause.DISPATCH).missing == 0


async def test_periodic_job_is_explained_with_its_next_launch_and_obstacles(full: Cluster) -> None:
    clocked = job("web", type="batch", periodic=Periodic(enabled=True, spec="@daily"))
    slot = Slot(slot=NOW, decided_at=NOW, outcome=SlotOutcome.SKIPPED, reason="it was late")

    def work(tx: Transaction) -> None:
        jobs.append_version(tx, clocked)
        periodic.advance(tx, "default", "web", followed_to=NOW, next_slot=NOW + HOUR)
        periodic.add_slot(tx, "default", "web", slot)

    await full.store.write(work)
    assert [(reason.message, reason.until) for reason in reasons(full)] == [
        ("its next child is launched at 2026-11-21T02:40:00Z", NOW + HOUR),
        ("the slot of 2026-11-21T01:40:00Z was skipped, because it was late", 0),
    ]


async def test_disabled_schedule_is_reported(full: Cluster) -> None:
    off = job("web", type="batch", periodic=Periodic(enabled=False, spec="@daily"))
    await full.store.write(lambda tx: jobs.append_version(tx, off))
    assert only(full, Cause.CLOCK).message == "its schedule is disabled: periodic.enabled is false"
