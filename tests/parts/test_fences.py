"""Fences over a store: faults outlive a restart, and work that ends the daemon counts as an attempt."""

from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from daemon.api.cluster import operator
from daemon.api.routes import OPERATOR_WRITE
from daemon.evals.explain import explain_job
from daemon.evals.gc import RetentionLimits
from daemon.evals.worker import open_evals
from daemon.fences import ATTEMPTS, Fences, open_fences
from daemon.jobs.periodic import open_periodic
from storage.errors import Malformed, NotFound
from storage.queries import faults, job_status, jobs
from storage.records.evaluation import EvalStatus
from storage.records.explanation import Cause, Reason
from storage.records.job import Periodic
from storage.store import Store, open_store
from storage.wal_watermark import HAND_NAME, Hand
from storage.writer import Transaction
from tests.parts.api.requests import caller, request
from tests.parts.evals.cluster import Cluster, Ticking, ids
from tests.samples import NOW, job
from tests.time_limits import HAPPENS_WITHIN

HOUR = 3600 * 10**9


@pytest.fixture
async def cluster(store: Store) -> Cluster:
    made = Cluster(store)
    await made.join()
    return made


def broken(fences: Fences, kind: str = "unit", key: str = "a") -> None:
    with fences.around(kind, key):
        raise ValueError("no")


async def test_faults_survive_a_restart_and_success_is_stored(tmp_path: Path) -> None:
    clock = Ticking()
    opening = partial(open_store, tmp_path, cluster_id="c", now=NOW)
    async with opening() as store, open_fences(store, clock, tmp_path) as fences:
        broken(fences)
        broken(fences)
        broken(fences, key="b")
    async with opening() as store, open_fences(store, clock, tmp_path) as fences:
        assert [(fault.key, fault.failures) for fault in fences.faults()] == [("a", 2), ("b", 1)]
        broken(fences)
        assert fences.faults()[0].is_closed
        with fences.around("unit", "b"):
            pass
    async with opening() as store, open_fences(store, clock, tmp_path) as fences:
        assert [(fault.key, fault.failures) for fault in fences.faults()] == [("a", 3)]


async def test_faults_saved_during_a_write_are_stored(store: Store, tmp_path: Path) -> None:
    async with open_fences(store, Ticking(), tmp_path) as fences:
        await trio.testing.wait_all_tasks_blocked()
        await fences.save(store)
        with store.watch(faults.TOPIC) as change, trio.fail_after(HAPPENS_WITHIN):
            broken(fences)
            await change.wait()
    assert [fault.key for fault in store.read(faults.list_all)] == ["a"]


async def test_release_wakes_the_unit_before_its_fault_is_stored(
    store: Store, tmp_path: Path
) -> None:
    async with open_fences(store, Ticking(), tmp_path) as fences:
        with store.watch(faults.TOPIC) as change, trio.fail_after(HAPPENS_WITHIN):
            broken(fences)
            fences.release("unit", "a")
            await change.wait()


async def test_only_the_active_unit_fails_after_a_crash_of_the_daemon(
    store: Store, tmp_path: Path
) -> None:
    clock = Ticking()
    async with open_fences(store, clock, tmp_path) as fences:
        with fences.at_work("unit", ["done"]):
            pass
        with fences.at_work("unit", ["a"]):
            killed = (tmp_path / HAND_NAME).read_bytes()
    assert Hand(tmp_path).found == []  # no unit remains after a regular end
    for number in range(1, ATTEMPTS + 1):
        (tmp_path / HAND_NAME).write_bytes(killed)
        async with open_fences(store, clock, tmp_path) as fences:
            assert [(fault.key, fault.failures) for fault in fences.faults()] == [("a", number)]
            assert bool(fences.paused_keys("unit")) == (
                number > 1
            )  # one crash does not pause a unit, because most such units are not the cause
    assert fences.faults()[0].is_closed


@pytest.mark.parametrize("text", [b"", b"x", b"0000000099[[", b"0000000004nope", b"\xff" * 30])
def test_truncated_note_names_no_unit(tmp_path: Path, text: bytes) -> None:
    (tmp_path / HAND_NAME).write_bytes(text)
    assert Hand(tmp_path).found == []


def test_shorter_note_replaces_a_longer_one(tmp_path: Path) -> None:
    hand = Hand(tmp_path)
    hand.record([("unit", "x" * 200), ("unit", "b")])
    hand.record([("unit", "a")])
    assert Hand(tmp_path).found == [("unit", "a")]


