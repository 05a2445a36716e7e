"""Latency of other clients while one user of the host opens very many connections.

    python -m bench.connections [--connections 10000] [--floods 10] [--seconds 2] [--again]  (as root)

In each flood, another user opens the connections as fast as possible. With `--again`, this user
opens a new connection for each rejected one. From the beginning of a flood, root repeatedly
requests the list of jobs, through the port and through the operators' socket. Each request has a
new connection.
"""

import argparse
import os
import resource
import select
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

from tests.wire.scenarios import daemon

NOBODY = 65534
PAUSE = 0.005  # seconds between two requests
BETWEEN = 2.0  # seconds after a flood, in which the daemon closes the connections
Places = dict[str, str | tuple[str, int]]  # addresses by name
QUESTION = b"GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


def hold(port: int, number: int, *, again: bool) -> None:
    """Hold connections until killed; with `again`, reopen each one that the daemon closes."""
    waits, sockets = select.epoll(), dict[int, socket.socket]()

    def connect() -> None:
        one = socket.socket()
        one.setblocking(False)
        one.connect_ex(("127.0.0.1", port))
        sockets[one.fileno()] = one
        waits.register(one, select.EPOLLRDHUP | select.EPOLLHUP)

    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(number):
        connect()
    print("held", flush=True)
    while True:
        for descriptor, _ in waits.poll():
            sockets.pop(descriptor).close()
            if again:
                connect()
        time.sleep(0.01)


def ask(address: str | tuple[str, int]) -> float:
    """Request the list of jobs at an address; return the latency in milliseconds."""
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    began = time.perf_counter()
    with socket.socket(family) as one:
        one.connect(address)
        one.sendall(QUESTION)
        answer = b""
        while chunk := one.recv(65536):
            answer += chunk
    assert answer.startswith(b"HTTP/1.1 200 "), answer[:200]
    return 1000 * (time.perf_counter() - began)


Latencies = dict[str, list[float]]


def flood(port: int, places: Places, options: argparse.Namespace) -> Latencies:
    """Return the latencies of requests since the beginning of a flood, by address."""
    words = [sys.executable, "-m", "bench.connections", "--hold", str(port)]
    words += ["--connections", str(options.connections)]
    words += ["--again"] if options.again else []
    latencies: Latencies = {name: [] for name in places}
    pipe = subprocess.PIPE
    # The kernel shares the CPU among sessions, and each user has a separate session.
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, start_new_session=True) as holder:
        try:
            assert holder.stdin is not None
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"ready\n"
            holder.stdin.write(b"\n")
            holder.stdin.flush()
            until = time.monotonic() + options.seconds
            while time.monotonic() < until:
                for name, address in places.items():
                    latencies[name].append(ask(address))
                time.sleep(PAUSE)
        finally:
            holder.kill()
    return latencies


def show(name: str, took: list[float]) -> None:
    """Print the distribution of latencies."""
    p95 = statistics.quantiles(took, n=20)[-1] if len(took) > 1 else took[0]
    print(
        f"{name:<40} {statistics.median(took):>7.1f} ms median, {p95:>7.1f} p95, "
        f"{max(took):>7.1f} maximum, {len(took)} requests"
    )


def main() -> None:
    """Measure all floods."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--floods", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--hold", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if options.hold:
        os.setresuid(NOBODY, NOBODY, NOBODY)
        hold(options.hold, options.connections, again=options.again)
    path = Path(f"/tmp/steward-connections-{os.getpid()}.sock")  # socket paths must be short
    with daemon("--socket", str(path)) as url:
        places: Places = {
            "port": ("127.0.0.1", int(url.rpartition(":")[2])),
            "operators' socket": str(path),
        }
        for name, address in places.items():
            show(f"{name}, no flood", [ask(address) for _ in range(200)])
        floods = []
        for _ in range(options.floods):
            floods.append(flood(int(url.rpartition(":")[2]), places, options))
            time.sleep(BETWEEN)
        for name in places:
            show(f"{name}, first of each flood", [each[name][0] for each in floods])
            show(f"{name}, longest of each flood", [max(each[name]) for each in floods])
            show(f"{name}, all", [took for each in floods for took in each[name]])


if __name__ == "__main__":
    main()
