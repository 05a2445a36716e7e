"""Killing tasks: in order, on time, and with all their processes."""

import os
import signal

import pytest
import trio

from daemon.launcher.client import Launcher
from daemon.runner.drivers import process_handle
from daemon.runner.drivers.process_group import ProcessGroups
from storage.queries import jobs
from storage.records.allocation import DesiredState, DesiredTransition
from storage.records.base import SECOND
from storage.records.job import Job
from storage.records.task import Lifecycle, Task
from tests import samples
from tests.parts.runner.world import (
    Pipe,
    World,
    alive,
    batch,
    script,
    service,
    unique_ids,
    until_gone,
)

LONG = 600 * SECOND
HURRY = DesiredState(transition=DesiredTransition(no_shutdown_delay=True))


async def begun(world: World, pipe: Pipe, text: str, **fields: object) -> tuple[str, list[int]]:
    """Start a service whose script writes pids to `$PIPE`; return its allocation and the pids."""
    task = script(text, env={"PIPE": str(pipe.path)}, **fields)
    alloc_id = await world.place(service(task))
    pids = [int(pid) for pid in (await pipe.line()).split()]
    await world.until_status(alloc_id, "running")
    return alloc_id, pids


async def test_task_that_handles_its_signal_exits(world: World, pipe: Pipe) -> None:
    alloc_id, _ = await begun(world, pipe, "echo $$ >$PIPE; exec sleep 600", kill_timeout=LONG)
    await world.stop(alloc_id)
    done = await world.until_done(alloc_id)
    assert done.client_status == "complete"
    assert world.told(alloc_id)[3:] == [
        ("Killing", "Sent interrupt. Waiting 10m0s before force killing"),
        ("Terminated", "Exit Code: 130, Signal: 2"),
        ("Killed", "Task successfully killed"),
    ]


async def test_task_gets_its_configured_kill_signal(world: World, pipe: Pipe) -> None:
    text = "trap 'echo bye; exit 3' USR1; echo $$ >$PIPE; while :; do sleep 0.01; done"
    alloc_id, _ = await begun(world, pipe, text, kill_signal="SIGUSR1", kill_timeout=LONG)
    await world.stop(alloc_id)
    await world.until_done(alloc_id)
    assert ("Terminated", "Exit Code: 3") in world.told(alloc_id)
    assert world.output(alloc_id) == "bye\n"


