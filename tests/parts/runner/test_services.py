"""Services of running allocations: registrations, checks, and their effects (recorded: services)."""

import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from daemon.net.http_client import allow_all
from daemon.runner.core.task_script import ScriptResult
from daemon.runner.services.checks import CheckRunner, run_check
from daemon.runner.services.registrations import CheckTarget
from storage.errors import Refused
from storage.queries import services
from storage.records.allocation import (
    AllocatedPort,
    AllocatedResources,
    AllocatedShared,
    DeploymentHealth,
    Placement,
)
from storage.records.base import SECOND
from storage.records.evaluation import PlacementMetric
from storage.records.group import Update
from storage.records.service import CheckStatus, Registration
from storage.records.task import Check, CheckRestart, RestartPolicy, Service
from storage.store import Store
from tests.parts.runner.world import Pipe, World, batch, open_world, script, service, state_of

LINGER = "exec sleep 600"


def holding(**ports: int) -> Placement:
    """Return the allocated resources of an allocation with ports of these labels."""
    held = [
        AllocatedPort(label=name, value=port, host_ip="127.0.0.1") for name, port in ports.items()
    ]
    resources = AllocatedResources(tasks={}, task_lifecycles={}, shared=AllocatedShared(ports=held))
    return Placement(resources=resources, metrics=PlacementMetric(), node_name="node-1")


def native(name: str = "web", port: str = "http", **fields: Any) -> Service:
    return Service(name=name, port_label=port, provider="nomad", **fields)


def registered(world: World, alloc_id: str) -> list[Registration]:
    return world.store.read(lambda db: services.of_allocation(db, alloc_id))


async def until_registered(world: World, names: set[str]) -> list[Registration]:
    """Return all registrations once exactly these services are registered."""
    while True:
        with world.store.watch("services/") as watch:
            found = world.store.read(lambda db: services.list_all(db, "*"))
            if {service.service_name for service in found} == names:
                return found
            await watch.wait()


@asynccontextmanager
async def server(answer: Callable[[], bytes | None]) -> AsyncIterator[int]:
    """Answer every connection with some bytes, or never; yields the port."""

    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            said = answer()
            if said is None:
                await trio.sleep_forever()
            await stream.receive_some()
            await stream.send_all(said or b"")

    async with trio.open_nursery() as nursery:
        start = partial(trio.serve_tcp, host="127.0.0.1")
        (listener,) = await nursery.start(start, serve, 0)
        yield listener.socket.getsockname()[1]
        nursery.cancel_scope.cancel()


def page(status: int, body: str = "") -> bytes:
    head = f"HTTP/1.1 {status} x\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return (head + body).encode()


# ---- registering -----------------------------------------------------------------------------------


async def test_group_registers_its_services_while_running(world: World) -> None:
    job = service(script(LINGER), services=[native(tags=["a", "b"], canary_tags=["c"])])
    alloc_id = await world.place(job, placement=holding(http=20100))
    (found,) = await until_registered(world, {"web"})
    assert found.id == f"_nomad-task-{alloc_id}-group-web-web-http"
    assert (found.address, found.port, found.tags) == ("127.0.0.1", 20100, ["a", "b"])
    assert (found.job_id, found.alloc_id, found.datacenter) == ("job", alloc_id, "dc1")
    await world.stop(alloc_id)
    await until_registered(world, set())
    await world.until_done(alloc_id)


async def test_canary_has_its_own_tags(world: World) -> None:
    job = service(script(LINGER), services=[native(tags=["a"], canary_tags=["c"])])
    health = DeploymentHealth(canary=True)
    await world.place(job, placement=holding(http=20100), health=health)
    (found,) = await until_registered(world, {"web"})
    assert found.tags == ["c"]


async def test_references_in_a_service_are_resolved(world: World) -> None:
    one = native("web-${NOMAD_JOB_NAME}", tags=["on-${node.unique.name}", "p${NOMAD_PORT_http}"])
    await world.place(service(script(LINGER), services=[one]), placement=holding(http=20100))
    (found,) = await until_registered(world, {"web-job"})
    assert found.tags == ["on-node-1", "p20100"]


async def test_service_is_deregistered_before_its_shutdown_delay(world: World) -> None:
    job = service(script(LINGER), services=[native()], shutdown_delay=600 * SECOND)
    alloc_id = await world.place(job, placement=holding(http=20100))
    await until_registered(world, {"web"})
    await world.stop(alloc_id)
    await until_registered(world, set())
    assert world.find(alloc_id).client_status == "running"


