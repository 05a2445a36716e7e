"""`var lock` against a fake daemon with configured responses."""

import signal
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from daemon.cli.commands import var_lock
from daemon.cli.commands.var_lock import LockLost, _Held, _run
from daemon.cli.commands.variable import VariableConflict
from daemon.cli.core.http_client import ClientResponse, DaemonUnreachable, RequestRejected
from storage.errors import Invalid
from storage.records.variable import Lock, Variable

HELD = Lock(id="mine", ttl="30ms", lock_delay="15s")
FREE = Variable(
    create_index=1, create_time=0, items={}, modify_index=5, modify_time=0, namespace="n", path="a"
)
TAKEN = msgspec.structs.replace(FREE, lock=HELD)
CONFLICT = RequestRejected(409, "")


def answer(variable: Variable) -> ClientResponse:
    return ClientResponse(msgspec.json.encode(variable), variable.modify_index)


class Daemon:
    """Answers to successive attempts; the last answer repeats."""

    def __init__(self, *attempts: Exception | None, shown: Iterable[Variable] = ()) -> None:
        self.attempts, self.shown = list(attempts), list(shown)
        self.asked: list[str] = []

    def send(self, method: str, path: str, body: Any, **query: str) -> ClientResponse:
        (operation,) = query
        self.asked.append(operation.removeprefix("lock-"))
        failure = self.attempts.pop(0) if len(self.attempts) > 1 else self.attempts[0]
        if failure is not None:
            raise failure
        return answer(TAKEN)

    def read(self, path: str) -> ClientResponse:
        return answer(self.shown.pop(0))

    def newer(self, path: str, after: int) -> ClientResponse:
        self.asked.append(f"newer than {after}")
        return answer(FREE)


def held(daemon: Daemon) -> _Held:
    one = _Held(daemon, "a")
    one.acquire({}, at_once=False)
    return one


def test_exit_status_is_that_of_the_command() -> None:
    one = held(Daemon(None))
    assert _run(one, ("sh", "-c", "exit 7")) == 7
    assert _run(one, ("sh", "-c", "kill -KILL $$")) == 128 + signal.SIGKILL


def test_the_lock_is_renewed_as_long_as_the_command_runs() -> None:
    daemon = Daemon(None)
    _run(held(daemon), ("sh", "-c", "sleep 0.2"))
    assert set(daemon.asked[1:]) == {"renew"}


def test_command_is_stopped_after_its_lock_is_lost() -> None:
    with pytest.raises(LockLost, match='the lock of variable "a" is lost'):
        _run(held(Daemon(None, CONFLICT)), ("sleep", "600"))


def test_command_that_ignores_signals_is_killed_after_its_lock_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(var_lock, "_GRACE", 0.1)
    stubborn = "trap '' TERM; while :; do sleep 0.01; done"
    with pytest.raises(LockLost):
        _run(held(Daemon(None, None, None, CONFLICT)), ("sh", "-c", stubborn))


def test_unresponsive_daemon_loses_the_lock_only_after_its_ttl() -> None:
    daemon = Daemon(None, DaemonUnreachable("nobody is there"))
    with pytest.raises(LockLost, match="has expired: nobody is there"):
        _run(held(daemon), ("sleep", "600"))
    assert daemon.asked.count("renew") > 1


def test_held_lock_is_waited_for() -> None:
    daemon = Daemon(CONFLICT, None, shown=[TAKEN])
    held(daemon)
    assert daemon.asked == ["acquire", "newer than 5", "acquire"]


def test_lost_lock_is_retried_after_a_delay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(var_lock, "_DELAYED", 0.0)
    daemon = Daemon(CONFLICT, None, shown=[FREE])
    held(daemon)
    assert daemon.asked == ["acquire", "acquire"]


def test_request_that_must_not_wait_is_rejected() -> None:
    with pytest.raises(VariableConflict, match="another client holds the lock"):
        _Held(Daemon(CONFLICT), "a").acquire({}, at_once=True)


def test_a_command_that_cannot_be_run_is_named() -> None:
    with pytest.raises(Invalid, match="cannot run '/no/such'"):
        _run(held(Daemon(None)), ("/no/such",))


def test_failed_release_of_a_lock_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    held(Daemon(None, CONFLICT)).release()
    assert "cannot release the lock" in capsys.readouterr().err
