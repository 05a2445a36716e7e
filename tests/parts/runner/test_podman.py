"""The driver `podman` with a strict fake service, and with real Podman if it is installed."""

import base64
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from daemon.config.settings import Settings
from daemon.runner.drivers.podman import driver as podman
from daemon.runner.node_registration import why_no_podman
from storage.records.allocation import AllocatedPort, Placement
from storage.records.base import SECOND
from storage.records.evaluation import PlacementMetric
from storage.records.job import Job
from storage.records.task import Network, NetworkDNS, Task
from storage.store import Store
from tests.fakes.fakepodman import FakePodman, serve_podman
from tests.parts.runner.conftest import discard, end_all_of
from tests.parts.runner.test_exec_sessions import Client, run, talking
from tests.parts.runner.world import World, batch, open_world, script, service, state_of
from tests.unit.runner.placements import held

IMAGE = "localhost/steward-test:1"
LINGER = "exec sleep 600"
PROGRAMS = ("sh", "sleep", "cat", "id", "env")
SETTINGS = """\
[engine]
cgroup_manager = "cgroupfs"
{runtime}
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1000:1000"]
"""


def contained(text: str, name: str = "main", driver: str = "podman", **fields: Any) -> Task:
    """Return a task that runs a shell script in a container."""
    more = fields.pop("config", {})
    block = {"image": IMAGE, "command": "/bin/sh", "args": ["-c", text], "network_mode": "host"}
    return script(text, name, driver=driver, config={**block, **more}, **fields)


@pytest.fixture
async def fake(tmp_path: Path) -> AsyncIterator[FakePodman]:
    """A strict service, which fails the test if a request is not as documented."""
    async with serve_podman(str(tmp_path / "podman.sock")) as served:
        yield served
    assert served.faults == []


@asynccontextmanager
async def world_of(
    store: Store, data_dir: Path, socket: Path, **settings: Any
) -> AsyncIterator[World]:
    inherited = {"PATH": "/the/agents"}
    wanted = {"volumes": False, **settings}
    found = await podman.find(str(socket), inherited, processes=100, **wanted)
    drivers = {item.name: item for item in found}
    async with open_world(store, data_dir, drivers=drivers) as world:
        yield world


@pytest.fixture
async def world(
    store: Store, data_dir: Path, tmp_path: Path, fake: FakePodman
) -> AsyncIterator[World]:
    async with world_of(store, data_dir, tmp_path / "podman.sock") as opened:
        yield opened
    end_all_of(data_dir)
    discard(data_dir)


# ---- start and end --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["podman", "docker"])
async def test_container_runs_to_its_end_and_is_removed(
    world: World, fake: FakePodman, name: str
) -> None:
    text = "echo out; echo err >&2; printf 'no end'; exit 3"
    alloc_id = await world.place(batch(contained(text, driver=name)))
    await world.until_status(alloc_id, "failed")
    assert ("Terminated", "Exit Code: 3") in world.told(alloc_id)
    assert world.output(alloc_id) == "out\nno end"
    assert world.output(alloc_id, kind="stderr") == "err\n"
    assert fake.containers == {}
    left = [line for line in os.listdir(world.directory(alloc_id)) if line.startswith(".podman")]
    assert left == []


async def test_container_has_the_inputs_of_its_task(world: World, fake: FakePodman) -> None:
    env = {"COLOR": "blue", "PATH": "/the/agents"}
    task = contained(LINGER, env=env, user="1000")
    alloc_id = await world.place(service(task))
    await world.until_status(alloc_id, "running")
    ((name, one),) = fake.containers.items()
    assert name == f"steward-{alloc_id}-main-0"
    spec, home = one.spec, world.directory(alloc_id)
    assert (spec["user"], spec["env"]["COLOR"]) == ("1000", "blue")
    assert spec["env"]["NOMAD_TASK_DIR"] == "/local"
    assert "PATH" not in spec["env"]  # the daemon's PATH is not valid in an image
    assert spec["no_new_privileges"]
    assert {(m["source"], m["destination"], m["options"][0]) for m in spec["mounts"]} == {
        (f"{home}/alloc", "/alloc", "rw"),
        (f"{home}/alloc/logs", "/alloc/logs", "ro"),
        (f"{home}/main/local", "/local", "rw"),
        (f"{home}/main/secrets", "/secrets", "rw"),
    }
    assert spec["resource_limits"]["memory"]["limit"] == task.resources.memory_mb << 20
    assert spec["resource_limits"]["pids"] == {"limit": 100}
    await world.stop(alloc_id)
    await world.until_done(alloc_id)


