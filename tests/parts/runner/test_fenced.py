"""An allocation that fails because of an error of the daemon affects no other; it is reported."""

from collections.abc import Callable
from typing import Any

import pytest
import trio

from daemon.runner import node
from daemon.runner.core import status_report
from storage.errors import StorageUnreadable
from tests.parts.runner.conftest import needs_root
from tests.parts.runner.world import World, batch, script
from tests.time_limits import HAPPENS_WITHIN


class Broken(Exception):
    """An error that a test raises inside the daemon."""


def named(world: World, kind: str) -> list[str]:
    return [fault.key for fault in world.runner._host.fences.faults() if fault.kind == kind]


async def until(is_so: Callable[[], object]) -> None:
    with trio.fail_after(HAPPENS_WITHIN):
        while not is_so():  # noqa: ASYNC110  # no event reports a fault
            await trio.sleep(0.005)


@needs_root
@pytest.mark.parametrize(
    "error", [Broken(), StorageUnreadable.of_row("jobs", ("default", "bad"), "")]
)
async def test_failed_report_is_dropped_and_others_are_stored(
    world: World, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    real, bad = status_report.store_snapshot, "0bad0000-0000-4000-8000-000000000000"

    def store_snapshot(tx: Any, snapshot: status_report.AllocStatus, *rest: Any) -> Any:
        if snapshot.alloc_id == bad:
            raise error
        return real(tx, snapshot, *rest)

    monkeypatch.setattr(status_report, "store_snapshot", store_snapshot)
    await world.place(batch(script("exit 0"), job_id="bad"), alloc_id=bad)
    good = await world.place(batch(script("exit 0"), job_id="good"))
    with trio.fail_after(HAPPENS_WITHIN):
        await world.until_status(good, "complete")
    await until(lambda: bad in named(world, "report"))


@needs_root
async def test_failed_allocation_start_is_retried_and_others_run(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, failures = node.AllocRunner, [Broken(), Broken()]

    def begin(host: Any, allocation: Any, *rest: Any) -> Any:
        if allocation.job_id == "bad" and failures:
            raise failures.pop()
        return real(host, allocation, *rest)

    monkeypatch.setattr(node, "AllocRunner", begin)
    bad = await world.place(batch(script("exit 0"), job_id="bad"))
    good = await world.place(batch(script("exit 0"), job_id="good"))
    with trio.fail_after(HAPPENS_WITHIN):
        await world.until_status(good, "complete")
        assert named(world, "allocation") == [bad]
        await world.until_status(bad, "complete")
    assert named(world, "allocation") == []


@needs_root
async def test_failed_directory_removal_does_not_stop_the_daemon(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = await world.place(batch(script("exit 0"), job_id="done"))
    await world.until_done(done)

    async def remove(_: Any, alloc_id: str) -> None:
        raise Broken(alloc_id)

    monkeypatch.setattr(node.NodeRunner, "remove_directory", remove)
    world.runner.collect_all()
    await until(lambda: named(world, "removal of an allocation") == [done])
    other = await world.place(batch(script("exit 0"), job_id="other"))
    with trio.fail_after(HAPPENS_WITHIN):
        await world.until_status(other, "complete")
