"""The environment of a task: directories, variables, user (recorded: task-environment)."""

import base64
import os
import shutil
import stat
from collections import Counter
from pathlib import Path

import pytest

from daemon.launcher.client import Launcher
from storage.records.task import DispatchPayload
from storage.store import Store
from tests.parts.runner.conftest import needs_root
from tests.parts.runner.world import (
    Pipe,
    World,
    batch,
    open_world,
    script,
    service,
    until_gone,
)
from tests.samples import group, job


def modes(directory: Path) -> dict[str, str]:
    """Return the modes of everything in a directory, by name."""
    return {path.name: stat.filemode(path.lstat().st_mode) for path in directory.iterdir()}


async def test_task_has_its_directories(world: World) -> None:
    alloc_id = await world.place(batch(script("pwd; ls -a; ls -a $NOMAD_ALLOC_DIR")))
    await world.until_done(alloc_id)
    directory = world.directory(alloc_id)
    assert world.output(alloc_id).split() == [
        str(directory / "main"),
        *[".", "..", "local", "private", "secrets", "tmp"],
        *[".", "..", "data", "logs", "tmp"],
    ]


async def test_directories_of_the_daemon_user_are_closed_to_others(world: World) -> None:
    alloc_id = await world.place(batch(script("exit 0")))
    await world.until_done(alloc_id)
    directory = world.directory(alloc_id)
    assert modes(directory) | modes(directory / "main") | modes(directory / "alloc") == {
        **dict.fromkeys(("alloc", "main", "data", "logs"), "drwx------"),
        **dict.fromkeys(("local", "private", "secrets", "tmp"), "drwx------"),
        ".about": "-rw-r--r--",
        ".claim.main.0": "-rw-------",
    }
    assert modes(directory / "alloc/logs") == {
        "main.stdout.0": "-rw-r--r--",
        "main.stderr.0": "-rw-r--r--",
    }


async def test_restrictive_umask_of_the_daemon_affects_neither_directories_nor_tasks(
    world: World,
) -> None:
    before = os.umask(0o077)
    try:
        alloc_id = await world.place(batch(script("umask; touch local/f")))
        await world.until_done(alloc_id)
    finally:
        os.umask(before)
    assert world.output(alloc_id) == "0022\n"
    assert modes(world.directory(alloc_id) / "main/local") == {"f": "-rw-r--r--"}
    assert modes(world.directory(alloc_id) / "alloc/logs")["main.stdout.0"] == "-rw-r--r--"


async def test_task_gets_every_value_unchanged(world: World) -> None:
    env = {
        "PLAIN": "a b  c",
        "logging.level.root": "DEBUG $HOME `id` \"'",
        "with-dash": "1",
        "IFS": "xyz",
        "OPTIND": "not a number",
        "PPID": "7",
        "OLDPWD": "/old",
        "PS4": "+ ",
        "LD_PRELOAD_X": "/none.so",
        "LINES\nTWO": "a\nb",
        "EMPTY": "",
        "UMLAUT": "größe",
    }
    alloc_id = await world.place(
        batch(script("", config={"command": "/usr/bin/env", "args": ["-0"]}, env=env))
    )
    await world.until_done(alloc_id)
    pairs = (pair.split("=", 1) for pair in world.output(alloc_id).split("\0") if pair)
    found = {name: value for name, value in pairs if not name.startswith("NOMAD_")}
    names = {"with-dash": "with_dash", "LINES\nTWO": "LINES_TWO"}  # the others are valid
    expected = {names.get(name, name): value for name, value in env.items()}
    assert found == {**expected, "PWD": str(world.directory(alloc_id) / "main")}


async def test_references_are_resolved_in_arguments_and_environment(world: World) -> None:
    task = script(
        "",
        config={
            "command": "/bin/${X}",
            "args": ["${NOMAD_TASK_NAME} ${meta.zone} ${node.datacenter} ${attr.kernel.name} ${i}"],
        },
        env={"X": "echo"},
    )
    alloc_id = await world.place(batch(task))
    await world.until_done(alloc_id)
    assert world.output(alloc_id) == "main a dc1 linux ${i}\n"


