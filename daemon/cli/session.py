"""`alloc exec` and `job action`: a command inside a task, as if it ran here.

What is typed goes to the command, what it prints comes out, and its exit status is this command's
own. With a terminal on both sides every key goes through, until the command ends or `~.` at the
beginning of a line ends the conversation.
"""

import json
import os
import shutil
import signal
import ssl
import sys
import termios
import tty as terminal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from urllib.parse import urlencode

import click
import msgspec
import trio
from trio_websocket import (
    ConnectionClosed,
    ConnectionRejected,
    HandshakeError,
    WebSocketConnection,
    open_websocket_url,
)

from daemon.cli import resolve
from daemon.cli.client import Client, Rejected, Unreachable, segment
from daemon.cli.logs import choose_task, newest
from daemon.cli.options import connected
from storage.errors import Invalid

_CHUNK = 32 * 1024
_WINDOW = 16  # messages that wait to be printed; then the daemon waits
_STDIN, _STDOUT, _STDERR = 0, 1, 2
_FORBIDDEN = 403
_ESCAPE = b"~."


class Piece(msgspec.Struct, frozen=True):
    """A piece of a stream, or its end."""

    data: bytes = b""
    close: bool = False


class Result(msgspec.Struct, frozen=True):
    """How the command ended."""

    exit_code: int = 0


class Frame(msgspec.Struct, frozen=True):
    """What the daemon sends."""

    stdout: Piece | None = None
    stderr: Piece | None = None
    exited: bool = False
    result: Result = Result()


_frame = msgspec.json.Decoder(Frame)

_INPUT = click.option("-i/--no-stdin", "stdin", default=True, help="Hand on input (the default).")
_TTY = click.option(
    "-t/--no-tty", "tty", default=None, help="Ask for a terminal (default: if this is one)."
)
_TASK = click.option("--task", metavar="TASK", help="The task, if there are several.")


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@_INPUT
@_TTY
@_TASK
@click.option("--job", "of_job", is_flag=True, help="ALLOCATION is a job: take its newest one.")
@click.argument("alloc_id", metavar="ALLOCATION")
@click.argument("command", metavar="COMMAND...", nargs=-1, required=True)
@connected
def execute(
    client: Client,
    alloc_id: str,
    command: tuple[str, ...],
    *,
    stdin: bool,
    tty: bool | None,
    task: str | None,
    of_job: bool,
) -> int:
    """Run COMMAND inside a task of ALLOCATION; its exit status becomes this command's.

    Example: steward exec 5d3c9a12 /bin/sh
    """
    allocation = resolve.allocation(client, newest(client, alloc_id) if of_job else alloc_id)
    query = {"task": choose_task(allocation, task), "command": json.dumps(command)}
    path = f"/v1/client/allocation/{segment(allocation.id)}/exec"
    return converse(client, path, query, stdin=stdin, tty=tty)


@click.command()
@_INPUT
@_TTY
@_TASK
@click.option("--job", "job_id", metavar="JOB", help="The job that declares the action.")
@click.option("--alloc", "--allocation", "alloc_id", metavar="ALLOCATION", help="Where to run it.")
@click.argument("action", metavar="ACTION")
@connected
def action(
    client: Client,
    action: str,
    *,
    stdin: bool,
    tty: bool | None,
    task: str | None,
    job_id: str | None,
    alloc_id: str | None,
) -> int:
    """Run ACTION of a job inside a task; its exit status becomes this command's.

    Example: steward job action -job web clear-cache
    """
    if not (job_id or alloc_id):
        raise Invalid("name a job with -job, or an allocation with -alloc")
    allocation = resolve.allocation(client, alloc_id or newest(client, job_id or ""))
    query = {
        "action": action,
        "allocID": allocation.id,
        "task": choose_task(allocation, task),
        "namespace": allocation.namespace,
    }
    path = f"/v1/job/{segment(allocation.job_id)}/action"
    return converse(client, path, query, stdin=stdin, tty=tty)


def converse(
    client: Client, path: str, query: Mapping[str, str], *, stdin: bool, tty: bool | None
) -> int:
    """Talk with a command until it ends; return its exit status. Raises `Rejected`, `Unreachable`."""
    if tty is None:
        tty = stdin and sys.stdin.isatty() and sys.stdout.isatty()
    url, context = client.socket_address(f"{path}?{urlencode({**query, 'tty': str(tty).lower()})}")
    with _raw(wanted=tty and sys.stdin.isatty()):
        status, fault = trio.run(partial(_converse, client, url, context, stdin=stdin, tty=tty))
    if fault is not None:
        raise fault
    return status


