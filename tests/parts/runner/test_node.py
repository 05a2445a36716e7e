"""The node: its attributes, and requests to it."""

from collections.abc import Callable
from pathlib import Path

import pytest
import trio
import trio.testing

from daemon.evals.node_actions import change_meta
from daemon.launcher.client import Launcher
from daemon.runner.alloc.predecessors import predecessors_of
from daemon.runner.core.driver import Attempt, TaskHandle
from daemon.runner.drivers.mock import MockDriver
from daemon.runner.drivers.process_scan import ProcessScanner
from daemon.runner.drivers.raw_exec import RawExecDriver
from storage.errors import NotFound, Refused
from storage.queries import nodes
from storage.records.allocation import (
    AllocatedPort,
    AllocatedResources,
    AllocatedShared,
    Placement,
)
from storage.records.base import HOUR, SECOND
from storage.records.evaluation import PlacementMetric
from storage.records.node import HostNetwork, Node
from storage.records.task import Lifecycle, Resources
from storage.store import Store
from tests.parts.runner.alloc_stage import mock
from tests.parts.runner.world import Pipe, World, batch, open_world, script, service, state_of
from tests.unit.runner.placements import placed


def only_node(store: Store) -> Node:
    (node,) = store.read(nodes.list_all)
    return node


async def test_node_registers_as_ready_with_its_resources(world: World) -> None:
    node = only_node(world.store)
    assert (node.id, node.name, node.status) == (world.runner.node_id, "node-1", "ready")
    assert node.ready
    assert node.meta == {"zone": "a"}
    assert node.node_resources.memory.memory_mb > 0
    assert node.node_resources.cpu.cpu_shares > 0
    assert node.node_resources.disk.disk_mb > 0
    assert node.attributes["kernel.name"] == "linux"
    assert node.attributes["driver.raw_exec"] == "1"
    assert node.attributes["nomad.service_discovery"] == "true"
    assert node.drivers["raw_exec"].healthy
    assert [event.message for event in node.events or ()] == ["Node registered"]


async def test_settings_override_the_fingerprint(store: Store, data_dir: Path) -> None:
    settings = {"cpu_total_mhz": 1234, "memory_total_mb": 55, "disk_total_mb": 66}
    async with open_world(store, data_dir, **settings):
        resources = only_node(store).node_resources
    assert resources.cpu.cpu_shares == 1234
    assert resources.memory.memory_mb == 55
    assert resources.disk.disk_mb == 66
    assert only_node(store).attributes["cpu.totalcompute"] == "1234"


async def test_the_networks_of_the_configuration_have_their_addresses(
    store: Store, data_dir: Path
) -> None:
    networks = [
        HostNetwork(name="here", interface="lo", cidr="127.0.0.0/8"),
        HostNetwork(name="nowhere", interface="no-such-one"),
    ]
    async with open_world(store, data_dir, host_networks=networks):
        found = only_node(store).host_networks
    assert {name: one["IP"] for name, one in found.items()} == {"here": "127.0.0.1"}


async def test_a_node_keeps_its_id_and_history_over_restarts(store: Store, data_dir: Path) -> None:
    async with open_world(store, data_dir):
        before = only_node(store)
    async with open_world(store, data_dir, datacenter="dc2"):
        after = only_node(store)
    assert (after.id, after.create_index) == (before.id, before.create_index)
    assert after.datacenter == "dc2"
    assert after.computed_class != before.computed_class
    assert [event.message for event in after.events or ()] == [
        "Node registered",
        "Node re-registered",
    ]


async def test_changed_metadata_survive_a_restart_and_reach_new_tasks(
    store: Store, data_dir: Path
) -> None:
    async with open_world(store, data_dir) as world:
        changes = {"zone": None, "rack": "r7"}
        await change_meta(
            store, world.node_id, changes, {"zone": "a"}, iter(()), most=10, now=SECOND
        )
        task = script("echo $SEEN > $NOMAD_ALLOC_DIR/seen", env={"SEEN": "${meta.rack}"})
        alloc_id = await world.place(batch(task))
        await world.until_status(alloc_id, "complete")
        assert (world.directory(alloc_id) / "alloc" / "seen").read_text() == "r7\n"
    async with open_world(store, data_dir):
        assert only_node(store).meta == {"rack": "r7"}


