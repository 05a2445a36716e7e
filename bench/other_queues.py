"""Many short jobs: Steward compared with other job queues for one host.

    python -m bench.other_queues [--jobs 500] [--rounds 3] [--only NAME,NAME]

The other programs are task-spooler (`tsp` or `ts`), GNU parallel, pueue and HyperQueue (`hq`). The
script names those that are not on the PATH. The programs run `/bin/true` alternately, with four
concurrent jobs and otherwise default settings. The script prints the rate of each program, also
relative to the fork+exec rate in the same round.

Then each program runs jobs that write their beginning and end to a ledger. When a quarter of the
jobs have begun, the process that holds the queue is killed with SIGKILL. It is then continued as
the documentation of the program says. The ledger shows which jobs never began (lost), which did not
end (cut), and which began more than once (doubled).
"""

import argparse
import http.client
import json
import os
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from bench.limits import fork_exec_per_s

AT_ONCE = 4
_DEADLINE = 300.0  # seconds for one round
_QUIET = 5.0  # seconds without a new line in the ledger, after which no more lines are expected
_POLL = 0.02
Command = Sequence[str]


class Rival:
    """A program with a queue of jobs, in one directory."""

    name = ""
    programs: tuple[str, ...] = ()  # names of the program; one of them must be on the PATH

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.env = {**os.environ, "HOME": str(directory), "TMPDIR": str(directory)}

    @classmethod
    def program(cls) -> str | None:
        """Return the path of the program, or None if it is not on the PATH."""
        return next(filter(None, map(shutil.which, cls.programs)), None)

    def start(self) -> None:
        """Start the processes that jobs need."""

    def submit(self, commands: Sequence[Command]) -> None:
        """Submit jobs, and return when all are accepted."""
        raise NotImplementedError

    def wait(self) -> None:
        """Wait until all submitted jobs have ended."""
        raise NotImplementedError

    def kill(self) -> None:
        """Kill the process that holds the queue, but not the jobs."""
        raise NotImplementedError

    def go_on(self) -> None:
        """Continue after a kill, as the program's documentation describes."""
        self.start()

    def stop(self) -> None:
        """Stop all processes of the program."""
        with suppress(ProcessLookupError):  # the process has ended
            self.kill()

    def run(self, *words: str) -> str:
        """Run the program and return its output."""
        program = self.program()
        assert program is not None
        done = subprocess.run([program, *words], env=self.env, stdout=-1, stderr=-3, check=False)
        return done.stdout.decode()


class TaskSpooler(Rival):
    """task-spooler: one call of the program submits one job."""

    name, programs = "task-spooler", ("tsp", "ts")

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.env["TS_SOCKET"] = str(directory / "socket")
        self._ids: list[str] = []

    def start(self) -> None:
        variable = f"TS_SOCKET={self.directory}/socket"
        name = Path(str(self.program())).name
        before = _processes(name, variable)
        self.run("-S", str(AT_ONCE))  # starts the server
        (self._server,) = _processes(name, variable) - before

    def submit(self, commands: Sequence[Command]) -> None:
        self._ids += [self.run(*command).strip() for command in commands]

    def wait(self) -> None:
        for identifier in self._ids[-2 * AT_ONCE :]:
            self.run("-w", identifier)

    def kill(self) -> None:
        os.kill(self._server, signal.SIGKILL)


class Parallel(Rival):
    """GNU parallel: one process reads a file of commands, and logs those that have ended."""

    name, programs = "GNU parallel", ("parallel",)

    def start(self) -> None:
        (self.directory / ".parallel").mkdir(exist_ok=True)
        (self.directory / ".parallel/will-cite").touch()

    def submit(self, commands: Sequence[Command]) -> None:
        (self.directory / "commands").write_text("".join(f"{shlex.join(c)}\n" for c in commands))
        self._begin()

    def wait(self) -> None:
        self._process.wait()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def go_on(self) -> None:
        self._begin("--resume")

    def _begin(self, *more: str) -> None:
        words = [
            str(self.program()),
            "-j",
            str(AT_ONCE),
            "--joblog",
            f"{self.directory}/log",
            *more,
        ]
        with open(self.directory / "commands") as file:
            self._process = subprocess.Popen(words, stdin=file, env=self.env, stdout=-3, stderr=-3)


