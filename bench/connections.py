"""Latency of other clients while one user of the host holds very many connections.

    python -m bench.connections [--connections 10000] [--asks 200] [--again]     (as root)

Another user opens the connections. With `--again` this user opens a new connection for each
rejected one, at the daemon's rate of rejection. In this time root requests the list of jobs, each
time with a new connection: through the port, and through the operators' socket.
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
QUESTION = b"GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


def hold(port: int, number: int, *, again: bool) -> None:
    """Hold connections indefinitely; with `again`, reopen each one that the daemon closes."""
    waits, held = select.epoll(), dict[int, socket.socket]()

    def connect() -> None:
        one = socket.socket()
        one.setblocking(False)
        one.connect_ex(("127.0.0.1", port))
        held[one.fileno()] = one
        waits.register(one, select.EPOLLRDHUP | select.EPOLLHUP)

    for _ in range(number):
        connect()
    print("held", flush=True)
    while True:
        for descriptor, _ in waits.poll():
            held.pop(descriptor).close()
            if again:
                connect()
        time.sleep(0.01)


def ask(address: str | tuple[str, int]) -> float:
    """Return the latency of a response in milliseconds."""
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    began = time.perf_counter()
    with socket.socket(family) as one:
        one.connect(address)
        one.sendall(QUESTION)
        answer = b""
        while piece := one.recv(65536):
            answer += piece
    assert answer.startswith(b"HTTP/1.1 200 "), answer[:200]
    return 1000 * (time.perf_counter() - began)


def measure(name: str, address: str | tuple[str, int], asks: int) -> None:
    took = []
    for _ in range(asks):
        took.append(ask(address))
        time.sleep(PAUSE)
    print(
        f"{name:<32} {statistics.median(took):>7.1f} ms at the median, "
        f"{statistics.quantiles(took, n=20)[-1]:>7.1f} p95, {max(took):>7.1f} at most"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--asks", type=int, default=200)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--hold", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if options.hold:
        os.setresuid(NOBODY, NOBODY, NOBODY)
        hold(options.hold, options.connections, again=options.again)
    path = Path(f"/tmp/steward-connections-{os.getpid()}.sock")  # short, as sockets need
    with daemon("--socket", str(path)) as url:
        port = int(url.rpartition(":")[2])
        places = {"port": ("127.0.0.1", port), "operators' socket": str(path)}
        for name, address in places.items():
            measure(f"{name}, idle", address, options.asks)
        words = ["-m", "bench.connections", "--hold", str(port)]
        words += ["--connections", str(options.connections)]
        words += ["--again"] if options.again else []
        holder = subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE)
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"held\n"
            for name, address in places.items():
                measure(f"{name}, {options.connections} held", address, options.asks)
        finally:
            holder.kill()
            holder.wait()


if __name__ == "__main__":
    main()
