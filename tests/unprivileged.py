"""Code of the daemon without privileges, with a fully privileged launcher.

    python -m tests.unprivileged MODULE FUNCTION DIRECTORY

The function receives a launcher and a data directory, and acts as the daemon with user ID 65534.
Only `store` in that directory belongs to it. On request it also receives the limit enforcement that
the daemon has when it drops its privileges.
"""

import importlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from inspect import signature
from pathlib import Path

import msgspec
import pytest
import trio

from daemon.config.data_directory import alloc_dir, store_dir
from daemon.config.settings import Settings
from daemon.launcher.client import open_launcher, send_hello
from daemon.launcher.fork import begin
from daemon.runner.task_containment import hold
from tests.launchers import EVERYTHING

NOBODY = 65534
Work = Callable[..., Awaitable[None]]
SKIPPED = 77  # the exit status for work that the host does not support


def run(work: Work) -> None:
    """Run a function without privileges. Raises `AssertionError` with its output if it fails."""
    data_dir = Path(tempfile.mkdtemp())
    try:
        data_dir.chmod(0o711)
        alloc_dir(data_dir).mkdir(mode=0o711, parents=True)
        store_dir(data_dir).mkdir(mode=0o700)
        os.chown(store_dir(data_dir), NOBODY, NOBODY)
        words = [sys.executable, "-m", "tests.unprivileged", work.__module__, work.__name__]
        done = subprocess.run(
            [*words, str(data_dir)], capture_output=True, text=True, check=False, timeout=120
        )
        if done.returncode == SKIPPED:
            pytest.skip(done.stderr)
        assert not done.returncode, done.stderr
    finally:
        hold(Settings(data_dir=data_dir), (0, 0)).release()
        shutil.rmtree(data_dir)


def main(module: str, function: str, data_dir: Path) -> None:
    channel = begin()
    holding = hold(Settings(data_dir=data_dir), (NOBODY, NOBODY))
    work: Work = getattr(importlib.import_module(module), function)
    held = holding.named(Settings(raw_exec_limits=True))
    if hasattr(work, "scans"):
        held["raw_exec_groups"] = []
    policy = msgspec.structs.replace(EVERYTHING, owner=NOBODY, **held)
    send_hello(channel, alloc_dir(data_dir), policy)
    getattr(work, "before", lambda: None)()
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)

    async def with_launcher() -> None:
        async with open_launcher(channel) as launcher:
            await work(*(launcher, data_dir, holding)[: len(signature(work).parameters)])

    try:
        trio.run(with_launcher)
    except* pytest.skip.Exception as group:
        sys.stderr.write(str(group.exceptions[0]))
        sys.exit(SKIPPED)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
