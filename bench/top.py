"""CPU use of `steward top`, and of the daemon that answers it, with many allocations.

    python -m bench.top [--allocations 500] [--seconds 20]

For comparison, it also measures the library rich, which draws a table of 40 rows once a second.
"""

import argparse
import fcntl
import io
import os
import pty
import select
import signal
import struct
import sys
import tempfile
import termios
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import msgspec

from bench.reads import daemon

TICKS = os.sysconf("SC_CLK_TCK")
ROWS, COLUMNS = 45, 120
ROOM = (
    *("--memory-total-mb", "200000", "--cpu-total-mhz", "200000"),
    *("--disk-total-mb", "500000"),
)
SETTLES_WITHIN = 300.0  # timeout in seconds for all tasks to run or to stop


def main() -> None:
    """Start the allocations, measure `steward top` in a pseudo-terminal, and print the results."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--allocations", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="steward-top-") as name,
        daemon(Path(name), *ROOM) as (port, daemon_pid),
    ):
        url = f"http://127.0.0.1:{port}"
        run_jobs(url, options.allocations)
        pid, terminal = start_top(url)
        drain(terminal, 3.0)
        began = {process: cpu(process) for process in (pid, daemon_pid)}
        written = drain(terminal, options.seconds)
        used = {process: (cpu(process) - began[process]) / options.seconds for process in began}
        os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)
        idle = share(daemon_pid, options.seconds)  # the start of the daemon is over
        stop_jobs(url)
    print(
        f"{options.allocations} allocations, {options.seconds:.0f} s, a screen of {COLUMNS}x{ROWS}"
    )
    print(f"steward top        {used[pid]:7.2%} of a core, {written / options.seconds:.0f} bytes/s")
    print(
        f"daemon             {used[daemon_pid] - idle:+7.2%} of a core, in addition to {idle:.2%}"
    )
    print(f"table by rich      {rich_share():7.2%} of a core, drawn once a second")


def run_jobs(url: str, count: int) -> None:
    """Start `count` sleeping tasks, ten in each job, and wait until all are running."""
    for number in range(count // 10):
        task = {
            "Name": "main",
            "Driver": "raw_exec",
            "Config": {"command": "/bin/sleep", "args": ["3600"]},
            "Resources": {"CPU": 10, "MemoryMB": 10},
        }
        group = {"Name": "g", "Count": 10, "Tasks": [task]}
        ask(url, "/v1/jobs", {"Job": {"ID": f"sleeper-{number}", "TaskGroups": [group]}})
    until = time.monotonic() + SETTLES_WITHIN
    while time.monotonic() < until:
        lines = ask(url, "/v1/allocations?task_states=false")
        if sum(line["ClientStatus"] == "running" for line in lines) >= count // 10 * 10:
            return
        time.sleep(1.0)
    raise SystemExit("the allocations are not running")


def stop_jobs(url: str) -> None:
    """Stop all jobs and wait until none of their tasks is running."""
    for job in ask(url, "/v1/jobs"):
        request = urllib.request.Request(f"{url}/v1/job/{job['ID']}", method="DELETE")
        urllib.request.urlopen(request).read()
    until = time.monotonic() + SETTLES_WITHIN
    while time.monotonic() < until:
        lines = ask(url, "/v1/allocations?task_states=false")
        if not any(line["ClientStatus"] == "running" for line in lines):
            return
        time.sleep(1.0)


def ask(url: str, path: str, body: object = None) -> list[dict[str, str]]:
    """Send a request to the daemon; return the decoded response."""
    data = None if body is None else msgspec.json.encode(body)
    with urllib.request.urlopen(urllib.request.Request(f"{url}{path}", data)) as answer:
        documents: list[dict[str, str]] = msgspec.json.decode(answer.read())
        return documents


def start_top(url: str) -> tuple[int, int]:
    """Start `steward top` in a pseudo-terminal; return its process ID and the controlling end."""
    pid, terminal = pty.fork()
    if not pid:
        os.environ["STEWARD_ADDR"] = url
        os.environ["TERM"] = "xterm-256color"
        os.execv(sys.executable, [sys.executable, "-m", "daemon", "top"])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    return pid, terminal


def drain(terminal: int, seconds: float) -> int:
    """Read the terminal output for this many seconds; return its size in bytes."""
    until, read = time.monotonic() + seconds, 0
    while (left := until - time.monotonic()) > 0:
        if select.select([terminal], [], [], left)[0]:
            read += len(os.read(terminal, 65536))
    return read


def cpu(pid: int) -> float:
    """Return the CPU time of a process in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def share(pid: int, seconds: float) -> float:
    """Return the CPU share of a process, in cores."""
    began = cpu(pid)
    time.sleep(seconds)
    return (cpu(pid) - began) / seconds


def rich_share() -> float:
    """Return the CPU time in seconds that rich takes to draw the table once."""
    from rich.console import Console
    from rich.table import Table

    console = Console(file=io.StringIO(), force_terminal=True, width=COLUMNS)

    def drawn() -> None:
        table = Table(*("NAME", "STATE", "ID", "CPU%", "MEMORY", "RST", "AGE", "LAST ERROR"))
        for number in range(ROWS - 5):
            table.add_row(
                f"sleeper-{number}.g[0]", "running", "6ff3f0a1", "0.1", "3M", "0", "1m", ""
            )
        console.print(table)

    return _mean(drawn)


def _mean(work: Callable[[], None], rounds: int = 20) -> float:
    work()
    began = time.process_time()
    for _ in range(rounds):
        work()
    return (time.process_time() - began) / rounds


if __name__ == "__main__":
    main()
