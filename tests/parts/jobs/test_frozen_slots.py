"""Slots of schedules in a freeze: undecided until the end, then missed."""

from functools import partial
from itertools import count
from typing import Any

import pytest

from daemon.evals.dry_run import dry_run
from daemon.jobs import freezes as rules
from daemon.jobs.freezes import FreezeRequest
from daemon.jobs.periodic import (
    decide_slot,
    holding_freezes,
    next_launch,
    next_launches,
    precompute_slots,
    upcoming,
)
from storage.queries import evaluations, freezes, job_status, jobs, periodic
from storage.records.base import MINUTE, SECOND
from storage.records.job import Periodic
from storage.store import Store
from storage.writer import Transaction
from tests.parts.jobs.test_periodic import at
from tests.samples import job

START = at("2026-11-27T17:30:00")
EVERY_MINUTE = Periodic(specs=["* * * * *"])


async def register(store: Store, **meta: str) -> None:
    made = job("web", type="batch", periodic=EVERY_MINUTE, meta=meta or None, submit_time=START)

    def work(tx: Transaction) -> None:
        jobs.append_version(tx, made)
        job_status.refresh_summary(tx, made.namespace, made.id)

    await store.write(work)


async def decide(store: Store, now: int) -> None:
    """Decide the slots that are due at the time `now`, as the loop does."""
    for number in range(40):
        due = store.read(partial(periodic.due, now=now, most=10))
        if not due:
            return
        found = store.read(partial(precompute_slots, due_launches=due, now=now))
        for key, slots in found.items():
            work: Any = partial(_decide, key=key, slots=slots, now=now, eval_id=f"{now}-{number}")
            await store.write(work)


def _decide(tx: Transaction, *, key: tuple[str, str], slots: Any, now: int, eval_id: str) -> None:
    decide_slot(tx, *key, slots, started=START, now=now, eval_id=eval_id)


async def freeze(store: Store, now: int, **fields: str) -> None:
    request = FreezeRequest(**{"reason": "release", **fields})
    await rules.make(store, rules.freeze_of(request, "default", "f", now))


def outcomes(store: Store) -> list[tuple[str, int]]:
    slots = store.read(lambda db: list(periodic.slots(db, "default", "web")))
    return [(slot.outcome, slot.slots) for slot in slots][::-1]


@pytest.mark.parametrize(
    ("policy", "lines"),
    [
        ("last", [("caught-up", 3)]),
        ("none", [("skipped", 3)]),
        ("all", [("caught-up", 1)] * 3),
    ],
)
async def test_frozen_slots_are_missed_slots(
    store: Store, policy: str, lines: list[tuple[str, int]]
) -> None:
    await register(store, steward_catch_up=policy)
    await decide(store, START)
    await freeze(store, START)
    for minute in (1, 2, 3):
        await decide(store, START + minute * MINUTE)
    assert outcomes(store) == []
    thawed = START + 3 * MINUTE + 20 * SECOND
    await rules.thaw(store, "f", now=thawed)
    await decide(store, thawed)
    assert outcomes(store) == lines
    await decide(store, START + 4 * MINUTE)
    assert outcomes(store)[-1] == ("launched", 1)


async def test_slot_shortly_before_the_end_of_a_freeze_is_missed(store: Store) -> None:
    await register(store, steward_catch_up="none")
    await decide(store, START)
    await freeze(store, START + 50 * SECOND, until="+20s")
    await decide(store, START + MINUTE)
    now = START + 70 * SECOND
    await store.write(partial(rules.end_in_time, freeze_id="f", now=now))
    await decide(store, now)
    assert outcomes(store) == [("skipped", 1)]


@pytest.mark.parametrize("fields", [{"strength": "changes"}, {"jobs": "other-*"}, {"queue": "db"}])
async def test_slots_outside_of_the_scope_are_launched(
    store: Store, fields: dict[str, str]
) -> None:
    await register(store)
    await decide(store, START)
    await freeze(store, START, **fields)
    await decide(store, START + MINUTE)
    assert outcomes(store) == [("launched", 1)]


