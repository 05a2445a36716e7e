"""A task leaves a set-user-ID program of its user, and all users get access to its directory.

The daemon is executed instead of forked.
"""

import subprocess
from pathlib import Path

import pytest
import trio

from daemon.config.data_directory import alloc_dir
from tests.attacks.test_local_user import STRANGER
from tests.parts.runner.conftest import needs_root
from tests.parts.runner.test_secret_dirs import may_mount
from tests.service.daemon import as_development, open_steward
from tests.service.test_daemon_lifecycle import service

pytestmark = needs_root


async def test_a_set_user_id_program_has_no_effect_below_the_mount(tmp_path: Path) -> None:
    if not may_mount(tmp_path):
        pytest.skip("this host permits no mounts")
    async with open_steward(tmp_path, *as_development(tmp_path), executed=True) as steward:
        job = service()
        text = "cp /bin/dash local/sh; chmod 6755 local/sh; ls -l local/sh; exec sleep 600"
        task = job["TaskGroups"][0]["Tasks"][0]
        task |= {"User": "daemon", "Config": {"command": "/bin/sh", "args": ["-c", text]}}
        [one] = await steward.run_job(job)
        await steward.restart()
        main = alloc_dir(steward.data_dir) / one["ID"] / "main"
        with trio.fail_after(20):
            while not (await steward.log_of(one["ID"], "main")).startswith("-rwsr-sr-x"):
                await trio.lowlevel.checkpoint()
        for place in (main.parent, main, main / "local"):
            place.chmod(0o755)
        done = await trio.to_thread.run_sync(as_stranger, main / "local/sh")
        assert done == f"{STRANGER} {STRANGER}\n"
        shown = await steward.get("/v1/operator/confinement")
        rules = {rule["Rule"]: rule["Holds"] for rule in shown["Node"]}
        assert rules["nosuid"]


def as_stranger(shell: Path) -> str:
    """Return the output of the program `shell` when an unrelated user of the host runs it."""
    return subprocess.run(
        [f"./{shell.name}", "-p", "-c", "echo $(id -u) $(id -g)"],
        cwd=shell.parent,
        user=STRANGER,
        group=STRANGER,
        extra_groups=[],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout
