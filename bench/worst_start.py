"""Time until a daemon with the largest permitted jobs is ready, after it was stopped for a week.

    python -m bench.worst_start [--periodic 200] [--large 5] [--starts 3]

The periodic jobs have the maximum number of cron expressions, with rare dates, intervals of one
minute and many time zones. Their schedules are a week behind. The large jobs have the maximum
number of task groups. No group fits on the node. Each start uses the store of the previous start,
after the schedules were put back by a week again.
"""

import argparse
import http.client
import json
import sqlite3
import tempfile
import time
from pathlib import Path

import trio

from tests.service.daemon import Steward, open_steward

SPECS, GROUPS = 100, 2_000  # the default limits of the configuration
WEEK = 7 * 24 * 3600 * 10**9  # nanoseconds
READS = 10.0  # seconds of reads after a start
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu")
TASK = {
    "Name": "t",
    "Driver": "raw_exec",
    "Config": {"command": "/bin/true"},
    "Resources": {"CPU": 1, "MemoryMB": 10},
}
NO_NODE = [{"LTarget": "${attr.kernel.name}", "RTarget": "none", "Operand": "="}]


def periodic(number: int) -> dict[str, object]:
    """Return a job whose rare slots take long to find; every tenth job has frequent slots."""
    specs = [f"{spec % 60} {spec % 24} 29 2 {spec % 7}" for spec in range(SPECS)]
    if number % 10 == 0:
        specs[0] = "* * * * *"
    return {
        "ID": f"periodic-{number}",
        "Type": "batch",
        "Periodic": {"Specs": specs, "ProhibitOverlap": True, "TimeZone": ZONES[number % 5]},
        "TaskGroups": [{"Name": "g", "Tasks": [TASK], "Constraints": NO_NODE}],
    }


def large(number: int) -> dict[str, object]:
    """Return a job with the maximum number of groups."""
    groups = [
        {"Name": f"g{group}", "Tasks": [TASK], "Constraints": NO_NODE} for group in range(GROUPS)
    ]
    return {"ID": f"large-{number}", "Type": "service", "TaskGroups": groups}


async def fill(directory: Path, jobs: list[dict[str, object]]) -> None:
    """Register the jobs."""
    async with open_steward(directory, "--dev") as steward:
        for job in jobs:
            await trio.to_thread.run_sync(register, steward, job)


def port_of(steward: Steward) -> int:
    """Return the port on which a daemon listens."""
    return int(steward.address.rpartition(":")[2])


def register(steward: Steward, job: dict[str, object]) -> None:
    """Register a job, and wait for the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port_of(steward), timeout=60)
    connection.request("POST", "/v1/jobs", json.dumps({"Job": job}))
    answer = connection.getresponse()
    text = answer.read()
    assert answer.status == 200, text[:300]
    connection.close()


def put_back(store: Path) -> int:
    """Set each schedule back by a week; return the number of schedules."""
    with sqlite3.connect(store) as db:
        done = db.execute(
            "UPDATE periodic_jobs SET followed_to = followed_to - :week, next_slot = NULL",
            {"week": WEEK},
        )
    db.close()
    return done.rowcount


async def ready(directory: Path, seconds: float) -> tuple[float, float]:
    """Return the seconds until readiness, and the longest read in the `seconds` after it."""
    began = time.perf_counter()
    async with open_steward(directory, "--dev") as steward:
        took = time.perf_counter() - began
        return took, await trio.to_thread.run_sync(longest_read, port_of(steward), seconds)


def longest_read(port: int, seconds: float) -> float:
    """Return the longest time in seconds that a read of a job took."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    longest, end = 0.0, time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        connection.request("GET", "/v1/job/periodic-1")
        connection.getresponse().read()
        longest = max(longest, time.perf_counter() - began)
        time.sleep(0.005)
    return longest


async def main(options: argparse.Namespace) -> None:
    """Fill a store, start the daemon several times, and print a line for each start."""
    jobs = [*map(periodic, range(options.periodic)), *map(large, range(options.large))]
    with tempfile.TemporaryDirectory(prefix="steward-worst-") as name:
        directory = Path(name)
        for part in ("empty", "full"):
            (directory / part).mkdir()
        empty, _ = await ready(directory / "empty", 0)
        await fill(directory / "full", jobs)
        (store,) = (directory / "full").rglob("*.db")
        for _ in range(options.starts):
            behind = put_back(store)
            took, read = await ready(directory / "full", READS)
            print(
                f"{behind} schedules a week behind: ready after {took:.2f} s (empty store "
                f"{empty:.2f} s), the longest read {1000 * read:.0f} ms"
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--periodic", type=int, default=200)
    parser.add_argument("--large", type=int, default=5)
    parser.add_argument("--starts", type=int, default=3)
    trio.run(main, parser.parse_args())