async def test_ineligible_node_stays_ineligible(store: Store, data_dir: Path) -> None:
    async with open_world(store, data_dir):
        node = only_node(store)

    def close(tx: object) -> None:
        from msgspec.structs import replace

        nodes.put(tx, replace(node, scheduling_eligibility="ineligible"), "NodeEligibility")

    await store.write(close)
    async with open_world(store, data_dir):
        assert only_node(store).scheduling_eligibility == "ineligible"


async def test_development_node_uses_loopback_and_the_mock_driver(
    store: Store, data_dir: Path
) -> None:
    async with open_world(store, data_dir, dev=True):
        node = only_node(store)
    assert node.node_resources.networks[0].ip == "127.0.0.1"
    assert sorted(node.drivers) == ["docker", "exec", "mock_driver", "podman", "raw_exec"]


async def test_node_reports_missing_guarantees(
    store: Store, data_dir: Path, launcher: Launcher
) -> None:
    drivers = {"raw_exec": RawExecDriver(ProcessScanner(), {}, launcher)}
    async with open_world(store, data_dir, drivers=drivers):
        attributes = only_node(store).attributes
    assert attributes["driver.raw_exec.containment"] == "scan"
    assert "outlives its task" in attributes["driver.raw_exec.unenforced.stop"]


@pytest.mark.parametrize("purged", [False, True])
async def test_starting_tasks_wait_for_the_capacity_of_ending_tasks(
    store: Store, data_dir: Path, purged: bool
) -> None:
    drivers = {"mock_driver": MockDriver()}
    async with open_world(store, data_dir, drivers=drivers, cpu_total_mhz=50) as world:
        job = service(mock(config={"run_for": "1h", "kill_after": "1h"}, kill_timeout=HOUR))
        ending = await world.place(job)
        await world.until_status(ending, "running")
        if purged:
            await world.purge(job)
            await sleep_until(lambda: world.runner._running[ending].is_purged)
        else:
            await world.stop(ending)
            await world.until(ending, lambda _: "Killing" in world.types(ending))

        def waits_for(cpu: int) -> list[trio.Event]:
            more = service(mock(resources=Resources(cpu=cpu, memory_mb=20)), job_id="more")
            runner = world.runner
            wanted = placed(more, runner.node_id, "more")
            return predecessors_of(
                wanted, runner._running.values(), runner._host.capacity, runner._is_known
            )

        assert waits_for(30) == []  # together with the 20 of the other job, this fits
        assert waits_for(31) == [world.runner._running[ending].ended]


async def sleep_until(condition: Callable[[], bool]) -> None:
    """Poll until a condition holds."""
    while not condition():  # noqa: ASYNC110  # no event reports it
        await trio.sleep(0.005)


async def test_ended_or_unknown_task_accepts_no_requests(world: World) -> None:
    alloc_id = await world.place(batch(script("exit 0")))
    await world.until_done(alloc_id)
    with pytest.raises(Refused, match="Task not running"):
        await world.runner.restart(alloc_id)
    with pytest.raises(NotFound, match='Unknown allocation "x"'):
        await world.runner.signal("x", None, "SIGHUP")


async def test_missing_task_has_the_error_text_of_nomad(world: World) -> None:
    alloc_id = await world.place(service(script("exec sleep 600")))
    await world.until_status(alloc_id, "running")
    with pytest.raises(Refused, match="Could not find task runner for task: nope"):
        await world.runner.restart(alloc_id, "nope")
    with pytest.raises(Refused, match="Task not found"):
        await world.runner.signal(alloc_id, "nope", "SIGHUP")


