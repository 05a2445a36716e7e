"""Task exits and their events (recorded: task-events)."""

import os
import pwd
import socket

import msgspec
import pytest

from storage.records.allocation import (
    AllocatedNetwork,
    AllocatedShared,
    OfferedPort,
    Placement,
)
from storage.records.base import HOUR
from storage.records.evaluation import PlacementMetric
from storage.records.task import RestartPolicy, Secret
from tests.parts.runner.world import World, batch, script, service
from tests.unit.runner.placements import held

BEGINNING = [
    ("Received", "Task received by client"),
    ("Task Setup", "Building Task Directory"),
    ("Started", "Task started by client"),
]
NO_RESTART = ("Not Restarting", "Policy allows no restarts")


async def test_a_task_that_exits_with_zero_completes_its_allocation(world: World) -> None:
    alloc_id = await world.place(batch(script("exit 0")))
    done = await world.until_done(alloc_id)
    assert (done.client_status, done.client.description) == (
        "complete",
        "All tasks have completed",
    )
    assert world.told(alloc_id) == [*BEGINNING, ("Terminated", "Exit Code: 0")]
    state = (done.client.task_states or {})["main"]
    assert (state.state, state.failed, state.restarts) == ("dead", False, 0)
    assert state.started_at is not None
    assert state.finished_at is not None


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("exit 7", "Exit Code: 7"),
        ("exit 137", "Exit Code: 137"),
        ("exit 255", "Exit Code: 255"),
        ("kill -9 $$", "Exit Code: 137, Signal: 9"),
        ("kill -TERM $$", "Exit Code: 143, Signal: 15"),
        ("kill -INT $$", "Exit Code: 130, Signal: 2"),
        ("kill -SEGV $$", "Exit Code: 139, Signal: 11"),
        ("kill -HUP $$", "Exit Code: 129, Signal: 1"),
        ("kill -PIPE $$", "Exit Code: 141, Signal: 13"),
        ("kill -34 $$", "Exit Code: 162, Signal: 34"),
    ],
)
async def test_task_with_a_nonzero_exit_fails_its_allocation(
    world: World, text: str, end: str
) -> None:
    alloc_id = await world.place(batch(script(text)))
    done = await world.until_done(alloc_id)
    assert (done.client_status, done.client.description) == ("failed", "Failed tasks")
    assert world.told(alloc_id) == [*BEGINNING, ("Terminated", end), NO_RESTART]


async def test_last_error_lines_of_a_failed_attempt_are_stored(world: World) -> None:
    lines = "i=0; while [ $i -lt 500 ]; do echo line $i >&2; i=$((i+1)); done; echo out; exit 7"
    alloc_id = await world.place(batch(script(lines)))
    await world.until_done(alloc_id)
    kept = world.stored_events(alloc_id)[3].steward_stderr
    assert len(kept) == 2048
    assert kept.endswith("line 498\nline 499\n")


async def test_attempt_does_not_get_the_error_lines_of_the_previous_one(world: World) -> None:
    restart = RestartPolicy(attempts=1, interval=HOUR, delay=0, mode="fail")
    text = "[ -e ../again ] && exit 4; touch ../again; echo first >&2; exit 3"
    alloc_id = await world.place(batch(script(text, restart_policy=restart)))
    await world.until_done(alloc_id)
    ends = [
        stored_event
        for stored_event in world.stored_events(alloc_id)
        if stored_event.type == "Terminated"
    ]
    assert [(stored_event.exit_code, stored_event.steward_stderr) for stored_event in ends] == [
        (3, "first\n"),
        (4, ""),
    ]


async def test_successful_exit_stores_no_error_lines(world: World) -> None:
    alloc_id = await world.place(batch(script("echo all is well >&2")))
    await world.until_done(alloc_id)
    assert [stored_event.steward_stderr for stored_event in world.stored_events(alloc_id)] == [
        ""
    ] * 4


async def test_task_has_default_signal_handlers(world: World) -> None:
    alloc_id = await world.place(batch(script("exec grep -E 'Sig(Blk|Ign)' /proc/self/status")))
    await world.until_done(alloc_id)
    values = [int(line.split()[1], 16) for line in world.output(alloc_id).splitlines()]
    # 32 and 33 are the C library's own.
    assert [value & 0x7FFFFFFF for value in values] == [0, 0]


async def test_long_attempt_is_reported_before_its_end(world: World) -> None:
    alloc_id = await world.place(service(script("exec sleep 600")))
    running = await world.until_status(alloc_id, "running")
    assert running.client.description == "Tasks are running"
    assert world.told(alloc_id) == BEGINNING


