"""Data that outlives an allocation: sticky disks, and logs."""

import os
import shutil
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
import trio

from daemon.runner.logs import retained_logs
from storage.queries import jobs
from storage.records.allocation import DesiredState
from storage.records.group import EphemeralDisk
from storage.records.job import Job
from storage.records.task import DispatchPayload, LogConfig
from tests.launchers import Direct
from tests.parts.runner.world import World, batch, made_for, script
from tests.task_logs import log_in, now, seen

STICKY = EphemeralDisk(sticky=True)
WRITE = (
    "echo shared > $NOMAD_ALLOC_DIR/data/x; echo own > local/y; echo private > $NOMAD_SECRETS_DIR/z"
)
READ = "cat $NOMAD_ALLOC_DIR/data/x local/y $NOMAD_SECRETS_DIR/z"


def keeping(text: str, **fields: Any) -> Job:
    disk = fields.pop("ephemeral_disk", STICKY)
    job = batch(script(text), **fields)
    group = job.task_groups[0]
    return _replace(job, task_groups=[_replace(group, ephemeral_disk=disk)])


def _replace(record: Any, **fields: Any) -> Any:
    return msgspec.structs.replace(record, **fields)


def after(alloc_id: str) -> DesiredState:
    return DesiredState(previous_allocation=alloc_id)


# ---- data --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("disk", "found"),
    [
        (STICKY, "shared\nown\n"),
        (EphemeralDisk(migrate=True), "shared\nown\n"),
        (EphemeralDisk(), ""),
    ],
)
async def test_group_gets_the_data_of_its_previous_allocation(
    world: World, disk: EphemeralDisk, found: str
) -> None:
    text = f"{READ}; {WRITE}"
    job = keeping(text, ephemeral_disk=disk)
    first = await world.place(job)
    await world.until_done(first)
    second = await world.place(job, desired=after(first))
    await world.until_done(second)
    assert world.output(second) == found


async def test_data_is_moved_after_the_previous_allocation_has_ended(world: World) -> None:
    job = keeping(
        "trap 'echo last > local/y; exit' INT; echo up; test -e local/y || sleep 600 & wait; cat local/y"
    )
    first = await world.place(job)
    await world.until_printed(first, "up")
    second = await world.place(job, desired=after(first))
    await world.stop(first)
    await world.until_done(second)
    assert world.output(second) == "up\nlast\n"


async def test_data_is_moved_only_within_a_group_of_a_job(world: World) -> None:
    first = await world.place(keeping(WRITE, job_id="one"))
    await world.until_done(first)
    second = await world.place(keeping(READ, job_id="other"), desired=after(first))
    await world.until_done(second)
    assert world.output(second) == ""
    assert (world.directory(first) / "main/local/y").read_text() == "own\n"


def lay_out(root: Path, previous: Path, *tasks: str) -> None:
    before = None if previous == Path() else previous.name
    made_for(root, *tasks, previous=before)


@pytest.fixture
def previous(tmp_path: Path) -> Path:
    """Return the directory of an allocation that has written something."""
    root = tmp_path / "previous"
    lay_out(root, Path(), "main", "side")
    for place in ("alloc/data", "main/local", "side/local", "main/secrets"):
        (root / place / "f").write_text(place)
    return root


