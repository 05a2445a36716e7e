"""Limits of tasks: each mechanism of this host, with each driver that supports it."""

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from daemon.launcher.client import Launcher
from daemon.runner.core.driver import Driver
from daemon.runner.drivers import cgroup_v1, cgroup_v2, cgroup_v2_limits
from daemon.runner.drivers.exec import ExecDriver
from daemon.runner.drivers.limits import (
    CONTROLLERS,
    CORES,
    MEMORY,
    PROCESSES,
    LimitEnforcer,
    RlimitEnforcer,
    with_rlimits,
)
from daemon.runner.drivers.process_group import ProcessGroups
from daemon.runner.drivers.process_scan import ProcessScanner
from daemon.runner.drivers.raw_exec import RawExecDriver
from storage.records.allocation import AllocatedCPU, Placement, TaskEvent
from storage.records.evaluation import PlacementMetric
from storage.records.group import TaskGroup
from storage.records.task import Resources, Task
from storage.store import Store
from tests.parts.runner.conftest import discard, end_all_of
from tests.parts.runner.test_exec_sessions import run
from tests.parts.runner.world import World, batch, open_world, script, service
from tests.unit.runner.placements import held as holding

MOST = 40  # processes of a task
LINGER = "exec sleep 600"
TAKE_MEMORY = "x=0123456789abcdef; while :; do x=$x$x; done"
# Starts processes one after the other, until the limit is reached.
MULTIPLY = "n=0; while sleep 600 & do n=$((n+1)); done; echo never"


class Held(NamedTuple):
    """A node whose only driver enforces limits."""

    world: World
    bounds: LimitEnforcer
    driver: str

    def needs(self, *kinds: str) -> None:
        """Skip the test unless these limits are enforced by groups."""
        for kind in kinds:
            how = self.bounds.held.get(kind, self.bounds.missing.get(kind, "nothing"))
            if not how.startswith("cgroup v"):
                pytest.skip(f"{kind} is not limited by a control group here: {how}")

    def task(self, text: str, **fields: Any) -> Task:
        return script(text, driver=self.driver, **fields)

    async def end_of(self, text: str, **fields: Any) -> TaskEvent:
        """Run a script as a task; return the task event of its exit."""
        alloc_id = await self.world.place(batch(self.task(text, **fields)))
        await self.world.until_done(alloc_id)
        (end,) = [event for event in self.world.events(alloc_id) if event.type == "Terminated"]
        return end


def found(way: str, data_dir: Path) -> tuple[ProcessGroups, LimitEnforcer]:
    """Return one mechanism of limits, or skip the test."""
    groups: ProcessGroups = cgroup_v2.find(data_dir) or ProcessScanner()
    if way == "v2":
        tree = cgroup_v2_limits.find(
            data_dir, "", cgroup_v2_limits.own_tree(), cgroup_v2_limits.CgroupFiles()
        )
        if isinstance(tree, str):
            pytest.skip(tree)
        return tree, tree
    if way == "v1":
        return groups, cgroup_v1.find(data_dir, dict.fromkeys(CONTROLLERS, "no group of version 1"))
    return groups, RlimitEnforcer(with_rlimits({}), dict.fromkeys(CONTROLLERS, "left out"))


@pytest.fixture(params=["v1-raw_exec", "v2-raw_exec", "rlimit-raw_exec", "v1-exec", "v2-exec"])
async def held(
    request: pytest.FixtureRequest, store: Store, data_dir: Path, launcher: Launcher
) -> AsyncIterator[Held]:
    """A node with each mechanism of limits, for each driver."""
    way, _, name = request.param.partition("-")
    groups, bounding = found(way, data_dir)
    driver: Driver = (ExecDriver if name == "exec" else RawExecDriver)(
        groups, {}, launcher, bounding, MOST
    )
    if trouble := driver.fingerprint().trouble:
        pytest.skip(trouble)
    async with open_world(store, data_dir, drivers={name: driver}) as world:
        yield Held(world, bounding, name)
    end_all_of(data_dir)
    groups.release()
    discard(data_dir)


async def test_task_over_its_memory_limit_is_killed(held: Held) -> None:
    held.needs(MEMORY)
    end = await held.end_of(TAKE_MEMORY, resources=Resources(memory_mb=32))
    assert (end.details or {})["oom_killed"] == "true"
    assert "OOM Killed" in end.display_message


async def test_process_cannot_map_more_than_its_limit(held: Held) -> None:
    if not held.bounds.held[MEMORY].startswith("rlimit"):
        pytest.skip("a control group limits the memory of the whole task")
    end = await held.end_of("ulimit -d; " + TAKE_MEMORY, resources=Resources(memory_mb=32))
    assert end.exit_code != 0
    assert (end.details or {})["oom_killed"] == "false"


async def test_memory_can_grow_to_memory_max(held: Held) -> None:
    held.needs(MEMORY)
    resources = Resources(memory_mb=16, memory_max_mb=200)
    end = await held.end_of("head -c 60m /dev/zero | tail -c 60m | wc -c", resources=resources)
    assert end.exit_code == 0


async def test_endlessly_forking_task_hits_its_process_limit(held: Held) -> None:
    held.needs(PROCESSES)
    alloc_id = await held.world.place(batch(held.task(MULTIPLY)))
    await held.world.until_done(alloc_id)
    assert "fork" in held.world.output(alloc_id, kind="stderr")
    assert held.world.output(alloc_id) == ""
    assert "Terminated" in held.world.types(alloc_id)
    # Other tasks were not affected, and no process remains.
    other = await held.world.place(batch(held.task("echo still here"), job_id="other"))
    await held.world.until_done(other)
    assert held.world.output(other) == "still here\n"


