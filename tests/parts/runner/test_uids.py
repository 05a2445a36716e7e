"""Users of allocations: tasks run as their allocation's user, and cannot access others' files."""

import os
from pathlib import Path

import msgspec
import pytest
import trio

from daemon.config.data_directory import uids_dir
from daemon.config.settings import DEFAULT_UIDS, task_numbers
from storage.errors import Refused
from storage.records.allocation import DesiredState
from storage.records.group import EphemeralDisk, Volume
from storage.records.job import Job
from storage.records.node import HostVolume
from storage.records.task import VolumeMount
from storage.store import Store
from tests.parts.runner.conftest import discard, end_all_of, needs_root
from tests.parts.runner.world import World, batch, open_world, script, service


def skip_without_walls(world: World) -> None:
    if not world.node().drivers["exec"].healthy:
        pytest.skip("this host supports no sandboxes")


@needs_root
async def test_task_without_a_free_user_id_fails_with_a_reason(
    store: Store, data_dir: Path
) -> None:
    async with open_world(store, data_dir, task_uids="80000-80000") as world:
        skip_without_walls(world)
        first = await world.place(service(script("exec sleep 600", driver="exec"), job_id="one"))
        await world.until_status(first, "running")
        second = await world.place(batch(script("echo ran", driver="exec"), job_id="two"))
        await world.until_status(second, "failed")
        assert any("all 1 user IDs of task_uids" in text for _, text in world.told(second))
        assert not list(world.directory(second).rglob("main.stdout*"))
    end_all_of(data_dir)
    discard(data_dir)


# ---- the setting ---------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", ["1", "999-2000", "5000-4000", "80000-4294967295", "a-b", "1-"])
def test_impossible_range_is_refused(setting: str) -> None:
    with pytest.raises(ValueError, match="write FIRST-LAST, such as 80000-89999"):
        task_numbers(setting, "")


def test_subordinate_ids_of_containers_are_not_used() -> None:
    assert task_numbers("", "root:100000:65536\nann:165536:65536\n") == DEFAULT_UIDS
    text = "root:100000:65536\nsteward:300000:1000\n"
    assert task_numbers("", text) == range(300_000, 301_000)


# ---- tasks -----------------------------------------------------------------------------------------


def on_volume(text: str, job_id: str) -> Job:
    mount = VolumeMount(volume="v", destination="/data")
    job = batch(script(f"exec 2>&1; {text}", driver="exec", volume_mounts=[mount]), job_id=job_id)
    (group,) = job.task_groups or ()
    volumes = {"v": Volume(name="v", type="host", source="data")}
    return msgspec.structs.replace(
        job, task_groups=[msgspec.structs.replace(group, volumes=volumes)]
    )


@needs_root
async def test_jobs_without_a_user_cannot_access_each_other(store: Store, data_dir: Path) -> None:
    shared = data_dir / "shared"
    shared.mkdir(mode=0o777)
    shared.chmod(0o777)
    volumes = [HostVolume(name="data", path=str(shared))]
    async with open_world(store, data_dir, host_volumes=volumes) as world:
        skip_without_walls(world)
        first = await world.place(
            on_volume("umask 077; echo mine >/data/f; id -u; whoami; echo $HOME", "first")
        )
        await world.until_done(first)
        second = await world.place(
            on_volume("cat /data/f; echo x >>/data/f; id -u; id -gn", "second")
        )
        await world.until_done(second)
        mine, theirs = world.output(first).splitlines(), world.output(second).splitlines()
        assert mine == ["80000", "task80000", "/local"]
        assert theirs[-2:] == ["80001", "task80001"]
        assert [line.rpartition(": ")[2] for line in theirs[:-2]] == ["Permission denied"] * 2
        assert (shared / "f").read_text() == "mine\n"
        for alloc_id, number in ((first, 80_000), (second, 80_001)):
            assert (world.directory(alloc_id) / "main/local").stat().st_uid == number
    end_all_of(data_dir)
    discard(data_dir)


async def restart(world: World, alloc_id: str) -> None:
    """Restart the task as soon as the daemon has recovered it, found by polling."""
    while True:
        try:
            return await world.runner.restart(alloc_id, "main")
        except Refused:
            await trio.sleep(0.005)


@needs_root
async def test_a_task_keeps_its_user_over_a_restart_of_the_daemon(
    store: Store, data_dir: Path
) -> None:
    task = script("id -u; exec sleep 600", driver="exec")
    async with open_world(store, data_dir) as world:
        skip_without_walls(world)
        alloc_id = await world.place(service(task))
        await world.until_printed(alloc_id, "80000")
    async with open_world(store, data_dir) as world:
        await world.until_status(alloc_id, "running")
        await restart(world, alloc_id)
        await world.until_printed(alloc_id, "80000\n80000")
        await world.stop(alloc_id)
        await world.until_done(alloc_id)
        await world.runner.remove_directory(alloc_id)
        assert os.listdir(uids_dir(data_dir)) == []
    end_all_of(data_dir)
    discard(data_dir)


@needs_root
async def test_tasks_of_one_group_share_files_with_their_successor(
    store: Store, data_dir: Path
) -> None:
    disk = EphemeralDisk(sticky=True)
    async with open_world(store, data_dir) as world:
        skip_without_walls(world)
        text = "umask 077; cat /alloc/data/f; echo more >>/alloc/data/f; id -u"
        job = batch(script(text, driver="exec"))
        (group,) = job.task_groups or ()
        job = msgspec.structs.replace(
            job, task_groups=[msgspec.structs.replace(group, ephemeral_disk=disk)]
        )
        first = await world.place(job)
        await world.until_done(first)
        second = await world.place(job, desired=DesiredState(previous_allocation=first))
        await world.until_done(second)
        assert world.output(second) == "more\n80000\n"
    end_all_of(data_dir)
    discard(data_dir)
