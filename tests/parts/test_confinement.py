"""Dropped privileges cannot be regained: each test runs in a separate process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from daemon.confinement import kernel, report

BEFORE = """\
import ctypes, errno, mmap, os, socket, subprocess, sys, threading
from daemon.confinement import bpf, filters, kernel
def tell(action):
    try:
        print("done", action() or "")
    except OSError as error:
        print(errno.errorcode[error.errno])
"""
FILTER = """\
kernel.give_up_new_privileges()
kernel.filter_calls(filters.of_daemon(bpf.host_architecture(), programs={programs}))
"""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has privileges to drop")
needs_landlock = pytest.mark.skipif(
    not kernel.landlock_version(), reason="this kernel has no Landlock"
)


def answers(text: str, *arguments: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", BEFORE + text, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr
    return [line.strip() for line in done.stdout.splitlines()]


def held(text: str) -> report.Confinement:
    lines = answers(f"{text}\nprint(open('/proc/self/status').read())")
    return report.of("\n".join(lines), files_restricted=False, dumpable=True)


@needs_root
def test_capabilities_are_dropped_from_all_sets() -> None:
    assert held("pass").capabilities
    assert held("kernel.give_up_capabilities()").capabilities == ()


@needs_root
def test_program_of_root_regains_no_capability() -> None:
    text = "kernel.give_up_capabilities()\nsubprocess.run(['cat', '/proc/self/status'])\nraise SystemExit"
    assert held(text).capabilities == ()


def test_new_privileges_are_permanently_disabled() -> None:
    assert held("kernel.give_up_new_privileges()").no_new_privileges
    lines = answers(
        "kernel.give_up_new_privileges()\n"
        "print(kernel._libc().prctl(38, 0, 0, 0, 0))\n"
        "print(kernel._libc().prctl(39, 0, 0, 0, 0))"
    )
    assert lines == ["-1", "1"]


def test_filter_applies_to_running_threads() -> None:
    text = (
        """
ready, go = threading.Event(), threading.Event()
def run():
    ready.set(); go.wait()
    tell(lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW).close())
one = threading.Thread(target=run); one.start(); ready.wait()
"""
        + FILTER.format(programs=False)
        + "go.set(); one.join()"
    )
    assert answers(text) == ["EAFNOSUPPORT"]


def test_filter_of_the_daemon_permits_files_threads_and_sockets() -> None:
    text = (
        FILTER.format(programs=False)
        + """
tell(lambda: socket.create_server(("127.0.0.1", 0)).close())
tell(lambda: [one.close() for one in socket.socketpair()] and None)
tell(lambda: threading.Thread(target=int).start())
tell(lambda: open("/etc/passwd").close())
import sqlite3
tell(lambda: sqlite3.connect(":memory:").execute("PRAGMA journal_mode").close())
"""
    )
    assert answers(text) == ["done"] * 5


def test_filter_of_the_daemon_refuses_unneeded_calls() -> None:
    text = (
        FILTER.format(programs=False)
        + """
tell(lambda: os.setuid(os.getuid()))
tell(lambda: mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC))
tell(lambda: os.execv("/bin/true", ["true"]))
tell(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
tell(lambda: os.chmod(sys.argv[1], 0o4755))
tell(lambda: kernel._check(kernel._libc().unshare(0x10000000)))
tell(lambda: kernel._check(kernel._libc().mount(b"x", b"/tmp", b"tmpfs", 0, None)))
tell(lambda: kernel._check(kernel._libc().ptrace(0, 0, 0, 0)))
"""
    )
    expected = ["EPERM", "EPERM", "EPERM", "EAFNOSUPPORT", "EPERM", "EPERM", "EPERM", "EPERM"]
    assert answers(text, __file__) == expected


def test_filter_of_the_daemon_permits_required_programs() -> None:
    text = FILTER.format(programs=True) + "print(subprocess.check_output(['echo', 'x'], text=True))"
    assert answers(text)[0] == "x"


@needs_landlock
def test_files_outside_the_given_paths_are_unreachable(tmp_path: Path) -> None:
    ours, theirs, beside = (tmp_path / name for name in ("ours", "theirs", "beside"))
    for folder in (ours, theirs, beside):
        folder.mkdir()
        (folder / "file").write_text("text")
    text = """
ours, theirs, beside = sys.argv[1:]
kernel.give_up_new_privileges()
print(kernel.are_files_restricted())
kernel.keep_to(kernel.rules_of_files([ours], [theirs, "/etc/passwd", "/nowhere"]))
print(kernel.are_files_restricted())
tell(lambda: open(f"{ours}/new", "w").close())
tell(lambda: os.rename(f"{ours}/new", f"{ours}/newer"))
tell(lambda: open(f"{theirs}/file").close())
tell(lambda: open(f"{theirs}/file", "w").close())
tell(lambda: open("/etc/passwd").close())
tell(lambda: open(f"{beside}/file").close())
tell(lambda: open(f"{beside}/new", "w").close())
tell(lambda: os.listdir(beside) and None)
"""
    done = ["done", "done", "done", "EACCES", "done", "EACCES", "EACCES", "EACCES"]
    assert answers(text, str(ours), str(theirs), str(beside)) == ["False", "True", *done]


def test_unreachable_capabilities_of_an_ordinary_user_are_not_reported() -> None:
    status = (
        "Uid:\t1000\t{uid}\t1000\t1000\nCapInh:\t0\nCapPrm:\t0\nCapEff:\t0\nCapBnd:\t200000\n"
        "CapAmb:\t0\nNoNewPrivs:\t{given_up}\n"
    )

    def held(uid: int, given_up: int) -> tuple[str, ...]:
        text = status.format(uid=uid, given_up=given_up)
        return report.of(text, files_restricted=True, dumpable=False).capabilities

    assert held(1000, 1) == ()
    assert held(1000, 0) == ("sys_admin",)


def test_report_shows_values_from_the_kernel() -> None:
    status = (
        "Name:\tx\nUid:\t1000\t1001\t1000\t1000\nCapInh:\t0000000000000000\n"
        "CapPrm:\t0000000000000000\nCapEff:\t0000000000000001\nCapBnd:\t0000020000200000\n"
        "CapAmb:\t0000000000000000\nNoNewPrivs:\t0\nSeccomp:\t2\nSeccomp_filters:\t3\n"
    )
    found = report.of(status, files_restricted=True, dumpable=False)
    assert found == report.Confinement(
        user=1001,
        capabilities=("chown", "sys_admin", "41"),
        no_new_privileges=False,
        filter="filter",
        filters=3,
        files_restricted=True,
        dumpable=False,
    )


def test_kernel_with_less_information_is_not_reported_as_filtering() -> None:
    status = "Uid:\t0\t0\t0\t0\nNoNewPrivs:\t0\n" + "".join(
        f"Cap{name}:\t0\n" for name in ("Inh", "Prm", "Eff", "Bnd", "Amb")
    )
    assert report.of(status, files_restricted=False, dumpable=True).filter == "unknown"