@pytest.mark.parametrize(
    ("fields", "event"),
    [
        (
            {"config": {"command": "/no/such/binary"}},
            (
                "Driver Failure",
                "failed to launch command with executor: rpc error: code = Unknown desc = "
                'binary "/no/such/binary" could not be found',
            ),
        ),
        (
            {"config": {"command": "no-such-program"}},
            (
                "Driver Failure",
                "failed to launch command with executor: rpc error: code = Unknown desc = "
                'binary "no-such-program" could not be found',
            ),
        ),
        (
            {"config": {"command": "/etc/passwd"}},
            (
                "Driver Failure",
                "failed to launch command with executor: rpc error: code = Unknown desc = "
                'binary "/etc/passwd" is not executable',
            ),
        ),
        (
            {"config": {"command": "/bin/true", "bogus": 1}},
            (
                "Failed Validation",
                "2 errors occurred:\n\t* failed to parse config: \n\t* Invalid label: "
                'No argument or block type is named "bogus".\n\n',
            ),
        ),
        (
            {"config": {"command": "/bin/true", "work_dir": "/no/where"}},
            ("Driver Failure", 'working directory "/no/where" does not exist'),
        ),
        (
            {"user": "nosuchuser"},
            (
                "Driver Failure",
                'failed driver config validation: failed to identify user "nosuchuser": '
                "user: unknown user nosuchuser",
            ),
        ),
        (
            {"driver": "podman"},
            ("Driver Failure", 'driver "podman" is not available on this node'),
        ),
        (
            {"config": {"command": "/bin/echo", "args": ["a", "a\0b"]}},
            ("Driver Failure", "cannot start the task: args[1] contains a null byte"),
        ),
        (
            {"env": {"A": "a", "B": "b\0"}},
            (
                "Driver Failure",
                "cannot start the task: environment variable 'B' contains a null byte",
            ),
        ),
    ],
)
async def test_failed_start_names_the_reason(
    world: World, fields: dict[str, object], event: tuple[str, str]
) -> None:
    alloc_id = await world.place(batch(script("sleep 600", **fields)))
    done = await world.until_done(alloc_id)
    assert world.told(alloc_id) == [*BEGINNING[:2], event, NO_RESTART]
    state = (done.client.task_states or {})["main"]
    assert (state.failed, state.started_at) == (True, None)


async def test_task_without_its_inputs_does_not_run(world: World) -> None:
    alloc_id = await world.place(batch(script("exit 0", secrets=[Secret()])))
    await world.until_done(alloc_id)
    expected = ("Setup Failure", "this version of Steward cannot provide secrets")
    assert world.told(alloc_id)[2] == expected


@pytest.mark.parametrize("name", ["..", ".claim", "alloc", "a/b"])
async def test_task_with_an_invalid_directory_name_fails(world: World, name: str) -> None:
    alloc_id = await world.place(batch(script("exit 0", name)))
    await world.until_done(alloc_id)
    assert world.types(alloc_id, name) == [
        "Received",
        "Task Setup",
        "Setup Failure",
        "Not Restarting",
    ]


async def test_listener_on_the_port_of_a_task_is_reported_before_its_start(world: World) -> None:
    me = pwd.getpwuid(os.geteuid()).pw_name
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        number = stranger.getsockname()[1]
        job = batch(script("true"))
        (group,) = job.task_groups or ()
        resources = msgspec.structs.replace(
            held(group), shared=AllocatedShared(networks=[static(web=number, other=1)])
        )
        placement = Placement(resources=resources, metrics=PlacementMetric(), node_name="node-1")
        alloc_id = await world.place(job, placement=placement)
        await world.until_done(alloc_id)
    told = world.told(alloc_id)
    text = f'port "web" is in use: a program of user {me} listens on 127.0.0.1:{number} (tcp)'
    assert [item for item in told if item[0] == "Port In Use"] == [("Port In Use", text)]
    assert told.index(("Port In Use", text)) < [kind for kind, _ in told].index("Started")


def static(**ports: int) -> AllocatedNetwork:
    held = [OfferedPort(label=label, value=value) for label, value in ports.items()]
    return AllocatedNetwork(mode="host", ip="127.0.0.1", reserved_ports=held)


async def test_stop_before_the_start_ends_an_allocation_that_never_started(world: World) -> None:
    alloc_id = await world.place(service(script("exec sleep 600")), desired_status="stop")
    done = await world.until_done(alloc_id)
    assert done.client_status == "complete"
    assert world.types(alloc_id) == ["Received", "Killing"]
    assert not world.directory(alloc_id).exists()


async def test_many_short_tasks_all_end(world: World) -> None:
    ids = [await world.place(batch(script("exit 0"), job_id=f"j{n}")) for n in range(60)]
    ends = {(await world.until_done(identifier)).client_status for identifier in ids}
    assert ends == {"complete"}
