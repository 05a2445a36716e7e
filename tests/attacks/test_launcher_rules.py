"""Ways around the checks of the launcher.

Examples are a variable that a tool reads, and a directory or process number that changes its owner.
"""

import ctypes
import os
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from daemon.launcher import sandbox
from daemon.launcher.channel import Refusal, close, read_sealed, receive
from daemon.launcher.messages import (
    AllowedVolume,
    MountedVolume,
    ProbeSandbox,
    ProcessStarted,
    ReadOwn,
    SandboxSupport,
)
from tests.attacks.test_launcher_requests import START, closed, family
from tests.launchers import EVERYTHING
from tests.parts.launcher.conftest import Place, Talk, ordered, passed, place, talk
from tests.parts.runner.conftest import needs_root

__all__ = ["closed", "place", "talk"]
# Libraries of the programs that run before a task read these variables. They use them for message
# catalogs, name services and locales, or to load code.
VARIABLES = (
    *("LANGUAGE", "LANG", "LC_ALL", "TEXTDOMAINDIR", "OUTPUT_CHARSET", "LDAPCONF", "LDAPRC"),
    *("LD_PRELOAD", "LD_LIBRARY_PATH", "GLIBC_TUNABLES", "KRB5_CONFIG", "SSL_CERT_FILE"),
    *("HOME", "TMPDIR", "PATH", "ENV", "BASH_ENV", "NSS_WRAPPER_PASSWD", "a.b", "IFS"),
)
VALUE = "/of/a/task"
_EXCHANGE = 2  # linux/fs.h


def has_walls(talk: Talk) -> bool:
    found = talk.ask(ProbeSandbox()).body
    return isinstance(found, SandboxSupport) and not found.walls


def environment(pid: int) -> dict[str, str]:
    text = Path(f"/proc/{pid}/environ").read_text(errors="surrogateescape")
    return dict(part.partition("=")[::2] for part in text.split("\0") if part)


def runs(pid: int, name: str) -> bool:
    return Path(f"/proc/{pid}/comm").read_text().strip() == name


def is_root(pid: int) -> bool:
    return "Uid:\t0\t0\t0\t0\n" in Path(f"/proc/{pid}/status").read_text()


@needs_root
@pytest.mark.parametrize("driver", ["raw_exec", "exec"])
def test_variable_of_a_task_does_not_reach_a_program_of_root(
    closed: Talk, place: Place, driver: Any
) -> None:
    if driver == "exec" and not has_walls(closed):
        pytest.skip("this host supports no sandboxes")
    (place.root / "alloc/data").mkdir()
    env = {variable.encode(): VALUE.encode() for variable in VARIABLES}
    answer = closed.ask(START, passed(ordered("/bin/sleep", "60", env=env, driver=driver))).body
    assert isinstance(answer, ProcessStarted), answer
    try:
        while not (task := [number for number in family(answer.pid) if runs(number, "sleep")]):
            assert Path(f"/proc/{answer.pid}").exists(), place.err.read_text()
        privileged = [number for number in family(answer.pid) if is_root(number)]
        assert len(privileged) >= (3 if driver == "exec" else 1)
        for pid in privileged:
            found = environment(pid)
            assert {line for line in found if not line.startswith("STEWARD_")} <= {"PATH", "PWD"}
            assert VALUE not in found["PATH"]
        given = environment(task[0])
    finally:
        for pid in family(answer.pid):
            with suppress(ProcessLookupError):  # the process has ended with its parent
                os.kill(pid, 9)
    assert {name: given.get(name) for name in VARIABLES} == dict.fromkeys(VARIABLES, VALUE)
    assert not [line for line in given if line.startswith("STEWARD_")]


def exchange(path: Path, other: Path) -> None:
    """Exchange two names atomically."""
    call = ctypes.CDLL(None).renameat2
    assert call(-100, os.fsencode(path), -100, os.fsencode(other), _EXCHANGE) == 0


@needs_root
def test_volume_replaced_by_a_link_exposes_no_other_directory(
    talk: Talk, tmp_path: Path, place: Place
) -> None:
    """The owner of the directory above a volume continuously exchanges the volume and a link."""
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim/secret").touch()
    (tmp_path / "roots/v").mkdir(parents=True)
    (tmp_path / "roots/v/own").touch()
    (tmp_path / "roots/w").symlink_to(tmp_path / "victim")
    for name in ("alloc/data", "main/local", "main/secrets", "main/tmp"):
        (place.root / name).mkdir()
    roots = [str(tmp_path / "roots")]
    talk.greet(tmp_path, msgspec.structs.replace(EVERYTHING, volume_roots=roots))
    if not has_walls(talk):
        pytest.skip("this host supports no sandboxes")
    source = str(tmp_path / "roots/v")
    mounted = MountedVolume(name="v", volume="", path=source, destination="/data", read_only=False)
    order = ordered("/bin/ls", "/data", driver="exec", user="nobody", volumes=[mounted])
    is_over = threading.Event()

    def swap() -> None:
        while not is_over.is_set():
            exchange(tmp_path / "roots/v", tmp_path / "roots/w")

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for number in range(60):
            request = msgspec.structs.replace(START, attempt=number)
            answer = talk.ask(request, passed(order)).body
            while isinstance(answer, ProcessStarted) and Path(f"/proc/{answer.pid}").exists():
                os.sched_yield()
    finally:
        is_over.set()
        thread.join()
    assert "secret" not in place.out.read_text()
    assert {*place.out.read_text().split()} <= {"own"}


