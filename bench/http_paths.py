"""Reads of one job through both HTTP paths: the fast path and the framework.

    python -m bench.http_paths [--seconds 3] [--rounds 5]

Two daemons that require tokens answer the same request alternately, from one client and from eight.
Each client waits for the response before it sends its next request. The output shows the rates and
the server process's CPU time per request. It also shows the limit of the loopback interface: the
same exchange with a process that parses nothing.
"""

import argparse
import json
import multiprocessing
import os
import selectors
import socket
import statistics
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from bench.login import cpu_of, pid_listening_at
from bench.raw_client import exchange, is_whole
from tests.wire.scenarios import DOORS, bootstrapped, daemon

CLIENTS = (1, 8)
JOB = {
    "ID": "j-0",
    "Type": "batch",
    "TaskGroups": [
        {
            "Name": "g",
            "Count": 0,
            "Tasks": [{"Name": "t", "Driver": "raw_exec", "Config": {"command": "/bin/true"}}],
        }
    ],
}


class Server(NamedTuple):
    """A server: its port, its process ID, and a token for it."""

    port: int
    pid: int
    token: str


class Figure(NamedTuple):
    """The cost of one request: rate and CPU time."""

    per_s: float
    cpu_us: float


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with ExitStack() as stack:
        servers = {name: stack.enter_context(served(name)) for name in DOORS}
        servers["echo"] = stack.enter_context(echo(answer(servers["lean"])))
        for clients in CLIENTS:
            rounds = [
                {
                    name: measure(server, clients, options.seconds)
                    for name, server in servers.items()
                }
                for _ in range(options.rounds)
            ]
            medians = {
                name: middle([round_figures[name] for round_figures in rounds]) for name in servers
            }
            for name, figure in medians.items():
                print(
                    f"{clients} clients  {name:<5} {figure.per_s:>7.0f} per s  "
                    f"{figure.cpu_us:>6.0f} µs of CPU"
                )
            lean, wide = medians["lean"], medians["wide"]
            print(
                f"{clients} clients  fast path compared with the framework: "
                f"{lean.per_s / wide.per_s:.2f} times the rate, "
                f"1/{wide.cpu_us / lean.cpu_us:.2f} of the CPU"
            )


def middle(figures: list[Figure]) -> Figure:
    return Figure(*(statistics.median(values) for values in zip(*figures, strict=True)))


@contextmanager
def served(door: str) -> Iterator[Server]:
    """Run a daemon in which the job is registered; `door` is `lean` (the fast path) or `wide`."""
    with daemon("--acl", environment=DOORS[door]) as url:
        token = bootstrapped(url)["management_token"]
        request = urllib.request.Request(
            f"{url}/v1/jobs", json.dumps({"Job": JOB}).encode(), {"X-Service-Token": token}
        )
        urllib.request.urlopen(request).close()
        yield Server(int(url.rpartition(":")[2]), pid_listening_at(url), token)


@contextmanager
def echo(data: bytes) -> Iterator[Server]:
    """Run a process that sends the same response to any input."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        context = multiprocessing.get_context("fork")
        process = context.Process(target=echoing, args=(listener, data), daemon=True)
        process.start()
        assert process.pid is not None
        try:
            yield Server(listener.getsockname()[1], process.pid, "")
        finally:
            process.terminate()
            process.join()


def echoing(listener: socket.socket, data: bytes) -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is listener:
                    selector.register(listener.accept()[0].detach(), selectors.EVENT_READ)
                    continue
                try:
                    is_there = bool(os.read(key.fd, 65536) and os.write(key.fd, data))
                except ConnectionError:
                    is_there = False
                if not is_there:
                    selector.unregister(key.fd)
                    os.close(key.fd)


# --- requests ---


def request_of(server: Server) -> bytes:
    lines = ("GET /v1/job/j-0 HTTP/1.1", "Host: 127.0.0.1", "User-Agent: bench", "Accept: */*")
    return "\r\n".join((*lines, f"X-Service-Token: {server.token}", "", "")).encode()


def answer(server: Server) -> bytes:
    """Return one complete response."""
    with socket.create_connection(("127.0.0.1", server.port)) as asking:
        asking.sendall(request_of(server))
        data = b""
        while not is_whole(data):
            data += asking.recv(65536)
    assert data.startswith(b"HTTP/1.1 200 "), data
    return data


def measure(server: Server, clients: int, seconds: float) -> Figure:
    used, begun = cpu_of(server.pid), time.perf_counter()
    count = len(exchange(server.port, request_of(server), clients, seconds))
    took, spent = time.perf_counter() - begun, cpu_of(server.pid) - used
    return Figure(count / took, 1e6 * spent / count)


if __name__ == "__main__":
    main()
