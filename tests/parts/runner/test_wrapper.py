"""The wrapper on a host of a cluster until its claim: in these tests, no daemon answers."""

import os
import subprocess
from collections.abc import Callable
from importlib import resources
from pathlib import Path

import pytest

PACKAGE = "daemon.runner.drivers.slurm"
NOBODY = "http://127.0.0.1:1"
UNHEARD, NO_DIRECTORY = 90, 92
ATTEMPT = "steward-a1-main"


def wrapped(directory: Path, number: int = 0, **given: str) -> int:
    """Run the wrapper of an attempt; return its status."""
    script = resources.files(PACKAGE).joinpath("wrapper.sh").read_text()
    env = {
        "PATH": os.environ["PATH"],
        "HOME": "/",
        "STEWARD_CLAIM": f"a1.{number}.secret",
        "STEWARD_URL": NOBODY,
        "STEWARD_DIR": str(directory / ATTEMPT),
        "STEWARD_GRACE": "0",
        "STEWARD_PATIENCE": "0",
    }
    return subprocess.run(["/bin/sh", "-s"], input=script, text=True, env=env | given).returncode


def who(pid: int | str = "self") -> str:
    """Return the identity of a process, as wrappers record it."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    started = stat.rpartition(") ")[2].split()[19]
    space = os.readlink("/proc/self/ns/pid")
    return f"{os.uname().nodename} {boot} {space} {stat.split()[0]} {started}"


def dead(text: str) -> str:
    """Return an identity changed to that of an earlier process with the same number."""
    return f"{text.rpartition(' ')[0]} 1"


def elsewhere(text: str) -> str:
    """Return an identity changed to that of a process on another host."""
    return f"not-{text}"


def rebooted(text: str) -> str:
    """Return the identity of a process from before a restart of the host."""
    host, _, *rest = text.split()
    return " ".join([host, "another-boot", *rest])


def confined(text: str) -> str:
    """Return the identity of a dead process in a PID namespace that is not visible from here."""
    host, boot, _, *rest = dead(text).split()
    return " ".join([host, boot, "pid:[1]", *rest])


def living(text: str) -> str:
    """Return the identity unchanged, for a process that is still running."""
    return text


def lay(directory: Path, name: str, text: str, number: int = 0) -> Path:
    """Create the files that a wrapper has left there; return its record."""
    own = directory / name / ".steward"
    own.mkdir(parents=True)
    (own / "pid").write_text(f"{number} {text} {name}\n")
    (directory / name / "file").write_text("of a task")
    return directory / name / "file"


@pytest.mark.parametrize("left", [living, elsewhere, confined])
def test_directory_possibly_in_use_is_not_touched(
    tmp_path: Path, left: Callable[[str], str]
) -> None:
    file = lay(tmp_path, ATTEMPT, left(who()))
    other = lay(tmp_path, "steward-a2-main", left(who()))
    assert wrapped(tmp_path) == NO_DIRECTORY
    assert file.read_text() == other.read_text() == "of a task"


@pytest.mark.parametrize("left", [dead, rebooted])
def test_directories_of_dead_attempts_are_removed(
    tmp_path: Path, left: Callable[[str], str]
) -> None:
    lay(tmp_path, ATTEMPT, left(who()))
    lay(tmp_path, "steward-a2-main", left(who()))
    assert wrapped(tmp_path) == UNHEARD
    assert list(tmp_path.iterdir()) == []


def test_directory_of_an_earlier_attempt_on_another_host_is_removed(tmp_path: Path) -> None:
    lay(tmp_path, ATTEMPT, elsewhere(who()), number=1)
    other = lay(tmp_path, "steward-a2-main", elsewhere(who()), number=1)
    assert wrapped(tmp_path, number=1) == NO_DIRECTORY
    assert wrapped(tmp_path, number=2) == UNHEARD
    assert other.exists()
    assert not (tmp_path / ATTEMPT).exists()


def test_directory_of_another_program_is_not_removed(tmp_path: Path) -> None:
    file = lay(tmp_path, "else", dead(who()))
    (tmp_path / "steward-link").symlink_to(tmp_path / "else")
    (tmp_path / "steward-empty").mkdir()
    os.mkfifo(tmp_path / "steward-pipe")
    waiting = tmp_path / "steward-waiting" / ".steward"
    waiting.mkdir(parents=True)
    os.mkfifo(waiting / "pid")
    assert wrapped(tmp_path) == UNHEARD
    left = {"else", "steward-link", "steward-empty", "steward-pipe", "steward-waiting"}
    assert {path.name for path in tmp_path.iterdir()} == left
    assert file.exists()
