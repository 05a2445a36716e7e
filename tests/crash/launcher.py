"""Become the daemon as it is, with wrappers around what it does that stays (`wrappers.py`).

    python -m tests.crash.launcher TALLY SOCKET

The daemon is imported once, and this process becomes one whenever it is told to over the socket, by a fork:
so a start costs a fifth of what it does otherwise, of which a run has little more than one.
"""

import errno
import importlib
import json
import os
import pkgutil
import signal
import socket
import sys
from pathlib import Path

import daemon
from tests.crash.tally import Tally
from tests.crash.wrappers import Wrappers

BARE = "CRASH_ON_A_BARE_MACHINE"  # in the environment: without control groups and holes in files
_LONGEST = 65536  # bytes of an order


def without_means() -> None:
    """Be on a machine that groups no processes and whose files have no holes."""
    from daemon.runner import holes
    from daemon.runner.drivers import cgroup

    cgroup.find = lambda owner: None
    holes._fallocate = lambda: lambda *stretch: errno.EOPNOTSUPP


def main() -> None:
    tally = Tally(Path(sys.argv[1]))
    Wrappers(tally, lambda: os.kill(os.getpid(), signal.SIGKILL)).everything()
    if os.environ.get(BARE):
        without_means()
    for found in pkgutil.walk_packages(daemon.__path__, "daemon."):
        if not found.name.startswith(("daemon.cli", "daemon.__main__")):
            importlib.import_module(found.name)
    with socket.socket(fileno=int(sys.argv[2])) as orders:
        orders.setblocking(True)
        if become_daemons(orders):
            orders.close()
            start()


def become_daemons(orders: socket.socket) -> bool:
    """Do as one is told until nobody is there; in a daemon to be, return that it is one.

    An order is what stands on the command line, with the descriptors of its standard output and error;
    the answer is a pid. The order `{"reap": pid}` is answered with how that ended.
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