class Pueue(Rival):
    """pueue: a daemon; one call of its client submits one job."""

    name, programs = "pueue", ("pueue",)

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        for kind in ("CONFIG", "DATA", "RUNTIME"):
            place = directory / kind.lower()
            place.mkdir(mode=0o700, exist_ok=True)
            self.env["XDG_RUNTIME_DIR" if kind == "RUNTIME" else f"XDG_{kind}_HOME"] = str(place)

    def start(self) -> None:
        words = [str(shutil.which("pueued"))]
        self._process = subprocess.Popen(words, env=self.env, stdout=-3, stderr=-3)
        _until(lambda: "Group" in self.run("status"))
        self.run("parallel", str(AT_ONCE))
        self.run("start")

    def submit(self, commands: Sequence[Command]) -> None:
        for command in commands:
            self.run("add", "--", shlex.join(command))

    def wait(self) -> None:
        self.run("wait", "--all", "--quiet")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


class HyperQueue(Rival):
    """HyperQueue: a server and a worker; one call of the client submits one job."""

    name, programs = "HyperQueue", ("hq",)

    def start(self) -> None:
        journal = f"--journal={self.directory}/journal"
        self._server = self._begin("server", "start", journal)
        _until(lambda: "Server UID" in self.run("server", "info"))
        self._worker = self._begin("worker", "start", f"--cpus={AT_ONCE}")
        _until(lambda: "RUNNING" in self.run("worker", "list"))

    def submit(self, commands: Sequence[Command]) -> None:
        for command in commands:
            self.run("submit", *command)

    def wait(self) -> None:
        self.run("job", "wait", "all")

    def kill(self) -> None:
        self._server.kill()
        self._server.wait()

    def stop(self) -> None:
        super().stop()
        self._worker.kill()
        self._worker.wait()

    def _begin(self, *words: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([str(self.program()), *words], env=self.env, stdout=-3, stderr=-3)


class Steward(Rival):
    """Steward: a daemon; four clients dispatch one child with each call."""

    name = "Steward, one call per job"

    @classmethod
    def program(cls) -> str | None:
        return sys.executable

    def start(self) -> None:
        words = ["-m", "daemon", "agent", "--dev", "--port=0", f"--data-dir={self.directory}/data"]
        with open(self.directory / "log", "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, *words],
                stdout=-1,
                stderr=log,
                env=self.env,
                start_new_session=True,  # so that it leads its session, like a service
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline().decode()
        self._port = int(line.rpartition(":")[2].split()[0].strip("/,"))
        _until(lambda: any(node["Status"] == "ready" for node in self._ask("GET", "/v1/nodes")))

    def submit(self, commands: Sequence[Command]) -> None:
        self._count = len(commands)
        self._register(commands)
        numbers, lock = iter(range(len(commands))), threading.Lock()

        def send() -> None:
            while True:
                with lock:
                    number = next(numbers, None)
                if number is None:
                    return
                self._ask("POST", "/v1/job/rival/dispatch", _dispatch(number))

        threads = [threading.Thread(target=send) for _ in range(AT_ONCE)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _register(self, commands: Sequence[Command]) -> None:
        (command, *_) = {tuple(_template(command)) for command in commands}
        task = {
            "Name": "main",
            "Driver": "raw_exec",
            "Config": {"command": command[0], "args": list(command[1:])},
            "Resources": {"CPU": 1, "MemoryMB": 10},
            "LogConfig": {"MaxFiles": 1, "MaxFileSizeMB": 1},
        }
        group = {"Name": "main", "Tasks": [task], "EphemeralDisk": {"SizeMB": 10}}
        job = {
            "ID": "rival",
            "Type": "batch",
            "Datacenters": ["*"],
            "TaskGroups": [group],
            "ParameterizedJob": {"MetaRequired": ["number"]},
            "Meta": {"steward_children_at_once": str(AT_ONCE)},
        }
        self._ask("POST", "/v1/jobs", {"Job": job})

    def wait(self) -> None:
        def ended() -> bool:
            children = self._ask("GET", "/v1/job/rival/summary")["Children"] or {}
            return int(children.get("Dead", 0)) >= self._count

        _until(ended)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()

    def _ask(self, method: str, path: str, body: object = None) -> Any:  # noqa: ANN401  # JSON
        data = body if isinstance(body, bytes) else json.dumps(body).encode() if body else None
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_DEADLINE)
        with suppress(ConnectionError):  # no answer; the caller tries again
            connection.request(method, path, data)
            answer = connection.getresponse()
            response_body = answer.read()
            connection.close()
            if answer.status >= http.client.BAD_REQUEST:
                raise RuntimeError(f"{method} {path}: {answer.status} {response_body[:200]!r}")
            return json.loads(response_body) if data is None else response_body
        return []


class StewardBulk(Steward):
    """Steward with bulk dispatch: one call dispatches all children."""

    name = "Steward, one call for all"

    def submit(self, commands: Sequence[Command]) -> None:
        self._count = len(commands)
        self._register(commands)
        lines = b"".join(
            json.dumps(_dispatch(number)).encode() + b"\n" for number in range(len(commands))
        )
        self._ask("POST", "/v1/job/rival/dispatch/bulk", lines)


def _dispatch(number: int) -> dict[str, object]:
    return {"Meta": {"number": str(number)}}


def _template(command: Command) -> list[str]:
    """Return the command of all jobs. The last word, a number, comes from the metadata."""
    return [*command[:-1], "${NOMAD_META_number}"] if command[-1].isdecimal() else [*command]


RIVALS: tuple[type[Rival], ...] = (TaskSpooler, Parallel, Pueue, HyperQueue, StewardBulk, Steward)


def _processes(name: str, variable: str) -> set[int]:
    """Return the IDs of the processes with this name and with this text in their environment."""
    pids = set()
    for path in Path("/proc").iterdir():
        with suppress(OSError):  # the process has ended
            if not path.name.isdecimal() or (path / "comm").read_text().strip() != name:
                continue
            if variable.encode() in (path / "environ").read_bytes():
                pids.add(int(path.name))
    return pids


def _until(holds: Callable[[], bool], within: float = _DEADLINE) -> None:
    end = time.monotonic() + within
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(_POLL)


@contextmanager
def started(kind: type[Rival]) -> Iterator[Rival]:
    """Run a program in a new directory while the block runs."""
    with tempfile.TemporaryDirectory(prefix="rival-", ignore_cleanup_errors=True) as directory:
        rival = kind(Path(directory))
        rival.start()
        try:
            yield rival
        finally:
            rival.stop()


def rate(kind: type[Rival], jobs: int) -> float:
    """Return the jobs per second that a program accepts and completes."""
    with started(kind) as rival:
        began = time.perf_counter()
        rival.submit([["/bin/true"]] * jobs)
        rival.wait()
        return jobs / (time.perf_counter() - began)


def survival(kind: type[Rival], jobs: int) -> str:
    """Kill a program in the middle of its jobs; return a summary of the ledger."""
    with started(kind) as rival:
        ledger = rival.directory / "ledger"
        ledger.touch()
        text = f"echo b $0 >>{ledger}; sleep 0.2; echo e $0 >>{ledger}"
        rival.submit([["/bin/sh", "-c", text, str(number)] for number in range(jobs)])

        def lines() -> list[str]:
            return ledger.read_text().splitlines()

        _until(lambda: len(lines()) >= jobs // 2)  # two lines for each job
        rival.kill()
        rival.go_on()
        seen, since = 0, time.monotonic()
        while time.monotonic() - since < _QUIET:
            if len(lines()) != seen:
                seen, since = len(lines()), time.monotonic()
            time.sleep(_POLL)
        began = Counter(line[2:] for line in lines() if line.startswith("b"))
        ended = {line[2:] for line in lines() if line.startswith("e")}
        lost, cut = jobs - len(began), len(began.keys() - ended)
        doubled = sum(1 for number in began.values() if number > 1)
        return f"{lost} lost, {cut} cut, {doubled} doubled of {jobs}"


def main() -> None:
    """Print the rates and the results of the kills."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    selected = [
        rival for rival in RIVALS if not options.only or rival.name in options.only.split(",")
    ]
    present = [rival for rival in selected if rival.program()]
    for absent in (rival for rival in selected if rival not in present):
        print(f"{absent.name}: absent")
    rates: dict[str, list[float]] = {rival.name: [] for rival in present}
    shares: dict[str, list[float]] = {rival.name: [] for rival in present}
    for _ in range(options.rounds):
        for rival in present:
            limit, starts_per_s = fork_exec_per_s(), rate(rival, options.jobs)
            rates[rival.name].append(starts_per_s)
            shares[rival.name].append(starts_per_s / limit)
    for rival in present:
        outcome = survival(rival, 200)
        starts_per_s, share = (
            statistics.median(rates[rival.name]),
            statistics.median(shares[rival.name]),
        )
        print(
            f"{rival.name}: {starts_per_s:.0f} per s, {share:.2f} x fork+exec; kill -9: {outcome}",
            flush=True,
        )


if __name__ == "__main__":
    main()
