"""What is done with a daemon so that it comes to its points: scenes of a pool that is part of a cluster."""

from typing import Any

from daemon.datadir import alloc_dir
from tests.crash.scenes import Scene, long, task_of
from tests.crash.world import POOL, World


def in_pool(world: World, job_id: str) -> dict[str, Any]:
    """Return a job that runs on in the pool, and prints."""
    definition = long(world, job_id, NodePool=POOL)
    task = task_of(definition)
    task["Driver"] = "slurm"
    task["Config"]["args"][1] = f"echo hello; {task['Config']['args'][1]}"
    return definition


async def submitted(world: World) -> None:
    """Submit a task, which runs and prints; stop it, and forget it."""
    await world.until_pool()
    await world.register(in_pool(world, "queued"))
    (found, *_) = await world.steward.allocations("queued", "running")
    await world.until_started(found["ID"])
    await world.stop("queued", purge=True)
    await world.change("PUT", "/v1/system/gc")
    await world.until_gone(alloc_dir(world.steward.data_dir) / found["ID"])


async def left(world: World) -> None:
    """Take the pool out of the settings while something runs there, and put it back."""
    await world.until_pool()
    await world.register(in_pool(world, "queued"))
    (found, *_) = await world.steward.allocations("queued", "running")
    if not await world.steward.start_with(world.without_pool):
        return
    await world.steward.until(
        "/v1/job/queued/allocations",
        lambda shown: any(one["ClientStatus"] == "lost" for one in shown),
    )
    if await world.steward.start_with(world.steward.all_flags):
        await world.until_pool()
        await world.until_forgotten(found["ID"])


SCENES: tuple[Scene, ...] = (submitted, left)
