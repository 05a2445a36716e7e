"""Cost of reads, compared with a minimal server that sends the same bytes.

    python -m bench.reads [--jobs 1000] [--children 100000]

The minimal server is the framework alone: hypercorn and quart-trio, with a handler that returns
bytes. Rates are those of one client. CPU is the CPU time of the server process per request. The
measurement is then repeated with many finished children in the store.
"""

import argparse
import http.client
import json
import multiprocessing
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
import trio
from hypercorn.config import Config
from hypercorn.trio import serve
from quart import Response
from quart_trio import QuartTrio

from storage.queries import allocations, evaluations, job_status, jobs
from storage.records.allocation import (
    AllocatedResources,
    AllocatedShared,
    Allocation,
    ClientState,
    DesiredState,
    Placement,
)
from storage.records.evaluation import EvalStatus, PlacementMetric
from storage.records.job import Job, Parameterized
from storage.store import open_store
from storage.writer import Transaction
from tests.samples import NOW, evaluation, job

ROUNDS, SECONDS = 5, 1.0  # alternating rounds, so that other load affects both servers
LIST, READ = "/v1/jobs?prefix=j-", "/v1/job/j-0"
BATCH = 200  # children per write while the history is created
BUSY = 0.02  # CPU seconds in half a second; a daemon that uses less is idle
CLOCK = os.sysconf("SC_CLK_TCK")


class Figure(NamedTuple):
    """The cost of one request: rate and CPU time."""

    per_s: float
    cpu_us: float


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--children", type=int, default=100_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="steward-reads-", dir=Path.cwd()) as name:
        run(Path(name), options.jobs, options.children)


def run(directory: Path, count: int, children: int) -> None:
    few, many = directory / "few", directory / "many"
    with daemon(few) as (port, _):
        register(port, count)
        bodies = {path: ask(port, path) for path in (LIST, READ)}
    shutil.copytree(few, many)
    begun = time.perf_counter()
    trio.run(grow, many, children)
    print(f"history of {children} children created in {time.perf_counter() - begun:.0f} s")
    with bare(bodies) as alone, daemon(few) as before, daemon(many) as after:
        rest(after[1])
        for path, name in ((LIST, f"list of {count}"), (READ, "read of one")):
            theirs, ours, later = measure(path, alone, before, after)
            print(
                f"{name:<16} {ours.per_s:>7.0f} per s  {ours.cpu_us:>6.0f} µs   "
                f"bare {theirs.per_s:>7.0f} per s  {theirs.cpu_us:>6.0f} µs   "
                f"rate {ours.per_s / theirs.per_s:.2f}  cpu {ours.cpu_us / theirs.cpu_us:.2f}   "
                f"with the history cpu {later.cpu_us / ours.cpu_us:.2f}"
            )
        sizes = [resident(pid) for _, pid in (before, after)]
        print(f"memory {sizes[0]} MiB, with the history {sizes[1]} MiB")


# --- servers ---


@contextmanager
def daemon(directory: Path, *flags: str) -> Iterator[tuple[int, int]]:
    command = [
        *(sys.executable, "-m", "daemon", "agent", "--dev", "--port", "0"),
        *("--data-dir", str(directory), "--log-level", "warning", *flags),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline().decode().rpartition(":")[2])
        try:
            yield port, process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


