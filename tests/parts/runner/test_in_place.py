"""An in-place update takes effect in the running allocation: one test for each field."""

from typing import Any

import msgspec
import pytest
import trio

from storage.queries import jobs
from storage.records.base import SECOND
from storage.records.group import Update
from storage.records.job import Job
from storage.records.task import Check, LogConfig, RestartPolicy, Service
from tests.parts.runner.test_services import holding, native, registered, until_registered
from tests.parts.runner.world import Pipe, World, script, service, state_of

LONG = 600 * SECOND
STUBBORN = (
    "trap 'echo TERM' TERM; trap 'echo INT' INT; echo up >{pipe}; while :; do sleep 0.02; done"
)


async def change(world: World, alloc_id: str, job: Job, version: int = 1, **fields: Any) -> None:
    """Store the next version of a job, and give it to a running allocation."""
    await world.store.write(lambda tx: jobs.append_version(tx, job))
    await world.want(alloc_id, job_version=version, **fields)


async def until_tags(world: World, alloc_id: str, tags: list[str]) -> None:
    while [service.tags for service in registered(world, alloc_id)] != [tags]:
        with world.store.watch("services/") as watch:
            if [service.tags for service in registered(world, alloc_id)] == [tags]:
                return
            await watch.wait()


# ---- services -------------------------------------------------------------------------------------


def offering(*services: Service, max_parallel: int = 1) -> Job:
    """Return a service whose health is decided only after hours."""
    slow = Update(max_parallel=max_parallel, health_check="task_states", min_healthy_time=LONG * 9)
    return service(script("exec sleep 600"), services=list(services), update=slow)


@pytest.mark.parametrize("deployment", ["", "d2"])
@pytest.mark.parametrize("max_parallel", [0, 1])
async def test_services_are_registered_immediately_after_an_update_in_place(
    world: World, deployment: str, max_parallel: int
) -> None:
    def job(*services: Service) -> Job:
        return offering(*services, max_parallel=max_parallel)

    alloc_id = await world.place(job(native(tags=["old"])), placement=holding(http=20100))
    await until_registered(world, {"web"})
    await change(world, alloc_id, job(native(tags=["new"])), deployment_id=deployment)
    await until_tags(world, alloc_id, ["new"])
    await change(world, alloc_id, job(native(tags=["new"]), native("api")), 2)
    await until_registered(world, {"web", "api"})
    await change(world, alloc_id, job(native("api")), 3)
    await until_registered(world, {"api"})
    await change(world, alloc_id, job(), 4)
    await until_registered(world, set())
    await change(world, alloc_id, job(native()), 5)
    await until_registered(world, {"web"})


async def test_services_of_a_task_are_registered_immediately(world: World) -> None:
    main = script("exec sleep 600")
    alloc_id = await world.place(service(main), placement=holding(http=20100))
    await world.until_status(alloc_id, "running")
    offered = msgspec.structs.replace(main, services=[native("api", "")])
    await change(world, alloc_id, service(offered))
    await until_registered(world, {"api"})


async def test_checks_are_updated_in_place(world: World) -> None:
    alloc_id = await world.place(offering(native()), placement=holding(http=20100))
    await until_registered(world, {"web"})
    check = Check(name="new", type="tcp", interval=LONG, timeout=SECOND)
    await change(world, alloc_id, offering(native(checks=[check])))
    while not (found := world.runner.checks(alloc_id)):  # noqa: ASYNC110  # no event reports this
        await trio.sleep(0.01)
    assert [check.check for check in found] == ["new"]


# ---- tasks ----------------------------------------------------------------------------------------


async def test_updated_kill_timeout_is_used(world: World, pipe: Pipe) -> None:
    def job(kill_timeout: int) -> Job:
        return service(script(STUBBORN.format(pipe=pipe.path), kill_timeout=kill_timeout))

    alloc_id = await world.place(job(LONG))
    assert await pipe.line() == "up"
    await change(world, alloc_id, job(SECOND // 10), desired_status="stop")
    ended = await world.until_done(alloc_id)
    assert ended.client_status in ("complete", "failed")


async def test_updated_kill_signal_is_used(world: World, pipe: Pipe) -> None:
    def job(kill_signal: str) -> Job:
        text = STUBBORN.format(pipe=pipe.path)
        return service(script(text, kill_signal=kill_signal, kill_timeout=SECOND // 2))

    alloc_id = await world.place(job("SIGINT"))
    assert await pipe.line() == "up"
    await change(world, alloc_id, job("SIGTERM"), desired_status="stop")
    await world.until_done(alloc_id)
    assert world.output(alloc_id) == "TERM\n"


@pytest.mark.parametrize("of_group", [True, False])
async def test_updated_shutdown_delay_is_used(world: World, pipe: Pipe, of_group: bool) -> None:
    def job(delay: int) -> Job:
        main = script(
            f"echo up >{pipe.path}; exec sleep 600", shutdown_delay=0 if of_group else delay
        )
        return service(main, shutdown_delay=delay if of_group else None)

    alloc_id = await world.place(job(LONG))
    assert await pipe.line() == "up"
    await change(world, alloc_id, job(0), desired_status="stop")
    assert (await world.until_done(alloc_id)).client_status == "complete"


async def test_updated_restart_policy_is_used(world: World, pipe: Pipe) -> None:
    def job(attempts: int) -> Job:
        policy = RestartPolicy(attempts=attempts, interval=LONG, delay=LONG, mode="fail")
        text = f"echo up >{pipe.path}; read x <{pipe.path}.go; exit 1"
        return service(script(text, restart_policy=policy), restart_policy=policy)

    go = Pipe(pipe.path.with_name("pipe.go"))
    alloc_id = await world.place(job(5))
    assert await pipe.line() == "up"
    await change(world, alloc_id, job(0))
    with go.path.open("w") as opened:
        opened.write("go\n")
    failed = await world.until_done(alloc_id)
    assert (failed.client_status, state_of(failed).restarts) == ("failed", 0)
    go.close()


async def test_updated_leader_is_used(world: World, pipe: Pipe) -> None:
    def job(*, leader: bool) -> Job:
        first = script(
            f"echo up >{pipe.path}; trap 'exit 0' HUP; while :; do sleep 0.02; done", leader=leader
        )
        policy = RestartPolicy(mode="fail")
        return service(first, script("exec sleep 600", "other"), restart_policy=policy)

    alloc_id = await world.place(msgspec.structs.replace(job(leader=False), type="batch"))
    assert await pipe.line() == "up"
    await change(world, alloc_id, msgspec.structs.replace(job(leader=True), type="batch"))
    await world.runner.signal(alloc_id, "main", "SIGHUP")
    assert (await world.until_done(alloc_id)).client_status == "complete"
    assert "Leader Task Dead" in world.types(alloc_id, "other")


async def test_updated_log_limits_are_used(world: World, pipe: Pipe) -> None:
    def job(files: int) -> Job:
        config = LogConfig(max_files=files, max_file_size_mb=1)
        return service(script(f"echo up >{pipe.path}; exec sleep 600", log_config=config))

    alloc_id = await world.place(job(9))
    assert await pipe.line() == "up"
    await change(world, alloc_id, job(2))
    watched = world.runner._host.sweeper._watched
    while {item.log.most for item in watched.values()} != {2}:  # noqa: ASYNC110  # no event reports this
        await trio.sleep(0.01)
