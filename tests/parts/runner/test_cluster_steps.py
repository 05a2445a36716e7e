"""Steps of workflows as jobs of a cluster: their outputs, the results of earlier steps, their lists."""

import json
import tarfile
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from daemon.runner.core.driver import Attempt
from daemon.runner.drivers.slurm import bundle, submissions
from daemon.runner.drivers.slurm.attempt import SlurmAttempt
from daemon.runner.setup import step_data
from storage.records.base import SECOND
from storage.records.cluster_run import RunStatus
from storage.records.task import RestartPolicy
from storage.store import Store
from tests.fakes.slurm.world import FakeSlurm, fake_slurm
from tests.parts.runner.pool import PoolWorld, open_pool, settings
from tests.parts.runner.steps import FAULTY, OUTPUT, placed, placed_second, step, stored
from tests.parts.runner.test_wrappers import Claimant
from tests.parts.runner.world import script

LATE = "daemon.runner.drivers.slurm.attempt.LATE"
ROWS = f"echo rows=1 > {OUTPUT}"


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[FakeSlurm]:
    with fake_slurm(tmp_path / "slurm") as world:
        yield world


@pytest.fixture
async def world(store: Store, slurm: FakeSlurm, tmp_path: Path) -> AsyncIterator[PoolWorld]:
    async with open_pool(store, slurm, settings(tmp_path)) as opened:
        yield opened


def written(world: PoolWorld) -> list[dict[str, str]]:
    """Return the stored outputs of the elements."""
    return [found.outputs for found in stored(world)]


async def completed(world: PoolWorld, alloc_id: str) -> None:
    alloc = await world.until_done(alloc_id)
    assert alloc.client_status == "complete", world.told(alloc_id)


# --- outputs ---


async def test_outputs_arrive_with_the_exit_status(world: PoolWorld) -> None:
    one = await placed(world, step(script(ROWS), steward_outputs="rows"))
    await completed(world, one)
    assert written(world) == [{"rows": "1"}]


async def test_outputs_of_a_failed_element_are_stored(world: PoolWorld) -> None:
    one = await placed(world, step(script(f"{ROWS}; exit 3"), steward_outputs="rows"))
    assert (await world.until_done(one)).client_status == "failed"
    assert written(world) == [{"rows": "1"}]


@pytest.mark.parametrize(("text", "reason"), FAULTY)
async def test_invalid_outputs_fail_a_successful_task(
    world: PoolWorld, text: str, reason: str
) -> None:
    one = await placed(world, step(script(text), steward_outputs="rows"))
    assert (await world.until_done(one)).client_status == "failed"
    assert reason in dict(world.told(one))["Output Failure"]
    assert written(world) == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("rm {file}", "the step has not written its output rows"),
        ("ln -sf /nowhere {file}", "the step has not written its output rows"),
        ("ln -sf /dev/zero {file}", "their file is not a regular file"),
        ("rm {file}; truncate -s 100G {file}", "more than 65536 bytes"),
        ("rm -r {file} && mkdir {file}", "their file is not a regular file"),
    ],
)
async def test_replaced_output_file_does_not_block_the_end(
    world: PoolWorld, text: str, reason: str
) -> None:
    one = await placed(world, step(script(text.format(file=OUTPUT)), steward_outputs="rows"))
    assert (await world.until_done(one)).client_status == "failed"
    assert reason in dict(world.told(one))["Output Failure"]


async def test_process_that_replaces_the_file_after_the_end_does_not_block(
    world: PoolWorld,
) -> None:
    swap = f"ln -sf /etc/hostname {OUTPUT}; rm -f {OUTPUT}; mkfifo {OUTPUT}; rm -f {OUTPUT}"
    text = f"setsid sh -c 'while [ -d \"$NOMAD_TASK_DIR\" ]; do {swap}; done' >/dev/null 2>&1 &"
    one = await placed(world, step(script(f"{text} sleep 0.1"), steward_outputs="rows"))
    assert (await world.until_done(one)).client_status == "failed"
    assert "Output Failure" in dict(world.told(one))


async def test_output_file_is_empty_at_each_attempt(world: PoolWorld, tmp_path: Path) -> None:
    again = RestartPolicy(attempts=1, interval=3600 * SECOND, delay=0, mode="fail")
    text = f"test -e {tmp_path}/x && exit 0; {ROWS}; touch {tmp_path}/x; exit 3"
    one = await placed(world, step(script(text, restart_policy=again), steward_parallel="1"))
    await completed(world, one)
    assert written(world) == []