async def test_broken_allocation_does_not_affect_others(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*args: object) -> None:
        raise RuntimeError("broken")

    with monkeypatch.context() as patched:
        patched.setattr("daemon.runner.alloc.task_runner.TaskRunner._prepared", broken)
        bad = await world.place(batch(script("exit 0"), job_id="bad"))
        failed = await world.until_done(bad)
    assert failed.client_status == "failed"
    assert world.types(bad)[-1] == "Setup Failure"
    assert "RuntimeError" in caplog.text
    good = await world.place(batch(script("exit 0"), job_id="good"))
    assert (await world.until_done(good)).client_status == "complete"


async def test_new_job_version_changes_the_stop_of_a_running_task(world: World) -> None:
    from storage.queries import jobs

    alloc_id = await world.place(service(script("exec sleep 600")))
    await world.until_status(alloc_id, "running")
    changed = service(script("exec sleep 600", kill_signal="SIGTERM", kill_timeout=7_000_000_000))
    await world.store.write(lambda tx: jobs.append_version(tx, changed))
    await world.want(alloc_id, job_version=1)
    await world.stop(alloc_id)
    await world.until_done(alloc_id)
    assert world.told(alloc_id)[3:5] == [
        ("Killing", "Sent interrupt. Waiting 7s before force killing"),
        ("Terminated", "Exit Code: 143, Signal: 15"),
    ]


def holding(port: int) -> Placement:
    """Return the allocated resources of an allocation with a static port."""
    shared = AllocatedShared(ports=[AllocatedPort(label="http", value=port, host_ip="127.0.0.1")])
    resources = AllocatedResources(tasks={}, task_lifecycles={}, shared=shared)
    return Placement(resources=resources, metrics=PlacementMetric(), node_name="node-1")


async def test_task_with_a_reused_port_starts_after_its_last_owner_ended(
    world: World, pipe: Pipe
) -> None:
    text = f"trap 'echo last >{pipe.path}; sleep 0.1; exit' TERM; echo up >{pipe.path}; while :; do sleep 0.01; done"
    old = service(script(text, kill_signal="SIGTERM", kill_timeout=60 * SECOND), job_id="old")
    first = await world.place(old, placement=holding(7000))
    assert await pipe.line() == "up"
    await world.stop(first)
    new = batch(script(f"echo new >{pipe.path}"), job_id="new")
    second = await world.place(new, placement=holding(7000))
    assert [await pipe.line(), await pipe.line()] == ["last", "new"]
    ended, begun = await world.until_done(first), await world.until_done(second)
    assert str(state_of(ended).finished_at) < str(state_of(begun).started_at)


async def test_shared_port_does_not_delay_an_allocation(world: World, pipe: Pipe) -> None:
    shared = service(script(f"echo up >{pipe.path}; exec sleep 600"), job_id="old")
    await world.place(shared, placement=holding(7000))  # both allocations have ignore_collision
    assert await pipe.line() == "up"
    second = await world.place(batch(script("exit 0"), job_id="new"), placement=holding(7000))
    assert (await world.until_done(second)).client_status == "complete"


async def test_node_reports_supported_signals(world: World) -> None:
    known = only_node(world.store).attributes["os.signals"].split(",")
    assert {"SIGHUP", "SIGINT", "SIGTERM", "SIGUSR1", "SIGKILL"} < set(known)


async def test_resource_usage_is_known_while_a_task_runs(held_world: World, pipe: Pipe) -> None:
    alloc_id = await held_world.place(service(script(f"echo up >{pipe.path}; sleep 600 & wait")))
    assert await pipe.line() == "up"
    used = await held_world.runner.usage(alloc_id)
    assert used.tasks["main"].resource_usage.memory_stats.rss > 100_000
    assert len(used.tasks["main"].pids) >= 1
    await held_world.stop(alloc_id)
    await held_world.until_done(alloc_id)
    assert (await held_world.runner.usage(alloc_id)).tasks == {}


class Late(RawExecDriver):
    """A driver that reports its start only on the test's command."""

    def __init__(self, launcher: Launcher) -> None:
        super().__init__(ProcessScanner(), {}, launcher)
        self.heard = trio.Event()

    async def start(self, attempt: Attempt) -> TaskHandle:
        running = await super().start(attempt)
        await self.heard.wait()
        return running


