"""Periodic jobs with a calendar: closed slots launch nothing, or one child at the opening."""

from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from daemon.fences import TOPIC as FAULTS
from daemon.fences import open_fences
from daemon.flow.calendars import Openings, TooManySteps, compiled
from daemon.jobs import calendar_slots
from daemon.jobs import calendars as rules
from daemon.jobs.calendar_slots import JobOpenings, forecast, planned
from daemon.jobs.periodic import (
    TooMuchWork,
    decide_slot,
    next_launches,
    next_slot,
    open_periodic,
    openings_of,
    precompute_slots,
)
from storage.errors import Conflict, Malformed, NotFound
from storage.queries import calendars, job_listings, job_status, jobs, periodic
from storage.queries.pages import PageRequest
from storage.records.base import MINUTE, SECOND
from storage.records.calendar import Blackout, Calendar
from storage.records.job import Job, Periodic
from storage.records.periodic import Slot
from storage.records.times import rfc3339
from storage.store import Store
from storage.writer import Transaction
from tests.parts.evals.cluster import Ticking, ids
from tests.parts.jobs.test_periodic import at, look
from tests.samples import job
from tests.time_limits import HAPPENS_WITHIN

WORKDAYS = ["mon", "tue", "wed", "thu", "fri"]
FRIDAY = at("2026-11-27T17:30:00")
BUSINESS = Calendar(
    name="business",
    namespace="default",
    weekdays=WORKDAYS,
    hours=["08:00-18:00"],
    holidays={"2026-12-25": "Christmas Day"},
)
HOURLY = Periodic(specs=["0 * * * *"])


async def define(store: Store, calendar: Calendar = BUSINESS, **fields: Any) -> int:
    return (await rules.apply(store, calendar, now=FRIDAY, **fields)).version


async def register(
    store: Store, block: Periodic = HOURLY, *, now: int = FRIDAY, **meta: str
) -> Job:
    keys = {"steward_run_calendar": "business", **meta}
    kept = {key: text for key, text in keys.items() if text}
    made = job("web", type="batch", periodic=block, meta=kept, submit_time=now)

    def work(tx: Transaction) -> None:
        jobs.append_version(tx, made)
        job_status.refresh_summary(tx, made.namespace, made.id)

    await store.write(work)
    return made


def ledger(store: Store) -> list[tuple[str, int, str, str]]:
    """Return slot, number of slots, outcome and reason of each decision, oldest first."""
    slots: list[Slot] = store.read(lambda db: list(periodic.slots(db, "default", "web")))
    return [
        (rfc3339(slot.slot)[:16], slot.slots, slot.outcome, slot.reason) for slot in reversed(slots)
    ]


def children(store: Store) -> list[str]:
    page_request = PageRequest(namespace="default", prefix="web/")
    found = [
        item.id for item in store.read(lambda db: [*job_listings.listing_rows(db, page_request)])
    ]
    return [rfc3339(int(item.rpartition("-")[2]) * SECOND)[:16] for item in sorted(found)]


def coming(store: Store) -> str:
    due = store.read(lambda db: periodic.of_job(db, "default", "web"))
    assert due is not None
    assert due.launch is not None
    return "never" if due.launch == periodic.NEVER else rfc3339(due.launch)[:16]


async def pass_time(store: Store, *, until: int, step: int = 30 * MINUTE) -> None:
    """Decide the due slots every half an hour, like a running daemon."""
    for now in range(FRIDAY, until + 1, step):
        await look(store, now, started=FRIDAY)


# --- due slots ---


async def test_closed_slots_launch_nothing_and_are_recorded_with_calendar_and_reason(
    store: Store,
) -> None:
    await define(store)
    await register(store)
    await pass_time(store, until=at("2026-11-30T09:00:00"))
    assert children(store) == ["2026-11-30T08:00", "2026-11-30T09:00"]
    hours = 'closed: calendar "business" version 1: outside of 08:00-18:00'
    assert ledger(store) == [
        ("2026-11-27T18:00", 6, "skipped", hours),
        ("2026-11-28T00:00", 24, "skipped", 'closed: calendar "business" version 1: Saturday'),
        ("2026-11-29T00:00", 24, "skipped", 'closed: calendar "business" version 1: Sunday'),
        ("2026-11-30T00:00", 8, "skipped", hours),
        ("2026-11-30T08:00", 1, "launched", ""),
        ("2026-11-30T09:00", 1, "launched", ""),
    ]


