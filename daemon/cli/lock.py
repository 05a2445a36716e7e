"""`var lock`: a command runs while this has the lock of a variable, and is ended when it is lost."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import click
from msgspec import UNSET

from daemon.cli.client import Answer, Client, Rejected, Unreachable
from daemon.cli.options import connected
from daemon.cli.variable import CONFLICT, Moved, address_of
from storage.errors import Invalid, StewardError
from storage.records import durations
from storage.records.base import SECOND
from storage.records.variable import Variable

_RENEWALS = 3  # in the time after which the lock would end
_DELAYED = 1.0  # seconds between attempts at a lock that was lost, and can be had by nobody yet
_GRACE = 5.0  # seconds that a command has to end when its lock is lost
_GONE = 404


class Lost(StewardError):
    """The lock is somebody else's, or nobody's."""


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option(
    "--ttl", default="15s", help="The lock ends when it is not renewed for so long [15s]."
)
@click.option("--delay", default="15s", help="So long nobody gets it after it was lost [15s].")
@click.option("--try", "at_once", is_flag=True, help="Do not wait for a lock that another has.")
@click.argument("path")
@click.argument("command", metavar="COMMAND...", nargs=-1, required=True)
@connected
def lock(
    client: Client, path: str, command: tuple[str, ...], *, ttl: str, delay: str, at_once: bool
) -> int:
    """Run COMMAND while the lock of the variable at PATH is held; its exit status becomes this one's.

    The variable is made if there is none. The lock is renewed as long as the command runs, and given
    back when it has ended. When the lock is lost, the command is ended.

    Example: steward var lock jobs/backup ./backup.sh --full
    """
    held = _Held(client, path)
    held.acquire({"TTL": ttl, "LockDelay": delay}, at_once=at_once)
    try:
        return _run(held, command)
    finally:
        held.release()


class _Held:
    """The lock of a variable, as its holder has it."""

    def __init__(self, client: Client, path: str) -> None:
        self._client, self._path = client, path
        self._id = ""
        self._renewed = 0.0
        self.ttl = 0.0  # seconds

    def acquire(self, wanted: dict[str, str], *, at_once: bool) -> None:
        """Take the lock, when it can be had. Raises `Moved` if another has it, and must not wait."""
        waits = False
        while True:
            self._renewed = time.monotonic()
            try:
                found = self._change("acquire", wanted).decode(Variable)
            except Rejected as error:
                if error.status != CONFLICT:
                    raise
                if at_once:
                    raise Moved(f'the lock of variable "{self._path}" is held by another') from None
            else:
                assert found.lock is not UNSET  # noqa: S101  # its holder is shown it
                self._id, self.ttl = found.lock.id, durations.nanoseconds(found.lock.ttl) / SECOND
                return
            if not waits:
                click.echo(f'waiting for the lock of variable "{self._path}"', err=True)
            waits = True
            self._wait()

    def _wait(self) -> None:
        """Wait until another attempt may go better."""
        answer = self._client.read(address_of(self._path))
        if answer.decode(Variable).lock is UNSET:
            time.sleep(_DELAYED)
        else:
            self._client.newer(address_of(self._path), answer.index)

    def renew(self) -> None:
        """Hold it longer. Raises `Lost`, and what the client raises for other reasons."""
        asked = time.monotonic()
        try:
            self._change("renew", {"ID": self._id})
        except Unreachable as error:
            if asked < self._renewed + self.ttl:
                return  # it is still held
            raise Lost(f'the lock of variable "{self._path}" has ended: {error}') from error
        except Rejected as error:
            if error.status not in (CONFLICT, _GONE):
                raise
            raise Lost(f'the lock of variable "{self._path}" is lost') from None
        self._renewed = asked

    def release(self) -> None:
        """Give it back. That it was lost, or that nobody answers, does not matter: it will end."""
        try:
            self._change("release", {"ID": self._id})
        except (Rejected, Unreachable) as error:
            click.echo(f"the lock was not given back: {error}", err=True)

    def _change(self, operation: str, lock: dict[str, str]) -> Answer:
        query = {f"lock-{operation}": "true"}
        return self._client.send("PUT", address_of(self._path), {"Lock": lock}, **query)


def _run(held: _Held, command: tuple[str, ...]) -> int:
    """Run the command; return its exit status, 128 and more when a signal ended it."""
    try:
        child = subprocess.Popen(command)  # noqa: S603  # what the user wants to run
    except OSError as error:
        raise Invalid(f"cannot run {command[0]!r}: {error.strerror}") from error
    with _handing_on(child):
        while True:
            try:
                status = child.wait(held.ttl / _RENEWALS)
            except subprocess.TimeoutExpired:
                try:
                    held.renew()
                except StewardError:
                    _end(child)
                    raise
            except KeyboardInterrupt:  # the terminal has told the command as well
                child.wait()
                raise
            else:
                return status if status >= 0 else 128 - status


@contextmanager
def _handing_on(child: subprocess.Popen[bytes]) -> Iterator[None]:
    """Let the command decide what is to be done when this is asked to end."""
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
