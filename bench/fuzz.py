"""Fuzz the whole API: strange requests by the thousand, none of which may hurt.

    python -m bench.fuzz [--requests 50000] [--seed 1]

Prints what was wrong with an answer, tracebacks in the log, rules of the store that are broken, and
by how much the daemon has grown. The exit status is 1 when anything is wrong.
"""

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings

from storage.check import check
from tests.fuzz.attack import Attack
from tests.fuzz.requests import Asked
from tests.fuzz.secrets_side import any_requests
from tests.service.daemon import environment

PARTS = 10
GROWTH = 20  # MiB that the daemon may grow in the second half: what is kept is bounded by then


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="steward-fuzz-") as name:
        return run(Path(name), options.requests, options.seed)


def run(directory: Path, count: int, number: int) -> int:
    log = directory / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "daemon", "agent", "--dev", "--dev-cloud", "--port", "0"),
                *("--data-dir", str(directory / "data")),
            ],
            stdout=subprocess.PIPE,
            stderr=file,
            env=environment(STEWARD_DEV_CLOUD_PORT="0"),
        )
    assert process.stdout is not None
    address = process.stdout.readline().decode().rpartition(" ")[2].strip()
    faults, sizes, started = [], [], time.monotonic()
    for part in range(PARTS):
        faults += attack(address, count // PARTS, number * PARTS + part)
        sizes.append(resident(process.pid))
    took, grown = time.monotonic() - started, sizes[-1] - sizes[PARTS // 2]
    process.send_signal(signal.SIGTERM)
    status = process.wait(20)
    text = log.read_text()
    faults += [f"ended with {status}"] * (status != 0)
    faults += [line for line in text.splitlines() if "Traceback" in line or "ERROR" in line][:20]
    faults += check(directory / "data")
    faults += [f"grew by {grown} MiB"] * (grown > GROWTH)
    print(f"requests {count}  seconds {took:.0f}  faults {len(faults)}  resident_mib {sizes}")
    for fault in faults[:50]:
        print(fault)
    if faults:
        print(text[-5000:])
    return 1 if faults else 0


def attack(address: str, count: int, number: int) -> list[str]:
    """Send requests; return what was wrong, each kind of it once."""
    target, faults = Attack(address), {}

    @seed(number)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(asked=any_requests())
    def each(asked: Asked) -> None:
        if fault := target.fault(asked):
            faults.setdefault(fault[:80], f"{fault}\n    after {asked}")

    each()
    target.close()
    return list(faults.values())


def resident(pid: int) -> int:
    """Return the memory of a process in MiB."""
    status = Path(f"/proc/{pid}/status")
    for line in status.read_text().splitlines() if status.exists() else ():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) // 1024
    return 0


if __name__ == "__main__":
    sys.exit(main())
