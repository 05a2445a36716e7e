"""Drivers that run local processes: their fingerprints, and the usage of hidden processes."""

import os
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from daemon.launcher.client import Launcher
from daemon.launcher.messages import GetProcessInfo, SendSignal
from daemon.runner.core.driver import InvalidConfig, writes_files
from daemon.runner.core.resource_usage import CpuAccount
from daemon.runner.drivers.exec import ExecDriver
from daemon.runner.drivers.mock import MockDriver
from daemon.runner.drivers.process_handle import ProcessHandle, StartedTask
from daemon.runner.drivers.process_scan import ProcessScanner
from daemon.runner.drivers.raw_exec import RawExecDriver


def launcher(trouble: str = "") -> Launcher:
    """Return a launcher that reports this trouble with its tools."""
    return cast(Launcher, SimpleNamespace(walls=SimpleNamespace(tools=trouble)))


def driver(trouble: str = "", *, enabled: bool = True) -> RawExecDriver:
    """Return a driver whose launcher reports this trouble with its tools."""
    return RawExecDriver(ProcessScanner(), {}, launcher(trouble), enabled=enabled)


def test_driver_without_its_tools_has_a_reason() -> None:
    found = driver("bwrap is missing").fingerprint()
    assert (found.trouble, found.attributes) == ("bwrap is missing", {})


def test_disabled_driver_has_a_reason() -> None:
    found = driver(enabled=False).fingerprint()
    assert found.trouble.startswith("raw_exec is off: set raw_exec = true")
    assert found.attributes == {}


def test_enabled_driver_has_its_attributes() -> None:
    found = driver().fingerprint()
    assert found.trouble == ""
    assert found.attributes["driver.raw_exec"] == "true"
    assert all(name.startswith("driver.raw_exec") for name in found.attributes)


class Stage:
    """A launcher and a process group with one process, which /proc hides from the daemon."""

    def __init__(self, *texts: str) -> None:
        self.texts, self.requests = texts, list[GetProcessInfo]()

    async def members(self, launcher: Launcher, attempt: int) -> list[int]:
        return [2**22 + 1] if self.texts else []  # above the highest process ID

    async def usage(self, request: GetProcessInfo) -> list[str]:
        self.requests.append(request)
        return list(self.texts)

    def account(self) -> CpuAccount | None:
        return None


def files_of(pid: int, user_ticks: int) -> tuple[str, str]:
    """Return the texts of two files in /proc."""
    status = f"Pid:\t{pid}\nTgid:\t{pid}\nVmRSS:\t8 kB\n"
    return status, f"{pid} (a b) S {' '.join(['0'] * 10)} {user_ticks} 0 {' '.join(['0'] * 30)}"


def started_with(stage: Any) -> StartedTask:
    return StartedTask(
        alloc_id="a1",
        task="main",
        number=2,
        path="/claim",
        group=stage,
        bounded=stage,
        shim=1,
        outputs=None,
    )


async def test_launcher_reads_the_usage_of_hidden_processes() -> None:
    stage: Any = Stage(*files_of(7, 3), *files_of(9, 5))
    started = started_with(stage)
    found = await ProcessHandle(stage, started, None).usage()
    assert {pid: sample.rss for pid, sample in found.processes.items()} == {7: 8192, 9: 8192}
    assert found.processes[9].user * 3 == found.processes[7].user * 5 > 0
    assert stage.requests == [GetProcessInfo(allocation="a1", task="main", attempt=2)]


async def test_usage_of_no_processes_needs_no_launcher() -> None:
    stage: Any = Stage()
    started = started_with(stage)
    assert (await ProcessHandle(stage, started, None).usage()).processes == {}
    assert stage.requests == []


@pytest.mark.parametrize(
    ("block", "fault"),
    [
        ({"seccomp": "off"}, 'seccomp "off": the agent\'s configuration does not permit it'),
        ({"user_namespaces": True}, "user_namespaces true: the agent's configuration does not"),
        ({"seccomp": "some"}, 'seccomp "some": must be default or off'),
        ({"pid_mode": "host"}, "pid_mode 'host': only private is supported"),
        ({"ipc_mode": "host"}, "ipc_mode 'host': only private is supported"),
        ({"cap_add": ["kill"]}, "exec grants no capabilities"),
    ],
)
def test_setting_that_weakens_the_sandbox_is_refused(block: dict[str, Any], fault: str) -> None:
    with pytest.raises(InvalidConfig, match=fault):
        ExecDriver(ProcessScanner(), {}, launcher()).check({"command": "x", **block})


@pytest.mark.parametrize("block", [{"seccomp": "off"}, {"user_namespaces": True}])
def test_agent_can_permit_a_relaxed_filter(block: dict[str, Any]) -> None:
    permitting = ExecDriver(ProcessScanner(), {}, launcher(), unfiltered=True)
    permitting.check({"command": "x", **block})


def test_driver_writes_files_only_if_it_says_so() -> None:
    assert writes_files(driver())
    assert not writes_files(MockDriver())
    assert not writes_files(None)
    changed: Any = SimpleNamespace(writes_files=False)
    assert not writes_files(changed)


class StubbornTask:
    """A launcher, and a group, of a task that ends only when its shim is killed."""

    def __init__(self) -> None:
        self.sent = list[tuple[float, str, bool]]()
        self.handle: Any = None

    async def signal(self, request: SendSignal) -> bool:
        self.sent.append((round(trio.current_time(), 3), request.signal, request.to_shim))
        if request.to_shim and request.signal == "SIGKILL":
            self.handle._ended.set()
        return True

    async def clear(self, launcher: Launcher, attempt: int) -> str:
        return ""


async def test_stop_kills_a_stubborn_task_and_at_last_its_shim(autojump_clock: Any) -> None:
    task: Any = StubbornTask()
    descriptor = os.open(os.devnull, os.O_RDONLY)
    task.handle = ProcessHandle(task, started_with(task), descriptor)
    began = trio.current_time()
    assert await task.handle.stop("SIGINT", 1.0) == ""
    os.close(descriptor)
    sent = [(round(at - began, 3), name, to_shim) for at, name, to_shim in task.sent]
    assert sent[:2] == [(0.0, "SIGCONT", True), (0.0, "SIGINT", False)]
    kills = [at for at, name, to_shim in sent if name == "SIGKILL" and not to_shim]
    assert kills[:3] == [1.0, 1.05, 1.1]
    assert sent[-1] == (kills[-1], "SIGKILL", True)
    assert 3.0 < kills[-1] <= 3.1
    wakes = [at for at, name, _ in sent[1:] if name == "SIGCONT"]
    assert wakes == kills
