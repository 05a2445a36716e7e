"""Simulate the lives of daemons: by each seed other things happen to one, and its promises must hold.

    python -m bench.simulate [--seeds 2000] [--first 0] [--steps 60] [--workers 1]
    python -m bench.simulate --seed 17

The second runs one seed again and prints everything that happened. The exit status is 1 when a promise
was broken. Interrupted, it begins no other life, and says how many were lived. See `tests/simulation`.
"""

import argparse
import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path

from tests.simulation.order import fixed_hashes, has_fixed_hashes
from tests.simulation.scenario import STEPS, Broken, run

MEMORY = Path("/dev/shm")
_PROGRESS = 100  # lives between two lines that say how far it is


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--workers", type=int, default=1, help="processes that live at a time")
    options = parser.parse_args()
    if options.workers < 1:
        parser.error(f"--workers is {options.workers}: give at least 1")
    if not has_fixed_hashes():
        os.execve(
            sys.executable, [sys.executable, "-m", "bench.simulate", *sys.argv[1:]], fixed_hashes()
        )
    logging.disable()
    if options.seed is not None:
        trace, faults = live(options.seed, options.steps)
        print(*trace, *faults, sep="\n")
        return int(bool(faults))
    signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))
    seeds = range(options.first, options.first + options.seeds)
    return live_all(seeds, options.steps, options.workers)


def live_all(seeds: Iterable[int], steps: int, workers: int) -> int:
    """Live all seeds, in their order, in so many processes; return the status to exit with.

    Prints how each that broke a promise did so. A worker that dies ends the run with an error.
    """
    began, lived, bad, status = time.perf_counter(), 0, 0, 0

    def tell() -> None:
        passed = time.perf_counter() - began
        print(f"{lived} seeds, {bad} broke a promise, {passed:.0f} s", flush=True)

    try:
        with (
            ProcessPoolExecutor(workers, initializer=_leave_signals) as pool,
            closing(pool.map(partial(live, steps=steps), seeds)) as lives,
        ):
            for trace, faults in lives:
                lived, bad = lived + 1, bad + bool(faults)
                if faults:
                    print(*trace, *faults, sep="\n", flush=True)
                if lived % _PROGRESS == 1:
                    tell()
    except KeyboardInterrupt:
        status = 130
    tell()
    return status or int(bad > 0)


def _leave_signals() -> None:
    """Leave it to the owner to say when a worker ends."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def live(seed: int, steps: int) -> tuple[list[str], list[str]]:
    """Live a seed; return what happened, and what broke a promise with how to live it again."""
    with tempfile.TemporaryDirectory(prefix="steward-simulation-", dir=place()) as name:
        try:
            return run(seed, Path(name), steps), []
        except Broken as error:
            again = f"python -m bench.simulate --seed {seed} --steps {steps}"
            return error.trace, [*error.faults, f"seed {seed} broke a promise: {again}"]


def place() -> Path | None:
    """Return where files are in memory, if there is such a place: what is lost here is no loss."""
    return MEMORY if os.access(MEMORY, os.W_OK) else None


if __name__ == "__main__":
    sys.exit(main())
