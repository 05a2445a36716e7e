"""Children of a parameterized job: beyond the limit they wait, are dropped, or replace others."""

from functools import partial
from itertools import count

import msgspec
import pytest
import trio
import trio.testing

from daemon.evals import gc
from daemon.evals.explain import explain_job
from daemon.jobs import child_limits
from daemon.jobs.child_limits import open_children, release_children
from daemon.jobs.dispatch import DispatchOutcome, DispatchRequestData, dispatch_job
from daemon.jobs.evaluate import EvalOptions, evaluate_job
from daemon.jobs.stop import stop
from storage.errors import Refused, StorageUnreadable, TooOften
from storage.queries import children, evaluations, index_times, job_listings, job_status, jobs
from storage.queries.pages import PageRequest
from storage.read_pool import ReadSnapshot
from storage.records.allocation import ClientStatus
from storage.records.base import HOUR
from storage.records.explanation import Cause
from storage.records.job import Job, Parameterized
from storage.store import Store
from storage.writer import Transaction
from tests.parts.evals.cluster import Cluster
from tests.samples import NOW, job
from tests.time_limits import HAPPENS_WITHIN


class Parent:
    """A parameterized job, and operations on its children."""

    def __init__(self, store: Store) -> None:
        self.cluster = Cluster(store)
        self.store, self.ids, self._suffixes = store, self.cluster.ids, count()

    async def register(self, *, kind: str = "batch", **meta: str) -> None:
        keys = {f"steward_children_{name}": text for name, text in meta.items()}
        made = job("web", type=kind, parameterized_job=Parameterized(), meta=keys)

        def work(tx: Transaction) -> None:
            jobs.append_version(tx, made)
            job_status.refresh_summary(tx, made.namespace, made.id)

        await self.store.write(work)

    async def dispatch(self) -> DispatchOutcome:
        return await dispatch_job(
            self.store,
            "default",
            "web",
            DispatchRequestData(payload=b"", meta={}),
            now=NOW,
            ids=self.ids,
            suffix=f"{next(self._suffixes):08}",
        )

    async def end(self, child: DispatchOutcome) -> None:
        """Process all evaluations of a child."""

        def work(tx: Transaction) -> None:
            for evaluation in evaluations.unfinished(tx, "default", child.job_id):
                evaluations.put(tx, msgspec.structs.replace(evaluation, status="complete"), NOW)
            job_status.refresh_summary(tx, "default", child.job_id)

        await self.store.write(work)

    async def release(self) -> None:
        await self.store.write(partial(release_children, "default", "web", now=NOW, ids=self.ids))

    def begun(self) -> list[str]:
        """Return the numbers of the children that have begun and not ended."""
        lines = self.store.read(
            lambda db: list(
                job_listings.listing_rows(db, PageRequest(namespace="default", prefix="web/"))
            )
        )
        return [
            child_id[-1]
            for _, child_id, _ in lines
            if self.store.read(
                partial(evaluations.unfinished, namespace="default", job_id=child_id)
            )
        ]

    def held(self) -> list[str]:
        return [
            queued_child[-1]
            for queued_child in self.store.read(
                lambda db: children.queued_children(db, "default", "web", 99)
            )
        ]

    def job(self, child: DispatchOutcome) -> Job:
        found = self.store.read(lambda db: jobs.current(db, "default", child.job_id))
        assert found is not None
        return found


@pytest.fixture
def parent(store: Store) -> Parent:
    return Parent(store)


async def test_all_children_start_without_a_limit(parent: Parent) -> None:
    await parent.register()
    for _ in range(3):
        assert (await parent.dispatch()).eval_id
    assert (parent.begun(), parent.held()) == (["0", "1", "2"], [])


async def test_children_beyond_the_limit_are_queued_without_an_evaluation(parent: Parent) -> None:
    await parent.register(at_once="2")
    made = [await parent.dispatch() for _ in range(4)]
    assert [bool(item.eval_id) for item in made] == [True, True, False, False]
    assert (parent.begun(), parent.held()) == (["0", "1"], ["2", "3"])
    assert parent.job(made[2]).status == "pending"


async def test_new_node_starts_no_queued_child(parent: Parent) -> None:
    await parent.register(at_once="1", kind="sysbatch")
    made = [await parent.dispatch() for _ in range(2)]
    assert parent.store.read(job_listings.on_every_node) == [("default", made[0].job_id)]


async def test_ended_child_starts_the_oldest_queued_child(parent: Parent) -> None:
    await parent.register(at_once="1")
    made = [await parent.dispatch() for _ in range(3)]
    await parent.release()
    assert parent.held() == ["1", "2"]
    await parent.end(made[0])
    await parent.release()
    assert (parent.begun(), parent.held()) == (["1"], ["2"])
    await parent.dispatch()
    assert parent.held() == ["2", "3"]


async def test_dispatch_beyond_the_limit_is_dropped_if_configured(parent: Parent) -> None:
    await parent.register(at_once="1", beyond="drop")
    made = await parent.dispatch()
    with pytest.raises(TooOften, match='job "web" has 1 active children and drops further'):
        await parent.dispatch()
    await parent.end(made)
    assert (await parent.dispatch()).eval_id


async def test_oldest_child_is_replaced_if_configured(parent: Parent) -> None:
    await parent.register(at_once="1", beyond="replace")
    first, second = await parent.dispatch(), await parent.dispatch()
    assert (parent.job(first).stop, second.eval_id, parent.held()) == (True, "", ["1"])
    third = await parent.dispatch()  # replaces the queued child
    assert (parent.job(second).stop, parent.job(third).stop) == (True, False)
    await parent.end(first)
    await parent.end(second)
    await parent.release()
    assert (parent.begun(), parent.held()) == (["2"], [])


