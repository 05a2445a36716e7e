"""Simulated runs of the daemon: each seed gives different operations, and all promises must hold.

    python -m bench.simulate [--seeds 2000] [--first 0] [--steps 60] [--workers 1]
    python -m bench.simulate --seed 17

The second form repeats one seed and prints its complete trace. The exit status is 1 if a promise
was broken. After an interrupt, no further run starts, and the output gives the number of completed
runs. See `tests/simulation`.
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
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from tests.simulation.order import fixed_hashes, has_fixed_hashes
from tests.simulation.scenario import STEPS, Broken, run

MEMORY = Path("/dev/shm")
_PROGRESS = 100  # runs between two progress lines


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument(
        "--workers", type=int, default=1, help="number of processes that simulate concurrently"
    )
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
    """Run all seeds in order with `workers` processes; return the exit status.

    Prints each broken promise. A worker that dies ends the run with an error.
    """
    began, lived, bad, status = time.perf_counter(), 0, 0, 0

    def tell() -> None:
        passed = time.perf_counter() - began
        print(f"{lived} seeds, {bad} broke a promise, {passed:.0f} s", flush=True)

    try:
        with ExitStack() as stack:
            pool = stack.enter_context(ProcessPoolExecutor(workers, initializer=_leave_signals))
            # After an interrupt, no worker takes another seed, even if the cleanup is incomplete.
            stack.callback(pool.shutdown, wait=False, cancel_futures=True)
            for trace, faults in pool.map(partial(live, steps=steps), seeds):
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
    """Ignore signals in a worker; its parent decides when it ends."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def live(seed: int, steps: int) -> tuple[list[str], list[str]]:
    """Run the simulation of a seed.

    Return the lines of its trace, and the broken promises with the command that repeats the run.
    The second list is empty if no promise was broken.
    """
    with tempfile.TemporaryDirectory(prefix="steward-simulation-", dir=place()) as name:
        try:
            return run(seed, Path(name), steps), []
        except Broken as error:
            again = f"python -m bench.simulate --seed {seed} --steps {steps}"
            return error.trace, [*error.faults, f"seed {seed} broke a promise: {again}"]


def place() -> Path | None:
    """Return a directory in memory, if the host has one, because the files need not survive."""
    return MEMORY if os.access(MEMORY, os.W_OK) else None


if __name__ == "__main__":
    sys.exit(main())
