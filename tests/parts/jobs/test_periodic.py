"""Periodic jobs: every slot is decided once, and its outcome is recorded."""

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, tzinfo
from functools import partial
from itertools import count, islice
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from daemon.evals.dry_run import dry_run
from daemon.fences import ATTEMPTS, Fences
from daemon.jobs.dispatch import DispatchRequestData, dispatch_job
from daemon.jobs.periodic import (
    Slots,
    decide_slot,
    decided_until,
    derive_periodic_child,
    each_slot,
    force,
    launch_jitter,
    next_launches,
    next_slot,
    open_periodic,
    pause,
    precompute_slots,
    zone_of,
)
from daemon.jobspec import cron
from daemon.jobspec.steward_meta.job_keys import JITTER
from storage.errors import Malformed, NotFound, Refused
from storage.queries import evaluations, job_listings, job_status, jobs, periodic
from storage.queries.pages import PageRequest
from storage.records.base import HOUR, MINUTE, SECOND
from storage.records.freeze import Freeze, Strength
from storage.records.job import Job, Parameterized, Periodic, VersionTag
from storage.records.periodic import Slot
from storage.store import Store
from storage.writer import Transaction
from tests.parts.evals.cluster import Ticking, ids
from tests.samples import NOW, job
from tests.time_limits import HAPPENS_WITHIN

NEXT_AFTER = cron.next_after
HOURLY = Periodic(specs=["0 * * * *"])
QUARTERS = Periodic(specs=["*/15 * * * *"])
FIRST = NOW + 20 * MINUTE  # 02:00, the first slot of an hourly job


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * SECOND


async def register(store: Store, block: Periodic | None = HOURLY, **fields: Any) -> None:
    made = job("web", type="batch", periodic=block, **fields)

    def work(tx: Transaction) -> None:
        jobs.append_version(tx, made)
        job_status.refresh_summary(tx, made.namespace, made.id)

    await store.write(work)


async def look(store: Store, now: int, *, started: int = 0, eval_id: str = "e-launch") -> None:
    """Decide the due slots, as the loop does."""
    while True:
        due = store.read(lambda db: periodic.due(db, now, 10))
        if not due:
            return
        for key, slots in store.read(partial(precompute_slots, due_launches=due, now=now)).items():

            def work(tx: Transaction, key: tuple[str, str] = key, slots: Slots = slots) -> None:
                decide_slot(
                    tx, *key, slots, started=started, now=now, eval_id=f"{eval_id}-{tx.index}"
                )

            await store.write(work)


def ledger(store: Store) -> list[Slot]:
    return store.read(lambda db: list(periodic.slots(db, "default", "web")))


def outcomes(store: Store) -> list[tuple[int, str]]:
    return [(entry.slot, entry.outcome) for entry in reversed(ledger(store))]


def children(store: Store) -> list[str]:
    page_request = PageRequest(namespace="default", prefix="web/")
    return store.read(lambda db: [line.id for line in job_listings.listing_rows(db, page_request)])


def next_of(store: Store) -> int | None:
    found = store.read(lambda db: periodic.of_job(db, "default", "web"))
    return found.next_slot if found else None


# ---- a slot ---------------------------------------------------------------------------------------


async def test_a_new_job_waits_for_its_first_slot(store: Store) -> None:
    await register(store)
    await look(store, NOW)
    assert (next_of(store), children(store)) == (FIRST, [])
    await look(store, FIRST - 1)
    assert children(store) == []


async def test_a_slot_launches_a_child_named_after_it(store: Store) -> None:
    await register(store, meta={"a": "b"})
    await look(store, NOW)
    await look(store, FIRST + 3 * SECOND)
    (child_id,) = children(store)
    assert child_id == f"web/periodic-{FIRST // SECOND}"
    child = store.read(lambda db: jobs.current(db, "default", child_id))
    assert child is not None
    assert (child.name, child.parent_id, child.periodic) == (child_id, "web", None)
    assert (child.dispatched, child.meta, child.status) == (False, {"a": "b"}, "pending")
    (made,) = store.read(lambda db: evaluations.unfinished(db, "default", child_id))
    assert (made.triggered_by, made.job_modify_index) == ("periodic-job", child.job_modify_index)
    (line,) = ledger(store)
    assert (line.slot, line.outcome, line.child_id) == (FIRST, "launched", child_id)
    assert next_of(store) == FIRST + HOUR


