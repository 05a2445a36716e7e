"""A daemon starts, ends, and refuses to start.

Each daemon is executed instead of forked, so that it imports its modules.
"""

import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest
import trio

from daemon.config.data_directory import store_dir
from daemon.process.main import EXIT_CONFIG, EXIT_FAILURE, EXIT_STORAGE
from storage.records.base import SECOND
from tests.service.daemon import Steward, as_development, environment, open_steward

ENDS_IN_ORDER_WITHIN = 5.0


def service(job_id: str = "web", script: str = "exec sleep 1000", **fields: object) -> object:
    task = {
        "Name": "main",
        "Driver": "raw_exec",
        "Config": {"command": "/bin/sh", "args": ["-c", script]},
        "Resources": {"CPU": 20, "MemoryMB": 20},
        "LogConfig": {"MaxFiles": 1, "MaxFileSizeMB": 1},
        **fields,
    }
    group = {"Name": "g", "Tasks": [task], "EphemeralDisk": {"SizeMB": 10}}
    return {"ID": job_id, "Type": "service", "TaskGroups": [group]}


@pytest.fixture
async def steward(tmp_path: Path) -> AsyncIterator[Steward]:
    """Run the executable in development mode for one test."""
    async with open_steward(tmp_path, "--dev", executed=True) as running:
        yield running