def test_interrupted_move_is_completed_by_the_next_daemon(
    previous: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, rename, done = tmp_path / "next", os.rename, list[str]()

    def die_at_the_third(source: str, target: str, **above: int) -> None:
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(target)
        rename(source, target, **above)

    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", die_at_the_third)
        with pytest.raises(KeyboardInterrupt):
            lay_out(root, previous, "main", "side")
    lay_out(root, previous, "main", "side")
    lay_out(root, previous, "main", "side")
    kept = ("alloc/data", "main/local", "side/local")
    assert [(root / place / "f").read_text() for place in kept] == [*kept]
    assert not (root / "main/secrets/f").exists()


def test_replaced_directory_of_a_task_is_not_used(previous: Path, tmp_path: Path) -> None:
    (previous / "main/local/f").unlink()
    (previous / "main/local").rmdir()
    (previous / "main/local").symlink_to("/etc")
    lay_out(tmp_path / "next", previous, "main")
    assert not (tmp_path / "next/main/local").is_symlink()
    assert list((tmp_path / "next/main/local").iterdir()) == []


def test_replaced_data_directory_is_not_moved(previous: Path, tmp_path: Path) -> None:
    shutil.rmtree(previous / "main")
    (previous / "main").touch()
    lay_out(tmp_path / "next", previous, "main")
    assert list((tmp_path / "next/main/local").iterdir()) == []


async def test_payload_does_not_follow_a_retained_link(world: World, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    text = f"ln -s {outside} local/out"
    job = keeping(text, payload="bm8=")
    task = _replace(
        job.task_groups[0].tasks[0],
        dispatch_payload=DispatchPayload(file="in/file"),
    )
    first = await world.place(job)
    await world.until_done(first)
    group = _replace(
        job.task_groups[0],
        tasks=[_replace(task, dispatch_payload=DispatchPayload(file="out/file"))],
    )
    again = _replace(job, id="job", task_groups=[group])
    second = await place_version(world, again, desired=after(first))
    await world.until_done(second)
    assert list(outside.iterdir()) == []


async def place_version(world: World, job: Job, **fields: Any) -> str:
    """Place an allocation of another version of a job."""
    await world.store.write(lambda tx: jobs.append_version(tx, job))
    return await world.place(job, **fields)


# ---- logs --------------------------------------------------------------------------------------------


@pytest.fixture
async def printed(world: World) -> tuple[World, str]:
    """An allocation that has printed something and ended."""
    alloc_id = await world.place(batch(script("echo out; echo err >&2")))
    await world.until_done(alloc_id)
    while alloc_id not in await world.runner.ended():
        await trio.lowlevel.checkpoint()
    return world, alloc_id


def read(directory: Path) -> bytes:
    return b"".join(chunk.data for chunk in seen(log_in(directory)).chunks(0))


async def test_logs_remain_after_the_removal_of_the_allocation_directory(
    printed: tuple[World, str],
) -> None:
    world, alloc_id = printed
    await world.runner.collect(alloc_id)
    assert not world.directory(alloc_id).exists()
    assert read(world.config.logs_dir / alloc_id) == b"out\n"
    about = await retained_logs.read_manifest(world.runner.logs.launcher, alloc_id)
    assert about is not None
    assert (about.namespace, about.job_id, list(about.tasks)) == ("default", "job", ["main"])


async def test_logs_remain_after_the_deletion_of_the_allocation(printed: tuple[World, str]) -> None:
    world, alloc_id = printed
    await world.purge(batch(script("")))
    await world.until_no_directory(alloc_id)
    assert read(world.config.logs_dir / alloc_id) == b"out\n"


async def test_allocation_without_output_retains_no_logs(world: World) -> None:
    alloc_id = await world.place(batch(script("exit 0")))
    await world.until_done(alloc_id)
    await world.purge(batch(script("")))
    await world.until_no_directory(alloc_id)
    assert not world.config.logs_dir.exists()


def put_aside(logs: Path, name: str, *, size: int, written: int) -> None:
    root = logs / name / "alloc/logs"
    root.mkdir(parents=True)
    (root / "main.stdout.0").write_bytes(b"x" * size)
    os.utime(root / "main.stdout.0", (written, written))


DAY = 86_400


IDS = {name: str(UUID(int=number)) for number, name in enumerate(("old", "middle", "new"), 1)}


@pytest.mark.parametrize(
    ("days", "megabytes", "left"),
    [
        (30, 100, {"old", "middle", "new"}),
        (2, 100, {"middle", "new"}),
        (30, 5, {"middle", "new"}),
        (30, 3, {"new"}),
        (30, 0, set()),
        (0, 100, set()),
    ],
)
async def test_oldest_logs_are_deleted_by_age_and_size(
    tmp_path: Path, days: int, megabytes: int, left: set[str]
) -> None:
    for number, name in enumerate(IDS.values(), 1):
        put_aside(tmp_path / "logs", name, size=2_000_000, written=number * DAY)
    launcher = Direct(tmp_path / "alloc")
    await retained_logs.delete_expired(launcher, days=days, megabytes=megabytes, now=3.5 * DAY)
    assert {*os.listdir(tmp_path / "logs")} == {IDS[name] for name in left}


async def test_deletion_without_retained_logs_does_nothing(tmp_path: Path) -> None:
    await retained_logs.delete_expired(Direct(tmp_path / "alloc"), days=1, megabytes=1, now=1.0)


def test_log_manifest_is_written_atomically(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whose = retained_logs.LogManifest(
        namespace="default", job_id="job", tasks={"main": LogConfig()}
    )
    with monkeypatch.context() as killed:
        killed.setattr(os, "rename", lambda *_, **__: None)  # a crash before the last step
        made_for(tmp_path / "a", about=msgspec.json.encode(whose))
    assert now(retained_logs.read_manifest(Direct(tmp_path), "a")) is None
    made_for(tmp_path / "a", about=msgspec.json.encode(whose))
    assert now(retained_logs.read_manifest(Direct(tmp_path), "a")) == whose


def test_files_next_to_logs_are_removed_with_the_logs(tmp_path: Path) -> None:
    there, gone = (f"0b8a1c52-1c7e-4b6e-8f43-0123456789a{number}" for number in (1, 2))
    made_for(tmp_path / there, "main")
    for name in (there, gone, "else"):
        (tmp_path / "output" / name).mkdir(parents=True)
        (tmp_path / "output" / name / "main.stdout.0").touch()
    trio.run(retained_logs.tidy, Direct(tmp_path), tmp_path / "output")
    assert {path.name for path in (tmp_path / "output").iterdir()} == {there, "else"}
