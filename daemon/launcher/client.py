"""The daemon's side of the launcher: many ask at the same time, and one task reads the answers.

Who is cancelled while it waits leaves a note, so that the descriptors of a late answer are closed. When the
launcher ends, the daemon ends: `LauncherGone` is contained nowhere.
"""

import errno
import itertools
import os
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import trio

from daemon.launcher.channel import LONGEST, close, read_sealed, receive, sealed, send
from daemon.launcher.messages import (
    MOST_OPEN,
    MOST_PAYLOAD,
    VERSION,
    Answer,
    Begun,
    Done,
    Ended,
    Failed,
    Finish,
    Found,
    Hello,
    LaidOut,
    LayOut,
    Layout,
    Note,
    Payload,
    Question,
    Read,
    Recall,
    Reply,
    Request,
    Said,
    Signal,
    Start,
    Started,
    Welcome,
    Write,
)


class LauncherGone(BaseException):
    """The launcher has ended. No task has failed by that, so no place that contains errors may see it."""

    def __init__(self) -> None:
        super().__init__("the launcher has ended, and the daemon with it; tasks go on")


class _Waiter:
    """A request without an answer. `spare` keeps a place free for the descriptor that is to come."""

    def __init__(self, spare: int | None) -> None:
        self._spare = spare
        self.answered = trio.Event()
        self.is_wanted = True
        self.body: Answer | None = None
        self.descriptors: list[int] = []

    def make_room(self) -> None:
        """Give the place to what comes."""
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None

    def take(self, body: Answer, descriptors: list[int]) -> None:
        """Hand over the answer."""
        self.body, self.descriptors = body, descriptors
        self.answered.set()
        if not self.is_wanted:
            self.abandon()

    def abandon(self) -> None:
        """Want the answer no more, whether or not it has come."""
        self.is_wanted = False
        close(self.descriptors)
        self.descriptors = []