async def test_stopping_task_has_no_registered_service(world: World, pipe: Pipe) -> None:
    trap = f"trap 'echo asked > {pipe.path}; exit' INT; echo up > {pipe.path}; sleep 600 & wait"
    job = service(script(trap, kill_timeout=600 * SECOND), services=[native()])
    alloc_id = await world.place(job, placement=holding(http=20100))
    await until_registered(world, {"web"})
    assert await pipe.line() == "up"
    await world.stop(alloc_id)
    assert await pipe.line() == "asked"
    assert registered(world, alloc_id) == []


async def test_service_of_a_task_is_registered_until_the_task_ends(world: World) -> None:
    short = script("while ! test -e $NOMAD_ALLOC_DIR/data/go; do sleep 0.01; done", "short")
    short = msgspec.structs.replace(short, services=[native("short", "")])
    alloc_id = await world.place(batch(short, script("exec sleep 600")), placement=holding())
    await until_registered(world, {"short"})
    (world.directory(alloc_id) / "alloc/data/go").touch()
    await until_registered(world, set())
    assert state_of(await world.until_status(alloc_id, "running")).state == "running"


async def test_missing_port_is_reported_without_affecting_others(
    world: World,
) -> None:
    job = service(script(LINGER), services=[native(port="nope"), native("ok", "20101")])
    alloc_id = await world.place(job, placement=holding())
    (found,) = await until_registered(world, {"ok"})
    assert found.port == 20101
    told = 'failed to register service "web": invalid port "nope": port label not found'
    assert ("Task hook failed", told) in world.told(alloc_id)


async def test_services_are_deleted_with_a_purge(world: World) -> None:
    job = service(script(LINGER), services=[native()])
    await world.place(job, placement=holding(http=20100))
    await until_registered(world, {"web"})
    await world.purge(job)
    await until_registered(world, set())


async def test_services_are_deleted_when_the_task_ends(world: World) -> None:
    job = batch(script("sleep 0.05"))
    group = msgspec.structs.replace(job.task_groups[0], services=[native()])
    job = msgspec.structs.replace(job, task_groups=[group])
    alloc_id = await world.place(job, placement=holding(http=20100))
    await world.until_done(alloc_id)
    assert registered(world, alloc_id) == []


# ---- checking --------------------------------------------------------------------------------------


def probe(kind: str, port: int, **fields: Any) -> CheckTarget:
    check = Check(name="c", type=kind, timeout=SECOND, interval=SECOND, **fields)
    return CheckTarget(id="x", check=check, service="web", task="", address="127.0.0.1", port=port)


async def nothing_runs(task: str, command: Sequence[str]) -> ScriptResult:
    raise Refused("task not found")


async def test_port_number_out_of_range_is_reported(world: World) -> None:
    job = service(script(LINGER), services=[native(port="99999"), native("ok", "20101")])
    alloc_id = await world.place(job, placement=holding())
    await until_registered(world, {"ok"})
    told = 'invalid port "99999": a port number is from 1 to 65535'
    assert ("Task hook failed", f'failed to register service "web": {told}') in world.told(alloc_id)


@pytest.mark.parametrize(
    ("answer", "status", "code"),
    [
        (page(200), CheckStatus.SUCCESS, 200),
        (page(302), CheckStatus.SUCCESS, 302),
        (page(500, "oh"), CheckStatus.FAILURE, 500),
        (b"nonsense\r\n\r\n", CheckStatus.FAILURE, 0),
        (b"", CheckStatus.FAILURE, 0),
    ],
)
async def test_http_check_uses_the_status_code(
    answer: bytes, status: CheckStatus, code: int
) -> None:
    async with server(lambda: answer) as port:
        found, got, words = await run_check(
            probe("http", port, path="/health"), nothing_runs, allow_all
        )
    assert (found, got) == (status, code)
    assert words == "oh" or words.startswith("nomad: ") or not words


async def test_endless_page_is_truncated() -> None:
    endless = b"HTTP/1.1 500 x\r\n\r\n" + b"x" * 1_000_000
    async with server(lambda: endless) as port:
        _, _, words = await run_check(probe("http", port), nothing_runs, allow_all)
    assert len(words) == 3072


async def test_tcp_check_passes_on_an_open_port() -> None:
    async with server(lambda: b"") as port:
        assert (await run_check(probe("tcp", port), nothing_runs, allow_all))[
            0
        ] == CheckStatus.SUCCESS
    assert (await run_check(probe("tcp", port), nothing_runs, allow_all))[0] == CheckStatus.FAILURE


