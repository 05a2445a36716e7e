"""Fork server for daemons whose persistent effects are wrapped (`wrappers.py`).

    python -m tests.crash.fork_server COUNTERS SOCKET

This process imports the daemon once. For each order on the socket, it forks a child that becomes a
daemon. A start then takes a fifth of the usual time. This matters because a run consists of little
more than one start.
"""

import errno
import importlib
import json
import os
import pkgutil
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

import daemon
from tests.crash.point_counters import PointCounters
from tests.crash.wrappers import Wrappers

BARE = "CRASH_ON_A_BARE_MACHINE"  # environment variable: no control groups and no holes in files
_LONGEST = 65536  # bytes of an order


def without_means() -> None:
    """Simulate a host without control groups and without holes in files."""
    from daemon.launcher import claims_and_logs
    from daemon.runner.drivers import cgroup_v2

    cgroup_v2.find = lambda owner: None
    claims_and_logs._fallocate = lambda: lambda *stretch: errno.EOPNOTSUPP


def die() -> None:
    """Kill this process. In a launcher operation also kill the launcher, which stops the daemon."""
    session = os.getsid(0)
    with suppress(OSError):  # it has ended
        if Path(f"/proc/{session}/comm").read_text() == "steward-launch\n":
            os.kill(session, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    counters = PointCounters(Path(sys.argv[1]))
    Wrappers(counters, die).everything()
    if os.environ.get(BARE):
        without_means()
    for package in pkgutil.walk_packages(daemon.__path__, "daemon."):
        if not package.name.startswith(("daemon.cli", "daemon.__main__")):
            importlib.import_module(package.name)
    with socket.socket(fileno=int(sys.argv[2])) as orders:
        orders.setblocking(True)
        if become_daemons(orders):
            orders.close()
            start()


def become_daemons(orders: socket.socket) -> bool:
    """Execute orders until the client disconnects; in a forked child, return True.

    An order contains command line arguments, with descriptors for standard output and error. The
    response is a pid. The response to the order `{"reap": pid}` is the exit status.
    """
    while True:
        data, descriptors, _, _ = socket.recv_fds(orders, _LONGEST, 2)
        if not data:
            return False
        order = json.loads(data)
        if "reap" in order:
            status = os.waitstatus_to_exitcode(os.waitpid(order["reap"], 0)[1])
            orders.sendall(json.dumps(status).encode())
            continue
        pid = os.fork()
        for number, descriptor in enumerate(descriptors, 1):
            if pid == 0:
                os.dup2(descriptor, number)
            os.close(descriptor)
        if pid == 0:
            sys.argv[1:] = order["words"]
            return True
        orders.sendall(json.dumps(pid).encode())


def start() -> None:
    from daemon.__main__ import main as daemon_main

    daemon_main()


if __name__ == "__main__":
    main()
