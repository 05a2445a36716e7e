"""Faults of tasks and of the host, which affect no other task (docs/drivers.md, Faults)."""

import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import trio

from daemon.config.data_directory import alloc_dir
from daemon.runner.drivers.process_scan import ProcessScanner
from daemon.runner.drivers.raw_exec import RawExecDriver
from daemon.runner.node import _MOST_SESSIONS
from storage.errors import Refused
from storage.store import Store
from tests import launchers
from tests.parts.runner.test_exec_sessions import Client, run
from tests.parts.runner.world import World, batch, open_world, script, service

LINGER = "exec sleep 600"
DESCRIPTORS = 8 * _MOST_SESSIONS  # more than these sessions and their clients need


async def runs_still(world: World) -> None:
    """Wait until another task has run normally."""
    other = await world.place(batch(script("echo well"), job_id="other"))
    await world.until_done(other)
    assert world.output(other) == "well\n"


# ---- a thousand open sessions ---------------------------------------------------------------------------


async def test_thousand_open_sessions_are_accepted_and_further_ones_refused(world: World) -> None:
    import resource

    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < DESCRIPTORS:
        pytest.skip("the descriptor limit of this host is too low")
    alloc_id = await world.place(service(script(LINGER)))
    await world.until_status(alloc_id, "running")
    clients = [Client() for _ in range(_MOST_SESSIONS)]

    async def talk(client: Client) -> None:
        await world.runner.run_exec_session(alloc_id, "main", ["/bin/cat"], client, tty=False)

    async with trio.open_nursery() as nursery:
        for client in clients:
            client.type("here\n")
            nursery.start_soon(talk, client)
        for client in clients:
            await client.until_seen("here")
        with pytest.raises(Refused, match=f"{_MOST_SESSIONS} exec sessions are open: close one"):
            await run(world, alloc_id, "/bin/true")
        await runs_still(world)
        for client in clients:
            client.end_input()
    assert all(client.others[-1]["exited"] for client in clients)
    assert (await run(world, alloc_id, "/bin/true")).others[-1]["exited"]
    await world.stop(alloc_id)
    await world.until_done(alloc_id)


# ---- a full disk ----------------------------------------------------------------------------------------


@pytest.fixture
def narrow(tmp_path: Path) -> Iterator[Path]:
    """A directory for allocations on a file system that is soon full."""
    place = tmp_path / "narrow"
    alloc_dir(place).mkdir(parents=True)
    line = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(alloc_dir(place))]
    if os.geteuid() != 0 or subprocess.run(line, capture_output=True).returncode:
        pytest.skip("only root can mount a file system that is full")
    yield place
    subprocess.run(["umount", "--lazy", str(alloc_dir(place))], check=True)


@pytest.fixture
async def narrow_world(store: Store, narrow: Path) -> AsyncIterator[World]:
    async with launchers.open_launcher(alloc_dir(narrow)) as launcher:
        drivers = {"raw_exec": RawExecDriver(ProcessScanner(), {}, launcher)}
        async with open_world(store, narrow, drivers=drivers) as opened:
            yield opened


async def test_full_disk_fails_the_task_that_needs_space_and_is_reported(
    narrow_world: World,
) -> None:
    world = narrow_world
    text = "head -c 100m /dev/zero >local/f; s=$?; echo full >&2; exit $s"
    greedy = await world.place(batch(script(text)))
    await world.until_status(greedy, "failed")
    assert ("Terminated", "Exit Code: 1") in world.told(greedy)

    second = await world.place(batch(script("echo ran"), job_id="second"))
    await world.until_status(second, "failed")
    assert "No space left on device" in str(world.told(second))

    os.unlink(world.directory(greedy) / "main/local/f")
    await runs_still(world)
