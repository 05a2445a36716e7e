"""The daemon has priority over its tasks for CPU time and memory, if permitted."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from daemon.launcher import hardening, shim_script

NOBODY = 65534
AUTOGROUP = Path("/proc/self/autogroup")
PROGRAM = """
import os, sys
from pathlib import Path
from daemon.launcher.hardening import set_priority
if sys.argv[1]:
    os.setresuid(*[int(sys.argv[1])] * 3)
before = [Path("/proc/self", name).read_text().split()[-1] for name in sys.argv[2:]]
set_priority()
print(before, [Path("/proc/self", name).read_text().split()[-1] for name in sys.argv[2:]])
"""

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can raise its priority")
with_autogroups = pytest.mark.skipif(not AUTOGROUP.exists(), reason="the kernel has no autogroups")


def states(*names: str, leads: bool, user: str = "") -> tuple[list[str], list[str]]:
    """Return the contents of a process's files before and after it raises its priority."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, user, *names],
        start_new_session=leads,
        capture_output=True,
        text=True,
        check=True,
    )
    before, after = done.stdout.strip()[1:-1].split("] [")
    return before.split(", "), after.split(", ")


@pytest.mark.parametrize(
    ("before", "after"), [("0\n", "-500"), ("300\n", "-500"), ("-900\n", "-900\n")]
)
def test_daemon_is_killed_late_when_memory_is_exhausted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, after: str
) -> None:
    score = tmp_path / "oom_score_adj"
    score.write_text(before)
    monkeypatch.setattr(hardening, "_OOM_SCORE", score)
    monkeypatch.setattr(hardening, "_AUTOGROUP", tmp_path / "none" / "autogroup")
    hardening.set_priority()
    assert score.read_text() == after


@as_root
@with_autogroups
def test_only_the_session_of_the_daemon_is_preferred() -> None:
    assert states("autogroup", leads=True) == (["'0'"], ["'-10'"])
    before, after = states("autogroup", leads=False)
    assert after == before


@as_root
def test_unprivileged_process_changes_nothing() -> None:
    names = ["oom_score_adj", *(["autogroup"] if AUTOGROUP.exists() else [])]
    before, after = states(*names, leads=True, user=str(NOBODY))
    assert after == before


@pytest.mark.parametrize("inside", [False, True])
def test_task_is_killed_early_when_memory_is_exhausted(tmp_path: Path, inside: bool) -> None:
    tools = shim_script.find_tools()
    words, env = shim_script.command_line(
        tools,
        ["/bin/cat", "/proc/self/oom_score_adj"],
        {},
        shim_dir=str(tmp_path),
        entry="",
        open_files=64,
        inside=inside,
    )
    out, claim = tmp_path / "out", tmp_path / "claim"
    with out.open("w") as output, claim.open("w") as trace:
        subprocess.run(
            ["/bin/sh", "-c", 'exec "$@" 3>/dev/null', "sh", *words],
            env=env,
            stdout=output,
            stderr=trace,
            check=True,
        )
    assert out.read_text() == "200\n"


def test_filter_support_is_detected_without_installing_a_filter() -> None:
    before = _seccomp()
    assert hardening.supports_filters() == Path("/proc/sys/kernel/seccomp/actions_avail").exists()
    assert _seccomp() == before


def _seccomp() -> list[str]:
    lines = Path("/proc/self/status").read_text().splitlines()
    return [line for line in lines if line.startswith("Seccomp")]
