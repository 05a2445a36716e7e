"""An exec session with a local command, over pipes or a terminal.

The command is a child of the launcher and ends with the session. Nothing is stored.
"""

import fcntl
import os
import signal
import struct
import termios
from collections.abc import Mapping, Sequence

import trio

from daemon.launcher.client import Launcher

_CHUNK = 32 * 1024  # bytes per read
_SIGNALLED = 128
_HANG_UP = 1.0  # seconds for a command to exit after SIGHUP
_PATIENCE = 5.0  # seconds until the kernel has ended a killed process


class _Conversation:
    """The input and output of a command."""

    def __init__(
        self, stdin: trio.lowlevel.FdStream, outputs: Mapping[str, trio.lowlevel.FdStream]
    ) -> None:
        self._stdin, self._sources = stdin, dict(outputs)
        self._has_terminal = outputs.get("stdout") is stdin

    @property
    def outputs(self) -> Sequence[str]:
        """Return the names of the outputs."""
        return list(self._sources)

    async def read(self, output: str) -> bytes:
        """Return the next output of the command; empty at the end."""
        try:
            return bytes(await self._sources[output].receive_some(_CHUNK))
        except trio.BrokenResourceError:  # no process has the terminal open any longer
            return b""

    async def write(self, data: bytes) -> None:
        """Write input to the command; a closed input is ignored."""
        try:
            await self._stdin.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return

    async def end_input(self) -> None:
        """Close the input: close the pipe, or send EOF to the terminal."""
        if self._has_terminal:
            await self.write(b"\x04")
        else:
            await self._stdin.aclose()

    def resize(self, height: int, width: int) -> None:
        """Set the size of the terminal."""
        if self._has_terminal:
            size = struct.pack("HHHH", height & 0xFFFF, width & 0xFFFF, 0, 0)
            fcntl.ioctl(self._stdin.fileno(), termios.TIOCSWINSZ, size)

    def _release(self) -> None:
        for stream in {self._stdin, *self._sources.values()}:
            stream.close()


class PassedSession(_Conversation):
    """A command that the launcher started inside a task.

    `ends` has the descriptor of the command's terminal, or those of its standard input, output and
    error.
    """

    def __init__(self, launcher: Launcher, number: int, descriptor: int, *ends: int) -> None:
        streams = [trio.lowlevel.FdStream(end) for end in ends]
        names = ("stdout", "stderr") if len(streams) > 1 else ("stdout",)
        super().__init__(streams[0], dict(zip(names, streams[1:] or streams, strict=True)))
        self._launcher, self._number, self._descriptor = launcher, number, descriptor
        self._status: int | None = None

    async def wait(self) -> int:
        """Wait for the end of the command, and return its exit status."""
        while self._status is None:
            await trio.lowlevel.wait_readable(self._descriptor)
            status = await self._launcher.conclude(self._number)
            if self._status is None:  # otherwise a concurrent caller has set the status
                self._status = status if status >= 0 else _SIGNALLED + signal.SIGKILL
        return self._status

    async def kill(self) -> None:
        """Kill the process group of the command, unless it has ended."""
        if self._status is None:
            await self._launcher.end_session(self._number)

    async def _hang_up(self) -> None:
        """Send SIGHUP to the whole session; processes that ignore SIGHUP keep running.

        On a terminal, each job of a shell has its own process group. The kernel signals only the
        leader and the foreground job, and few shells forward the signal.
        """
        if not self._has_terminal:
            return
        # Must come first: if the terminal closes, the leader exits and the launcher cannot find
        # the session.
        await self._launcher.end_session(self._number, hang_up=True)
        self._stdin.close()
        with trio.move_on_after(_HANG_UP):
            await trio.lowlevel.wait_readable(self._descriptor)

    async def close(self) -> None:
        """Kill the session of the command unless it has ended, and close all descriptors."""
        if self._status is None:
            with trio.move_on_after(_HANG_UP + _PATIENCE, shield=True):
                await self._hang_up()
                await self.kill()
                await self.wait()
        os.close(self._descriptor)
        self._release()
