"""Faults of a cluster, produced on request: a test for each row of the table of faults."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.slurm.world import FakeSlurm, fake_slurm
from tests.service.daemon import Steward, open_steward
from tests.service.slurm.conftest import is_ready, with_pool
from tests.service.slurm.jobs import POOL, Task, completed, script, submitted


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSlurm]:
    with fake_slurm(tmp_path / "slurm") as found:
        monkeypatch.setenv("PATH", found.path)
        yield found


@pytest.fixture
async def steward(world: FakeSlurm, tmp_path: Path) -> AsyncIterator[Steward]:
    async with open_steward(tmp_path, "--dev", "--config", with_pool(tmp_path)) as running:
        await running.until(f"/v1/node/pool/{POOL}/nodes", is_ready)
        yield running


async def begun(steward: Steward, job_id: str, task: Task) -> str:
    """Run a job; return its allocation when the task has begun."""
    alloc_id = await submitted(steward, script(job_id, task.text))
    await task.until("began")
    await steward.allocations(job_id, "running")
    return alloc_id


def number_of(world: FakeSlurm, alloc_id: str) -> str:
    """Return the ID of the newest cluster job of an allocation."""
    return str(world.jobs(f"alloc-{alloc_id}")[-1]["id"])


def told(allocation: Any) -> str:
    """Return the texts of the events of an allocation's task."""
    states = allocation["TaskStates"] or {}
    return "\n".join(event["DisplayMessage"] for event in states["main"]["Events"])


async def test_unreachable_controller_changes_nothing(
    steward: Steward, world: FakeSlurm, task: Task
) -> None:
    alloc_id = await begun(steward, "away", task)
    world.controller_away()
    nodes = f"/v1/node/pool/{POOL}/nodes"
    (node,) = await steward.until(nodes, lambda shown: not is_ready(shown))
    assert "Unable to contact slurm controller" in node["StatusDescription"]
    task.go()
    await completed(steward, "away", alloc_id, task)
    world.controller_back()
    await steward.until(nodes, is_ready)
    assert len(world.jobs()) == 1


async def test_uncertain_submission_is_not_repeated(
    steward: Steward, world: FakeSlurm, task: Task
) -> None:
    world.crash_after_submission("unsure")
    await steward.register(script("unsure", task.text))
    await task.until("began")
    task.go()
    (found,) = await steward.allocations("unsure", "complete", "failed", "lost")
    await completed(steward, "unsure", found["ID"], task)
    assert len(world.jobs()) == 1


async def test_lost_submission_is_repeated_and_its_first_copy_fenced(
    steward: Steward, world: FakeSlurm, task: Task
) -> None:
    world.crash_after_submission("forgotten")
    await steward.register(script("forgotten", task.text))
    task.go()
    (found,) = await steward.allocations("forgotten", "complete", "failed", "lost")
    await completed(steward, "forgotten", found["ID"], task)


async def test_lost_pending_job_is_submitted_again(
    steward: Steward, world: FakeSlurm, task: Task
) -> None:
    world.drain("node1", "a test")
    world.drain("node2", "a test")
    alloc_id = await submitted(steward, script("waits", task.text))
    world.forget(number_of(world, alloc_id))
    world.resume("node1")
    task.go()
    await completed(steward, "waits", alloc_id, task)


async def test_lost_running_job_continues_even_if_its_number_is_reused(
    steward: Steward, world: FakeSlurm, task: Task
) -> None:
    alloc_id = await begun(steward, "forgotten", task)
    world.forget(number_of(world, alloc_id), reuse=True)
    other = script("other", "exit 0")
    await steward.register(other)
    await steward.allocations("other", "complete")
    task.go()
    await completed(steward, "forgotten", alloc_id, task)


async def test_job_launched_twice_runs_once(steward: Steward, world: FakeSlurm, task: Task) -> None:
    alloc_id = await begun(steward, "again", task)
    world.launch_again(number_of(world, alloc_id))
    task.go()
    await completed(steward, "again", alloc_id, task)


async def test_job_held_after_a_failed_launch_ends_with_its_task(
    steward: Steward, world: FakeSlurm, task: Task
) -> None:
    alloc_id = await begun(steward, "held", task)
    world.hold_after_failed_launch(number_of(world, alloc_id))
    task.go()
    await completed(steward, "held", alloc_id, task)


async def test_node_wrongly_declared_lost_is_still_accepted(
    steward: Steward, world: FakeSlurm, task: Task
) -> None:
    alloc_id = await begun(steward, "heard", task)
    world.node_down(world.jobs()[0]["node"])
    task.go()
    await completed(steward, "heard", alloc_id, task)


async def test_allocation_of_a_lost_node_is_lost_for_a_reason(
    steward: Steward, world: FakeSlurm, task: Task
) -> None:
    alloc_id = await begun(steward, "gone", task)
    job = world.jobs()[0]
    world.node_down(job["node"])
    world.kill(job["id"])
    (found,) = await steward.allocations("gone", "failed", "lost")
    assert found["ID"] == alloc_id
    assert "NODE_FAIL" in told(found)


async def test_preempted_job_is_reported(steward: Steward, world: FakeSlurm, task: Task) -> None:
    alloc_id = await begun(steward, "preempted", task)
    world.preempt(number_of(world, alloc_id))
    (found,) = await steward.allocations("preempted", "failed", "lost")
    assert task.lines() == ["began"]
    assert "PREEMPTED" in told(found)


async def test_a_limit_of_the_cluster_is_reported(
    steward: Steward, world: FakeSlurm, task: Task
) -> None:
    alloc_id = await begun(steward, "limit", task)
    world.time_out(number_of(world, alloc_id))
    (found,) = await steward.allocations("limit", "failed", "lost")
    assert "TIMEOUT" in told(found)


async def test_refused_job_fails_with_the_error_text_of_the_cluster(
    steward: Steward, world: FakeSlurm
) -> None:
    job = script("refused", "exit 0")
    world.remove_partition("main")
    await steward.register(job)
    (found,) = await steward.allocations("refused", "failed")
    assert "Invalid partition name specified" in told(found)


async def test_reason_of_a_pending_job_is_reported(
    steward: Steward, world: FakeSlurm, task: Task
) -> None:
    world.drain("node1", "a test")
    world.drain("node2", "a test")
    alloc_id = await submitted(steward, script("waits", task.text))
    found = await steward.until(
        f"/v1/allocation/{alloc_id}", lambda shown: "DRAINED" in told(shown)
    )
    assert found["ClientStatus"] == "pending"
    world.resume("node1")
    task.go()
    await completed(steward, "waits", alloc_id, task)


async def test_pending_job_is_stopped(steward: Steward, world: FakeSlurm, task: Task) -> None:
    world.drain("node1", "a test")
    world.drain("node2", "a test")
    alloc_id = await submitted(steward, script("waits", task.text))
    await steward.delete("/v1/job/waits")
    await steward.until(
        f"/v1/allocation/{alloc_id}", lambda shown: shown["ClientStatus"] != "pending"
    )
    world.resume("node1")
    assert world.jobs()[0]["state"] in ("PENDING", "CANCELLED", "RUNNING")
    assert task.lines() == []


async def test_silently_killed_wrapper_is_detected(
    steward: Steward, world: FakeSlurm, task: Task
) -> None:
    await begun(steward, "dead", task)
    world.kill(world.jobs()[0]["id"])
    (found,) = await steward.allocations("dead", "failed", "lost")
    assert task.lines() == ["began"]
    assert found["ClientStatus"] in ("failed", "lost")
