"""When memory runs out in a control group that the daemon shares with its tasks, a task ends."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from daemon.launcher import shim_script

MIB = 1024 * 1024
LIMIT = 128 * MIB
HELD = 65 * MIB  # memory of the daemon: more than a task can get in the rest
DAEMON = f"""
import sys
from daemon.launcher.hardening import set_priority
if sys.argv[1] == "set":
    set_priority()
held = bytearray({HELD})
held[::4096] = b"x" * len(held[::4096])
print("ready", flush=True)
sys.stdin.read()
"""
TASK = "held = bytearray(300 * 1024 * 1024); held[::4096] = b'x' * len(held[::4096])"
ENTER = 'echo 0 >"$1/cgroup.procs" && shift && exec "$@"'
KILLED = 137, -9
# The mount point of the memory controller in cgroup version 1 and 2, and the files with its limits.
PLACES = (
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
    (Path("/sys/fs/cgroup"), "memory.max", "memory.swap.max"),
)


@pytest.fixture
def shared_group() -> Iterator[Path]:
    """Yield a control group of 128 MiB without swap."""
    for parent, limit, swap in PLACES:
        group = parent / f"steward-test-{uuid4()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            try:
                (group / limit).write_text(str(LIMIT))
            except OSError:
                continue
            with_swap = group / swap
            if with_swap.exists():
                with_swap.write_text(str(LIMIT) if "memsw" in swap else "0")
            yield group
            return
        finally:
            group.rmdir()
    pytest.skip("this host permits no memory limit for the test's group")


def run_in(group: Path, *words: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        ["/bin/sh", "-c", ENTER, "sh", str(group), *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can raise its priority")
@pytest.mark.parametrize("is_set", [True, False])
def test_memory_limit_of_a_shared_cgroup_ends_the_task_and_not_the_daemon(
    shared_group: Path, tmp_path: Path, is_set: bool
) -> None:
    daemon = run_in(shared_group, sys.executable, "-c", DAEMON, "set" if is_set else "unset")
    try:
        assert daemon.stdout is not None
        assert daemon.stdout.readline() == "ready\n"
        words = [sys.executable, "-c", TASK]
        if is_set:
            tools = shim_script.find_tools()
            words, _ = shim_script.command_line(
                tools, words, {}, shim_dir=str(tmp_path), entry="", open_files=64, inside=True
            )
        task = run_in(shared_group, *words)
        task.communicate()
        if is_set:
            assert task.returncode in KILLED
            assert daemon.poll() is None
        else:  # by default the kernel kills the larger process
            assert daemon.wait() in KILLED
    finally:
        daemon.kill()
        daemon.communicate()
