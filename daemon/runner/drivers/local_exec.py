"""An exec session with a local command, over pipes or a terminal.

The command is a child of the launcher or the daemon and ends with the session. Nothing is stored.
"""

import fcntl
import os
import signal
import struct
import termios
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import trio

from daemon.launcher.client import Launcher
from daemon.runner.drivers import process_scan

_SIGNALS = tuple(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
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
        except trio.BrokenResourceError:  # no process has the terminal open any more
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

    def _let_go(self) -> None:
        for stream in {self._stdin, *self._sources.values()}:
            stream.close()


class PassedSession(_Conversation):
    """A command that the launcher started inside a task.

    `ends` are its terminal, or its standard input, output and error.
    """

    def __init__(self, launcher: Launcher, number: int, descriptor: int, *ends: int) -> None:
        streams = [trio.lowlevel.FdStream(one) for one in ends]
        names = ("stdout", "stderr") if len(streams) > 1 else ("stdout",)
        super().__init__(streams[0], dict(zip(names, streams[1:] or streams, strict=True)))
        self._launcher, self._number, self._descriptor = launcher, number, descriptor
        self._status: int | None = None

    async def wait(self) -> int:
        """Return the exit status."""
        while self._status is None:
            await trio.lowlevel.wait_readable(self._descriptor)
            status = await self._launcher.conclude(self._number)
            if self._status is None:  # otherwise a concurrent caller has got it
                self._status = status if status >= 0 else _SIGNALLED + signal.SIGKILL
        return self._status

    async def kill(self) -> None:
        """Kill the process group of the command, unless it has ended."""
        if self._status is None:
            await self._launcher.end_session(self._number)

    async def _hang_up(self) -> None:
        """Send SIGHUP to the whole session; processes that ignore it, as under `nohup`, stay.

        On a terminal, each job of a shell has its own process group. The kernel signals only the
        leader and the foreground job, and few shells forward it.
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
        self._let_go()


class LocalExec(_Conversation):
    """A command that is a child of the daemon and leads a session."""

    def __init__(
        self, pid: int, stdin: trio.lowlevel.FdStream, outputs: Mapping[str, trio.lowlevel.FdStream]
    ) -> None:
        super().__init__(stdin, outputs)
        self._pid = pid
        self._descriptor = os.pidfd_open(pid)
        self._status: int | None = None

    async def wait(self) -> int:
        """Return the exit status."""
        if self._status is None:
            await trio.lowlevel.wait_readable(self._descriptor)
            self._reap()
        assert self._status is not None  # noqa: S101  # reaped above, so it has ended
        return self._status

    def _reap(self) -> None:
        code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        self._status = code if code >= 0 else _SIGNALLED - code

    async def kill(self) -> None:
        """Kill the process group of the command, unless it has ended."""
        if self._status is None:
            os.killpg(self._pid, signal.SIGKILL)

    async def _hang_up(self) -> None:
        """Send SIGHUP to the whole session; processes that ignore it, as under `nohup`, stay.

        On a terminal, each job of a shell has its own process group. The kernel signals only the
        leader and the foreground job, and few shells forward it.
        """
        if not self._has_terminal:
            return
        self._stdin.close()
        process_scan.send(process_scan.session(self._pid), signal.SIGHUP)
        with trio.move_on_after(_HANG_UP, shield=True):
            await trio.lowlevel.wait_readable(self._descriptor)

    async def close(self) -> None:
        """Kill the session of the command unless it has ended, and close all descriptors."""
        if self._status is None:
            await self._hang_up()
            await self.kill()
            # Otherwise the zombie would stay until the daemon exits.
            with trio.move_on_after(_PATIENCE, shield=True):
                await self.wait()
        os.close(self._descriptor)
        self._let_go()


def start_exec(line: Sequence[str], env: Mapping[str, str]) -> LocalExec:
    """Start a command with three pipes. Raises `OSError`."""
    with _ends() as (mine, theirs):
        for _ in range(3):
            reader, writer = os.pipe()
            mine.append(reader)
            theirs.append(writer)
        # The first pipe is standard input: the command gets its read end.
        mine[0], theirs[0] = theirs[0], mine[0]
        actions = [(os.POSIX_SPAWN_DUP2, end, place) for place, end in enumerate(theirs)]
        pid = _spawn(line, env, actions)
        stdin, stdout, stderr = (trio.lowlevel.FdStream(end) for end in mine)
        mine.clear()
    return LocalExec(pid, stdin, {"stdout": stdout, "stderr": stderr})


def start_exec_tty(line: Sequence[str], env: Mapping[str, str], owner: int) -> LocalExec:
    """Start a command with a new terminal that belongs to `owner`. Raises `OSError`."""
    with _ends() as (mine, theirs):
        master, slave = os.openpty()
        mine.append(master)
        theirs.append(slave)
        os.fchown(slave, owner, -1)
        # A session leader that opens a terminal makes it its controlling terminal.
        opened = (os.POSIX_SPAWN_OPEN, 0, os.ttyname(slave), os.O_RDWR, 0)
        copies = [(os.POSIX_SPAWN_DUP2, 0, place) for place in (1, 2)]
        pid = _spawn(line, env, [opened, *copies])
        terminal = trio.lowlevel.FdStream(master)
        mine.clear()
    return LocalExec(pid, terminal, {"stdout": terminal})


@contextmanager
def _ends() -> Iterator[tuple[list[int], list[int]]]:
    """Yield lists for the daemon's and the command's ends.

    Descriptors that are still in a list afterwards are closed.
    """
    mine: list[int] = []
    theirs: list[int] = []
    try:
        yield mine, theirs
    finally:
        for end in (*mine, *theirs):
            os.close(end)


def _spawn(
    line: Sequence[str], env: Mapping[str, str], actions: Sequence[tuple[object, ...]]
) -> int:
    return os.posix_spawn(
        line[0],
        list(line),
        env,
        file_actions=[*actions],
        setsid=True,
        setsigmask=(),
        setsigdef=_SIGNALS,
    )
