"""A daemon for kills: runs a node in a separate process up to a given point.

    python -m tests.parts.runner.killable_node DATA_DIR POINT SCRIPT

It places a batch job of that script, which restarts twice on failure. At `before-spawn` or
`after-spawn` it kills itself around the start of the task. At `unrecorded` it keeps running without
storing a report, and at `recorded` it keeps running. It prints a line when the task is stored as
running.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import trio

from daemon.launcher.client import Launcher
from daemon.runner.core.status_report import ReportQueue
from storage.records.base import SECOND
from storage.records.task import RestartPolicy
from storage.store import open_store
from tests.parts.runner.world import batch, open_world, script
from tests.samples import NOW

TWICE = RestartPolicy(attempts=2, interval=3600 * SECOND, delay=SECOND // 20, mode="fail")


def alloc_id_in(data_dir: Path) -> str:
    """Return the id of the only allocation."""
    return str(uuid5(NAMESPACE_URL, str(data_dir)))


def prepare(point: str) -> None:
    start = Launcher.start

    async def die(*args: Any, **fields: Any) -> tuple[int, int]:
        if point == "after-spawn":
            await start(*args, **fields)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    if point.endswith("-spawn"):
        Launcher.start = die
    if point == "unrecorded":
        ReportQueue.add = lambda self, report, *, within=0.0: None


async def main(data_dir: Path, text: str) -> None:
    async with (
        open_store(data_dir, cluster_id="cluster", now=NOW) as store,
        open_world(store, data_dir) as world,
    ):
        alloc_id = alloc_id_in(data_dir)
        await world.place(batch(script(text, restart_policy=TWICE)), alloc_id=alloc_id)
        await world.until_status(alloc_id, "running")
        os.write(sys.stdout.fileno(), b"running\n")
        await trio.sleep_forever()


if __name__ == "__main__":
    prepare(sys.argv[2])
    trio.run(main, Path(sys.argv[1]), sys.argv[3])
