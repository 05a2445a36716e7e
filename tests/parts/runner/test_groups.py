"""Tasks that belong together: hooks, leaders, siblings (recorded: lifecycle-hooks)."""

from storage.records.base import SECOND
from storage.records.task import Lifecycle
from tests.parts.runner.world import World, batch, script, service, state_of

SIDECAR = Lifecycle(hook="prestart", sidecar=True)
BEGINNING = ["Received", "Task Setup", "Started"]
KILLED = ["Killing", "Terminated", "Killed"]


def noting(name: str, then: str = "") -> str:
    """Return a script that appends its name to a shared file, and then runs `then`."""
    return f"echo {name} >>$NOMAD_ALLOC_DIR/order; {then}"


async def test_hooks_run_in_their_order(world: World) -> None:
    seen = "grep -q {} $NOMAD_ALLOC_DIR/order"
    ready = f"until {seen.format('post')} && {seen.format('side')}; do sleep 0.01; done"
    tasks = [
        script(noting("main", ready)),
        script(noting("pre"), "pre", lifecycle=Lifecycle(hook="prestart")),
        script(noting("side", "exec sleep 600"), "side", lifecycle=SIDECAR),
        script(noting("post"), "post", lifecycle=Lifecycle(hook="poststart")),
        script(noting("end"), "end", lifecycle=Lifecycle(hook="poststop")),
    ]
    alloc_id = await world.place(batch(*tasks))
    done = await world.until_done(alloc_id)
    order = (world.directory(alloc_id) / "alloc/order").read_text().split()
    assert done.client_status == "complete"
    assert sorted(order[:4]) == ["main", "post", "pre", "side"]
    assert order.index("pre") < min(order.index("main"), order.index("post"))
    assert order[4:] == ["end"]
    begun = [state_of(done, name).started_at for name in ("pre", "main", "post", "end")]
    assert begun == sorted(begun)
    assert state_of(done, "side").started_at <= state_of(done, "main").started_at
    assert world.types(alloc_id, "side") == [*BEGINNING, "Main Tasks Dead", *KILLED]
    assert world.types(alloc_id, "end") == [*BEGINNING, "Terminated"]


async def test_main_tasks_never_start_when_a_prestart_task_fails(world: World) -> None:
    pre = script("exit 4", "pre", lifecycle=Lifecycle(hook="prestart"))
    alloc_id = await world.place(batch(script("exit 0"), pre))
    done = await world.until_done(alloc_id)
    assert done.client_status == "failed"
    assert world.told(alloc_id) == [
        ("Received", "Task received by client"),
        ("Sibling Task Failed", 'Task\'s sibling "pre" failed'),
        ("Killing", "Sent interrupt. Waiting 1s before force killing"),
    ]
    state = state_of(done)
    assert (state.state, state.failed, state.started_at) == ("dead", False, None)


async def test_failed_task_stops_its_siblings(world: World) -> None:
    alloc_id = await world.place(batch(script("exit 3", "a"), script("exec sleep 600", "b")))
    done = await world.until_done(alloc_id)
    assert done.client_status == "failed"
    assert world.types(alloc_id, "b")[-4:] == ["Sibling Task Failed", *KILLED]
    assert state_of(done, "b").failed is False


async def test_allocation_fails_only_when_no_task_runs(world: World) -> None:
    stubborn = script(
        "trap '' INT; echo x >$NOMAD_ALLOC_DIR/up; while :; do sleep 0.01; done",
        "b",
        kill_timeout=SECOND // 5,
    )
    failing = script("until [ -e $NOMAD_ALLOC_DIR/up ]; do sleep 0.01; done; exit 3", "a")
    alloc_id = await world.place(batch(failing, stubborn))
    found = await world.until(alloc_id, lambda item: state_of(item, "a").failed)
    assert found.client_status == "running"
    assert (await world.until_done(alloc_id)).client_status == "failed"


async def test_other_tasks_stop_after_their_leader_ends(world: World) -> None:
    lead = script("until [ -e $NOMAD_ALLOC_DIR/up ]; do sleep 0.01; done", "lead", leader=True)
    follow = script("echo x >$NOMAD_ALLOC_DIR/up; exec sleep 600", "follow")
    alloc_id = await world.place(batch(lead, follow))
    done = await world.until_done(alloc_id)
    assert done.client_status == "complete"
    assert world.types(alloc_id, "follow")[-4:] == ["Leader Task Dead", *KILLED]


async def test_a_failing_poststop_task_fails_the_allocation(world: World) -> None:
    end = script("exit 1", "end", lifecycle=Lifecycle(hook="poststop"))
    alloc_id = await world.place(batch(script("exit 0"), end))
    assert (await world.until_done(alloc_id)).client_status == "failed"


async def test_poststop_tasks_run_after_a_stop(world: World) -> None:
    end = script("echo cleaned", "end", lifecycle=Lifecycle(hook="poststop"))
    alloc_id = await world.place(service(script("exec sleep 600"), end))
    await world.until(alloc_id, lambda item: "Started" in world.types(item.id))
    await world.stop(alloc_id)
    done = await world.until_done(alloc_id)
    assert done.client_status == "complete"
    assert world.output(alloc_id, "end") == "cleaned\n"


async def test_restart_of_all_tasks_skips_ended_tasks(world: World) -> None:
    pre = script("exit 0", "pre", lifecycle=Lifecycle(hook="prestart"))
    alloc_id = await world.place(service(script("exec sleep 600"), pre))
    await world.until(alloc_id, lambda item: "Started" in world.types(item.id))
    await world.runner.restart(alloc_id)
    await world.until(alloc_id, lambda item: state_of(item).restarts == 1)
    assert world.types(alloc_id, "pre") == [*BEGINNING, "Terminated"]