@contextmanager
def bare(bodies: dict[str, bytes]) -> Iterator[tuple[int, int]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    paths = {path.partition("?")[0]: body for path, body in bodies.items()}
    process = multiprocessing.get_context("spawn").Process(target=serve_bytes, args=(port, paths))
    process.start()
    assert process.pid is not None
    try:
        for _ in range(200):
            try:
                ask(port, LIST)
                break
            except OSError:
                time.sleep(0.05)
        yield port, process.pid
    finally:
        process.terminate()
        process.join()


def serve_bytes(port: int, paths: dict[str, bytes]) -> None:
    app = QuartTrio("bare", static_folder=None)

    def answering(body: bytes) -> Callable[[], Awaitable[Response]]:
        async def answer() -> Response:
            return Response(body, content_type="application/json")

        return answer

    for number, (path, body) in enumerate(paths.items()):
        app.add_url_rule(path, f"answer{number}", answering(body))
    config = Config()
    config.bind = [f"127.0.0.1:{port}"]
    config.errorlog = None
    trio.run(partial(serve, app, config))


# --- measurements ---


def ask(port: int, path: str) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", path)
    body = connection.getresponse().read()
    connection.close()
    return body


def measure(path: str, *servers: tuple[int, int]) -> list[Figure]:
    """Return the cost of a request for each server, as the median of several rounds."""
    rounds = [[once(path, *server) for server in servers] for _ in range(ROUNDS)]
    return [
        Figure(*(statistics.median(values) for values in zip(*figures, strict=True)))
        for figures in zip(*rounds, strict=True)
    ]


def once(path: str, port: int, pid: int) -> Figure:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    count, used, begun = 0, cpu(pid), time.perf_counter()
    while time.perf_counter() - begun < SECONDS:
        connection.request("GET", path)
        connection.getresponse().read()
        count += 1
    took = time.perf_counter() - begun
    connection.close()
    return Figure(count / took, 1e6 * (cpu(pid) - used) / count)


def cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK


def rest(pid: int) -> None:
    """Wait until a daemon is idle, because with a long history it first deletes old events."""
    used = -1.0
    while (now := cpu(pid)) - used > BUSY:
        used = now
        time.sleep(0.5)


def resident(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if "VmRSS" in line) // 1024


# --- requests ---


def register(port: int, count: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    task = {"Name": "t", "Driver": "raw_exec", "Config": {"command": "/bin/true"}}
    groups = [{"Name": "g", "Count": 0, "Tasks": [task]}]
    for number in range(count):
        job_spec = {"ID": f"j-{number}", "Type": "batch", "TaskGroups": groups}
        connection.request("POST", "/v1/jobs", json.dumps({"Job": job_spec}))
        connection.getresponse().read()
    while b'"pending"' in ask(port, LIST):
        time.sleep(0.1)
    connection.close()


async def grow(directory: Path, count: int) -> None:
    """Add a parent with this many completed children."""
    parent = job("old", type="batch", parameterized_job=Parameterized())
    async with open_store(directory, cluster_id="bench", now=NOW) as store:
        await store.write(lambda tx: jobs.append_version(tx, parent))
        for first in range(0, count, BATCH):
            numbers = range(first, min(first + BATCH, count))
            await store.write(partial(add_children, parent=parent, numbers=numbers))


def add_children(tx: Transaction, *, parent: Job, numbers: range) -> None:
    for number in numbers:
        child_id = f"old/dispatch-{number}"
        child = msgspec.structs.replace(
            parent, id=child_id, name=child_id, parent_id="old", dispatched=True
        )
        stored = jobs.append_version(tx, child)
        done = evaluation(stored, f"e-{number:030}", status=EvalStatus.COMPLETE)
        evaluations.put(tx, done, NOW)
        allocations.add(tx, placed(stored, number), NOW)
        job_status.refresh_summary(tx, "default", child_id)


def placed(child: Job, number: int) -> Allocation:
    shared = AllocatedResources(tasks={}, task_lifecycles={}, shared=AllocatedShared())
    return Allocation(
        id=f"a-{number:030}",
        namespace="default",
        job_id=child.id,
        job_version=0,
        job_type="batch",
        task_group="web",
        name=f"{child.id}.web[0]",
        node_id="gone",
        eval_id=f"e-{number:030}",
        deployment_id="",
        desired_status="run",
        client_status="complete",
        placement=Placement(resources=shared, metrics=PlacementMetric(), node_name="gone"),
        desired=DesiredState(),
        client=ClientState(),
        health=None,
        create_index=0,
        modify_index=0,
        alloc_modify_index=0,
        create_time=NOW,
        modify_time=NOW,
    )


if __name__ == "__main__":
    main()
