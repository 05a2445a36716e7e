"""Open streams: their memory and CPU cost, and their latency for new data.

    python -m bench.streams [events|queries|logs] [--streams 1000]

The benchmark starts a daemon, and opens event streams, blocking queries, or streams of a task's
log. While no data arrives, it measures their cost and the latency of another request. Then new data
arrives, and it measures the time until all readers have received this data. The reader is also a
Python process, and shares the CPUs with the daemon.
"""

import argparse
import json
import os
import re
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import trio

from tests.service.daemon import Steward, open_steward

IDLE = {
    "Type": "batch",
    "TaskGroups": [{"Name": "g", "Count": 0, "Tasks": [{"Name": "t", "Driver": "raw_exec"}]}],
}
SAYS = "trap 'echo late' USR1; echo early; while :; do sleep 600 & wait $!; done"
QUIET = 5.0  # seconds without data, in which the CPU time is measured
DEADLINE = 600.0

News = Callable[[], Awaitable[Any]]


def memory(pid: int) -> float:
    """Return the proportional set size of a process in MiB."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    match = re.search(r"^Pss:\s+(\d+)", rollup, re.MULTILINE)
    assert match
    return int(match[1]) / 1024


def processor(pid: int) -> float:
    """Return the CPU time of a process in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def of_events(steward: Steward) -> tuple[str, str, News]:
    """Return the path, the last text of the initial data, and a function that causes new data."""
    return "/v1/event/stream?topic=Job:late", "{}", partial(register, steward, "late")


async def of_queries(steward: Steward) -> tuple[str, str, News]:
    answer = await steward.request("GET", "/v1/jobs")
    index = answer.headers["X-Nomad-Index"]
    return f"/v1/jobs?wait=5m&index={index}", "", partial(register, steward, "late")


async def of_logs(steward: Steward) -> tuple[str, str, News]:
    task = {"Name": "t", "Driver": "raw_exec", "Config": {"command": "sh", "args": ["-c", SAYS]}}
    job = {"ID": "log", "Type": "batch", "TaskGroups": [{"Name": "g", "Tasks": [task]}]}
    (allocation,) = await steward.run_job(job)
    alloc_id = allocation["ID"]
    log_path = f"/v1/client/fs/logs/{alloc_id}?task=t&type=stdout&follow=true&plain=true"
    path = f"/v1/client/allocation/{alloc_id}/signal"
    return log_path, "early", partial(steward.post, path, {"Signal": "SIGUSR1", "TaskName": "t"})


async def register(steward: Steward, job_id: str) -> None:
    await steward.register({"ID": job_id, **IDLE})


KINDS = {"events": of_events, "queries": of_queries, "logs": of_logs}


class StreamReaders:
    """All readers, and the time at which each received the data."""

    def __init__(self, steward: Steward, path: str, first: str) -> None:
        self._host, self._port = steward.address.removeprefix("http://").split(":")
        self._asked, self._first = path, first.encode()
        self.heard: list[float] = []
        self.all_heard = trio.Event()
        self._count = 0

    @asynccontextmanager
    async def reading(self, count: int) -> AsyncIterator[None]:
        self._count = count
        async with trio.open_nursery() as nursery:
            for _ in range(count):
                await nursery.start(self._read)
            yield

    async def _read(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        question = f"GET {self._asked} HTTP/1.1\r\nHost: {self._host}\r\n\r\n"
        async with await trio.open_tcp_stream(self._host, int(self._port)) as stream:
            await stream.send_all(question.encode())
            text = b""
            while self._first not in text:
                text += await stream.receive_some()
            task_status.started()
            while b"late" not in text:
                text += await stream.receive_some()
            self.heard.append(time.monotonic())
            if len(self.heard) == self._count:
                self.all_heard.set()
            await self.all_heard.wait()


async def settled(pid: int) -> None:
    """Wait until the daemon is idle: its CPU time is the same in two successive seconds."""
    before, used, now = -1.0, processor(pid), 0.0
    while abs(now - before) > 0.03:
        await trio.sleep(1)
        before, now, used = now, processor(pid) - used, processor(pid)


async def main(kind: str, streams: int) -> None:
    with tempfile.TemporaryDirectory() as directory, trio.fail_after(DEADLINE):
        async with open_steward(Path(directory), "--dev") as steward:
            await register(steward, "early")
            stream_path, first, news = await KINDS[kind](steward)
            readers = StreamReaders(steward, stream_path, first)
            before = memory(steward.pid)
            async with readers.reading(streams):
                await settled(steward.pid)
                after, used = memory(steward.pid), processor(steward.pid)
                await trio.sleep(QUIET)
                used = processor(steward.pid) - used
                async with httpx.AsyncClient(base_url=steward.address, timeout=60) as client:
                    began = time.monotonic()
                    await client.get("/v1/jobs")
                    other = time.monotonic() - began
                began, answering = time.monotonic(), processor(steward.pid)
                await news()
                await readers.all_heard.wait()
                answering = processor(steward.pid) - answering
            took = sorted(moment - began for moment in readers.heard)
            results = {
                kind: streams,
                "MiB before": round(before, 1),
                "MiB more": round(after - before, 1),
                "% of a CPU without new data": round(100 * used / QUIET, 1),
                "ms for another request": round(other * 1000, 1),
                "CPU ms until all readers have the new data": round(answering * 1000),
                "ms first": round(took[0] * 1000, 1),
                "ms p50": round(took[len(took) // 2] * 1000, 1),
                "ms last": round(took[-1] * 1000, 1),
            }
            print(json.dumps(results))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", nargs="?", choices=KINDS, default="events")
    parser.add_argument("--streams", type=int, default=1000)
    given = parser.parse_args()
    trio.run(main, given.kind, given.streams)
