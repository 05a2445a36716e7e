"""Slots of schedules in a freeze: undecided until the end, then missed."""

from functools import partial
from typing import Any

import pytest

from daemon.jobs import freezes as rules
from daemon.jobs.freezes import FreezeRequest
from daemon.jobs.periodic import decide_slot, precompute_slots
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
