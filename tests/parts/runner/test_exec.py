"""The driver `exec`: view and permissions of a sandboxed task, attacked from inside."""

import os
import shutil
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from daemon.config.data_directory import alloc_dir
from daemon.launcher.client import Launcher
from daemon.launcher.messages import AllowedVolume
from daemon.runner.drivers.exec import ExecDriver
from daemon.runner.drivers.limits import UNLIMITED
from daemon.runner.drivers.process_group import ProcessGroups
from storage.records.base import SECOND
from storage.records.group import Volume as Wanted
from storage.records.job import Job
from storage.records.node import HostVolume
from storage.records.task import Network, NetworkDNS, Task, VolumeMount
from storage.store import Store
from tests import launchers
from tests.parts.runner.conftest import discard, end_all_of, needs_root
from tests.parts.runner.test_exec_sessions import Client, run, talking
from tests.parts.runner.world import (
    World,
    batch,
    open_world,
    script,
    service,
    state_of,
    until_gone,
)

LINGER = "exec sleep 600"


@pytest.fixture
async def walled(store: Store, data_dir: Path, groups: ProcessGroups) -> AsyncIterator[World]:
    """A node with the driver `exec`, for each mechanism that groups processes."""
    volumes = [
        HostVolume(name="data", path=str(shared(data_dir))),
        HostVolume(name="fixed", path=str(shared(data_dir)), read_only=True),
    ]
    known = [
        AllowedVolume(name=volume.name, path=volume.path, read_only=volume.read_only)
        for volume in volumes
    ]
    policy = msgspec.structs.replace(launchers.EVERYTHING, volumes=known)
    async with launchers.open_launcher(alloc_dir(data_dir), policy) as launcher:
        driver = ExecDriver(groups, {}, launcher, UNLIMITED)
        if trouble := driver.fingerprint().trouble:
            pytest.skip(f"exec: {trouble}")
        drivers = {"exec": driver}
        async with open_world(store, data_dir, drivers=drivers, host_volumes=volumes) as opened:
            yield opened
    end_all_of(data_dir)
    discard(data_dir)


def shared(data_dir: Path) -> Path:
    """Return a directory of the host that tasks may mount, with a file in it."""
    path = data_dir / "shared"
    path.mkdir(exist_ok=True)
    path.chmod(0o777)
    (path / "there").write_text("seen\n")
    return path


def inside(text: str, name: str = "main", **fields: Any) -> Task:
    return script(text, name, driver="exec", **fields)


async def outcome(world: World, text: str, **fields: Any) -> list[str]:
    """Return a script's output in the sandbox, including errors."""
    alloc_id = await world.place(batch(inside(f"exec 2>&1; {text}", **fields)))
    await world.until_done(alloc_id)
    return world.output(alloc_id).splitlines()


# ---- visible files and processes --------------------------------------------------------------------


async def test_task_has_its_directories_at_short_paths(walled: World) -> None:
    text = "pwd; echo $NOMAD_TASK_DIR $NOMAD_ALLOC_DIR $NOMAD_SECRETS_DIR; echo x >f; echo y >/alloc/data/g"
    alloc_id = await walled.place(batch(inside(text)))
    await walled.until_done(alloc_id)
    assert walled.output(alloc_id).splitlines() == ["/local", "/local /alloc /secrets"]
    assert (walled.directory(alloc_id) / "main/local/f").read_text() == "x\n"
    assert (walled.directory(alloc_id) / "alloc/data/g").read_text() == "y\n"


async def test_task_sees_only_the_system_directories(walled: World) -> None:
    lines = await outcome(walled, f"ls /; ls {walled.config.data_dir}; ls /root /home /var /run")
    assert set(lines[: lines.index("usr") + 1]) <= {
        *("alloc", "bin", "dev", "etc", "lib", "lib32", "lib64", "libx32"),
        *("local", "proc", "sbin", "secrets", "tmp", "usr", "run"),
    }
    assert sum("No such file" in line for line in lines) >= 4


async def test_a_task_sees_its_own_processes_only(walled: World) -> None:
    lines = await outcome(walled, "ls /proc | grep -c '^[0-9]'; cat /proc/1/environ | wc -c")
    assert int(lines[0]) <= 5


async def test_command_in_the_task_directory_is_found(walled: World) -> None:
    task = inside("", config={"command": "tool"})
    alloc_id = await walled.place(batch(task))
    await walled.until_done(alloc_id)
    reason = "failed to launch command with executor: rpc error: code = Unknown desc = "
    assert ("Driver Failure", f'{reason}binary "tool" could not be found') in walled.told(alloc_id)


# ---- refused operations -----------------------------------------------------------------------------