async def test_closed_slots_become_one_child_at_the_opening(store: Store) -> None:
    await define(store)
    await register(store, steward_run_calendar_else="next")
    await pass_time(store, until=at("2026-11-29T12:00:00"))
    assert ledger(store) == []
    assert coming(store) == "2026-11-30T08:00"
    await pass_time(store, until=at("2026-11-30T09:00:00"))
    assert children(store) == ["2026-11-30T08:00", "2026-11-30T09:00"]
    moved = ledger(store)[0]
    assert moved[:3] == ("2026-11-27T18:00", 63, "launched")
    assert moved[3].startswith("moved to 2026-11-30T08:00:00Z; closed: calendar")
    assert len(ledger(store)) == 2


async def test_a_daily_job_runs_on_the_last_business_day_of_the_month(store: Store) -> None:
    await define(store)
    block = Periodic(specs=["0 12 * * *"])
    made = await register(store, block, steward_run_day="-1")
    await pass_time(store, until=at("2026-12-01T13:00:00"))
    assert children(store) == ["2026-11-30T12:00"]
    found = store.read(lambda db: next_launches(made, FRIDAY, openings_of(db, made)))
    assert [rfc3339(next_launch)[:10] for next_launch in found[:3]] == [
        "2026-11-30",
        "2026-12-31",
        "2027-01-29",
    ]


async def test_the_next_launch_is_an_open_slot(store: Store) -> None:
    await define(store)
    await register(store)
    await look(store, FRIDAY, started=FRIDAY)
    assert coming(store) == "2026-11-30T08:00"


# --- changes ---


async def test_changed_calendar_applies_to_the_next_decision(store: Store) -> None:
    await define(store)
    await register(store)
    await pass_time(store, until=at("2026-11-28T10:00:00"))
    open_always = Calendar(name="business", namespace="default")
    assert await define(store, open_always) == 2
    assert coming(store) != "2026-11-28T11:00"  # computed by the next decision
    await look(store, at("2026-11-28T10:30:00"), started=FRIDAY)
    assert coming(store) == "2026-11-28T11:00"
    await look(store, at("2026-11-28T11:00:00"), started=FRIDAY)
    assert children(store) == ["2026-11-28T11:00"]


async def test_change_between_a_forecast_and_its_decision_is_respected(store: Store) -> None:
    await define(store)
    await register(store)
    await look(store, FRIDAY, started=FRIDAY)
    now = at("2026-11-27T18:00:00")
    due = store.read(lambda db: periodic.due(db, now, 10))
    ((key, slots),) = store.read(partial(precompute_slots, due_launches=due, now=now)).items()
    await define(store, Calendar(name="business", namespace="default"))
    await store.write(
        lambda tx: decide_slot(tx, *key, slots, started=FRIDAY, now=now, eval_id="e-stale")
    )
    assert ledger(store) == []
    await look(store, now, started=FRIDAY)
    assert children(store) == ["2026-11-27T18:00"]


async def test_change_of_a_referenced_calendar_applies_to_its_jobs(store: Store) -> None:
    await define(store, Calendar(name="holidays", namespace="default"))
    await define(store, Calendar(name="business", namespace="default", only=["holidays"]))
    await register(store)
    await look(store, FRIDAY, started=FRIDAY)
    assert coming(store) == "2026-11-27T18:00"
    closed = Calendar(
        name="holidays",
        namespace="default",
        blackouts=[Blackout(begin="2026-11-27", end="2026-11-30")],
    )
    await define(store, closed)
    await look(store, FRIDAY + MINUTE, started=FRIDAY)
    assert coming(store) == "2026-12-01T00:00"


