"""`var lock`: run a command while holding a variable's lock, and stop it if the lock is lost."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import click
from msgspec import UNSET

from daemon.cli.commands.variable import CONFLICT, VariableConflict, address_of
from daemon.cli.core.http_client import (
    ApiClient,
    ClientResponse,
    DaemonUnreachable,
    RequestRejected,
)
from daemon.cli.core.options import with_client
from daemon.text.control_characters import visible, visible_lines
from storage.errors import Invalid, StewardError
from storage.records import durations
from storage.records.base import SECOND
from storage.records.variable import Variable

_RENEWALS = 3  # renewals per TTL
_DELAYED = 1.0  # seconds between attempts while a lost lock is in its delay
_GRACE = 5.0  # seconds that the command has to end after the lock is lost
_GONE = 404


class LockLost(StewardError):
    """The client no longer holds the lock."""


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--ttl", default="15s", help="TTL of the lock without a renewal [15s].")
@click.option("--delay", default="15s", help="Time before a lost lock is free again [15s].")
@click.option("--try", "at_once", is_flag=True, help="Fail if another client holds the lock.")
@click.argument("path")
@click.argument("command", metavar="COMMAND...", nargs=-1, required=True)
@with_client
def lock(
    client: ApiClient, path: str, command: tuple[str, ...], *, ttl: str, delay: str, at_once: bool
) -> int:
    """Run COMMAND while holding the lock of the variable at PATH; exit with COMMAND's status.

    The variable is created if it does not exist. The lock is renewed while the command runs, and
    released at its end. If the lock is lost, the command is stopped.

    Example: steward var lock jobs/backup ./backup.sh --full
    """
    lock_held = _Held(client, path)
    lock_held.acquire({"TTL": ttl, "LockDelay": delay}, at_once=at_once)
    try:
        return _run(lock_held, command)
    finally:
        lock_held.release()


class _Held:
    """The lock of a variable that this command holds."""

    def __init__(self, client: ApiClient, path: str) -> None:
        self._client, self._path = client, path
        self._id = ""
        self._renewed = 0.0
        self.ttl = 0.0  # seconds

    def acquire(self, settings: dict[str, str], *, at_once: bool) -> None:
        """Acquire the lock, after a wait if another client holds it.

        With `at_once`, do not wait. Raises `VariableConflict` instead.
        """
        waits = False
        while True:
            self._renewed = time.monotonic()
            try:
                variable = self._change("acquire", settings).decode(Variable)
            except RequestRejected as error:
                if error.status != CONFLICT:
                    raise
                if at_once:
                    raise VariableConflict(
                        f'another client holds the lock of variable "{self._path}"'
                    ) from None
            else:
                assert variable.lock is not UNSET  # noqa: S101  # a holder sees its lock
                self._id, self.ttl = (
                    variable.lock.id,
                    durations.nanoseconds(variable.lock.ttl) / SECOND,
                )
                return
            if not waits:
                click.echo(f'waiting for the lock of variable "{visible(self._path)}"', err=True)
            waits = True
            self._wait()

    def _wait(self) -> None:
        """Wait until another attempt may succeed."""
        answer = self._client.read(address_of(self._path))
        if answer.decode(Variable).lock is UNSET:
            time.sleep(_DELAYED)
        else:
            self._client.newer(address_of(self._path), answer.index)

    def renew(self) -> None:
        """Renew the lock. Raises `LockLost`, and the errors of the client."""
        sent_at = time.monotonic()
        try:
            self._change("renew", {"ID": self._id})
        except DaemonUnreachable as error:
            if sent_at < self._renewed + self.ttl:
                return  # the lock is still held
            raise LockLost(f'the lock of variable "{self._path}" has expired: {error}') from error
        except RequestRejected as error:
            if error.status not in (CONFLICT, _GONE):
                raise
            raise LockLost(f'the lock of variable "{self._path}" is lost') from None
        self._renewed = sent_at

    def release(self) -> None:
        """Release the lock. Errors do not matter, because the lock expires anyway."""
        try:
            self._change("release", {"ID": self._id})
        except (RequestRejected, DaemonUnreachable) as error:
            click.echo(f"cannot release the lock: {visible_lines(str(error))}", err=True)

    def _change(self, operation: str, lock: dict[str, str]) -> ClientResponse:
        query = {f"lock-{operation}": "true"}
        return self._client.send("PUT", address_of(self._path), {"Lock": lock}, **query)


def _run(lock_held: _Held, command: tuple[str, ...]) -> int:
    """Run the command; return its exit status, or 128 plus the signal's number."""
    try:
        child = subprocess.Popen(command)  # noqa: S603  # the user's command
    except OSError as error:
        raise Invalid(f"cannot run {command[0]!r}: {error.strerror}") from error
    with _handing_on(child):
        while True:
            try:
                status = child.wait(lock_held.ttl / _RENEWALS)
            except subprocess.TimeoutExpired:
                try:
                    lock_held.renew()
                except StewardError:
                    _end(child)
                    raise
            except KeyboardInterrupt:  # the terminal has also sent the signal to the command
                child.wait()
                raise
            else:
                return status if status >= 0 else 128 - status


@contextmanager
def _handing_on(child: subprocess.Popen[bytes]) -> Iterator[None]:
    """Forward termination signals to the command while the block runs."""
    before = signal.signal(signal.SIGTERM, lambda number, _: os.kill(child.pid, number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _end(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    try:
        child.wait(_GRACE)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
