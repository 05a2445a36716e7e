"""Manual deployment actions: promote, fail, pause and set health; the watcher continues."""

import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from daemon import jobs as jobs_package
from daemon.evals import deployment_actions, deployment_watcher
from daemon.evals.deployment_health import decide_deployment
from daemon.evals.deployment_watcher import watch_deployments
from daemon.jobs import version_history
from daemon.runner.core import task_events
from storage.check import check
from storage.errors import Refused
from storage.queries import allocations, deployments, notifications
from storage.records.allocation import Allocation, ClientStatus
from storage.records.base import HOUR, SECOND
from storage.records.deployment import Deployment, DeploymentStatus
from storage.records.evaluation import EvalStatus
from storage.records.group import ReschedulePolicy, Update
from storage.records.job import Job
from storage.records.task import Resources
from storage.records.times import nanoseconds
from storage.store import Store
from tests.parts.evals.cluster import Cluster
from tests.samples import NOW, group, job, task
from tests.time_limits import HAPPENS_WITHIN
from tests.unit.scheduler.world import ROLLING


def web(command: str, update: Update = ROLLING, count: int = 2) -> Job:
    return job("web", group("web", task(config={"command": command}), count=count, update=update))


def with_(**fields: object) -> Update:
    return msgspec.structs.replace(ROLLING, **fields)


@asynccontextmanager
async def watched(cluster: Cluster) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(
            watch_deployments, cluster.store, cluster.clock, cluster.ids, cluster.fences
        )
        yield
        nursery.cancel_scope.cancel()


async def until(cluster: Cluster, condition: Callable[[Deployment], bool]) -> Deployment:
    """Process evaluations until the newest deployment meets a condition."""
    with trio.fail_after(20):
        while True:
            with cluster.store.watch("deployments/", "evaluations/") as change:
                await cluster.work()
                if condition(deployment := cluster.deployment()):
                    return deployment
                await change.wait()


def is_(status: DeploymentStatus) -> Callable[[Deployment], bool]:
    return lambda deployment: deployment.status == status


async def succeed(cluster: Cluster, wanted: Job) -> None:
    """Deploy a version of a job, whose allocations become healthy."""
    await cluster.register(wanted)
    await cluster.work()
    while cluster.deployment().active:
        before = cluster.deployment()
        await cluster.run_all(healthy=True)
        await until(cluster, lambda found, before=before: found != before)


@pytest.fixture
async def canary(cluster: Cluster) -> AsyncIterator[Cluster]:
    """Return a cluster with a job that has a placed canary of version 1."""
    async with watched(cluster):
        await succeed(cluster, web("/bin/one"))
        await cluster.register(web("/bin/two", with_(canary=1)))
        await cluster.work()
        yield cluster


def newest(cluster: Cluster) -> list[Allocation]:
    return [alloc for alloc in cluster.wanted() if alloc.job_version == cluster.job().version]


def of_group(cluster: Cluster, name: str) -> list[Allocation]:
    return [alloc for alloc in cluster.wanted() if alloc.task_group == name]


async def promote(cluster: Cluster, *groups: str) -> deployment_actions.DeploymentChange:
    chosen = groups or None
    return await deployment_actions.promote(
        cluster.store, cluster.deployment().id, chosen, now=cluster.clock.now(), eval_id="e-hand"
    )


