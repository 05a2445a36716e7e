"""A task tries to reach the host's metadata service and the daemon despite `task_egress`."""

import os
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from daemon.config.settings import GUARDED, Settings
from daemon.confinement import egress
from daemon.runner.core.bridge_rules import bridge_of
from daemon.runner.drivers import cgroup_v2
from daemon.runner.task_egress import TaskEgressPolicy, denied, guarded
from storage.records.pool import Pool
from tests.service.daemon import Steward, open_steward

REFUSED = "Operation not permitted"
# Each line of the output: an address, and the result of a connection to it.
SCRIPT = """\
for place in $PLACES; do
  said=$( (exec 3<>/dev/tcp/$place) 2>&1) && said=connected
  echo "$place ${said##*: }"
done
"""


@pytest.fixture
def guarded_group(tmp_path: Path) -> Path:
    """Return a new control group; skip the test if the kernel permits no BPF programs for it."""
    if (groups := cgroup_v2.find(tmp_path)) is None:
        pytest.skip("the daemon cannot use cgroup v2")
    (place,) = cgroup_v2.mount_points(groups.parent)
    trial = guarded(Settings(task_egress=GUARDED), [place])
    trouble = trial.trouble
    TaskEgressPolicy([place]).set_up(())
    groups.release()
    if trouble:
        pytest.skip(trouble)
    if shutil.which("bash", path="/usr/bin:/bin") is None:
        pytest.skip("tasks cannot access bash")
    return place


@asynccontextmanager
async def steward_with(directory: Path, setting: str) -> AsyncIterator[Steward]:
    file = directory / "steward.toml"
    file.write_text(f'task_egress = "{setting}"\n')
    async with open_steward(directory, "--dev", "--config", str(file)) as steward:
        yield steward


def job(job_id: str, driver: str, places: list[str]) -> Any:
    config = {"command": "/bin/bash", "args": ["-c", SCRIPT]}
    env = {"PLACES": " ".join(places)}
    task = {"Name": "main", "Driver": driver, "Config": config, "Env": env}
    return {"ID": job_id, "Type": "batch", "TaskGroups": [{"Name": "g", "Tasks": [task]}]}


async def tried(steward: Steward, job_id: str, driver: str, places: list[str]) -> dict[str, str]:
    """Return the results of a task's connections by address."""
    (node,) = await steward.get("/v1/nodes")
    if not node["Drivers"][driver]["Healthy"]:
        pytest.skip(f"{driver}: {node['Drivers'][driver]['HealthDescription']}")
    await steward.register(job(job_id, driver, places))
    (one,) = await steward.allocations(job_id, "complete")
    lines = (await steward.log_of(one["ID"], "main")).splitlines()
    return {place: said for place, _, said in (line.partition(" ") for line in lines)}


