"""The shell code that the two commands of the README share."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DEADLINE = 10  # seconds


def script(body: str) -> list[str]:
    start = f'set -eu; me=test; root="{ROOT}"; . "$root/packaging/lib/environment.sh"; prepare'
    return ["env", "--default-signal=INT", "/bin/sh", "-c", f"{start}\n{body}"]


def run(body: str, **environment: str) -> subprocess.CompletedProcess[str]:
    variables: Mapping[str, str] = {**os.environ, **environment}
    return subprocess.run(
        script(body), capture_output=True, text=True, timeout=DEADLINE, env=variables, check=False
    )


def python(directory: Path, exit_status: int) -> Path:
    """Create a fake Python, of a sufficient version or not."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "python3"
    path.write_text(f'#!/bin/sh\n[ {exit_status} = 0 ] && exec "{sys.executable}" "$@"\nexit 1\n')
    path.chmod(0o755)
    return path


def test_a_step_has_the_status_of_its_command() -> None:
    done = run('step sh -c "exit 7" || echo "status $?"; step true; echo next')
    assert (done.stdout, done.returncode) == ("status 7\nnext\n", 0)


def test_quiet_step_prints_output_only_on_failure() -> None:
    done = run('quietly echo fine; quietly sh -c "echo broken; exit 3"')
    assert (done.stdout, done.returncode) == ("", 3)
    assert done.stderr == "test: failed with status 3: sh -c echo broken; exit 3\nbroken\n"


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_interrupt_ends_a_step_with_its_children(number: int, status: int) -> None:
    # The step and its child hold the pipe open, so `communicate` returns only when both have ended.
    body = "step sh -c 'sleep 1000 & echo started; wait'"
    with subprocess.Popen(script(body), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        process.send_signal(number)
        rest, _ = process.communicate(timeout=DEADLINE)
    assert (rest, process.returncode) == ("", status)


def test_step_can_be_interrupted_separately() -> None:
    done = run("step sh -c 'kill -INT $$; echo survived' || echo \"status $?\"")
    assert done.stdout == "status 130\n"


def test_temporary_directory_is_empty_afterwards(tmp_path: Path) -> None:
    run("quietly false", TMPDIR=str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_first_suitable_python_is_chosen(tmp_path: Path) -> None:
    too_old, good = python(tmp_path / "old", 1), python(tmp_path / "good", 0)
    chosen = f"candidates() {{ echo '{tmp_path}/none'; echo '{too_old}'; echo '{good}'; }}"
    done = run(f"{chosen}; find_python")
    assert done.stdout == f"{sys.executable}\n"


def test_missing_python_is_reported_by_the_status(tmp_path: Path) -> None:
    none = f"candidates() {{ echo '{tmp_path}/none'; }}"
    done = run(f"{none}; find_python || echo status $?")
    assert done.stdout == "status 1\n"


def test_named_python_must_be_suitable(tmp_path: Path) -> None:
    done = run("need_python", PYTHON=str(python(tmp_path, 1)))
    assert done.returncode == 69
    assert "is not a Python 3.11 or later with the modules venv and ensurepip" in done.stderr


def test_without_python_and_root_the_command_for_an_administrator_is_printed(
    tmp_path: Path,
) -> None:
    (tmp_path / "apt-get").write_text("#!/bin/sh\necho never\n")
    (tmp_path / "apt-get").chmod(0o755)
    nobody = "id() { echo 1000; }; find_python() { return 1; }"
    done = run(f"{nobody}; need_python", PYTHON="", PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert (done.returncode, done.stdout) == (69, "")
    assert "sudo sh -c 'apt-get update && apt-get install -y python3 python3-venv'" in done.stderr


def program(directory: Path, name: str, body: str) -> str:
    """Write a program; return the search path that finds it first."""
    (directory / name).write_text(f"#!/bin/sh\n{body}\n")
    (directory / name).chmod(0o755)
    return f"{directory}:{os.environ['PATH']}"


def with_apt(directory: Path, user: int, wanted: str) -> subprocess.CompletedProcess[str]:
    """Request programs with a fake apt-get and dpkg, which print their arguments."""
    for name in ("apt-get", "dpkg"):
        (directory / name).write_text(f'#!/bin/sh\necho {name} "$@" >>"{directory}/asked"\n')
        (directory / name).chmod(0o755)
    body = f"id() {{ echo {user}; }}; want_programs {wanted}"
    return run(body, PATH=f"{directory}:{os.environ['PATH']}")


def test_missing_programs_are_installed(tmp_path: Path) -> None:
    with_apt(tmp_path, 0, "sh=dash no-such=one neither=two")
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked[-1] == "apt-get install -y --no-install-recommends one two"


def test_installation_prints_its_steps(tmp_path: Path) -> None:
    done = with_apt(tmp_path, 0, "no-such=one")
    assert done.stdout.splitlines() == [
        "==> installing one with apt-get",
        "    completing interrupted installations: dpkg --configure -a",
        "    downloading package lists: apt-get update",
        "    downloading packages",
        "    unpacking and configuring packages; an interrupt takes effect when this is complete",
        "    installed: ",
    ]


def test_installation_waits_for_the_lock_of_another_package_manager(tmp_path: Path) -> None:
    path = program(
        tmp_path, "dpkg", '[ -e "$0.ran" ] && exit 0; : >"$0.ran"; echo "$SAYS" >&2; exit 2'
    )
    body = "sleep() { :; }; with_dpkg_lock dpkg --configure -a"
    done = run(
        body, PATH=path, SAYS="dpkg: error: dpkg frontend lock was locked by another process"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "waiting for another package manager" in done.stdout


def test_installation_that_fails_shows_the_output(tmp_path: Path) -> None:
    done = run(
        "with_dpkg_lock dpkg --configure -a", PATH=program(tmp_path, "dpkg", "echo bad; exit 2")
    )
    assert done.returncode == 2
    assert done.stderr == "test: failed with status 2: dpkg --configure -a\nbad\n"


def test_interrupt_waits_until_dpkg_has_finished(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go on")
    apt = f"case $* in *-only) ;; install*) echo at work >&3; cat '{tmp_path}/go on'; echo done >&3 ;; esac"
    path = program(tmp_path, "apt-get", apt)
    program(tmp_path, "dpkg", "exit 0")
    body = "forbid_services() { :; }; exec 3>&1; install_packages one"
    with subprocess.Popen(
        script(body),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PATH": path},
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        while process.stdout.readline() != "at work\n":
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert "waiting until the installation of packages is complete" in process.stderr.readline()
        (tmp_path / "go on").write_text("")
        rest, _ = process.communicate(timeout=DEADLINE)
    assert (rest, process.returncode) == ("done\n", 130)


def test_programs_that_cannot_be_installed_are_named(tmp_path: Path) -> None:
    done = with_apt(tmp_path, 1000, "sh=dash no-such=one")
    assert (done.returncode, done.stdout) == (0, "==> skipping the steps that need: one\n")
    assert not (tmp_path / "asked").exists()


@pytest.mark.parametrize(
    ("word", "form"),
    [
        ("/usr/bin/x", "/usr/bin/x"),
        ("/a b/c", "'/a b/c'"),
        ("it's", "'it'\\''s'"),
        ("", "''"),
    ],
)
def test_printed_argument_is_quoted_for_a_shell(word: str, form: str) -> None:
    assert run('quoted "$WORD"', WORD=word).stdout == form


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """A fake virtual environment."""
    directory = tmp_path / "a venv"
    python(directory / "bin", 0).rename(directory / "bin" / "python")
    (directory / "bin" / "pip").write_text(f"#!{directory}/bin/python\n")
    (directory / ".steward").write_text("123 dev\n")
    return directory


def is_ready(venv: Path, wanted: str) -> bool:
    return run('is_ready "$VENV" "$WANTED"', VENV=str(venv), WANTED=wanted).returncode == 0


def test_environment_is_ready_only_for_its_own_requirements(venv: Path) -> None:
    assert is_ready(venv, "123 dev")
    assert not is_ready(venv, "124 dev")


def test_moved_environment_is_not_ready(venv: Path) -> None:
    assert not is_ready(venv.rename(venv.with_name("elsewhere")), "123 dev")


def test_interrupted_environment_setup_is_not_ready(venv: Path) -> None:
    (venv / "bin" / "pip").unlink()
    assert not is_ready(venv, "123 dev")


def test_the_packages_that_were_set_up_are_named() -> None:
    said = "Unpacking b (2) ...\r\nSetting up b:amd64 (2-1) ...\r\nSetting up a (1) ...\r\n"
    assert run('printf "%s" "$SAID" | set_up', SAID=said).stdout == "b:amd64 2-1, a 1\n"
