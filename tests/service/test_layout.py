"""A data directory of an older version, with a task that keeps running during the move."""

import os
from pathlib import Path

import trio

from daemon.config.data_directory import alloc_dir
from tests.parts.test_data_dir_migration import back
from tests.service.daemon import as_development, open_steward
from tests.service.test_daemon_lifecycle import service

# Prints lines from a pipe, and opens the pipe by its path for each line.
LISTENING = """
mkfifo "$NOMAD_TASK_DIR/p"; echo up
while :; do read x <"$NOMAD_TASK_DIR/p" && echo "$x"; done
"""


async def test_tasks_continue_through_a_revert_and_an_upgrade_of_the_layout(tmp_path: Path) -> None:
    async with open_steward(tmp_path, *as_development(tmp_path)) as steward:
        job = service()
        config = {"command": "/bin/sh", "args": ["-c", LISTENING]}
        job["TaskGroups"][0]["Tasks"][0]["Config"] = config
        ((one),) = await steward.run_job(job)
        before = await steward.task_pids("web")
        await steward.stop()
        back(steward.data_dir)
        older = steward.data_dir / "alloc"
        assert not older.is_symlink()
        await say(older / one["ID"] / "main/local/p", "before")
        await steward.start()
        assert older.is_symlink()
        assert alloc_dir(steward.data_dir).is_dir()
        assert await steward.task_pids("web") == before
        await say(older / one["ID"] / "main/local/p", "after")
        with trio.fail_after(20):
            while (said := await steward.log_of(one["ID"], "main")) != "up\nbefore\nafter\n":
                assert "up\nbefore\nafter\n".startswith(said)
                await trio.lowlevel.checkpoint()
        (found,) = await steward.allocations("web", "running")
        assert (found["ID"], found["TaskStates"]["main"]["Restarts"]) == (one["ID"], 0)


async def say(pipe: Path, line: str) -> None:
    """Write a line to a pipe that the task opens."""
    with trio.fail_after(20):
        await trio.to_thread.run_sync(_write, pipe, line, abandon_on_cancel=True)


def _write(pipe: Path, line: str) -> None:
    descriptor = os.open(pipe, os.O_WRONLY)
    os.write(descriptor, f"{line}\n".encode())
    os.close(descriptor)
