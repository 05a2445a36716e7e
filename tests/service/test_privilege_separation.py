"""A daemon that runs as an ordinary user performs root's operations through its launcher."""

import os
import pwd
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from daemon.config.data_directory import alloc_dir, store_dir, uids_dir
from tests.fakes.authority import Authority
from tests.fakes.slurm.world import fake_slurm
from tests.parts.runner.test_artifacts import Site
from tests.parts.runner.test_repositories import Repository
from tests.readable_home import UID, can_enter, entering
from tests.service.daemon import Steward
from tests.service.slurm.jobs import script
from tests.service.test_daemon_lifecycle import service
from tests.service.test_launcher import launcher_of

pytestmark = pytest.mark.skipif(
    not can_enter(), reason="a daemon of another user needs root, and permission to mount"
)
SETTINGS = """
user = "{user}"
raw_exec = true
raw_exec_root = true
task_users = ["*"]
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """Return a directory that other users can pass through."""
    made = Path(tempfile.mkdtemp(prefix="steward-separated-"))
    made.chmod(0o711)
    yield made
    shutil.rmtree(made, ignore_errors=True)


def separated(place: Path, user: str = str(UID)) -> Steward:
    settings = place / "steward.toml"
    settings.write_text(SETTINGS.format(user=user))
    settings.chmod(0o644)
    steward = Steward(place, ("--config", str(settings)))
    # The unit of systemd sets the same umask.
    steward.before = (*entering(), "sh", "-c", 'umask 077 && exec "$@"', "sh")
    return steward


@pytest.fixture
async def steward(place: Path) -> AsyncIterator[Steward]:
    made = separated(place)
    try:
        await made.start()
        yield made
    finally:
        with trio.CancelScope(shield=True):
            await made.close()


def uids_of(pid: int) -> list[int]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return [int(part) for part in next(x for x in lines if x.startswith("Uid:")).split()[1:]]


async def test_daemon_runs_as_its_user_and_the_launcher_as_root(steward: Steward) -> None:
    assert uids_of(steward.pid) == [UID] * 4
    assert uids_of(launcher_of(steward.pid)) == [0] * 4
    assert store_dir(steward.data_dir).stat().st_uid == UID
    assert {path.stat().st_uid for path in store_dir(steward.data_dir).rglob("*")} == {UID}
    assert steward.data_dir.stat().st_uid == 0
    assert alloc_dir(steward.data_dir).stat().st_uid == 0


async def test_confinement_report_shows_fulfilled_rules(steward: Steward) -> None:
    shown = await steward.get("/v1/operator/confinement")
    daemon, launcher = shown["Processes"][:2]
    assert {rule["Rule"]: rule["Holds"] for rule in daemon["Rules"]} == {
        "user": True,
        "capabilities": True,
        "no_new_privileges": True,
        "system_calls": True,
        "files": True,
        "memory": True,
        "programs": True,
    }
    assert (launcher["Name"], launcher["Rules"][0]["Holds"]) == ("launcher", False)
    rules = {one["Rule"]: one["Holds"] for one in shown["Node"]}
    assert rules["git"] is await can_sandbox(steward)
    (node,) = await steward.get("/v1/nodes", resources=True)
    shown = await steward.get(f"/v1/node/{node['ID']}")
    assert shown["Attributes"]["launcher.separated"] == "true"


async def can_sandbox(steward: Steward) -> bool:
    (node,) = await steward.get("/v1/nodes")
    return bool(node["Drivers"]["exec"]["Healthy"])


@pytest.mark.parametrize("driver", ["raw_exec", "exec"])
async def test_job_survives_a_restart_of_the_daemon(steward: Steward, driver: str) -> None:
    (node,) = await steward.get("/v1/nodes")
    if not node["Drivers"][driver]["Healthy"]:
        pytest.skip(f"{driver}: {node['Drivers'][driver]['HealthDescription']}")
    job = service()
    task = job["TaskGroups"][0]["Tasks"][0]
    task["Driver"] = driver
    task["User"] = "nobody"
    task["Config"] = {"command": "/bin/sh", "args": ["-c", "echo from the task; exec sleep 1000"]}
    task["Templates"] = [{"EmbeddedTmpl": "made", "DestPath": "local/made"}]
    ((one),) = await steward.run_job(job)
    with trio.fail_after(30):
        while await steward.log_of(one["ID"], "main") != "from the task\n":
            await trio.lowlevel.checkpoint()
    before = await steward.task_pids("web")
    assert before
    listed = await steward.get(f"/v1/client/fs/ls/{one['ID']}", path="main/local")
    assert [each["Name"] for each in listed] == ["made"]
    done = await steward.cli("alloc", "exec", one["ID"], "/bin/echo", "inside", **token(steward))
    assert done.stdout == b"inside\n", done.stderr
    used = await steward.get(f"/v1/client/allocation/{one['ID']}/stats")
    assert used["Tasks"]["main"]
    await steward.kill_and_restart()
    assert await steward.task_pids("web") == before
    (after,) = await steward.allocations("web", "running")
    assert (after["ID"], after["TaskStates"]["main"]["Restarts"]) == (one["ID"], 0)
    assert await steward.log_of(one["ID"], "main") == "from the task\n"
    await steward.delete("/v1/job/web", purge=True)
    await gone(steward, one["ID"])


async def test_exec_allocation_has_its_own_user(steward: Steward) -> None:
    (node,) = await steward.get("/v1/nodes")
    if not node["Drivers"]["exec"]["Healthy"]:
        pytest.skip(f"exec: {node['Drivers']['exec']['HealthDescription']}")
    job = service(script="id -u; exec sleep 1000", Driver="exec")
    ((one),) = await steward.run_job(job)
    with trio.fail_after(30):
        while not (printed := await steward.log_of(one["ID"], "main")):
            await trio.lowlevel.checkpoint()
    assert int(printed) in range(80_000, 90_000)


async def test_each_allocation_without_a_user_has_its_own_until_its_removal(
    steward: Steward,
) -> None:
    (node,) = await steward.get("/v1/nodes")
    if not node["Drivers"]["exec"]["Healthy"]:
        pytest.skip(f"exec: {node['Drivers']['exec']['HealthDescription']}")
    found = {}
    for name in ("one", "two"):
        job = service()
        job["ID"] = job["Name"] = name
        task = job["TaskGroups"][0]["Tasks"][0]
        task["Driver"] = "exec"
        task["Config"] = {"command": "/bin/sh", "args": ["-c", "id -u; exec sleep 1000"]}
        ((one),) = await steward.run_job(job)
        with trio.fail_after(30):
            while not (printed := await steward.log_of(one["ID"], "main")):
                await trio.lowlevel.checkpoint()
        found[one["ID"]] = printed.strip()
    kept = uids_dir(steward.data_dir)
    assert {path.name: os.readlink(path) for path in kept.iterdir()} == found
    assert len({*found.values()}) == len(found)
    assert (kept.stat().st_uid, kept.stat().st_mode & 0o777) == (0, 0o700)
    for name, alloc_id in zip(("one", "two"), found, strict=True):
        await steward.delete(f"/v1/job/{name}", purge=True)
        await gone(steward, alloc_id)
    with trio.fail_after(30):
        while [*kept.iterdir()]:
            await steward.get("/v1/agent/self")


def token(steward: Steward) -> dict[str, str]:
    return {"STEWARD_TOKEN": steward.token}


async def gone(steward: Steward, alloc_id: str) -> None:
    """Wait until the allocation has neither processes nor a directory."""
    with trio.fail_after(60):
        while steward.processes(alloc_id):
            await steward.get("/v1/agent/self")
        await steward.request("PUT", "/v1/system/gc")
        while (alloc_dir(steward.data_dir) / alloc_id).exists():
            await steward.get("/v1/agent/self")


async def test_ownership_of_the_store_changes_to_root_and_back(place: Path) -> None:
    steward = separated(place)
    try:
        await steward.start()
        ((one),) = await steward.run_job(service())
        before = await steward.task_pids("web")
        for user, uid in (("root", 0), (str(UID), UID), ("root", 0)):
            await steward.stop()
            separated(place, user)
            await steward.start()
            assert uids_of(steward.pid) == [uid] * 4
            assert {each.stat().st_uid for each in store_dir(steward.data_dir).rglob("*")} == {uid}
            assert await steward.task_pids("web") == before
            (after,) = await steward.allocations("web", "running")
            assert after["ID"] == one["ID"]
        assert "the daemon runs as root" in steward.log.read_text()
    finally:
        with trio.CancelScope(shield=True):
            await steward.close()


async def test_missing_user_is_an_error_with_a_fix(place: Path) -> None:
    steward = separated(place, "steward-of-nowhere")
    with pytest.raises(AssertionError, match="this user does not exist on this host; create it"):
        await steward.start()
    await steward.close()


async def test_settings_are_reloaded_by_the_daemon_user(steward: Steward) -> None:
    settings = Path(steward.flags[1])
    add(settings, 'log_level = "debug"')
    os.kill(steward.pid, signal.SIGHUP)
    await said(steward, "reloaded the certificate and the settings")
    close_to_others(settings)
    os.kill(steward.pid, signal.SIGHUP)
    await said(steward, f"the settings are unchanged: cannot read the configuration {settings}")
    assert await steward.get("/v1/agent/self")


async def test_renewed_key_readable_only_by_root_is_used(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steward = separated(place)
    certificate, key = Authority(place).certify("daemon")
    listener = f"""\
