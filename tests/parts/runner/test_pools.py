"""Cluster pools as nodes of the store: mirrored fields, times of writes, and rows that remain."""

import hashlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import msgspec
import pytest
import trio

from daemon.clock import SystemClock
from daemon.config.settings import Settings
from daemon.fences import Fences
from daemon.launcher.client import Launcher
from daemon.runner.cluster_nodes import (
    AGAIN,
    EVERY,
    LEFT,
    NOT_ASKED,
    Look,
    PoolSync,
    describe_change,
    register_pools,
)
from daemon.runner.cluster_nodes import build_node as as_seen
from daemon.runner.drivers.mock import MockDriver
from daemon.runner.drivers.slurm.commands import SlurmCommandFailed, SlurmCommands
from daemon.runner.drivers.slurm.partition import Partition, PartitionNotFound, described
from daemon.runner.drivers.slurm.wrapper_api import WrapperApi, WrapperRejected
from storage.queries import cluster_runs, nodes
from storage.records.base import MINUTE
from storage.records.cluster_run import ClusterRun, RunStatus
from storage.records.node import EngineHost, Node, NodeStatus
from storage.records.pool import Pool
from storage.store import Store
from tests.fakes.slurm.world import FakeSlurm, fake_slurm
from tests.parts.runner.alloc_stage import JumpingClock
from tests.parts.runner.world import World, batch, open_world, unique_ids
from tests.samples import task

POOL = Pool(engine="slurm", partition="main", mhz_per_core=2000, max_jobs=7)


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[FakeSlurm]:
    with fake_slurm(tmp_path / "slurm") as world:
        yield world


def node_of(store: Store, pool: str) -> Node:
    (found,) = (node for node in store.read(nodes.list_all) if node.node_pool == pool)
    return found


async def until(store: Store, pool: str, condition: Callable[[Node], object]) -> Node:
    """Return the node of a pool as soon as it meets a condition."""
    while True:
        with store.watch("nodes/") as watch:
            if condition(found := node_of(store, pool)):
                return found
            await watch.wait()


async def until_ready(store: Store, pool: str) -> Node:
    return await until(store, pool, lambda node: node.status == NodeStatus.READY)


def messages(node: Node) -> list[str]:
    return [event.message for event in node.events or ()]


# ---- over the cluster's programs -------------------------------------------------------------------


@asynccontextmanager
async def beside(
    store: Store, data_dir: Path, slurm: FakeSlurm, **settings: Any
) -> AsyncIterator[World]:
    """Open a runner with this host and with pools of the fake cluster."""
    pools = {"hpc": POOL, "short": Pool(engine="slurm")}
    async with open_world(
        store,
        data_dir,
        drivers={"mock_driver": MockDriver()},
        pool_drivers={"hpc": {"slurm": MockDriver(), "mock_driver": MockDriver()}},
        environment={"PATH": slurm.path},
        **{"pools": pools, **settings},
    ) as world:
        yield world


async def test_pool_becomes_a_separate_node(store: Store, data_dir: Path, slurm: FakeSlurm) -> None:
    async with beside(store, data_dir, slurm) as world:
        node = await until_ready(store, "hpc")
        assert (node.name, node.datacenter, node.node_max_allocs) == ("hpc", "dc1", 7)
        assert node.capacity == (64_000, 16_000, 0)
        assert node.node_resources.cpu.total_cpu_cores == 32
        said = {name: text for name, text in node.attributes.items() if name[:6] == "engine"}
        said.pop("engine.version")
        said.pop("engine.partition.maxtime")
        assert said == {
            "engine.name": "slurm",
            "engine.partition": "main",
            "engine.partition.state": "UP",
            "engine.mhz_per_core": "2000",
            "engine.reachable": "true",
            "engine.hosts": "2",
            "engine.hosts.up": "2",
            "engine.host.cores": "16",
            "engine.host.memorymb": "8000",
            "engine.feature.all": "true",
            "engine.feature.node1": "true",
            "engine.feature.node2": "true",
        }
        assert node.hosts == [
            EngineHost(
                name=name,
                state="up",
                description="takes jobs",
                cores=16,
                memory_mb=8000,
                features=sorted(["all", name]),
            )
            for name in ("node1", "node2")
        ]
        assert sorted(node.drivers) == ["mock_driver", "slurm"]
        other = await until_ready(store, "short")
        assert [host.name for host in other.hosts or ()] == ["node2"]
        here = node_of(store, "default")
        assert (here.id, here.engine) == (world.runner.node_id, "")


async def test_allocation_in_a_pool_runs_with_the_drivers_of_the_pool(
    store: Store, data_dir: Path, slurm: FakeSlurm
) -> None:
    async with beside(store, data_dir, slurm) as world:
        node = node_of(store, "hpc")
        job = batch(task(driver="slurm", config={"run_for": "1ms", "stdout_string": "there"}))
        alloc_id = await world.place(job, node_id=node.id)
        assert (await world.until_done(alloc_id)).client_status == "complete"
        assert world.output(alloc_id) == "there"
        await world.purge(job)
        await world.until_no_directory(alloc_id)


