"""Attempts that become elements of one array of a cluster: each runs exactly once."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from daemon.runner.drivers.slurm import submissions
from storage.queries import cluster_runs
from storage.records.cluster_run import RunStatus
from storage.store import Store
from storage.writer import Transaction
from tests.fakes.slurm.world import FakeSlurm, fake_slurm
from tests.parts.runner.pool import PoolWorld, open_pool, settings
from tests.parts.runner.world import batch, script

COUNT = 3
NODES = ("node1", "node2")
LATE = "daemon.runner.drivers.slurm.attempt.LATE"


@pytest.fixture(autouse=True)
def _together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the first attempt wait for the others, however slow this host is."""
    monkeypatch.setattr(submissions, "MOST", COUNT)
    monkeypatch.setattr(submissions, "_PAUSE", 60)
    monkeypatch.setattr(submissions, "_LONGEST", 60)


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[FakeSlurm]:
    with fake_slurm(tmp_path / "slurm") as world:
        yield world


@pytest.fixture
async def world(store: Store, slurm: FakeSlurm, tmp_path: Path) -> AsyncIterator[PoolWorld]:
    async with open_pool(store, slurm, settings(tmp_path)) as opened:
        yield opened


async def placed(world: PoolWorld, text: str, **fields: Any) -> list[str]:
    """Place the elements of a job."""
    return [await world.place(batch(script(text)), **fields) for _ in range(COUNT)]


async def waiting(world: PoolWorld) -> list[str]:
    """Place the elements of a job on hosts that start no jobs."""
    for node in NODES:
        world.slurm.drain(node, "for a test")
    allocs = await placed(world, "echo ran")
    for alloc in allocs:
        await world.until(alloc, lambda _, alloc=alloc: "waits" in "".join(world.said(alloc)))
    return allocs


async def completed(world: PoolWorld, allocs: list[str], text: str = "ran\n") -> None:
    """Assert that each element ran once."""
    for alloc in allocs:
        assert (await world.until_done(alloc)).client_status == "complete"
        assert world.output(alloc) == text
        assert world.types(alloc).count("Started") == 1


def submissions_of(slurm: FakeSlurm) -> int:
    """Return the number of calls of `sbatch`."""
    return sum(program == "sbatch" for program, *_ in slurm.known()["calls"])


def element_of(world: PoolWorld, alloc: str) -> str:
    """Return the ID of an element in the cluster."""
    return world.rows(alloc)[0].job_id


async def test_elements_of_a_job_become_one_array(world: PoolWorld) -> None:
    allocs = await placed(world, 'echo "$NOMAD_ALLOC_ID ${STEWARD_ELEMENTS-none} $SLURM_JOB_ID"')
    for alloc in allocs:
        assert (await world.until_done(alloc)).client_status == "complete"
        first, second, number = world.output(alloc).split()
        assert (first, second) == (alloc, "none")
        assert number.isdecimal()
    assert submissions_of(world.slurm) == 1
    assert sorted(job["id"] for job in world.slurm.jobs()) == ["1_0", "1_1", "1_2"]
    assert len({job["name"] for job in world.slurm.jobs()}) == 1


async def test_script_and_description_of_an_array_contain_no_secret(
    world: PoolWorld, slurm: FakeSlurm
) -> None:
    await completed(world, await placed(world, "echo ran"))
    for job in slurm.jobs():
        secret = job.pop("environment")["STEWARD_CLAIM"]
        assert len(secret) == 64
        assert secret not in str(job)


async def test_each_job_has_its_own_array(
    world: PoolWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submissions, "_PAUSE", 0.01)
    allocs = [
        await world.place(batch(script("echo ran"), job_id=f"job-{number}"))
        for number in range(COUNT)
    ]
    await completed(world, allocs)
    assert [job["array"] for job in world.slurm.jobs()] == [""] * COUNT