async def test_evaluation_that_crashed_the_daemon_three_times_fails_and_the_next_is_processed(
    cluster: Cluster, tmp_path: Path
) -> None:
    poison = await cluster.register(job("poison", priority=90))
    other = await cluster.register(job("web"))
    for _ in range(ATTEMPTS):
        Hand(tmp_path).record([("evaluation", poison.id), ("evaluation", other.id)])
        async with open_fences(cluster.store, cluster.clock, tmp_path) as fences:
            with fences.around("evaluation", other.id):
                pass  # `other` succeeds when it runs alone
    async with (
        open_fences(cluster.store, cluster.clock, tmp_path) as fences,
        open_evals(cluster.store, cluster.clock, cluster.ids, RetentionLimits(), fences),
    ):
        with trio.fail_after(HAPPENS_WITHIN), cluster.store.watch("evaluations/") as change:
            while cluster.evaluation(other.id).status != EvalStatus.COMPLETE:
                await change.wait()
        failed = cluster.evaluation(poison.id)
        assert failed.status == EvalStatus.FAILED
        assert "the daemon crashed while it processed this" in failed.status_description
        assert fences.faults() == []
        reason = first_reason(cluster.store, "poison")
        assert reason.cause == Cause.BROKEN
        assert "the daemon crashed while" in reason.message


async def test_suspected_evaluation_is_processed_alone(cluster: Cluster) -> None:
    from daemon.evals.worker import next_evaluations

    made = [await cluster.register(job(f"job-{number}")) for number in range(4)]
    chosen = partial(next_evaluations, now=NOW)
    assert len(cluster.store.read(chosen)) == len(made)
    suspects = frozenset({made[2].id})
    assert [pair.id for pair in cluster.store.read(partial(chosen, suspects=suspects))] == [
        made[2].id
    ]


async def test_fault_of_an_otherwise_ended_evaluation_is_deleted(
    cluster: Cluster, tmp_path: Path
) -> None:
    async with open_fences(cluster.store, cluster.clock, tmp_path) as fences:
        broken(fences, "evaluation", "gone")
        async with open_evals(cluster.store, cluster.clock, cluster.ids, RetentionLimits(), fences):
            with trio.fail_after(HAPPENS_WITHIN), cluster.store.watch(faults.TOPIC) as change:
                while cluster.store.read(faults.list_all):
                    await change.wait()


async def put_clock(store: Store, job_id: str, **fields: Any) -> None:
    def work(tx: Transaction) -> None:
        made = jobs.append_version(tx, job(job_id, type="batch", submit_time=NOW, **fields))
        job_status.refresh_summary(tx, made.namespace, made.id)

    await store.write(work)


async def test_costly_schedule_is_disabled_across_restarts_until_released(
    store: Store, tmp_path: Path
) -> None:
    clock = Ticking()
    many = [f"{second} {minute} * * * * *" for second in range(60) for minute in range(50)]
    await put_clock(store, "costly", periodic=Periodic(specs=many))
    await put_clock(store, "web", periodic=Periodic(spec="0 * * * *"))
    clock.time = NOW + 2 * HOUR
    for _ in range(2):
        async with (
            open_fences(store, clock, tmp_path) as fences,
            open_periodic(store, clock, ids(), fences),
        ):
            with trio.fail_after(HAPPENS_WITHIN):
                with store.watch(faults.TOPIC, "periodic-slots/default/web") as change:
                    while not (store.read(faults.list_all) and ledger(store, "web")):
                        await change.wait()
            (fault,) = fences.faults()
            assert (fault.kind, fault.is_closed) == ("periodic job", True)
            assert fault.key.startswith("default/costly ")
            assert "fewer Specs" in fault.reason
            assert ledger(store, "costly") == 0
            reason = first_reason(store, "costly")
            assert reason.cause == Cause.BROKEN
            assert fault.key in reason.message
    async with (
        open_fences(store, clock, tmp_path) as fences,
        open_periodic(store, clock, ids(), fences, most_specs=0),
    ):
        asked = request(
            store, OPERATOR_WRITE, caller(), body={"Kind": fault.kind, "Key": fault.key}
        )
        parts = msgspec.structs.replace(asked.parts, fences=fences)
        await operator.release_fault(msgspec.structs.replace(asked, parts=parts))
        with trio.fail_after(HAPPENS_WITHIN):
            with store.watch("periodic-slots/default/costly") as change:
                while not ledger(store, "costly"):
                    await change.wait()
        assert fences.faults() == []


def first_reason(store: Store, job_id: str) -> Reason:
    found = store.read(lambda db: explain_job(db, "default", job_id))
    assert found is not None
    return found.reasons[0]


def ledger(store: Store, job_id: str) -> int:
    from storage.queries import periodic

    return len(store.read(lambda db: list(periodic.slots(db, "default", job_id))))


async def test_unknown_fault_cannot_be_released(store: Store) -> None:
    for body, error in (({"Kind": "x"}, Malformed), ({"Kind": "x", "Key": "y"}, NotFound)):
        with pytest.raises(error):
            await operator.release_fault(request(store, OPERATOR_WRITE, caller(), body=body))
