"""A start computes no slot before the daemon is ready, no matter how many were missed."""

from pathlib import Path

import pytest
import trio
import trio.testing

from daemon.fences import open_fences
from daemon.jobs.periodic import open_periodic
from daemon.jobspec import cron
from storage.queries import jobs, periodic
from storage.records.base import HOUR
from storage.records.job import Periodic
from storage.store import Store
from storage.writer import Transaction
from tests.parts.evals.cluster import Ticking, ids
from tests.samples import NOW, job
from tests.time_limits import HAPPENS_WITHIN

JOBS, SPECS, MISSED = 1000, 100, 90 * 24 * HOUR
MOST_AT_ONCE = 4000  # evaluated expressions for one decision


async def fill(store: Store) -> None:
    """Store periodic jobs whose slots were decided until three months ago."""
    specs = [f"{number % 60} {number % 24} * * *" for number in range(SPECS)]

    def write(tx: Transaction, first: int) -> None:
        for number in range(first, first + 100):
            clock = Periodic(specs=specs)
            jobs.append_version(tx, job(f"j{number}", type="batch", periodic=clock))
            key = ("default", f"j{number}")
            slot = NOW - MISSED + HOUR
            periodic.advance(tx, *key, followed_to=NOW - MISSED, next_slot=slot)

    for first in range(0, JOBS, 100):
        await store.write(lambda tx, first=first: write(tx, first))


async def test_start_with_a_thousand_overdue_schedules_computes_no_slot_before_it_is_ready(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(store)
    looks, real = [0], cron.next_after

    def next_after(*given: object) -> int | None:
        looks[0] += 1
        return real(*given)

    monkeypatch.setattr(cron, "next_after", next_after)
    clock, is_ready = Ticking(), trio.Event()
    async with (
        open_fences(store, clock, tmp_path) as fences,
        open_periodic(store, clock, ids(), fences, begins=is_ready),
    ):
        await trio.testing.wait_all_tasks_blocked()
        assert looks == [0]
        is_ready.set()
        with store.watch(periodic.TOPIC) as change, trio.fail_after(HAPPENS_WITHIN):
            await change.wait()
        # The slots of the first jobs are computed one after the other, each job within its limit.
        assert 0 < looks[0] <= 33 * MOST_AT_ONCE