async def test_a_slot_is_decided_once(store: Store) -> None:
    await register(store)
    await look(store, NOW)
    for _ in range(3):
        await look(store, FIRST)
    assert len(children(store)) == 1


async def test_several_specs_form_one_schedule(store: Store) -> None:
    await register(store, Periodic(specs=["0 * * * *", "30 * * * *", "0 2 * * *"]))
    await look(store, NOW)
    await look(store, FIRST)
    await look(store, FIRST + 30 * MINUTE)
    assert outcomes(store) == [(FIRST, "launched"), (FIRST + 30 * MINUTE, "launched")]


@pytest.mark.parametrize(
    ("prohibit", "wanted"),
    [(True, ["launched", "skipped", "launched"]), (False, ["launched", "launched", "launched"])],
)
async def test_overlap_is_prohibited_if_configured(
    store: Store, prohibit: bool, wanted: list[str]
) -> None:
    await register(store, msgspec.structs.replace(HOURLY, prohibit_overlap=prohibit))
    await look(store, NOW)
    await look(store, FIRST)
    await look(store, FIRST + HOUR)
    await finish_children(store)
    await look(store, FIRST + 2 * HOUR)
    assert [outcome for _, outcome in outcomes(store)] == wanted


async def finish_children(store: Store) -> None:
    def work(tx: Transaction) -> None:
        for child_id in children(store):
            for evaluation in evaluations.unfinished(tx, "default", child_id):
                evaluations.put(tx, msgspec.structs.replace(evaluation, status="complete"), NOW)
            job_status.refresh_summary(tx, "default", child_id)

    await store.write(work)


async def test_ledger_has_the_reason_of_a_missing_launch(store: Store) -> None:
    await register(store, msgspec.structs.replace(HOURLY, prohibit_overlap=True))
    await look(store, NOW)
    await look(store, FIRST)
    await look(store, FIRST + HOUR)
    newest = ledger(store)[0]
    assert (newest.reason, newest.child_id) == (
        "a child is still active and overlap is prohibited",
        "",
    )


async def test_ledger_retains_its_newest_lines(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(periodic, "KEPT", 3)
    await register(store)
    await look(store, NOW)
    for hour in range(5):
        await look(store, FIRST + hour * HOUR)
    assert [slot for slot, _ in outcomes(store)] == [FIRST + n * HOUR for n in (2, 3, 4)]


async def test_schedule_without_further_times_launches_no_more(store: Store) -> None:
    await register(store, Periodic(specs=["0 2 21 11 * 2026"]))
    await look(store, NOW)
    await look(store, FIRST)
    assert (next_of(store), len(children(store))) == (periodic.NEVER, 1)
    assert store.read(periodic.next_time) is None


# ---- missed slots ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("back_after", "wanted"),
    [
        # the daemon was down during several slots: one launch for all
        (2 * HOUR + MINUTE, [(FIRST, "caught-up")]),
        # the daemon was down during one slot
        (50 * MINUTE, [(FIRST, "caught-up")]),
        # the daemon was back before the slot
        (5 * MINUTE, []),
    ],
)
async def test_slots_missed_while_the_daemon_was_down_become_one_launch(
    store: Store, back_after: int, wanted: list[tuple[int, str]]
) -> None:
    await register(store)
    await look(store, NOW)
    back = NOW + back_after
    await look(store, back, started=back)
    assert outcomes(store) == wanted
    assert children(store) == [f"web/periodic-{back // SECOND}" for _ in wanted]
    following = next_of(store)
    assert following is not None
    assert following > back