async def test_calendar_in_use_is_not_deleted(store: Store) -> None:
    await define(store)
    await define(store, Calendar(name="other", namespace="default", except_=["business"]))
    await register(store)
    with pytest.raises(Conflict, match='"business" is used by jobs "web"'):
        await rules.remove(store, "default", "business")
    stopped = job(
        "web", type="batch", periodic=HOURLY, stop=True, meta={"steward_run_calendar": "business"}
    )
    await store.write(lambda tx: jobs.append_version(tx, stopped))
    with pytest.raises(Conflict, match='"business" is used by calendars "other"'):
        await rules.remove(store, "default", "business")
    await rules.remove(store, "default", "other")
    await rules.remove(store, "default", "business")
    assert store.read(lambda db: calendars.names(db, "default")) == []
    with pytest.raises(NotFound):
        await rules.remove(store, "default", "business")


async def test_slots_without_a_calendar_are_skipped(store: Store) -> None:
    await register(store)  # stored directly, because the API refuses such a job
    await pass_time(store, until=at("2026-11-27T18:00:00"))
    assert children(store) == []
    assert ledger(store)[0][3] == 'closed: calendar "business" does not exist'
    assert coming(store) == "never"


# --- missed slots ---


@pytest.mark.parametrize(
    ("policy", "launched", "lines"),
    [
        ("last", 1, [("2026-11-27T18:00", 6, "skipped"), ("2026-11-30T08:00", 5, "caught-up")]),
        ("none", 0, [("2026-11-27T18:00", 6, "skipped"), ("2026-11-30T08:00", 5, "skipped")]),
        ("all", 5, [("2026-11-27T18:00", 6, "skipped"), ("2026-11-30T08:00", 1, "caught-up")]),
    ],
)
async def test_only_open_missed_slots_are_caught_up(
    store: Store, policy: str, launched: int, lines: list[tuple[str, int, str]]
) -> None:
    await define(store)
    await register(store, steward_catch_up=policy)
    now = at("2026-11-30T12:30:00")
    await look(store, now, started=now)
    assert len(children(store)) == launched
    found = [entry[:3] for entry in ledger(store)]
    assert found[0] == lines[0]
    assert lines[1] in found
    assert sum(number for _, number, _ in found) == 6 + 48 + 8 + 5


async def test_nothing_is_caught_up_while_the_calendar_is_closed(store: Store) -> None:
    await define(store)
    await register(store, now=at("2026-11-27T12:30:00"))
    now = at("2026-11-28T10:30:00")
    await look(store, now, started=now)
    assert children(store) == []
    assert ledger(store)[0] == (
        "2026-11-27T13:00",
        5 + 0,
        "skipped",
        'closed: calendar "business" version 1: Saturday',
    )


async def test_missed_slots_wait_for_the_opening_if_configured(store: Store) -> None:
    await define(store)
    await register(store, now=at("2026-11-27T12:30:00"), steward_run_calendar_else="next")
    now = at("2026-11-28T10:30:00")
    await look(store, now, started=now)
    assert (children(store), coming(store)) == ([], "2026-11-30T08:00")
    now = at("2026-11-30T08:00:00")
    await look(store, now, started=at("2026-11-28T10:30:00"))
    assert children(store) == ["2026-11-30T08:00"]


async def test_a_closed_year_of_a_minutely_job_is_decided_in_few_writes(store: Store) -> None:
    await define(store, Calendar(name="business", namespace="default", weekdays=["sun"]))
    await register(store, Periodic(specs=["* * * * *"]), steward_run_calendar_else="next")
    now = at("2026-11-29T00:00:00")
    await look(store, now, started=now)
    assert children(store) == ["2026-11-29T00:00"]
    assert len(ledger(store)) == 1


# --- stored calendars ---


async def test_a_calendar_has_versions_and_their_authors(store: Store) -> None:
    assert await define(store) == 1
    assert await define(store) == 1  # unchanged
    assert await define(store, Calendar(name="business", namespace="default")) == 2
    found = store.read(lambda db: list(calendars.versions(db, "default", "business")))
    assert [version.version for version in found] == [1, 2]
    assert found[0].calendar.holidays == {"2026-12-25": "Christmas Day"}


