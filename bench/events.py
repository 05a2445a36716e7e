"""Event streams under load: each reader must receive each event exactly once, in order.

    python -m bench.events [--events 100000] [--readers 50]

The benchmark starts a daemon and registers jobs until the given number of events exist. All readers
stream from the beginning. One of them is slow and reads most events only after the last write.
Halfway, the daemon is killed (SIGKILL) and restarted. The benchmark compares each reader's events
with the daemon's database. The exit status is 1 if a reader received different events.
"""

import argparse
import hashlib
import itertools
import json
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

import h11
import httpx
import trio

from daemon.config.data_directory import store_dir
from storage.store import FILE_NAME
from tests.service.daemon import Steward, open_steward
from tests.service.streaming import open_stream

WRITERS = 16  # concurrent requests
END = "end"  # the ID of the last registered job
PAUSE = 0.2  # pause of the slow reader between the events of two writes, in seconds
TASK = {"Name": "t", "Driver": "raw_exec", "Config": {"command": "true"}}


class Seen:
    """The events that one reader received: their number, digest, and whether they were in order."""

    def __init__(self) -> None:
        self.events, self.last, self.in_order = 0, 0, True
        self._digest = hashlib.sha256()

    def add(self, index: int, topic: str, kind: str, key: str) -> None:
        self.in_order &= index >= self.last
        self.last = index
        self.events += 1
        self._digest.update(f"{index} {topic} {kind} {key}\n".encode())

    @property
    def whole(self) -> tuple[int, bool, str]:
        return self.events, self.in_order, self._digest.hexdigest()


class Run:
    """A daemon, its stored events, and readers that stream until the last event."""

    def __init__(self, steward: Steward) -> None:
        self.steward = steward
        self.up, self.over = trio.Event(), trio.Event()

    async def read(self, seen: Seen, *, slow: bool) -> None:
        """Read until the last event, across reconnections."""
        ended = False
        while not ended:
            await self.up.wait()
            # Reconnect.
            with suppress(OSError, trio.BrokenResourceError, h11.RemoteProtocolError):
                ended = await self._read_on(seen, slow=slow)

    async def _read_on(self, seen: Seen, *, slow: bool) -> bool:
        path = "/v1/event/stream"
        async with open_stream(self.steward, path, index=seen.last + 1) as stream:
            while line := await stream.line():
                events = json.loads(line).get("Events", ())
                for event in events:
                    seen.add(event["Index"], event["Topic"], event["Type"], event["Key"])
                if any((event["Topic"], event["Key"]) == ("Job", END) for event in events):
                    return True
                if slow and not self.over.is_set():
                    await trio.sleep(PAUSE)
        return False

    async def write(self, until: int) -> None:
        """Register jobs until this many events exist."""
        numbers = itertools.count()
        async with httpx.AsyncClient(timeout=60) as client, trio.open_nursery() as nursery:
            for _ in range(WRITERS):
                nursery.start_soon(self._register, client, numbers, until)

    async def _register(
        self, client: httpx.AsyncClient, numbers: Iterator[int], until: int
    ) -> None:
        for number in numbers:
            if number % WRITERS == 0 and self._count() >= until:
                return
            answer = await client.post(
                f"{self.steward.address}/v1/jobs", json={"Job": idle(f"j-{until}-{number}")}
            )
            answer.raise_for_status()

    def _count(self) -> int:
        with self._file() as file:
            return int(file.execute("SELECT count(*) FROM events").fetchone()[0])

    def stored(self, last: int) -> Seen:
        """Return the number, order and digest of the stored events up to the index `last`."""
        seen = Seen()
        with self._file() as file:
            for row in file.execute(
                "SELECT write_index, topic, type, key FROM events"
                " WHERE write_index <= ? ORDER BY number",
                (last,),
            ):
                seen.add(*row)
        return seen

    def _file(self) -> closing[sqlite3.Connection]:
        file = store_dir(self.steward.data_dir) / FILE_NAME
        return closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True))


def idle(job_id: str) -> dict[str, object]:
    return {"ID": job_id, "TaskGroups": [{"Name": "g", "Count": 0, "Tasks": [TASK]}]}


async def main(events: int, readers: int) -> int:
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory) / "steward.toml"
        config.write_text("retention_events = 100_000_000\n")  # the check at the end needs all
        async with open_steward(Path(directory), "--dev", "--config", str(config)) as steward:
            run, seen = Run(steward), [Seen() for _ in range(readers)]
            run.up.set()
            async with trio.open_nursery() as nursery:
                for seen_by_reader in seen:
                    nursery.start_soon(
                        partial(run.read, seen_by_reader, slow=seen_by_reader is seen[0])
                    )
                await run.write(events // 2)
                run.up = trio.Event()
                await steward.kill_and_restart()
                run.up.set()
                await run.write(events)
                wrote = time.monotonic() - began
                end = await steward.register(idle(END))
                run.over.set()
            stored = run.stored(end["JobModifyIndex"])
    wrong = [number for number, one in enumerate(seen) if one.whole != stored.whole]
    results = {
        "events": stored.events,
        "readers": readers,
        "readers with other events": len(wrong),
        "seconds of writing": round(wrote, 1),
        "seconds until all readers were done": round(time.monotonic() - began, 1),
    }
    print(json.dumps(results))
    return 1 if wrong else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--readers", type=int, default=50)
    asked = parser.parse_args()
    sys.exit(trio.run(main, asked.events, asked.readers))