async def refused(*flags: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
    """Start a daemon that is expected to exit."""
    with trio.fail_after(60):
        return await trio.run_process(
            [sys.executable, "-m", "daemon", "agent", *flags],
            capture_stdout=True,
            capture_stderr=True,
            check=False,
            env=environment(**variables),
        )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signal_stops_the_daemon_gracefully(steward: Steward, number: int) -> None:
    began = time.monotonic()
    assert await steward.stop(number) == 0
    assert time.monotonic() - began < ENDS_IN_ORDER_WITHIN


BLOCKING = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
os.execv(sys.argv[1], sys.argv[1:])
"""


async def test_daemon_whose_parent_blocks_signals_starts_and_ends(tmp_path: Path) -> None:
    steward = Steward(tmp_path, ("--dev",))
    steward.before = (sys.executable, "-c", BLOCKING)
    try:
        await steward.start()
        await steward.run_job(service())
        assert await steward.stop() == 0
    finally:
        await steward.close()


async def test_waiting_client_does_not_delay_the_shutdown(steward: Steward) -> None:
    index = (await steward.request("GET", "/v1/jobs")).headers["X-Service-Index"]
    async with trio.open_nursery() as nursery:

        async def wait() -> None:
            with pytest.raises(Exception, match=r"."):  # a cut connection, with any error
                await steward.until("/v1/jobs", bool, index=index)

        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked(0.2)
        assert await steward.stop() == 0


async def test_tasks_of_a_development_daemon_end_with_it_even_if_they_ignore_signals(
    steward: Steward,
) -> None:
    stubborn = service(script="trap '' TERM; while :; do sleep 1; done", KillTimeout=60 * SECOND)
    await steward.run_job(stubborn)
    assert await steward.stop() == 0
    assert steward.processes() == []


async def test_tasks_in_production_continue_and_are_recovered(tmp_path: Path) -> None:
    async with open_steward(tmp_path, *as_development(tmp_path), executed=True) as steward:
        await steward.run_job(service())
        before = await steward.task_pids("web")
        await steward.stop()
        assert steward.processes() != []
        await steward.start()
        assert await steward.task_pids("web") == before


async def test_second_signal_stops_the_daemon_immediately(tmp_path: Path) -> None:
    async with open_steward(tmp_path, "--dev", executed=True) as steward:
        await steward.run_job(
            service(script="trap '' TERM; while :; do sleep 1; done", KillTimeout=60 * SECOND)
        )
        os.kill(steward.pid, signal.SIGTERM)
        assert await steward.stop() in (EXIT_FAILURE, 0)


async def test_a_second_daemon_on_the_same_data_is_refused_with_the_pid_of_the_first(
    steward: Steward,
) -> None:
    second = await refused("--dev", "--port", "0", "--data-dir", str(steward.data_dir))
    assert second.returncode == EXIT_STORAGE
    assert str(steward.pid) in second.stderr.decode()
    assert b"Traceback" not in second.stderr
    assert (await steward.get("/v1/agent/health"))["server"]["ok"]


async def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        outcome = await refused("--dev", "--port", port, "--data-dir", str(tmp_path / "data"))
    assert outcome.returncode == EXIT_CONFIG
    assert port in outcome.stderr.decode()
    assert b"Traceback" not in outcome.stderr


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--port", "x"), "port = 'x'"),
        (("--xyzzy",), "No such option '--xyzzy'. See steward agent --help"),
        (("--prt",), "'--prt'. Did you mean '--port'? See steward agent --help"),
        (("--dev", "--bind", "192.0.2.1"), "loopback"),
        (("--node-meta", "zone"), "'zone' is not of the form key=value"),
        (("--config", "/nonexistent/steward.toml"), "cannot read the configuration"),
    ],
)
async def test_invalid_settings_stop_the_daemon_with_one_line(
    flags: tuple[str, ...], words: str
) -> None:
    outcome = await refused(*flags)
    assert outcome.returncode == EXIT_CONFIG
    assert words in outcome.stderr.decode()
    assert len(outcome.stderr.splitlines()) == 1


async def test_help_of_the_daemon_appears_once() -> None:
    outcome = await refused("--help")
    assert (outcome.returncode, outcome.stderr) == (0, b"")
    assert outcome.stdout.count(b"Usage: steward agent") == 1


async def test_file_that_is_no_store_is_refused_unchanged(tmp_path: Path) -> None:
    file = tmp_path / "data" / "store" / "steward.db"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"not a database, but somebody's letter" * 100)
    before = file.read_bytes()
    outcome = await refused("--dev", "--port", "0", "--data-dir", str(file.parent.parent))
    assert outcome.returncode == EXIT_STORAGE
    assert b"Traceback" not in outcome.stderr
    assert file.read_bytes() == before


async def test_daemon_killed_during_the_creation_of_its_store_starts_again(tmp_path: Path) -> None:
    unfinished = tmp_path / "data" / "store" / "steward.db.new"
    unfinished.parent.mkdir(parents=True)
    with sqlite3.connect(unfinished) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
    connection.close()
    async with open_steward(tmp_path, "--dev", executed=True) as steward:
        assert await steward.get("/v1/jobs") == []


async def stopped_copy(tmp_path: Path) -> Path:
    """Return a copy of the data of an ended daemon, which the test can damage."""
    async with open_steward(tmp_path, "--dev", executed=True) as steward:
        await steward.stop()
        return shutil.copytree(steward.data_dir, tmp_path / "copy")


async def test_damaged_store_is_refused_with_one_line(tmp_path: Path) -> None:
    copy = await stopped_copy(tmp_path)
    file = copy / "store/steward.db"
    whole = file.read_bytes()
    file.write_bytes(whole[:8192] + b"damaged!" * 4096 + whole[8192 + 8 * 4096 :])
    outcome = await refused("--dev", "--port", "0", "--data-dir", str(copy))
    assert outcome.returncode == EXIT_STORAGE
    assert b"Traceback" not in outcome.stderr


async def test_start_while_another_program_holds_the_write_lock_can_be_tried_again(
    tmp_path: Path,
) -> None:
    copy = await stopped_copy(tmp_path)
    with closing(sqlite3.connect(copy / "store/steward.db", isolation_level=None)) as outside:
        outside.execute("BEGIN IMMEDIATE")
        outcome = await refused("--dev", "--port", "0", "--data-dir", str(copy))
    assert outcome.returncode == EXIT_FAILURE  # a service manager does not restart after 74
    assert b"another program holds the write lock" in outcome.stderr
    assert b"Traceback" not in outcome.stderr


async def test_invalid_data_directory_path_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    outcome = await refused("--dev", "--port", "0", "--data-dir", str(tmp_path / "file" / "data"))
    assert outcome.returncode == EXIT_STORAGE
    assert str(tmp_path / "file" / "data") in outcome.stderr.decode()
    assert b"Traceback" not in outcome.stderr


async def test_data_directory_replaceable_by_others_is_refused(tmp_path: Path) -> None:
    above = tmp_path / "above"
    above.mkdir()
    above.chmod(0o777)
    outcome = await refused("--port", "0", "--data-dir", str(above / "data"))
    assert outcome.returncode == EXIT_STORAGE
    said = outcome.stderr.decode()
    assert f"all users can write to {str(above)!r}: run chmod o-w on it" in said
    assert "Traceback" not in said


async def test_replaceable_data_directory_is_only_a_warning_in_development(tmp_path: Path) -> None:
    above = tmp_path / "above"
    above.mkdir()
    above.chmod(0o777)
    async with open_steward(above, "--dev", executed=True) as steward:
        assert (await steward.get("/v1/status/leader")) != ""


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v1/job/a/submission?version=18446744073709551615", None),
        ("POST", "/v1/job/a/stable", {"JobID": "a", "JobVersion": 2**64 - 1, "Stable": True}),
        ("POST", "/v1/job/a/revert", {"JobID": "a", "JobVersion": 2**64 - 1}),
    ],
)
async def test_number_beyond_the_stored_range_matches_nothing(
    steward: Steward, method: str, path: str, body: object
) -> None:
    await steward.register(service("a"))
    answer = await steward.request(method, path, body)
    assert answer.status_code in (404, 500)
    assert "internal error" not in answer.text


async def test_store_of_a_newer_steward_is_refused(tmp_path: Path) -> None:
    copy = await stopped_copy(tmp_path)
    with sqlite3.connect(copy / "store/steward.db") as connection:
        connection.execute("PRAGMA user_version = 9999")
    connection.close()
    outcome = await refused("--dev", "--port", "0", "--data-dir", str(copy))
    assert outcome.returncode == EXIT_STORAGE
    assert "newer" in outcome.stderr.decode()


async def test_store_is_not_readable_by_other_users(steward: Steward) -> None:
    files = [path for path in steward.data_dir.glob("*") if path.is_file()]
    # This file belongs to the user that started the daemon.
    assert [path.name for path in files] == ["kept-defaults.json"]
    assert [path.stat().st_mode & 0o022 for path in files] == [0]
    assert store_dir(steward.data_dir).stat().st_mode & 0o777 == 0o700
    kept = list(store_dir(steward.data_dir).rglob("*"))
    assert [path.name for path in kept if path.stat().st_mode & 0o077] == []


async def test_development_daemon_without_a_directory_leaves_no_files(tmp_path: Path) -> None:
    process = await trio.lowlevel.open_process(
        [sys.executable, "-m", "daemon", "agent", "--dev", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment(TMPDIR=str(tmp_path)),
    )
    assert process.stdout is not None
    with trio.fail_after(30):
        await process.stdout.receive_some()
        there = os.listdir(tmp_path)
        process.terminate()
        assert await process.wait() == 0
    await process.stdout.aclose()
    assert len(there) == 1
    assert os.listdir(tmp_path) == []


async def test_restored_snapshot_has_all_objects(steward: Steward, tmp_path: Path) -> None:
    await steward.run_job(service("kept"))
    file, where = str(tmp_path / "snapshot"), str(steward.data_dir)
    saved = await steward.cli("operator", "snapshot", "save", file, "--data-dir", where)
    assert saved.returncode == 0
    await steward.delete("/v1/job/kept", purge=True)
    early = await steward.cli("operator", "snapshot", "restore", file, "--data-dir", where)
    assert early.returncode == 1
    assert str(steward.pid) in early.stderr.decode()
    await steward.stop()
    restored = await steward.cli("operator", "snapshot", "restore", file, "--data-dir", where)
    assert restored.returncode == 0
    await steward.start()
    assert [job["ID"] for job in await steward.get("/v1/jobs")] == ["kept"]


async def test_damaged_snapshot_is_detected(steward: Steward, tmp_path: Path) -> None:
    file = tmp_path / "snapshot"
    where = str(steward.data_dir)
    await steward.cli("operator", "snapshot", "save", str(file), "--data-dir", where)
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    looked = await steward.cli("operator", "snapshot", "inspect", str(file))
    assert looked.returncode == 1
    assert b"Traceback" not in looked.stderr
