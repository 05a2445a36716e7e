"""The daemon's memory: no process of the same user can read it, and it is never dumped."""

import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import os, resource, sys, time
resource.setrlimit(resource.RLIMIT_CORE, [resource.getrlimit(resource.RLIMIT_CORE)[1]] * 2)
if sys.argv[1] == "private":
    from daemon.launcher.hardening import disable_core_dumps
    disable_core_dumps()
os.chdir(sys.argv[2])
print("ready", flush=True)
time.sleep(60)
"""
# Root has all permissions, so another user must try.
USER = (
    ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all")
    if os.geteuid() == 0
    else ()
)

# A Python in a user's home may be out of reach for other users.
pytestmark = pytest.mark.skipif(
    subprocess.run([*USER, sys.executable, "-c", ""], capture_output=True, check=False).returncode
    != 0,
    reason="another user cannot run this Python",
)


@contextmanager
def running(how: str, place: Path) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        [*USER, sys.executable, "-c", PROGRAM, how, str(place)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


@pytest.fixture
def place() -> Iterator[Path]:
    """Yield a directory that the other user can write to."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o777)
        yield Path(directory)


def gcore(process: subprocess.Popen[bytes], place: Path) -> bool:
    """Return whether a process's own user can get a core dump of it."""
    command = [*USER, "gcore", "-o", str(place / "core"), str(process.pid)]
    subprocess.run(command, capture_output=True, check=False)
    return any(place.glob("core*"))


def can_read(process: subprocess.Popen[bytes], name: str) -> bool:
    command = [*USER, "head", "-c1", f"/proc/{process.pid}/{name}"]
    return subprocess.run(command, capture_output=True, check=False).stdout != b""


@pytest.mark.skipif(shutil.which("gcore") is None, reason="gdb is not installed")
@pytest.mark.parametrize(("how", "dumped"), [("private", False), ("plain", True)])
def test_a_debugger_gets_no_core_of_a_private_process(place: Path, how: str, dumped: bool) -> None:
    with running(how, place) as process:
        assert gcore(process, place) is dumped


def test_crashed_private_process_leaves_no_core(place: Path) -> None:
    with running("private", place) as process:
        process.send_signal(signal.SIGQUIT)
        _, status = os.waitpid(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert os.WTERMSIG(status) == signal.SIGQUIT
    assert not os.WCOREDUMP(status)
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("name", ["environ", "maps", "auxv"])
def test_other_processes_of_the_user_cannot_inspect_a_private_process(
    place: Path, name: str
) -> None:
    with running("private", place) as private, running("plain", place) as plain:
        assert can_read(plain, name)
        assert not can_read(private, name)


THREADS = """
import ctypes, sys, threading
if sys.argv[1] == "one":
    from daemon.launcher.hardening import use_single_heap
    use_single_heap()
together = threading.Barrier(4)
def work():
    together.wait()
    kept = [bytes(1000) for _ in range(100)]
    together.wait()
threads = [threading.Thread(target=work) for _ in range(4)]
for one in threads:
    one.start()
for one in threads:
    one.join()
ctypes.CDLL(None).malloc_stats()
"""


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="only the GNU C library has many heaps"
)
@pytest.mark.parametrize(("heaps", "number"), [("many", 5), ("one", 1)])
def test_all_threads_share_one_heap(heaps: str, number: int) -> None:
    told = subprocess.run(
        [sys.executable, "-c", THREADS, heaps], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert told.stderr.count("Arena ") == number
