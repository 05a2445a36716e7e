"""Users of allocations: no two have one, whatever is removed, restarted or killed in between."""

import os
import pwd
from pathlib import Path

import msgspec
import pytest
import trio
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from hypothesis.strategies import integers

from daemon.config import DEFAULT_UIDS, task_numbers
from daemon.datadir import uids_dir
from daemon.runner.uids import Exhausted, Uids
from storage.errors import Refused
from storage.records.allocation import Desired
from storage.records.group import EphemeralDisk, Volume
from storage.records.job import Job
from storage.records.node import HostVolume
from storage.records.task import VolumeMount
from storage.store import Store
from tests.parts.runner.conftest import discard, end_all_of, needs_root
from tests.parts.runner.world import World, batch, open_world, script, service

NUMBERS = range(80_000, 80_004)


def skip_without_walls(world: World) -> None:
    if not world.node().drivers["exec"].healthy:
        pytest.skip("no sandbox here")


class Machine:
    """A data directory, and a daemon that can be killed at any moment."""

    def __init__(self, place: Path, numbers: range = NUMBERS) -> None:
        self.place, self.numbers = place, numbers
        self.allocs = place / "alloc"
        self.allocs.mkdir()
        self.restart()

    def restart(self) -> None:
        self.uids = Uids(self.place / "uids", self.allocs, self.numbers)

    def begin(self, alloc_id: str) -> int | None:
        number = self.uids.of(alloc_id)
        (self.allocs / alloc_id).mkdir(exist_ok=True)
        return number

    def remove(self, alloc_id: str) -> None:
        (self.allocs / alloc_id).rmdir()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_allocations_have_numbers_of_their_own_and_keep_them(machine: Machine) -> None:
    found = [machine.begin(name) for name in "abc"]
    assert found == [80_000, 80_001, 80_002]
    machine.restart()
    assert [machine.uids.of(name) for name in "abc"] == found
    assert machine.begin("d") == 80_003


def test_a_number_is_free_when_nothing_of_its_owner_is_left(machine: Machine) -> None:
    before = [machine.begin(name) for name in "abcd"]
    with pytest.raises(Exhausted, match="all 4 numbers of task_uids"):
        machine.uids.of("e")
    machine.uids.release("b")
    with pytest.raises(Exhausted):
        machine.uids.of("e")
    (machine.allocs / "b").rename(machine.allocs / "b.removed")
    machine.uids.release("b")
    with pytest.raises(Exhausted):
        machine.uids.of("e")
    (machine.allocs / "b.removed").rmdir()
    machine.uids.release("b")
    assert machine.uids.of("e") == before[1]


@needs_root
async def test_a_task_for_which_no_number_is_free_fails_and_says_so(
    store: Store, data_dir: Path
) -> None:
    async with open_world(store, data_dir, task_uids="80000-80000") as world:
        skip_without_walls(world)
        first = await world.place(service(script("exec sleep 600", driver="exec"), job_id="one"))
        await world.until_status(first, "running")
        second = await world.place(batch(script("echo ran", driver="exec"), job_id="two"))
        await world.until_status(second, "failed")
        assert any("all 1 numbers of task_uids" in text for _, text in world.told(second))
        assert not list(world.directory(second).rglob("main.stdout*"))
    end_all_of(data_dir)
    discard(data_dir)


def test_a_number_whose_owner_never_got_a_directory_is_free_after_a_restart(
    machine: Machine,
) -> None:
    machine.uids.of("killed")
    machine.restart()
    assert os.listdir(machine.place / "uids") == []
    assert machine.uids.of("next") == 80_000


def test_an_allocation_from_before_there_were_numbers_has_none(machine: Machine) -> None:
    (machine.allocs / "old").mkdir()
    assert machine.uids.of("old") is None
    machine.uids.inherit("heir", "old")
    assert machine.begin("heir") is None
    machine.restart()
    assert machine.uids.of("heir") is None


def test_who_takes_over_data_takes_over_the_number(machine: Machine) -> None:
    number = machine.begin("first")
    machine.uids.inherit("second", "first")
    assert machine.begin("second") == number
    machine.remove("first")
    machine.uids.release("first")
    assert [machine.begin(name) for name in "abc"] == [80_001, 80_002, 80_003]
    assert machine.uids.of("second") == number


def test_a_number_of_an_account_is_left_out(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(number: int) -> object:
        if number != 80_000:
            raise KeyError
        return object()

    monkeypatch.setattr(pwd, "getpwuid", find)
    assert machine.begin("a") == 80_001


class Life(RuleBasedStateMachine):
    """Allocations come and go, and the daemon is killed between any two of its steps."""

    @initialize()
    def begin(self) -> None:
        import tempfile

        self.held = tempfile.TemporaryDirectory()
        self.machine = Machine(Path(self.held.name), range(80_000, 80_008))
        self.numbers: dict[str, int | None] = {}
        self.heirs: dict[str, str] = {}
        self.count = 0

    @rule(made=integers(0, 2), heir=integers(0, 3))
    def place(self, made: int, heir: int) -> None:
        name, self.count = f"alloc-{self.count}", self.count + 1
        if heir == 0 and self.numbers:
            previous = max(self.numbers)
            self.machine.uids.inherit(name, previous)
            self.heirs[name] = self.heirs.get(previous, previous)
        try:
            number = self.machine.uids.of(name)
        except Exhausted:
            return
        if made:
            (self.machine.allocs / name).mkdir()
            self.numbers[name] = number
        else:
            self.machine.restart()

    @rule(which=integers(0, 20), step=integers(0, 2))
    def remove(self, which: int, step: int) -> None:
        if not self.numbers:
            return
        name = sorted(self.numbers)[which % len(self.numbers)]
        self.machine.remove(name)
        del self.numbers[name]
        if step:
            self.machine.uids.release(name)
        else:
            self.machine.restart()

    @rule()
    def kill(self) -> None:
        self.machine.restart()

    @invariant()
    def numbers_stay_and_are_not_shared(self) -> None:
        if not hasattr(self, "machine"):
            return
        assert {name: self.machine.uids.of(name) for name in self.numbers} == self.numbers
        owners: dict[int | None, set[str]] = {}
        for name, number in self.numbers.items():
            owners.setdefault(number, set()).add(self.heirs.get(name, name))
        assert all(len(families) == 1 for families in owners.values())

    def teardown(self) -> None:
        if hasattr(self, "held"):
            self.held.cleanup()


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


# ---- the setting ---------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", ["1", "999-2000", "5000-4000", "80000-4294967295", "a-b", "1-"])
def test_a_range_that_cannot_be_is_refused(setting: str) -> None:
    with pytest.raises(ValueError, match="write FIRST-LAST, such as 80000-89999"):
        task_numbers(setting, "")


def test_lines_for_containers_are_not_taken() -> None:
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
async def test_two_jobs_without_a_user_cannot_touch_each_other(
    store: Store, data_dir: Path
) -> None:
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
    """Restart the task as soon as the daemon has found it again: nobody tells."""
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
async def test_tasks_of_one_group_share_its_files_and_its_heir_reads_them(
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
        second = await world.place(job, desired=Desired(previous_allocation=first))
        await world.until_done(second)
        assert world.output(second) == "more\n80000\n"
    end_all_of(data_dir)
    discard(data_dir)