async def test_only_the_main_process_gets_the_kill_signal(held_world: World, pipe: Pipe) -> None:
    text = "sleep 600 & echo $! >$PIPE; wait; sleep 600"
    fields = {"kill_timeout": SECOND // 5, "kill_signal": "SIGWINCH"}
    alloc_id, (child,) = await begun(held_world, pipe, text, **fields)
    await held_world.stop(alloc_id)
    await held_world.until_done(alloc_id)
    assert ("Terminated", "Exit Code: 137, Signal: 9") in held_world.told(alloc_id)
    assert not alive(child)


async def test_task_that_ignores_signals_is_killed_after_its_kill_timeout(
    held_world: World, pipe: Pipe
) -> None:
    text = "trap '' INT TERM HUP; echo $$ >$PIPE; while :; do sleep 0.01; done"
    alloc_id, (main,) = await begun(held_world, pipe, text, kill_timeout=SECOND // 5)
    await held_world.stop(alloc_id)
    done = await held_world.until_done(alloc_id)
    assert done.client_status == "complete"
    assert held_world.told(alloc_id)[3:] == [
        ("Killing", "Sent interrupt. Waiting 200ms before force killing"),
        ("Terminated", "Exit Code: 137, Signal: 9"),
        ("Killed", "Task successfully killed"),
    ]
    assert not alive(main)


async def test_stop_kills_every_descendant(held_world: World, pipe: Pipe) -> None:
    text = """
        sleep 600 & a=$!
        setsid sleep 600 & b=$!
        (setsid sh -c 'echo $$ >c; exec sleep 600' &)
        env -i sleep 600 & d=$!
        while [ ! -s c ]; do sleep 0.01; done
        echo $$ $a $b $(cat c) $d >$PIPE
        exec sleep 600
    """
    alloc_id, pids = await begun(held_world, pipe, text)
    await held_world.stop(alloc_id)
    await held_world.until_done(alloc_id)
    assert [pid for pid in pids if alive(pid)] == []
    assert len(pids) == 5


async def test_exit_of_a_task_kills_every_descendant(held_world: World, pipe: Pipe) -> None:
    text = """
        sleep 600 & a=$!
        setsid sleep 600 & b=$!
        env -i sleep 600 & c=$!
        sleep 0.05; echo $a $b $c >$PIPE; exit 0
    """
    alloc_id = await held_world.place(batch(script(text, env={"PIPE": str(pipe.path)})))
    pids = [int(pid) for pid in (await pipe.line()).split()]
    done = await held_world.until_done(alloc_id)
    assert done.client_status == "complete"
    assert len(pids) == 3
    assert [pid for pid in pids if alive(pid)] == []


async def test_task_that_kills_its_own_process_group_has_its_real_exit(
    held_world: World,
) -> None:
    alloc_id = await held_world.place(batch(script("sleep 600 & kill -9 0; sleep 600")))
    await held_world.until_done(alloc_id)
    assert ("Terminated", "Exit Code: 137, Signal: 9") in held_world.told(alloc_id)


async def test_endlessly_forking_task_is_stopped(held_world: World, pipe: Pipe) -> None:
    text = "ulimit -u 500; f() { sleep 1 & f 2>/dev/null; }; echo $$ >$PIPE; f; sleep 600"
    alloc_id, (main,) = await begun(held_world, pipe, text, kill_timeout=SECOND // 5)
    await held_world.stop(alloc_id)
    await held_world.until_done(alloc_id)
    assert not alive(main)


async def test_kill_of_a_shim_ends_its_task(held_world: World, pipe: Pipe) -> None:
    alloc_id, (main, shim) = await begun(held_world, pipe, "echo $$ $PPID >$PIPE; exec sleep 600")
    os.kill(shim, signal.SIGKILL)
    await held_world.until_done(alloc_id)
    assert not alive(main)
    (end,) = [text for kind, text in held_world.told(alloc_id) if kind == "Terminated"]
    assert "the shim that watched the task has ended" in end


async def test_task_that_stops_its_shim_has_its_real_exit(held_world: World, pipe: Pipe) -> None:
    text = "kill -STOP $PPID; echo $$ $PPID >$PIPE; exec sleep 600"
    alloc_id, pids = await begun(held_world, pipe, text, kill_timeout=LONG)
    await held_world.stop(alloc_id)
    await held_world.until_done(alloc_id)
    assert ("Terminated", "Exit Code: 130, Signal: 2") in held_world.told(alloc_id)
    assert not any(map(alive, pids))


async def asleep(_: process_handle.ProcessHandle) -> None:
    """Do nothing, in place of the function that wakes a shim."""


async def test_stopped_shim_ends_with_its_task(
    held_world: World, pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_handle.ProcessHandle, "_wake", asleep)
    monkeypatch.setattr(process_handle, "_FOR_SHIM", 0.1)
    text = "trap '' INT; kill -STOP $PPID; echo $$ $PPID >$PIPE; while :; do sleep 0.01; done"
    alloc_id, pids = await begun(held_world, pipe, text, kill_timeout=SECOND // 5)
    await held_world.stop(alloc_id)
    await held_world.until_done(alloc_id)
    assert not any(map(alive, pids))


async def test_main_process_outside_its_cgroup_is_killed(
    held_world: World, groups: ProcessGroups, launcher: Launcher, pipe: Pipe
) -> None:
    elsewhere = groups.of(next(unique_ids()), "main")  # the group of another allocation
    if not elsewhere.entry:
        pytest.skip("without control groups, no process can leave one")
    elsewhere.prepare()
    text = f"trap '' INT; echo 0 >{elsewhere.entry}; echo $$ >$PIPE; while :; do sleep 0.01; done"
    alloc_id, (main,) = await begun(held_world, pipe, text, kill_timeout=SECOND // 5)
    await held_world.stop(alloc_id)
    await held_world.until_done(alloc_id)
    assert not alive(main)
    assert ("Terminated", "Exit Code: 137, Signal: 9") in held_world.told(alloc_id)
    assert await elsewhere.clear(launcher) == ""


async def test_shutdown_delay_precedes_the_kill_signal(world: World, pipe: Pipe) -> None:
    text = "echo $$ >$PIPE; exec sleep 600"
    alloc_id, _ = await begun(world, pipe, text, shutdown_delay=SECOND // 5)
    began = trio.current_time()
    await world.stop(alloc_id)
    await world.until_done(alloc_id)
    assert trio.current_time() - began >= 0.2
    assert world.told(alloc_id)[3:5] == [
        ("Killing", "Sent interrupt. Waiting 1s before force killing"),
        (
            "Waiting for shutdown delay",
            "Waiting for shutdown_delay of 200ms before killing the task.",
        ),
    ]


async def test_a_shutdown_delay_can_be_skipped(world: World, pipe: Pipe) -> None:
    text = "echo $$ >$PIPE; exec sleep 600"
    alloc_id, _ = await begun(world, pipe, text, shutdown_delay=LONG)
    await world.want(alloc_id, desired_status="stop", desired=HURRY)
    await world.until_done(alloc_id)
    assert world.types(alloc_id)[3:5] == ["Killing", "Skipping shutdown delay"]


async def test_running_shutdown_delay_can_be_shortened(world: World, pipe: Pipe) -> None:
    text = "echo $$ >$PIPE; exec sleep 600"
    alloc_id, _ = await begun(world, pipe, text, shutdown_delay=LONG)
    await world.stop(alloc_id)
    await world.until(alloc_id, lambda _: "Waiting for shutdown delay" in world.types(alloc_id))
    await world.want(alloc_id, desired=HURRY)
    assert (await world.until_done(alloc_id)).client_status == "complete"


@pytest.mark.parametrize("link", ["previous_allocation", "waits_for"])
async def test_ended_task_is_removed_before_its_replacement_starts(
    world: World, pipe: Pipe, link: str
) -> None:
    text = "trap '' INT; echo $$ >$PIPE; while :; do sleep 0.01; done"
    old, (main,) = await begun(world, pipe, text, kill_timeout=SECOND // 5)
    new = await world.place(
        batch(script(f"kill -0 {main} && echo there; exit 0"), job_id="new"),
        desired=DesiredState(**{link: old if link == "previous_allocation" else [old]}),
    )
    await world.until(new, lambda item: item.client.task_states)
    assert world.types(new) == ["Received"]
    await world.stop(old)
    await world.until_done(new)
    assert world.find(old).client_status == "complete"
    assert world.output(new) == ""


async def test_signals_reach_the_main_process(world: World, pipe: Pipe) -> None:
    text = "trap 'echo got >$PIPE' HUP; echo $$ >$PIPE; while :; do sleep 0.01; done"
    alloc_id, _ = await begun(world, pipe, text)
    await world.runner.signal(alloc_id, "main", "SIGHUP")
    assert await pipe.line() == "got"
    await world.until(alloc_id, lambda _: "Signaling" in world.types(alloc_id))
    assert world.events(alloc_id)[-1].details == {"signal": "SIGHUP"}


async def test_restart_on_request_starts_another_attempt_immediately(
    world: World, pipe: Pipe
) -> None:
    alloc_id, (first,) = await begun(world, pipe, "echo $$ >$PIPE; exec sleep 600")
    await world.runner.restart(alloc_id, "main")
    second = int(await pipe.line())
    state = await world.until(
        alloc_id, lambda item: (item.client.task_states or {})["main"].restarts == 1
    )
    await until_gone(first)
    assert second != first
    assert state.client_status in {"running", "pending"}
    await world.until(alloc_id, lambda _: world.types(alloc_id)[-1] == "Started")
    assert world.told(alloc_id)[3:] == [
        ("Restart Signaled", "User requested task to restart"),
        ("Terminated", "Exit Code: 130, Signal: 2"),
        ("Restarting", "Task restarting in 0s"),
        ("Started", "Task started by client"),
    ]


def for_at_most(time: int, *tasks: Task) -> Job:
    return samples.job("job", samples.group("web", *tasks, max_run_duration=time), type="batch")


async def test_allocation_is_stopped_after_its_run_limit(world: World) -> None:
    main = script("exec sleep 600", kill_timeout=LONG)
    after = script("echo late", name="after", lifecycle=Lifecycle(hook="poststop"))
    alloc_id = await world.place(for_at_most(SECOND // 5, main, after))
    done = await world.until_done(alloc_id)
    assert done.client_status == "complete"
    assert done.client.description == "allocation exceeded max_run_duration"
    assert world.types(alloc_id)[-4:] == [
        "Max Run Duration Exceeded",
        "Killing",
        "Terminated",
        "Killed",
    ]
    assert "Started" not in world.types(alloc_id, "after")


async def test_run_limit_of_a_running_allocation_can_be_changed(world: World, pipe: Pipe) -> None:
    main = script(f"echo $$ >{pipe.path}; exec sleep 600", kill_timeout=LONG)
    alloc_id = await world.place(for_at_most(LONG, main))
    await pipe.line()
    await world.store.write(lambda tx: jobs.append_version(tx, for_at_most(1, main)))
    await world.want(alloc_id, job_version=1)
    assert (await world.until_done(alloc_id)).client_status == "complete"
    assert "Max Run Duration Exceeded" in world.types(alloc_id)
