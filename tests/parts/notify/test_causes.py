"""Job notifications: stored in the write of their cause, once per channel, and only on request."""

import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path

import msgspec
import pytest

from storage.queries import evaluations, jobs, notifications
from storage.records.allocation import Allocation, ClientStatus
from storage.records.base import HOUR, MINUTE, SECOND
from storage.records.group import ReschedulePolicy
from storage.records.job import Job, Parameterized
from storage.records.notification import Notification
from storage.store import Store
from storage.writer import Transaction
from tests.parts.evals.cluster import Cluster
from tests.parts.evals.test_workflows import report
from tests.parts.jobs.test_periodic import FIRST, HOURLY, look, register
from tests.samples import NOW, evaluation, group, job

HOOK = {"steward_notify_webhook": "https://hooks.example/x"}
TO = {"steward_notify_to": "night,chat"}
OFTEN = ReschedulePolicy(unlimited=True, delay=0, delay_function="constant")


@pytest.fixture
async def cluster(store: Store) -> Cluster:
    made = Cluster(store)
    await made.join()
    return made


def told(store: Store, job_id: str = "web") -> list[Notification]:
    """Return the notifications of a job, oldest first."""
    return store.read(lambda db: list(notifications.of_job(db, "default", job_id)))[::-1]


def said(store: Store, job_id: str = "web") -> list[str]:
    return [item.event for item in told(store, job_id)]


async def end(cluster: Cluster, status: ClientStatus, job_id: str = "web") -> Allocation:
    """End the only active allocation of a job with this status, and evaluate the job."""
    (one,) = [alloc for alloc in cluster.allocations(job_id) if not alloc.client_terminal]
    looked = evaluation(cluster.job(job_id), next(cluster.ids))
    await cluster.store.write(partial(evaluations.put, evaluation=looked, now=cluster.clock.now()))
    await cluster.report(one, status)
    await cluster.work()
    return one


async def run(cluster: Cluster, made: Job, status: ClientStatus) -> Allocation:
    await cluster.register(made)
    await cluster.work()
    return await end(cluster, status, made.id)


async def test_failed_batch_job_is_notified_in_the_write_of_its_end(cluster: Cluster) -> None:
    ended = await run(cluster, job("web", type="batch", meta=HOOK), ClientStatus.FAILED)
    (one,) = told(cluster.store)
    assert (one.event, one.webhook, one.status) == (
        "failure",
        "https://hooks.example/x",
        "pending",
    )
    assert one.reason == f'allocation {ended.id} of group "web" has failed'
    assert (one.job_id, one.run_id) == ("web", "web")
    assert one.create_index == cluster.job().modify_index
    assert one.create_time == cluster.clock.now()


async def test_repeated_success_is_not_notified(cluster: Cluster) -> None:
    await run(cluster, job("web", type="batch", meta=HOOK), ClientStatus.COMPLETE)
    assert told(cluster.store) == []


async def test_jobs_without_notification_settings_send_none(cluster: Cluster) -> None:
    await run(cluster, job("web", type="batch"), ClientStatus.FAILED)
    assert told(cluster.store) == []


async def test_success_after_a_failure_is_reported_once(cluster: Cluster) -> None:
    outcomes = [ClientStatus.FAILED, ClientStatus.COMPLETE, ClientStatus.COMPLETE]
    for number, status in enumerate(outcomes):
        made = job("web", type="batch", meta=HOOK, priority=50 + number)
        await run(cluster, made, status)
    assert said(cluster.store) == ["failure", "recovery"]


async def test_failures_in_one_write_are_counted_separately(cluster: Cluster) -> None:
    made = job("web", group("web", count=3, reschedule_policy=OFTEN), meta=HOOK)
    await cluster.register(made)
    await cluster.work()
    await report(cluster, *cluster.allocations("web"), code=1)
    found = cluster.store.read(lambda db: db.one("SELECT failures FROM jobs WHERE id = 'web'"))
    assert found is not None
    assert found["failures"] == 3


