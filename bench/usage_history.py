"""CPU use and disk space of the usage history.

    python -m bench.usage_history [--allocations 100] [--seconds 60]

The benchmark measures a daemon that records the usage of its allocations, and a daemon that does
not. The disk space is that of random samples that cover a period of 30 days. Each allocation
belongs to a separate job.
"""

import argparse
import random
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import trio

from bench.reads import daemon
from bench.top import ROOM, run_jobs, share, stop_jobs
from storage.queries import usage_history
from storage.queries.usage_history import COARSE, FINE, KEPT, LENGTH
from storage.records.base import SECOND
from storage.records.usage_history import SeriesKey, UsageBlock, UsageMetric, Values
from storage.store import FILE_NAME, open_store
from storage.writer import Transaction

NOW = 1_795_225_200 // LENGTH[COARSE] * LENGTH[COARSE]


def main() -> None:
    """Print the CPU use with and without recording, and the disk space."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--allocations", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    for setting in ("true", "false"):
        with tempfile.TemporaryDirectory(prefix="steward-usage-") as name:
            settings = Path(name) / "steward.toml"
            settings.write_text(f"usage_history = {setting}\n")
            with daemon(Path(name) / "data", *ROOM, "--config", str(settings)) as (port, pid):
                url = f"http://127.0.0.1:{port}"
                run_jobs(url, options.allocations)
                share(pid, 10)  # let the start complete
                used = share(pid, options.seconds)
                stop_jobs(url)
        print(f"usage_history = {setting:5} {used:7.2%} of a core")
    with tempfile.TemporaryDirectory(prefix="steward-usage-") as name:
        trio.run(fill, Path(name), options.allocations)
        print(f"30 days            {size(Path(name) / FILE_NAME) / 2**20:7.1f} MiB")


async def fill(directory: Path, count: int) -> None:
    """Store 30 days of random samples."""
    keys = [SeriesKey("node", "n")]
    for number in range(count):
        name = f"{number:08x}-0000-4000-8000-000000000000"
        keys += [SeriesKey("alloc", name, "default", task) for task in ("", "main")]
        keys.append(SeriesKey("job", f"job-{number}", "default"))
    chance = random.Random(1)  # reproducible; not used for secrets
    async with open_store(directory, cluster_id="c", now=NOW * SECOND) as store:
        for step in (COARSE, FINE):
            for begin in range(NOW - KEPT[step], NOW, LENGTH[step]):
                blocks = {key: block(key, LENGTH[step] // step, chance) for key in keys}

                def put(
                    tx: Transaction,
                    step: int = step,
                    begin: int = begin,
                    blocks: dict[SeriesKey, UsageBlock] = blocks,
                ) -> None:
                    usage_history.put(tx, step, begin, blocks)

                await store.write(put, is_long=True)


def block(key: SeriesKey, length: int, rng: random.Random) -> UsageBlock:
    """Return random samples, in which the CPU varies widely and the memory hardly at all."""

    def noisy(mean: float, part: float) -> Values:
        return [max(0, int(rng.gauss(mean, mean * part))) for _ in range(length)]

    samples: dict[UsageMetric, Values] = {}
    if key.kind != "alloc" or key.task:
        samples = {UsageMetric.CPU: noisy(70, 0.15), UsageMetric.MEMORY: noisy(60_000, 0.01)}
    if key.kind != "node" and not key.task:
        samples[UsageMetric.DISK] = [20_000] * length
    if not key.task:
        for metric in (UsageMetric.RECEIVED, UsageMetric.SENT):
            samples[metric] = noisy(20_000, 0.3)
    if key.kind == "job":
        samples[UsageMetric.ALLOCATIONS] = [1] * length
    return samples


def size(path: Path) -> int:
    """Return the size in bytes of the tables and indexes of the usage history."""
    with closing(sqlite3.connect(path)) as db:
        return sum(_sizes(db))


def _sizes(db: sqlite3.Connection) -> Iterator[int]:
    yield from (
        row[0] for row in db.execute("SELECT pgsize FROM dbstat WHERE name LIKE '%usage_%'")
    )


if __name__ == "__main__":
    main()
