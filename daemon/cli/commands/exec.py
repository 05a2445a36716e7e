"""`alloc exec` and `job action`: an interactive command inside a task.

Input goes to the command in the task. Its output is printed, and its exit status is returned. With
a terminal on both sides, every key is forwarded. The session ends with the command, or after `~.`
at the beginning of a line.
"""

import json
import os
import shutil
import signal
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
    connect_websocket_url,
    wrap_client_stream,
)

from daemon.cli.commands.logs import choose_task, newest
from daemon.cli.core import resolve
from daemon.cli.core.http_client import (
    CONNECT_WITHIN,
    UNREADABLE,
    ApiClient,
    DaemonUnreachable,
    RequestRejected,
    segment,
)
from daemon.cli.core.options import with_client
from storage.errors import Invalid

_CHUNK = 32 * 1024
_CLOSE_WITHIN = 1.0  # seconds
_WINDOW = 16  # queued messages; at the limit, the daemon waits
_STDIN, _STDOUT, _STDERR = 0, 1, 2
_FORBIDDEN = 403
_ESCAPE = b"~."


class ExecInput(msgspec.Struct, frozen=True):
    """A chunk of a stream, or the end of the stream."""

    data: bytes = b""
    close: bool = False


class ExecExit(msgspec.Struct, frozen=True):
    """The result of the command."""

    exit_code: int = 0


class ExecFrame(msgspec.Struct, frozen=True):
    """A message of the daemon."""

    stdout: ExecInput | None = None
    stderr: ExecInput | None = None
    exited: bool = False
    result: ExecExit = ExecExit()


_frame = msgspec.json.Decoder(ExecFrame)

_INPUT = click.option(
    "-i/--no-stdin", "stdin", default=True, help="Forward standard input (the default)."
)
_TTY = click.option(
    "-t/--no-tty",
    "--tty",
    "tty",
    default=None,
    help="Use a terminal (default: if input and output are terminals).",
)
_TASK = click.option("--task", metavar="TASK", help="Name of the task, if there are several.")


@click.command(context_settings={"allow_interspersed_args": False})
@_INPUT
@_TTY
@_TASK
@click.option(
    "--job", "of_job", is_flag=True, help="ALLOCATION is a job: use its latest allocation."
)
@click.argument("alloc_id", metavar="ALLOCATION")
@click.argument("command", metavar="COMMAND...", nargs=-1, required=True)
@with_client
def execute(
    client: ApiClient,
    alloc_id: str,
    command: tuple[str, ...],
    *,
    stdin: bool,
    tty: bool | None,
    task: str | None,
    of_job: bool,
) -> int:
    """Run COMMAND inside a task of ALLOCATION; exit with the command's status.

    Example: steward exec 5d3c9a12 /bin/sh
    """
    allocation = resolve.allocation(client, newest(client, alloc_id) if of_job else alloc_id)
    query = {"task": choose_task(allocation, task), "command": json.dumps(command)}
    path = f"/v1/client/allocation/{segment(allocation.id)}/exec"
    return run_exec_session(client, path, query, stdin=stdin, tty=tty)


@click.command()
@_INPUT
@_TTY
@_TASK
@click.option("--job", "job_id", metavar="JOB", help="Job that declares the action.")
@click.option(
    "--alloc",
    "--allocation",
    "alloc_id",
    metavar="ALLOCATION",
    help="Allocation that runs the action.",
)
@click.argument("action", metavar="ACTION")
@with_client
def action(
    client: ApiClient,
    action: str,
    *,
    stdin: bool,
    tty: bool | None,
    task: str | None,
    job_id: str | None,
    alloc_id: str | None,
) -> int:
    """Run ACTION of a job inside a task; exit with the status of its command.

    Example: steward job action -job web clear-cache
    """
    if not (job_id or alloc_id):
        raise Invalid("no target given: pass a job with -job, or an allocation with -alloc")
    allocation = resolve.allocation(client, alloc_id or newest(client, job_id or ""))
    query = {
        "action": action,
        "allocID": allocation.id,
        "task": choose_task(allocation, task),
        "namespace": allocation.namespace,
    }
    path = f"/v1/job/{segment(allocation.job_id)}/action"
    return run_exec_session(client, path, query, stdin=stdin, tty=tty)


def run_exec_session(
    client: ApiClient, path: str, query: Mapping[str, str], *, stdin: bool, tty: bool | None
) -> int:
    """Run an exec session; return the command's exit status.

    Raises `RequestRejected` and `DaemonUnreachable`.
    """
    if tty is None:
        tty = stdin and sys.stdin.isatty() and sys.stdout.isatty()
    resource = f"{path}?{urlencode({**query, 'tty': str(tty).lower()})}"
    with _raw(is_needed=tty and sys.stdin.isatty()):
        status, fault = trio.run(partial(_run_exec_session, client, resource, stdin=stdin, tty=tty))
    if fault is not None:
        raise fault
    return status


