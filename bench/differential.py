"""Random sessions of requests to two servers, with a list of all differences between the responses.

    python -m bench.differential [--sessions 100] [--length 100] [--peer-binary FILE | --peer URL]

The first server is a new development daemon. With `--peer-binary`, the second server is a Nomad
agent in development mode, which this program starts from the binary FILE. With `--peer`, it is the
server at URL. Otherwise it is another daemon, which serves every request through the framework.
Intended differences, which `tests/differential/decided.txt` lists, are only counted. The exit
status is 1 if there are other differences.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx

from tests.differential.responses import decided, is_decided
from tests.differential.servers import compare
from tests.differential.sessions import session
from tests.wire.scenarios import DOORS, daemon

START = 60  # seconds for the start of Nomad
TIMEOUT = 60  # seconds for a response


@contextmanager
def peer(binary: Path) -> Iterator[str]:
    """Run a Nomad agent in development mode on Nomad's default port; yield its address."""
    address = "http://127.0.0.1:4646"
    with tempfile.TemporaryDirectory() as directory:
        words = [str(binary), "agent", "-dev", f"-alloc-dir={directory}/alloc"]
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            _wait_for_leader(address)
            yield address
        finally:
            process.terminate()
            process.wait(START)


def _wait_for_leader(address: str) -> None:
    deadline = time.monotonic() + START
    while time.monotonic() < deadline:
        try:
            if httpx.get(f"{address}/v1/status/leader").json():
                return
        except (httpx.TransportError, ValueError):  # Nomad does not listen yet, or has no leader
            pass
        time.sleep(0.2)  # Nomad has no event to wait for
    raise TimeoutError(f"{address} has no leader after {START} s")


def main() -> int:
    """Print the differences by method, path and field; return the exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--sessions", type=int, default=100)
    parser.add_argument("--length", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--peer-binary", type=Path)
    chosen.add_argument("--peer")
    options = parser.parse_args()
    patterns = decided()
    intended, others = 0, Counter[str]()
    with ExitStack() as stack:
        ours = stack.enter_context(daemon(environment=DOORS["lean"]))
        theirs = options.peer or stack.enter_context(
            peer(options.peer_binary) if options.peer_binary else daemon(environment=DOORS["wide"])
        )
        first, second = (
            stack.enter_context(httpx.Client(base_url=address, timeout=TIMEOUT))
            for address in (ours, theirs)
        )
        for seed in range(options.seed, options.seed + options.sessions):
            for one in compare(first, second, session(seed, options.length)):
                if is_decided(one, patterns):
                    intended += 1
                    continue
                others[f"{one.method} {one.path} {one.where}"] += 1
                print(f"seed {seed}: {one.method} {one.path} at {one.where or 'body'}:")
                print(f"  {one.first!r}\n  {one.second!r}")
    count = options.sessions * options.length
    print(f"{count} requests: {others.total()} unintended and {intended} intended differences")
    return int(bool(others))


if __name__ == "__main__":
    sys.exit(main())
