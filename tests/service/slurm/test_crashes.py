"""Crashes of the controller, of a node's daemon, and of Steward. Nothing is lost, and nothing runs
twice."""

import signal
from collections.abc import Iterator

import pytest

from tests.service.daemon import Steward
from tests.service.slurm.cluster import NODES, Cluster
from tests.service.slurm.jobs import Task, completed, script, submitted

COUNT = 6  # elements of an array


@pytest.fixture(autouse=True)
def _whole(cluster: Cluster) -> Iterator[None]:
    """Restore the cluster: all its daemons run, and hosts accept jobs."""
    yield
    cluster.mend()
    cluster.clear()


async def test_controller_killed_after_a_submission_loses_no_job(
    steward: Steward, cluster: Cluster, task: Task
) -> None:
    # The cluster itself kills running jobs that its controller has lost.
    cluster.run("scontrol", "update", "nodename=node[1-2]", "state=drain", "reason=a test")
    alloc_id = await submitted(steward, script("accepted", task.text))
    cluster.end("slurmctld", signal.SIGKILL)
    cluster.start_controller()
    task.go()
    cluster.clear_hosts()
    await completed(steward, "accepted", alloc_id, task)


async def test_controller_killed_during_a_task_runs_the_task_once(
    steward: Steward, cluster: Cluster, task: Task
) -> None:
    alloc_id = await submitted(steward, script("running", task.text))
    await task.until("began")
    cluster.until("the controller has saved it", lambda: cluster.has_saved(alloc_id))
    cluster.end("slurmctld", signal.SIGKILL)
    cluster.start_controller()
    task.go()
    await completed(steward, "running", alloc_id, task)


async def test_task_survives_a_kill_of_the_node_daemon(
    steward: Steward, cluster: Cluster, task: Task
) -> None:
    alloc_id = await submitted(steward, script("node", task.text))
    await task.until("began")
    for node in NODES:
        cluster.end(node, signal.SIGKILL)
    task.go()
    await completed(steward, "node", alloc_id, task)


async def test_steward_is_killed_immediately_after_a_job_submission(
    steward: Steward, task: Task
) -> None:
    await steward.register(script("registered", task.text))
    await steward.kill_and_restart()
    task.go()
    (found,) = await steward.allocations("registered", "complete", "failed", "lost")
    await completed(steward, "registered", found["ID"], task)


async def test_steward_is_killed_immediately_after_an_array_submission(
    steward: Steward, cluster: Cluster, task: Task
) -> None:
    job = script("array", task.text)
    job["TaskGroups"][0]["Count"] = COUNT
    await steward.register(job)
    cluster.until("the cluster has the array", lambda: has_array(cluster))
    await steward.kill_and_restart()
    task.go()
    await all_ran_once(steward, "array", task)


async def test_controller_killed_with_a_pending_array_loses_no_element(
    steward: Steward, cluster: Cluster, task: Task
) -> None:
    # A killed controller would take the jobs of earlier tests for running ones.
    cluster.restart_controller()
    cluster.run("scontrol", "update", "nodename=node[1-2]", "state=drain", "reason=a test")
    job = script("array", task.text)
    job["TaskGroups"][0]["Count"] = COUNT
    await steward.register(job)
    cluster.until("the cluster has the array", lambda: has_array(cluster))
    cluster.end("slurmctld", signal.SIGKILL)
    cluster.start_controller()
    task.go()
    cluster.clear_hosts()
    await all_ran_once(steward, "array", task)


def has_array(cluster: Cluster) -> bool:
    """Return whether the cluster has an array of Steward."""
    return any(job[-1].startswith("array-") for job in cluster.jobs())


async def all_ran_once(steward: Steward, job_id: str, task: Task) -> None:
    """Assert that all elements of a job complete, and that each ran once."""
    found = await steward.until(
        f"/v1/job/{job_id}/allocations",
        lambda shown: (
            [one["ClientStatus"] for one in shown if one["ClientStatus"] != "pending"]
            == ["complete"] * COUNT
        ),
    )
    assert len(found) == COUNT
    assert sorted(task.lines()) == ["began"] * COUNT + ["ended"] * COUNT
    for alloc in found:
        assert await steward.log_of(alloc["ID"], "main") == "1\n2\n"


async def test_steward_is_killed_while_a_job_is_pending(
    steward: Steward, cluster: Cluster, task: Task
) -> None:
    cluster.run("scontrol", "update", "nodename=node[1-2]", "state=drain", "reason=a test")
    alloc_id = await submitted(steward, script("waiting", task.text))
    await steward.kill_and_restart()
    cluster.run("scontrol", "update", "nodename=node[1-2]", "state=resume")
    task.go()
    await completed(steward, "waiting", alloc_id, task)


async def test_steward_is_killed_while_a_task_runs(steward: Steward, task: Task) -> None:
    alloc_id = await submitted(steward, script("runs", task.text))
    await task.until("began")
    await steward.kill_and_restart()
    task.go()
    await completed(steward, "runs", alloc_id, task)


async def test_task_that_ends_while_steward_is_down_is_reported(
    steward: Steward, task: Task
) -> None:
    alloc_id = await submitted(steward, script("ends", task.text))
    await task.until("began")
    await steward.kill()
    task.go()
    await task.until("began", "ended")
    await steward.start()
    await completed(steward, "ends", alloc_id, task)
