"""Time from job submission to the first instruction of the task, by driver.

    python -m bench.start [--times 30]

The benchmark starts a daemon. The task is a shell that connects to a port of this script to report
its start. The result includes the start of the shell.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import trio

from tests.service.daemon import Steward, open_steward

DRIVERS = ("raw_exec", "exec")


def calling(job_id: str, driver: str, port: int) -> dict[str, object]:
    """Return a job whose task connects to a port immediately."""
    call = f"exec 3<>/dev/tcp/127.0.0.1/{port}"
    task = {
        "Name": "t",
        "Driver": driver,
        "Config": {"command": "/bin/bash", "args": ["--norc", "--noprofile", "-c", call]},
        "Resources": {"CPU": 1, "MemoryMB": 10},
    }
    return {"ID": job_id, "Type": "batch", "TaskGroups": [{"Name": "g", "Tasks": [task]}]}


async def measure(steward: Steward, driver: str, times: int) -> dict[str, object]:
    """Return the results of one driver in milliseconds."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    took = []
    async with listener:
        for number in range(times):
            began = time.perf_counter()
            await steward.register(calling(f"{driver}-{number}", driver, port))
            await (await listener.accept()).aclose()
            took.append(1000 * (time.perf_counter() - began))
            await steward.allocations(f"{driver}-{number}", "complete")
    took.sort()
    return {
        "driver": driver,
        "times": times,
        "ms p50": round(took[len(took) // 2], 1),
        "ms p95": round(took[int(0.95 * len(took))], 1),
    }


async def main(times: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with open_steward(Path(directory), "--dev") as steward:
            for driver in DRIVERS:
                print(json.dumps(await measure(steward, driver, times)), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=30)
    trio.run(main, parser.parse_args().times)