@pytest.mark.parametrize("what", ["usage", "signal", "restart", "session"])
async def test_request_about_a_newly_reported_task_is_answered(
    store: Store, data_dir: Path, launcher: Launcher, pipe: Pipe, what: str
) -> None:
    driver = Late(launcher)
    text = f"trap 'echo told >{pipe.path}; exit' HUP INT; echo up >{pipe.path}; while :; do sleep 0.01; done"
    async with open_world(store, data_dir, drivers={"raw_exec": driver}) as world:
        alloc_id = await world.place(service(script(text)))
        assert await pipe.line() == "up"
        answers: list[object] = []

        async def ask() -> None:
            runner = world.runner
            match what:
                case "usage":
                    answers.extend((await runner.usage(alloc_id)).tasks)
                case "signal":
                    answers.append(await runner.signal(alloc_id, "main", "SIGHUP"))
                case "restart":
                    answers.append(await runner.restart(alloc_id))
                case _:
                    opened = await runner._find(alloc_id).tasks.open_session(
                        "main", ["true"], tty=False
                    )
                    answers.append(await opened.wait())
                    await opened.close()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            assert not answers
            driver.heard.set()
        assert answers == {"usage": ["main"], "session": [0]}.get(what, [None])
        if what in {"signal", "restart"}:
            assert await pipe.line() == "told"
        await world.stop(alloc_id)


async def test_restart_of_all_tasks_includes_ended_tasks(world: World) -> None:
    first = script("echo first", "first", lifecycle=Lifecycle(hook="prestart"))
    alloc_id = await world.place(service(first, script("exec sleep 600")))
    await world.until(alloc_id, lambda item: state_of(item).state == "running")
    await world.runner.restart(alloc_id, all_tasks=True)
    await world.until(
        alloc_id,
        lambda item: (
            [state_of(item, task).restarts for task in ("first", "main")] == [1, 1]
            and state_of(item, "first").state == "dead"
        ),
    )
    assert world.output(alloc_id, "first") == "first\nfirst\n"
    assert "Restart Signaled" in world.types(alloc_id, "first")


async def test_only_ended_allocations_are_collected(world: World) -> None:
    ended = await world.place(batch(script("exit 0"), job_id="ended"))
    running = await world.place(service(script("exec sleep 600"), job_id="running"))
    await world.until_done(ended)
    await world.until_status(running, "running")
    with pytest.raises(Refused, match="not eligible for GC"):
        await world.runner.collect(running)
    with pytest.raises(NotFound):
        await world.runner.collect("nobody")
    while not await world.runner.ended():  # until the runner releases it
        await trio.lowlevel.checkpoint()
    await world.runner.collect(ended)
    assert world.directory(running).exists()
    assert not world.directory(ended).exists()
    await world.runner.collect(ended)


async def test_ended_allocations_are_collected_in_the_background(world: World) -> None:
    ended = [await world.place(batch(script("exit 0"), job_id=f"ended-{n}")) for n in range(3)]
    running = await world.place(service(script("exec sleep 600"), job_id="running"))
    for item in ended:
        await world.until_done(item)
    await world.until_status(running, "running")
    while len(await world.runner.ended()) < len(ended):  # until the runner releases the last
        await trio.lowlevel.checkpoint()
    world.runner.collect_all()
    world.runner.collect_all()
    while any(world.directory(item).exists() for item in ended):
        await trio.lowlevel.checkpoint()
    assert world.directory(running).exists()


async def test_allocation_that_ended_first_is_collected_first(world: World) -> None:
    ended = []
    for number in range(3):
        ended.append(await world.place(batch(script("exit 0"), job_id=f"ended-{number}")))
        await world.until_done(ended[-1])
    running = await world.place(service(script("exec sleep 600"), job_id="running"))
    await world.until_status(running, "running")
    while len(found := await world.runner.ended()) < len(
        ended
    ):  # until the runner releases the last
        await trio.lowlevel.checkpoint()
    assert found == ended
