"""A failing job makes a bounded number of allocations, regardless of the triggers."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from daemon.evals import deployment_actions, node_actions
from daemon.jobs.register import JobRegisterRequest, register_job
from storage.queries import allocations, deployments
from storage.records.base import HOUR, MINUTE, SECOND
from tests.simulation.operations import AROUND
from tests.simulation.order import one_order
from tests.simulation.world import World

UPDATED = ("service", "system")  # kinds with deployments
CHECKS = ("task_states", "checks", "manual")
PAUSES = ("running", "paused", "resumed")
LIMITED = {"Attempts": 2, "Unlimited": False, "Interval": 48 * HOUR, "Delay": 5 * SECOND,
           "DelayFunction": "constant", "MaxDelay": 0}  # fmt: skip
ENDLESS = {"Attempts": 0, "Unlimited": True, "Interval": 0, "Delay": 30 * SECOND,
           "DelayFunction": "exponential", "MaxDelay": HOUR}  # fmt: skip
AN_HOUR = HOUR // SECOND
# A failing group next to a running group. Each starts with one allocation; the limited policy adds
# two, and a system job adds one.
MOST = {"limited": 6, "endless": 12}  # delays of an unlimited policy grow


def document(kind: str, check: str, policy: dict[str, Any]) -> dict[str, Any]:
    def group(name: str, config: dict[str, Any]) -> dict[str, Any]:
        made: dict[str, Any] = {
            "Name": name,
            "Tasks": [{"Name": "main", "Driver": "simulated", "Config": config,
                       "Resources": {"CPU": 50, "MemoryMB": 50}}],
            "RestartPolicy": {"Attempts": 0, "Mode": "fail", "Interval": MINUTE, "Delay": SECOND},
        }  # fmt: skip
        if kind in ("service", "batch"):
            made["ReschedulePolicy"] = policy
        if kind in UPDATED:
            made["Update"] = {
                "MaxParallel": 1,
                "HealthCheck": check,
                "MinHealthyTime": 10 * SECOND,
                "HealthyDeadline": 5 * MINUTE,
                "ProgressDeadline": 10 * MINUTE,
            }
        return made

    return {
        "ID": "web",
        "Datacenters": ["*"],
        "Type": kind,
        "TaskGroups": [group("good", {}), group("bad", {"run_for": 1, "fails": 100})],
    }


async def live(directory: Path, wanted: dict[str, Any], pause: str, made: list[int]) -> None:
    async with trio.open_nursery() as nursery:
        world = World(directory, 1, nursery)
        world.machine.bad_luck = 10**9
        await world.begin()

        def call() -> dict[str, Any]:
            return {"now": world.clock.now(), "eval_id": next(world.ids)}

        await register_job(
            world.store,
            JobRegisterRequest(job=wanted),
            namespace=None,
            surroundings=AROUND,
            **call(),
            scaling_ids=world.ids,
        )
        await trio.sleep(1)  # the deployment begins in this time
        for paused in {"running": (), "paused": (True,), "resumed": (True, False)}[pause]:
            active = world.store.read(deployments.active)
            assert active, "no deployment is active"
            for deployment in active:
                await deployment_actions.pause(world.store, deployment.id, paused=paused, **call())
            await trio.sleep(5)
        await trio.sleep(AN_HOUR)
        for wish in ("ineligible", "eligible") * 5:
            await node_actions.set_eligibility(
                world.store, world.runner.node_id, wish, world.ids, now=world.clock.now()
            )
            await trio.sleep(10)
        rows = world.store.read(lambda db: db.all("SELECT count(*) AS number FROM allocations"))
        found = world.store.read(lambda db: allocations.of_job(db, "default", "web"))
        assert len(found) == rows[0]["number"]
        made += [alloc.client_status == "failed" for alloc in found]
        await world.end()


CASES = [
    *product(UPDATED, CHECKS, PAUSES, ["limited"]),
    *product(["service"], CHECKS, PAUSES, ["endless"]),  # other job types have no endless policy
    # Nothing reads the check of a job without deployments, and no deployment is active.
    *product(["batch", "sysbatch"], ["task_states"], ["running"], ["limited"]),
    ("batch", "task_states", "running", "endless"),
]


@pytest.mark.parametrize(("kind", "check", "pause", "policy"), CASES)
def test_allocation_that_always_fails_is_placed_a_bounded_number_of_times(
    kind: str, check: str, pause: str, policy: str, tmp_path: Path
) -> None:
    wanted = document(kind, check, LIMITED if policy == "limited" else ENDLESS)
    made: list[int] = []
    with one_order(1):
        clock = MockClock(autojump_threshold=0)
        trio.run(live, tmp_path, wanted, pause, made, clock=clock)
    assert sum(made) >= 1
    assert len(made) <= MOST[policy]
