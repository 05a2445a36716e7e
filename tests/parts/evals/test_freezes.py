"""Freezes over a real store: held jobs, and the jobs that the end of a freeze releases."""

from functools import partial

import pytest

from daemon.evals import explain
from daemon.evals.job_states import state_of
from daemon.jobs import freezes as rules
from daemon.jobs.freezes import FreezeRequest
from daemon.jobs.queues import serve
from daemon.jobs.stop import stop_job
from storage.errors import Conflict, Denied, Malformed, NotFound
from storage.queries import concurrency, events, freezes, periodic
from storage.records.base import HOUR, SECOND
from storage.records.flow import RunActType
from storage.records.job import Periodic
from storage.records.times import rfc3339
from storage.store import Store
from storage.writer import Transaction
from tests.parts.evals.cluster import Cluster
from tests.parts.evals.test_workflows import (
    act,
    at_work,
    begun,
    end,
    run_of,
    states,
    step,
    workflow,
)
from tests.parts.jobs.test_queues import KEY, Queues, queued
from tests.parts.test_loops import running, until
from tests.samples import group, job, task


async def freeze(cluster: Cluster, freeze_id: str = "f", **fields: str) -> None:
    request = FreezeRequest(**{"reason": "release", "namespace": "default", **fields})
    made = rules.freeze_of(request, request.namespace, freeze_id, cluster.clock.now())
    await rules.make(cluster.store, made)


async def thaw(cluster: Cluster, freeze_id: str = "f") -> None:
    await rules.thaw(cluster.store, freeze_id, now=cluster.clock.now())
    await release(cluster)


async def release(cluster: Cluster) -> list[freezes.Key]:
    now = cluster.clock.now()
    ready = cluster.store.read(partial(freezes.thawed, now=now, most=10, without=frozenset()))
    for key in ready:
        work = partial(rules.release, key=key, now=now, eval_id=next(cluster.ids))
        await cluster.store.write(work)
    await cluster.work()
    return ready


def messages(cluster: Cluster, job_id: str = "etl") -> list[str]:
    found = cluster.store.read(lambda db: explain.explain_job(db, "default", job_id))
    assert found is not None
    return [reason.message for reason in found.reasons]


PLAIN = job("etl", group("a", task()), type="batch")


@pytest.mark.parametrize("strength", ["begin", "steps"])
async def test_a_batch_job_waits_for_the_end_of_a_freeze(cluster: Cluster, strength: str) -> None:
    await freeze(cluster, strength=strength, until="+2h")
    await cluster.register(PLAIN)
    await cluster.work()
    assert (at_work(cluster), cluster.job("etl").status) == ([], "pending")
    (message,) = messages(cluster)
    assert message.startswith("held by freeze f until 2026-")
    await thaw(cluster)
    assert (at_work(cluster), cluster.job("etl").status) == (["a"], "running")
    assert cluster.store.read(freezes.held_number) == 0


async def test_freeze_of_changes_delays_no_run(cluster: Cluster) -> None:
    await freeze(cluster, strength="changes")
    await cluster.register(PLAIN)
    await cluster.work()
    assert at_work(cluster) == ["a"]


async def test_services_are_never_frozen(cluster: Cluster) -> None:
    await freeze(cluster, strength="steps", namespace="*")
    await cluster.register(job("etl", group("a", task()), type="service"))
    await cluster.work()
    assert at_work(cluster) == ["a"]


async def test_started_run_continues_during_a_freeze_of_runs(cluster: Cluster) -> None:
    await begun(cluster, workflow(step("a"), step("b", "a")))
    await freeze(cluster)
    await end(cluster, "a")
    await cluster.work()
    assert at_work(cluster) == ["b"]


async def test_run_that_runs_again_continues_during_a_freeze_of_runs(cluster: Cluster) -> None:
    await begun(cluster, workflow(step("a"), step("b", "a")))
    for name in "ab":
        await end(cluster, name)
        await cluster.work()
    await freeze(cluster)
    assert (await act(cluster, RunActType.RERUN, every=True)).done is not None
    await cluster.work()
    assert at_work(cluster) == ["a"]


async def test_freeze_of_steps_delays_the_next_step(cluster: Cluster) -> None:
    await begun(cluster, workflow(step("a"), step("b", "a")))
    await freeze(cluster, strength="steps")
    await end(cluster, "a")
    await cluster.work()
    assert states(cluster) == {"a": "succeeded", "b": "held"}
    assert run_of(cluster).steps[1].reason == "freeze: release"
    await thaw(cluster)
    assert at_work(cluster) == ["b"]


async def test_new_run_starts_after_the_freeze(cluster: Cluster) -> None:
    await freeze(cluster, jobs="e*")
    await begun(cluster, workflow(step("a"), step("b", "a")))
    assert (at_work(cluster), cluster.job("etl").status) == ([], "pending")
    await thaw(cluster)
    assert at_work(cluster) == ["a"]