async def test_job_without_catch_up_skips_missed_slots(store: Store) -> None:
    await register(store, QUARTERS, meta={"steward_catch_up": "none"})
    await look(store, NOW)
    back = NOW + 2 * HOUR + MINUTE
    await look(store, back, started=back)
    (line,) = ledger(store)
    assert (line.outcome, line.slots, line.child_id) == ("skipped", 8, "")
    assert line.reason == "it was missed, and this job does not catch up"
    assert children(store) == []
    assert next_of(store) == NOW + 2 * HOUR + 5 * MINUTE


@pytest.mark.parametrize(("most", "skipped", "launched"), [("3", 5, 3), ("8", 0, 8), ("100", 0, 8)])
async def test_job_with_full_catch_up_launches_for_each_of_the_newest_slots(
    store: Store, most: str, skipped: int, launched: int
) -> None:
    meta = {"steward_catch_up": "all", "steward_catch_up_most": most}
    await register(store, QUARTERS, meta=meta)
    await look(store, NOW)
    back = NOW + 2 * HOUR + MINUTE
    await look(store, back, started=back)
    slots = [NOW + 5 * MINUTE + number * 15 * MINUTE for number in range(8)]
    assert sum(entry.slots for entry in ledger(store) if entry.outcome == "skipped") == skipped
    assert [slot for slot, outcome in outcomes(store) if outcome == "caught-up"] == slots[
        -launched:
    ]
    assert children(store) == [f"web/periodic-{slot // SECOND}" for slot in slots[-launched:]]
    assert next_of(store) == slots[-1] + 15 * MINUTE


async def test_slots_beyond_one_batch_are_all_decided(store: Store) -> None:
    meta = {"steward_catch_up": "all", "steward_catch_up_most": "2"}
    await register(store, Periodic(specs=["* * * * *"]), meta=meta)
    await look(store, NOW)
    back = NOW + 50 * HOUR
    await look(store, back, started=back)
    assert sum(entry.slots for entry in ledger(store)) == 50 * 60
    assert len(children(store)) == 2


async def test_jitter_delays_the_launch_but_not_the_slot(store: Store) -> None:
    await register(store, meta={"steward_jitter": "10m"})
    made = store.read(lambda db: jobs.current(db, "default", "web"))
    assert made is not None
    late = launch_jitter(made)
    assert 0 < late <= 10 * MINUTE
    await look(store, NOW)
    assert next_of(store) == FIRST + late
    await look(store, FIRST + late - 1)
    assert children(store) == []
    await look(store, FIRST + late)
    assert children(store) == [f"web/periodic-{FIRST // SECOND}"]
    assert outcomes(store) == [(FIRST, "launched")]
    assert next_of(store) == FIRST + HOUR + late


def test_jitter_differs_between_jobs_and_is_constant_for_each_job() -> None:
    late = [launch_jitter(job(f"job-{n}", meta={"steward_jitter": "1h"})) for n in range(50)]
    again = [launch_jitter(job(f"job-{n}", meta={"steward_jitter": "1h"})) for n in range(50)]
    assert late == again
    assert len(set(late)) > 40
    assert all(0 <= item <= HOUR and item % SECOND == 0 for item in late)


async def test_ledger_counts_missed_slots(store: Store) -> None:
    await register(store, QUARTERS)
    await look(store, NOW)
    back = NOW + 2 * HOUR + MINUTE
    await look(store, back, started=back)
    (line,) = ledger(store)
    assert (line.slot, line.slots) == (NOW + 5 * MINUTE, 8)


async def test_nothing_is_caught_up_during_a_running_child_with_prohibited_overlap(
    store: Store,
) -> None:
    await register(store, msgspec.structs.replace(HOURLY, prohibit_overlap=True))
    await look(store, NOW)
    await look(store, FIRST)
    back = FIRST + 3 * HOUR + MINUTE
    await look(store, back, started=back)
    assert outcomes(store) == [(FIRST, "launched"), (FIRST + HOUR, "skipped")]


