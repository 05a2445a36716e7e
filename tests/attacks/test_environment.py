"""A job's author searches the environment of the daemon for secrets.

The daemon is executed instead of forked.
"""

from pathlib import Path

import pytest

from daemon.launcher.client import Launcher
from daemon.runner.drivers.exec import ExecDriver
from daemon.runner.drivers.process_scan import ProcessScanner
from tests.service.daemon import open_steward

HIDDEN = ("DATABASE_URL", "OPENAI_KEY", "CREDENTIALS_DIRECTORY", "GITHUB_TOKEN", "PYTHONPATH_OF")
VALUE = "only-the-daemon-has-it"


def printing(driver: str) -> object:
    task = {"Name": "main", "Driver": driver, "Config": {"command": "/usr/bin/env"}}
    return {"ID": "env", "Type": "batch", "TaskGroups": [{"Name": "g", "Tasks": [task]}]}


@pytest.mark.parametrize("driver", ["raw_exec", "exec"])
async def test_task_gets_only_variables_of_the_allow_list(
    driver: str, tmp_path: Path, launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    if driver == "exec" and (
        trouble := ExecDriver(ProcessScanner(), {}, launcher).fingerprint().trouble
    ):
        pytest.skip(f"exec: {trouble}")
    for name in (*HIDDEN, "APP_MODE"):
        monkeypatch.setenv(name, VALUE)
    monkeypatch.setenv("LC_TEST", "passed on")
    config = tmp_path / "steward.toml"
    config.write_text('task_environment = ["APP_*"]\n')
    async with open_steward(tmp_path, "--dev", "--config", str(config), executed=True) as steward:
        await steward.register(printing(driver))
        (allocation,) = await steward.allocations("env", "complete")
        printed = (await steward.log_of(allocation["ID"], "main")).splitlines()
    assert [line for line in printed if VALUE in line] == [f"APP_MODE={VALUE}"]
    assert "LC_TEST=passed on" in printed
