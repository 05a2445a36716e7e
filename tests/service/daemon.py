"""A real daemon in its own directory, and a client that waits for expected states.

The daemon and its commands are forked (`tests/forks.py`), or executed where a test needs that.
"""

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import httpx
import msgspec
import trio

from daemon.config.data_directory import alloc_dir, store_dir
from daemon.runner.nosuid_mount import mounts
from storage.check import check
from tests import forks
from tests.forks import Forked, environment
from tests.http_clients import trusted
from tests.time_limits import HAPPENS_WITHIN

READY_WITHIN = 30  # seconds; a daemon starts slowly on a busy host
ENDS_WITHIN = 15

Condition = Callable[[Any], object]


class Steward:
    """A daemon that can be stopped, killed and started again on the same data and port.

    With `executed`, or if `before` has words that precede the daemon's words, processes are
    executed instead of forked.
    """

    def __init__(
        self, directory: Path, flags: tuple[str, ...] = ("--dev",), *, executed: bool = False
    ) -> None:
        self.directory = directory
        self.data_dir = directory / "data"
        self.address = ""
        self.flags = flags
        self.token = ""
        self.before: tuple[str, ...] = ()  # words before the daemon's words
        self._executed = executed
        self._port = "0"
        self._process: trio.Process | Forked | None = None
        self._http = httpx.AsyncClient(verify=trusted(), timeout=HAPPENS_WITHIN)

    # ---- start and stop ------------------------------------------------------------------------

    async def start(self, *flags: str) -> None:
        """Start the daemon, and return when it is ready; these flags are for this start only."""
        given = [*self.flags, "--port", self._port, "--data-dir", str(self.data_dir), *flags]
        if "--dev" not in self.flags:
            given += ["--key-file", str(self._key_file())]
        with self.log.open("ab") as log:
            self._process = await self._run(["agent", *given], log, self.before)
        with trio.fail_after(READY_WITHIN):
            line = await self._first_line()
        if " ready at " not in line:
            raise AssertionError(f"the daemon did not start; its log:\n{self.log.read_text()}")
        self.address = line.rpartition(" ")[2]
        self._port = self.address.rpartition(":")[2]
        first = store_dir(self.data_dir) / "bootstrap-token"
        if not self.token and first.exists():
            self.token = first.read_text().strip()

    async def _run(
        self, words: list[str], log: BinaryIO, before: tuple[str, ...] = ()
    ) -> trio.Process | Forked:
        """Start the program with these arguments; its own output goes to its log."""
        if not self._is_executed:
            return await forks.open_process(
                words, env=environment(), stdout=subprocess.PIPE, stderr=log
            )
        return await trio.lowlevel.open_process(
            [*before, sys.executable, "-m", "daemon", *words],
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment(),
        )

    @property
    def _is_executed(self) -> bool:
        return self._executed or bool(self.before)

    def _key_file(self) -> Path:
        """Return the file of the daemon's root key.

        The daemon creates a key in its data directory only in development mode.
        """
        file = self.directory / "root.key"
        if not file.exists():
            file.touch(mode=0o600)
            file.write_text(os.urandom(32).hex())
        return file

    async def _first_line(self) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        text = b""
        while b"\n" not in text and (piece := await self._process.stdout.receive_some()):
            text += piece
        return text.decode().partition("\n")[0]

    async def stop(self, number: int = signal.SIGTERM) -> int:
        """Stop the daemon; return its exit status."""
        return await self._end(number)

    async def kill(self) -> None:
        """Kill the daemon, like a crash."""
        await self._end(signal.SIGKILL)

    async def kill_and_restart(self) -> None:
        """Kill the daemon like a crash, and start it again on the same data."""
        await self.kill()
        await self.start()

    async def restart(self) -> None:
        """Stop the daemon regularly, and start it again on the same data."""
        await self.stop()
        await self.start()

    async def _end(self, number: int) -> int:
        assert self._process is not None
        self._process.send_signal(number)
        with trio.fail_after(ENDS_WITHIN):
            status = await self._process.wait()
        assert self._process.stdout is not None
        await self._process.stdout.aclose()
        self._process = None
        await self._http.aclose()
        self._http = httpx.AsyncClient(verify=trusted(), timeout=HAPPENS_WITHIN)
        return status

    async def close(self) -> None:
        """Kill the daemon if it runs, and all processes that it left behind."""
        if self._process is not None:
            await self._end(signal.SIGTERM)
        await self._http.aclose()
        for pid in self.processes():
            with suppress(ProcessLookupError):  # the daemon has just ended
                os.kill(pid, signal.SIGKILL)
        for mount in reversed([*mounts()]):
            if mount.place.startswith(f"{self.directory}/"):
                await trio.run_process(["umount", "-l", mount.place])

    @property
    def pid(self) -> int:
        """Return the process ID of the daemon."""
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> Path:
        """Return the path of the daemon's log file."""
        return self.directory / "daemon.log"

    # ---- requests -------------------------------------------------------------------------

    async def request(
        self, method: str, path: str, body: object = None, /, **query: object
    ) -> httpx.Response:
        """Send a request, and return the response, even if it is an error."""
        return await self._http.request(
            method,
            f"{self.address}{path}",
            params={name: _text(value) for name, value in query.items()} or None,
            content=None if body is None else msgspec.json.encode(body),
            headers={"X-Service-Token": self.token} if self.token else None,
        )

    async def get(self, path: str, /, **query: object) -> Any:
        """Return the response at a path."""
        return _good(await self.request("GET", path, **query)).json()

    async def post(self, path: str, body: object = None, /, **query: object) -> Any:
        """Send a POST request that must succeed; return the decoded response."""
        return _good(await self.request("POST", path, body, **query)).json()

    async def delete(self, path: str, /, **query: object) -> Any:
        """Send a DELETE request that must succeed; return the decoded response."""
        return _good(await self.request("DELETE", path, **query)).json()

    async def until(self, path: str, condition: Condition, /, **query: object) -> Any:
        """Return the response at a path when it matches, re-read after each change."""
        index, shown = 0, None
        with trio.move_on_after(HAPPENS_WITHIN):
            while True:
                waiting = {"index": index, "wait": f"{HAPPENS_WITHIN}s"} if index else {}
                answer = _good(await self.request("GET", path, **query, **waiting))
                shown = answer.json()
                if condition(shown):
                    return shown
                index = max(int(answer.headers["X-Service-Index"]), 1)
        raise AssertionError(f"{path} is still {shown}; the log:\n{self.log.read_text()}")

    async def register(self, job: object, **options: object) -> Any:
        """Register a job (a record or a document); return the answer."""
        return await self.post("/v1/jobs", {"Job": job, **options})

    async def run_job(self, job: object) -> list[Any]:
        """Register a job; return its allocations when all of them run."""
        done = await self.register(job)
        path = f"/v1/evaluation/{done['EvalID']}"
        evaluation = await self.until(path, lambda shown: shown["Status"] == "complete")
        return await self.allocations(evaluation["JobID"], "running")

    async def allocations(self, job_id: str, status: str, *more: str) -> list[Any]:
        """Return the allocations of a job when all have one of these client statuses."""
        wanted = {status, *more}
        found: list[Any] = await self.until(
            f"/v1/job/{job_id}/allocations",
            lambda shown: shown and {alloc["ClientStatus"] for alloc in shown} <= wanted,
        )
        return found

    async def log_of(self, alloc_id: str, task: str, kind: str = "stdout") -> str:
        """Return the output of a task so far."""
        path = f"/v1/client/fs/logs/{alloc_id}"
        return _good(await self.request("GET", path, task=task, type=kind, plain=True)).text

    async def cli(
        self, *words: str, stdin: str = "", **variables: str
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a command of the command line against the daemon until the command ends."""
        env = environment(STEWARD_ADDR=self.address, **variables)
        with trio.fail_after(HAPPENS_WITHIN):
            if not self._is_executed:
                return await forks.run_process(words, env=env, stdin=stdin.encode())
            return await trio.run_process(
                [sys.executable, "-m", "daemon", *words],
                stdin=stdin.encode(),
                capture_stdout=True,
                capture_stderr=True,
                check=False,
                env=env,
            )

    # ---- jobs and allocations ------------------------------------------------------------------

    def processes(self, alloc_id: str = "") -> list[int]:
        """Return the process IDs of the daemon's tasks, or of one allocation.

        The environment of these processes contains the directory of the daemon.
        """
        mark = os.fsencode(alloc_dir(self.data_dir) / alloc_id)
        return sorted(
            int(entry.name)
            for entry in Path("/proc").iterdir()
            if entry.name.isdecimal() and mark in _environ(entry)
        )

    async def task_pids(self, job_id: str) -> list[int]:
        """Return the processes of a job's desired allocations."""
        found = await self.get(f"/v1/job/{job_id}/allocations")
        wanted = [alloc["ID"] for alloc in found if alloc["DesiredStatus"] == "run"]
        return [pid for alloc_id in wanted for pid in self.processes(alloc_id)]


def as_development(directory: Path) -> tuple[str, ...]:
    """Return flags for a daemon outside of development mode that runs tasks as in that mode."""
    file = directory / "tasks.toml"
    file.write_text('raw_exec = true\nraw_exec_root = true\ntask_users = ["*"]\n')
    return "--config", str(file)


@asynccontextmanager
async def open_steward(
    directory: Path, *flags: str, executed: bool = False
) -> AsyncIterator[Steward]:
    """Run a daemon with these flags while the block runs."""
    steward = Steward(directory, flags, executed=executed)
    try:
        await steward.start()
        yield steward
    finally:
        with trio.CancelScope(shield=True):
            await steward.close()
    assert check(store_dir(steward.data_dir)) == []


def _environ(process: Path) -> bytes:
    try:
        return (process / "environ").read_bytes()
    except OSError:  # the process has ended, or belongs to another user
        return b""


def _good(answer: httpx.Response) -> httpx.Response:
    assert answer.is_success, f"{answer.request.method} {answer.url}: {answer.text}"
    return answer


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
