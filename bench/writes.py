"""Writes per second, single and concurrent, compared with the fsync rate of the disk.

python -m bench.writes
"""

import tempfile
import time
from functools import partial
from pathlib import Path

import trio

from bench.limits import fdatasync_per_s
from storage.store import Store, open_store
from storage.writer import Transaction

ROW = "INSERT INTO moments (time, last_index) VALUES (:time, :index)"
WRITES = 2000


def write(tx: Transaction, *, time: int) -> None:
    tx.execute(ROW, {"time": time, "index": tx.index})


async def clients(store: Store, number: int, first: int) -> float:
    """Return the writes per second of `number` clients. Each client waits for its own writes."""

    async def one(client: int) -> None:
        for turn in range(WRITES // number):
            await store.write(partial(write, time=first + client * WRITES + turn))

    begun = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for client in range(number):
            nursery.start_soon(one, client)
    return WRITES / (time.perf_counter() - begun)


async def main() -> None:
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as directory:
        limit = fdatasync_per_s(Path(directory))
        print(f"fdatasync per s: {limit:.0f}")
        async with open_store(Path(directory), cluster_id="bench", now=0) as store:
            for turn, number in enumerate((1, 8, 64, 256)):
                rate = await clients(store, number, 10**9 * (turn + 1))
                print(f"{number:>4} clients: {rate:>8.0f} writes per s, {rate / limit:.2f} x fsync")


if __name__ == "__main__":
    trio.run(main)