@pytest.mark.parametrize("driver", ["exec", "raw_exec"])
@pytest.mark.usefixtures("guarded_group")
async def test_task_reaches_neither_metadata_nor_the_daemon(driver: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        theirs = f"127.0.0.1/{other.getsockname()[1]}"
        async with steward_with(tmp_path, GUARDED) as steward:
            port = steward.address.rpartition(":")[2]
            hosts = ("127.0.0.1", "127.1.2.3", "0.0.0.0", "::1", "::ffff:127.0.0.1")  # noqa: S104  # an address that is tested
            closed = [*(f"{host}/{port}" for host in hosts), "169.254.169.254/80"]
            found = await tried(steward, "first", driver, [*closed, theirs])
            await steward.restart()
            again = await tried(steward, "second", driver, [closed[0], theirs])
            rules = (await steward.get("/v1/operator/confinement"))["Node"]
    assert found == dict.fromkeys(closed, REFUSED) | {theirs: "connected"}
    assert again == {closed[0]: REFUSED, theirs: "connected"}
    assert {rule["Rule"]: rule["Holds"] for rule in rules}["task_egress"] is True


def test_start_with_open_access_removes_the_guard(guarded_group: Path) -> None:
    guarded_group.mkdir()
    try:
        held = guarded(Settings(task_egress=GUARDED), [guarded_group])
        assert held.check()[0]
        egress.detach(str(guarded_group))
        assert not held.check()[0]  # the check reads the state from the kernel
        guarded(Settings(task_egress=GUARDED), [guarded_group])
        guarded(Settings(), [guarded_group])
        assert not egress.is_attached(str(guarded_group))
    finally:
        guarded_group.rmdir()


def test_unprivileged_daemon_recognizes_its_guard_by_the_group(guarded_group: Path) -> None:
    guarded_group.mkdir()
    held = guarded(Settings(task_egress=GUARDED), [guarded_group])
    os.seteuid(65534)
    try:
        with pytest.raises(PermissionError):
            egress.is_attached(str(guarded_group))
        assert held.check()[0]
    finally:
        os.seteuid(0)
    guarded_group.rmdir()
    guarded_group.mkdir()  # a new group without a filter
    os.seteuid(65534)
    try:
        assert not held.check()[0]
    finally:
        os.seteuid(0)
        guarded_group.rmdir()


def test_guard_remains_after_the_last_task(tmp_path: Path, guarded_group: Path) -> None:
    groups = cgroup_v2.find(tmp_path)
    assert groups is not None
    groups.delegate((0, 0))
    held = guarded(Settings(task_egress=GUARDED), cgroup_v2.mount_points(groups.parent))
    one = groups.of("0b8a1c52-1c7e-4b6e-8f43-0123456789ab", "main")
    one.prepare()
    os.rmdir(one.label)
    assert held.check()[0]
    assert groups.release()
    with pytest.raises(FileNotFoundError):  # a recreated group has no filter
        one.prepare()


def test_failure_to_set_up_a_guard_has_a_reason(tmp_path: Path) -> None:
    nowhere = guarded(Settings(task_egress=GUARDED), [])
    assert nowhere.check() == (False, nowhere.trouble)
    assert "control groups" in nowhere.trouble
    assert nowhere.attributes == {"task_egress.unenforced": nowhere.trouble}
    no_group = guarded(Settings(task_egress=GUARDED), [tmp_path / "missing" / "group"])
    assert not no_group.check()[0]
    assert no_group.trouble


async def test_health_reports_an_ineffective_guard(tmp_path: Path) -> None:
    async with steward_with(tmp_path, GUARDED) as steward:
        health = await steward.get("/v1/agent/health")
        rules = (await steward.get("/v1/operator/confinement"))["Node"]
    (rule,) = [rule for rule in rules if rule["Rule"] == "task_egress"]
    expected = (
        "ok" if rule["Holds"] else f'task_egress = "guarded" is not enforced: {rule["Reason"]}'
    )
    assert health["client"] == {"ok": True, "message": expected}


@pytest.mark.parametrize(
    ("bind", "others"), [("127.0.0.1", 0), ("localhost", 0), ("192.0.2.9", 1), ("::1", 0)]
)
def test_the_daemons_own_addresses_are_on_the_list(bind: str, others: int) -> None:
    found = [item for item in denied(Settings(bind=bind, port=4646)) if item.port]
    assert {item.port for item in found} == {4646}
    assert len(found) == len(egress.LOOPBACK) + 1 + others  # 1: the bridge


def test_the_listener_of_clusters_is_on_the_list() -> None:
    pools = {"hpc": Pool(engine="slurm")}
    config = Settings(
        port=4646,
        pools=pools,
        wrapper_bind="192.0.2.9",
        wrapper_port=4699,
        task_egress="guarded",
    )
    found = {(str(item.network), item.port) for item in denied(config)}
    assert {("192.0.2.9/32", 4699), ("127.0.0.0/8", 4699)} <= found
    assert "4646, 4699" in bridge_of(config).rules
    assert 4699 not in {item.port for item in denied(Settings(port=4646))}
