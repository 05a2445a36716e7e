"""The longest stall for other clients, by route, on a full store.

    python -m bench.stall [--children 100000] [--events 1000000] [--data-dir DIRECTORY] [--only
    TEXT] [--writes]

The benchmark sends the most expensive request to each read route of both APIs and the UI
(`bench/expensive_requests.py`). With `--writes`, it then sends the largest permitted bodies and
hostile bodies to each write route (`bench/expensive_writes.py`). At the same time, a probe reads
one job every 5 ms on its own connection. The probe's longest wait is a stall of the event loop or
of the host. For comparison, each line also shows the longest wait in a quiet period just before.
ACLs are off.
"""

import argparse
import http.client
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

import msgspec
import trio

from bench import expensive_requests, expensive_writes
from bench.expensive_requests import Asked
from bench.full_store import begin, fill, run_one
from bench.other_objects import fill_others
from bench.reads import daemon
from daemon.config.data_directory import store_dir
from storage.store import FILE_NAME

PAUSE = 0.005  # seconds between two requests of the probe
LONGEST = 20.0  # maximum seconds to read a response
QUIET = 0.5  # seconds of the quiet period, and for reading an endless response
AFTER = 0.5  # seconds for which the probe continues after a write, to include its consequences
SIZE = 16 * 1024 * 1024 - 4096  # bytes of hostile bodies: just below the largest accepted size
ENDLESS = {"GET /ui/events", "GET /v1/event/stream", "GET /v1/agent/monitor"}


class Probe:
    """A thread that reads one job repeatedly, and its longest wait."""

    def __init__(self, port: int) -> None:
        self._port, self._ends = port, threading.Event()
        self.waits: list[float] = []
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Probe":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def _run(self) -> None:
        with closing(http.client.HTTPConnection("127.0.0.1", self._port)) as connection:
            while not self._ends.wait(PAUSE):
                before = time.perf_counter()
                connection.request("GET", "/v1/job/old")
                connection.getresponse().read()
                self.waits.append(time.perf_counter() - before)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--children", type=int, default=100_000)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument(
        "--data-dir", type=Path, help="use the store in this directory, or fill and keep a new one"
    )
    parser.add_argument(
        "--only", default="", help="measure only routes whose name contains this text"
    )
    parser.add_argument(
        "--writes", action="store_true", help="also measure write routes, after the read routes"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="steward-stall-", dir=Path.cwd()) as name:
        data_dir = options.data_dir or Path(name) / "full"
        if not (store_dir(data_dir) / FILE_NAME).exists():
            begin(data_dir)
            run_one(data_dir)
            fill(store_dir(data_dir) / FILE_NAME, options.children, options.events)
            trio.run(fill_others, data_dir, options.children)
        with daemon(data_dir) as (port, _):
            measure(port, options.only, writes=options.writes)


def measure(port: int, only: str, *, writes: bool) -> None:
    """Print the longest wait of each route whose name contains `only`.

    With `writes`, the routes for writes are included.
    """
    names, rows = known(port), dict[str, list[Asked]]()
    last = sorted(expensive_writes.writes(SIZE), key=_destroys) if writes else []
    for expensive_request in (*expensive_requests.reads(), *expensive_requests.streams(), *last):
        if only in expensive_request.row:
            rows.setdefault(expensive_request.row, []).append(expensive_request)
    print(f"| {'Route':<52} | {'Answers, ms':>11} | {'Quiet, ms':>9} | {'Longest wait, ms':>16} |")
    for row, every in rows.items():
        quiet = longest(port, lambda: time.sleep(QUIET))
        before = time.perf_counter()
        most = max(longest(port, partial(ask, port, route, names)) for route in every)
        took = (time.perf_counter() - before) * 1000
        print(f"| {row:<52} | {took:>11.0f} | {quiet:>9.1f} | {most:>16.1f} |", flush=True)


def known(port: int) -> dict[str, str]:
    """Return the values of the placeholders in paths."""

    def first(path: str) -> str:
        with closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
            connection.request("GET", path)
            objects = msgspec.json.decode(connection.getresponse().read())
        return str(objects[0]["ID"]) if objects else "none"

    names = {
        "job_id": "old",
        "alloc_id": first("/v1/allocations?per_page=1"),
        "eval_id": first("/v1/evaluations?per_page=1"),
        "node_id": first("/v1/nodes"),
    }
    return _Default(names)


def _destroys(request: Asked) -> bool:
    """Return whether a request deletes objects that other requests need."""
    return request.method == "DELETE" or request.row.endswith(("/gc", "/snapshot", "/purge"))


class _Default(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return "default"


def longest(port: int, work: Callable[[], None]) -> float:
    """Return the probe's longest wait, in ms, during a call."""
    with Probe(port) as probe:
        time.sleep(2 * PAUSE)
        work()
        time.sleep(2 * PAUSE)
    return max(wait * 1000 for wait in probe.waits)


def ask(port: int, request: Asked, names: Mapping[str, str]) -> None:
    """Send a request and read its response, up to a time limit."""
    path, query = request.target(names)
    is_endless = request.row in ENDLESS
    until = time.perf_counter() + (QUIET if is_endless else LONGEST)
    timeout = QUIET if is_endless else LONGEST
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)) as connection:
        connection.request(request.method, f"{path}?{query}", request.content or None)
        # The probe continues during the response; endless responses are cut off.
        with suppress(TimeoutError, ConnectionError):
            answer = connection.getresponse()
            while answer.read(64 * 1024) and time.perf_counter() < until:
                pass
    if request.method not in ("GET", "LIST"):
        time.sleep(AFTER)


if __name__ == "__main__":
    main()