async def test_replaced_child_is_active_until_its_tasks_have_ended(parent: Parent) -> None:
    cluster = parent.cluster
    await cluster.join()
    await parent.register(at_once="1", beyond="replace")
    first = await parent.dispatch()
    await cluster.work()
    (one,) = cluster.allocations(first.job_id)
    await cluster.report(one, ClientStatus.RUNNING)
    await parent.dispatch()
    await cluster.work()
    await parent.release()
    assert (parent.job(first).status, parent.held()) == ("dead", ["1"])
    (stopped,) = cluster.allocations(first.job_id)
    with parent.store.watch(children.ROOM) as room:
        await cluster.report(stopped, ClientStatus.COMPLETE)
        with trio.fail_after(HAPPENS_WITHIN):
            await room.wait()
    await parent.release()
    assert (parent.begun(), parent.held()) == (["1"], [])


async def test_queued_child_can_be_stopped(parent: Parent) -> None:
    await parent.register(at_once="1")
    _, second = await parent.dispatch(), await parent.dispatch()
    child = parent.job(second)
    await parent.store.write(lambda tx: stop(tx, child, now=NOW, eval_id="e-stop"))
    await parent.end(second)
    assert (parent.held(), parent.job(second).status) == ([], "dead")


async def test_queued_child_cannot_be_evaluated_on_request(parent: Parent) -> None:
    await parent.register(at_once="1")
    _, second = await parent.dispatch(), await parent.dispatch()
    with pytest.raises(Refused, match="is queued until fewer children of its parent are active"):
        await evaluate_job(
            parent.store, "default", second.job_id, EvalOptions(), now=NOW, eval_id="e"
        )


async def test_queued_child_has_a_reason(parent: Parent) -> None:
    await parent.register(at_once="1")
    _, second = await parent.dispatch(), await parent.dispatch()
    found = parent.store.read(lambda db: explain_job(db, "default", second.job_id))
    assert found is not None
    assert [(reason.cause, reason.message) for reason in found.reasons] == [
        (Cause.CHILDREN, 'it waits until fewer children of "web" are active')
    ]


@pytest.mark.parametrize("change", ["more", "purged", "ended"])
async def test_blocked_run_starts_automatically_when_capacity_is_free(
    parent: Parent, change: str
) -> None:
    await parent.register(at_once="1")
    first, second = await parent.dispatch(), await parent.dispatch()

    async def until_begun() -> None:
        topic = evaluations.job_topic("default", second.job_id)
        while parent.held():
            with parent.store.watch(topic) as watch:
                if parent.held():
                    await watch.wait()

    with trio.fail_after(HAPPENS_WITHIN):
        async with open_children(
            parent.store, parent.cluster.clock, parent.ids, parent.cluster.fences
        ):
            await trio.testing.wait_all_tasks_blocked()
            assert parent.held() == ["1"]
            if change == "more":
                await parent.register(at_once="2")
            elif change == "purged":
                await parent.store.write(lambda tx: jobs.purge(tx, _parent_of(tx)))
            else:
                await parent.end(first)
            await until_begun()
    assert "1" in parent.begun()


async def test_unreadable_parent_delays_only_its_own_children(parent: Parent) -> None:
    await parent.register(at_once="1")
    first, _ = await parent.dispatch(), await parent.dispatch()
    real = child_limits.jobs.current

    def current(db: ReadSnapshot, namespace: str, job_id: str) -> Job | None:
        if job_id == "bad":
            raise StorageUnreadable("its definition cannot be read")
        return real(db, namespace, job_id)

    fences = parent.cluster.fences
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(child_limits.jobs, "current", current)
        assert not child_limits._may_release(parent.store, ("default", "bad"), fences)
        await parent.end(first)
        assert child_limits._may_release(parent.store, ("default", "web"), fences)
    assert [fault.key for fault in fences.faults()] == ["default/bad"]


def _parent_of(tx: Transaction) -> Job:
    found = jobs.current(tx, "default", "web")
    assert found is not None
    return found


# ---- ended children -----------------------------------------------------------------------------


async def ended(parent: Parent, number: int) -> None:
    for _ in range(number):
        await parent.end(await parent.dispatch())


def left(parent: Parent) -> list[str]:
    lines = parent.store.read(
        lambda db: list(
            job_listings.listing_rows(db, PageRequest(namespace="default", prefix="web/"))
        )
    )
    return [child_id[-1] for _, child_id, _ in lines]


async def test_only_the_newest_ended_children_are_retained(parent: Parent) -> None:
    await parent.register(kept="2")
    await ended(parent, 4)
    await parent.dispatch()
    await gc.collect_children(parent.store, NOW)
    assert left(parent) == ["2", "3", "4"]


async def test_old_ended_children_are_deleted(parent: Parent) -> None:
    await parent.register(kept_for="1h")
    await ended(parent, 2)
    await parent.store.write(lambda tx: index_times.record_time(tx, NOW))
    await ended(parent, 1)
    await gc.collect_children(parent.store, NOW + HOUR - 1)
    assert left(parent) == ["0", "1", "2"]
    await gc.collect_children(parent.store, NOW + HOUR)
    assert left(parent) == ["2"]


async def test_children_are_not_deleted_by_default(parent: Parent) -> None:
    await parent.register()
    await ended(parent, 2)
    await gc.collect_children(parent.store, NOW + 10_000 * HOUR)
    assert left(parent) == ["0", "1"]
