"""Queues of runs and of steps in a real daemon, also across a kill."""

from typing import Any

from tests.service.daemon import Steward
from tests.service.test_workflows import shell, workflow


def queued(job_id: str, script: str) -> dict[str, Any]:
    return {
        **workflow(shell("a", script), job_id=job_id),
        "Meta": {"steward_run_concurrency": "db"},
    }


def of(state: str, *names: str) -> Any:
    return lambda found: [item["JobID"] for item in found[state]] == [*names]


async def test_one_run_at_a_time_across_a_kill(steward: Steward) -> None:
    await steward.register(queued("first", "sleep 600"))
    await steward.until("/v1/concurrency", bool)  # the run begins after the response
    await steward.until("/v1/concurrency/db", of("Holders", "first"))
    await steward.register(queued("second", "exit 0"))
    await steward.until("/v1/concurrency/db", of("Waiters", "second"))
    await steward.kill_and_restart()
    shown = (await steward.cli("queues", "status", "db")).stdout.decode()
    assert shown.startswith("default/db  1 of 1 slot in use  1 waiting")
    page = await steward.request("GET", "/ui/queues", name="db", namespace="default")
    assert "1 of 1 slot in use" in page.text
    assert (await steward.get("/v1/job/second/allocations")) == []
    await steward.request("DELETE", "/v1/job/first")
    await steward.until("/v1/job/second", lambda item: item["Status"] == "dead")
    assert (await steward.get("/v1/job/second/run"))["Status"] == "succeeded"


async def test_slots_are_set_and_deleted(steward: Steward) -> None:
    done = (await steward.cli("queues", "set", "-slots", "2", "-note", "main", "db")).stdout
    assert done.decode() == "Queue 'db' has 2 slots\n"
    listed = (await steward.cli("queues")).stdout.decode().splitlines()
    assert listed[1].split() == ["default", "db", "0/2", "0", "main"]
    await steward.cli("queues", "delete", "db")
    answer = await steward.request("DELETE", "/v1/concurrency/db")
    assert (answer.status_code, answer.text) == (404, "queue 'db' has no limit to delete")
    answer = await steward.request("PUT", "/v1/concurrency/db", {"Slots": 0})
    assert (answer.status_code, answer.text) == (400, "Slots is 0; it must be from 1 to 10000")
    answer = await steward.request("PUT", "/v1/concurrency/a%20b", {"Slots": 1})
    assert answer.status_code == 400
    assert (await steward.request("GET", "/v1/concurrency/none")).status_code == 404


async def test_lists_count_slots_beyond_a_lowered_limit(steward: Steward) -> None:
    await steward.cli("queues", "set", "-slots", "2", "db")
    for name in ("first", "second"):
        await steward.register(queued(name, "sleep 600"))
    await steward.until("/v1/concurrency/db", lambda found: found["InUse"] == 2)
    await steward.cli("queues", "set", "-slots", "1", "db")
    shown = (await steward.cli("queues", "status", "db")).stdout.decode()
    words = "2 slots in use, 1 more than its limit of 1"
    assert shown.startswith(f"default/db  {words}  0 waiting")
    listed = (await steward.cli("queues")).stdout.decode().splitlines()
    assert "2, limit 1" in listed[1]
    page = await steward.request("GET", "/ui/queues", name="db", namespace="default")
    assert words in page.text
    assert 'class="number">2, limit 1</td>' in page.text


def with_step_queue(job_id: str, script: str) -> dict[str, Any]:
    groups = shell("a", script)
    return workflow({**groups, "Meta": {"steward_concurrency": "gpu"}}, job_id=job_id)


async def test_one_step_at_a_time_across_a_kill(steward: Steward) -> None:
    await steward.register(with_step_queue("first", "sleep 600"))
    await steward.until("/v1/concurrency", bool)
    await steward.until("/v1/concurrency/gpu", of("Holders", "first"))
    await steward.register(with_step_queue("second", "exit 0"))
    await steward.until("/v1/concurrency/gpu", of("Waiters", "second"))
    await steward.kill_and_restart()
    shown = (await steward.cli("queues", "status", "gpu")).stdout.decode().splitlines()
    assert shown[0].startswith("default/gpu  1 of 1 slot in use  1 waiting")
    assert shown[3].split()[:4] == ["second", "1", "a", "waiting"]
    told = (await steward.cli("runs", "status", "second")).stdout.decode()
    assert 'slot: it waits for the queue "gpu"' in told
    page = await steward.request("GET", "/ui/queues", name="gpu", namespace="default")
    assert '<span class="quiet">run 1</span> a</td>' in page.text
    graph = (await steward.cli("job", "graph", "second")).stdout.decode()
    assert 'immediately, with a slot of "gpu"' in graph
    refused = await steward.request(
        "PUT",
        "/v1/jobs",
        {"Job": {**queued("third", "exit 0"), "Meta": {"steward_run_concurrency": "gpu"}}},
    )
    assert "which steps of job" in refused.text
    assert (await steward.request("GET", "/v1/job/third")).status_code == 404
    await steward.request("DELETE", "/v1/job/first")
    await steward.until("/v1/job/second", lambda one: one["Status"] == "dead")
    assert (await steward.get("/v1/job/second/run"))["Status"] == "succeeded"