async def test_suspended_host_does_not_launch_for_every_slot(store: Store) -> None:
    await register(store, QUARTERS)
    await look(store, NOW)
    await look(store, NOW + 10 * HOUR)  # the same daemon, much later
    assert len(children(store)) == 1


async def test_slightly_late_loop_launches_for_every_slot(store: Store) -> None:
    await register(store, Periodic(specs=["* * * * * * *"]))
    await look(store, NOW)
    await look(store, NOW + 4 * SECOND)
    assert len(children(store)) == 4


async def test_clock_set_back_launches_nothing_twice(store: Store) -> None:
    await register(store)
    await look(store, NOW)
    await look(store, FIRST)
    await look(store, NOW)
    await look(store, FIRST + MINUTE)
    assert len(children(store)) == 1


async def test_next_launches_after_the_clock_was_set_back_begin_after_the_last_slot(
    store: Store,
) -> None:
    made = job("web", type="batch", periodic=HOURLY)
    await register(store)
    await look(store, NOW)
    await look(store, FIRST + 5 * HOUR)
    after = store.read(lambda db: decided_until(db, made, NOW))
    upcoming = store.read(lambda db: [*periodic.upcoming(db, "default")])
    assert next_launches(made, after)[0] == upcoming[0].launch == FIRST + 6 * HOUR
    assert next_launches(made, NOW)[0] == FIRST
    planned = store.read(lambda db: dry_run(db, made, now=NOW, ids=map(str, count())))
    assert planned.next_launch == upcoming[0].launch


# ---- changes of the job ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {"block": msgspec.structs.replace(HOURLY, enabled=False)},
        {"stop": True},
        {"parameterized_job": Parameterized()},
    ],
)
async def test_disabled_or_stopped_job_is_not_scheduled(
    store: Store, fields: dict[str, Any]
) -> None:
    await register(store)
    await look(store, NOW)
    await register(store, **fields)
    assert store.read(periodic.next_time) is None
    await look(store, FIRST)
    assert children(store) == []
    with pytest.raises(Refused, match="can't force run non-tracked job"):
        await force(store, "default", "web", now=NOW, eval_id="e")


async def test_schedule_of_a_parameterized_job_applies_to_its_children(store: Store) -> None:
    await register(store, parameterized_job=Parameterized())
    request = DispatchRequestData(payload=b"", meta={})
    outcome = await dispatch_job(
        store, "default", "web", request, now=NOW, ids=iter(["e"]), suffix="s"
    )
    assert outcome.eval_id == ""  # a periodic job is not evaluated
    child = store.read(lambda db: jobs.current(db, "default", outcome.job_id))
    assert child is not None
    assert child.status == "running"
    await look(store, FIRST)
    assert children(store) == [outcome.job_id, f"{outcome.job_id}/periodic-{FIRST // SECOND}"]


async def test_schedule_that_an_earlier_version_stored_for_a_parameterized_job_ends(
    store: Store,
) -> None:
    await register(store)
    await register(store, parameterized_job=Parameterized())
    key = {"job_id": "web", "to": NOW}
    row = "INSERT INTO periodic_jobs (namespace, job_id, followed_to) VALUES ('default', :job_id, :to)"
    await store.write(lambda tx: tx.execute(row, key))
    await look(store, FIRST)
    assert (children(store), next_of(store)) == ([], None)


async def test_restarted_job_does_not_catch_up(store: Store) -> None:
    await register(store)
    await look(store, NOW)
    await register(store, stop=True)
    again = FIRST + 5 * HOUR + MINUTE
    await register(store, submit_time=again)
    await look(store, again, started=again)
    assert (children(store), next_of(store)) == ([], FIRST + 6 * HOUR)


async def test_changed_schedule_applies_from_its_registration(store: Store) -> None:
    await register(store, Periodic(specs=["0 2 * * *"]))
    await look(store, NOW)
    await look(store, FIRST)
    changed = FIRST + 8 * HOUR
    await register(store, Periodic(specs=["0 9 * * *"]), submit_time=changed)
    await look(store, changed)
    assert (len(children(store)), next_of(store)) == (1, at("2026-11-22T09:00"))


