"""A job's author tries to become root, or another user of the host, outside of development mode.

The daemon is executed instead of forked, because the tests also attack its data in `/proc`.
"""

import gzip
import os
import pwd
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.service.daemon import Steward, open_steward

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the daemon of this test runs as root")
STORES = Path(__file__).parents[1] / "parts/storage/forms/stores"
OF_OLD_STORE = "e9734af1-61d8-470c-95c5-6bb32e7a1977"  # the bootstrap token of the older store
OPEN = "raw_exec = true\n"


def saying_who(driver: str = "raw_exec", user: str = "") -> Any:
    """Return a job whose task prints its user ID."""
    config = {"command": "/usr/bin/id", "args": ["-u"]}
    task = {"Name": "main", "Driver": driver, "User": user, "Config": config}
    once = {"Attempts": 0, "Mode": "fail"}
    group = {
        "Name": "g",
        "RestartPolicy": once,
        "ReschedulePolicy": {"Attempts": 0, "Unlimited": False},
        "Tasks": [task],
    }
    return {"ID": "who", "Type": "batch", "Datacenters": ["*"], "TaskGroups": [group]}


@asynccontextmanager
async def steward_with(directory: Path, settings: str) -> AsyncIterator[Steward]:
    await trio.Path(directory).chmod(0o755)
    file = directory / "steward.toml"
    file.write_text(settings)
    async with open_steward(directory, "--config", str(file), executed=True) as running:
        yield running


async def uid_of(steward: Steward, job: Any) -> str:
    await steward.register(job)
    (found,) = await steward.allocations("who", "complete", "failed")
    return (await steward.log_of(found["ID"], "main")).strip()


async def refusal_of(steward: Steward, job: Any) -> str:
    await steward.register(job)
    (found,) = await steward.allocations("who", "failed")
    events = found["TaskStates"]["main"]["Events"]
    return " ".join(event["DisplayMessage"] for event in events)


async def test_raw_exec_is_off_unless_configured(tmp_path: Path) -> None:
    async with steward_with(tmp_path, "") as steward:
        (node,) = await steward.get("/v1/nodes")
        driver = node["Drivers"]["raw_exec"]
        assert (driver["Detected"], driver["Healthy"]) == (False, False)
        assert "raw_exec = true" in driver["HealthDescription"]
        done = await steward.register(saying_who())
        await steward.until(
            f"/v1/evaluation/{done['EvalID']}", lambda item: item["Status"] == "complete"
        )
        assert await steward.get("/v1/job/who/allocations") == []


@pytest.mark.parametrize(
    ("settings", "user"),
    [
        (OPEN, "nobody"),
        (OPEN + 'raw_exec_user = "daemon"\n', "daemon"),
        ("[plugin.raw_exec.config]\nenabled = true\n", "nobody"),
        ('[client.options]\n"driver.raw_exec.enable" = "1"\n', "nobody"),
    ],
)
async def test_task_without_user_runs_as_the_configured_user(
    settings: str, user: str, tmp_path: Path
) -> None:
    async with steward_with(tmp_path, settings) as steward:
        assert await uid_of(steward, saying_who()) == str(pwd.getpwnam(user).pw_uid)


async def test_task_runs_as_root_if_configured(tmp_path: Path) -> None:
    async with steward_with(tmp_path, OPEN + "raw_exec_root = true\n") as steward:
        assert await uid_of(steward, saying_who()) == "0"


@pytest.mark.parametrize("user", ["root", "0", "00", "daemon", "1"])
async def test_task_cannot_choose_an_unlisted_user(user: str, tmp_path: Path) -> None:
    async with steward_with(tmp_path, OPEN) as steward:
        told = await refusal_of(steward, saying_who(user=user))
    assert f'user "{user}" cannot run tasks of raw_exec' in told
    assert ("raw_exec_root" if user.strip("0") in ("", "root") else "task_users") in told


async def test_development_daemon_runs_tasks_as_its_own_user(tmp_path: Path) -> None:
    async with open_steward(tmp_path, "--dev", executed=True) as steward:
        assert await uid_of(steward, saying_who()) == "0"


# ---- upgrades --------------------------------------------------------------------------------------


def put_older_store(directory: Path) -> None:
    """Create the store of a daemon with schema version 14 in the data directory of the daemon."""
    (directory / "data").mkdir(mode=0o700)
    key = directory / "root.key"
    key.touch(mode=0o600)
    key.write_text("11" * 32)
    with closing(sqlite3.connect(directory / "data/steward.db", isolation_level=None)) as file:
        file.execute("PRAGMA journal_mode = WAL")
        file.executescript(gzip.decompress((STORES / "0014.sql.gz").read_bytes()).decode())


async def test_upgrade_preserves_raw_exec_with_a_warning(tmp_path: Path) -> None:
    put_older_store(tmp_path)
    async with steward_with(tmp_path, "") as steward:
        steward.token = OF_OLD_STORE
        assert await uid_of(steward, saying_who()) == "0"
        said = steward.log.read_text()
        steward.token = ""
        assert (await steward.request("GET", "/v1/metrics")).status_code == 200
    for setting in (
        "metrics_public = true",
        "raw_exec = true",
        "raw_exec_root = true",
        'task_users = ["*"]',
    ):
        assert setting in said


async def test_configuration_overrides_a_setting_preserved_by_an_upgrade(tmp_path: Path) -> None:
    put_older_store(tmp_path)
    async with steward_with(tmp_path, OPEN + "raw_exec_root = false\n") as steward:
        steward.token = OF_OLD_STORE
        assert await uid_of(steward, saying_who()) == str(pwd.getpwnam("nobody").pw_uid)
        assert (
            "raw_exec"
            not in steward.log.read_text().partition("the old values still apply")[2][:200]
        )