def mounted_from(path: Path, **changed: Any) -> Any:
    mounted_volume = MountedVolume(
        name="v", volume="", path=str(path), destination="/d", read_only=False
    )
    return ordered("/bin/true", volumes=[msgspec.structs.replace(mounted_volume, **changed)])


@pytest.mark.parametrize("is_known", [True, False])
def test_link_created_after_the_check_does_not_affect_an_opened_volume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    (tmp_path / "victim").mkdir()
    place = tmp_path / "roots/v"
    place.mkdir(parents=True)
    known = {"v": AllowedVolume(name="v", path=str(place), read_only=True)} if is_known else {}
    order = mounted_from(place, volume="v" if is_known else "")
    look = os.path.realpath

    def realpath(path: str) -> str:
        found = look(path)
        place.rmdir()
        place.symlink_to(tmp_path / "victim")
        return found

    with ExitStack() as held:
        (mount,) = sandbox.volumes(order, known, [str(tmp_path / "roots")], held)
        assert os.path.samestat(os.fstat(mount.descriptor), place.stat())
        assert mount.is_read_only is is_known
    monkeypatch.setattr(os.path, "realpath", realpath)
    with ExitStack() as held, pytest.raises(Refusal, match="is not a directory on this host"):
        sandbox.volumes(order, known, [str(tmp_path / "roots")], held)


def test_namespaces_of_a_reused_process_number_are_not_entered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between two checks, the sandbox ends, and another process can get its process ID."""
    for then in (None, os.getppid()):
        looks = iter([os.getpid(), then])
        monkeypatch.setattr(sandbox, "sandbox_of", lambda _, looks=looks: next(looks))
        with ExitStack() as held, pytest.raises(Refusal, match="has just ended"):
            sandbox.opened(1, None, held, alone=False)
    monkeypatch.setattr(sandbox, "sandbox_of", lambda _: os.getpid())
    with ExitStack() as held:
        found = sandbox.opened(1, None, held, alone=False)
        assert {"mount", "pid", "ipc", "uts"} <= found.keys()
        assert len({number for _, number in found.values()}) == len(found)


@pytest.fixture
def key(talk: Talk, tmp_path: Path) -> Path:
    """Return a key file that the settings name, and that only root can change."""
    place = tmp_path / "ssl/key.pem"
    place.parent.mkdir(mode=0o755)
    place.write_text("the key")
    place.chmod(0o600)
    (tmp_path / "link.pem").symlink_to(place)
    files = [str(place), str(tmp_path / "link.pem"), str(place.parent)]
    talk.greet(tmp_path, msgspec.structs.replace(EVERYTHING, files=files))
    return place


def own_of(talk: Talk, path: Path) -> str | None:
    """Return a settings file as the launcher reads it; None if the launcher refuses the file."""
    talk.send(1, 0, ReadOwn(path=str(path)))
    _, received = receive(talk.channel)
    try:
        return read_sealed(received[0], 1000).decode() if received else None
    finally:
        close(received)


def test_only_the_key_from_the_settings_is_read(talk: Talk, key: Path, tmp_path: Path) -> None:
    (key.parent / "other").write_text("other")
    assert own_of(talk, key) == "the key"
    assert own_of(talk, tmp_path / "link.pem") == "the key"
    assert own_of(talk, key.parent) is None
    for path in ("other", "../ssl/key.pem"):
        assert own_of(talk, Path(f"{key.parent}/{path}")) is None
    key.unlink()
    key.symlink_to("other")
    assert own_of(talk, key) == "other"  # only root can create a link there


@needs_root
def test_key_that_another_user_can_replace_is_not_read(talk: Talk, key: Path) -> None:
    os.chown(key.parent, 65534, 65534)
    assert own_of(talk, key) is None
    os.chown(key.parent, 0, 0)
    key.parent.chmod(0o777)
    assert own_of(talk, key) is None
    key.parent.chmod(0o1777)
    assert own_of(talk, key) == "the key"
    os.chown(key, 65534, 65534)
    assert own_of(talk, key) is None
