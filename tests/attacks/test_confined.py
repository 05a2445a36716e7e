"""A daemon that is compromised after it has dropped its privileges can reach only its store."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from daemon.confinement import kernel
from daemon.launcher.client import probe_sandbox, send_hello
from tests import launchers
from tests.readable_home import UID, can_enter, entering

pytestmark = pytest.mark.skipif(
    not can_enter(), reason="a daemon of another user needs root, and permission to mount"
)
needs_landlock = pytest.mark.skipif(
    not kernel.landlock_version(), reason="this kernel has no Landlock"
)
Ask = Callable[[str], str]
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """Return root's data directory.

    It contains a store of the daemon's user and a world-readable directory.
    """
    made = Path(tempfile.mkdtemp(prefix="steward-confined-"))
    made.chmod(0o711)
    (made / "store").mkdir(mode=0o700)
    os.chown(made / "store", UID, UID)
    (made / "open").mkdir()
    (made / "open").chmod(0o777)  # file permissions let the daemon write here
    (made / "open/file").write_text("text")
    (made / "open/file").chmod(0o666)
    yield made
    shutil.rmtree(made)


@pytest.fixture(scope="module", params=["yes", "no"], ids=["sandboxes", "no sandboxes"])
def has_sandboxes(request: pytest.FixtureRequest) -> str:
    if request.param == "yes" and why_no_sandbox():
        pytest.skip(why_no_sandbox())
    return str(request.param)


@cache
def why_no_sandbox() -> str:
    """Return why this host supports no sandboxes; empty if it supports them."""
    with TemporaryDirectory() as directory, launchers.begin() as channel:
        send_hello(channel, Path(directory), launchers.grouped(Path(directory)))
        return probe_sandbox(channel).walls


@pytest.fixture(scope="module")
def ask(place: Path, has_sandboxes: str) -> Iterator[Ask]:
    """Yield a function that sends an expression to the daemon."""
    words = [*entering(), sys.executable, "-m", "tests.attacks.confined"]
    with subprocess.Popen(
        [*words, str(place), str(UID), has_sandboxes],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as daemon:
        assert daemon.stdin is not None
        assert daemon.stdout is not None
        stdin, stdout = daemon.stdin, daemon.stdout
        assert stdout.readline() == "ready\n"

        def answer(expression: str) -> str:
            stdin.write(f"{expression}\n")
            stdin.flush()
            return stdout.readline().strip()

        yield answer
        stdin.close()


def test_confined_daemon_keeps_its_required_permissions(ask: Ask) -> None:
    for expression in (
        "open(store + '/new', 'w').write('x')",
        "os.rename(store + '/new', store + '/newer')",
        "os.unlink(store + '/newer')",
        "open('/etc/passwd').read()",
        "open(f'/proc/{launcher}/stat').read()",
        "socket.create_server(('127.0.0.1', 0)).close()",
        "__import__('threading').Thread(target=int).start()",
        "__import__('sqlite3').connect(store + '/db').execute('create table if not exists a (b)')",
    ):
        assert (expression, ask(expression)) == (expression, "done")


@pytest.mark.parametrize(
    "expression",
    [
        "os.kill(launcher, 9)",
        "os.kill(launcher, 19)",
        "os.kill(1, 0)",
        "open(f'/proc/{launcher}/mem', 'rb')",
        "open(f'/proc/{launcher}/environ', 'rb')",
        "os.listdir(f'/proc/{launcher}/fd')",
        "os.readlink(f'/proc/{launcher}/cwd')",
        "os.setpriority(os.PRIO_PROCESS, launcher, 5)",
        "call('ptrace', 16, launcher, 0, 0)",
        "call('process_vm_readv', launcher, 0, 0, 0, 0, 0)",
        "call('pidfd_getfd', os.pidfd_open(launcher), 0, 0)",
        "__import__('signal').pidfd_send_signal(os.pidfd_open(launcher), 9)",
        "__import__('resource').prlimit(launcher, 7, (1, 1))",
    ],
)
def test_confined_daemon_cannot_reach_its_launcher(ask: Ask, expression: str) -> None:
    assert ask(expression) in ("EPERM", "EACCES")
    assert ask("open(f'/proc/{launcher}/stat').read()") == "done"


@pytest.mark.parametrize(
    "expression",
    [
        "os.setuid(0)",
        "os.setresuid(0, 0, 0)",
        "os.seteuid(0)",
        "os.setgid(0)",
        "os.setgroups([0])",
        "call('mount', b'none', b'/tmp', b'tmpfs', 0, 0)",
        "call('umount2', b'/proc', 2)",
        "call('unshare', 0x10000000)",
        "call('unshare', 0x20000)",
        "call('setns', 0, 0)",
        "os.chroot('/tmp')",
        "call('bpf', 5, 0, 0)",
        "call('keyctl', 0, 0, 0, 0, 0)",
        "call('io_uring_setup', 8, 0)",
        "call('init_module', 0, 0, 0)",
        "call('reboot', 0, 0, 0, 0)",
        "__import__('time').clock_settime(0, 0)",
        "os.mknod(store + '/dev', 0o20666, 259)",
        "os.chmod(store, 0o4700)",
        "os.chown(store, 0, 0)",
        "__import__('mmap').mmap(-1, 4096, prot=7)",
        "call('mprotect', 0, 4096, 5)",
    ],
)
def test_confined_daemon_cannot_regain_privileges(ask: Ask, expression: str) -> None:
    assert ask(expression) == "EPERM"


@pytest.mark.parametrize(
    "expression",
    ["socket.socket(PACKET, socket.SOCK_RAW)", "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)"],
)
def test_confined_daemon_has_no_other_sockets(ask: Ask, expression: str) -> None:
    assert ask(expression) == "EAFNOSUPPORT"


def test_confined_daemon_opens_no_raw_socket(ask: Ask) -> None:
    assert ask("socket.socket(IP, socket.SOCK_RAW, 1)") == "EPERM"


@needs_landlock
@pytest.mark.parametrize(
    "expression",
    [
        "open(beside + '/open/new', 'w')",
        "open(beside + '/open/file', 'a')",
        "open(beside + '/open/file')",
        "os.unlink(beside + '/open/file')",
        "os.mkdir(beside + '/open/made')",
        "os.rename(store, beside + '/open/store')",
        "os.link(store, beside + '/open/link')",
        "os.symlink('/etc', beside + '/open/link')",
        "os.truncate(beside + '/open/file', 0)",
        "os.listdir(beside + '/open')",
        "open('/tmp/steward-was-here', 'w')",
        "open('/dev/shm/steward-was-here', 'w')",
        "os.rename(beside + '/store', beside + '/other')",
        "open(beside + '/kept-defaults.json', 'w')",
    ],
)
def test_confined_daemon_reads_and_writes_only_its_directories(
    ask: Ask, place: Path, expression: str
) -> None:
    assert ask(expression) in ("EACCES", "EXDEV", "EPERM", "ENOENT")
    assert sorted(path.name for path in place.iterdir()) == ["open", "store"]
    assert [path.name for path in (place / "open").iterdir()] == ["file"]
    assert (place / "open/file").read_text() == "text"


@pytest.mark.parametrize(
    "expression",
    [
        "os.execv('/bin/sh', ['sh'])",
        "os.execv('/usr/bin/git', ['git', '--version'])",
        "call('execve', b'/bin/true', 0, 0)",
        "call('execveat', -100, b'/bin/true', 0, 0, 0)",
        "os.execve(os.open('/bin/true', os.O_RDONLY), ['true'], {})",
        "__import__('subprocess').run(['/bin/true'], check=True)",
        "os.posix_spawn('/bin/true', ['true'], {})",
    ],
)
def test_confined_daemon_can_clone_and_notify_but_not_execute(
    ask: Ask, has_sandboxes: str, expression: str
) -> None:
    if has_sandboxes == "no":
        pytest.skip("git runs as a child of the daemon on a host without sandboxes")
    assert ask(expression) == "EPERM"
    assert ask("open('/etc/passwd').read()") == "done"


def test_confined_daemon_executes_git_on_a_host_without_sandboxes(
    ask: Ask, has_sandboxes: str
) -> None:
    answer = ask("__import__('subprocess').run(['/bin/true'], check=True)")
    assert answer == ("EPERM" if has_sandboxes == "yes" else "done")
    said = ask("1 / int(__import__('daemon.confinement.kernel').confinement.kernel.may_execute())")
    assert said == ("ZeroDivisionError" if has_sandboxes == "yes" else "done")


@needs_landlock
def test_confined_daemon_executes_no_file_that_it_has_written(ask: Ask, place: Path) -> None:
    shutil.copy("/bin/true", place / "store/true")
    (place / "store/true").chmod(0o755)
    assert ask("__import__('subprocess').run([store + '/true'])") in ("EPERM", "EACCES")


def test_executed_program_gets_no_capabilities(ask: Ask, place: Path, has_sandboxes: str) -> None:
    if has_sandboxes == "yes":
        assert ask("os.execv('/bin/sh', ['sh'])") == "EPERM"
        return
    script = "grep -q '^Uid:.61234' /proc/self/status && grep -q '^NoNewPrivs:.1' /proc/self/status"
    assert ask(f"__import__('subprocess').run(['/bin/sh', '-c', {script!r}], check=True)") == "done"
    answer = ask("__import__('subprocess').run(['touch', beside + '/open/new'], check=True)")
    assert answer == "CalledProcessError"
    assert not (place / "open/new").exists()
