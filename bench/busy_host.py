"""Dispatch rate and read latency of clients while tasks keep all CPUs busy.

    python -m bench.busy_host [--rounds 3] [--children 200]

Two tasks per CPU run a busy loop. In the meantime, four clients dispatch children, and one client reads a
job repeatedly.
"""

import argparse
import http.client
import itertools
import json
import os
import statistics
import threading
import time

from tests.wire.scenarios import daemon

CLIENTS = 4
PAUSE = 0.002  # seconds from a response to the next request
TASK = {
    "Name": "t",
    "Driver": "raw_exec",
    "Config": {"command": "/bin/true"},
    "Resources": {"CPU": 1, "MemoryMB": 10},
    "LogConfig": {"MaxFiles": 1, "MaxFileSizeMB": 1},
}
GROUP = {"Name": "g", "Tasks": [TASK], "EphemeralDisk": {"SizeMB": 50}}
PARENT = {"ID": "busy", "Type": "batch", "ParameterizedJob": {}, "TaskGroups": [GROUP]}


class Client:
    """A client with one connection to the daemon."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port)

    def ask(self, method: str, path: str, body: object = None) -> object:
        self._connection.request(method, path, json.dumps(body) if body is not None else None)
        answer = self._connection.getresponse()
        data = answer.read()
        assert answer.status == http.client.OK, data
        return json.loads(data)


def keep_busy(client: Client) -> None:
    """Keep all CPUs busy with tasks while the block runs."""
    count = 2 * (os.cpu_count() or 1)
    task = {**TASK, "Config": {"command": "/bin/sh", "args": ["-c", "while :; do :; done"]}}
    group = {**GROUP, "Count": count, "Tasks": [task]}
    client.ask(
        "POST", "/v1/jobs", {"Job": {"ID": "hogs", "Type": "service", "TaskGroups": [group]}}
    )
    while True:
        summary = client.ask("GET", "/v1/job/hogs/summary")
        assert isinstance(summary, dict)
        if summary["Summary"]["g"]["Running"] == count:
            return
        time.sleep(0.02)


def dispatched(port: int, children: int) -> float:
    """Return the number of children per second that were dispatched and completed."""
    left = itertools.count()

    def work() -> None:
        client = Client(port)
        while next(left) < children:
            client.ask("POST", "/v1/job/busy/dispatch", {})

    client, began = Client(port), time.perf_counter()
    before = ended(client)
    threads = [threading.Thread(target=work) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    while ended(client) < before + children:
        time.sleep(0.02)
    return children / (time.perf_counter() - began)


def ended(client: Client) -> int:
    summary = client.ask("GET", "/v1/job/busy/summary")
    assert isinstance(summary, dict)
    return int(summary["Children"]["Dead"])


def turn(port: int, children: int) -> tuple[float, list[float]]:
    """Return the completed children per second, and the latency of each read in milliseconds."""
    took, is_over = list[float](), threading.Event()

    def read() -> None:
        client = Client(port)
        while not is_over.wait(PAUSE):
            began = time.perf_counter()
            client.ask("GET", "/v1/job/busy")
            took.append(1000 * (time.perf_counter() - began))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        rate = dispatched(port, children)
    finally:
        is_over.set()
        reader.join()
    return rate, took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--children", type=int, default=200)
    options = parser.parse_args()
    with daemon() as url:
        port = int(url.rpartition(":")[2])
        client = Client(port)
        client.ask("POST", "/v1/jobs", {"Job": PARENT})
        dispatched(port, options.children)
        keep_busy(client)
        for _ in range(options.rounds):
            rate, took = turn(port, options.children)
            middle, late = statistics.median(took), statistics.quantiles(took, n=20)[-1]
            print(
                f"{rate:>5.0f} children per s, a read takes {middle:>5.1f} ms (median), "
                f"{late:>5.1f} ms (p95)"
            )


if __name__ == "__main__":
    main()
