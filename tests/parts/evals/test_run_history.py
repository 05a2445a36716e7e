"""The children of a job over time: days, results and bounds."""

import pytest

from daemon.evals import job_states, run_history
from daemon.evals.run_history import RunFilter, calendar, selected
from storage.queries import periodic
from storage.records.allocation import ClientStatus
from storage.records.base import HOUR, MINUTE, SECOND
from storage.records.job import JobType, Parameterized, Periodic
from storage.records.periodic import Slot, SlotOutcome
from storage.records.state import RunDay
from storage.store import Store
from storage.writer import Transaction
from tests.parts.evals.cluster import Cluster
from tests.samples import NOW, group, job

DAY = 24 * HOUR
PARENT = job("web", type=JobType.BATCH, parameterized_job=Parameterized(meta_optional=["file"]))


@pytest.fixture
async def cluster(store: Store) -> Cluster:
    found = Cluster(store)
    await found.join()
    await found.register(PARENT)
    return found


async def run(cluster: Cluster, name: str, at: int, status: ClientStatus) -> None:
    """Run a child that began at a time to its end."""
    child = job(
        f"web/{name}",
        group(),
        type=JobType.BATCH,
        parent_id="web",
        submit_time=at,
        meta={"file": name, "other": "x"},
        parameterized_job=Parameterized(meta_optional=["file"]),
        payload="aGVsbG8=",
        dispatched=True,
    )
    await cluster.register(child)
    await cluster.work()
    (one,) = cluster.allocations(child.id)
    await cluster.report(one, ClientStatus.RUNNING)
    if status != ClientStatus.RUNNING:
        await cluster.report(cluster.allocations(child.id)[0], status)


async def test_days_count_results(cluster: Cluster) -> None:
    await run(cluster, "a", NOW, ClientStatus.COMPLETE)
    await run(cluster, "b", NOW, ClientStatus.COMPLETE)
    await run(cluster, "c", NOW - 2 * DAY, ClientStatus.COMPLETE)
    await run(cluster, "d", NOW - 400 * DAY, ClientStatus.COMPLETE)
    found = cluster.store.read(lambda db: calendar(db, cluster.job(), NOW))
    assert (found.zone, found.today, found.since) == ("UTC", "2026-11-21", "")
    assert found.days == [
        RunDay(date="2026-11-19", results={"complete": 1}),
        RunDay(date="2026-11-21", results={"complete": 2}),
    ]


async def test_day_of_a_run_is_the_day_of_its_slot(store: Store) -> None:
    cluster = Cluster(store)
    await cluster.join()
    clock = Periodic(enabled=True, spec="0 1 * * *", time_zone="America/New_York")
    await cluster.register(job("web", type=JobType.BATCH, periodic=clock))
    await run(cluster, "a", NOW, ClientStatus.COMPLETE)
    found = store.read(lambda db: calendar(db, cluster.job(), NOW))
    assert (found.today, [day.date for day in found.days]) == ("2026-11-20", ["2026-11-20"])


async def test_days_count_slots_without_a_launch_in_time(cluster: Cluster) -> None:
    def decide(tx: Transaction) -> None:
        for number, (outcome, late) in enumerate(
            [
                (SlotOutcome.LAUNCHED, 1),
                (SlotOutcome.LAUNCHED, 2 * MINUTE),
                (SlotOutcome.CAUGHT_UP, HOUR),
                (SlotOutcome.SKIPPED, HOUR),
            ]
        ):
            at = NOW - number
            slot = Slot(slot=at, slots=1, decided_at=at + late, outcome=outcome)
            periodic.add_slot(tx, "default", "web", slot)

    await cluster.store.write(decide)
    (day,) = cluster.store.read(lambda db: calendar(db, cluster.job(), NOW)).days
    assert (day.late, day.caught_up, day.skipped, day.results) == (1, 1, 1, {})


async def test_calendar_has_the_first_complete_day(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_history, "_SCANNED", 1)
    await run(cluster, "a", NOW - DAY, ClientStatus.COMPLETE)
    await run(cluster, "b", NOW - DAY, ClientStatus.COMPLETE)
    found = cluster.store.read(lambda db: calendar(db, cluster.job(), NOW))
    assert found.since == "2026-11-21"


async def test_runs_of_a_day_and_of_a_result_are_found(cluster: Cluster) -> None:
    await run(cluster, "a", NOW - DAY, ClientStatus.COMPLETE)
    await run(cluster, "b", NOW - DAY, ClientStatus.RUNNING)
    await run(cluster, "c", NOW, ClientStatus.COMPLETE)

    def ids(run_filter: RunFilter, most: int = 9) -> list[str]:
        found = cluster.store.read(lambda db: selected(db, cluster.job(), NOW, most, run_filter))
        return [item.id.removeprefix("web/") for item in found]

    assert ids(RunFilter()) == ["c", "b", "a"]
    assert ids(RunFilter(), 2) == ["c", "b"]
    assert ids(RunFilter(day="2026-11-20")) == ["b", "a"]
    assert ids(RunFilter(result="complete")) == ["c", "a"]
    assert ids(RunFilter(result="complete"), 1) == ["c"]
    assert ids(RunFilter(result="active")) == ["b"]
    assert ids(RunFilter(result="failed")) == []
    assert ids(RunFilter(day="2026-11-20", result="complete")) == ["a"]


async def test_run_has_the_input_of_its_dispatch(cluster: Cluster) -> None:
    await run(cluster, "a", NOW, ClientStatus.COMPLETE)
    run_filter = RunFilter(result="complete")
    (one,) = cluster.store.read(lambda db: selected(db, cluster.job(), NOW, 9, run_filter))
    assert (one.meta, one.payload_size) == ({"file": "a"}, 5)


async def test_state_of_a_parent_has_the_duration_of_its_last_run(cluster: Cluster) -> None:
    await run(cluster, "a", NOW, ClientStatus.RUNNING)
    cluster.wait(90)
    await cluster.report(cluster.allocations("web/a")[0], ClientStatus.COMPLETE)
    facts = cluster.store.read(lambda db: job_states.facts_of(db, "default", "web", NOW))
    assert facts is not None
    assert facts.runs is not None
    assert (facts.runs.last_id, facts.runs.last_duration) == ("web/a", 90 * SECOND)