async def _run_exec_session(
    client: ApiClient, resource: str, *, stdin: bool, tty: bool
) -> tuple[int, BaseException | None]:
    session: _Talk | None = None
    problem: Exception | None = None
    async with trio.open_nursery() as nursery:
        try:
            with trio.fail_after(CONNECT_WITHIN):
                socket = await _connected(client, resource, nursery)
            session = _Talk(socket)
            await session.run(stdin=stdin, tty=tty)
            # If the command left input unread, the daemon may not read the end of the connection.
            with trio.move_on_after(_CLOSE_WITHIN):
                await socket.aclose()
        except ConnectionRejected as error:
            text = (error.body or b"").decode(errors="replace")
            problem = RequestRejected(error.status_code, text)
        except (HandshakeError, OSError, trio.TooSlowError) as error:
            problem = DaemonUnreachable(
                f"cannot reach the daemon at {client.connection.address}: {error}"
            )
        nursery.cancel_scope.cancel()  # the task that reads the socket
    if problem is not None or session is None:
        return 0, problem
    return session.status or 0, session.fault


async def _connected(
    client: ApiClient, resource: str, nursery: trio.Nursery
) -> WebSocketConnection:
    """Open a WebSocket to the daemon, on the network or on its Unix socket.

    Raises `HandshakeError` or `OSError`.
    """
    headers = [(name.encode(), value.encode()) for name, value in client.headers.items()]
    if not client.local_socket:
        url, context = client.socket_address(resource)
        return await connect_websocket_url(
            nursery, url, context, extra_headers=headers, message_queue_size=_WINDOW
        )
    stream = await trio.open_unix_socket(client.local_socket)
    return await wrap_client_stream(
        nursery, stream, "localhost", resource, extra_headers=headers, message_queue_size=_WINDOW
    )


class _Talk:
    def __init__(self, socket: WebSocketConnection) -> None:
        self._socket = socket
        self.fault: BaseException | None = None
        self.status: int | None = None  # the command's exit status

    async def run(self, *, stdin: bool, tty: bool) -> None:
        """Run the session until the command or the connection has ended."""
        async with trio.open_nursery() as nursery:
            if tty:
                await nursery.start(self._send_size)
            nursery.start_soon(self._send_input if stdin else self._end_input, tty)
            nursery.start_soon(self._heed_interrupts, nursery.cancel_scope)
            await self._show()
            nursery.cancel_scope.cancel()

    async def _heed_interrupts(self, talking: trio.CancelScope) -> None:
        # Restore the terminal before the program exits because of one of these signals.
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
            async for number in signals:
                interrupted = number == signal.SIGINT
                self.fault = KeyboardInterrupt() if interrupted else SystemExit(128 + number)
                talking.cancel()

    async def _show(self) -> None:
        """Print the output of the command until the command has ended."""
        try:
            while self.status is None:
                message = await self._socket.get_message()
                try:
                    frame = _frame.decode(message)
                except UNREADABLE as error:
                    self.fault = DaemonUnreachable(f"the daemon sent an invalid frame: {error}")
                    return
                for stream_data, descriptor in ((frame.stdout, _STDOUT), (frame.stderr, _STDERR)):
                    if stream_data is not None and stream_data.data:
                        write_all(descriptor, stream_data.data)
                if frame.exited:
                    self.status = frame.result.exit_code
        except ConnectionClosed as error:
            if self.status is not None:  # this side ended the session
                return
            reason = error.reason.reason if error.reason else None
            if reason and "ermission denied" in reason:
                self.fault = RequestRejected(_FORBIDDEN, reason)
            else:
                self.fault = DaemonUnreachable(reason or "the daemon closed the connection")

    async def _send(self, frame: object) -> None:
        with suppress(ConnectionClosed):  # the task that prints the output handles the error
            await self._socket.send_message(msgspec.json.encode(frame).decode())

    async def _send_size(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Send the size of the terminal now and after each change."""
        with trio.open_signal_receiver(signal.SIGWINCH) as changes:
            await self._send(_size())
            task_status.started()
            async for _ in changes:
                await self._send(_size())

    async def _end_input(self, tty: bool) -> None:
        if not tty:
            await self._send({"stdin": {"close": True}})

    async def _send_input(self, tty: bool) -> None:
        """Forward input from the terminal, a file or a pipe."""
        before = b"\n"
        while True:
            data = await trio.to_thread.run_sync(os.read, _STDIN, _CHUNK, abandon_on_cancel=True)
            if tty and is_escape(before, data):
                self.status = 0
                await self._socket.aclose()
                return None
            if not data:
                return await self._end_input(tty)
            before = (before + data)[-2:]
            await self._send({"stdin": ExecInput(data=data)})


def is_escape(before: bytes, data: bytes) -> bool:
    """Return whether the new input contains the escape `~.`, given the input before it."""
    typed = before + data
    return any(end + _ESCAPE in typed for end in (b"\r", b"\n"))


def _size() -> dict[str, dict[str, int]]:
    size = shutil.get_terminal_size()
    return {"tty_size": {"height": size.lines, "width": size.columns}}


def write_all(descriptor: int, data: bytes) -> None:
    """Write all bytes, blocking."""
    while data:
        data = data[os.write(descriptor, data) :]


@contextmanager
def _raw(*, is_needed: bool) -> Iterator[None]:
    """Use the terminal's raw mode while the block runs, if `is_needed`."""
    if not is_needed:
        yield
        return
    before = termios.tcgetattr(_STDIN)
    terminal.setraw(_STDIN, termios.TCSADRAIN)  # keeps the input that was typed ahead
    try:
        yield
    finally:
        termios.tcsetattr(_STDIN, termios.TCSADRAIN, before)