async def test_a_concurrent_change_is_refused(store: Store) -> None:
    with pytest.raises(Conflict, match="does not exist; cas = 7 requires it"):
        await define(store, enforced=7)
    await define(store, enforced=0)
    with pytest.raises(Conflict, match="read the calendar again"):
        await define(store, enforced=0)


async def test_calendar_refers_to_known_calendars_without_a_cycle(store: Store) -> None:
    with pytest.raises(Malformed, match='unknown calendar "busines"'):
        await define(store, Calendar(name="team", namespace="default", only=["busines"]))
    await define(store)
    with pytest.raises(Malformed, match=r'unknown calendar "busines"; did you mean "business"\?'):
        await define(store, Calendar(name="team", namespace="default", only=["busines"]))
    await define(store, Calendar(name="team", namespace="default", only=["business"]))
    with pytest.raises(
        Malformed, match='"business" cannot refer to "team", which refers to "business"'
    ):
        await define(store, Calendar(name="business", namespace="default", only=["team"]))


def plain(number: int, *parts: int) -> Calendar:
    only = [f"c{part}" for part in parts] or None
    return Calendar(name=f"c{number}", namespace="default", only=only)


async def store_unchecked(store: Store, *every: Calendar) -> None:
    """Store calendars as an earlier release did, which checked less."""

    def work(tx: Transaction) -> None:
        for item in every:
            calendars.put(tx, msgspec.structs.replace(item, version=1), person="", now=FRIDAY)

    await store.write(work)


async def test_calendar_write_checks_the_reference_limits_of_its_users(store: Store) -> None:
    for number in range(64):
        await define(store, plain(number))
    await define(store, plain(63, *range(47, 63)))
    with pytest.raises(
        Malformed,
        match='calendar "c62" cannot refer to "c46", "c47", "c48", "c49", "c50" and others: '
        'calendar "c63", which uses "c62", would refer to more than 16 calendars, directly or '
        "through others: use fewer",
    ):
        await define(store, plain(62, *range(46, 62)))
    with pytest.raises(Malformed, match='"c0" cannot refer to "c63": it would refer to more than'):
        await define(store, plain(0, 63))
    await define(store, plain(62, 47, 48))  # c63 already refers to these


async def test_chain_of_references_has_a_maximum_length(store: Store) -> None:
    for number in range(8):
        await define(store, plain(number))
    for number in (7, 6, 5, 4, 3):
        await define(store, plain(number, number - 1))
    with pytest.raises(
        Malformed,
        match='"c2" cannot refer to "c1": calendar "c7", which uses "c2", would refer to calendars '
        "in a chain of more than 5: refer to fewer of them through others",
    ):
        await define(store, plain(2, 1))
    await define(store, plain(7, 1))
    await define(store, plain(2, 1))


async def test_calendars_beyond_the_limit_can_be_fixed(store: Store) -> None:
    ladder = [plain(number, *range(max(number - 16, 0), number)) for number in range(40)]
    await store_unchecked(store, *ladder)
    described = msgspec.structs.replace(ladder[30], description="of all teams")
    assert await define(store, described) == 2
    assert await define(store, plain(30, 29)) == 3
    with pytest.raises(Malformed, match="refer to more than 16 calendars"):
        await define(store, plain(30, 29, 28))


async def test_calendars_beyond_the_limit_stop_no_other_job(store: Store) -> None:
    ladder = [plain(number, *range(max(number - 16, 0), number)) for number in range(64)]
    await store_unchecked(store, *ladder)
    await register(store, steward_run_calendar="c63")
    now = at("2026-11-27T18:00:00")
    await look(store, now, started=FRIDAY)
    assert ledger(store)[0][1:] == (
        1,
        "skipped",
        'closed: Only and Except of calendar "c63" refer to more than 16 calendars, directly or '
        "through others: remove some of them",
    )
    with pytest.raises(Malformed, match="refer to more than 16 calendars"):
        store.read(lambda db: rules.days(db, "default", "c63", first=None, number=1, now=now))


# --- limits ---