async def test_missed_slots_start_in_the_order_and_at_the_rate_of_frozen_jobs(store: Store) -> None:
    await register(store, steward_catch_up="all")
    await decide(store, START)
    await freeze(store, START)
    thawed = START + 3 * MINUTE + 20 * SECOND
    await rules.thaw(store, "f", now=thawed)
    await decide(store, thawed)
    children = [
        slot.child_id for slot in store.read(lambda db: periodic.slots(db, "default", "web"))
    ]
    assert len(children) == 3
    for child_id in children:
        assert evaluations_of(store, child_id) == []
        child = store.read(partial(jobs.current, namespace="default", job_id=child_id))
        assert child is not None
        assert child.status == "pending"
    find = partial(freezes.thawed, now=thawed, most=2, without=frozenset())
    ready = store.read(find)
    assert ready == [("default", child_id) for child_id in children[:0:-1]]
    for key in ready:
        await store.write(partial(rules.release, key=key, now=thawed, eval_id=f"e-{key[1]}"))
    assert [evaluations_of(store, child_id) for child_id in children[::-1]] == [
        ["periodic-job"],
        ["periodic-job"],
        [],
    ]


def evaluations_of(store: Store, job_id: str) -> list[str]:
    found = store.read(lambda db: evaluations.unfinished(db, "default", job_id))
    return [evaluation.triggered_by for evaluation in found]


# --- the next launches, as lists and plans show them ---


async def upcoming_at(store: Store, now: int) -> list[tuple[str, int | None]]:
    """Return the listed launches, after a check that all other views agree with the list."""
    listed = store.read(lambda db: [*upcoming(db, "default", now)])
    for name in ("web", "db"):
        made = store.read(partial(jobs.current, namespace="default", job_id=name))
        if made is not None:
            ahead = store.read(
                lambda db, made=made: next_launches(made, now, holding=holding_freezes(db, made))
            )
            first = next(iter(ahead), None)
            assert first == store.read(lambda db, made=made: next_launch(db, made, now))
            assert first == store.read(
                lambda db, made=made: dry_run(db, made, now=now, ids=map(str, count())).next_launch
            )
            assert [first] * bool(first) == [due.launch for due in listed if due.job_id == name]
    return [(due.job_id, due.launch) for due in listed]


@pytest.mark.parametrize(
    ("policy", "until", "launch"),
    [("last", "+10m", START + 10 * MINUTE), ("none", "+10m", START + 10 * MINUTE), ("last", "", 0)],
)
async def test_a_listed_launch_is_not_in_a_freeze(
    store: Store, policy: str, until: str, launch: int
) -> None:
    await register(store, steward_catch_up=policy)
    await decide(store, START)
    assert await upcoming_at(store, START) == [("web", START + MINUTE)]
    await freeze(store, START, **({"until": until} if until else {}))
    expected = [("web", launch)] if launch else []
    assert await upcoming_at(store, START) == expected
    for minute in (1, 2):  # the first slot in the freeze is due and stays undecided
        await decide(store, START + minute * MINUTE)
        assert await upcoming_at(store, START + minute * MINUTE) == expected
    await rules.thaw(store, "f", now=START + 3 * MINUTE)
    await decide(store, START + 3 * MINUTE)
    assert await upcoming_at(store, START + 3 * MINUTE) == [("web", START + 4 * MINUTE)]


async def test_launches_are_listed_in_the_order_that_a_freeze_gives_them(store: Store) -> None:
    await register(store)
    hourly = Periodic(specs=["35 * * * *"])
    other = job("db", type="batch", periodic=hourly, submit_time=START)
    await store.write(lambda tx: jobs.append_version(tx, other))
    await decide(store, START)
    db_at, web_at = ("db", START + 5 * MINUTE), ("web", START + 20 * MINUTE)
    assert await upcoming_at(store, START) == [("web", START + MINUTE), db_at]
    await freeze(store, START, jobs="we*", until="+20m")
    assert await upcoming_at(store, START) == [db_at, web_at]
    backwards = store.read(lambda db: [*upcoming(db, "*", START, reverse=True)])
    assert [due.job_id for due in backwards] == ["web", "db"]
    place = (web_at[1], "default", "web")
    for reverse, names in ((False, ["web"]), (True, ["web", "db"])):
        rest = store.read(
            lambda db, reverse=reverse: [*upcoming(db, "default", START, place, reverse=reverse)]
        )
        assert [due.job_id for due in rest] == names


async def test_a_freeze_of_changes_moves_no_launch(store: Store) -> None:
    await register(store)
    await decide(store, START)
    await freeze(store, START, strength="changes")
    assert await upcoming_at(store, START) == [("web", START + MINUTE)]
