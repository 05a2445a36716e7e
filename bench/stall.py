"""The longest wait of others, route by route, over a full store.

    python -m bench.stall [--children 100000] [--events 1000000] [--data-dir DIRECTORY]

Each read of the API is asked with the parameters that make it look at most, while a probe reads one job
every 5 ms on a connection of its own. What the probe waits beyond its usual time is a stall of the event
loop, or of the machine: the median of a quiet second is printed first. Tokens are off.
"""

import argparse
import http.client
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from bench.filled import begin, fill, run_one
from bench.reads import daemon
from daemon.api.routes import ROUTES
from daemon.datadir import store_dir
from daemon.web.request import Read
from storage.store import FILE_NAME

PAUSE = 0.005  # seconds between two questions of the probe
LONGEST = 20.0  # seconds for which an answer is read
# What makes a listing look at as much as it can.
QUERIES = (
    "",
    "per_page=20&namespace=*",
    "per_page=20&namespace=*&reverse=true&prefix=00",
    "filter=Name==%22nobody%22&namespace=*",
    "all=true&include_children=true",
)


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
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="steward-stall-", dir=Path.cwd()) as name:
        data_dir = options.data_dir or Path(name) / "full"
        if not (store_dir(data_dir) / FILE_NAME).exists():
            begin(data_dir)
            run_one(data_dir)
            fill(store_dir(data_dir) / FILE_NAME, options.children, options.events)
        with daemon(data_dir) as (port, _):
            measure(port)


def measure(port: int) -> None:
    """Print the longest wait beside each route."""
    names = known(port)
    quiet = longest(port, lambda: time.sleep(1))
    print(f"quiet: median {quiet[0]:.1f} ms, longest {quiet[1]:.1f} ms\n")
    print(f"| {'Route':<48} | {'Query':<46} | {'Answer, ms':>10} | {'Longest wait, ms':>16} |")
    for route in ROUTES:
        if not isinstance(route, Read):
            continue
        path = route.path.format_map(names)
        for query in QUERIES:
            before = time.perf_counter()
            _, most = longest(port, lambda path=path, query=query: ask(port, f"{path}?{query}"))
            took = (time.perf_counter() - before) * 1000
            print(f"| {route.path:<48} | {query:<46} | {took:>10.0f} | {most:>16.1f} |", flush=True)


def known(port: int) -> dict[str, str]:
    """Return what stands in the braces of paths."""
    import msgspec

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


def longest(port: int, work: Callable[[], None]) -> tuple[float, float]:
    """Return the median and the longest wait of the probe, in ms, while something is done."""
    with Probe(port) as probe:
        time.sleep(2 * PAUSE)
        work()
        time.sleep(2 * PAUSE)
    waits = [wait * 1000 for wait in probe.waits] or [0.0]
    return statistics.median(waits), max(waits)


def ask(port: int, target: str) -> None:
    """Ask, and read the answer; not longer than a while."""
    until = time.perf_counter() + LONGEST
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=LONGEST)) as connection:
        connection.request("GET", target)
        with suppress(TimeoutError):  # the probe goes on while it is made
            answer = connection.getresponse()
            while answer.read(1024 * 1024) and time.perf_counter() < until:
                pass


if __name__ == "__main__":
    main()