async def test_files_of_another_allocation_are_unreachable(walled: World) -> None:
    first = await walled.place(batch(inside("echo mine >/local/f"), job_id="first"))
    await walled.until_done(first)
    place = walled.directory(first) / "main/local/f"
    lines = await outcome(walled, f"cat {place}; ls /alloc/../..; cat /local/../../{first}/f")
    assert not any("mine" in line or first in line.partition(":")[0] for line in lines)


async def test_system_directories_are_read_only(walled: World) -> None:
    lines = await outcome(
        walled, "for p in / /usr /etc /bin /dev; do touch $p/x && echo wrote $p; done"
    )
    assert not any(line.startswith("wrote") for line in lines)


async def test_task_cannot_replace_its_logs(walled: World) -> None:
    text = "mv /alloc/logs /alloc/old; rm /alloc/logs/*; ln -s /etc /alloc/logs/x; echo done"
    lines = await outcome(walled, text)
    assert lines[-1] == "done"
    assert len(lines) >= 3


async def test_task_has_no_capabilities_and_cannot_gain_any(walled: World) -> None:
    lines = await outcome(walled, "grep -E 'Cap(Eff|Prm|Inh|Amb)|NoNew' /proc/self/status")
    assert {line.split()[1] for line in lines} == {"0" * 16, "1"}
    lines = await outcome(
        walled, "mount -t tmpfs x /tmp && echo mounted; unshare -m true && echo away; su -c id"
    )
    assert not {"mounted"} & set(lines)
    assert not any("uid=0" in line for line in lines)


async def test_task_cannot_signal_processes_outside(walled: World) -> None:
    lines = await outcome(walled, f"kill -9 {os.getpid()}; kill -9 -1; echo alive")
    assert lines[0].endswith("No such process")


async def test_task_cannot_signal_other_tasks_of_the_same_user(walled: World) -> None:
    other = await walled.place(service(inside(f"echo up; {LINGER}"), job_id="other"))
    await walled.until_printed(other, "up")
    pids = (await walled.runner.usage(other)).tasks["main"].pids
    assert await outcome(walled, "sleep 600 & kill -9 -1; echo x") == ["x"]
    assert (await walled.runner.usage(other)).tasks["main"].pids.keys() == pids.keys()


async def test_store_and_sockets_of_the_daemon_are_unreachable(walled: World) -> None:
    data_dir = walled.config.data_dir
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(data_dir / "here.sock"))
        names = sorted(path.name for path in data_dir.iterdir())
        assert {"here.sock", "steward.db"} <= set(names)
        ways = [f"{way}{data_dir}" for way in ("", "/proc/1/root", "/proc/self/root", "/alloc/..")]
        paths = " ".join(f"{way}/{name}" for way in ways for name in names)
        lines = await outcome(walled, f"for p in {paths}; do test -e $p && echo $p; done; echo x")
    assert lines == ["x"]


@needs_root
async def test_a_set_uid_program_has_no_effect(walled: World) -> None:
    program = shared(walled.config.data_dir) / "id"
    shutil.copyfile("/usr/bin/id", program)
    program.chmod(0o4755)
    alloc_id = await walled.place(mounting("id -u; /data/id -u; su root -c id"))
    await walled.until_done(alloc_id)
    nobody, by_program, *_ = walled.output(alloc_id).splitlines()
    assert by_program == nobody != "0"
    assert "uid=0" not in walled.output(alloc_id)


async def test_nested_namespace_does_not_break_the_sandbox(walled: World) -> None:
    """Many hosts let every user create a user namespace, with all capabilities in it."""
    attacks = (
        "mount -o remount,rw /usr",
        "mount -o remount,bind,rw /usr",
        "mount -o remount,bind,rw /alloc/logs",
        "umount -l /alloc/logs",
        "umount -l /usr",
        "mount -t proc proc /proc",
        "touch /usr/x",
        "touch /alloc/logs/x",
    )
    tried = "; ".join(f"{attack} && echo done: {attack}" for attack in attacks)
    lines = await outcome(walled, f"unshare --user --map-root-user --mount sh -c '{tried}'; echo x")
    assert lines[-1] == "x"
    assert not any(line.startswith("done") for line in lines)


@needs_root
async def test_task_without_a_user_runs_as_nobody(walled: World) -> None:
    assert await outcome(walled, "id -un; cat /etc/shadow") == [
        "nobody",
        "cat: /etc/shadow: Permission denied",
    ]
    alloc_id = await walled.place(batch(inside("true", user="root"), job_id="root"))
    await walled.until_done(alloc_id)
    assert "cannot run exec tasks" in walled.told(alloc_id)[-2][1]


@needs_root
async def test_secret_of_one_user_cannot_be_read_by_another(walled: World) -> None:
    lines = await outcome(walled, "echo x >/secrets/s; cat /secrets/s; ls -ld /secrets")
    assert lines[0] == "x"
    assert lines[1].startswith("drwx------")


async def test_a_task_without_a_network_has_only_loopback(walled: World) -> None:
    task = inside("cat /proc/net/dev | tail -n +3 | cut -d: -f1")
    job = batch(task)
    group = job.task_groups[0]
    group = msgspec.structs.replace(group, networks=[Network(mode="none")])
    alloc_id = await walled.place(msgspec.structs.replace(job, task_groups=[group]))
    await walled.until_done(alloc_id)
    assert walled.output(alloc_id).split() == ["lo"]


async def test_task_resolves_names_with_the_dns_of_its_group(walled: World) -> None:
    dns = NetworkDNS(servers=["10.9.8.7"], searches=["a.example", "b.example"], options=["ndots:2"])
    job = batch(inside("cat /etc/resolv.conf"))
    group = msgspec.structs.replace(job.task_groups[0], networks=[Network(dns=dns)])
    alloc_id = await walled.place(msgspec.structs.replace(job, task_groups=[group]))
    await walled.until_done(alloc_id)
    assert walled.output(alloc_id).splitlines() == [
        "nameserver 10.9.8.7",
        "search a.example b.example",
        "options ndots:2",
    ]


@pytest.mark.parametrize(
    "block",
    [
        {"command": "/bin/true", "cap_add": ["sys_admin"]},
        {"command": "/bin/true", "pid_mode": "host"},
        {"command": "/bin/true", "ipc_mode": "host"},
    ],
)
async def test_no_setting_weakens_the_sandbox(walled: World, block: dict[str, object]) -> None:
    alloc_id = await walled.place(batch(inside("", config=block)))
    await walled.until_done(alloc_id)
    assert "Failed Validation" in walled.types(alloc_id)


# ---- start and end ----------------------------------------------------------------------------------


async def test_main_process_is_ended_by_the_signal(walled: World) -> None:
    text = "trap 'echo bye; exit 3' USR1; echo up; while :; do sleep 0.01; done"
    task = inside(text, kill_signal="SIGUSR1", kill_timeout=600 * SECOND)
    alloc_id = await walled.place(service(task))
    await walled.until_printed(alloc_id, "up")
    await walled.stop(alloc_id)
    await walled.until_done(alloc_id)
    assert ("Terminated", "Exit Code: 3") in walled.told(alloc_id)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("exit 7", "Exit Code: 7"),
        ("kill -KILL $$", "Exit Code: 137, Signal: 9"),
        ("kill -TERM $$", "Exit Code: 143, Signal: 15"),
    ],
)
async def test_exit_of_a_sandboxed_task_is_reported_exactly(
    walled: World, text: str, told: str
) -> None:
    alloc_id = await walled.place(batch(inside(text)))
    await walled.until_done(alloc_id)
    assert ("Terminated", told) in walled.told(alloc_id)


