"""CPU use of the daemon with running tasks and no requests, as a share of one CPU.

    python -m bench.idle [--tasks 500] [--seconds 60] [--driver raw_exec]

The benchmark starts a daemon, and one job with the given number of sleeping tasks. The measurement
begins when all tasks have been running for a while.
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

import trio

from tests.service.daemon import Steward, open_steward

SETTLE = 15.0  # seconds in which the health of tasks is decided and pending writes complete
_TICKS = os.sysconf("SC_CLK_TCK")


def sleepers(count: int, driver: str) -> dict[str, object]:
    """Return a service job with sleeping tasks."""
    task = {
        "Name": "t",
        "Driver": driver,
        "Config": {"command": "/bin/sleep", "args": ["3600"]},
        "Resources": {"CPU": 1, "MemoryMB": 10},
        "LogConfig": {"MaxFiles": 1, "MaxFileSizeMB": 1},
    }
    group = {"Name": "g", "Count": count, "EphemeralDisk": {"SizeMB": 10}, "Tasks": [task]}
    return {"ID": "idle", "Type": "service", "TaskGroups": [group]}


def spent(pid: int) -> float:
    """Return the CPU time of a process, all threads together, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS  # utime and stime


async def until_running(steward: Steward, count: int) -> None:
    while True:
        summary = (await steward.get("/v1/job/idle/summary"))["Summary"]["g"]
        if summary["Running"] == count:
            return
        await trio.sleep(0.5)


async def main(tasks: int, seconds: float, driver: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with open_steward(Path(directory), "--dev") as steward:
            await steward.register(sleepers(tasks, driver))
            await until_running(steward, tasks)
            await trio.sleep(SETTLE)
            before, began = spent(steward.pid), time.monotonic()
            await trio.sleep(seconds)
            share = (spent(steward.pid) - before) / (time.monotonic() - began)
            print(json.dumps({"tasks": tasks, "driver": driver, "percent": round(100 * share, 2)}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--driver", default="raw_exec")
    options = parser.parse_args()
    trio.run(main, options.tasks, options.seconds, options.driver)