async def test_consecutive_failures_are_counted_from_the_first(cluster: Cluster) -> None:
    outcomes = [ClientStatus.FAILED, ClientStatus.FAILED, ClientStatus.COMPLETE]
    outcomes += [ClientStatus.FAILED]
    began = cluster.clock.now()
    for number, status in enumerate(outcomes):
        await run(cluster, job("web", type="batch", meta=HOOK, priority=50 + number), status)
        cluster.wait(360)
    found = told(cluster.store)
    assert [
        (notification.event, notification.failures, notification.failing_since - began)
        for notification in found
    ] == [
        ("failure", 1, 0),
        ("failure", 2, 0),
        ("recovery", 2, 0),
        ("failure", 1, 3 * 360 * SECOND),
    ]
    assert found[2].reason == "succeeded again after 2 failures, 12 min"


async def test_events_of_a_service_are_reported_as_its_states(
    cluster: Cluster,
) -> None:
    await cluster.register(job("web", group(reschedule_policy=OFTEN), meta=TO))
    await cluster.work()
    await cluster.run_all()
    await end(cluster, ClientStatus.FAILED)
    cluster.wait(90)
    await cluster.run_all()
    failure, recovery = told(cluster.store)[::2]
    assert [
        (notification.receiver, notification.webhook) for notification in told(cluster.store)[:2]
    ] == [
        ("night", ""),
        ("chat", ""),
    ]
    assert failure.failures == 1
    assert recovery.reason == "running again after 1 failure, 90 s"


async def test_events_of_children_are_reported_for_their_parent(cluster: Cluster) -> None:
    parent = job("web", type="batch", parameterized_job=Parameterized(), meta=HOOK)
    await cluster.register(parent)
    for number, status in enumerate([ClientStatus.FAILED, ClientStatus.COMPLETE]):
        child = job(f"web/{number}", type="batch", parent_id="web", meta=HOOK)
        await run(cluster, child, status)
    assert [(notification.event, notification.run_id) for notification in told(cluster.store)] == [
        ("failure", "web/0"),
        ("recovery", "web/1"),
    ]


async def test_each_channel_gets_only_its_chosen_events(cluster: Cluster) -> None:
    meta = {**HOOK, "steward_notify_command": "mail", "steward_notify": "recovery"}
    for number, status in enumerate([ClientStatus.FAILED, ClientStatus.COMPLETE]):
        made = job("web", type="batch", meta=meta, priority=50 + number)
        await run(cluster, made, status)
    assert [
        (notification.event, notification.webhook, notification.command)
        for notification in told(cluster.store)
    ] == [
        ("recovery", "https://hooks.example/x", ""),
        ("recovery", "", "mail"),
    ]


async def test_retried_failure_of_a_batch_job_is_not_reported_yet(
    cluster: Cluster,
) -> None:
    policy = ReschedulePolicy(attempts=1, interval=HOUR, delay=MINUTE, delay_function="constant")
    made = job("web", group(reschedule_policy=policy), type="batch", meta=HOOK)
    await run(cluster, made, ClientStatus.FAILED)
    assert told(cluster.store) == []
    cluster.wait(60)
    await cluster.work()
    await end(cluster, ClientStatus.COMPLETE)
    assert told(cluster.store) == []


async def test_each_failure_and_recovery_of_a_service_is_reported(
    cluster: Cluster,
) -> None:
    await cluster.register(job("web", group(reschedule_policy=OFTEN), meta=HOOK))
    await cluster.work()
    await cluster.run_all()
    for _ in range(2):
        await end(cluster, ClientStatus.FAILED)
        await cluster.run_all()
    assert said(cluster.store) == ["failure", "recovery", "failure", "recovery"]


async def test_recovery_is_not_reported_while_an_allocation_is_failed(cluster: Cluster) -> None:
    await cluster.register(job("web", group(count=3), meta=HOOK))
    await cluster.work()
    await cluster.run_all()
    first, second, _ = cluster.allocations()
    await cluster.report(first, ClientStatus.FAILED)
    assert said(cluster.store) == ["failure"]
    await cluster.report(second, ClientStatus.COMPLETE)
    assert said(cluster.store) == ["failure"]


async def test_failure_of_a_stopped_job_is_not_notified(cluster: Cluster) -> None:
    await cluster.register(job("web", meta=HOOK))
    await cluster.work()
    await cluster.run_all()
    await cluster.register(job("web", stop=True, meta=HOOK))
    await cluster.work()
    await end(cluster, ClientStatus.FAILED)
    assert told(cluster.store) == []


# ---- slots ------------------------------------------------------------------------------------------


