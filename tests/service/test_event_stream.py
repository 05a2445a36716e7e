"""The event stream of the real daemon: many readers, one of them slow, and a crash in between."""

import json
from contextlib import suppress
from pathlib import Path

import h11
import trio

from tests.service.daemon import Steward, open_steward
from tests.service.streaming import open_stream

READERS = 50
JOBS = 60  # each job causes several events

Seen = list[tuple[int, str, str, str]]


def idle(job_id: str) -> dict[str, object]:
    task = {"Name": "main", "Driver": "raw_exec", "Config": {"command": "/bin/true"}}
    return {"ID": job_id, "TaskGroups": [{"Name": "web", "Count": 0, "Tasks": [task]}]}


class Reader:
    """A reader of the event stream, which continues on new connections."""

    def __init__(self, steward: Steward) -> None:
        self._steward = steward
        self._next = 1
        self.seen: Seen = []

    async def read(self, until: str) -> None:
        """Read until the job of this name has been registered, or the daemon has ended."""
        async with open_stream(self._steward, "/v1/event/stream", index=self._next) as stream:
            while line := await stream.line():
                if self._take(json.loads(line), until):
                    return

    def _take(self, line: dict[str, object], until: str) -> bool:
        events = line.get("Events")
        if not isinstance(events, list):
            return False
        self.seen += [
            (event["Index"], event["Topic"], event["Type"], event["Key"]) for event in events
        ]
        self._next = events[-1]["Index"] + 1
        return any(event["Topic"] == "Job" and event["Key"] == until for event in events)


async def until_gone(reader: Reader) -> None:
    with suppress(
        OSError, trio.BrokenResourceError, h11.RemoteProtocolError
    ):  # the daemon closes the connection
        await reader.read("never")


async def test_every_reader_sees_every_event_once_and_in_order(steward: Steward) -> None:
    readers = [Reader(steward) for _ in range(READERS)]
    slow, *fast = readers
    async with trio.open_nursery() as nursery:
        for reader in fast:
            nursery.start_soon(until_gone, reader)
        for number in range(JOBS):
            await steward.register(idle(f"before-{number}"))
        await steward.kill()
    await steward.start()
    async with trio.open_nursery() as nursery:
        for reader in fast:
            nursery.start_soon(reader.read, "last")
        for number in range(JOBS):
            await steward.register(idle(f"after-{number}"))
        await steward.register(idle("last"))
    await slow.read("last")
    registered = [key for _, topic, _, key in slow.seen if topic == "Job"]
    assert registered == [
        *(f"before-{number}" for number in range(JOBS)),
        *(f"after-{number}" for number in range(JOBS)),
        "last",
    ]
    assert len(slow.seen) == len(set(slow.seen))
    assert [reader.seen == slow.seen for reader in fast] == [True] * len(fast)


async def test_slow_reader_delays_no_other_reader(steward: Steward) -> None:
    async with open_stream(steward, "/v1/event/stream", index=1):  # a client that never reads
        for number in range(JOBS):
            await steward.register(idle(f"job-{number}"))
        reader = Reader(steward)
        await reader.read(f"job-{JOBS - 1}")
        assert len([item for item in reader.seen if item[1] == "Job"]) == JOBS


async def test_request_with_an_unknown_token_is_rejected(tmp_path: Path) -> None:
    async with (
        open_steward(tmp_path, "--dev", "--acl") as steward,
        open_stream(steward, "/v1/event/stream", "00000000-0000-4000-8000-000000000000") as answer,
    ):
        assert answer.status == 403