async def test_a_task_may_choose_its_working_directory(world: World) -> None:
    config = {"command": "/bin/sh", "args": ["-c", "pwd; echo $PWD"], "work_dir": "/usr"}
    alloc_id = await world.place(batch(script("", config=config)))
    await world.until_done(alloc_id)
    assert world.output(alloc_id) == "/usr\n/usr\n"


async def test_the_payload_of_a_dispatch_is_in_the_local_directory(world: World) -> None:
    task = script("cat local/in/put.txt", dispatch_payload=DispatchPayload(file="in/put.txt"))
    payload = base64.b64encode(b"hello\n").decode()
    alloc_id = await world.place(job("p", group("web", task), type="batch", payload=payload))
    await world.until_done(alloc_id)
    assert world.output(alloc_id) == "hello\n"
    assert modes(world.directory(alloc_id) / "main/local/in") == {"put.txt": "-rw-r--r--"}


@pytest.mark.parametrize("file", ["../../x", "/etc/x", "..", "a/../../b"])
async def test_payload_file_does_not_leave_the_local_directory(world: World, file: str) -> None:
    task = script("exit 0", dispatch_payload=DispatchPayload(file=file))
    payload = base64.b64encode(b"x").decode()
    alloc_id = await world.place(job("p", group("web", task), type="batch", payload=payload))
    await world.until_done(alloc_id)
    holders = {
        path.parent
        for path in world.config.data_dir.rglob("*")
        if path.is_file() and path.read_bytes() == b"x"
    }
    local = world.directory(alloc_id) / "main/local"
    assert all(holder.is_relative_to(local) for holder in holders)


@needs_root
async def test_task_runs_as_the_owner_of_its_directory(world: World) -> None:
    text = "id -un; id -u; id -Gn; touch local/f secrets/s; echo $USER $HOME; grep ^Cap /proc/self/status"
    world.config.data_dir.parent.chmod(0o755)
    alloc_id = await world.place(batch(script(text, user="nobody")))
    done = await world.until_done(alloc_id)
    name, number, groups, home, *capabilities = world.output(alloc_id).splitlines()
    assert done.client_status == "complete"
    assert (name, number, groups, home) == ("nobody", "65534", "nogroup", "nobody /nonexistent")
    held = {line.split()[0]: int(line.split()[1], 16) for line in capabilities}
    assert (held["CapPrm:"], held["CapEff:"], held["CapInh:"], held["CapAmb:"]) == (0, 0, 0, 0)
    assert modes(world.directory(alloc_id) / "main")["secrets"] == "drwx------"
    assert (world.directory(alloc_id) / "main/local/f").stat().st_uid == 65534


@needs_root
async def test_task_of_another_user_cannot_change_its_claim_file(world: World) -> None:
    text = "echo exit 0 >>../.claim.main.0; rm -f ../.claim.main.0; mv ../alloc ../x; exit 5"
    alloc_id = await world.place(batch(script(text, user="nobody")))
    await world.until_done(alloc_id)
    assert ("Terminated", "Exit Code: 5") in world.told(alloc_id)
    assert (world.directory(alloc_id) / "alloc").is_dir()


@needs_root
async def test_a_task_of_another_user_cannot_replace_its_log(world: World) -> None:
    text = "cd $NOMAD_ALLOC_DIR; rm -f logs/main.stdout.0; mv logs x; ln -s /tmp logs; echo kept"
    alloc_id = await world.place(batch(script(text, user="nobody")))
    await world.until_done(alloc_id)
    assert world.output(alloc_id).startswith("kept\n")


