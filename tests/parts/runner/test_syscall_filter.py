"""The filter of system calls around `exec` tasks, and around commands inside them."""

import platform
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from daemon.confinement.calls import NEWEST
from daemon.launcher.client import Launcher
from daemon.runner.drivers.exec import ExecDriver
from daemon.runner.drivers.process_group import ProcessGroups
from storage.records.task import Task
from storage.store import Store
from tests.parts.runner.conftest import discard, end_all_of
from tests.parts.runner.test_exec_sessions import run
from tests.parts.runner.world import World, batch, open_world, script, service

FILTERED = "grep Seccomp: /proc/self/status | cut -f2"
LINGER = "exec sleep 600"
# Executes system calls; prints the error number of each call, or `done`.
ASKING = """\
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for number in {numbers}:
    done = libc.syscall(number, -1, -1, -1, -1, -1)
    print(ctypes.get_errno() if done == -1 else "done")
"""
PYTHON = next((item for item in ("/usr/bin/python3",) if Path(item).exists()), "")
needs_python = pytest.mark.skipif(not PYTHON, reason="tasks cannot access a Python interpreter")


@pytest.fixture
async def world(
    store: Store, data_dir: Path, groups: ProcessGroups, launcher: Launcher
) -> AsyncIterator[World]:
    """A node whose settings permit tasks without a filter."""
    driver = ExecDriver(groups, {}, launcher, unfiltered=True)
    attributes = driver.fingerprint()
    if reason := attributes.trouble or attributes.attributes.get("driver.exec.unenforced.seccomp"):
        pytest.skip(f"exec: {reason}")
    async with open_world(store, data_dir, drivers={"exec": driver}) as opened:
        yield opened
    end_all_of(data_dir)
    discard(data_dir)


def inside(text: str, **config: Any) -> Task:
    return script(f"exec 2>&1; {text}", driver="exec", **config)


def opened(text: str, **settings: Any) -> Task:
    config = {"command": "/bin/sh", "args": ["-c", f"exec 2>&1; {text}"], **settings}
    return script("", driver="exec", config=config)


async def outcome(world: World, task: Task) -> list[str]:
    alloc_id = await world.place(batch(task))
    await world.until_done(alloc_id)
    return world.output(alloc_id).splitlines()


async def test_task_has_a_system_call_filter(world: World) -> None:
    assert await outcome(world, inside(FILTERED)) == ["2"]


async def test_a_task_inherits_no_descriptor_of_the_filter(world: World) -> None:
    assert await outcome(world, inside("ls /proc/$$/fd")) == ["0", "1", "2"]


async def test_task_cannot_create_a_namespace(world: World) -> None:
    (line,) = await outcome(world, inside("unshare -r id -u"))
    assert line == "unshare: unshare failed: Operation not permitted"


@pytest.mark.parametrize("make", ["cp /bin/sh s && chmod 4755 s", "install -m 6755 /bin/sh s"])
async def test_task_cannot_create_a_set_uid_file(world: World, make: str) -> None:
    lines = await outcome(world, inside(f"{make}; stat -c %a s; chmod 755 s; stat -c %a s"))
    assert any("Operation not permitted" in line for line in lines)
    assert lines[-1] == "755"
    assert not {"4755", "6755"} & set(lines)


@needs_python
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers are those of x86_64")
async def test_kernel_enforces_the_filter(world: World) -> None:
    """Calls that the filter lists, a call newer than its table, and a call of the x32 ABI."""
    numbers = [321, 425, 250, 323, 298, 101, NEWEST + 1, 0x40000000 + 39]
    text = ASKING.format(numbers=numbers)
    lines = await outcome(world, inside(f"{PYTHON} - <<'END'\n{text}END\n"))
    assert lines == ["1"] * 6 + ["38"] * 2


@needs_python
async def test_filtered_program_can_have_threads_and_children(world: World) -> None:
    text = (
        "import threading, subprocess\n"
        "one = threading.Thread(target=print, args=('thread',)); one.start(); one.join()\n"
        "print(subprocess.check_output(['echo', 'child'], text=True), end='')\n"
    )
    assert await outcome(world, inside(f"{PYTHON} - <<'END'\n{text}END\n")) == ["thread", "child"]


@pytest.mark.parametrize("tty", [False, True])
async def test_exec_session_has_the_filter_of_its_task(world: World, tty: bool) -> None:
    alloc_id = await world.place(service(inside(f"echo up; {LINGER}")))
    await world.until_printed(alloc_id, "up")
    text = (
        f"exec 2>&1; {FILTERED}; unshare -r true; ls /proc/$$/fd | head -3; pwd; cat /proc/2/comm"
    )
    client = await run(world, alloc_id, "/bin/sh", "-c", text, tty=tty)
    lines = client.seen().splitlines()
    assert lines[:2] == ["2", "unshare: unshare failed: Operation not permitted"]
    assert lines[2:] == ["0", "1", "2", "/local", "sleep"]


async def test_exec_session_of_an_unfiltered_task_has_no_filter(world: World) -> None:
    alloc_id = await world.place(service(opened(f"echo up; {LINGER}", seccomp="off")))
    await world.until_printed(alloc_id, "up")
    assert (await run(world, alloc_id, "/bin/sh", "-c", FILTERED)).seen() == "0\n"


@pytest.mark.parametrize(("word", "mode"), [("off", "0"), ("default", "2"), ("", "2")])
async def test_a_filter_can_be_switched_off(world: World, word: str, mode: str) -> None:
    assert await outcome(world, opened(FILTERED, seccomp=word)) == [mode]


async def test_nested_sandbox_can_be_allowed(world: World) -> None:
    text = f"{FILTERED}; unshare -r id -u; unshare -rm mount -t tmpfs x /tmp"
    lines = await outcome(world, opened(text, user_namespaces=True))
    assert lines[:2] == ["2", "0"]
    assert "mounting" in lines[2] or "ermission" in lines[2] or "permitted" in lines[2]


@pytest.mark.parametrize("settings", [{"seccomp": "off"}, {"user_namespaces": True}])
async def test_agent_that_forbids_nested_sandboxes_runs_no_such_task(
    store: Store,
    data_dir: Path,
    groups: ProcessGroups,
    launcher: Launcher,
    settings: dict[str, Any],
) -> None:
    driver = ExecDriver(groups, {}, launcher)
    if driver.fingerprint().trouble:
        pytest.skip("this host supports no sandboxes")
    async with open_world(store, data_dir, drivers={"exec": driver}) as world:
        alloc_id = await world.place(batch(opened("echo ran", **settings)))
        await world.until_done(alloc_id)
        assert any("exec_unfiltered = true" in text for _, text in world.told(alloc_id))
        assert "Started" not in world.types(alloc_id)


async def test_unknown_filter_is_refused(world: World) -> None:
    alloc_id = await world.place(batch(opened("echo ran", seccomp="none")))
    await world.until_done(alloc_id)
    assert any('seccomp "none": must be default or off' in text for _, text in world.told(alloc_id))
