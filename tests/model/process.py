"""A daemon with access control for the state machine, which is not asynchronous."""

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import httpx

from daemon.runner.nosuid_mount import mounts
from tests import forks
from tests.forks import Child, environment
from tests.http_clients import trusted
from tests.time_limits import HAPPENS_WITHIN


class Daemon:
    """One daemon for all examples. The names of each example have a separate prefix."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._numbers = count()
        self._port = "0"
        self._process: Child
        self.http: httpx.Client
        self.token = ""
        self._start()
        self.token = self.http.post("/v1/acl/bootstrap").json()["SecretID"]

    def next_prefix(self) -> str:
        return f"x{next(self._numbers)}"

    def kill_and_restart(self) -> None:
        self.end(signal.SIGKILL)
        self._start()

    def _start(self) -> None:
        data = str(self._directory / "data")
        words = ["agent", "--dev", "--acl", "--port", self._port, "--data-dir", data]
        with (self._directory / "daemon.log").open("ab") as log:
            self._process, output = forks.begin(words, env=environment(), stderr=log.fileno())
        with output:
            line = output.readline().decode().strip()
        assert " ready at " in line, line
        address = line.rpartition(" ")[2]
        self._port = address.rpartition(":")[2]
        self.http = httpx.Client(verify=trusted(), base_url=address, timeout=HAPPENS_WITHIN)

    def end(self, number: int) -> None:
        self.http.close()
        self._process.send_signal(number)
        self._process.wait()


@contextmanager
def open_daemon(directory: Path) -> Iterator[Daemon]:
    daemon = Daemon(directory)
    try:
        yield daemon
    finally:
        daemon.end(signal.SIGTERM)
        for mount in reversed([*mounts()]):
            if mount.place.startswith(f"{directory}/"):
                subprocess.run(["umount", "-l", mount.place], check=True)