async def _converse(
    client: Client, url: str, context: ssl.SSLContext | None, *, stdin: bool, tty: bool
) -> tuple[int, BaseException | None]:
    headers = [(name.encode(), value.encode()) for name, value in client.headers.items()]
    try:
        async with open_websocket_url(
            url, context, extra_headers=headers, message_queue_size=_WINDOW
        ) as socket:
            talk = _Talk(socket)
            await talk.run(stdin=stdin, tty=tty)
    except ConnectionRejected as error:
        raise Rejected(error.status_code, (error.body or b"").decode(errors="replace")) from error
    except (HandshakeError, OSError) as error:
        raise Unreachable(
            f"cannot reach the daemon at {client.connection.address}: {error}"
        ) from error
    return talk.status or 0, talk.fault


class _Talk:
    def __init__(self, socket: WebSocketConnection) -> None:
        self._socket = socket
        self.fault: BaseException | None = None
        self.status: int | None = None  # with which the command has ended

    async def run(self, *, stdin: bool, tty: bool) -> None:
        """Talk until the command has ended, or something else has ended the conversation."""
        async with trio.open_nursery() as nursery:
            if tty:
                await nursery.start(self._tell_size)
            nursery.start_soon(self._tell_input if stdin else self._end_input, tty)
            nursery.start_soon(self._heed_interrupts, nursery.cancel_scope)
            await self._show()
            nursery.cancel_scope.cancel()

    async def _heed_interrupts(self, talking: trio.CancelScope) -> None:
        # Also what else ends a program: the terminal is set back before.
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
            async for number in signals:
                interrupted = number == signal.SIGINT
                self.fault = KeyboardInterrupt() if interrupted else SystemExit(128 + number)
                talking.cancel()

    async def _show(self) -> None:
        """Print what the command prints, until it has ended."""
        try:
            while self.status is None:
                frame = _frame.decode(await self._socket.get_message())
                for piece, place in ((frame.stdout, _STDOUT), (frame.stderr, _STDERR)):
                    if piece is not None and piece.data:
                        write_all(place, piece.data)
                if frame.exited:
                    self.status = frame.result.exit_code
        except ConnectionClosed as error:
            if self.status is not None:  # we have left ourselves
                return
            reason = error.reason.reason if error.reason else None
            if reason and "ermission denied" in reason:
                self.fault = Rejected(_FORBIDDEN, reason)
            else:
                self.fault = Unreachable(reason or "the daemon closed the connection")

    async def _say(self, frame: object) -> None:
        with suppress(ConnectionClosed):  # whoever shows what it prints hears of it
            await self._socket.send_message(msgspec.json.encode(frame).decode())

    async def _tell_size(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Tell the size of our terminal now, and whenever it changes."""
        with trio.open_signal_receiver(signal.SIGWINCH) as changes:
            await self._say(_size())
            task_status.started()
            async for _ in changes:
                await self._say(_size())

    async def _end_input(self, tty: bool) -> None:
        if not tty:
            await self._say({"stdin": {"close": True}})

    async def _tell_input(self, tty: bool) -> None:
        """Hand on what is typed, or comes from a file or a pipe."""
        before = b"\n"
        while True:
            data = await trio.to_thread.run_sync(os.read, _STDIN, _CHUNK, abandon_on_cancel=True)
            if tty and leaves(before, data):
                self.status = 0
                await self._socket.aclose()
                return None
            if not data:
                return await self._end_input(tty)
            before = (before + data)[-2:]
            await self._say({"stdin": Piece(data=data)})


def leaves(before: bytes, data: bytes) -> bool:
    """Tell whether what was typed, after something else, ends the conversation."""
    typed = before + data
    return any(end + _ESCAPE in typed for end in (b"\r", b"\n"))


def _size() -> dict[str, dict[str, int]]:
    size = shutil.get_terminal_size()
    return {"tty_size": {"height": size.lines, "width": size.columns}}


def write_all(descriptor: int, data: bytes) -> None:
    """Write everything, at once."""
    while data:
        data = data[os.write(descriptor, data) :]


@contextmanager
def _raw(*, wanted: bool) -> Iterator[None]:
    """Let every key through while the block runs."""
    if not wanted:
        yield
        return
    before = termios.tcgetattr(_STDIN)
    terminal.setraw(_STDIN, termios.TCSADRAIN)  # what was typed ahead is not lost
    try:
        yield
    finally:
        termios.tcsetattr(_STDIN, termios.TCSADRAIN, before)