class Launcher:
    """What the daemon asks of its launcher."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._channel.setblocking(False)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(Reply)
        self._check = msgspec.msgpack.Decoder(Question).decode
        self._numbers = itertools.cycle(range(2**32))
        self._waiting: dict[int, _Waiter] = {}
        self._free = trio.Semaphore(MOST_OPEN, max_value=MOST_OPEN)
        self._sending = trio.Lock()

    # --- requests ---

    async def greet(self, directory: Path) -> Welcome:
        """Name the directory of allocations, once; return when no other launcher is at work there."""
        body, _ = await self._ask(Hello(version=VERSION, directory=str(directory)))
        assert isinstance(body, Welcome)  # noqa: S101  # both sides are of one program
        return body

    async def start(
        self,
        request: Start,
        line: tuple[Sequence[str], Mapping[str, str]],
        filtered: int | None = None,
    ) -> tuple[int, int] | None:
        """Start a shim with these words and variables; return its pid and pidfd.

        None: the attempt has begun before. `filtered` is what its filter of system calls is read from.
        A start goes on to its end, whoever is cancelled. Raises `OSError`, and `ValueError` for a text
        that no program can be given.
        """
        words, env = line
        variables = {os.fsencode(name): os.fsencode(value) for name, value in env.items()}
        passed = self._sealed(Payload(words=[*map(os.fsencode, words)], env=variables))
        try:
            # Kept free, so that the shim can be watched however many descriptors are open.
            spare = os.dup(passed)
            descriptors = [passed] if filtered is None else [passed, filtered]
            with trio.CancelScope(shield=True):
                body, received = await self._ask(request, descriptors, spare)
        finally:
            os.close(passed)
        if isinstance(body, Begun):
            return None
        assert isinstance(body, Started)  # noqa: S101  # as above
        return body.pid, received[0]

    async def lay_out(
        self, allocation: str, layout: Layout, previous: str | None = None
    ) -> dict[str, str]:
        """Make the directories of an allocation; return the tasks that got none, and why.

        `previous` is the allocation that it replaces, if its data is to be kept. Raises `OSError`.
        """
        passed = self._sealed(layout)
        try:
            request = LayOut(allocation=allocation, previous=previous)
            body, _ = await self._ask(request, [passed])
        finally:
            os.close(passed)
        assert isinstance(body, LaidOut)  # noqa: S101  # both sides are of one program
        return body.troubles

    async def write(self, request: Write, content: bytes) -> None:
        """Put a file where a task can reach it. Raises `OSError`: EXDEV when a link leads elsewhere."""
        passed = self._kept(content)
        try:
            await self._ask(request, [passed])
        finally:
            os.close(passed)

    async def read(self, request: Read) -> tuple[Found, bytes]:
        """Return what is known of a file, and its first bytes. Raises `OSError` as above."""
        spare = os.memfd_create("spare") if request.most else None  # as for a start
        body, received = await self._ask(request, (), spare)
        assert isinstance(body, Found)  # noqa: S101  # as above
        try:
            return body, b"".join(read_sealed(one, request.most) for one in received)
        finally:
            close(received)

    async def note(self, request: Note) -> None:
        """Keep a note about a task, or remove it. Raises `OSError`."""
        await self._ask(request)

    async def recall(self, request: Recall) -> str | None:
        """Return what a note says; None: there is none. Raises `OSError`."""
        body, _ = await self._ask(request)
        assert isinstance(body, Said)  # noqa: S101  # as above
        return body.text

    def _sealed(self, record: msgspec.Struct) -> int:
        """Return a descriptor of a sealed file with a record. Raises `OSError`."""
        return self._kept(self._encoder.encode(record))

    def _kept(self, content: bytes) -> int:
        if len(content) > MOST_PAYLOAD:
            raise OSError(errno.E2BIG, os.strerror(errno.E2BIG))
        return sealed(content)

    async def signal(self, request: Signal) -> None:
        """Send a signal; nobody is hit where the attempt has ended. Raises `OSError` or `ValueError`."""
        body, _ = await self._ask(request)
        assert isinstance(body, Done)  # noqa: S101  # as above

    async def finish(self, request: Finish) -> Ended:
        """Return what is left of an attempt whose shim has ended. Raises `OSError`."""
        body, _ = await self._ask(request)
        assert isinstance(body, Ended)  # noqa: S101  # as above
        return body

    # --- how they travel ---

    async def _ask(
        self, request: Request, descriptors: Sequence[int] = (), spare: int | None = None
    ) -> tuple[Answer, list[int]]:
        """Return the answer to a request, with its descriptors.

        Raises `OSError`, and `ValueError` for a request that the protocol does not know.
        """
        waiter = _Waiter(spare)
        try:
            await self._send(request, descriptors, waiter)
            await waiter.answered.wait()
        except BaseException:
            waiter.abandon()
            raise
        finally:
            waiter.make_room()
        if waiter.body is None:
            raise LauncherGone
        return answer_of(waiter.body, waiter.descriptors)

    async def _send(self, request: Request, descriptors: Sequence[int], waiter: _Waiter) -> None:
        await self._free.acquire()  # `_take` releases it
        try:
            async with self._sending:
                number = next(self._numbers)
                question = Question(number=number, descriptors=len(descriptors), body=request)
                data = self._encoder.encode(question)
                self._check(data)  # a message of another form would end the launcher
                while not self._is_sent(data, descriptors):
                    await trio.lowlevel.wait_writable(self._channel)
                self._waiting[number] = waiter
        except BaseException:
            self._free.release()
            raise

    def _is_sent(self, data: bytes, descriptors: Sequence[int]) -> bool:
        try:
            send(self._channel, data, descriptors)
        except BlockingIOError:
            return False
        except (BrokenPipeError, ConnectionResetError):
            raise LauncherGone from None
        return True

    async def run(self, reading: trio.CancelScope) -> None:
        """Hand out the answers until the scope is cancelled. Raises `LauncherGone`."""
        try:
            with reading:
                while True:
                    await trio.lowlevel.wait_readable(self._channel)
                    while self._take():
                        pass
        finally:
            for waiter in self._waiting.values():
                waiter.answered.set()

    def _take(self) -> bool:
        """Take the next answer; tell whether there was one. Raises `LauncherGone`."""
        try:
            # A look first: who waits for a descriptor keeps a place free for it.
            data = self._channel.recv(LONGEST, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            data = b""
        if not data:
            raise LauncherGone
        reply = self._decoder.decode(data)
        waiter = self._waiting.pop(reply.number)
        waiter.make_room()
        _, descriptors = receive(self._channel)
        self._free.release()
        waiter.take(reply.body, descriptors)
        return True


def answer_of(body: Answer, descriptors: list[int]) -> tuple[Answer, list[int]]:
    """Return an answer with its descriptors. Raises what has failed, as `OSError` or `ValueError`."""
    if isinstance(body, Failed):
        raise OSError(body.number, body.text) if body.number else ValueError(body.text)
    return body, descriptors


@asynccontextmanager
async def open_launcher(channel: socket.socket, directory: Path) -> AsyncIterator[Launcher]:
    """Have the launcher at the other end serve a directory of allocations while the block runs."""
    with channel:
        launcher = Launcher(channel)
        async with trio.open_nursery() as nursery:
            # Who is cancelled may have to end what it has begun: until then answers are read.
            reading = trio.CancelScope(shield=True)
            nursery.start_soon(launcher.run, reading)
            try:
                await launcher.greet(directory)
                yield launcher
            finally:
                reading.cancel()
