"""Malformed inputs for all parsers of external data, to find inputs that do harm.

    python -m bench.fuzz [--inputs 1000000] [--seed 1] [TARGET]...

The script divides the inputs among the targets of `tests/fuzz`: parsers in this process, and
requests and WebSockets to a daemon. It prints each target's findings, the time of its slowest
input, and the memory that it used and retained. The exit status is 1 if there is a finding.
"""

import argparse
import gc
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from hypothesis import HealthCheck, Phase, given, seed, settings

from bench.idle import spent
from storage.check import check
from tests.fuzz.frames import conversations
from tests.fuzz.requests import Asked
from tests.fuzz.send import Attack
from tests.fuzz.targets import TARGETS
from tests.fuzz.vault_requests import any_requests
from tests.service.daemon import environment

API, SOCKETS = "requests", "WebSockets"
SHARES = {  # inputs of each target, per thousand inputs
    API: 60,
    SOCKETS: 15,
    "job files": 200,
    "job files of version 1": 55,
    "values of variables": 50,
    "forms of job files": 50,
    "jobs": 100,
    "filters": 100,
    "rules of job policies": 60,
    "cron": 100,
    "tokens of a directory": 60,
    "tokens of our own": 40,
    "settings in a file": 50,
    "settings in variables": 10,
    "policies": 30,
    "templates": 20,
}
PARTS = 10
GROWTH = 20  # permitted growth in MiB in the second half, when the caches are already full
SHOWN = 20  # findings that are printed per target


class Found(NamedTuple):
    """The results of one target of the fuzz test."""

    inputs: int
    faults: list[str]
    seconds: float  # CPU time
    slowest_ms: float
    largest_mib: float | None  # largest rise of peak memory for one input
    kept_mib: float


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("targets", nargs="*", choices=[[], *SHARES], metavar="TARGET")
    options = parser.parse_args()
    print(
        f"{'':24}{'inputs':>9}{'findings':>10}{'cpu s':>8}{'slowest ms':>12}{'most MiB':>10}{'kept':>7}"
    )
    number_of_faults = 0
    for name in options.targets or SHARES:
        one = fuzz(name, options.inputs * SHARES[name] // 1000, options.seed)
        most = "" if one.largest_mib is None else f"{one.largest_mib:.1f}"
        print(
            f"{name:24}{one.inputs:9}{len(one.faults):10}{one.seconds:8.0f}{one.slowest_ms:12.0f}"
            f"{most:>10}{one.kept_mib:7.1f}",
            flush=True,
        )
        for fault in one.faults[:SHOWN]:
            print(fault)
        number_of_faults += len(one.faults)
    return 1 if number_of_faults else 0


def fuzz(name: str, count: int, number: int) -> Found:
    if name in TARGETS:
        return texts(name, count, number)
    with tempfile.TemporaryDirectory(prefix="steward-fuzz-") as directory:
        return daemon(requests if name == API else talks, Path(directory), count, number)


# --- texts ---


def texts(name: str, count: int, number: int) -> Found:
    """Parse texts in this process; return the results, with each kind of fault only once."""
    target, faults = TARGETS[name], dict[str, str]()
    for text in target.texts(number + 1, 1000):  # fill the caches first
        attempt(target.look, text)
    slowest = largest = middle = 0.0
    begun, most = time.process_time(), peak()
    for index, text in enumerate(target.texts(number, count)):
        started = time.process_time()
        if fault := attempt(target.look, text):
            faults.setdefault(fault, f"{fault}\n    of {text!r}")
        slowest = max(slowest, time.process_time() - started)
        largest, most = max(largest, peak() - most), peak()
        if index == count // 2:
            middle = resident()
    took = time.process_time() - begun
    kept = resident() - middle
    faults_found = [*faults.values(), *[f"retains {kept:.0f} MiB"] * (kept > GROWTH)]
    return Found(count, faults_found, took, 1000 * slowest, largest, kept)


def attempt(look: Callable[[str], bool], text: str) -> str:
    """Parse a text; return the fault and its location, or an empty string."""
    try:
        look(text)
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} at {place.filename}:{place.lineno}: {error}"[:200]
    return ""


def peak() -> float:
    """Return the peak memory of this process in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def resident(pid: int | str = "self") -> float:
    """Collect garbage in this process; return the resident memory of the process `pid` in MiB."""
    gc.collect()
    status = Path(f"/proc/{pid}/status")
    for line in status.read_text().splitlines() if status.exists() else ():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return 0


# --- daemon ---


@contextmanager
def running(directory: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "daemon", "agent", "--dev", "--dev-cloud", "--port", "0"),
                *("--data-dir", str(directory / "data")),
            ],
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment(STEWARD_DEV_CLOUD_PORT="0"),
        )
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().decode().rpartition(" ")[2].strip()
        finally:
            process.kill()
            process.wait()


Part = Callable[[Attack, int, int, dict[str, str]], float]


def daemon(part: Part, directory: Path, count: int, number: int) -> Found:
    """Send the inputs of `part` to a daemon in batches; check the daemon after each batch."""
    faults, sizes, slowest = dict[str, str](), [], 0.0
    with running(directory) as (process, address):
        target = Attack(address)
        for round_number in range(PARTS):
            slowest = max(
                slowest, part(target, count // PARTS, number * PARTS + round_number, faults)
            )
            sizes.append(resident(process.pid))
        took = spent(process.pid)
        target.end()
        process.send_signal(signal.SIGTERM)
        status = process.wait(60)
    text = (directory / "log").read_text()
    kept = sizes[-1] - sizes[PARTS // 2]
    faults_found = [
        *faults.values(),
        *[f"ended with {status}"] * (status != 0),
        *[line for line in text.splitlines() if "Traceback" in line or " ERROR " in line][:SHOWN],
        *check(directory / "data"),
        *[f"retains {kept:.0f} MiB"] * (kept > GROWTH),
    ]
    return Found(count, faults_found, took, 1000 * slowest, None, kept)


def requests(target: Attack, count: int, number: int, faults: dict[str, str]) -> float:
    """Send `count` requests and record their faults; return the slowest latency in seconds."""
    slowest = 0.0

    @seed(number)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(asked=any_requests())
    def each(request: Asked) -> None:
        nonlocal slowest
        slowest = max(slowest, timed(partial(target.fault, request), f"{request}", faults))

    each()
    return slowest


def talks(target: Attack, count: int, number: int, faults: dict[str, str]) -> float:
    """Open `count` WebSockets and record their faults; return the longest duration in seconds."""
    alloc_id = target.start_talker()
    return max(
        timed(partial(target.fault_of_talk, sent, alloc_id), f"{sent}", faults)
        for sent in conversations(number, count)
    )


def timed(send: Callable[[], str | None], what: str, faults: dict[str, str]) -> float:
    """Send an input, record each kind of fault once, and return the duration in seconds.

    `what` describes the input in a fault.
    """
    begun = time.perf_counter()
    if fault := send():
        faults.setdefault(fault[:80], f"{fault}\n    after {what[:2000]}")
    return time.perf_counter() - begun


if __name__ == "__main__":
    sys.exit(main())
