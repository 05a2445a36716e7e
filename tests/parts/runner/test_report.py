"""Reports reach the store together and completely, even when the disk is full for a while."""

from pathlib import Path
from typing import Any

import pytest
import trio

from storage.errors import StorageFull, StorageUnusable
from storage.queries import evaluations, jobs
from storage.records.base import HOUR, SECOND
from storage.records.group import ReschedulePolicy
from storage.records.job import Job
from storage.records.task import Task
from storage.store import Store
from tests.parts.runner.world import Pipe, World, batch, open_world, script, service
from tests.samples import group, job


def pending(world: World, job_id: str = "job") -> list[Any]:
    return world.store.read(lambda db: evaluations.unfinished(db, "default", job_id))


class Disk:
    """A disk that is full for a number of writes."""

    def __init__(self, store: Store, refusals: int) -> None:
        self._write = store.write
        self.refusals = refusals

    async def write(self, work: Any, *, is_long: bool = False) -> Any:
        if self.refusals:
            self.refusals -= 1
            raise StorageFull("no room")
        return await self._write(work, is_long=is_long)


async def test_short_task_needs_at_most_two_writes(world: World, monkeypatch: Any) -> None:
    writes = []
    write = world.store.write

    async def count(work: Any, *, is_long: bool = False) -> Any:
        writes.append(work)
        return await write(work, is_long=is_long)

    alloc_id = await world.place(batch(script("exit 0")))
    monkeypatch.setattr(world.store, "write", count)
    await world.until_done(alloc_id)
    assert len(writes) <= 2


ONCE = ReschedulePolicy(attempts=1, interval=HOUR, delay=5 * SECOND, delay_function="constant")


def once_more(*tasks: Task, **fields: Any) -> Job:
    """Return a batch job that is rescheduled once."""
    return job("job", group("web", *tasks, reschedule_policy=ONCE), type="batch", **fields)


@pytest.mark.parametrize("policy", [None, ReschedulePolicy()])
async def test_failure_without_a_reschedule_creates_no_evaluation(
    world: World, policy: ReschedulePolicy | None
) -> None:
    for kind in ("service", "batch", "system"):
        task = script("exit 1")
        wanted = job(kind, group("web", task, reschedule_policy=policy), type=kind)
        failed = await world.until_done(await world.place(wanted))
        assert failed.client_status == "failed"
        assert pending(world, kind) == []


async def test_failure_creates_an_evaluation_in_the_same_write(world: World) -> None:
    wanted = once_more(script("exit 1"), priority=70)
    alloc_id = await world.place(wanted)
    failed = await world.until_done(alloc_id)
    (evaluation,) = pending(world)
    assert evaluation.triggered_by == "alloc-failure"
    assert (evaluation.type, evaluation.priority, evaluation.job_id) == ("batch", 70, "job")
    assert evaluation.job_modify_index == 0
    assert evaluation.create_index == failed.modify_index


async def test_success_creates_no_evaluation(world: World) -> None:
    await world.until_done(await world.place(batch(script("exit 0"))))
    assert pending(world) == []


async def test_failure_of_an_undesired_allocation_creates_no_evaluation(
    world: World, pipe: Pipe
) -> None:
    text = f"echo x >{pipe.path}; read x <{pipe.path}.go; exit 1"
    go = Pipe(pipe.path.with_name("pipe.go"))
    alloc_id = await world.place(batch(script(text)))
    await pipe.line()
    stopped = job("job", group("web", script(text)), type="batch", stop=True)
    await world.store.write(lambda tx: jobs.append_version(tx, stopped))
    go.path.write_text("go\n")
    await world.until_done(alloc_id)
    assert pending(world) == []


async def test_job_summary_is_updated_with_its_allocations(world: World) -> None:
    alloc_id = await world.place(batch(script("exit 0")))
    await world.until_done(alloc_id)
    found = world.store.read(lambda db: jobs.current(db, "default", "job"))
    assert found is not None
    assert found.status == "dead"


async def test_a_full_disk_delays_reports_and_loses_none(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    alloc_id = await world.place(batch(script("exit 3")))
    monkeypatch.setattr(world.store, "write", Disk(world.store, refusals=1).write)
    await world.until_done(alloc_id)
    assert world.types(alloc_id) == [
        "Received",
        "Task Setup",
        "Started",
        "Terminated",
        "Not Restarting",
    ]
    assert "no room" in caplog.text


async def test_unusable_store_ends_the_runner(
    store: Store, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def write(work: Any, **_: object) -> Any:
        raise StorageUnusable("damaged")

    async def run() -> None:
        async with open_world(store, data_dir) as world:
            await world.place(batch(script("exit 0")))
            monkeypatch.setattr(store, "write", write)
            await trio.sleep_forever()

    with pytest.raises(ExceptionGroup) as failure:
        await run()
    assert failure.group_contains(StorageUnusable, match="damaged")


async def test_purge_during_a_report_is_no_error(world: World, pipe: Pipe) -> None:
    wanted = service(script(f"echo x >{pipe.path}; exec sleep 600"))
    alloc_id = await world.place(wanted)
    await pipe.line()
    await world.purge(wanted)
    await world.until_no_directory(alloc_id)
    assert await world.place(batch(script("exit 0"), job_id="next"))
    await trio.lowlevel.checkpoint()
