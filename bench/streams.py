"""Open event streams: what a thousand of them take of memory, and how soon all hear of a write.

    python bench/streams.py [--streams 1000]

Starts a daemon of its own. The reader is Python as well and shares the processors with it.
"""

import argparse
import json
import re
import tempfile
import time
from pathlib import Path

import trio

from tests.service.daemon import Steward, open_steward

JOB = {
    "Type": "batch",
    "TaskGroups": [{"Name": "g", "Count": 0, "Tasks": [{"Name": "t", "Driver": "raw_exec"}]}],
}


def memory(pid: int) -> float:
    """Return the proportional set size of a process in MiB."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    found = re.search(r"^Pss:\s+(\d+)", rollup, re.MULTILINE)
    assert found
    return int(found[1]) / 1024


async def follow(steward: Steward, ready: trio.MemorySendChannel[None], heard: list[float]) -> None:
    host, port = steward.address.removeprefix("http://").split(":")
    question = f"GET /v1/event/stream?topic=Job:late HTTP/1.1\r\nHost: {host}\r\n\r\n"
    async with await trio.open_tcp_stream(host, int(port)) as stream:
        await stream.send_all(question.encode())
        text = b""
        while b"{}" not in text:
            text += await stream.receive_some()
        await ready.send(None)
        while b"JobRegistered" not in text:
            text += await stream.receive_some()
        heard.append(time.monotonic())


async def main(streams: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with open_steward(Path(directory), "--dev") as steward:
            await steward.register({"ID": "early", **JOB})
            before = memory(steward.pid)
            send, ready = trio.open_memory_channel[None](0)
            heard: list[float] = []
            async with trio.open_nursery() as nursery:
                for _ in range(streams):
                    nursery.start_soon(follow, steward, send, heard)
                for _ in range(streams):
                    await ready.receive()
                after = memory(steward.pid)
                began = time.monotonic()
                await steward.register({"ID": "late", **JOB})
            took = sorted(moment - began for moment in heard)
            print(
                json.dumps(
                    {
                        "streams": streams,
                        "MiB before": round(before, 1),
                        "MiB more": round(after - before, 1),
                        "ms first": round(took[0] * 1000, 1),
                        "ms p50": round(took[len(took) // 2] * 1000, 1),
                        "ms last": round(took[-1] * 1000, 1),
                    }
                )
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=1000)
    trio.run(main, parser.parse_args().streams)
