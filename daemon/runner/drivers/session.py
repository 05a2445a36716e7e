"""A command of this machine that somebody talks to: over pipes, or over a terminal of its own.

It is the daemon's own child and ends with the conversation: nothing of it is kept in the store.
"""

import fcntl
import os
import signal
import struct
import termios
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import trio

from daemon.runner.drivers import scan, shim

_SIGNALS = tuple(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
_CHUNK = 32 * 1024  # bytes that are read at once
_SIGNALLED = 128
_HANG_UP = 1.0  # seconds that a command has whose terminal is gone
_PATIENCE = 5.0  # seconds until the kernel has ended what was killed


class LocalSession:
    """The conversation. The process leads a session, so that a signal reaches all it has started."""

    def __init__(
        self, pid: int, stdin: trio.lowlevel.FdStream, outputs: Mapping[str, trio.lowlevel.FdStream]
    ) -> None:
        self._pid = pid
        self._descriptor = os.pidfd_open(pid)
        self._stdin, self._sources = stdin, dict(outputs)
        self._has_terminal = outputs.get("stdout") is stdin
        self._status: int | None = None

    @property
    def outputs(self) -> Sequence[str]:
        """Return the names of what can be read."""
        return list(self._sources)

    async def read(self, output: str) -> bytes:
        """Return what the command has written next; nothing at the end."""
        try:
            return bytes(await self._sources[output].receive_some(_CHUNK))
        except trio.BrokenResourceError:  # a terminal that nobody has open any more
            return b""

    async def write(self, data: bytes) -> None:
        """Hand the command input; of one that does not want it, take no notice."""
        try:
            await self._stdin.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return

    async def end_input(self) -> None:
        """Let the command read the end of its input: a terminal stays open, and has a sign for it."""
        if self._has_terminal:
            await self.write(b"\x04")
        else:
            await self._stdin.aclose()

    def resize(self, height: int, width: int) -> None:
        """Tell the command the size of its terminal."""
        if self._has_terminal:
            size = struct.pack("HHHH", height & 0xFFFF, width & 0xFFFF, 0, 0)
            fcntl.ioctl(self._stdin.fileno(), termios.TIOCSWINSZ, size)

    async def wait(self) -> int:
        """Return the exit status."""
        if self._status is None:
            await trio.lowlevel.wait_readable(self._descriptor)
            self._reap()
        assert self._status is not None  # noqa: S101  # it can be reaped: it has ended
        return self._status

    def _reap(self) -> None:
        code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        self._status = code if code >= 0 else _SIGNALLED - code

    def kill(self) -> None:
        """Kill the command's process group unless it has ended."""
        if self._status is None:
            os.killpg(self._pid, signal.SIGKILL)

    async def _hang_up(self) -> None:
        """Tell all of the session that its terminal is gone; who does not heed that, as `nohup`, stays.

        At a terminal each job of a shell is in a group of its own. The kernel tells the leader and the
        foreground alone, and few shells hand it on.
        """
        if not self._has_terminal:
            return
        self._stdin.close()
        scan.send(scan.session(self._pid), signal.SIGHUP)
        with trio.move_on_after(_HANG_UP, shield=True):
            await trio.lowlevel.wait_readable(self._descriptor)

    async def close(self) -> None:
        """Kill the command's session unless it has ended, and close what is open."""
        if self._status is None:
            await self._hang_up()
            self.kill()
            # Without this the daemon would keep what is left of it until its own end.
            with trio.move_on_after(_PATIENCE, shield=True):
                await self.wait()
        os.close(self._descriptor)
        for stream in {self._stdin, *self._sources.values()}:
            stream.close()


def start(line: Sequence[str], env: Mapping[str, str], filtered: bytes = b"") -> LocalSession:
    """Start a command with three pipes, and its filter of system calls. Raises `OSError`."""
    with _ends() as (mine, theirs):
        for _ in range(3):
            reader, writer = os.pipe()
            mine.append(reader)
            theirs.append(writer)
        # Of the first one the command has the end to read from.
        mine[0], theirs[0] = theirs[0], mine[0]
        actions = [(os.POSIX_SPAWN_DUP2, end, place) for place, end in enumerate(theirs)]
        pid = _spawn(line, env, actions, filtered)
        stdin, stdout, stderr = (trio.lowlevel.FdStream(end) for end in mine)
        mine.clear()
    return LocalSession(pid, stdin, {"stdout": stdout, "stderr": stderr})


def start_with_terminal(
    line: Sequence[str], env: Mapping[str, str], owner: int, filtered: bytes = b""
) -> LocalSession:
    """Start a command with a terminal of its own that belongs to `owner`. Raises `OSError`."""
    with _ends() as (mine, theirs):
        master, slave = os.openpty()
        mine.append(master)
        theirs.append(slave)
        os.fchown(slave, owner, -1)
        # Opened by the leader of a new session, it becomes the terminal of that session.
        opened = (os.POSIX_SPAWN_OPEN, 0, os.ttyname(slave), os.O_RDWR, 0)
        copies = [(os.POSIX_SPAWN_DUP2, 0, place) for place in (1, 2)]
        pid = _spawn(line, env, [opened, *copies], filtered)
        terminal = trio.lowlevel.FdStream(master)
        mine.clear()
    return LocalSession(pid, terminal, {"stdout": terminal})


@contextmanager
def _ends() -> Iterator[tuple[list[int], list[int]]]:
    """Give lists for our ends and for the command's; what is still in them is closed at the end."""
    mine: list[int] = []
    theirs: list[int] = []
    try:
        yield mine, theirs
    finally:
        for end in (*mine, *theirs):
            os.close(end)


def _spawn(
    line: Sequence[str],
    env: Mapping[str, str],
    actions: Sequence[tuple[object, ...]],
    filtered: bytes,
) -> int:
    with shim.readable(filtered) as end:
        passed = [] if end is None else [(os.POSIX_SPAWN_DUP2, end, shim.FILTER)]
        return os.posix_spawn(
            line[0],
            list(line),
            env,
            file_actions=[*actions, *passed],
            setsid=True,
            setsigmask=(),
            setsigdef=_SIGNALS,
        )