async def test_new_version_with_the_same_schedule_loses_no_slot(store: Store) -> None:
    await register(store)
    await look(store, NOW)
    late = FIRST + 5 * SECOND
    await register(store, priority=60, submit_time=late)
    await look(store, late)
    assert (outcomes(store), next_of(store)) == ([(FIRST, "launched")], FIRST + HOUR)


async def test_new_version_keeps_a_launch_delayed_by_jitter(store: Store) -> None:
    jittered = {JITTER.name: "50m"}
    await register(store, meta=jittered)
    await look(store, NOW)
    launch = next_of(store)
    assert launch is not None
    assert launch > FIRST + SECOND
    await register(store, meta=jittered, priority=60, submit_time=FIRST + SECOND)
    await look(store, FIRST + SECOND)
    assert next_of(store) == launch
    await look(store, launch)
    assert outcomes(store) == [(FIRST, "launched")]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"block": Periodic(specs=["0 9 * * *"])},
            "the schedule was changed before the slot was decided",
        ),
        ({"stop": True}, "the job was stopped before the slot was decided"),
    ],
)
async def test_slot_preceded_by_a_change_is_recorded(
    store: Store, changes: dict[str, Any], reason: str
) -> None:
    await register(store)
    await look(store, NOW)
    await register(store, submit_time=FIRST + SECOND, **changes)
    await look(store, FIRST + SECOND)
    assert [(entry.slot, entry.outcome, entry.reason) for entry in ledger(store)] == [
        (FIRST, "skipped", reason)
    ]


async def test_purge_deletes_schedule_and_ledger(store: Store) -> None:
    await register(store)
    await look(store, NOW)
    await look(store, FIRST)

    def purge(tx: Transaction) -> None:
        found = jobs.current(tx, "default", "web")
        assert found is not None
        jobs.purge(tx, found)

    await store.write(purge)
    assert (ledger(store), store.read(periodic.next_time)) == ([], None)
    assert len(children(store)) == 1  # the child is not purged


# ---- by hand --------------------------------------------------------------------------------------


async def test_forced_launch_needs_no_slot_and_ignores_overlap(store: Store) -> None:
    await register(store, msgspec.structs.replace(HOURLY, prohibit_overlap=True))
    await look(store, NOW)
    for seconds in (1, 2):
        await force(store, "default", "web", now=NOW + seconds * SECOND, eval_id=f"e{seconds}")
    assert len(children(store)) == 2
    assert ledger(store) == []


async def test_second_forced_launch_in_a_second_is_the_same_child(store: Store) -> None:
    await register(store)
    for eval_id in ("e1", "e2"):
        done = await force(store, "default", "web", now=NOW, eval_id=eval_id)
        assert done.eval_id == eval_id
    (child_id,) = children(store)
    made = store.read(lambda db: evaluations.unfinished(db, "default", child_id))
    assert [evaluation.id for evaluation in made] == ["e1", "e2"]


async def test_slot_with_a_forced_child_is_skipped(store: Store) -> None:
    await register(store)
    await look(store, NOW)
    await force(store, "default", "web", now=FIRST, eval_id="e")
    await look(store, FIRST)
    (line,) = ledger(store)
    assert (line.outcome, line.reason) == (
        "skipped",
        "a child was launched by hand in the same second",
    )


@pytest.mark.parametrize(
    ("block", "job_id", "text"),
    [
        (HOURLY, "nope", "^job not found$"),
        (None, "web", "^can't force launch non-periodic job$"),
    ],
)
async def test_only_a_periodic_job_can_be_forced(
    store: Store, block: Periodic | None, job_id: str, text: str
) -> None:
    await register(store, block)
    with pytest.raises(Refused, match=text):
        await force(store, "default", job_id, now=NOW, eval_id="e")


