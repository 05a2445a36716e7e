"""Access without a token: only for operators on the host."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.daemon import as_development, open_steward

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the operator of this test is root")


@pytest.fixture
def open_path() -> Iterator[Path]:
    """Yield a directory that every user can pass through."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


async def test_an_operator_administers_without_a_token(tmp_path: Path) -> None:
    async with open_steward(tmp_path) as steward:
        address = f"unix://{steward.data_dir}/steward.sock"
        done = await steward.cli("job", "status", "-address", address)
        assert (done.returncode, done.stdout) == (0, b"No jobs\n")
        refused = await steward.cli("job", "status")
        assert b"Permission denied" in refused.stderr


async def test_socket_is_recreated_after_a_crash(tmp_path: Path) -> None:
    async with open_steward(tmp_path) as steward:
        await steward.kill_and_restart()
        address = f"unix://{steward.data_dir}/steward.sock"
        assert (await steward.cli("job", "status", "-address", address)).returncode == 0


async def test_task_of_another_user_cannot_access_the_daemon(open_path: Path) -> None:
    """The daemon is executed instead of forked, because the task reads its memory in `/proc`."""
    script = """
    for file in steward.sock store store/steward.db store/root.key store/bootstrap-token tasks/uids; do
        cat "$DIR/$file" >/dev/null 2>&1 && echo "read $file"
        [ -w "$DIR/$file" ] && echo "may write $file"
    done
    ls "$DIR" 2>/dev/null && echo "listed"
    head -c1 /proc/$DAEMON/environ 2>/dev/null && echo "read environ"
    head -c1 /proc/$DAEMON/mem 2>/dev/null && echo "read memory"
    kill -0 $DAEMON 2>/dev/null && echo "may signal"
    env | grep -i -E 'key|secret_|passphrase|credential' && echo "environment tells"
    echo done
    """
    async with open_steward(open_path, *as_development(open_path), executed=True) as steward:
        env = {"DIR": str(steward.data_dir), "DAEMON": str(steward.pid)}
        task = {
            "Name": "main",
            "Driver": "raw_exec",
            "User": "nobody",
            "Env": env,
            "Config": {"command": "/bin/sh", "args": ["-c", script]},
            "Resources": {"CPU": 20, "MemoryMB": 20},
            "LogConfig": {"MaxFiles": 1, "MaxFileSizeMB": 1},
        }
        group = {"Name": "g", "Tasks": [task], "EphemeralDisk": {"SizeMB": 10}}
        await steward.register({"ID": "nosy", "Type": "batch", "TaskGroups": [group]})
        (allocation,) = await steward.allocations("nosy", "complete")
        assert await steward.log_of(allocation["ID"], "main") == "done\n"