def looking_up(task: Task, job_id: str = "job") -> Job:
    """Return a job whose group sets the name servers of its task."""
    dns = NetworkDNS(servers=["10.9.8.7"], searches=["a.example", "b.example"], options=["ndots:2"])
    job = batch(task, job_id=job_id)
    (group,) = job.task_groups or ()
    networked = msgspec.structs.replace(group, networks=[Network(dns=dns)])
    return msgspec.structs.replace(job, task_groups=[networked])


async def test_container_uses_the_dns_of_its_group_unless_configured(
    world: World, fake: FakePodman
) -> None:
    first = await world.place(looking_up(contained(LINGER)))
    more = contained(LINGER, config={"dns_servers": ["10.1.1.1"], "network_mode": "bridge"})
    second = await world.place(looking_up(more, "more"))
    for alloc_id in (first, second):
        await world.until_status(alloc_id, "running")
    specs = [fake.containers[f"steward-{item}-main-0"].spec for item in (first, second)]
    assert [spec["dns_server"] for spec in specs] == [["10.9.8.7"], ["10.1.1.1"]]
    for spec in specs:
        assert (spec["dns_search"], spec["dns_option"]) == (["a.example", "b.example"], ["ndots:2"])
    for alloc_id in (first, second):
        await world.stop(alloc_id)
        await world.until_done(alloc_id)