def test_child_is_a_copy_of_its_parent_without_schedule_and_history() -> None:
    parent = job(
        "web",
        periodic=HOURLY,
        stable=True,
        version_tag=VersionTag(name="golden"),
        parameterized_job=Parameterized(),
    )
    child = derive_periodic_child(parent, "web/periodic-1", NOW)
    assert (child.stable, child.version_tag, child.periodic) == (False, None, None)
    assert child.task_groups == parent.task_groups


# ---- time zones -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("zone", "after", "wanted"),
    [
        ("UTC", "2026-03-29T00:00", "2026-03-29T02:30"),
        # 02:30 does not exist in Berlin that night; in New York, clocks changed three weeks before
        ("Europe/Berlin", "2026-03-29T00:00", "2026-03-30T00:30"),
        ("America/New_York", "2026-03-29T00:00", "2026-03-29T06:30"),
        # 02:30 comes twice in Berlin that night
        ("Europe/Berlin", "2026-10-24T23:00", "2026-10-25T00:30"),
        ("Europe/Berlin", "2026-10-25T00:30", "2026-10-25T01:30"),
        ("Asia/Kolkata", "2026-01-01T00:00", "2026-01-01T21:00"),
        ("Australia/Lord_Howe", "2026-01-01T00:00", "2026-01-01T15:30"),
    ],
)
def test_slots_follow_the_time_zone(zone: str, after: str, wanted: str) -> None:
    block = Periodic(specs=["30 2 * * *"], time_zone=zone)
    assert next_slot(block, at(after)) == at(wanted)


# ---- the loop -------------------------------------------------------------------------------------


@asynccontextmanager
async def following(store: Store, clock: Ticking) -> AsyncIterator[None]:
    async with open_periodic(store, clock, ids(), Fences(clock)):
        yield


async def until_children(store: Store, number: int) -> None:
    with trio.fail_after(10):
        while True:
            with store.watch("jobs/") as change:
                if len(children(store)) >= number:
                    return
                await change.wait()


async def test_scheduler_loop_is_woken_by_a_new_job_and_by_time(store: Store) -> None:
    clock = Ticking()
    async with following(store, clock):
        clock.time = FIRST - SECOND // 20
        await register(store, submit_time=clock.time)
        await trio.testing.wait_all_tasks_blocked()
        clock.time = FIRST  # the loop checks again after 50 ms
        await until_children(store, 1)


async def test_many_due_jobs_are_all_launched(store: Store) -> None:
    clock = Ticking()

    def work(tx: Transaction) -> None:
        for number in range(50):
            made: Job = job(f"web/{number}", type="batch", periodic=HOURLY)
            jobs.append_version(tx, made)
            job_status.refresh_summary(tx, made.namespace, made.id)

    await store.write(work)
    clock.time = FIRST
    async with following(store, clock):
        await until_children(store, 100)


@pytest.mark.parametrize("catch_up", ["last", "none", "all"])
async def test_slots_are_computed_only_in_threads(
    store: Store, monkeypatch: pytest.MonkeyPatch, catch_up: str
) -> None:
    """Even 1,500 missed slots of 60 expressions are not computed on the event loop."""
    here, seen = threading.current_thread(), list[bool]()

    def next_after(spec: str, after: int, zone: tzinfo) -> int | None:
        seen.append(threading.current_thread() is here)
        return NEXT_AFTER(spec, after, zone)

    specs = [f"{minute} * * * *" for minute in range(60)]
    meta = {"steward_catch_up": catch_up, "steward_catch_up_most": "2"}
    await register(store, Periodic(specs=specs), meta=meta)
    monkeypatch.setattr(cron, "next_after", next_after)
    clock = Ticking()
    clock.time = NOW + 25 * HOUR
    async with following(store, clock):
        with trio.fail_after(30):
            while not ledger(store) or store.read(lambda db: periodic.due(db, clock.now(), 1)):
                with store.watch("periodic-slots/default/web") as change, trio.move_on_after(1):
                    await change.wait()
    assert seen
    assert not any(seen)