async def test_pool_ids_and_history_are_stored_and_removed_pools_are_down(
    store: Store, data_dir: Path, slurm: FakeSlurm
) -> None:
    async with beside(store, data_dir, slurm) as world:
        first = await until_ready(store, "hpc")
        machine = world.runner.node_id
    async with beside(store, data_dir, slurm, pools={}) as world:
        assert world.runner.node_id == machine
        gone = node_of(store, "hpc")
        assert (gone.id, gone.status, gone.status_description) == (first.id, NodeStatus.DOWN, LEFT)
    async with beside(store, data_dir, slurm, pools={}):
        assert node_of(store, "hpc") == gone
    async with beside(store, data_dir, slurm):
        back = await until_ready(store, "hpc")
        assert back.id == first.id
        assert messages(back) == ["the cluster accepts jobs", LEFT, "the cluster accepts jobs"]


async def test_wrapper_in_a_removed_pool_is_rejected(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    wrapper_api = WrapperApi(store, SystemClock(), lambda: "fresh", cast(Any, None))
    both = {"hpc": POOL, "short": Pool(engine="slurm")}
    await register_pools(store, Settings(pools=both), {}, unique_ids(), 1)
    rows = [
        ClusterRun(
            allocation_id="a1",
            task="main",
            number=number,
            pool=pool,
            status=status,
            token_hash=hashlib.sha256(f"a1.{number}.t".encode()).hexdigest(),
        )
        for number, (pool, status) in enumerate(
            [
                ("hpc", RunStatus.SUBMITTING),
                ("hpc", RunStatus.WAITING),
                ("hpc", RunStatus.RUNNING),
                ("hpc", RunStatus.ENDED),
                ("short", RunStatus.RUNNING),
            ]
        )
    ]
    for row in rows:
        await store.write(partial(cluster_runs.put, run=row))
    await register_pools(store, Settings(pools={"short": both["short"]}), {}, unique_ids(), 2)
    left = store.read(lambda db: cluster_runs.of_allocation(db, "a1"))
    void, ended, running = RunStatus.VOID, RunStatus.ENDED, RunStatus.RUNNING
    assert [cluster_run.status for cluster_run in left] == [void, void, void, ended, running]
    assert "3 jobs may still run in its cluster" in caplog.text
    with pytest.raises(WrapperRejected) as told:
        await wrapper_api.log("a1.2.t", "stdout", 0, b"")
    assert told.value.status == 410


async def test_a_start_does_not_wait_for_a_cluster_that_does_not_answer(
    store: Store, data_dir: Path, slurm: FakeSlurm
) -> None:
    slurm.controller_away()
    async with beside(store, data_dir, slurm):
        node = node_of(store, "hpc")
        assert (node.status, node.status_description) == (NodeStatus.INITIALIZING, NOT_ASKED)


# ---- scripted answers and a controlled clock -----------------------------------------------------------


class Script:
    """The cluster's answers, poll by poll; the last one repeats."""

    def __init__(self, *answers: Partition | SlurmCommandFailed | str) -> None:
        self.answers = list(answers)
        self.asked: list[float] = []

    async def __call__(self, tools: SlurmCommands, name: str) -> Partition:
        self.asked.append(trio.current_time())
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, str):
            answer = SlurmCommandFailed(answer)
        if isinstance(answer, SlurmCommandFailed):
            raise answer
        return answer


def host(name: str, state: str = "up", reason: str = "", **fields: Any) -> EngineHost:
    given = {"cores": 4, "memory_mb": 100, "description": described(state, reason), **fields}
    return EngineHost(name=name, state=state, reason=reason, **given)


NO_LAUNCHER = cast(Launcher, None)  # the tests script the answers of the cluster


