"""Simulate the lives of daemons: by each seed other things happen to one, and its promises must hold.

    python -m bench.simulate [--seeds 2000] [--first 0] [--steps 60]
    python -m bench.simulate --seed 17

The second runs one seed again and prints everything that happened. The exit status is 1 when a promise
was broken. See `tests/simulation`.
"""

import argparse
import logging
import os
import sys
import tempfile
import time
from pathlib import Path

from tests.simulation.order import fixed_hashes, has_fixed_hashes
from tests.simulation.scenario import STEPS, Broken, run

MEMORY = Path("/dev/shm")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args()
    if not has_fixed_hashes():
        os.execve(
            sys.executable, [sys.executable, "-m", "bench.simulate", *sys.argv[1:]], fixed_hashes()
        )
    logging.disable()
    if options.seed is not None:
        return one(options.seed, options.steps, loud=True)
    began, bad = time.perf_counter(), 0
    for seed in range(options.first, options.first + options.seeds):
        bad += one(seed, options.steps)
    print(f"{options.seeds} seeds, {bad} broke a promise, {time.perf_counter() - began:.0f} s")
    return int(bad > 0)


def one(seed: int, steps: int, *, loud: bool = False) -> int:
    """Run a seed; return 1 when it broke a promise, after printing how."""
    with tempfile.TemporaryDirectory(prefix="steward-simulation-", dir=place()) as name:
        try:
            trace = run(seed, Path(name), steps)
        except Broken as error:
            print(*error.trace, *error.faults, sep="\n")
            print(
                f"seed {seed} broke a promise: python -m bench.simulate --seed {seed} --steps {steps}",
                flush=True,
            )
            return 1
    if loud:
        print(*trace, sep="\n")
    return 0


def place() -> Path | None:
    """Return where files are in memory, if there is such a place: what is lost here is no loss."""
    return MEMORY if os.access(MEMORY, os.W_OK) else None


if __name__ == "__main__":
    sys.exit(main())