async def test_overlapping_freezes_all_apply(cluster: Cluster) -> None:
    await freeze(cluster, "f")
    await freeze(cluster, "g", namespace="*", strength="steps")
    await cluster.register(PLAIN)
    await cluster.work()
    await thaw(cluster, "g")
    assert at_work(cluster) == []
    await thaw(cluster, "f")
    assert at_work(cluster) == ["a"]


async def test_held_jobs_are_released_in_the_order_of_their_arrival(cluster: Cluster) -> None:
    await freeze(cluster)
    for name in ("c", "a", "b"):
        await cluster.register(job(name, group("a", task()), type="batch"))
        await cluster.work()
    await rules.thaw(cluster.store, "f", now=cluster.clock.now())
    find = partial(freezes.thawed, now=cluster.clock.now(), most=2, without=frozenset())
    assert cluster.store.read(find) == [("default", "c"), ("default", "a")]
    without = partial(
        freezes.thawed, now=cluster.clock.now(), most=2, without=frozenset({"default/c"})
    )
    assert cluster.store.read(without) == [("default", "a"), ("default", "b")]


async def test_released_jobs_per_second_are_limited_by_a_setting(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await freeze(cluster)
    for number in range(7):
        await cluster.register(job(f"j{number}", group("a", task()), type="batch"))
        await cluster.work()
    await rules.thaw(cluster.store, "f", now=cluster.clock.now())
    released, release_one = list[int](), rules.release

    def recorded(tx: Transaction, key: freezes.Key, now: int, eval_id: str) -> None:
        released.append(now)
        release_one(tx, key, now, eval_id)

    monkeypatch.setattr(rules, "release", recorded)
    begin = cluster.clock.now()
    follow = partial(
        rules.follow_freezes, cluster.store, cluster.clock, cluster.ids, cluster.fences
    )
    async with running(partial(follow, per_second=3)):
        for second, number in enumerate((3, 6, 7)):
            cluster.clock.time = begin + second * SECOND
            await freeze(cluster, f"wake-{second}", jobs="none")
            await until(lambda number=number: len(released) == number)
    assert released == [begin] * 3 + [begin + SECOND] * 3 + [begin + 2 * SECOND]


async def test_freeze_ends_on_time(cluster: Cluster) -> None:
    await freeze(cluster, until="+1h")
    await cluster.register(PLAIN)
    await cluster.work()
    cluster.clock.time += HOUR
    work = partial(rules.end_in_time, freeze_id="f", now=cluster.clock.now())
    await cluster.store.write(work)
    assert await release(cluster) == [("default", "etl")]
    assert at_work(cluster) == ["a"]
    with pytest.raises(Conflict, match="freeze f has ended at 2026-"):
        await rules.thaw(cluster.store, "f", now=cluster.clock.now())
    with pytest.raises(NotFound):
        await rules.thaw(cluster.store, "none", now=cluster.clock.now())


async def test_stopped_job_is_released_from_a_freeze(cluster: Cluster) -> None:
    await freeze(cluster)
    await cluster.register(PLAIN)
    await cluster.work()
    await _stop(cluster, overrides=False)
    await cluster.work()
    assert cluster.job("etl").status == "dead"
    assert cluster.store.read(freezes.held_number) == 0


async def _stop(cluster: Cluster, *, overrides: bool) -> None:
    await stop_job(
        cluster.store,
        "default",
        "etl",
        purge=False,
        eval_priority=0,
        no_shutdown_delay=False,
        overrides=overrides,
        now=cluster.clock.now(),
        eval_id=next(cluster.ids),
    )


async def test_changes_are_refused_without_the_capability(cluster: Cluster) -> None:
    await cluster.register(PLAIN)
    await freeze(cluster, strength="changes", until="+1h")
    with pytest.raises(Denied) as caught:
        await _stop(cluster, overrides=False)
    assert 'job "etl" cannot be changed until 2026-' in str(caught.value)
    assert 'because of freeze f (release): wait for its end, or request the capability "' in str(
        caught.value
    )
    assert not cluster.job("etl").stop
    await _stop(cluster, overrides=True)
    assert cluster.job("etl").stop


async def test_the_number_of_freezes_is_limited(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "MOST_OPEN", 1)
    await freeze(cluster)
    with pytest.raises(Malformed, match='namespace "default" has 1 freezes, which is the maximum'):
        await freeze(cluster, "g")
    with pytest.raises(Malformed, match='Namespace = "none" does not exist'):
        await freeze(cluster, "g", namespace="none")


async def test_old_freezes_are_deleted_without_waiting_jobs(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(freezes, "KEPT", 1)
    await freeze(cluster, "f")
    await cluster.register(PLAIN)
    await cluster.work()
    for name in "fgh":
        if name != "f":
            await freeze(cluster, name)
        await rules.thaw(cluster.store, name, now=cluster.clock.now())
        cluster.clock.time += HOUR
    kept = [name for name in "fgh" if cluster.store.read(partial(freezes.find, freeze_id=name))]
    assert kept == ["f", "h"]
    assert await release(cluster) == [("default", "etl")]


async def test_freezes_are_in_the_event_stream(cluster: Cluster) -> None:
    before = cluster.store.read(events.newest)
    await freeze(cluster)
    await rules.thaw(cluster.store, "f", now=cluster.clock.now())
    found = cluster.store.read(lambda db: list(events.after(db, before, 10)))
    assert [(event.topic, event.type) for event in found] == [
        ("Freeze", "FreezeCreated"),
        ("Freeze", "FreezeEnded"),
    ]


# --- queues ---


async def frozen_queue(store: Store, **fields: str) -> Queues:
    """Return a queue in which the run of `a` holds the slot, and a freeze."""
    queues = Queues(store)
    await queues.cluster.join()
    await queues.register(queued("a"))
    await freeze(queues.cluster, **fields)
    return queues


async def test_frozen_run_waits_in_its_queue_without_a_slot(store: Store) -> None:
    queues = await frozen_queue(store, jobs="b")
    await queues.register(queued("b", priority=90), queued("c"))
    await queues.end("a")
    assert queues.at_work("b", "c") == ["c"]
    await thaw(queues.cluster)
    await queues.settle()
    assert queues.at_work("b", "c") == ["c"]
    await queues.end("c")
    assert queues.at_work("b", "c") == ["b"]


async def test_queued_run_gets_no_slot_during_a_freeze(store: Store) -> None:
    queues = Queues(store)
    await queues.cluster.join()
    await queues.register(queued("a"), queued("b"), queued("c"))
    await freeze(queues.cluster, jobs="b")
    await queues.end("a")
    assert queues.at_work("b", "c") == ["c"]
    assert messages(queues.cluster, "b")[0] == "held by freeze f: release"
    await queues.end("c")
    assert queues.at_work("b", "c") == []
    await thaw(queues.cluster)
    await queues.settle()
    assert queues.at_work("b", "c") == ["b"]


async def test_frozen_run_releases_its_slot(store: Store) -> None:
    queues = Queues(store)
    await queues.cluster.join()
    await queues.register(queued("a"), queued("c"))
    await queues.store.write(partial(concurrency.set_limit, key=KEY, slots=2, note=""))
    now = queues.cluster.clock.now()
    await store.write(partial(serve, key=KEY, now=now, ids=queues.cluster.ids))
    await freeze(queues.cluster, jobs="c")  # between the grant and the decision
    await queues.cluster.work()
    assert queues.holders() == ["a"]
    await queues.register(queued("d"))
    assert queues.at_work("c", "d") == ["d"]
    assert queues.broken() == []


async def test_run_without_a_queue_slot_is_not_canceled_during_a_freeze(store: Store) -> None:
    queues = await frozen_queue(store, jobs="b")
    await queues.register(queued("b", beyond="skip"))
    assert queues.status("b") == ("running", "")
    await queues.end("a")
    await thaw(queues.cluster)
    await queues.settle()
    assert queues.at_work("b") == ["b"]


async def test_state_of_a_job_names_the_freeze(cluster: Cluster) -> None:
    await begun(cluster, workflow(step("a"), step("b", "a")))
    await freeze(cluster, strength="steps", until="+1h")
    until = rfc3339((cluster.clock.now() + HOUR) // SECOND * SECOND)
    await end(cluster, "a")
    await cluster.work()
    state = cluster.store.read(lambda db: state_of(db, "default", "etl", cluster.clock.now()))
    assert state is not None
    assert (state.word, state.reason) == ("pending", f"held by freeze f until {until}: release")
    assert state.reason in messages(cluster)


async def test_explanation_of_a_schedule_names_the_freeze_of_the_next_slot(
    cluster: Cluster,
) -> None:
    hourly = Periodic(specs=["0 * * * *"])
    await cluster.register(job("etl", group("a", task()), type="batch", periodic=hourly))
    slot = cluster.clock.now() + HOUR
    times = {"followed_to": cluster.clock.now(), "next_slot": slot}
    await cluster.store.write(lambda tx: periodic.advance(tx, "default", "etl", **times))
    assert messages(cluster) == [f"its next child is launched at {rfc3339(slot)}"]
    await freeze(cluster, until="+3h")
    until = rfc3339((cluster.clock.now() + 3 * HOUR) // SECOND * SECOND)
    assert messages(cluster) == [
        f"the slot of {rfc3339(slot)} is held by freeze f until {until}: release"
    ]