async def test_stop_sends_a_signal_before_the_kill(world: World) -> None:
    text = "trap 'echo bye; exit 4' TERM; echo up; while :; do sleep 0.01; done"
    first = await world.place(
        service(contained(text, kill_signal="SIGTERM", kill_timeout=600 * SECOND))
    )
    await world.until_printed(first, "up")
    await world.stop(first)
    await world.until_done(first)
    assert ("Terminated", "Exit Code: 4") in world.told(first)
    assert world.output(first) == "up\nbye\n"
    deaf = contained(f"trap '' INT; echo up; {LINGER}", kill_timeout=SECOND // 10)
    second = await world.place(service(deaf, job_id="deaf"))
    await world.until_printed(second, "up")
    await world.stop(second)
    await world.until_done(second)
    assert ("Terminated", "Exit Code: 137, Signal: 9") in world.told(second)


async def test_signal_and_restart_reach_the_container(world: World) -> None:
    text = "trap 'echo got' USR1; echo up; while :; do sleep 0.01; done"
    alloc_id = await world.place(service(contained(text)))
    await world.until_printed(alloc_id, "up")
    await world.runner.signal(alloc_id, "main", "SIGUSR1")
    await world.until_printed(alloc_id, "got")
    await world.runner.restart(alloc_id, "main")
    await world.until(alloc_id, lambda item: state_of(item).restarts == 1)
    await world.until_printed(alloc_id, "got\nup")
    await world.stop(alloc_id)
    await world.until_done(alloc_id)


async def test_next_daemon_recovers_the_task_and_its_output(
    store: Store, data_dir: Path, tmp_path: Path, fake: FakePodman
) -> None:
    socket, first, second = tmp_path / "podman.sock", tmp_path / "first", tmp_path / "second"
    for gate in (first, second):  # two pipes, because one could be read twice
        os.mkfifo(gate)
    text = f"echo one; read x <{first}; echo two; read x <{second}; exit 5"
    async with world_of(store, data_dir, socket) as world:
        alloc_id = await world.place(batch(contained(text)))
        await world.until_printed(alloc_id, "one")
    await trio.to_thread.run_sync(first.write_text, "\n")
    (one,) = fake.containers.values()
    while b"two" not in await trio.Path(one.log).read_bytes():  # noqa: ASYNC110  # no event reports it
        await trio.sleep(0.005)
    async with world_of(store, data_dir, socket) as world:
        await world.until_printed(alloc_id, "two")
        await trio.to_thread.run_sync(second.write_text, "\n")
        await world.until_done(alloc_id)
        assert ("Terminated", "Exit Code: 5") in world.told(alloc_id)
        assert world.output(alloc_id) == "one\ntwo\n"
        assert world.types(alloc_id).count("Started") == 1


async def test_unknown_container_is_removed(world: World, fake: FakePodman) -> None:
    job = service(contained(LINGER))
    alloc_id = await world.place(job)
    await world.until_status(alloc_id, "running")
    await world.purge(job)
    await world.until_no_directory(alloc_id)
    assert fake.containers == {}


async def test_task_of_a_removed_container_has_failed(world: World, fake: FakePodman) -> None:
    alloc_id = await world.place(batch(contained("echo up; " + LINGER)))
    await world.until_printed(alloc_id, "up")
    (one,) = fake.containers.values()
    fake.containers.clear()
    assert one.process is not None
    one.process.kill()
    await world.until_status(alloc_id, "failed")
    assert "the container was removed" in str(world.told(alloc_id))


async def test_memory_kill_is_reported(world: World, fake: FakePodman) -> None:
    alloc_id = await world.place(batch(contained("echo up; " + LINGER)))
    await world.until_printed(alloc_id, "up")
    (one,) = fake.containers.values()
    one.oom = True
    assert one.process is not None
    one.process.kill()
    await world.until_status(alloc_id, "failed")
    (end,) = [event for event in world.events(alloc_id) if event.type == "Terminated"]
    assert (end.details or {})["oom_killed"] == "true"
    assert "OOM Killed" in end.display_message


async def test_resource_usage_comes_from_podman(world: World) -> None:
    alloc_id = await world.place(service(contained(LINGER)))
    await world.until_status(alloc_id, "running")
    used = (await world.runner.usage(alloc_id)).tasks["main"].resource_usage
    assert used.memory_stats.usage == 4096
    rates = used.network_stats
    assert rates is not msgspec.UNSET
    assert rates.received > rates.sent > 0
    await world.stop(alloc_id)
    await world.until_done(alloc_id)
    assert (await world.runner.usage(alloc_id)).tasks == {}


# ---- images -----------------------------------------------------------------------------------------


async def test_missing_image_is_pulled_by_its_full_name(world: World, fake: FakePodman) -> None:
    fake.shelf.add("docker.io/library/tool:2")
    auth = [{"username": "me", "password": "word"}]  # the form of a block in a job file
    task = contained("echo ran", config={"image": "tool:2", "auth": auth})
    alloc_id = await world.place(batch(task))
    await world.until_done(alloc_id)
    assert world.output(alloc_id) == "ran\n"
    ((reference, who),) = fake.pulled
    assert reference == "docker.io/library/tool:2"
    assert json.loads(base64.urlsafe_b64decode(who)) == {"username": "me", "password": "word"}


async def test_nonexistent_image_fails_the_task(world: World) -> None:
    alloc_id = await world.place(batch(contained("", config={"image": "no/such"})))
    await world.until_status(alloc_id, "failed")
    assert "manifest unknown" in dict(world.told(alloc_id))["Driver Failure"]


async def test_image_is_pulled_again_with_force_pull(world: World, fake: FakePodman) -> None:
    fake.shelf.add(IMAGE)
    alloc_id = await world.place(batch(contained("true", config={"force_pull": True})))
    await world.until_done(alloc_id)
    assert [reference for reference, _ in fake.pulled] == [IMAGE]


async def test_a_command_that_does_not_exist_is_reported(world: World, fake: FakePodman) -> None:
    alloc_id = await world.place(batch(contained("", config={"command": "/no/such"})))
    await world.until_status(alloc_id, "failed")
    assert "/no/such" in dict(world.told(alloc_id))["Driver Failure"]
    assert fake.containers == {}


@pytest.mark.parametrize(
    "block",
    [
        {"privileged": True},
        {"pid_mode": "host"},
        {"ipc_mode": "host"},
        {"userns_mode": "host"},
        {"network_mode": "container:other"},
        {"uts_mode": "host"},
        {"cap_add": ["SYS_ADMIN"]},
        {"cap_add": ["cap_sys_ptrace"]},
        {"cap_add": ["all"]},
        {"sysctl": {"net.ipv4.ip_forward": "1"}},
        {"security_opt": ["seccomp=unconfined"]},
        {"cgroup_parent": "/"},
        {"mounts": [{"type": "bind", "source": "/etc", "target": "/x"}]},
        {"volumes": ["/etc:/etc2"]},
        {"devices": ["/dev/sda"]},
        {"ports": ["none"]},
        {"ulimit": {"nofile": "many"}},
        {"shm_size": "big"},
    ],
)
async def test_no_setting_escapes_the_container(world: World, fake: FakePodman, block: Any) -> None:
    alloc_id = await world.place(
        batch(contained("true", config={"network_mode": "bridge", **block}))
    )
    await world.until_status(alloc_id, "failed")
    assert "Failed Validation" in world.types(alloc_id)
    assert fake.containers == {}


async def test_ports_are_those_of_the_allocation_regardless_of_the_environment(
    world: World, fake: FakePodman
) -> None:
    given = {"network_mode": "bridge", "ports": ["web"]}
    task = contained(LINGER, config=given, env={"NOMAD_HOST_PORT_web": "22"})
    port = AllocatedPort(label="web", value=23456, to=80, host_ip="127.0.0.1")
    job = service(task)
    (of_group,) = job.task_groups or ()
    plain = held(of_group)
    shared = msgspec.structs.replace(plain.shared, ports=[port])
    placement = Placement(
        resources=msgspec.structs.replace(plain, shared=shared),
        metrics=PlacementMetric(),
        node_name="node-1",
    )
    alloc_id = await world.place(job, placement=placement)
    await world.until_status(alloc_id, "running")
    (one,) = fake.containers.values()
    assert [(each["host_port"], each["container_port"]) for each in one.spec["portmappings"]] == [
        (23456, 80),
        (23456, 80),
    ]


async def test_tasks_with_similar_names_have_separate_containers(
    world: World, fake: FakePodman
) -> None:
    alloc_id = await world.place(service(contained(LINGER, "a.b"), contained(LINGER, "a-b")))
    await world.until_status(alloc_id, "running")
    assert len(fake.containers) == 2


async def test_allowed_volumes_are_mounted(
    store: Store, data_dir: Path, tmp_path: Path, fake: FakePodman
) -> None:
    async with world_of(store, data_dir, tmp_path / "podman.sock", volumes=True) as world:
        volumes = ["/srv:/data:ro", "local/x:/x"]
        alloc_id = await world.place(service(contained(LINGER, config={"volumes": volumes})))
        await world.until_status(alloc_id, "running")
        (one,) = fake.containers.values()
        bound = {m["destination"]: (m["source"], m["options"][0]) for m in one.spec["mounts"]}
        assert bound["/data"] == ("/srv", "ro")
        assert bound["/x"] == (f"{world.directory(alloc_id)}/main/local/x", "rw")
        await world.stop(alloc_id)
        await world.until_done(alloc_id)


# ---- commands inside ----------------------------------------------------------------------------------


async def test_exec_in_a_container_reports_its_exit_code(world: World) -> None:
    alloc_id = await world.place(service(contained("echo up; " + LINGER, env={"COLOR": "blue"})))
    await world.until_printed(alloc_id, "up")
    client = await run(world, alloc_id, "sh", "-c", "echo $COLOR; echo bad >&2; exit 7")
    assert client.seen() == "blue\n"
    assert client.seen("stderr") == "bad\n"
    assert client.others[-1]["result"] == {"exit_code": 7}
    talker = Client()
    async with talking(world, alloc_id, ["cat"], talker):
        talker.type("to and fro\n")
        await talker.until_seen("to and fro")
        talker.end_input()
    assert talker.others[-1]["exited"]


@pytest.mark.parametrize("user", ["", "1000"])
async def test_command_has_the_directory_and_the_user_of_its_task(
    world: World, fake: FakePodman, user: str
) -> None:
    task = contained("echo up; " + LINGER, config={"work_dir": "/usr"}, user=user)
    alloc_id = await world.place(service(task))
    await world.until_printed(alloc_id, "up")
    await run(world, alloc_id, "true")
    ((settings, _),) = fake.commands.values()
    assert (settings["WorkingDir"], settings["User"]) == ("/usr", user)


async def test_disconnect_ends_the_command(world: World, fake: FakePodman) -> None:
    alloc_id = await world.place(service(contained("echo up; " + LINGER)))
    await world.until_printed(alloc_id, "up")
    client = Client()
    async with talking(world, alloc_id, ["sh", "-c", f"echo on; {LINGER}"], client, tty=True):
        client.say({"tty_size": {"height": 40, "width": 100}})
        await client.until_seen("on")
        while not fake.sizes:  # noqa: ASYNC110  # the fake rings no bell
            await trio.sleep(0.005)
        client.leave()
    assert fake.sizes == [("40", "100")]
    (command,) = fake.commands
    while command not in fake.codes:  # noqa: ASYNC110  # no event reports it
        await trio.sleep(0.005)
    assert fake.codes[command] == 137


# ---- hosts without Podman -------------------------------------------------------------------------------


async def test_node_without_podman_has_a_reason(tmp_path: Path) -> None:
    config = Settings(podman_socket=str(tmp_path / "no.sock"))
    why = f"there is no podman socket at {tmp_path}/no.sock"
    assert await why_no_podman(config) == why
    deaf = trio.socket.socket(trio.socket.AF_UNIX)
    await deaf.bind(str(tmp_path / "deaf.sock"))
    deaf.close()
    (one, _) = await podman.find(str(tmp_path / "deaf.sock"), {}, volumes=False, processes=0)
    assert "podman does not answer at" in one.fingerprint().trouble


async def test_node_reports_its_podman_version(world: World) -> None:
    node = world.node()
    for name in ("podman", "docker"):
        assert node.drivers[name].healthy
        assert node.attributes[f"driver.{name}.version"] == "4.3.1"
        limits = {limit.name: limit.enforced for limit in node.limits(name)}
        assert limits == {"cpu": True, "memory": True, "processes": True, "cores": False}


def test_podman_socket_has_a_default_path() -> None:
    assert Settings(podman_socket="none").podman_service == ""
    assert Settings(podman_socket="/x").podman_service == "/x"
    assert Settings().podman_service.endswith("/podman/podman.sock")


# ---- real Podman ------------------------------------------------------------------------------------------


@pytest.fixture
async def real(store: Store, data_dir: Path) -> AsyncIterator[World]:
    """A node with its own podman, and an image with the host's shell."""
    program = shutil.which("podman")
    if program is None or os.geteuid() != 0:
        pytest.skip("podman is not installed, or this is not root")
    place = data_dir / "podman"
    place.mkdir()
    runtime = 'runtime = "runc"' if shutil.which("runc") else ""
    (place / "containers.conf").write_text(SETTINGS.format(runtime=runtime))
    env = {**os.environ, "CONTAINERS_CONF": str(place / "containers.conf")}
    # Podman does not accept a long path here.
    short = Path(await trio.to_thread.run_sync(partial(tempfile.mkdtemp, prefix="p-")))
    where = [f"--root={place}/root", f"--runroot={short}", "--storage-driver=vfs"]
    line = [program, *where]
    trial = [*line, "run", "--rm", "--network=host", IMAGE, "/bin/sh", "-c", "echo runs"]

    def prepare() -> str:
        """Return why this host cannot run containers, or an empty string."""
        packed = image(place / "image")
        made = subprocess.run([*line, "import", packed, IMAGE], env=env, capture_output=True)
        ran = subprocess.run(trial, env=env, capture_output=True)
        return "" if ran.stdout == b"runs\n" else (made.stderr + ran.stderr).decode()[-300:]

    if why := await trio.to_thread.run_sync(prepare):
        pytest.skip(f"podman runs no containers here: {why}")
    socket = place / "podman.sock"
    service = await trio.lowlevel.open_process(
        [*line, "system", "service", "--time=0", f"unix://{socket}"], env=env
    )
    try:
        while not await trio.Path(socket).exists():  # noqa: ASYNC110  # no event reports it
            await trio.sleep(0.01)
        async with world_of(store, data_dir, socket) as world:
            yield world
    finally:
        service.terminate()
        await service.wait()
        with trio.CancelScope(shield=True):
            await trio.run_process([*line, "rm", "--all", "--force"], env=env, capture_stdout=True)
            await trio.to_thread.run_sync(partial(shutil.rmtree, short, ignore_errors=True))


def image(folder: Path) -> str:
    """Return an archive with a shell and a few programs of this host, and their libraries."""
    (folder / "bin").mkdir(parents=True)
    for name in PROGRAMS:
        program = os.path.realpath(shutil.which(name) or "")
        shutil.copy(program, folder / "bin" / name)
        said = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
        for library in (word for word in said.split() if word.startswith("/")):
            target = folder / library.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, target)
    packed = f"{folder}.tar"
    subprocess.run(["tar", "-C", str(folder), "-cf", packed, "."], check=True)
    return packed


