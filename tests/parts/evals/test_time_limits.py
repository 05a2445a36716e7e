"""An allocation that exceeded `max_run_duration`: its batch job fails and names the limit."""

from functools import partial

import msgspec
import pytest

from daemon.evals import explain, failures, job_states
from daemon.evals.explain import next_retry
from daemon.runner.core import task_events
from daemon.runner.core.status_report import AllocStatus, store_snapshots
from daemon.text.job_state import JobState, State
from storage.queries import job_listings, notifications, tallies, triggers
from storage.queries.pages import PageRequest
from storage.records.allocation import OVERTIME, Allocation, ClientStatus, TaskEvent, TaskState
from storage.records.base import SECOND
from storage.records.job import Job, Parameterized
from storage.records.times import rfc3339
from tests.parts.evals.cluster import Cluster
from tests.samples import group, job, task

LIMIT = 90 * SECOND
WORDS = 'task "main": The allocation has run for 1m30s, its maximum run time'
TOLD = {"steward_notify": "failure", "steward_notify_webhook": "https://example.org/x"}


def limited(job_id: str = "web", count: int = 1, **fields: object) -> Job:
    made = group("g", task(), count=count, max_run_duration=LIMIT)
    return job(job_id, made, type="batch", **fields)


async def begun(cluster: Cluster, *made: Job) -> None:
    await cluster.join()
    for one in made:
        await cluster.register(one)
        await cluster.work()


async def end(cluster: Cluster, one: Allocation) -> None:
    """End an allocation at its limit: the task was stopped by a signal."""
    now = cluster.clock.now()
    events = [
        task_events.max_run_exceeded(now, LIMIT),
        TaskEvent(type="Killing", time=now),
        TaskEvent(type="Terminated", time=now, exit_code=143, signal=15),
        TaskEvent(type="Killed", time=now),
    ]
    ended = AllocStatus(
        alloc_id=one.id,
        states={"main": TaskState(state="dead", finished_at=rfc3339(now))},
        events={"main": events},
        handles={},
        deployment_id="",
        healthy=None,
        healthy_at=0,
        ended_for=OVERTIME,
        services=None,
        evaluation_id=next(cluster.ids),
        now=now,
    )
    await cluster.store.write(partial(store_snapshots, snapshots=[ended]))
    await cluster.work()


def state(cluster: Cluster, job_id: str = "web") -> JobState:
    now = cluster.clock.now()
    found = cluster.store.read(lambda db: job_states.state_of(db, "default", job_id, now))
    assert found is not None
    return found


async def test_time_limit_fails_the_job_and_is_its_reason(cluster: Cluster) -> None:
    await begun(cluster, limited())
    (one,) = cluster.allocations("web")
    await end(cluster, one)
    (one,) = cluster.allocations("web")
    assert (cluster.job().status, one.client_status) == ("dead", "complete")
    assert state(cluster) == JobState(State.FAILED, WORDS)
    error = cluster.store.read(lambda db: failures.of_allocation(db, one))
    assert error is not None
    assert (error.kind, error.summary) == ("Max Run Duration Exceeded", WORDS)
    assert cluster.store.read(lambda db: next_retry(db, one)).message == (
        "is not retried: it was ended by max_run_duration"
    )


async def test_explanation_names_the_time_limit(cluster: Cluster) -> None:
    await begun(cluster, limited())
    await end(cluster, cluster.allocations("web")[0])
    told = cluster.store.read(lambda db: explain.explain_job(db, "default", "web"))
    assert told is not None
    assert [(reason.cause, reason.message, reason.missing) for reason in told.reasons] == [
        ("limit", "web.g[0] was ended by max_run_duration of 1m30s, and is not placed again", 1)
    ]


async def test_other_allocations_continue_after_a_time_limit(cluster: Cluster) -> None:
    await begun(cluster, limited(count=2))
    first, second = cluster.allocations("web")
    await cluster.report(second, ClientStatus.RUNNING)
    await end(cluster, first)
    assert state(cluster) == JobState(State.RUNNING, "1 failed")
    await cluster.report(second, ClientStatus.COMPLETE)
    assert state(cluster).word == State.FAILED


async def test_new_version_completes_the_job_after_a_time_limit(cluster: Cluster) -> None:
    await begun(cluster, limited())
    await end(cluster, cluster.allocations("web")[0])
    await cluster.register(limited(meta={"again": "1"}))
    await cluster.work()
    (second,) = (one for one in cluster.allocations("web") if not one.client_terminal)
    await cluster.report(second, ClientStatus.COMPLETE)
    assert state(cluster) == JobState(State.COMPLETE)


async def test_time_limit_fails_the_run_of_a_parent(cluster: Cluster) -> None:
    parent = limited("many", parameterized_job=Parameterized())
    child = limited("many/dispatch-1", parent_id="many", dispatched=True)
    await begun(cluster, parent, child)
    await end(cluster, cluster.allocations(child.id)[0])
    (result,) = cluster.store.read(lambda db: tallies.results(db, "default", "many", 9))
    assert (result.is_failed, result.is_retried) == (True, False)
    assert state(cluster, "many") == JobState(State.FAILING, f"the last run failed: {WORDS}")


@pytest.mark.parametrize("order", [job_listings.by_change, job_listings.by_name])
async def test_list_of_failed_jobs_includes_time_limits(
    cluster: Cluster, order: "type[object]"
) -> None:
    await begun(cluster, limited(), limited("good"))
    await end(cluster, cluster.allocations("web")[0])
    await cluster.report(cluster.allocations("good")[0], ClientStatus.COMPLETE)
    found = cluster.store.read(lambda db: list(order(db, PageRequest(namespace="*"), failed=True)))
    assert [one.id for one in found] == ["web"]


@pytest.mark.parametrize(("when", "starts"), [("success", []), ("failure", ["web"])])
async def test_time_limit_starts_jobs_that_follow_a_failure(
    cluster: Cluster, when: str, starts: list[str]
) -> None:
    meta = {"steward_after": "web", "steward_after_when": when}
    follower = limited("next", parameterized_job=Parameterized(), meta=meta)
    await begun(cluster, follower, limited())
    await end(cluster, cluster.allocations("web")[0])
    due = cluster.store.read(lambda db: triggers.undecided(db, 9))
    assert [one.run_job_id for one in due] == starts


async def test_notification_names_the_time_limit(cluster: Cluster) -> None:
    await begun(cluster, limited(meta=TOLD))
    (one,) = cluster.allocations("web")
    await end(cluster, one)
    (told,) = cluster.store.read(lambda db: list(notifications.of_job(db, "default", "web")))
    assert (told.event, told.reason) == (
        "failure",
        f'allocation {one.id} of group "g" has failed: allocation exceeded max_run_duration',
    )


async def test_success_after_a_time_limit_is_a_recovery(cluster: Cluster) -> None:
    told = {**TOLD, "steward_notify": "failure,recovery"}
    await begun(cluster, limited(meta=told))
    await end(cluster, cluster.allocations("web")[0])
    await cluster.register(msgspec.structs.replace(limited(meta={**told, "again": "1"})))
    await cluster.work()
    (second,) = (one for one in cluster.allocations("web") if not one.client_terminal)
    await cluster.report(second, ClientStatus.COMPLETE)
    await cluster.work()
    found = cluster.store.read(lambda db: list(notifications.of_job(db, "default", "web")))
    assert sorted(one.event for one in found) == ["failure", "recovery"]