async def test_no_process_survives_a_stop(walled: World) -> None:
    text = "trap '' INT TERM; (setsid sleep 600 & ) ; env -i setsid sleep 600 & echo up; sleep 600; sleep 600"
    alloc_id = await walled.place(service(inside(text, kill_timeout=SECOND // 5)))
    await walled.until_printed(alloc_id, "up")
    used = await walled.runner.usage(alloc_id)
    pids = [int(pid) for pid in used.tasks["main"].pids]
    assert len(pids) >= 3
    await walled.stop(alloc_id)
    await walled.until_done(alloc_id)
    for pid in pids:
        await until_gone(pid)


async def test_killed_shim_ends_the_sandbox(walled: World) -> None:
    alloc_id = await walled.place(batch(inside(f"echo up; {LINGER}")))
    await walled.until_printed(alloc_id, "up")
    claim = (walled.directory(alloc_id) / ".claim.main.0").read_text()
    (shim,) = [int(line.split()[1]) for line in claim.splitlines() if line.startswith("shim")]
    os.kill(shim, signal.SIGKILL)
    done = await walled.until_done(alloc_id)
    assert done.client_status == "failed"
    assert state_of(done).failed


async def test_command_runs_in_the_same_sandbox(walled: World) -> None:
    alloc_id = await walled.place(service(inside(f"echo up; {LINGER}", env={"COLOR": "blue"})))
    await walled.until_printed(alloc_id, "up")
    client = await run(
        walled,
        alloc_id,
        "sh",
        "-c",
        "pwd; echo $COLOR; ls -d /root /local; grep CapEff /proc/self/status",
    )
    assert client.seen().split() == ["/local", "blue", "/local", "CapEff:", "0" * 16]
    assert client.others[-1]["result"] == {"exit_code": 0} or client.others[-1]["result"] == {}
    open_files = await run(walled, alloc_id, "/bin/ls", "/proc/self/fd")
    assert open_files.seen().split() == ["0", "1", "2", "3"]  # 3 belongs to `ls`
    failed = await run(walled, alloc_id, "/no/such")
    assert failed.others[-1]["result"] == {"exit_code": 127}
    terminal = await run(walled, alloc_id, "sh", "-c", "test -t 0 && echo yes", tty=True)
    assert terminal.seen() == "yes\r\n"


async def test_shell_processes_on_a_terminal_end_with_the_connection(
    walled: World,
) -> None:
    alloc_id = await walled.place(service(inside(f"mkfifo /alloc/held; echo up; {LINGER}")))
    await walled.until_printed(alloc_id, "up")
    held = trio.Path(walled.directory(alloc_id) / "alloc/held")
    client = Client()
    async with talking(walled, alloc_id, ["/bin/sh", "-i"], client, tty=True):
        client.type("sleep 600 >/alloc/held &\n")
        file = await held.open()  # returns when the other end is open
        client.leave()
    assert await file.read() == ""  # returns when no process has it open
    await file.aclose()


async def test_sandboxed_task_is_recovered_by_the_next_daemon(
    store: Store, data_dir: Path, groups: ProcessGroups, launcher: Launcher
) -> None:
    driver = ExecDriver(groups, {}, launcher, UNLIMITED)
    if driver.fingerprint().trouble:
        pytest.skip("this host supports no sandboxes")
    async with open_world(store, data_dir, drivers={"exec": driver}) as world:
        alloc_id = await world.place(service(inside(f"echo up; {LINGER}")))
        await world.until_printed(alloc_id, "up")
    async with open_world(store, data_dir, drivers={"exec": driver}) as world:
        await world.until_status(alloc_id, "running")
        await world.stop(alloc_id)
        await world.until_done(alloc_id)
        assert ("Terminated", "Exit Code: 130, Signal: 2") in world.told(alloc_id)


# ---- host volumes -----------------------------------------------------------------------------------


def mounting(text: str, destination: str = "/data", source: str = "data", **mount: Any) -> Job:
    """Return a job whose task mounts a volume."""
    mounted = VolumeMount(volume="v", destination=destination, **mount)
    job = batch(inside(f"exec 2>&1; {text}", volume_mounts=[mounted]))
    (group,) = job.task_groups or ()
    volumes = {"v": Wanted(name="v", type="host", source=source)}
    return msgspec.structs.replace(
        job, task_groups=[msgspec.structs.replace(group, volumes=volumes)]
    )


async def test_task_reads_and_writes_a_host_volume(walled: World) -> None:
    alloc_id = await walled.place(mounting("cat /data/there; echo kept >/data/new"))
    await walled.until_done(alloc_id)
    assert walled.output(alloc_id) == "seen\n"
    assert (walled.config.data_dir / "shared/new").read_text() == "kept\n"


async def test_destination_of_a_volume_can_refer_to_the_task(walled: World) -> None:
    job = mounting("cat /${NOMAD_TASK_NAME}-data/there", destination="/${NOMAD_TASK_NAME}-data")
    alloc_id = await walled.place(job)
    await walled.until_done(alloc_id)
    assert walled.output(alloc_id) == "seen\n"


@pytest.mark.parametrize(("source", "mount"), [("data", {"read_only": True}), ("fixed", {})])
async def test_read_only_volume_is_not_writable(
    walled: World, source: str, mount: dict[str, bool]
) -> None:
    alloc_id = await walled.place(mounting("echo x >/data/new", source=source, **mount))
    await walled.until_status(alloc_id, "failed")
    assert "Read-only file system" in walled.output(alloc_id)
    assert not (walled.config.data_dir / "shared/new").exists()


@pytest.mark.parametrize(
    "destination", ["/usr/bin", "/etc", "", "/", "//usr/lib", "/x/../usr", "local/data", "/alloc/logs"]
)  # fmt: skip
async def test_volume_hides_no_program_that_builds_the_sandbox(
    walled: World, destination: str
) -> None:
    alloc_id = await walled.place(mounting("true", destination))
    await walled.until_status(alloc_id, "failed")
    assert "Failed Validation" in walled.types(alloc_id)


async def test_missing_volume_fails_the_task(walled: World) -> None:
    alloc_id = await walled.place(mounting("true", source="none"))
    await walled.until_status(alloc_id, "failed")
    assert "volume 'v' is not a directory on this host" in walled.told(alloc_id)[-2][1]