async def test_each_deployment_has_one_watcher(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    watchers: list[str] = []

    async def watch(*given: Any) -> None:
        watchers.append(given[-1].id)
        await trio.sleep_forever()

    monkeypatch.setattr(deployment_watcher, "_watch", watch)
    await cluster.register(web("/bin/one"))
    await cluster.work()
    async with watched(cluster):
        for _ in range(2):
            await trio.testing.wait_all_tasks_blocked()
            assert watchers == [cluster.deployment().id]
            deployment = cluster.deployment()
            await cluster.store.write(
                lambda tx, deployment=deployment: deployments.put(
                    tx, deployment, cluster.clock.now()
                )
            )


async def test_healthy_canaries_are_promoted_before_the_remaining_allocations(
    canary: Cluster,
) -> None:
    await canary.run_all(healthy=True)
    waiting = await until(canary, lambda found: found.task_groups["web"].healthy_allocs == 1)
    assert waiting.status_description == "Deployment is running but requires manual promotion"
    (one,) = newest(canary)
    assert one.health is not None
    assert one.health.canary
    done = await promote(canary)
    assert done.eval_id == "e-hand"
    assert canary.evaluation("e-hand").triggered_by == "deployment-watcher"
    assert canary.deployment().status_description == "Deployment is running"
    await canary.work()
    for _ in range(2):
        await canary.run_all(healthy=True)
        await canary.work()
    await until(canary, is_(DeploymentStatus.SUCCESSFUL))
    assert [alloc.job_version for alloc in canary.wanted()] == [1, 1]
    assert not any(alloc.health.canary for alloc in canary.wanted() if alloc.health)
    assert canary.job().stable


async def test_promoted_canary_next_to_its_predecessor_violates_no_invariant(
    canary: Cluster, tmp_path: Path
) -> None:
    await canary.run_all(healthy=True)
    await until(canary, lambda found: found.task_groups["web"].healthy_allocs == 1)
    await promote(canary)
    names = [alloc.name for alloc in canary.wanted()]
    assert len(set(names)) < len(names)
    assert check(tmp_path) == []


async def test_unhealthy_canaries_are_not_promoted(canary: Cluster) -> None:
    with pytest.raises(Refused) as caught:
        await promote(canary)
    assert str(caught.value) == (
        '1 error occurred:\n\t* Task group "web" has 0/1 healthy allocations\n\n'
    )
    assert not canary.deployment().task_groups["web"].promoted


async def test_promotion_of_other_groups_has_no_effect(canary: Cluster) -> None:
    await canary.run_all(healthy=True)
    await until(canary, lambda found: found.task_groups["web"].healthy_allocs == 1)
    done = await promote(canary, "nope")
    assert done.eval_id == "e-hand"
    await canary.work()
    deployment = canary.deployment()
    assert (deployment.task_groups["web"].promoted, len(newest(canary))) == (False, 1)
    assert deployment.status_description == "Deployment is running but requires manual promotion"


async def test_promotion_restarts_the_progress_deadline(canary: Cluster) -> None:
    await canary.run_all(healthy=True)
    await until(canary, lambda found: found.task_groups["web"].healthy_allocs == 1)
    canary.wait(3600)
    await promote(canary)
    by = nanoseconds(canary.deployment().task_groups["web"].require_progress_by)
    assert by == canary.clock.now() + 20 * SECOND


async def fail(cluster: Cluster) -> deployment_actions.DeploymentChange:
    return await deployment_actions.fail(
        cluster.store, cluster.deployment().id, now=cluster.clock.now(), eval_id="e-hand"
    )


@pytest.mark.parametrize(
    ("auto_revert", "second", "told", "versions"),
    [
        (False, "/bin/two", "Deployment marked as failed", 2),
        (True, "/bin/two", "Deployment marked as failed - rolling back to job version 0", 3),
    ],
)
async def test_failed_deployment_rolls_back_if_requested(
    cluster: Cluster, auto_revert: bool, second: str, told: str, versions: int
) -> None:
    update = with_(auto_revert=auto_revert)
    async with watched(cluster):
        await succeed(cluster, web("/bin/one", update))
        await cluster.register(web(second, update))
        await cluster.work()
        done = await fail(cluster)
    failed = cluster.deployment()
    assert (failed.status, failed.status_description) == (DeploymentStatus.FAILED, told)
    assert done.reverted_version == (0 if auto_revert else None)
    assert cluster.job().version == versions - 1


async def test_rollback_needs_a_stable_version(cluster: Cluster) -> None:
    await cluster.register(web("/bin/one", with_(auto_revert=True)))
    await cluster.work()
    await fail(cluster)
    assert cluster.deployment().status_description == (
        "Deployment marked as failed - no stable job version to auto revert to"
    )


async def test_rollback_of_a_stopped_version_ends(cluster: Cluster) -> None:
    wanted = web("/bin/one", with_(auto_revert=True))
    async with watched(cluster):
        await succeed(cluster, wanted)
        await cluster.register(msgspec.structs.replace(cluster.job(), stop=True))
        await cluster.work()
        await cluster.register(wanted)
        await cluster.work()
        done = await fail(cluster)
    assert (done.reverted_version, cluster.job().version) == (None, 2)
    assert cluster.deployment().status_description == (
        "Deployment marked as failed - not rolling back to stable job version 1 "
        "as current job has same specification"
    )


async def pause(cluster: Cluster, *, paused: bool) -> deployment_actions.DeploymentChange:
    return await deployment_actions.pause(
        cluster.store,
        cluster.deployment().id,
        paused=paused,
        now=cluster.clock.now(),
        eval_id="e-hand",
    )


async def test_paused_deployment_places_nothing_until_resumed(cluster: Cluster) -> None:
    async with watched(cluster):
        await succeed(cluster, web("/bin/one"))
        await cluster.register(web("/bin/two"))
        await cluster.work()
        assert (await pause(cluster, paused=True)).eval_id == ""
        assert cluster.deployment().status_description == "Deployment is paused"
        await cluster.run_all(healthy=True)
        await until(cluster, lambda found: found.task_groups["web"].healthy_allocs == 1)
        assert len(newest(cluster)) == 1
        cluster.wait(3600)  # much longer than the progress deadline
        assert (await pause(cluster, paused=False)).eval_id == "e-hand"
        await cluster.work()
        assert len(newest(cluster)) == 2
        assert cluster.deployment().status == DeploymentStatus.RUNNING


async def test_paused_deployment_without_placements_fails_at_its_deadline(
    cluster: Cluster,
) -> None:
    nowhere = task(resources=Resources(cpu=10**6, memory_mb=10))
    async with watched(cluster):
        await cluster.register(job("web", group("web", nowhere, update=with_())))
        await cluster.work()
        assert cluster.deployment().task_groups["web"].require_progress_by is None
        assert cluster.deployment().modify_time == 0
        await pause(cluster, paused=True)
        await pause(cluster, paused=False)
        due = cluster.deployment().task_groups["web"].progress_due
        assert due is not None
        assert due > cluster.clock.now()
        cluster.wait(21)
        await cluster.store.write(lambda tx: deployments.put(tx, cluster.deployment(), NOW))
        failed = await until(cluster, is_(DeploymentStatus.FAILED))
    assert failed.status_description == "Failed due to progress deadline"


async def test_allocation_that_becomes_healthy_after_a_failed_deployment_is_counted(
    cluster: Cluster,
) -> None:
    wanted = job("web", group("good", count=2, update=with_()), group("bad", update=with_()))
    async with watched(cluster):
        await cluster.register(wanted)
        await cluster.work()
        await cluster.report(of_group(cluster, "bad")[0], ClientStatus.FAILED, healthy=False)
        await until(cluster, is_(DeploymentStatus.FAILED))
        for item in of_group(cluster, "good"):
            await cluster.report(item, ClientStatus.RUNNING, healthy=True)
    assert cluster.deployment().task_groups["good"].healthy_allocs == 2
    assert cluster.deployment().task_groups["bad"].unhealthy_allocs == 1


async def set_health(cluster: Cluster, **health: bool) -> deployment_actions.DeploymentChange:
    named = {alloc.id: health["healthy"] for alloc in cluster.wanted()} if health else {}
    return await deployment_actions.set_health(
        cluster.store, cluster.deployment().id, named, now=NOW, eval_id="e-hand"
    )


async def test_health_set_by_request_advances_a_deployment(cluster: Cluster) -> None:
    async with watched(cluster):
        await cluster.register(web("/bin/one", with_(health_check="manual")))
        await cluster.work()
        await cluster.run_all()
        await set_health(cluster, healthy=True)
        assert cluster.deployment().task_groups["web"].healthy_allocs == 2
        await until(cluster, is_(DeploymentStatus.SUCCESSFUL))


async def test_unhealthiness_set_by_request_fails_a_deployment(cluster: Cluster) -> None:
    async with watched(cluster):
        await cluster.register(web("/bin/one", with_(health_check="manual")))
        await cluster.work()
        await set_health(cluster, healthy=False)
        failed = await until(cluster, is_(DeploymentStatus.FAILED))
    assert failed.status_description == "Failed due to unhealthy allocations"


async def test_health_can_be_set_only_for_allocations_of_the_deployment(cluster: Cluster) -> None:
    await cluster.register(web("/bin/one"))
    await cluster.work()
    found, store = cluster.deployment().id, cluster.store
    with pytest.raises(Refused, match='unknown alloc "x"'):
        await deployment_actions.set_health(store, found, {"x": True}, now=NOW, eval_id="e")
    (first, _) = cluster.wanted()
    await cluster.register(job("other"))
    await cluster.work()
    (other,) = cluster.wanted("other")
    with pytest.raises(Refused, match=f'alloc "{other.id}" is not part of deployment "{found}"'):
        await deployment_actions.set_health(
            store, found, {first.id: True, other.id: True}, now=NOW, eval_id="e"
        )
    assert cluster.wanted()[0].health is None  # one unknown ID refuses the whole request


Hand = Callable[[Store, str], Awaitable[object]]
HANDS: dict[str, Hand] = {
    "can't promote terminal deployment": lambda store, found: deployment_actions.promote(
        store, found, None, now=NOW, eval_id="e"
    ),
    "can't fail terminal deployment": lambda store, found: deployment_actions.fail(
        store, found, now=NOW, eval_id="e"
    ),
    "can't pause terminal deployment": lambda store, found: deployment_actions.pause(
        store, found, paused=True, now=NOW, eval_id="e"
    ),
    "can't resume terminal deployment": lambda store, found: deployment_actions.pause(
        store, found, paused=False, now=NOW, eval_id="e"
    ),
    "can't unblock terminal deployment": deployment_actions.unblock,
    "can't set health of allocations for a terminal deployment": (
        lambda store, found: deployment_actions.set_health(
            store, found, {"x": True}, now=NOW, eval_id="e"
        )
    ),
}


@pytest.mark.parametrize(("text", "hand"), HANDS.items())
async def test_finished_deployment_accepts_no_action(
    cluster: Cluster, text: str, hand: Hand
) -> None:
    await cluster.register(web("/bin/one"))
    await cluster.work()
    ended = msgspec.structs.replace(cluster.deployment(), status=DeploymentStatus.CANCELLED)
    await cluster.store.write(lambda tx: deployments.put(tx, ended, NOW))
    with pytest.raises(Refused, match=text):
        await hand(cluster.store, ended.id)
    with pytest.raises(Refused, match="deployment not found"):
        await hand(cluster.store, "nowhere")


async def test_deployment_without_progress_fails(cluster: Cluster) -> None:
    async with watched(cluster):
        await cluster.register(web("/bin/one"))
        await cluster.work()
        cluster.wait(21)
        (first, _) = cluster.wanted()
        await cluster.report(first, ClientStatus.RUNNING)  # each report triggers a check
        failed = await until(cluster, is_(DeploymentStatus.FAILED))
    assert failed.status_description == "Failed due to progress deadline"


@pytest.mark.parametrize("told_before", [False, True], ids=["at once", "unhealthy before"])
async def test_failed_allocation_of_a_deployment_is_replaced_after_its_delay(
    cluster: Cluster, *, told_before: bool
) -> None:
    delayed = ReschedulePolicy(delay=30 * SECOND, delay_function="constant", unlimited=True)
    patient = with_(progress_deadline=HOUR)
    await cluster.register(job("web", group("web", update=patient, reschedule_policy=delayed)))
    await cluster.work()
    async with watched(cluster):
        (first,) = cluster.wanted()
        if told_before:
            await cluster.report(first, ClientStatus.RUNNING, healthy=False)
            await until(cluster, lambda found: found.task_groups["web"].unhealthy_allocs == 1)
            (first,) = cluster.wanted()
        await cluster.report(first, ClientStatus.FAILED, healthy=False)
        with trio.fail_after(HAPPENS_WITHIN):
            while True:
                with cluster.store.watch("evaluations/") as change:
                    await cluster.work()
                    if any(
                        evaluation.wait_until
                        for evaluation in cluster.evaluations(EvalStatus.PENDING)
                    ):
                        break
                    await change.wait()
        assert cluster.wanted() == cluster.allocations()
        cluster.wait(31)
        await cluster.work()
    assert cluster.deployment().active
    assert [alloc.desired.previous_allocation for alloc in cluster.allocations()] == ["", first.id]


async def test_failed_deployment_sends_a_notification(cluster: Cluster) -> None:
    hook = {"steward_notify_webhook": "https://hooks.example/x"}
    impatient = with_(progress_deadline=0)
    await cluster.register(job("web", group("web", update=impatient), meta=hook))
    await cluster.work()
    async with watched(cluster):
        (one,) = cluster.wanted()
        await cluster.report(one, ClientStatus.RUNNING, healthy=False)
        await until(cluster, is_(DeploymentStatus.FAILED))
    (told,) = cluster.store.read(lambda db: list(notifications.of_job(db, "default", "web")))
    assert (told.event, told.run_id) == ("failure", "web")
    assert told.reason == "version 0 was not deployed: Failed due to unhealthy allocations"


async def test_notification_of_a_failed_deployment_names_the_check(cluster: Cluster) -> None:
    hook = {"steward_notify_webhook": "https://hooks.example/x"}
    await cluster.register(job("web", group("web", update=with_(progress_deadline=0)), meta=hook))
    await cluster.work()
    (one,) = cluster.wanted()
    check = 'check "c" of service "s" fails: Connection refused'
    event = task_events.unhealthy(NOW, "Services not healthy by deadline", check)
    await cluster.store.write(lambda tx: allocations.add_events(tx, one.id, {"main": (event,)}))
    async with watched(cluster):
        await cluster.report(one, ClientStatus.RUNNING, healthy=False)
        await until(cluster, is_(DeploymentStatus.FAILED))
    (told,) = cluster.store.read(lambda db: list(notifications.of_job(db, "default", "web")))
    assert told.reason == (
        "version 0 was not deployed: Failed due to unhealthy allocations: "
        f'task "main": Services not healthy by deadline: {check}'
    )


async def test_service_recovers_only_when_the_next_version_is_deployed(cluster: Cluster) -> None:
    hook = {"steward_notify_webhook": "https://hooks.example/x"}

    def told() -> list[str]:
        found = cluster.store.read(lambda db: list(notifications.of_job(db, "default", "web")))
        return [notification.event for notification in found][::-1]

    async with watched(cluster):
        first = msgspec.structs.replace(web("/bin/one", with_(progress_deadline=0)), meta=hook)
        await cluster.register(first)
        await cluster.work()
        for alloc in cluster.wanted():
            await cluster.report(alloc, ClientStatus.RUNNING, healthy=False)
        await until(cluster, is_(DeploymentStatus.FAILED))
        await cluster.run_all()
        assert told() == ["failure"]  # all allocations run, and none is healthy

        await cluster.register(msgspec.structs.replace(web("/bin/two"), meta=hook))
        await cluster.work()
        await cluster.run_all()
        assert told() == ["failure"]
        while cluster.deployment().active:
            assert told() == ["failure"]
            before = cluster.deployment()
            await cluster.run_all(healthy=True)
            await until(cluster, lambda found, before=before: found != before)
    assert told() == ["failure", "recovery"]


async def test_drained_allocation_does_not_count_as_healthy(cluster: Cluster) -> None:
    await cluster.register(job("web", group("web", update=with_(health_check="manual"))))
    await cluster.work()
    (one,) = cluster.wanted()
    await cluster.report(one, ClientStatus.RUNNING, healthy=True)
    stopped = msgspec.structs.replace(cluster.allocations()[0], desired_status="stop")
    await cluster.store.write(lambda tx: allocations.set_desired(tx, stopped, NOW))
    deployment = cluster.deployment()
    verdict = decide_deployment(deployment, [stopped], cluster.job(), NOW)
    assert verdict.groups["web"].healthy_allocs == 0
    assert not verdict.calls_scheduler


async def test_failure_to_assess_a_deployment_fails_only_this_deployment(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def poisoned(deployment: Deployment, *rest: Any) -> Any:
        if deployment.job_id == "poison":
            raise KeyError("poison")
        return decide_deployment(deployment, *rest)

    monkeypatch.setattr("daemon.evals.deployment_watcher.decide_deployment", poisoned)
    hook = {"steward_notify_webhook": "https://hooks.example/x"}
    for name in ("poison", "web"):
        await cluster.register(job(name, group("web", update=ROLLING), meta=hook))
    await cluster.work()
    async with watched(cluster):
        with trio.fail_after(HAPPENS_WITHIN):
            while True:
                with cluster.store.watch("deployments/") as change:
                    failed = cluster.deployment("poison")
                    if not failed.active:
                        break
                    cluster.wait(1)
                    with trio.move_on_after(0.1):
                        await change.wait()
            assert failed.status == DeploymentStatus.FAILED
            assert failed.status_description == (
                "the deployment watcher failed repeatedly: KeyError: 'poison'"
            )
            (told,) = cluster.store.read(
                lambda db: list(notifications.of_job(db, "default", "poison"))
            )
            assert (told.event, told.reason) == (
                "failure",
                f"version 0 was not deployed: {failed.status_description}",
            )
            await cluster.run_all("web", healthy=True)
            while True:
                with cluster.store.watch("deployments/") as change:
                    if cluster.deployment("web").task_groups["web"].healthy_allocs:
                        break
                    await change.wait()


def loads(monkeypatch: pytest.MonkeyPatch, store: Store) -> list[tuple[object, bool]]:
    """Unload the module with the history of versions.

    Return a list that gets an entry for each write: whether the module is loaded when the write
    begins.
    """
    name, before, seen = version_history.__name__, store.write, list[tuple[object, bool]]()
    monkeypatch.setattr(jobs_package, "version_history", version_history)
    monkeypatch.delitem(sys.modules, name)

    async def write(work: Any, **fields: Any) -> Any:
        seen.append((getattr(work, "func", None), name in sys.modules))
        return await before(work, **fields)

    monkeypatch.setattr(store, "write", write)
    return seen


async def test_rollback_by_request_imports_nothing_in_its_write(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with watched(cluster):
        await succeed(cluster, web("/bin/one", with_(auto_revert=True)))
    await cluster.register(web("/bin/two", with_(auto_revert=True)))
    await cluster.work()
    seen = loads(monkeypatch, cluster.store)
    done = await fail(cluster)
    assert (done.reverted_version, [is_loaded for _, is_loaded in seen]) == (0, [True])


async def test_rollback_by_the_watcher_imports_nothing_in_its_write(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with watched(cluster):
        await succeed(cluster, web("/bin/one", with_(auto_revert=True)))
    await cluster.register(web("/bin/two", with_(auto_revert=True, progress_deadline=0)))
    await cluster.work()
    seen = loads(monkeypatch, cluster.store)
    async with watched(cluster):
        one = newest(cluster)[0]
        await cluster.report(one, ClientStatus.RUNNING, healthy=False)
        await until(cluster, lambda found: found.job_version > 1 or not found.active)
    moved = [is_loaded for work, is_loaded in seen if work is deployment_watcher._advance]
    assert moved[-1]
    assert cluster.job().version == 2
