"""Blocking queries against the real daemon."""

import time
from pathlib import Path

import trio

from tests.service.daemon import Steward
from tests.time_limits import HAPPENS_WITHIN

WAITERS = 1000


def job(job_id: str) -> object:
    """Return a job that stays unchanged until it is dispatched."""
    task = {"Name": "t", "Driver": "mock_driver", "Config": {"run_for": "60s"}}
    groups = [{"Name": "g", "Tasks": [task]}]
    return {"ID": job_id, "Type": "batch", "ParameterizedJob": {}, "TaskGroups": groups}


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


async def share_of_a_second(pid: int) -> float:
    """Return the CPU use of a process, as a share of one second without events."""
    before, began = cpu_seconds(pid), time.monotonic()
    await trio.sleep(1)  # the CPU time of this second is measured
    return (cpu_seconds(pid) - before) / (time.monotonic() - began)


async def test_thousand_waiters_use_few_resources_and_are_all_woken(steward: Steward) -> None:
    await steward.register(job("old"))
    index = (await steward.request("GET", "/v1/jobs", prefix="n")).headers["X-Service-Index"]
    host, port = steward.address.removeprefix("http://").split(":")
    question = f"GET /v1/jobs?prefix=n&index={index}&wait=60s HTTP/1.1\r\nHost: {host}\r\n\r\n"
    answers = []

    async def wait() -> None:
        # Use plain sockets, because the connection pool of a client library would take most of the
        # time.
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            await stream.send_all(question.encode())
            answers.append(await stream.receive_some())

    async with trio.open_nursery() as nursery:
        for _ in range(WAITERS):
            nursery.start_soon(wait)
        await trio.to_thread.run_sync(connected, steward.pid, WAITERS)
        with trio.fail_after(HAPPENS_WITHIN):  # it may still be processing the last request
            while await share_of_a_second(steward.pid) >= 0.5:
                pass
        await steward.register(job("new"))
    assert [b"200" in answer for answer in answers] == [True] * WAITERS


def connected(pid: int, wanted: int) -> None:
    """Wait until a process has `wanted` open descriptors, most of them connections."""
    until = time.monotonic() + HAPPENS_WITHIN
    while len(list(Path(f"/proc/{pid}/fd").iterdir())) < wanted:
        assert time.monotonic() < until
        time.sleep(0.05)


async def test_waiter_for_one_job_is_not_woken_by_changes_of_another(steward: Steward) -> None:
    await steward.register(job("mine"))
    first = await steward.request("GET", "/v1/job/mine")
    index = first.headers["X-Service-Index"]
    await steward.register(job("other"))
    began = time.monotonic()
    second = await steward.request("GET", "/v1/job/mine/versions", index=index, wait="300ms")
    assert time.monotonic() - began >= 0.3
    assert second.headers["X-Service-Index"] == index


async def test_awaited_object_may_not_exist_yet(steward: Steward) -> None:
    async with trio.open_nursery() as nursery:
        found = []

        async def wait() -> None:
            answer = await steward.until("/v1/jobs", bool, prefix="later")
            found.extend(item["ID"] for item in answer)

        nursery.start_soon(wait)
        await steward.register(job("later-1"))
    assert found == ["later-1"]


async def test_future_index_waits_no_longer_than_the_requested_time(steward: Steward) -> None:
    began = time.monotonic()
    answer = await steward.request("GET", "/v1/jobs", index=10**9, wait="200ms")
    assert answer.status_code == 200
    assert time.monotonic() - began < 10