async def test_skipped_slot_is_reported(store: Store) -> None:
    meta = {**HOOK, "steward_catch_up": "none"}
    await register(store, meta=meta)
    await look(store, FIRST + 3 * HOUR + MINUTE, started=FIRST + 3 * HOUR)
    (one,) = told(store)
    assert (one.event, one.run_id, one.create_time) == (
        "missed",
        "web",
        FIRST + 3 * HOUR + MINUTE,
    )
    assert one.reason == (
        "the slot of 2026-11-21T02:00:00Z was skipped: it was missed, and this job does not catch "
        "up, together with 3 more"
    )


async def test_caught_up_slot_is_reported_as_late(store: Store) -> None:
    await register(store, meta=HOOK)
    await look(store, FIRST + 10 * MINUTE, started=FIRST + 10 * MINUTE)
    (one,) = told(store)
    assert (one.event, one.reason) == (
        "late",
        "the slot of 2026-11-21T02:00:00Z was missed, and is caught up now",
    )
    assert one.run_id.startswith("web/periodic-")


async def test_slot_on_time_is_not_reported(store: Store) -> None:
    await register(store, meta=HOOK)
    await look(store, FIRST)
    assert told(store) == []


async def test_slot_skipped_for_a_running_child_is_reported(store: Store) -> None:
    block = msgspec.structs.replace(HOURLY, prohibit_overlap=True)
    await register(store, block, meta=HOOK)
    await look(store, FIRST)
    await look(store, FIRST + HOUR)
    assert [
        (notification.event, "still active" in notification.reason) for notification in told(store)
    ] == [("missed", True)]


async def test_purge_deletes_the_settings_but_not_pending_notifications(cluster: Cluster) -> None:
    await run(cluster, job("web", type="batch", meta=HOOK), ClientStatus.FAILED)
    found = cluster.job()
    await cluster.store.write(lambda tx: jobs.purge(tx, found))
    assert said(cluster.store) == ["failure"]
    assert cluster.store.read(lambda db: notifications.due(db, NOW + HOUR, 9)) != []


MANY = 2000
COPY = """
    WITH RECURSIVE n(value) AS (SELECT 1 UNION ALL SELECT value + 1 FROM n WHERE value < :many)
    INSERT INTO allocations
    SELECT id || '-' || value, namespace, job_id, job_version, job_type, task_group, name, node_id,
           eval_id, deployment_id, desired_status, :status, cpu, memory, disk, exclusive, placement,
           CASE WHEN :replaced THEN json_set(desired, '$.NextAllocation', 'x') ELSE desired END,
           client, health, create_index, modify_index + value, alloc_modify_index, create_time,
           modify_time, request_id
      FROM allocations, n
     WHERE job_id = 'web'
"""


def steps(path: Path, *, ended: bool, failed: bool, runs: bool) -> int:
    """Return the number of SQLite's steps, in hundreds, for the notification of a job."""
    counted = 0

    def note() -> None:
        nonlocal counted
        counted += 1

    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.row_factory = sqlite3.Row
        tx = Transaction(connection, 10_000)
        connection.execute("BEGIN")
        row = tx.one("SELECT * FROM jobs WHERE id = 'web'")
        assert row is not None
        connection.set_progress_handler(note, 100)
        notifications.queue_job_notification(tx, row, ended=ended, failed=failed, runs=runs)
        connection.set_progress_handler(None, 0)
        connection.execute("ROLLBACK")
    return counted


@pytest.mark.parametrize(
    ("kind", "status", "replaced", "cause"),
    [
        ("batch", "complete", False, {"ended": True}),
        ("batch", "failed", False, {"ended": True}),
        ("service", "failed", True, {"runs": True}),
        ("service", "complete", True, {"runs": True}),
        ("service", "failed", True, {"failed": True}),
    ],
)
async def test_cost_of_a_notification_does_not_depend_on_the_allocations(
    cluster: Cluster, kind: str, status: str, replaced: bool, cause: dict[str, bool]
) -> None:
    await run(cluster, job("web", type=kind, meta=HOOK), ClientStatus.COMPLETE)
    values = {"many": MANY, "status": status, "replaced": replaced}
    await cluster.store.write(lambda tx: tx.execute(COPY, values))
    given = {"ended": False, "failed": False, "runs": False, **cause}
    assert steps(cluster.store.path, **given) < 10