def checked(port_label: str = "http", **fields: Any) -> Service:
    given = {"name": "alive", "type": "http", "path": "/", "interval": SECOND // 50, **fields}
    check = Check(**{"timeout": SECOND // 10, **given})
    return native(port=port_label, checks=[check])


async def until_checked(world: World, alloc_id: str, status: CheckStatus) -> Any:
    while True:
        found = world.runner.checks(alloc_id)
        if found and found[0].status == status:
            return found[0]
        await trio.sleep(0.005)


async def test_results_of_a_check_are_shown(world: World) -> None:
    answers = [page(503, "not yet")]
    async with server(lambda: answers[0]) as port:
        job = service(script(LINGER), services=[checked()])
        alloc_id = await world.place(job, placement=holding(http=port))
        found = await until_checked(world, alloc_id, CheckStatus.FAILURE)
        assert (found.status_code, found.output) == (503, "not yet")
        assert (found.service, found.check, found.group) == ("web", "alive", "job.web[0]")
        answers[0] = page(200)
        found = await until_checked(world, alloc_id, CheckStatus.SUCCESS)
        assert found.output == "nomad: http ok"


async def until_ready(world: World, *alloc_ids: str) -> None:
    """Wait until these allocations offer the service to templates, and no others."""
    while True:
        with world.store.watch("service/default/web") as watch:
            found = world.store.read(lambda db: services.ready(db, "default", "web"))
            if {service.alloc_id for service in found} == set(alloc_ids):
                return
            await watch.wait()


async def test_an_instance_is_ready_while_its_checks_pass(world: World) -> None:
    answers = [page(503)]
    async with server(lambda: answers[0]) as port:
        job = service(script(LINGER), services=[checked()])
        alloc_id = await world.place(job, placement=holding(http=port))
        await until_checked(world, alloc_id, CheckStatus.FAILURE)
        await until_registered(world, {"web"})
        await until_ready(world)
        answers[0] = page(200)
        await until_ready(world, alloc_id)
        answers[0] = page(503)
        await until_ready(world)


async def test_ready_service_stays_ready_until_the_first_check_of_the_next_daemon(
    store: Store, data_dir: Path
) -> None:
    answers: list[bytes | None] = [page(200)]
    async with server(lambda: answers[0]) as port:
        job = service(script(LINGER), services=[checked(timeout=600 * SECOND)])
        async with open_world(store, data_dir) as world:
            alloc_id = await world.place(job, placement=holding(http=port))
            await until_ready(world, alloc_id)
        answers[0] = None
        async with open_world(store, data_dir) as world:
            await until_checked(world, alloc_id, CheckStatus.PENDING)
            await world.runner.signal(alloc_id, "main", "SIGCONT")  # so that a report is sent
            await world.until(alloc_id, lambda _: "Signaling" in world.types(alloc_id))
            await until_ready(world, alloc_id)
            await world.stop(alloc_id)
            await world.until_done(alloc_id)


async def test_services_of_a_task_that_ended_without_a_daemon_are_deleted_by_the_next(
    store: Store, data_dir: Path, pipe: Pipe
) -> None:
    linger = f"echo $$ > {pipe.path}; exec sleep 600"
    task = script(linger, restart_policy=RestartPolicy(attempts=0, mode="fail"))
    async with open_world(store, data_dir) as world:
        alloc_id = await world.place(
            service(task, services=[native()]), placement=holding(http=20100)
        )
        await until_registered(world, {"web"})
        pid = int(await pipe.line())
    os.kill(pid, signal.SIGKILL)
    assert [service.service_name for service in registered(world, alloc_id)] == ["web"]
    async with open_world(store, data_dir) as world:
        await until_registered(world, set())
        await world.until_status(alloc_id, "failed")


async def test_unresponsive_endpoint_fails_its_check(world: World) -> None:
    async with server(lambda: None) as port:
        job = service(script(LINGER), services=[checked()])
        alloc_id = await world.place(job, placement=holding(http=port))
        found = await until_checked(world, alloc_id, CheckStatus.FAILURE)
        assert found.output == "nomad: no answer within the timeout of the check"


UPDATE = Update(health_check="checks", min_healthy_time=SECOND // 20, healthy_deadline=600 * SECOND)


async def test_an_allocation_is_healthy_only_when_its_checks_pass(world: World) -> None:
    answers = [page(503)]
    async with server(lambda: answers[0]) as port:
        job = service(script(LINGER), services=[checked()], update=UPDATE)
        alloc_id = await world.place(job, placement=holding(http=port), deployment_id="d")
        await until_checked(world, alloc_id, CheckStatus.FAILURE)
        await trio.sleep(0.1)
        assert world.find(alloc_id).health is None
        answers[0] = page(200)
        found = await world.until(alloc_id, lambda alloc: alloc.health)
        assert found.health is not None
        assert found.health.healthy


async def test_readiness_check_does_not_affect_the_health(world: World) -> None:
    async with server(lambda: page(503)) as port:
        job = service(script(LINGER), services=[checked(on_update="ignore")], update=UPDATE)
        alloc_id = await world.place(job, placement=holding(http=port), deployment_id="d")
        found = await world.until(alloc_id, lambda alloc: alloc.health)
        assert found.health is not None
        assert found.health.healthy
        assert world.runner.checks(alloc_id)[0].mode == "readiness"


async def test_late_checks_make_an_allocation_unhealthy(world: World) -> None:
    update = msgspec.structs.replace(UPDATE, healthy_deadline=SECOND // 5)
    async with server(lambda: page(503)) as port:
        job = service(script(LINGER), services=[checked()], update=update)
        alloc_id = await world.place(job, placement=holding(http=port), deployment_id="d")
        found = await world.until(alloc_id, lambda alloc: alloc.health)
        assert found.health is not None
        assert not found.health.healthy
        await world.until(alloc_id, lambda _: "Alloc Unhealthy" in world.types(alloc_id))
        assert ("Alloc Unhealthy", "Services not healthy by deadline") in world.told(alloc_id)
        details = [event.details.get("checks") for event in world.events(alloc_id)]
        assert 'check "alive" of service "web" fails with status 503' in details


async def test_unhealthy_allocation_names_the_error_of_its_check(world: World) -> None:
    update = msgspec.structs.replace(UPDATE, healthy_deadline=SECOND // 5)
    async with server(lambda: page(200)) as port:
        pass  # nothing listens on this port any more
    job = service(script(LINGER), services=[checked()], update=update)
    alloc_id = await world.place(job, placement=holding(http=port), deployment_id="d")
    await world.until(alloc_id, lambda _: "Alloc Unhealthy" in world.types(alloc_id))
    details = [event.details.get("checks") for event in world.events(alloc_id)]
    assert 'check "alive" of service "web" fails: Connection refused' in details


async def test_task_with_a_failing_check_is_restarted_by_its_policy(
    world: World,
) -> None:
    rule = CheckRestart(limit=2, grace=0)
    async with server(lambda: page(503)) as port:
        one = checked(check_restart=rule, task_name="main")
        alloc_id = await world.place(
            service(script(LINGER), services=[one]), placement=holding(http=port)
        )
        done = await world.until_done(alloc_id)  # the job allows no restarts
        assert done.client_status == "failed"
        told = world.told(alloc_id)
        assert ("Restart Signaled", 'healthcheck: check "alive" unhealthy') in told
        assert ("Not Restarting", "Policy allows no restarts") in told


def scripted(text: str, **fields: Any) -> Service:
    command = {"command": "/bin/sh", "args": ["-c", text], "timeout": 600 * SECOND}
    check = Check(
        name="alive", type="script", interval=SECOND // 50, task_name="main", **command, **fields
    )
    return native(checks=[check], port="")


async def test_script_check_runs_inside_of_its_task(world: World) -> None:
    one = scripted('echo "in $NOMAD_TASK_NAME"; test -e local/well')
    alloc_id = await world.place(service(script(LINGER), services=[one]))
    found = await until_checked(world, alloc_id, CheckStatus.FAILURE)
    while "in main" not in found.output:  # asked before the task had begun
        found = await until_checked(world, alloc_id, CheckStatus.FAILURE)
        await trio.sleep(0.005)
    assert found.status_code == 1
    (world.directory(alloc_id) / "main/local/well").touch()
    await until_checked(world, alloc_id, CheckStatus.SUCCESS)


async def test_check_status_changes_after_enough_equal_results(
    autojump_clock: trio.testing.MockClock,
) -> None:
    found = [1, 0, 1, 1, 0, 1, 1, 0, 0, 0]  # exit statuses
    seen: list[str] = []
    check = Check(
        name="c",
        type="script",
        command="x",
        interval=SECOND,
        timeout=600 * SECOND,
        success_before_passing=3,
        failures_before_critical=2,
    )
    check_target = CheckTarget(id="x", check=check, service="web", task="main", address="", port=0)

    async def run(task: str, command: Sequence[str]) -> ScriptResult:
        seen.append(checks.results[0].status)
        if not found:
            over.set()
            await trio.sleep_forever()
        return ScriptResult(found.pop(0), "")

    over = trio.Event()
    checks = CheckRunner("a", lambda: 0, lambda: None, lambda task, why: None, run, allow_all)
    async with trio.open_nursery() as nursery:
        checks.follow([check_target], nursery)
        await over.wait()
        nursery.cancel_scope.cancel()
    pending, failure, success = CheckStatus.PENDING, CheckStatus.FAILURE, CheckStatus.SUCCESS
    assert seen == [*[pending] * 4, *[failure] * 6, success]
