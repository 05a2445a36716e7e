"""CPU time of the wrapper of a short task on a cluster host.

    python -m bench.wrapper [--jobs 50] [--turns 3] [--output] [--trace] [WRAPPER...]

Each WRAPPER is a file with a wrapper script. Without one, the script measures the current wrapper.
Several wrappers run by turns. The process only answers the requests of wrappers, and runs one
wrapper after the other. The sums include all processes of a wrapper and its task (`exec true`).
"""

import argparse
import json
import os
import resource
import secrets
import signal
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from ctypes import CDLL
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from tempfile import TemporaryFile
from typing import ClassVar
from urllib.parse import urlsplit

from bench.limits import fork_exec_per_s
from daemon.runner.core.driver import Attempt
from daemon.runner.core.task_dir import SECRETS, SHARED
from daemon.runner.drivers.slurm import bundle, submission
from storage.records.task import LogConfig

_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER: processes that the wrapper leaves become our children
_TASK = "main"
_PACKAGE = "daemon.runner.drivers.slurm"


class Answers(BaseHTTPRequestHandler):
    """The daemon's side of one short task."""

    protocol_version = "HTTP/1.1"
    attempt: Attempt
    home: str
    requests: ClassVar[list[str]] = []

    def log_message(self, *words: object) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        """Answer a poll for commands after a long time."""
        time.sleep(1)  # in a thread; a daemon also holds this request open
        self._answer(b"")

    def do_POST(self) -> None:
        """Answer a claim with a bundle, and everything else with a short text."""
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        url = urlsplit(self.path)
        self.requests.append(url.path.rpartition("/")[2])
        if not url.path.endswith("/claim"):
            self._answer(b"ok\n")
            return
        with TemporaryFile() as file:
            bundle.pack(file, self.attempt, self.home, "a1.0.secret")
            file.seek(0)
            self._answer(file.read())

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _attempt(directory: Path, text: str) -> Attempt:
    for name in (f"{SHARED}/data", f"{SHARED}/logs", f"{SHARED}/tmp", f"{_TASK}/local"):
        (directory / name).mkdir(parents=True)
    (directory / _TASK / SECRETS).mkdir()
    env = {f"NOMAD_VARIABLE_{number}": "x" * 20 for number in range(40)}
    return Attempt(
        alloc_id="a1",
        task=_TASK,
        number=0,
        directory=str(directory),
        config={"command": "/bin/sh", "args": ["-c", text]},
        env={"PATH": submission.PATH, **env},
        log=LogConfig(),
    )


def _spent() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _reap() -> None:
    """Wait for all processes that wrappers left."""
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _run(script: Path, env: dict[str, str], count: int, prefix: Sequence[str] = ()) -> float:
    """Return the CPU time of a wrapper in ms."""
    before = _spent()
    for _ in range(count):
        done = subprocess.run(  # without output, as a cluster runs it
            [*prefix, str(script)],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )
        assert done.returncode in (0, 143), done.returncode
        _reap()
    return 1000 * (_spent() - before) / count


def main(wrappers: list[str], jobs: int, turns: int, *, has_output: bool, is_traced: bool) -> None:
    CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    print(json.dumps({"fork_exec_per_s": round(fork_exec_per_s())}))
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        text = "echo out; echo err >&2" if has_output else "exec true"
        Answers.attempt = _attempt(place / "alloc", text)
        Answers.home = str(place / f"steward-a1-{_TASK}")
        server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        given = submission.claim_variables(["a1.0." + secrets.token_hex(32)], directory, _TASK)
        env = {
            **submission.environment_of(url=url, ca=""),
            **given,
            "STEWARD_GRACE": "0",
            "HOME": "/",
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_USER": "root",
            "SLURMD_NODENAME": "node1",
        }
        scripts = []
        for number, name in enumerate(wrappers or [""]):
            wrapper = Path(name) if name else resources.files(_PACKAGE).joinpath("wrapper.sh")
            script = place / f"script{number}"
            script.write_text(wrapper.read_text())
            script.chmod(0o700)
            scripts.append((name or "current", script))
        if is_traced:
            for name, script in scripts:
                log = place / "trace"
                _run(script, env, 1, ["strace", "-f", "-qq", "-e", "trace=execve", "-o", str(log)])
                programs = [
                    line.split('"')[1]
                    for line in log.read_text().splitlines()
                    if " = 0" in line and "execve(" in line
                ]
                print(
                    json.dumps(
                        {"wrapper": name, "programs": programs, "requests": [*Answers.requests]}
                    )
                )
                Answers.requests.clear()
        spent: dict[str, list[float]] = {name: [] for name, _ in scripts}
        for _ in range(turns):
            for name, script in scripts:
                spent[name].append(_run(script, env, jobs))
        for name, values in spent.items():
            print(
                json.dumps(
                    {
                        "wrapper": name,
                        "cpu_ms": round(statistics.median(values), 1),
                        "turns": [round(v, 1) for v in values],
                    }
                )
            )


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wrappers", nargs="*")
    parser.add_argument("--jobs", type=int, default=50)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--output", action="store_true")
    parser.add_argument("--trace", action="store_true")
    given = parser.parse_args()
    main(given.wrappers, given.jobs, given.turns, has_output=given.output, is_traced=given.trace)
