"""Run time of short CLI commands, compared with a no-op Python program.

    python -m bench.commands [--rounds 25]

The commands run alternately, so that other load on the host affects all of them equally.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.reads import daemon

STEWARD = str(Path(sys.executable).with_name("steward"))
BARE = [sys.executable, "-c", "pass"]
COMMANDS = {
    "python -c pass": BARE,
    "steward version": [STEWARD, "version"],
    "steward job status": [STEWARD, "job", "status"],
    "steward job run --help": [STEWARD, "job", "run", "--help"],
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=25)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="steward-commands-") as name,
        daemon(Path(name)) as (port, _pid),
    ):
        measure(f"http://127.0.0.1:{port}", options.rounds)


def measure(url: str, rounds: int) -> None:
    """Print the median and the minimum of `rounds` runs of each command, in milliseconds."""
    took: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(rounds):
        for name, command in COMMANDS.items():
            took[name].append(_once(command, url))
    bare = statistics.median(took["python -c pass"])
    for name, times in took.items():
        middle = statistics.median(times)
        print(
            f"{name:24} median {middle:6.0f} ms, minimum {min(times):4.0f} ms; "
            f"{middle - bare:+.0f} ms compared with python -c pass"
        )


def _once(command: list[str], url: str) -> float:
    begun = time.perf_counter()
    subprocess.run(
        command,
        check=True,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "STEWARD_ADDR": url},
    )
    return (time.perf_counter() - begun) * 1000


if __name__ == "__main__":
    main()
