"""`operator confinement` tells the truth about the daemon, its launcher and its tasks.

The daemon is executed instead of forked, because it imports modules after it has confined itself.
"""

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.service.daemon import Steward, open_steward

SCRIPT = "echo ready; exec sleep 1000"


def task(name: str, driver: str) -> Any:
    config = {"command": "/bin/sh", "args": ["-c", SCRIPT]}
    return {"Name": name, "Driver": driver, "Config": config}


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Steward]:
    """Run a daemon with an `exec` task and a `raw_exec` task."""
    tasks = [task("walled", "exec"), task("bare", "raw_exec")]
    async with open_steward(tmp_path, "--dev", executed=True) as steward:
        (node,) = await steward.get("/v1/nodes")
        if not node["Drivers"]["exec"]["Healthy"]:
            pytest.skip(f"exec: {node['Drivers']['exec']['HealthDescription']}")
        job = {"ID": "two", "Type": "service", "TaskGroups": [{"Name": "g", "Tasks": tasks}]}
        (one,) = await steward.run_job(job)
        for name in ("walled", "bare"):
            while "ready" not in await steward.log_of(one["ID"], name):
                await steward.get("/v1/agent/self")
        yield steward


def rules(process: Any) -> dict[str, bool]:
    return {rule["Rule"]: rule["Holds"] for rule in process["Rules"]}


async def test_each_process_is_shown_with_its_kernel_state(running: Steward) -> None:
    shown = await running.get("/v1/operator/confinement")
    found = {process["Name"]: process for process in shown["Processes"]}
    assert list(found) == ["daemon", "launcher", "exec", "raw_exec"]
    is_root = os.geteuid() == 0
    assert found["daemon"]["PID"] == running.pid
    assert rules(found["daemon"])["user"] is not is_root
    assert rules(found["daemon"])["memory"]
    assert rules(found["launcher"])["threads"]
    assert rules(found["launcher"])["session"]
    walled = rules(found["exec"])
    assert walled["user"]
    assert walled["capabilities"]
    assert walled["no_new_privileges"]
    assert walled["nosuid"]
    assert not walled["namespaces"]  # the task uses the network of the host
    assert not rules(found["raw_exec"])["namespaces"]
    assert (found["exec"]["Task"], found["raw_exec"]["Task"]) == ("walled", "bare")


async def test_confinement_command_prints_the_report(running: Steward) -> None:
    done = await running.cli("operator", "confinement")
    text = done.stdout.decode()
    assert done.returncode == 0, done.stderr
    for title in (f"Daemon, process {running.pid}", "Launcher, process", "driver raw_exec"):
        assert title in text
    assert "shares net with the daemon" in text