async def test_real_podman_behaves_like_the_fake(real: World) -> None:
    text = "echo out; echo err >&2; echo kept >/local/f; id -u; exit 3"
    first = await real.place(batch(contained(text)))
    await real.until_status(first, "failed")
    assert ("Terminated", "Exit Code: 3") in real.told(first)
    assert real.output(first) == "out\n0\n"
    assert real.output(first, kind="stderr") == "err\n"
    assert (real.directory(first) / "main/local/f").read_text() == "kept\n"

    text = (
        "trap 'echo got' USR1; trap 'echo bye; exit 4' TERM; echo up; while :; do sleep 0.01; done"
    )
    task = contained(text, kill_signal="SIGTERM", kill_timeout=600 * SECOND, env={"COLOR": "blue"})
    second = await real.place(service(task, job_id="second"))
    await real.until_printed(second, "up")
    await real.runner.signal(second, "main", "SIGUSR1")
    await real.until_printed(second, "got")
    used = (await real.runner.usage(second)).tasks["main"].resource_usage
    assert used.memory_stats.measured == ("Usage",)
    client = await run(real, second, "/bin/sh", "-c", "echo $COLOR; echo bad >&2; exit 7")
    assert (client.seen(), client.seen("stderr")) == ("blue\n", "bad\n")
    assert client.others[-1]["result"] == {"exit_code": 7}
    talker = Client()
    async with talking(real, second, ["/bin/cat"], talker):
        talker.type("to and fro\n")
        await talker.until_seen("to and fro")
        talker.end_input()
    assert talker.others[-1]["exited"]
    terminal = await run(real, second, "/bin/sh", "-c", "test -t 0 && echo yes", tty=True)
    assert terminal.seen() == "yes\r\n"
    await real.stop(second)
    await real.until_done(second)
    assert ("Terminated", "Exit Code: 4") in real.told(second)
    assert real.output(second) == "up\ngot\nbye\n"

    resolving = await real.place(looking_up(contained("cat /etc/resolv.conf"), "resolving"))
    await real.until_status(resolving, "complete")
    found = {tuple(line.split()) for line in real.output(resolving).splitlines()}
    assert found == {
        ("nameserver", "10.9.8.7"),
        ("search", "a.example", "b.example"),
        ("options", "ndots:2"),
    }

    missing = await real.place(batch(contained("", config={"command": "/no/such"}), job_id="third"))
    await real.until_status(missing, "failed")
    assert "/no/such" in dict(real.told(missing))["Driver Failure"]
