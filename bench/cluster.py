"""Jobs on a real cluster on this host: start latency, throughput and the cost of the monitor.

    python -m bench.cluster [--rounds 20] [--jobs 200] [--turns 5] [--open 500] [--seconds 60]

Requires the Slurm packages (docs/cluster.md). The same run also measures `sbatch` without Steward,
whose throughput is the upper limit. With 0, an option skips its measurement.
"""

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import trio

from bench.limits import fork_exec_per_s
from tests.service.daemon import Steward, open_steward
from tests.service.slurm.cluster import Cluster, open_cluster
from tests.service.slurm.conftest import is_ready, with_pool
from tests.service.slurm.jobs import POOL, script

CLIENTS = 4  # concurrent submissions; more would not increase the rate
_TICKS = os.sysconf("SC_CLK_TCK")


async def first_instruction(steward: Steward, cluster: Cluster, place: Path, rounds: int) -> object:
    """Return the median and p95 of the time from submission to first instruction, in ms.

    The result has these times for Steward and for `sbatch` alone.
    """
    ours, theirs = [], []
    for number in range(rounds):
        stamp = place / f"first-{number}"
        await trio.sleep(random.random())  # Slurm's controller schedules once a second
        began = time.time()
        await steward.register(script(f"first-{number}", f"date +%s.%N >{stamp}"))
        ours.append(await _stamped(stamp) - began)
        alone = place / f"alone-{number}"
        await trio.sleep(random.random())
        began = time.time()
        text = f"#!/bin/sh\ndate +%s.%N >{alone}\n"
        await trio.to_thread.run_sync(lambda text=text: _submit(cluster, text))
        theirs.append(await _stamped(alone) - began)
    return {"ours": _spread(ours), "sbatch alone": _spread(theirs)}


async def _stamped(file: Path) -> float:
    await _until(lambda: _read(file).endswith("\n"), 0.01)
    return float(_read(file))


def _read(file: Path) -> str:
    return file.read_text() if file.exists() else ""


async def _until(happened: Callable[[], bool], pause: float) -> None:
    while not happened():  # noqa: ASYNC110  # no event reports it
        await trio.sleep(pause)


def _spread(seconds: list[float]) -> dict[str, int]:
    shares = statistics.quantiles(seconds, n=20)
    return {"p50_ms": round(1000 * statistics.median(seconds)), "p95_ms": round(1000 * shares[-1])}


def _submit(cluster: Cluster, text: str) -> str:
    words = ("--parsable", "--no-requeue", "--mem=10", "-o", "/dev/null", "-J", "alone")
    done = cluster.run("sbatch", *words, stdin=text)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


async def throughput(steward: Steward, cluster: Cluster, count: int, turns: int) -> object:
    """Return the no-op jobs completed per second, with `sbatch` alone and with Steward by turns.

    `share` is the median of the ratios of the turns. `daemon_cpu_ms` is the CPU time of the daemon
    and of its ended child processes for a job.
    """
    parent = script("short", "exec true") | {"ParameterizedJob": {}}
    parent["TaskGroups"][0]["Tasks"][0]["Resources"] = {"CPU": 1, "MemoryMB": 10}
    await steward.register(parent)
    rounds = []
    for turn in range(1, turns + 1):
        begun = time.monotonic()
        await _at_once(
            count, lambda: trio.to_thread.run_sync(_submit, cluster, "#!/bin/sh\nexec true\n")
        )
        await _until(lambda: not _jobs(cluster, "PENDING", "RUNNING", "COMPLETING"), 0.1)
        alone = count / (time.monotonic() - begun)
        begun, before = time.monotonic(), sum(_spent(steward.pid))
        await _at_once(count, lambda: steward.post("/v1/job/short/dispatch", {}))
        # No event reports the summary of a job with children.
        while (await steward.get("/v1/job/short/summary"))["Children"]["Dead"] < turn * count:  # noqa: ASYNC110
            await trio.sleep(0.1)
        ours = count / (time.monotonic() - begun)
        cpu = 1000 * (sum(_spent(steward.pid)) - before) / count
        rounds.append(
            {
                "sbatch": round(alone, 1),
                "ours": round(ours, 1),
                "share": round(ours / alone, 2),
                "daemon_cpu_ms": round(cpu, 1),
            }
        )
    share = statistics.median(ours_and_alone["share"] for ours_and_alone in rounds)
    return {"share": share, "turns": rounds}


def _jobs(cluster: Cluster, *states: str) -> list[str]:
    listed = cluster.run("squeue", "-h", f"--states={','.join(states)}", "-o", "%i").stdout
    return listed.split()


async def _at_once(count: int, work: Callable[[], Awaitable[object]]) -> None:
    left = iter(range(count))

    async def one_client() -> None:
        for _ in left:
            await work()

    async with trio.open_nursery() as nursery:
        for _ in range(CLIENTS):
            nursery.start_soon(one_client)


async def polling_cost(steward: Steward, cluster: Cluster, count: int, seconds: float) -> object:
    """Return the CPU use of the daemon and of its child processes, in percent of a core.

    Meanwhile, `count` jobs wait in the cluster.
    """
    cluster.run("scontrol", "update", "nodename=node[1-2]", "state=drain", "reason=figures")
    parent = script("waits", "exec true") | {"ParameterizedJob": {}}
    await steward.register(parent)
    await _at_once(count, lambda: steward.post("/v1/job/waits/dispatch", {}))
    await _until(lambda: len(_jobs(cluster, "PENDING")) == count, 1.0)
    await trio.sleep(15)  # until pending writes are done
    before, began = _spent(steward.pid), time.monotonic()
    await trio.sleep(seconds)
    length = time.monotonic() - began
    own, children = (
        100 * (now - then) / length for now, then in zip(_spent(steward.pid), before, strict=True)
    )
    return {"open": count, "daemon_percent": round(own, 2), "children_percent": round(children, 2)}


def _spent(pid: int) -> tuple[float, float]:
    """Return the CPU time of a process, and of its child processes that have ended, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    user, system, below, system_below = (int(field) / _TICKS for field in fields[11:15])
    return user + system, below + system_below


async def main(rounds: int, jobs: int, turns: int, waiting: int, seconds: float) -> None:
    print(json.dumps({"fork_exec_per_s": round(fork_exec_per_s())}))
    with open_cluster() as cluster, tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        settings = with_pool(place, str(cluster.config))
        async with open_steward(place, "--dev", "--config", settings) as steward:
            await steward.until(f"/v1/node/pool/{POOL}/nodes", is_ready)
            if rounds:
                print(json.dumps(await first_instruction(steward, cluster, place, rounds)))
            if turns:
                print(json.dumps(await throughput(steward, cluster, jobs, turns)))
            if waiting:
                print(json.dumps(await polling_cost(steward, cluster, waiting, seconds)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--open", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=60)
    given = parser.parse_args()
    trio.run(main, given.rounds, given.jobs, given.turns, given.open, given.seconds)
