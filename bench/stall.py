"""The longest wait of others, route by route, over a full store.

    python -m bench.stall [--children 100000] [--events 1000000] [--data-dir DIRECTORY] [--only TEXT]

Each route that shows something, on both sides and in the web interface, is asked with the parameters that
make it look at most (`bench/asked.py`), while a probe reads one job every 5 ms on a connection of its own.
The longest wait of the probe is a stall of the event loop, or of the machine: beside it stands that of a
quiet second just before. Tokens are off.
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

from bench import asked
from bench.asked import Asked
from bench.filled import begin, fill, run_one
from bench.others import fill_others
from bench.reads import daemon
from daemon.datadir import store_dir
from storage.store import FILE_NAME

PAUSE = 0.005  # seconds between two questions of the probe
LONGEST = 20.0  # seconds for which an answer is read
QUIET = 0.5  # seconds of a quiet probe, and for which an answer without an end is read
ENDLESS = {"GET /ui/events", "GET /v1/event/stream", "GET /v1/agent/monitor"}


class Probe:
    """A thread that reads one job again and again, and how long it waited at most."""

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
        "--data-dir", type=Path, help="a store that is full already, or is filled and kept"
    )
    parser.add_argument("--only", default="", help="a part of the routes' names")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="steward-stall-", dir=Path.cwd()) as name:
        data_dir = options.data_dir or Path(name) / "full"
        if not (store_dir(data_dir) / FILE_NAME).exists():
            begin(data_dir)
            run_one(data_dir)
            fill(store_dir(data_dir) / FILE_NAME, options.children, options.events)
            trio.run(fill_others, data_dir, options.children)
        with daemon(data_dir) as (port, _):
            measure(port, options.only)


def measure(port: int, only: str) -> None:
    """Print the longest wait beside each route."""
    names, rows = known(port), dict[str, list[Asked]]()
    for one in (*asked.reads(), *asked.streams()):
        if only in one.row:
            rows.setdefault(one.row, []).append(one)
    print(f"| {'Route':<52} | {'Answers, ms':>11} | {'Quiet, ms':>9} | {'Longest wait, ms':>16} |")
    for row, every in rows.items():
        quiet = longest(port, lambda: time.sleep(QUIET))
        before = time.perf_counter()
        most = max(longest(port, partial(ask, port, one, names)) for one in every)
        took = (time.perf_counter() - before) * 1000
        print(f"| {row:<52} | {took:>11.0f} | {quiet:>9.1f} | {most:>16.1f} |", flush=True)


def known(port: int) -> dict[str, str]:
    """Return what stands in the braces of paths."""

    def first(path: str) -> str:
        with closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
            connection.request("GET", path)
            found = msgspec.json.decode(connection.getresponse().read())
        return str(found[0]["ID"]) if found else "none"

    names = {
        "job_id": "old",
        "alloc_id": first("/v1/allocations?per_page=1"),
        "eval_id": first("/v1/evaluations?per_page=1"),
        "node_id": first("/v1/nodes"),
    }
    return _Default(names)


class _Default(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return "default"


def longest(port: int, work: Callable[[], None]) -> float:
    """Return the longest wait of the probe, in ms, while something is done."""
    with Probe(port) as probe:
        time.sleep(2 * PAUSE)
        work()
        time.sleep(2 * PAUSE)
    return max(wait * 1000 for wait in probe.waits)


def ask(port: int, one: Asked, names: Mapping[str, str]) -> None:
    """Ask, and read the answer; not longer than a while."""
    path, query = one.target(names)
    body = None if one.body is None else msgspec.json.encode(one.body)
    is_endless = one.row in ENDLESS
    until = time.perf_counter() + (QUIET if is_endless else LONGEST)
    timeout = QUIET if is_endless else LONGEST
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)) as connection:
        connection.request(one.method, f"{path}?{query}", body)
        with suppress(TimeoutError):  # the probe goes on while it is made
            answer = connection.getresponse()
            while answer.read(64 * 1024) and time.perf_counter() < until:
                pass


if __name__ == "__main__":
    main()
