"""Fork server for daemons whose persistent effects are wrapped (`wrappers.py`).

python -m tests.crash.fork_server COUNTERS SOCKET

It is like the fork server of all tests (`tests/forks.py`), but wraps the functions before it
imports the daemon.
"""

import errno
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

from tests import forks
from tests.crash.point_counters import PointCounters
from tests.crash.wrappers import Wrappers

BARE = "CRASH_ON_A_BARE_MACHINE"  # environment variable: simulate a host without these features


def without_means() -> None:
    """Simulate a host without control groups and without support for sparse files."""
    from daemon.launcher import claims_and_logs
    from daemon.runner.drivers import cgroup_v2

    cgroup_v2.find = lambda owner: None
    claims_and_logs._fallocate = lambda: lambda *stretch: errno.EOPNOTSUPP


def die() -> None:
    """Kill this process. In a launcher operation also kill the launcher, which stops the daemon."""
    session = os.getsid(0)
    with suppress(OSError):  # the process has ended
        if Path(f"/proc/{session}/comm").read_text() == "steward-launch\n":
            os.kill(session, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    counters = PointCounters(Path(sys.argv[1]))
    Wrappers(counters, die).everything()
    if os.environ.get(BARE):
        without_means()
    forks.import_program()
    forks.serve(int(sys.argv[2]))


if __name__ == "__main__":
    main()
