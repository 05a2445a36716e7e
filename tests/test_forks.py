"""A forked process has the state of an executed one (`forks.py`)."""

import json
import os
import pty
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from daemon.identity import keypair
from tests import forks, process_state

INPUT = "in: ü"
RUN_WITHIN = 60  # seconds


def executed(words: list[str], streams: list[int], own_session: bool) -> int:
    done = subprocess.run(
        [sys.executable, "-m", process_state.__name__, *words],
        stdin=streams[0],
        stdout=streams[1],
        stderr=streams[2],
        env=variables(),
        start_new_session=own_session,
        check=False,
    )
    return done.returncode


def forked(words: list[str], streams: list[int], own_session: bool) -> int:
    child = forks.server().start(
        words,
        variables(),
        streams,
        module=process_state.__name__,
        own_session=own_session,
    )
    return child.wait(RUN_WITHIN)


def variables() -> dict[str, str]:
    return {**forks.environment(), "EMPTY": "", "ODD": os.fsdecode(b"\xff \n"), "STEWARD_ADDR": "a"}


def outcome(
    start: Callable[[list[str], list[int], bool], int],
    directory: Path,
    how: str,
    own_session: bool = False,
) -> tuple[int, Any, bytes]:
    """Run the program; return its status, its state and its errors."""
    given, output, errors = (directory / name for name in ("in", "out", "err"))
    given.write_text(INPUT)
    with given.open("rb") as first, output.open("wb") as second, errors.open("wb") as third:
        streams = [one.fileno() for one in (first, second, third)]
        status = start([how, "--option", os.fsdecode(b"\xfe")], streams, own_session)
    text = output.read_text()
    return status, json.loads(text) if text else None, errors.read_bytes()


@contextmanager
def changed_process(directory: Path) -> Iterator[None]:
    """Give this process another directory and umask, and block and ignore signals."""
    with ExitStack() as stack:
        stack.callback(os.chdir, Path.cwd())
        stack.callback(os.umask, os.umask(0o027))
        stack.callback(signal.signal, signal.SIGUSR1, signal.signal(signal.SIGUSR1, signal.SIG_IGN))
        stack.callback(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, signal.SIG_IGN))
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2, signal.SIGTERM})
        stack.callback(signal.pthread_sigmask, signal.SIG_SETMASK, mask)
        yield


@pytest.mark.parametrize("own_session", [False, True])
def test_a_forked_process_has_the_state_of_an_executed_one(
    tmp_path: Path, own_session: bool
) -> None:
    real = outcome(executed, tmp_path, "0", own_session)
    assert real[1]["input"] == INPUT
    assert outcome(forked, tmp_path, "0", own_session) == real


def test_a_forked_process_takes_over_the_state_of_its_caller(tmp_path: Path) -> None:
    usual = outcome(forked, tmp_path, "0")
    with changed_process(tmp_path):
        real = outcome(executed, tmp_path, "0")
        assert outcome(forked, tmp_path, "0") == real
    assert real[1]["umask"] == "0027"
    assert real[1]["signals"] != usual[1]["signals"]
    assert outcome(forked, tmp_path, "0") == usual


WAYS = ("7", "300", "-1", "null", '"a reason"', "failed", "full", "interrupted", "killed")


@pytest.mark.parametrize("how", WAYS)
def test_a_forked_process_ends_like_an_executed_one(tmp_path: Path, how: str) -> None:
    real, found = (outcome(start, tmp_path, how) for start in (executed, forked))
    assert found[0] == real[0] != 0 or how == "null"
    assert found[2].splitlines()[-1:] == real[2].splitlines()[-1:]


def test_a_terminal_is_a_terminal(tmp_path: Path) -> None:
    def shown(start: Callable[[list[str], list[int], bool], int]) -> Any:
        master, slave = pty.openpty()
        try:
            with (tmp_path / "out").open("wb") as output:
                os.write(master, b"line\n\x04")
                assert start(["0"], [slave, output.fileno(), slave], True) == 0
        finally:
            os.close(master)
            os.close(slave)
        return json.loads((tmp_path / "out").read_text())["streams"]

    found = shown(forked)
    assert [is_terminal for _, _, _, is_terminal, _, _ in found] == [True, False, True]
    assert found == shown(executed)


def test_forked_processes_share_no_random_state(tmp_path: Path) -> None:
    rolled = {number for _ in range(2) for number in outcome(forked, tmp_path, "random")[1]}
    assert len(rolled) == 8


def test_a_process_that_cannot_follow_its_caller_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(forks.ExecutableNeeded, match="variables of the interpreter"):
        forks.begin(["version"], env=forks.environment(PYTHONVERBOSE="1"))
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft + 1, hard))
    with pytest.raises(forks.ExecutableNeeded, match="RLIMIT_CORE"):
        forks.begin(["version"], env=forks.environment())


def test_the_server_has_no_variables_of_a_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some tests end all processes with their directory in the environment."""
    monkeypatch.setenv("OF_THIS_TEST", "1")
    monkeypatch.setattr(forks, "_server", forks._server.__wrapped__)
    server = forks.server()
    try:
        assert server.start(["version"], forks.environment()).wait(RUN_WITHIN) == 0
        assert b"OF_THIS_TEST" not in Path(f"/proc/{server._process.pid}/environ").read_bytes()
    finally:
        server.close()


def test_the_server_does_not_start_in_a_changed_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "_server", forks._server.__wrapped__)
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft + 1, hard))
    with pytest.raises(forks.ExecutableNeeded, match="RLIMIT_CORE"):
        forks.server()


def test_processes_of_a_server_share_only_their_first_signing_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generated: list[object] = []

    def generate() -> object:
        generated.append(object())
        return generated[-1]

    monkeypatch.setattr(keypair, "generate", generate)
    forks.share_first_key()
    assert len(generated) == 1
    taken: list[object] = [keypair.generate(), keypair.generate(), keypair.generate()]
    assert taken == generated
