"""A program with the client library dispatches 1,000 children while the daemon is killed.

    PYTHONPATH=packaging/client python -m bench.exactly_once [--children 1000]

The benchmark starts a daemon, and runs the program once under asyncio and once under Trio. When a
tenth of the children have ended, the daemon is killed and started again. Each child writes its
number to a ledger. The benchmark checks that the ledger has each number once, and that the program
received each result once.
"""

import argparse
import tempfile
import time
from functools import partial
from pathlib import Path

import anyio
import trio
from steward_client import (
    Client,
    Dispatch,
    DispatchPayload,
    EphemeralDisk,
    Group,
    Job,
    LogConfig,
    Parameterized,
    Resources,
    Task,
)

from tests.service.daemon import Steward, open_steward

DEADLINE = 1800.0


async def program(address: str, job_id: str, ledger: Path, count: int) -> list[bytes]:
    """Dispatch children and return their outputs, as a user's program does."""
    task = Task(
        name="main",
        driver="raw_exec",
        config={"command": "/bin/sh", "args": ["-c", f"tee -a {ledger} < local/number"]},
        dispatch_payload=DispatchPayload(file="number"),
        resources=Resources(cpu=10, memory_mb=10),
        log_config=LogConfig(max_files=1, max_file_size_mb=1),
    )
    group = Group(name="main", tasks=[task], ephemeral_disk=EphemeralDisk(size_mb=10))
    job = Job(id=job_id, type="batch", groups=[group], parameterized=Parameterized())
    numbers = [
        Dispatch(payload=f"{number}\n".encode(), idempotency_token=f"{job_id}-{number}")
        for number in range(count)
    ]
    async with Client(address) as client:
        await client.run(job)
        children = await client.dispatch_many(job_id, numbers)
        results = await client.wait_all(children)
    return [result.tasks["main"].stdout for result in results]


async def kill(steward: Steward, job_id: str, ended: int) -> None:
    """Kill the daemon when `ended` children have ended, and start it again."""
    index = 0
    while True:
        query = {"index": index, "wait": "60s"} if index else {}
        answer = await steward.request("GET", "/v1/jobs", prefix=f"{job_id}/", **query)
        if sum(job["Status"] == "dead" for job in answer.json()) >= ended:
            break
        index = int(answer.headers["X-Nomad-Index"])
    await steward.kill_and_restart()


async def measure(steward: Steward, backend: str, directory: Path, count: int) -> None:
    ledger = directory / f"{backend}.ledger"
    job_id = f"once-{backend}"
    work = partial(program, steward.address, job_id, ledger, count)
    outputs: list[bytes] = []

    async def run() -> None:
        outputs.extend(await trio.to_thread.run_sync(partial(anyio.run, work, backend=backend)))

    began = time.perf_counter()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await kill(steward, job_id, count // 10)
    taken = time.perf_counter() - began
    expected = [f"{number}\n".encode() for number in range(count)]
    written = sorted(map(int, ledger.read_text().split()))
    verdict = "each once" if (outputs, written) == (expected, [*range(count)]) else "WRONG"
    print(f"{backend}: {count} children in {taken:.1f} s, with a kill of the daemon: {verdict}")


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--children", type=int, default=1000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, trio.fail_after(DEADLINE):
        directory = Path(name)
        async with open_steward(directory, "--dev") as steward:
            for backend in ("asyncio", "trio"):
                await measure(steward, backend, directory, options.children)


if __name__ == "__main__":
    trio.run(main)
