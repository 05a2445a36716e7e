"""Disturbances of the daemon: kills, a full disk, busy CPUs, and receivers that fail."""

import errno
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import trio

from bench.soak.load import Soak, meet_cloud
from tests.fakes.collector import Collector, metrics_of, spans_of
from tests.fakes.receiver import Receiver

LASTS = 50.0  # seconds that a disturbance lasts, within a minute
CHECK = 10.0  # seconds between two changes of the receivers' behavior
HOGS = 2
BLOCK = 4096  # bytes


@contextmanager
def small_disk(place: Path, mib: int) -> Iterator[bool]:
    """Mount a file system in memory while the block runs; yield whether the mount succeeded."""
    options = ["-t", "tmpfs", "-o", f"size={mib}m,mode=700", "steward-soak"]
    place.mkdir()
    line = ["mount", *options, str(place)]
    if not mib or subprocess.run(line, capture_output=True, check=False).returncode:
        yield False
        return
    try:
        yield True
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


async def kill(soak: Soak) -> None:
    """Kill the daemon under load, and start it again."""
    with soak.disturbed("kill"):
        soak.is_up = trio.Event()
        begun = time.perf_counter()
        await soak.steward.kill_and_restart()
        print(f"killed, and ready again after {time.perf_counter() - begun:.1f} s", flush=True)
        await meet_cloud(soak)
        soak.is_up.set()


async def fill_disk(soak: Soak) -> None:
    """Leave no free space on the daemon's disk for a while."""
    filler = soak.steward.directory / "filler"
    with soak.disturbed("full disk"):
        try:
            with filler.open("ab", buffering=0) as file, trio.move_on_after(LASTS):
                while True:
                    await trio.to_thread.run_sync(_fill, file.fileno())
                    await trio.sleep(1)
        finally:
            filler.unlink()


def _fill(descriptor: int) -> None:
    """Append to a file until no block is free."""
    for size in (1 << 20, BLOCK):
        try:
            while True:
                os.write(descriptor, bytes(size))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise


async def use_processors(soak: Soak) -> None:
    """Keep the CPUs busy for a while, with processes outside the daemon."""
    words = ["/bin/sh", "-c", "while :; do :; done"]
    hogs = [await trio.lowlevel.open_process(words) for _ in range(HOGS)]
    try:
        await trio.sleep(LASTS)
    finally:
        for hog in hogs:
            hog.kill()
        with trio.CancelScope(shield=True):
            for hog in hogs:
                await hog.wait()


async def receive(soak: Soak, collector: Collector, receiver: Receiver) -> None:
    """Check the messages of the daemon, and refuse some of them."""
    while True:
        _check(soak, collector.receiver)
        collector.receiver.received.clear()
        receiver.received.clear()
        failing = soak.chance.random() < 0.5
        collector.receiver.answers[:] = [503] * 1000 if failing else []
        # Most messages are refused at least once. For some of them, the connection is closed.
        receiver.answers[:] = soak.chance.choices([500, 0, 200], weights=[6, 1, 3], k=100)
        await trio.sleep(CHECK)


def _check(soak: Soak, received: Receiver) -> None:
    for message in received.received:
        with soak.excusing("OTLP"):
            read = spans_of if message.path == "/v1/traces" else metrics_of
            soak.spans += len(read(message.body))