async def test_array_without_a_response_is_not_submitted_again(
    world: PoolWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.slurm.crash_after_submission("unsure")
    await completed(world, await placed(world, "echo ran"))
    assert len(world.slurm.jobs()) == COUNT


async def test_lost_array_is_submitted_again(
    world: PoolWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LATE, 0.1)
    world.slurm.crash_after_submission("forgotten")
    await completed(world, await placed(world, "echo ran"))


async def test_next_daemon_finds_an_array_submitted_before_its_record(
    store: Store, slurm: FakeSlurm, tmp_path: Path
) -> None:
    async with open_pool(store, slurm, settings(tmp_path)) as world:
        allocs = await waiting(world)
        config = world.config

    def forget(tx: Transaction) -> None:
        for alloc in allocs:
            (row,) = world.rows(alloc)
            changes = {"status": RunStatus.SUBMITTING, "job_id": ""}
            cluster_runs.put(tx, msgspec.structs.replace(row, **changes))

    await store.write(forget)
    async with open_pool(store, slurm, config) as world:
        for node in NODES:
            slurm.resume(node)
        await completed(world, allocs)
    assert submissions_of(slurm) == 1


async def test_next_daemon_recovers_running_elements(
    store: Store, slurm: FakeSlurm, tmp_path: Path
) -> None:
    sign = tmp_path / "go"
    text = f"echo begun; until [ -e {sign} ]; do sleep 0.1; done; echo ran"
    async with open_pool(store, slurm, settings(tmp_path)) as world:
        allocs = await placed(world, text)
        for alloc in allocs:
            await world.until_printed(alloc, "begun")
        config = world.config
    async with open_pool(store, slurm, config) as world:
        sign.touch()
        await completed(world, allocs, "begun\nran\n")
    assert submissions_of(slurm) == 1


async def test_element_cancelled_by_the_cluster_fails_and_the_others_continue(
    world: PoolWorld, slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LATE, 0.1)
    first, *others = await waiting(world)
    await cancelled(slurm, element_of(world, first))
    alloc = await world.until_done(first)
    assert alloc.client_status == "failed"
    assert "it was cancelled in the cluster" in world.told(first)[-2][1]
    for node in NODES:
        slurm.resume(node)
    await completed(world, others)
    assert "Started" not in world.types(first)


async def test_array_cancelled_by_the_cluster_fails(
    world: PoolWorld, slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LATE, 0.1)
    allocs = await waiting(world)
    await cancelled(slurm, element_of(world, allocs[0]).partition("_")[0])
    for alloc in allocs:
        assert (await world.until_done(alloc)).client_status == "failed"
        assert "it was cancelled in the cluster" in world.told(alloc)[-2][1]
    assert submissions_of(slurm) == 1


async def test_stopped_element_is_cancelled_alone(world: PoolWorld, slurm: FakeSlurm) -> None:
    first, *others = await waiting(world)
    await world.stop(first)
    await world.until_done(first)
    while len(slurm.jobs()) > len(others):  # noqa: ASYNC110  # no event reports this
        await trio.sleep(0.05)
    for node in NODES:
        slurm.resume(node)
    await completed(world, others)
    assert "Started" not in world.types(first)


@pytest.mark.parametrize("fault", ["preempt", "kill", "launch_again"])
async def test_error_of_an_element_does_not_affect_others(
    world: PoolWorld, slurm: FakeSlurm, tmp_path: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LATE, 0.1)
    sign = tmp_path / "go"
    text = f"echo begun; until [ -e {sign} ]; do sleep 0.1; done; echo ran"
    first, *others = await placed(world, text)
    for alloc in (first, *others):
        await world.until_printed(alloc, "begun")
        await world.until_running(alloc)
    getattr(slurm, fault)(element_of(world, first))
    if fault != "launch_again":
        assert (await world.until_done(first)).client_status == "failed"
    sign.touch()
    await completed(world, others, "begun\nran\n")
    if fault == "launch_again":
        await completed(world, [first], "begun\nran\n")
    assert world.types(first).count("Started") == 1


async def test_a_cluster_without_arrays_gets_jobs(world: PoolWorld, slurm: FakeSlurm) -> None:
    slurm.most_elements(0)
    await completed(world, await placed(world, "echo ran"))
    assert submissions_of(slurm) == 1 + COUNT
    assert [job["array"] for job in slurm.jobs()] == [""] * COUNT


async def test_refused_submission_fails_each_element(world: PoolWorld, slurm: FakeSlurm) -> None:
    slurm.remove_partition("main")
    for alloc in await placed(world, "echo never"):
        assert (await world.until_done(alloc)).client_status == "failed"
        assert "Invalid partition name specified" in str(world.told(alloc))
    assert submissions_of(slurm) == 2


async def test_a_command_runs_inside_an_element(world: PoolWorld, tmp_path: Path) -> None:
    sign = tmp_path / "go"
    text = f"echo begun; until [ -e {sign} ]; do sleep 0.1; done"
    first, *others = await placed(world, text)
    await world.until_printed(first, "begun")
    await world.until_running(first)
    driver = world.engine.drivers["hpc"]["slurm"]
    (run,) = world.engine.wrapper_api.of_allocation(first)
    words = ["/bin/sh", "-c", "echo $NOMAD_ALLOC_ID"]
    session = await driver.open_session(run.attempt, words, tty=False)
    assert await session.read("stdout") == f"{first}\n".encode()
    await session.close()
    sign.touch()
    await completed(world, [first, *others], "begun\n")


async def cancelled(slurm: FakeSlurm, job_id: str) -> None:
    await trio.run_process([slurm.bin / "scancel", job_id])
