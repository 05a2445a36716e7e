"""Programs of the bridge that do not end delay other requests of the launcher only briefly."""

import os
import signal
import time
from pathlib import Path

import msgspec
import pytest

from daemon.config.settings import Settings
from daemon.launcher import bridge, root_programs
from daemon.launcher.bridge import Bridge
from daemon.launcher.shim_script import find_tools
from daemon.runner.core.bridge_rules import bridge_of

_RETURNS_WITHIN = 1.5  # seconds: slightly more than the time limit of one program
HANGING = "#!/bin/sh\necho x >>{log}\nexec sleep 100\n"


@pytest.fixture
def calls(tmp_path: Path) -> Path:
    return tmp_path / "calls"


@pytest.fixture
def hanging(tmp_path: Path, calls: Path, monkeypatch: pytest.MonkeyPatch) -> Bridge:
    """A bridge whose programs hang."""
    program = tmp_path / "hangs"
    program.write_text(HANGING.format(log=calls))
    program.chmod(0o755)
    monkeypatch.setattr(bridge, "_SECONDS", 1)
    tools = msgspec.structs.replace(find_tools(), ip=str(program), nft=str(program))
    policy = bridge_of(Settings(port=4646, bridge_network_subnet="198.51.100.128/26"))
    return Bridge(policy, tools)


def test_requests_after_a_hung_program_fail_immediately(hanging: Bridge, calls: Path) -> None:
    before = time.monotonic()
    for work in (hanging.set_up, hanging.tidy, hanging.tidy):
        with pytest.raises(TimeoutError):
            work()
    assert time.monotonic() - before < _RETURNS_WITHIN
    assert calls.read_text() == "x\n"


def test_program_runs_again_after_a_pause(
    hanging: Bridge, calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(TimeoutError):
        hanging.tidy()
    later = time.monotonic() + bridge._PAUSE + 1
    monkeypatch.setattr(bridge.time, "monotonic", lambda: later)
    with pytest.raises(TimeoutError):
        hanging.tidy()
    assert calls.read_text() == "x\nx\n"


def test_program_stuck_in_the_kernel_is_abandoned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test discards the signal.

    In the kernel, a signal has no effect until the program returns from its call.
    """
    lost: list[int] = []
    monkeypatch.setattr(root_programs.os, "kill", lambda pid, _: lost.append(pid))
    before = time.monotonic()
    with pytest.raises(TimeoutError, match="sleep did not end within 1 s"):
        root_programs.run(["/bin/sleep", "100"], seconds=1)
    assert time.monotonic() - before < _RETURNS_WITHIN
    monkeypatch.undo()
    os.kill(lost[0], signal.SIGKILL)
    os.waitpid(lost[0], 0)
