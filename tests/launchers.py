"""Launchers for tests, each forked from one small process without other imports.

    python -m tests.launchers SOCKET

The test process is large and has threads, so a fork of it would be slow and unsafe.
"""

import atexit
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path

import msgspec
import trio

from daemon.launcher import child_processes
from daemon.launcher.channel import close, pair
from daemon.launcher.child_processes import ChildOperation
from daemon.launcher.client import Launcher, answer_of, send_hello
from daemon.launcher.client import open_launcher as open_greeted
from daemon.launcher.fork import become
from daemon.launcher.messages import (
    Answer,
    CollectFiles,
    LauncherPolicy,
    NumberedRequest,
    Request,
    UnpackStream,
)
from daemon.launcher.server import Server

# Default policy of a launcher.
EVERYTHING = LauncherPolicy(
    owner=os.geteuid(),
    is_dev=False,
    users=["*"],
    usual="",
    permits_root=True,
    denied=[],
    checked=[],
    denied_uids=[],
    denied_gids=[],
    own_uids=None,
    runs_raw_exec=True,
    opens_filters=True,
    volumes=[],
    processes=0,
    holds_raw_exec=True,
    groups=[],
    raw_exec_groups=[],
    exec_groups=[],
    filter=b"",
    wide_filter=b"",
    no_filter="",
    volume_roots=[],
)


@asynccontextmanager
async def open_launcher(
    directory: Path, policy: LauncherPolicy = EVERYTHING
) -> AsyncIterator[Launcher]:
    """Serve a directory of allocations with a launcher while the block runs."""
    for item in (directory, directory.parent, directory.parent.parent):  # for other users
        item.mkdir(parents=True, exist_ok=True)
        item.chmod(item.stat().st_mode | 0o111)
    channel = begin()
    send_hello(channel, directory, grouped(directory, policy))
    async with open_greeted(channel) as launcher:
        yield launcher


@asynccontextmanager
async def open_for_programs(
    directory: Path, path: str, config: str = ""
) -> AsyncIterator[Launcher]:
    """Serve a directory of allocations with a launcher that runs the programs of a cluster."""
    from daemon.runner.core.launcher_policy import programs_of  # not in the fork server
    from storage.records.pool import SLURM, Pool

    found = programs_of({"hpc": Pool(engine=SLURM, cluster_config=config)}, path)
    async with open_launcher(directory, msgspec.structs.replace(EVERYTHING, **found)) as launcher:
        yield launcher


def grouped(directory: Path, policy: LauncherPolicy = EVERYTHING) -> LauncherPolicy:
    """Return a policy with the two group names that tests use."""
    from daemon.runner.core.launcher_policy import filters_of  # not in the fork server
    from daemon.runner.drivers import cgroup_v1, cgroup_v2

    mount, own = (
        cgroup_v2.mount_point(Path("/proc/self/mountinfo").read_text()),
        cgroup_v2.own_path(Path("/proc/self/cgroup").read_text()),
    )
    data_dir = directory.parent.parent
    names = [
        cgroup_v2.name_of(owner, kind)
        for owner in (data_dir, data_dir / "alloc")
        for kind in ("", "limits-")
    ]
    places = {mount / (own or "/").lstrip("/")} if mount else set()
    every = {above for place in places for above in (place, place.parent, place / cgroup_v2.ASIDE)}
    old = cgroup_v1.memberships(Path("/proc/self/cgroup").read_text())
    for kind, where in cgroup_v1.mounts(Path("/proc/self/mountinfo").read_text()).items():
        every.add(where / old.get(kind, "/").lstrip("/"))
    groups = {f"{above}/{name}" for above in every for name in names}
    return msgspec.structs.replace(policy, groups=sorted(groups | {*policy.groups}), **filters_of())


def begin(server: socket.socket | None = None) -> socket.socket:
    """Return the daemon's end of a channel to a new launcher of a fork server."""
    ours, theirs = pair()
    with theirs:
        socket.send_fds(server or _nursery(), [b"1"], [theirs.fileno()])
    return ours


class Direct(Launcher):
    """A launcher in the test process, for jumping clocks, which cannot wait for another process."""

    def __init__(self, directory: Path) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._server = Server(None)  # no test sends to it
        self._server.allow(grouped(directory), str(directory))

    async def _request(
        self,
        request: Request,
        descriptors: Sequence[int] = (),
        spare: int | None = None,
        more: Sequence[int] = (),
    ) -> tuple[Answer, list[int]]:
        if spare is not None:
            os.close(spare)
        close(more)
        question = NumberedRequest(number=0, descriptors=len(descriptors), body=request)
        given = self._server._answer(question, descriptors)
        if isinstance(given, ChildOperation):
            if isinstance(request, UnpackStream | CollectFiles):  # waits for the stream's other end
                body = await trio.to_thread.run_sync(child_processes.done, given)
            else:
                body = child_processes.done(given)
            given.after()
            given = body, []
        return answer_of(*given)


@cache
def _nursery() -> socket.socket:
    """Start the fork server of all tests; it ends with the test process."""
    ours, process = start_server()
    atexit.register(process.wait)
    atexit.register(ours.close)  # exit handlers run in reverse order, so this one is first
    return ours


def start_server() -> "tuple[socket.socket, subprocess.Popen[bytes]]":
    """Start a fork server; it ends when this end of its channel is closed."""
    ours, theirs = pair()
    with theirs:
        words = [sys.executable, "-m", "tests.launchers", str(theirs.fileno())]
        null = subprocess.DEVNULL
        process = subprocess.Popen(words, pass_fds=[theirs.fileno()], stdin=null, stdout=null)
    return ours, process


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no code waits for the launchers
    with socket.socket(fileno=int(sys.argv[1])) as orders:
        while True:
            data, (*descriptors,), _, _ = socket.recv_fds(orders, 1, 1)
            if not data:
                return
            with socket.socket(fileno=descriptors[0]) as channel:
                if os.fork() == 0:
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    os._exit(become(channel))


if __name__ == "__main__":
    main()
