"""The check names what tests leave behind, and counts those that pass only alone."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.time_limits import HAPPENS_WITHIN

LIB = Path(__file__).parents[3] / "packaging/lib"
HEAD = "# a head\n"


def reaped(script: str, directory: Path, seconds: int = 60) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, LIB / "reaper.py", str(seconds), directory, "sh", "-c", script]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def test_command_without_leftovers_returns_its_status(tmp_path: Path):
    done = reaped("true & wait; exit 3", tmp_path)
    assert (done.returncode, done.stderr) == (3, "")


def test_orphaned_process_is_named_and_killed(tmp_path: Path):
    done = reaped(f"(setsid sleep 611 & echo $! >{tmp_path}/pid) & wait", tmp_path)
    assert done.returncode == 70
    assert "sleep 611" in done.stderr
    assert not Path("/proc", (tmp_path / "pid").read_text().strip()).exists()


def test_failure_takes_precedence_over_leftover_processes(tmp_path: Path):
    done = reaped("setsid sleep 612 & exit 1", tmp_path)
    assert done.returncode == 1
    assert "sleep 612" in done.stderr


def test_endless_command_is_interrupted_and_can_report(tmp_path: Path):
    script = "trap 'echo so far; exit 2' INT; while :; do sleep 0.1; done"
    done = reaped(script, tmp_path, seconds=1)
    assert (done.returncode, done.stdout) == (124, "so far\n")
    assert "did not end within 1 s" in done.stderr


def side_by_side(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, LIB / "side_by_side.py", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_commands_that_succeed_are_only_named():
    done = side_by_side("a", "echo", "x", "--", "b", "true")
    assert (done.returncode, done.stdout) == (0, "==> a: echo x\n==> b: true\n")


def test_failure_shows_its_output_and_ends_the_others():
    script = "echo why; echo not >&2; exit 3"
    done = side_by_side("a", "sh", "-c", script, "--", "b", "sleep", "613")
    assert done.returncode == 3
    assert done.stdout.endswith("why\nnot\na failed with status 3\n")


def test_last_command_can_fail():
    done = side_by_side(*("a", "true", "--", "b", "true", "--", "c", "sh", "-c", "kill -9 $$"))
    assert done.returncode == 137


ENDED_WORKER = """
import os, pytest
@pytest.mark.parametrize("number", range(40))
def test_one(number):
    if number == 30 and {ends}:
        os._exit(1)
"""


def test_end_of_a_worker_fails_one_test_and_ends_no_run(tmp_path: Path):
    for number in range(12):
        (tmp_path / f"test_{number}.py").write_text(ENDED_WORKER.format(ends=number == 4))
    (tmp_path / "conftest.py").write_text(
        "from tests.conftest import pytest_xdist_make_scheduler as pytest_xdist_make_scheduler"
    )
    options = ["-n", "2", "--dist", "loadfile", "-q", "-p", "no:cacheprovider", "-p", "no:trio"]
    words = [sys.executable, "-m", "pytest", *options, "--rootdir", tmp_path, "-c", os.devnull]
    done = subprocess.run(
        [*words, tmp_path],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
        timeout=HAPPENS_WITHIN,
    )
    assert done.returncode == 1
    assert "1 failed, 479 passed" in done.stdout
    assert "test_4.py::test_one[30]" in done.stdout


@pytest.fixture
def count(tmp_path: Path):
    counts = tmp_path / "counts"
    counts.write_text(HEAD)

    def run(commit: str, *failed: str) -> tuple[int, str]:
        (tmp_path / "failed").write_text(json.dumps(dict.fromkeys(failed, True)))
        words = [sys.executable, LIB / "flaky.py", tmp_path / "failed", counts, commit]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        return done.returncode, counts.read_text()

    return run


def test_third_commit_with_a_flaky_test_fails(count):
    assert count("one", "a[x y]") == (0, f"{HEAD}1 one a[x y]\n")
    assert count("one", "a[x y]") == (0, f"{HEAD}1 one a[x y]\n")
    assert count("two", "b", "a[x y]") == (0, f"{HEAD}2 two a[x y]\n1 two b\n")
    assert count("three", "b") == (0, f"{HEAD}2 two a[x y]\n2 three b\n")
    assert count("four", "a[x y]")[0] == 1


FAILURE = '<testcase classname="{}" name="test_kill"><{} message="{}">text</{}></testcase>'


@pytest.mark.parametrize(
    ("where", "kind", "message", "counts"),
    [
        ("tests.crash.test_matrix", "failure", "TooSlowError() [single exception in", False),
        ("tests.crash.test_matrix", "error", "tests.watchdog.TookTooLong", False),
        ("tests.crash.test_matrix", "failure", "AssertionError: lost: TooSlowError", True),
        (
            "tests.crash.test_matrix",
            "error",
            "failed on teardown with &quot;tests.watchdog.TookTooLong&quot;",
            False,
        ),
        ("tests.crash.test_matrix", "error", "worker gw0 crashed", True),
        ("tests.service.test_files", "failure", "AssertionError: assert 1 == 2", False),
    ],
)
def test_broken_promise_fails_the_check_immediately(
    tmp_path: Path, where: str, kind: str, message: str, counts: bool
):
    results = tmp_path / "results.xml"
    results.write_text(f"<suite>{FAILURE.format(where, kind, message, kind)}</suite>")
    words = [sys.executable, LIB / "crashes.py", results]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == counts
    assert done.stdout.strip() == (f"{where}.test_kill" if counts else "")


def test_timeout_explains_the_other_failures_of_a_test(tmp_path: Path):
    results, where = tmp_path / "results.xml", "tests.crash.test_matrix"
    failure = FAILURE.format(where, "failure", "trio.Cancelled: cancelled", "failure")
    error = FAILURE.format(where, "error", "tests.watchdog.TookTooLong", "error")
    results.write_text(f"<suite>{failure}{error}</suite>")
    words = [sys.executable, LIB / "crashes.py", results]
    assert subprocess.run(words, check=False).returncode == 0