@asynccontextmanager
async def mirrored(
    store: Store,
    look: Look,
    others: Mapping[str, Pool] = MappingProxyType({}),
    fences: Fences | None = None,
) -> AsyncIterator[None]:
    """Mirror the pool `hpc` and others."""
    config = Settings(pools={"hpc": POOL, **others})
    drivers = {name: {"slurm": MockDriver()} for name in config.pools}
    clock = JumpingClock()
    found = await register_pools(store, config, drivers, unique_ids(), clock.now())
    mirror = PoolSync(
        store=store,
        clock=clock,
        pools=config.pools,
        nodes=found,
        drivers=drivers,
        path="",
        launcher=NO_LAUNCHER,
        fences=fences or Fences(clock),
        look=look,
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(mirror.run)
        yield
        nursery.cancel_scope.cancel()


TWO = Partition(hosts=[host("a"), host("b", cores=8, memory_mb=50)], version="22.05.8")


async def test_unchanged_pool_is_not_stored(store: Store, autojump_clock: Any) -> None:
    async with mirrored(store, script := Script(TWO)):
        ready = await until_ready(store, "hpc")
        index = store.read(lambda db: db.last_index())
        await trio.sleep(10 * EVERY)
        assert len(script.asked) >= 10
        assert store.read(lambda db: db.last_index()) == index
        assert node_of(store, "hpc") == ready


async def test_three_failures_make_a_cluster_unreachable_with_its_last_state(
    store: Store, autojump_clock: Any
) -> None:
    async with mirrored(
        store, script := Script(TWO, "it hangs", "it hangs", TWO, *["no"] * 3, TWO)
    ):
        before = await until_ready(store, "hpc")
        away = await until(store, "hpc", lambda node: node.status == NodeStatus.DISCONNECTED)
        gaps = [
            round(after - at) for at, after in zip(script.asked, script.asked[1:], strict=False)
        ]
        assert gaps == [EVERY, AGAIN, AGAIN, EVERY, AGAIN, AGAIN]
        assert away.status_description == "the cluster does not answer: no"
        assert away.attributes == before.attributes | {"engine.reachable": "false"}
        assert (away.hosts, away.node_resources) == (before.hosts, before.node_resources)
        assert not away.drivers["slurm"].healthy
        assert away.drivers["slurm"].health_description == away.status_description
        back = await until_ready(store, "hpc")
        assert back.drivers["slurm"].healthy
        assert back.attributes == before.attributes
        assert messages(back)[-2:] == [away.status_description, "the cluster answers again"]


async def test_missing_partition_is_not_treated_as_no_response(
    store: Store, autojump_clock: Any
) -> None:
    async with mirrored(store, Script(PartitionNotFound("the cluster has no partition 'main'"))):
        node = await until(store, "hpc", lambda node: node.status == NodeStatus.DISCONNECTED)
        assert node.status_description == "the cluster has no partition 'main'"


async def test_down_hosts_have_no_capacity_but_count_for_the_largest_host(
    store: Store, autojump_clock: Any
) -> None:
    drained = host("b", "drained", cores=8, memory_mb=50, reason="disk is full")
    later = Partition(hosts=[host("a"), drained], version="22.05.8")
    async with mirrored(store, Script(TWO, later)):
        await until_ready(store, "hpc")
        node = await until(store, "hpc", lambda node: node.hosts == later.hosts)
        assert node.capacity == (8000, 100, 0)
        assert node.attributes["engine.host.cores"] == "8"
        assert messages(node)[-1] == "b accepts no new jobs: disk is full"
        assert node.status == NodeStatus.READY


@pytest.mark.parametrize(
    ("state", "status", "text"),
    [
        ("DOWN", NodeStatus.READY, "the partition is DOWN: submitted jobs wait"),
        ("DRAIN", NodeStatus.INITIALIZING, "partition main is DRAIN: it accepts no new jobs"),
        ("INACTIVE", NodeStatus.INITIALIZING, "partition main is INACTIVE: it accepts no new jobs"),
    ],
)
async def test_state_of_a_partition_is_described(
    store: Store, autojump_clock: Any, state: str, status: str, text: str
) -> None:
    async with mirrored(store, Script(Partition(hosts=[host("a")], state=state))):
        node = await until(store, "hpc", lambda node: node.status_description != NOT_ASKED)
        assert (node.status, node.status_description) == (status, text)


async def test_pool_made_ineligible_by_an_operator_stays_ineligible(
    store: Store, autojump_clock: Any
) -> None:
    async with mirrored(store, Script(TWO)):
        ready = await until_ready(store, "hpc")
    closed = msgspec.structs.replace(ready, scheduling_eligibility="ineligible")
    later = Partition(hosts=[host("c")])
    node = as_seen(closed, POOL, later, {}, MINUTE)
    assert node.scheduling_eligibility == "ineligible"
    assert describe_change(closed, node) == "c takes jobs, a was removed, b was removed"


# ---- errors of the daemon ----------------------------------------------------------------------------


async def test_failed_pool_query_is_repeated_and_other_pools_are_mirrored(
    store: Store, autojump_clock: Any
) -> None:
    fences, script = Fences(JumpingClock()), Script(TWO)
    failures = [RuntimeError("a defect")] * 5

    async def look(tools: SlurmCommands, name: str) -> Partition:
        if name == "bad" and failures:
            raise failures.pop()
        return await script(tools, name)

    others = {"bad": msgspec.structs.replace(POOL, partition="bad")}
    async with mirrored(store, look, others, fences):
        await until_ready(store, "hpc")
        await until_ready(store, "bad")
    assert not failures
    assert [fence.key for fence in fences.of_kind("loop")] == ["pool bad"]