wrapper_bind = "127.0.0.1"
wrapper_port = 0
wrapper_tls_cert = "{certificate}"
wrapper_tls_key = "{key}"
"""
    settings = Path(steward.flags[1])
    add(settings, listener)
    close_to_others(key)
    with fake_slurm(place / "slurm") as slurm:
        monkeypatch.setenv("PATH", slurm.path)
        add_pool(settings)
        try:
            await steward.start()
            assert uids_of(steward.pid) == [UID] * 4
            Authority(place).certify("daemon")  # a new certificate and key in the same files
            close_to_others(key)
            os.kill(steward.pid, signal.SIGHUP)
            await said(steward, "reloaded the certificate")
            assert "the settings are unchanged" not in steward.log.read_text()
            shown = await steward.get("/v1/metrics")
            named = "steward.certificate.remaining_seconds"
            (gauge,) = [gauge for gauge in shown["Gauges"] if gauge["Name"] == named]
            assert gauge["Labels"] == {"setting": "wrapper_tls_cert"}
            assert 0 < gauge["Value"] < 86_400
        finally:
            with trio.CancelScope(shield=True):
                await steward.close()


def add(settings: Path, line: str) -> None:
    settings.write_text(f"{line}\n{settings.read_text()}")


def add_pool(settings: Path) -> None:
    """Add a pool with a cluster, which needs a listener for its hosts."""
    pool = '[pools.hpc]\nengine = "slurm"\npartition = "main"\n'
    settings.write_text(settings.read_text() + pool)


def close_to_others(file: Path) -> None:
    file.chmod(0o600)


async def said(steward: Steward, text: str) -> None:
    with trio.fail_after(30):
        while text not in steward.log.read_text():
            await steward.get("/v1/agent/self")


async def test_cluster_programs_run_as_the_user_of_the_task(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fake_slurm(place / "slurm") as slurm:
        slurm.directory.chmod(0o777)  # any user can run the fake cluster
        (slurm.directory / "lock").touch()
        (slurm.directory / "lock").chmod(0o666)
        monkeypatch.setenv("PATH", slurm.path)
        made = separated(place)
        add_pool(place / "steward.toml")
        try:
            await made.start()
            assert uids_of(made.pid) == [UID] * 4
            await made.until("/v1/node/pool/hpc/nodes", lambda all_: all_[0]["Status"] == "ready")
            await made.request("POST", "/v1/jobs", {"Job": script("a", "true", User="nobody")})
            await made.until(
                "/v1/job/a/allocations",
                lambda all_: any(
                    "was submitted" in event["DisplayMessage"]
                    for alloc in all_
                    for event in (alloc["TaskStates"] or {"main": {"Events": []}})["main"]["Events"]
                ),
            )
            (job,) = slurm.jobs()
            assert int(job["uid"]) == pwd.getpwnam("nobody").pw_uid
        finally:
            with trio.CancelScope(shield=True):
                await made.close()


# ---- programs ---------------------------------------------------------------------------------------


async def test_notification_commands_run_as_the_daemon_user(place: Path) -> None:
    steward = separated(place)
    said = place / "said"
    said.mkdir()
    said.chmod(0o777)
    script = (
        f"id -u >{said}/user; grep Seccomp: /proc/self/status >>{said}/user; cat >{said}/message"
    )
    words = msgspec.json.encode(["/bin/sh", "-c", script]).decode()
    settings = place / "steward.toml"
    settings.write_text(f"{settings.read_text()}[notify_commands]\nkeep = {words}\n")
    try:
        await steward.start()
        shown = await steward.get("/v1/operator/confinement")
        (programs,) = [one for one in shown["Processes"][0]["Rules"] if one["Rule"] == "programs"]
        assert programs["Holds"] is await can_sandbox(steward)
        done = await steward.cli("notify", "test", **token(steward))
        assert done.returncode == 0, done.stdout
        assert (said / "user").read_text().split() == [str(UID), "Seccomp:", "0"]
        assert msgspec.json.decode((said / "message").read_bytes())
    finally:
        with trio.CancelScope(shield=True):
            await steward.close()


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
@pytest.mark.parametrize("user", [str(UID), "root"])
async def test_git_runs_as_a_separate_user(place: Path, user: str, nursery: trio.Nursery) -> None:
    steward = separated(place, user)
    site = await open_site(nursery)
    repository = Repository(place)
    repository.commit("from the repository")
    source = repository.show(site)
    seen: set[int] = set()
    serve = site.serve

    async def look(stream: trio.SocketStream) -> None:
        seen.update(git_processes().values())
        await serve(stream)

    site.serve = look
    try:
        await steward.start()
        if not await can_sandbox(steward):
            pytest.skip("this host supports no sandboxes")
        await steward.register(batch_with(source, "cat local/f"))
        (allocation,) = await steward.allocations("clones", "complete")
        assert await steward.log_of(allocation["ID"], "main") == "from the repository"
    finally:
        with trio.CancelScope(shield=True):
            await steward.close()
    assert len(seen) == 1
    assert not git_processes()


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
async def test_git_ends_with_a_killed_daemon(steward: Steward, nursery: trio.Nursery) -> None:
    if not await can_sandbox(steward):
        pytest.skip("this host supports no sandboxes")
    site = await open_site(nursery)
    site.put("/r.git/info/refs", b"")
    site.pages["/r.git/HEAD"] = b"hang"
    await steward.register(batch_with(f"git::{site.url('/r.git')}", "true"))
    with trio.fail_after(30):
        while not any("GET /r.git/HEAD" in one for one in site.asked):  # noqa: ASYNC110  # no event reports it
            await trio.sleep(0.01)
    before = git_processes()
    assert before
    assert not set(before.values()) - {*range(80_000, 90_000)}
    await steward.kill()
    with trio.fail_after(30):
        while git_processes():  # noqa: ASYNC110  # nobody rings
            await trio.sleep(0.01)
    left = allocations_of(steward)
    assert len(left) == 2  # the one of the job and the one of git
    site.pages.clear()
    await steward.start()
    (one,) = await steward.allocations("clones", "failed", "pending", "running")
    with trio.fail_after(60):
        while allocations_of(steward) & left != {one["ID"]}:
            await steward.get("/v1/agent/self")


def batch_with(source: str, text: str) -> dict[str, Any]:
    """Return a job whose task fetches an artifact, and then runs a script."""
    task = {
        "Name": "main",
        "Driver": "raw_exec",
        "User": "nobody",
        "Config": {"command": "/bin/sh", "args": ["-c", text]},
        "Artifacts": [{"GetterSource": source}],
    }
    group = {"Name": "g", "Tasks": [task], "RestartPolicy": {"Attempts": 0, "Mode": "fail"}}
    return {"ID": "clones", "Type": "batch", "TaskGroups": [group]}


async def open_site(nursery: trio.Nursery) -> Site:
    """Serve a web site on loopback until the test ends."""
    made = Site()

    async def serve(stream: trio.SocketStream) -> None:
        await made.serve(stream)  # tests may replace this method

    (listener,) = await nursery.start(partial(trio.serve_tcp, host="127.0.0.1"), serve, 0)
    made.port = listener.socket.getsockname()[1]
    return made


def git_processes() -> dict[int, int]:
    """Return the user of each git process on this host, if the user has no account."""
    found = {}
    for one in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(OSError):  # the process has ended
            words = Path(f"/proc/{one}/cmdline").read_bytes()
            if b"git" in words and Path(f"/proc/{one}").stat().st_uid >= 80_000:
                found[int(one)] = Path(f"/proc/{one}").stat().st_uid
    return found


def allocations_of(steward: Steward) -> set[str]:
    every = os.listdir(alloc_dir(steward.data_dir))
    return {one for one in every if not one.startswith(".")}
