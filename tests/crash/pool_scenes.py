"""Crash scenes for a pool that is part of a cluster."""

from typing import Any

from daemon.config.data_directory import alloc_dir
from tests.crash.job_scenes import Scene, long, task_of
from tests.crash.world import POOL, World


def in_pool(world: World, job_id: str) -> dict[str, Any]:
    """Return a long-running job in the pool that prints output."""
    definition = long(world, job_id, NodePool=POOL)
    task = task_of(definition)
    task["Driver"] = "slurm"
    task["Config"]["args"][1] = f"echo hello; {task['Config']['args'][1]}"
    return definition


async def submitted(world: World) -> None:
    """Submit a task that runs and prints output; stop and purge it."""
    await world.until_pool()
    await world.register(in_pool(world, "queued"))
    (found, *_) = await world.steward.allocations("queued", "running")
    await world.until_started(found["ID"])
    await world.stop("queued", purge=True)
    await world.change("PUT", "/v1/system/gc")
    await world.until_gone(alloc_dir(world.steward.data_dir) / found["ID"])


async def left(world: World) -> None:
    """Remove the pool from the settings while a task runs in it, and restore it."""
    await world.until_pool()
    await world.register(in_pool(world, "queued"))
    (found, *_) = await world.steward.allocations("queued", "running")
    if not await world.steward.start_with(world.without_pool):
        return
    await world.steward.until(
        "/v1/job/queued/allocations",
        lambda shown: any(alloc["ClientStatus"] == "lost" for alloc in shown),
    )
    if await world.steward.start_with(world.steward.all_flags):
        await world.until_pool()
        await world.until_forgotten(found["ID"])


SCENES: tuple[Scene, ...] = (submitted, left)
