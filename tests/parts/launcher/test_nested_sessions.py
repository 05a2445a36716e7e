"""Kills of commands that lead a session below the programs that enter a sandbox."""

import os
import select
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from daemon.launcher import process_scan
from daemon.launcher.exec_sessions import ExecSessions
from daemon.launcher.process_scan import Process

COMMAND = "read -r line; setsid sh -c 'echo $$; exec sleep 600' & wait"


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("T")


def test_command_that_starts_during_its_kill_does_not_survive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scan = process_scan.list_processes
    with subprocess.Popen(
        ["/bin/sh", "-c", COMMAND],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as entering:
        assert entering.stdin is not None
        assert entering.stdout is not None

        def scan_before_the_start(directory: str) -> list[Process]:
            """Let the command start after the scan, unless its start was prevented."""
            found = scan(directory)
            os.write(entering.stdin.fileno(), b"\n")
            while not is_stopped(entering.pid):
                if select.select([entering.stdout], [], [], 0.01)[0]:
                    break
            return found

        monkeypatch.setattr(process_scan, "list_processes", scan_before_the_start)
        sessions = ExecSessions()
        number = sessions.register(entering.pid, is_nested=True)
        sessions.kill(number, hang_up=False)
        assert entering.wait() == -signal.SIGKILL
        started = os.read(entering.stdout.fileno(), 100)
        with suppress(ProcessLookupError):  # it has ended
            if started:
                os.kill(int(started), signal.SIGKILL)
        assert started == b""


@pytest.mark.parametrize("hang_up", [True, False])
def test_signals_reach_the_session_of_the_command(*, hang_up: bool) -> None:
    text = "setsid sh -c 'echo ready; exec sleep 600' & wait $!"
    with subprocess.Popen(
        ["/bin/sh", "-c", text], stdout=subprocess.PIPE, start_new_session=True
    ) as entering:
        assert entering.stdout is not None
        assert entering.stdout.readline() == b"ready\n"
        sessions = ExecSessions()
        sessions.kill(sessions.register(entering.pid, is_nested=True), hang_up=hang_up)
        assert entering.stdout.read() == b""  # the command has ended
        assert entering.wait() == (128 + signal.SIGHUP if hang_up else -signal.SIGKILL)


def test_hang_up_of_another_command_spares_sessions_below_it() -> None:
    text = "setsid sh -c 'echo ready; read -r line; echo $line' & wait $!"
    with subprocess.Popen(
        ["/bin/sh", "-c", f"exec 3<&0; {text.replace('& wait', '<&3 & wait')}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as command:
        assert command.stdout is not None
        assert command.stdout.readline() == b"ready\n"
        sessions = ExecSessions()
        sessions.kill(sessions.register(command.pid), hang_up=True)
        assert command.wait() == -signal.SIGHUP
        assert command.stdin is not None
        command.stdin.write(b"alive\n")
        command.stdin.flush()
        assert command.stdout.read() == b"alive\n"