async def test_changed_schedule_does_not_decide_an_old_slot(store: Store) -> None:
    await register(store)
    due = store.read(lambda db: periodic.due(db, FIRST, 1))
    ((key, slots),) = store.read(partial(precompute_slots, due_launches=due, now=FIRST)).items()
    await register(store, QUARTERS)
    await store.write(
        lambda tx: decide_slot(tx, *key, slots, started=0, now=FIRST, eval_id="e-changed")
    )
    assert ledger(store) == []
    assert children(store) == []


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
def test_slots_are_sorted_and_unique_across_expressions(zone: str) -> None:
    specs = ["*/7 * * * *", "*/14 * * * *", "*/7 * * * *", "30 2 29 2 *", "0 0 1 1 * 2027"]
    block = Periodic(specs=specs, time_zone=zone)
    slots, after = list(islice(each_slot(block, NOW), 500)), NOW
    for slot in slots:
        found = [NEXT_AFTER(spec, after, cron.zone(zone)) for spec in specs]
        assert slot == min(next_after for next_after in found if next_after is not None)
        after = slot


async def test_job_with_an_undecidable_slot_delays_no_other_until_it_changes(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, real = Ticking(), decide_slot
    fences = Fences(clock)
    send, attempts = trio.open_memory_channel[None](ATTEMPTS)

    def poisoned(tx: Transaction, namespace: str, job_id: str, *rest: Any, **more: Any) -> None:
        found = jobs.current(tx, namespace, job_id)
        if job_id == "poison" and found is not None and found.priority != 80:
            send.send_nowait(None)
            raise KeyError("poison")
        real(tx, namespace, job_id, *rest, **more)

    async def put(job_id: str, **fields: Any) -> None:
        def work(tx: Transaction) -> None:
            made = jobs.append_version(tx, job(job_id, type="batch", periodic=HOURLY, **fields))
            job_status.refresh_summary(tx, made.namespace, made.id)

        await store.write(work)

    def launched(parent: str) -> int:
        page_request = PageRequest(namespace="default", prefix=f"{parent}/")
        return store.read(lambda db: sum(1 for _ in job_listings.listing_rows(db, page_request)))

    monkeypatch.setattr("daemon.jobs.periodic.decide_slot", poisoned)
    await put("poison", submit_time=NOW)
    await put("web", submit_time=NOW)
    clock.time = FIRST
    async with open_periodic(store, clock, ids(), fences):
        with trio.fail_after(HAPPENS_WITHIN):
            for _ in range(ATTEMPTS):
                await attempts.receive()
                await store.write(lambda tx: None)  # returns after the attempt has failed
                clock.time += MINUTE
                await store.write(lambda tx: tx.publish(periodic.TOPIC))
            (fault,) = fences.faults()
            assert fault.is_closed
            assert fault.key.startswith("default/poison ")
            assert (launched("web"), launched("poison")) == (1, 0)
            with store.watch("jobs/") as change:
                await put("poison", priority=80, submit_time=NOW)
                while not launched("poison"):
                    await change.wait()
            assert fences.faults() == []  # the changed job is not broken any more


async def test_slots_missed_while_the_daemon_was_stopped_are_caught_up(store: Store) -> None:
    clock = Ticking()
    await register(store)
    clock.time = FIRST + HOUR
    async with following(store, clock):
        await until_children(store, 1)
    assert outcomes(store) == [(FIRST, "caught-up")]


# ---- pausing --------------------------------------------------------------------------------------


async def test_slots_of_a_paused_job_are_skipped(store: Store) -> None:
    await register(store)
    await look(store, NOW)
    await pause(store, "default", "web", paused=True)
    await register(store, meta={"a": "b"})  # a new version does not resume the schedule
    await look(store, FIRST)
    await look(store, FIRST + 3 * HOUR)
    await pause(store, "default", "web", paused=False)
    await look(store, FIRST + 4 * HOUR)
    assert [
        (entry.slot, entry.slots, entry.outcome, entry.reason) for entry in reversed(ledger(store))
    ] == [
        (FIRST, 1, "skipped", "the job is paused"),
        (FIRST + HOUR, 3, "skipped", "the job is paused"),
        (FIRST + 4 * HOUR, 1, "launched", ""),
    ]


async def test_paused_job_can_be_forced(store: Store) -> None:
    await register(store)
    await pause(store, "default", "web", paused=True)
    await force(store, "default", "web", now=NOW, eval_id="e")
    assert len(children(store)) == 1


@pytest.mark.parametrize(
    ("block", "stopped", "said"),
    [
        (None, False, 'job "web" is not periodic'),
        (HOURLY, True, "has no active schedule"),
        (msgspec.structs.replace(HOURLY, enabled=False), False, "has no active schedule"),
    ],
)
async def test_job_without_a_schedule_cannot_be_paused(
    store: Store, block: Periodic | None, stopped: bool, said: str
) -> None:
    await register(store, block, stop=stopped)
    with pytest.raises(Malformed, match=said):
        await pause(store, "default", "web", paused=True)


async def test_an_unknown_job_cannot_be_paused(store: Store) -> None:
    with pytest.raises(NotFound):
        await pause(store, "default", "web", paused=True)


def frozen(begin: int, until: int) -> Freeze:
    return Freeze(
        id="f",
        namespace="default",
        strength=Strength.BEGIN,
        reason="release",
        begin=begin,
        until=until,
    )


@pytest.mark.parametrize(
    ("holding", "catch_up", "launches"),
    [
        ([frozen(0, 0)], "last", []),
        ([frozen(FIRST + HOUR, 0)], "last", [FIRST]),
        ([frozen(0, FIRST + MINUTE)], "none", [FIRST + HOUR, FIRST + 2 * HOUR]),
        ([frozen(0, FIRST + MINUTE)], "last", [FIRST + MINUTE, FIRST + HOUR]),
        ([frozen(0, FIRST + HOUR)], "last", [FIRST + HOUR, FIRST + 2 * HOUR]),
        ([frozen(0, FIRST + HOUR)], "none", [FIRST + HOUR, FIRST + 2 * HOUR]),
        (
            [frozen(0, FIRST + MINUTE), frozen(FIRST, FIRST + 2 * MINUTE)],
            "last",
            [FIRST + 2 * MINUTE, FIRST + HOUR],
        ),
        ([frozen(FIRST + MINUTE, FIRST + 2 * MINUTE)], "last", [FIRST, FIRST + HOUR]),
    ],
)
def test_next_launches_leave_out_the_slots_of_a_freeze(
    holding: list[Freeze], catch_up: str, launches: list[int]
) -> None:
    made = job("web", type="batch", periodic=HOURLY, meta={"steward_catch_up": catch_up})
    assert next_launches(made, NOW, holding=holding)[:2] == launches


def test_ten_launches_are_shown_if_the_last_is_the_end_of_a_freeze() -> None:
    end = FIRST + 9 * HOUR + MINUTE
    launches = next_launches(
        job("web", type="batch", periodic=HOURLY), NOW, holding=[frozen(end - MINUTE, end)]
    )
    assert launches == [*(FIRST + number * HOUR for number in range(9)), end]


def test_next_ten_launches_include_the_jitter_of_the_job() -> None:
    made = job("web", type="batch", periodic=HOURLY, meta={"steward_jitter": "30m"})
    late = launch_jitter(made)
    assert next_launches(made, NOW)[:2] == [FIRST + late, FIRST + HOUR + late]
    assert len(next_launches(made, NOW)) == 10
    assert next_launches(msgspec.structs.replace(made, stop=True), NOW) == []


async def test_upcoming_launches_have_the_time_zone_of_their_job(store: Store) -> None:
    block = msgspec.structs.replace(HOURLY, time_zone="Europe/Berlin")
    await register(store, block)
    (due,) = [*store.read(partial(periodic.due, now=NOW, most=10))]
    assert store.read(lambda db: periodic.time_zone(db, due)) == "Europe/Berlin"
    assert zone_of(job("web", periodic=block)) == cron.zone("Europe/Berlin")
    assert zone_of(job("web")) is UTC