async def test_purge_stops_the_task_gracefully_and_removes_the_directory(
    world: World, pipe: Pipe
) -> None:
    text = "trap 'echo asked >$PIPE; exit 0' TERM; echo $$ >$PIPE; while :; do sleep 0.01; done"
    task = script(text, env={"PIPE": str(pipe.path)}, kill_signal="SIGTERM")
    alloc_id = await world.place(service(task))
    pid = int(await pipe.line())
    await world.until_status(alloc_id, "running")
    await world.purge(service(task))
    assert await pipe.line() == "asked"
    await until_gone(pid)
    await world.until_no_directory(alloc_id)


async def test_directory_of_a_finished_allocation_stays_until_its_collection(
    world: World,
) -> None:
    wanted = batch(script("echo out; chmod 0 local; mkdir -p x/y; chmod 0 x"))
    alloc_id = await world.place(wanted)
    await world.until_done(alloc_id)
    assert world.output(alloc_id) == "out\n"
    await world.purge(wanted)
    await world.until_no_directory(alloc_id)


LEFT = "aaaaaaaa-0000-4000-8000-000000000000"  # an allocation that the store does not have


@pytest.mark.parametrize("name", [f"{LEFT}.removed", LEFT])
async def test_next_daemon_finishes_an_interrupted_removal(
    store: Store, data_dir: Path, name: str
) -> None:
    async with open_world(store, data_dir) as world:
        left = world.directory(name)
    left.mkdir()
    (left / ".claim.main.0").write_text("group -\nshim 2\n")
    async with open_world(store, data_dir) as world:
        await world.until_no_directory(name)


async def test_unrelated_directory_is_not_removed(store: Store, data_dir: Path) -> None:
    gone = LEFT
    async with open_world(store, data_dir) as world:
        left = world.directory("lost+found")
    for item in (left, left.with_name(gone)):
        item.mkdir()
        (item / ".claim.main.0").write_text("group -\nshim 2\n")
    async with open_world(store, data_dir) as world:
        await world.until_no_directory(gone)
        assert left.is_dir()


async def test_few_directories_are_removed_concurrently(
    store: Store, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove, at_work = Launcher.remove, Counter[str]()

    async def counted(launcher: Launcher, allocation: str) -> None:
        at_work["now"] += 1
        at_work["most"] = max(at_work["most"], at_work["now"])
        await remove(launcher, allocation)
        at_work["now"] -= 1

    monkeypatch.setattr(Launcher, "remove", counted)
    async with open_world(store, data_dir) as world:
        left = [
            world.directory(f"{number:08x}-0000-4000-8000-000000000000") for number in range(30)
        ]
        for item in left:
            (item / "alloc" / "data").mkdir(parents=True)
        await world.place(wanted := batch(script("exit 0")))
        await world.purge(wanted)  # the runner then collects unknown directories
        for item in left:
            await world.until_no_directory(item.name)
    assert at_work["most"] == 2


async def test_task_inherits_only_its_three_streams(store: Store, data_dir: Path) -> None:
    inherited = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(inherited, True)
    try:
        async with open_world(store, data_dir) as world:
            # The second listing has the descriptors of the shell. `ls` itself opens one more.
            alloc_id = await world.place(batch(script("ls /proc/self/fd; ls /proc/$$/fd")))
            await world.until_done(alloc_id)
            assert world.output(alloc_id).split() == ["0", "1", "2", "3", "0", "1", "2"]
    finally:
        os.close(inherited)


async def test_deleted_allocations_directory_is_recreated(
    world: World,
) -> None:
    first = await world.place(batch(script("exit 0"), job_id="first"))
    await world.until_done(first)
    shutil.rmtree(world.config.alloc_dir)
    await world.purge(
        batch(script("exit 0"), job_id="first")
    )  # the runner then collects unknown directories
    second = await world.place(batch(script("echo $PWD"), job_id="second"))
    await world.until_done(second)
    assert world.output(second) == f"{world.directory(second)}/main\n"
