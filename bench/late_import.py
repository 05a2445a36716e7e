"""Longest wait of the event loop during the import of the HTTP server.

    python -m bench.late_import [--times 5] [--cold]

Each run is a new process that imports the modules of an idle daemon. A coroutine then wakes every
0.5 ms while a thread imports the HTTP server, as at the first connection beyond the fast path. If
root runs the script, the processes have real-time priority, so that other programs do not delay
them. With `--cold`, which needs root, the page cache is emptied after the start of the process.
"""

import argparse
import os
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import trio

PAUSE = 0.0005  # seconds between two wakes
QUIET = 0.3  # seconds without an import, for comparison


async def measure(*, is_cold: bool) -> None:
    """Print the longest waits, in ms, before and during the import in this process."""
    # The imports of a daemon until it is ready.
    import daemon.api.routes
    import daemon.api.vault_routes
    import daemon.evals.worker
    import daemon.jobs.periodic
    import daemon.process.parts
    import daemon.runner.node
    import daemon.ui.routes
    import daemon.web.server  # noqa: F401  # only their import matters
    from daemon.web.late_server import STEPS, InstalledPackages, import_steps
    from storage import garbage
    from storage.loop_share import SWITCH_INTERVAL

    packages, gaps = InstalledPackages(), list[float]()

    async def wake() -> None:
        last = time.perf_counter()
        while True:
            await trio.sleep(PAUSE)  # the measured wait
            now = time.perf_counter()
            gaps.append(now - last - PAUSE)
            last = now

    sys.setswitchinterval(SWITCH_INTERVAL)
    if is_cold:
        _empty_page_cache()
    with garbage.short_pauses():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wake)
            await trio.sleep(QUIET)  # the waits without an import
            quiet = max(gaps)
            gaps.clear()
            before = time.perf_counter()
            await garbage.in_thread(partial(import_steps, STEPS, packages.check))
            took = time.perf_counter() - before
            nursery.cancel_scope.cancel()
    longest = ", ".join(f"{1000 * gap:.1f}" for gap in sorted(gaps, reverse=True)[:3])
    print(
        f"import {1000 * took:.0f} ms; longest waits {longest} ms; before {1000 * quiet:.1f} ms",
        flush=True,
    )


def _empty_page_cache() -> None:
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3")


def main() -> None:
    """Run the measurement in new processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--once", action="store_true", help="measure in this process")
    options = parser.parse_args()
    if options.once:
        trio.run(partial(measure, is_cold=options.cold))
        return
    with suppress(PermissionError):  # only root may do this
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    command = [sys.executable, "-m", "bench.late_import", "--once"]
    for _ in range(options.times):
        subprocess.run(command + ["--cold"] * options.cold, check=True)


if __name__ == "__main__":
    main()