def test_files_of_a_running_task_have_no_outputs(tmp_path: Path) -> None:
    for name in ("alloc", "main/local", "main/secrets"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("needs.json", "steward.outputs"):
        (tmp_path / "main/local" / name).touch()
    attempt = Attempt(
        alloc_id="a",
        task="main",
        number=0,
        directory=str(tmp_path),
        config={},
        env={},
        outputs="main/local/steward.outputs",
    )
    with tempfile.TemporaryFile() as file:
        bundle.pack_files(file, attempt)
        file.seek(0)
        with tarfile.open(fileobj=file) as archive:
            names = archive.getnames()
    assert "main/local/needs.json" in names
    assert "main/local/steward.outputs" not in names


async def test_wrapper_killed_before_its_report_fails_the_task(
    world: PoolWorld, slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LATE, 0.1)
    one = await placed(
        world,
        step(script(f"{ROWS}; kill -s KILL $PPID; echo done; sleep 60"), steward_parallel="1"),
    )
    assert (await world.until_done(one)).client_status == "failed"
    assert written(world) == []


async def test_wrapper_of_an_earlier_version_is_reported(
    world: PoolWorld, slurm: FakeSlurm
) -> None:
    for node in ("node1", "node2"):
        slurm.drain(node, "for a test")
    one = await placed(world, step(script("exit 0"), steward_parallel="1"))
    await world.until(one, lambda _: any("waits" in text for text in world.said(one)))
    claimant = Claimant(world, one)
    assert await claimant.ask_for_it() == 200
    await world.until_running(one)
    assert await claimant.end() == 200
    await completed(world, one)
    assert "the wrapper of an earlier version, which sends no outputs" in world.said(one)[-1]


# --- kills of the daemon ---


async def until_ended(world: PoolWorld, alloc_id: str) -> None:
    """Wait until the end of the attempt is stored."""
    while [row.status for row in world.rows(alloc_id)] != [RunStatus.ENDED]:  # noqa: ASYNC110  # no event reports this
        await trio.sleep(0.01)


@pytest.mark.parametrize("is_lost", [False, True])
async def test_outputs_survive_a_kill_between_the_end_and_their_reading(
    store: Store, slurm: FakeSlurm, tmp_path: Path, *, is_lost: bool
) -> None:
    async def never(*given: Any) -> str:
        return await trio.sleep_forever()

    async with open_pool(store, slurm, settings(tmp_path)) as world:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(step_data, "collect", never)
            one = await placed(world, step(script(ROWS), steward_parallel="1"))
            await until_ended(world, one)
            assert written(world) == []
        config = world.config
        if is_lost:
            (world.directory(one) / "main/local/steward.outputs").write_bytes(b"")
    async with open_pool(store, slurm, config) as world:
        found = await world.until_done(one)
        assert written(world) == ([] if is_lost else [{"rows": "1"}])
        assert found.client_status == ("failed" if is_lost else "complete")
        told = dict(world.told(one)).get("Output Failure", "")
        assert ("the task's outputs have been lost since they arrived" in told) == is_lost
        assert world.types(one).count("Started") == 1


async def test_outputs_survive_a_kill_between_their_file_and_the_end(
    store: Store, slurm: FakeSlurm, tmp_path: Path
) -> None:
    arrived = trio.Event()

    async def fail(self: SlurmAttempt, end: Any, digests: Any) -> None:
        arrived.set()
        raise OSError(5, "for a test")

    async with open_pool(store, slurm, settings(tmp_path)) as world:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SlurmAttempt, "finished", fail)
            one = await placed(world, step(script(ROWS), steward_parallel="1"))
            await arrived.wait()
        config = world.config
    async with open_pool(store, slurm, config) as world:
        await completed(world, one)
        assert written(world) == [{"rows": "1"}]
        assert world.types(one).count("Started") == 1


# --- results of earlier steps ---


async def test_results_of_earlier_steps_are_available_on_the_host(world: PoolWorld) -> None:
    text = 'echo "$X"; cat "$NOMAD_TASK_DIR/needs.json"'
    one = await placed_second(world, script(text, env={"X": "${output.a.x}"}))
    await completed(world, one)
    value, needs = world.output(one).split("\n", 1)
    assert value == "value"
    assert json.loads(needs)["a"]["outputs"] == {"x": "value"}


async def test_elements_of_a_list_become_one_array_with_their_items(
    world: PoolWorld, slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = ["eu", "it's $(us)", {"a": 1}]
    monkeypatch.setattr(submissions, "MOST", len(items))
    monkeypatch.setattr(submissions, "_PAUSE", 60)
    monkeypatch.setattr(submissions, "_LONGEST", 60)
    text = (
        f'echo "$STEWARD_EACH_KEY|$STEWARD_EACH_VALUE|$X"; echo "at=$STEWARD_EACH_KEY" > {OUTPUT}'
    )
    task = script(text, env={"X": "${each.index}"})
    job = step(task, steward_for_each=json.dumps(items))
    allocs = [await placed(world, job, name=f"flow.web[{index}]") for index in range(3)]
    for alloc_id in allocs:
        await completed(world, alloc_id)
    assert [world.output(alloc_id) for alloc_id in allocs] == [
        "0|eu|0\n",
        "1|it's $(us)|1\n",
        '2|{"a":1}|2\n',
    ]
    assert written(world) == [{"at": "0"}, {"at": "1"}, {"at": "2"}]
    assert sum(program == "sbatch" for program, *_ in slurm.known()["calls"]) == 1