def with_limit(most_steps: int, *, moves: bool) -> JobOpenings:
    """Return the openings of a job whose calendar is closed until 2199.

    A search takes at most `most_steps`; `moves` means that a slot moves to the next opening.
    """
    blackout = Blackout(begin="2020-01-01", end="2199-12-30", reason="r")
    closed = Calendar(name="own", blackouts=[blackout])
    calendar = compiled("own", {"own": msgspec.json.encode(closed)})
    openings = Openings(calendar, most_steps=most_steps)
    return JobOpenings(openings, "own", (), moves, "default", {})


def test_reason_names_the_limited_search_for_an_opening() -> None:
    (one,) = planned([FRIDAY], with_limit(300, moves=True))
    assert one.at is None
    assert one.reason.endswith("(r); no opening was found within the limit of the search")
    (one,) = planned([FRIDAY], with_limit(100_000, moves=True))
    assert one.reason.endswith("blackout (r)")


@pytest.mark.parametrize(("most", "launch"), [(300, None), (100_000, periodic.NEVER)])
def test_next_launch_is_unknown_after_a_limited_search(most: int, launch: int | None) -> None:
    slots = partial(next_slot, HOURLY)
    found = forecast(with_limit(most, moves=False), [], slots, until=FRIDAY, now=FRIDAY)
    assert (found.next_launch, found.reopens) == (launch, None)


async def test_the_work_for_all_missed_slots_is_limited(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await define(store)
    made = await register(store)
    monkeypatch.setattr(calendar_slots, "Openings", partial(Openings, most_steps=50))
    now = at("2026-11-30T12:30:00")  # 67 slots were missed
    due = store.read(lambda db: periodic.due(db, now, 10))
    with pytest.raises(TooMuchWork, match="its calendar needs more than 50 steps: give it fewer"):
        store.read(partial(precompute_slots, due_launches=due, now=now))
    shown = store.read(lambda db: next_launches(made, FRIDAY, openings_of(db, made)))
    assert len(shown) == 10


@pytest.mark.parametrize("fault", ["raises", "takes too long"])
async def test_failing_calendar_disables_its_job_until_the_calendar_changes(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    real = calendar_slots.compiled

    def compiled_or_broken(name: str, documents: Any) -> Any:
        if b"poison" not in documents["business"]:
            return real(name, documents)
        if fault == "raises":
            raise KeyError("poison")
        raise TooManySteps("its calendar needs more than 5 steps")

    monkeypatch.setattr(calendar_slots, "compiled", compiled_or_broken)
    clock = Ticking()
    clock.time = FRIDAY
    poisoned = msgspec.structs.replace(BUSINESS, description="poison")
    await define(store, poisoned)
    await register(store, steward_run_day="1-31")
    await store.write(partial(_add_hourly, job_id="other"))
    clock.time = at("2026-11-27T18:00:01")
    async with (
        open_fences(store, clock, tmp_path) as fences,
        open_periodic(store, clock, ids(), fences),
    ):
        with trio.fail_after(HAPPENS_WITHIN):
            while not any(one.is_closed for one in fences.faults()):
                with store.watch(FAULTS) as change:
                    clock.time += 10 * SECOND
                    await store.write(lambda tx: tx.publish(periodic.TOPIC))
                    if not any(one.is_closed for one in fences.faults()):
                        await change.wait()
            (fault_of_web,) = fences.faults()
            assert fault_of_web.key.startswith("default/web ")
            assert store.read(lambda db: list(periodic.slots(db, "default", "other")))
            assert ledger(store) == []
            with store.watch("periodic-slots/default/web") as change:
                await define(store, BUSINESS)
                await change.wait()
            assert fences.faults() == []
    assert ledger(store)


def _add_hourly(tx: Transaction, job_id: str) -> None:
    made = job(job_id, type="batch", periodic=HOURLY, submit_time=FRIDAY)
    jobs.append_version(tx, made)
    job_status.refresh_summary(tx, made.namespace, made.id)


async def test_old_versions_are_deleted(store: Store) -> None:
    for number in range(calendars.KEPT + 2):
        await define(store, Calendar(name="business", namespace="default", description=str(number)))
    found = store.read(lambda db: list(calendars.versions(db, "default", "business")))
    assert [found[0].version, len(found), found[-1].version] == [3, 50, 52]
