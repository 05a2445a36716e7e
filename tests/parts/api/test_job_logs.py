"""Merged logs of a job as text: the limit of merged logs, and the cost on the event loop."""

from pathlib import Path
from typing import Any

import pytest
import trio

from daemon.api.cluster import job_logs
from daemon.api.cluster.job_logs import OMITTED_HEADER, stream_job_logs
from storage.errors import Malformed, NotFound
from storage.records.allocation import ClientStatus
from storage.store import Store
from tests.parts.api.test_job_log_views import MOST, TRIES, JobLogs, searched_seldom
from tests.parts.evals.cluster import Cluster
from tests.samples import group, job, task
from tests.step_timing import Longest, slowness

__all__ = ["searched_seldom"]  # a fixture


@pytest.fixture
async def logs(store: Store, tmp_path: Path) -> JobLogs:
    found = JobLogs(store, tmp_path / "data")
    await found.register(job("web"))
    return found


async def text(logs: JobLogs, **query: object) -> tuple[str, bytes]:
    """Return the number of omitted allocations, as a header field, and the lines."""
    reply = await logs.reply(stream_job_logs, **query)
    assert reply.stream is not None
    return reply.headers.get(OMITTED_HEADER, ""), b"".join([piece async for piece in reply.stream])


async def test_newest_allocations_are_shown_and_all_others_counted(
    logs: JobLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_logs, "_MOST_ALLOCATIONS", 2)
    every = [await logs.add() for _ in range(5)]
    for number, one in enumerate(every):
        logs.print(one, b"%d\n" % number)
    omitted, shown = await text(logs, labels="false")
    assert (omitted, sorted(shown.split())) == ("3", [b"3", b"4"])
    _, labelled = await text(logs)
    assert labelled.startswith(b"--- 3 older allocations are omitted")
    assert await text(logs, labels="false", allocation=every[0]) == ("", b"0\n")


async def test_unknown_task_is_refused_with_the_known_ones(logs: JobLogs) -> None:
    with pytest.raises(Malformed, match="the job has no task 'nosuch'; its tasks are main"):
        await logs.reply(stream_job_logs, task="nosuch")  # the tasks of the current version
    await logs.add()
    with pytest.raises(Malformed, match="the job has no task 'nosuch'; its tasks are main"):
        await logs.reply(stream_job_logs, task="nosuch", follow="true")


async def test_task_of_an_older_version_is_known_while_its_allocation_is_shown(
    logs: JobLogs, store: Store
) -> None:
    logs.print(await logs.add(), b"old\n")
    await Cluster(store).register(job("web", group("web", task("renamed"))))
    assert await text(logs, task="main", labels="false") == ("", b"old\n")
    assert await text(logs, task="renamed") == ("", b"")


async def test_unknown_allocation_is_not_found(logs: JobLogs) -> None:
    with pytest.raises(NotFound, match="the job has no allocation 'nosuch'"):
        await logs.reply(stream_job_logs, allocation="nosuch")


async def test_number_of_open_logs_is_limited(
    logs: JobLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_logs, "_MOST_STREAMS", 3)
    for number in range(3):
        logs.print(await logs.add(), b"%d\n" % number)
    assert await text(logs, labels="false") == ("2", b"2\n")  # each allocation has two streams
    omitted, shown = await text(logs, labels="false", type="stdout")
    assert (omitted, sorted(shown.split())) == ("", [b"0", b"1", b"2"])


async def test_an_allocation_with_too_many_logs_is_shown_in_part(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = JobLogs(store, tmp_path / "data")
    await logs.register(job("web", group("web", *(task(f"t{number}") for number in range(3)))))
    monkeypatch.setattr(job_logs, "_MOST_STREAMS", 2)
    one = await logs.add()
    for number in range(3):
        logs.print(one, b"%d\n" % number, name=f"t{number}")
    omitted, shown = await text(logs, labels="false", type="stdout")
    assert (omitted, sorted(shown.split())) == ("1", [b"0", b"1"])


async def test_follower_gets_logs_of_new_allocations_after_others_ended(
    logs: JobLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_logs, "_MOST_STREAMS", 1)
    first = await logs.add()
    logs.print(first, b"first\n")
    reply = await logs.reply(stream_job_logs, labels="false", type="stdout", follow="true")
    stream: Any = reply.stream
    with trio.fail_after(60):
        assert await anext(stream) == b"first\n"
        second = await logs.add()
        logs.print(second, b"second\n")
        third = await logs.add(ClientStatus.COMPLETE)
        logs.print(third, b"third\n")
        await logs.end(first)
        assert await anext(stream) == b"third\n"  # the newest allocation first
        assert await anext(stream) == b"second\n"
    await stream.aclose()


@pytest.mark.usefixtures("searched_seldom")
@pytest.mark.parametrize("follow", ["false", "true"])
async def test_empty_lines_do_not_block_the_event_loop(logs: JobLogs, follow: str) -> None:
    one = await logs.add()
    logs.print(one, b"\n" * 200_000)

    async def longest() -> int:
        measure, taken = Longest(), 0
        trio.lowlevel.add_instrument(measure)
        try:
            await trio.lowlevel.checkpoint()
            stream: Any = (await logs.reply(stream_job_logs, follow=follow)).stream
            while taken < 200_000:
                taken += (await anext(stream)).count(b"\n")
                await trio.lowlevel.checkpoint()
            await stream.aclose()
        finally:
            await trio.lowlevel.checkpoint()
            trio.lowlevel.remove_instrument(measure)
        return measure.longest

    found: list[int] = []
    while not found or (found[-1] > MOST and len(found) < TRIES):
        found.append(await longest())
    assert min(found) <= MOST or min(found) <= MOST * slowness(), found


async def test_memory_of_short_lines_is_limited_by_their_number(
    logs: JobLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_logs, "_LINES_AT_ONCE", 400)
    monkeypatch.setattr(job_logs, "_LEAST_LINES", 10)
    for _ in range(4):
        logs.print(await logs.add(), b"\n" * 5_000)
    queued = 0
    append = job_logs._fill

    async def fill(tail: Any, **given: Any) -> bool:
        nonlocal queued
        found = await append(tail, **given)
        queued = max(queued, len(tail.queue))
        return found

    monkeypatch.setattr(job_logs, "_fill", fill)
    _, shown = await text(logs, labels="false", type="stdout")
    assert shown == b"\n" * 20_000
    assert queued == 100
