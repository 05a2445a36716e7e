"""The launcher of a real daemon: both end together, and tasks keep running.

Daemon and launcher are executed instead of forked, because the way of the start determines the
state that the launcher inherits.
"""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import trio

from daemon.config.data_directory import alloc_dir
from daemon.launcher.shims import children
from tests.service.daemon import as_development, open_steward
from tests.service.test_daemon_lifecycle import service
from tests.time_limits import HAPPENS_WITHIN


def launcher_of(pid: int) -> int:
    """Return the process of a daemon's launcher."""
    found = [
        child
        for child in children(pid)
        if Path(f"/proc/{child}/comm").read_text() == "steward-launch\n"
    ]
    assert len(found) == 1
    return found[0]


def status_of(pid: int) -> str:
    return Path(f"/proc/{pid}/status").read_text()


async def test_launcher_has_its_own_session(tmp_path: Path) -> None:
    async with open_steward(tmp_path, "--dev", executed=True) as steward:
        pid = launcher_of(steward.pid)
        assert os.getsid(pid) == pid
        assert os.readlink(f"/proc/{pid}/cwd") == "/"
        shown = status_of(pid)
        assert "Umask:\t0077\n" in shown
        assert "Threads:\t1\n" in shown
        descriptors = {
            os.readlink(f"/proc/{pid}/fd/{item}") for item in os.listdir(f"/proc/{pid}/fd")
        }
        assert {descriptor for descriptor in descriptors if descriptor.startswith("/")} == {
            "/dev/null",
            str(steward.log),
            str(alloc_dir(steward.data_dir) / ".launcher"),
        }


async def test_tasks_are_children_of_the_launcher_and_survive_both(tmp_path: Path) -> None:
    async with open_steward(tmp_path, "--dev", executed=True) as steward:
        await steward.run_job(service())
        launcher = launcher_of(steward.pid)
        tasks = await steward.task_pids("web")
        assert set(children(launcher)) & set(tasks)  # the shim
        await steward.kill_and_restart()
        assert await steward.task_pids("web") == tasks
        assert launcher_of(steward.pid) != launcher


async def test_launcher_ends_with_its_daemon(tmp_path: Path) -> None:
    async with open_steward(tmp_path, "--dev", executed=True) as steward:
        launcher = os.pidfd_open(launcher_of(steward.pid))
        await steward.kill()
        await trio.lowlevel.wait_readable(launcher)
        os.close(launcher)
        await steward.start()


async def test_daemon_ends_with_status_1_when_its_launcher_dies(tmp_path: Path) -> None:
    async with open_steward(tmp_path, *as_development(tmp_path), executed=True) as steward:
        (before,) = await steward.run_job(service())
        os.kill(launcher_of(steward.pid), signal.SIGKILL)
        assert steward._process is not None
        assert await steward._process.wait() == 1
        assert "the launcher has ended" in steward.log.read_text()
        assert "Traceback" not in steward.log.read_text()
        await steward._end(signal.SIGTERM)
        await steward.start()
        (after,) = await steward.allocations("web", "running")
        assert (after["ID"], after["TaskStates"]["main"]["Restarts"]) == (before["ID"], 0)


WRITER = """
fill() { head -c 9000000 /dev/zero | tr '\\0' x; echo; echo "$1 words"; }
fill first
mkfifo local/pipe; read x <local/pipe; fill second
mkfifo local/done; read x <local/done; fill third; exec sleep 600
"""


async def test_logs_stay_limited_while_no_daemon_runs(tmp_path: Path) -> None:
    async with open_steward(tmp_path, *as_development(tmp_path), executed=True) as steward:
        (alloc,) = await steward.run_job(service(script=WRITER))
        place = alloc_dir(steward.data_dir) / alloc["ID"]
        log = place / "alloc/logs/main.stdout.0"
        with trio.fail_after(HAPPENS_WITHIN):
            await until(lambda: (place / "main/local/pipe").exists())
            await steward.kill()
            await tell(place / "main/local/pipe")
            await until(lambda: (place / "main/local/done").exists())
            await until(lambda: log.stat().st_blocks * 512 <= 2**20 + 8192)
        assert log.stat().st_size > 18_000_000
        await steward.start()
        shown = await steward.log_of(alloc["ID"], "main")
        assert shown.endswith("x\nsecond words\n")
        assert "\0" not in shown
        with trio.fail_after(HAPPENS_WITHIN):  # the rotation of the daemon continues
            await tell(place / "main/local/done")
            await until(lambda: log.stat().st_size > 27_000_000)
            await until(lambda: log.stat().st_blocks * 512 <= 2**20 + 8192)
        assert (await steward.log_of(alloc["ID"], "main")).endswith("x\nthird words\n")


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110  # no event reports this
        await trio.sleep(0.02)


async def tell(pipe: Path) -> None:
    await trio.to_thread.run_sync(pipe.write_text, "")
