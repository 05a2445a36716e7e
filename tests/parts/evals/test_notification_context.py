"""The context in a notification: the root cause, and the number of earlier failures."""

import msgspec

from daemon.notify.context import context_of
from daemon.notify.message import Context
from storage.queries import allocations
from storage.records.allocation import ClientStatus, StoredTaskEvent, TaskState
from storage.records.base import SECOND
from storage.records.group import ReschedulePolicy
from storage.records.notification import Notification, NotifyEvent
from storage.writer import Transaction
from tests.parts.evals.cluster import Cluster
from tests.samples import NOW, group, job
from tests.unit.scheduler.world import small

NEVER = ReschedulePolicy(attempts=0, unlimited=False)
SITE = "http://127.0.0.1:4646"


def note(namespace: str = "default", event: NotifyEvent = NotifyEvent.FAILURE) -> Notification:
    return Notification(
        id=1,
        namespace=namespace,
        job_id="web",
        run_id="web",
        event=event,
        reason="it broke",
        create_time=NOW,
        modify_time=NOW,
    )


def told(cluster: Cluster, notification: Notification) -> Context:
    return cluster.store.read(lambda db: context_of(db, notification, site=SITE, now=NOW))


async def fail(cluster: Cluster) -> str:
    """Let the only allocation of `web` end with code 3; return its id."""
    await cluster.join(small(name="vm"))
    await cluster.register(job("web", group("g", reschedule_policy=NEVER), type="batch"))
    await cluster.work()
    lines = "".join(f"line {number}\n" for number in range(30))
    ended = StoredTaskEvent(type="Terminated", time=NOW, exit_code=3, steward_stderr=lines)

    def write(tx: Transaction) -> str:
        (one,) = allocations.of_job(tx, "default", "web")
        dead = {"main": TaskState(state="dead", failed=True)}
        client = msgspec.structs.replace(one.client, task_states=dead)
        failed = msgspec.structs.replace(one, client_status=ClientStatus.FAILED, client=client)
        allocations.set_client(tx, failed, NOW)
        allocations.add_events(tx, one.id, {"main": [ended]})
        return one.id

    return await cluster.store.write(write)


async def test_a_failure_is_reported_with_its_root_cause(cluster: Cluster) -> None:
    alloc_id = await fail(cluster)
    found = told(cluster, note())
    assert found.error is not None
    assert (found.error.exit_code, found.error.group, found.error.task) == (3, "g", "main")
    assert found.error.allocation_id == alloc_id
    assert found.error.summary == 'task "main" exited with code 3'
    assert found.error.stderr.splitlines() == [f"line {number}" for number in range(10, 30)]
    assert (found.state, found.host != "") == ("failed", True)
    assert (found.error.attempt, found.error.signal) == (1, "")
    assert (found.link, found.command) == (f"{SITE}/ui/job/web", "steward job explain web")


async def test_a_failure_is_reported_with_how_often_and_since_when(cluster: Cluster) -> None:
    await fail(cluster)
    one = msgspec.structs.replace(note(), failures=3, failing_since=NOW - 720 * SECOND)
    found = told(cluster, one)
    assert (found.failed_in_a_row, found.failing_since) == (3, "2026-11-21T01:28:00Z")


async def test_a_recovery_names_no_error(cluster: Cluster) -> None:
    await fail(cluster)
    assert told(cluster, note(event=NotifyEvent.RECOVERY)).error is None


async def test_notification_of_a_deleted_job_has_a_context(cluster: Cluster) -> None:
    found = told(cluster, note("ops"))
    assert (found.state, found.error) == ("", None)
    assert found.link == f"{SITE}/ui/job/web?namespace=ops"
    assert found.command == "steward job explain --namespace=ops web"