async def test_busy_tasks_share_cpus_by_their_requested_shares(held: Held) -> None:
    held.needs("cpu")
    alloc_id = await held.world.place(
        service(held.task("cat /proc/self/cgroup; " + LINGER, resources=Resources(cpu=750)))
    )
    await held.world.until_printed(alloc_id)
    shares = dict(shares_of(alloc_id))
    assert shares
    assert shares.items() <= EXPECTED.items()


EXPECTED = {"cpu.shares": "750", "cpu.weight": "75"}


def shares_of(alloc_id: str) -> list[tuple[str, str]]:
    """Return (file name, content) of the files in a task's cgroups that set its CPU share."""
    files = [group / name for group in groups_of(alloc_id, ".main") for name in EXPECTED]
    return [(file.name, file.read_text().strip()) for file in files if file.exists()]


def groups_of(alloc_id: str, task: str = ".") -> list[Path]:
    # `glob` would fail if groups of other tests disappear in the meantime.
    return [
        Path(folder, name)
        for folder, names, _ in os.walk("/sys/fs/cgroup")
        for name in names
        if name.startswith(f"{alloc_id}{task}")
    ]


async def test_tasks_do_not_use_exclusive_cores_of_others(held: Held) -> None:
    held.needs(CORES)
    every = os.sched_getaffinity(0)
    if len(every) < 2:
        pytest.skip("this host has one core")
    own = min(every)
    world, task = held.world, held.task("echo up; " + LINGER)

    async def affinities(alloc_id: str) -> list[set[int]]:
        pids = (await world.runner.usage(alloc_id)).tasks["main"].pids
        return [os.sched_getaffinity(int(pid)) for pid in pids]

    other = await world.place(service(task, job_id="other"))
    await world.until_printed(other)
    assert all(affinity == every for affinity in await affinities(other))
    job = service(task, job_id="owner")
    (group,) = job.task_groups or ()
    owner = await world.place(job, placement=placement(group, cores=[own]))
    await world.until_printed(owner)
    assert all(affinity == {own} for affinity in await affinities(owner))
    assert all(affinity == every - {own} for affinity in await affinities(other))
    client = await run(world, other, "grep", "Cpus_allowed_list", "/proc/self/status")
    assert str(own) not in client.seen().split()[1].replace("-", ",").split(",")
    await world.stop(owner)
    await world.until_done(owner)
    assert all(affinity == every for affinity in await affinities(other))


def placement(group: TaskGroup, cores: list[int]) -> Placement:
    """Return the resources of an allocation whose only task has exclusive cores."""
    resources = holding(group)
    (name,) = resources.tasks
    cpu = AllocatedCPU(cpu_shares=100, reserved_cores=cores)
    tasks = {name: msgspec.structs.replace(resources.tasks[name], cpu=cpu)}
    return Placement(
        resources=msgspec.structs.replace(resources, tasks=tasks),
        metrics=PlacementMetric(),
        node_name="node-1",
    )


async def test_exec_session_has_the_limits_of_its_task(held: Held) -> None:
    alloc_id = await held.world.place(service(held.task("echo up; " + LINGER)))
    await held.world.until_printed(alloc_id)
    client = await run(held.world, alloc_id, "sh", "-c", "ulimit -d; cat /proc/self/cgroup")
    seen = client.seen().split()
    if PROCESSES in held.bounds.held:
        assert any(
            f"/{alloc_id}.main" in part and ("pids" in part or "0::" in part) for part in seen
        )
    by_rlimit = held.bounds.held[MEMORY].startswith("rlimit")
    assert (seen[0] == "unlimited") != by_rlimit


async def test_resource_usage_is_read_from_the_cgroup_of_a_task(held: Held) -> None:
    held.needs(PROCESSES)
    alloc_id = await held.world.place(service(held.task("echo up; " + LINGER)))
    await held.world.until_printed(alloc_id)
    used = await held.world.runner.usage(alloc_id)
    assert used.tasks["main"].pids
    # If the task has a memory cgroup, all usage is read from it.
    memory = used.tasks["main"].resource_usage.memory_stats
    if held.bounds.account(alloc_id, "main") is not None:
        assert "Max Usage" in memory.measured
        assert memory.max_usage >= memory.usage > 0
        assert used.resource_usage.memory_stats == memory


async def test_cgroups_of_a_task_are_removed_with_the_task(held: Held) -> None:
    alloc_id = await held.world.place(batch(held.task("true")))
    await held.world.until_done(alloc_id)
    assert held.bounds.present(alloc_id, "main") == []
    assert groups_of(alloc_id) == []


async def test_node_attributes_name_enforced_limits(held: Held) -> None:
    node = held.world.node()
    limits = {limit.name: limit for limit in node.limits(held.driver)}
    assert {*CONTROLLERS} <= limits.keys()
    for kind in CONTROLLERS:
        assert limits[kind].enforced == (kind in held.bounds.held)
        assert limits[kind].how


async def test_raw_exec_enforces_no_limits_by_default(
    store: Store, data_dir: Path, launcher: Launcher
) -> None:
    driver = RawExecDriver(cgroup_v2.find(data_dir) or ProcessScanner(), {}, launcher)
    async with open_world(store, data_dir, drivers={"raw_exec": driver}) as world:
        text = "ulimit -d; head -c 60m /dev/zero | tail -c 60m | wc -c"
        alloc_id = await world.place(batch(script(text, resources=Resources(memory_mb=1))))
        await world.until_done(alloc_id)
        assert world.output(alloc_id).split() == ["unlimited", str(60 * 1024 * 1024)]
        limits = {limit.name: limit for limit in world.node().limits("raw_exec")}
        assert not any(limits[kind].enforced for kind in CONTROLLERS)
        assert "raw_exec_limits" in limits["memory"].how
