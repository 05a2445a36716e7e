"""The launcher's side: one thread that takes a message, judges it, does it and answers.

A message that is wrong in form ends the launcher, and so the daemon. A message that asks for what is not
allowed, or what the machine refuses, is answered with the reason.
"""

import errno
import fcntl
import os
import select
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import msgspec

from daemon.launcher import directories, files, starting
from daemon.launcher.channel import Wrong, close, read_record, read_sealed, receive, sealed, send
from daemon.launcher.messages import (
    MOST_PAYLOAD,
    VERSION,
    Answer,
    Begun,
    Done,
    Ended,
    Failed,
    Finish,
    Hello,
    LaidOut,
    LayOut,
    Layout,
    Message,
    Note,
    Question,
    Read,
    Recall,
    Reply,
    Said,
    Signal,
    Start,
    Started,
    Welcome,
    Write,
)
from daemon.launcher.places import below, read_claim
from daemon.launcher.shims import Key, Shims

Given = tuple[Answer, list[int]]  # the answer, and the descriptors that go with it

LOCK = ".launcher"  # in the directory of all allocations: held by the one launcher that there is
_EXIT_WRONG = 1
_layout = msgspec.msgpack.Decoder(Layout)


class Server:
    """One life of the launcher."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._decoder = msgspec.msgpack.Decoder(Question)
        self._encoder = msgspec.msgpack.Encoder()
        self._shims = Shims()
        self._directory = ""  # of all allocations; nothing: it was not greeted

    def run(self) -> int:
        """Serve until the daemon's end closes; return the exit status."""
        bell, ringer = os.pipe()
        for descriptor in (bell, ringer):
            os.set_blocking(descriptor, False)
        # The signal alone interrupts nothing: the byte that it leaves ends the wait.
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(ringer, warn_on_full_buffer=False)
        waits = select.poll()
        waits.register(self._channel, select.POLLIN)
        waits.register(bell, select.POLLIN)
        try:
            while True:
                ready = [descriptor for descriptor, _ in waits.poll()]
                if bell in ready:
                    os.read(bell, 4096)
                    self._shims.reap()
                if self._channel.fileno() in ready and not self._serve_one():
                    return 0
        except Wrong as error:
            say(f"a wrong message: {error}")
            return _EXIT_WRONG
        except (BrokenPipeError, ConnectionResetError):  # the daemon ended before the answer
            return 0

    def _serve_one(self) -> bool:
        """Answer the next request; tell whether there was one. Raises `Wrong` or `OSError`."""
        data, descriptors = receive(self._channel)
        if not data:
            return False
        try:
            try:
                question = self._decoder.decode(data)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise Wrong(str(error)) from None
            body, passed = self._answer(question, descriptors)
        finally:
            close(descriptors)
        reply = Reply(number=question.number, descriptors=len(passed), body=body)
        try:
            send(self._channel, self._encoder.encode(reply), passed)
        finally:
            close(passed)
        return True

    def _answer(self, question: Question, descriptors: Sequence[int]) -> Given:
        kind = type(question.body)
        wanted, handler = _TABLE[kind]
        if question.descriptors != len(descriptors) or len(descriptors) not in wanted:
            raise Wrong(f"{kind.__name__} came with {len(descriptors)} descriptors")
        if bool(self._directory) == (kind is Hello):
            raise Wrong(f"{kind.__name__} came at the wrong time")
        try:
            return handler(self, question.body, descriptors)
        except OSError as error:
            return Failed(number=error.errno or errno.EIO, text=error.strerror or str(error)), []
        except ValueError as error:  # a text that no program can be given
            return Failed(number=0, text=str(error)), []

    # --- requests ---

    def greet(self, request: Hello, descriptors: Sequence[int]) -> Given:
        """Become the only launcher of a directory: wait until the one before has ended."""
        del descriptors
        if request.version != VERSION:
            raise Wrong(f"version {request.version} of the protocol, not {VERSION}")
        self._directory = request.directory
        os.makedirs(request.directory, mode=0o711, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        # It stays open, and so locked, until the end of this process.
        fcntl.flock(os.open(f"{request.directory}/{LOCK}", flags, 0o600), fcntl.LOCK_EX)
        return Welcome(is_root=os.geteuid() == 0), []

    def start(self, request: Start, descriptors: Sequence[int]) -> Given:
        """Start a shim."""
        payload, *filtered = descriptors
        found = starting.start(self._directory, request, payload, filtered)
        if found is None:
            return Begun(), []
        pid, descriptor = found
        self._shims.note(_key(request), pid)
        return Started(pid=pid), [descriptor]

    def lay_out(self, request: LayOut, descriptors: Sequence[int]) -> Given:
        """Make the directories of an allocation."""
        layout = read_record(descriptors[0], MOST_PAYLOAD, _layout)
        troubles = directories.lay_out(
            self._directory, request.allocation, request.previous, layout
        )
        return LaidOut(troubles=troubles), []

    def write(self, request: Write, descriptors: Sequence[int]) -> Given:
        """Put a file where a task can reach it."""
        files.write(self._directory, request, read_sealed(descriptors[0], MOST_PAYLOAD))
        return Done(), []

    def read(self, request: Read, descriptors: Sequence[int]) -> Given:
        """Tell what is known of a file, and what it holds."""
        del descriptors
        found, content = files.read(self._directory, request)
        return found, [sealed(content)] if request.most else []

    def note(self, request: Note, descriptors: Sequence[int]) -> Given:
        """Keep a note about a task."""
        del descriptors
        files.note(self._directory, request)
        return Done(), []

    def recall(self, request: Recall, descriptors: Sequence[int]) -> Given:
        """Tell what a note says."""
        del descriptors
        return Said(text=files.recall(self._directory, request)), []

    def signal(self, request: Signal, descriptors: Sequence[int]) -> Given:
        """Signal the main process of an attempt, or its shim."""
        del descriptors
        with self._folder(request) as folder:
            self._shims.signal(
                folder,
                _key(request),
                request.signal,
                is_walled=request.is_walled,
                to_shim=request.to_shim,
            )
        return Done(), []

    def finish(self, request: Finish, descriptors: Sequence[int]) -> Given:
        """Tell how an attempt ended."""
        del descriptors
        status = self._shims.take_status(_key(request))
        with self._folder(request) as folder:
            text, at = b"", 0
            if folder is not None:
                text, at = read_claim(folder, request.task, request.attempt)
        return Ended(claim=text, at=at, status=-1 if status is None else status), []

    @contextmanager
    def _folder(self, request: Signal | Finish) -> Iterator[int | None]:
        """Give the directory of an allocation; None: it was removed. Raises `OSError`."""
        with ExitStack() as held:
            try:
                found = held.enter_context(below(self._directory, request.allocation))
            except (FileNotFoundError, NotADirectoryError):
                found = None
            yield found


def _key(request: Start | Signal | Finish) -> Key:
    return request.allocation, request.task, request.attempt


def say(text: str) -> None:
    """Write a line to the log of the daemon."""
    print(f"steward: launcher: {text}", file=sys.stderr, flush=True)  # noqa: T201  # it has no other log


# How many descriptors come with each request, and what answers it.
_TABLE: dict[type[Message], tuple[range, Callable[..., Given]]] = {
    Hello: (range(1), Server.greet),
    Start: (range(1, 3), Server.start),
    LayOut: (range(1, 2), Server.lay_out),
    Signal: (range(1), Server.signal),
    Finish: (range(1), Server.finish),
    Write: (range(1, 2), Server.write),
    Read: (range(1), Server.read),
    Note: (range(1), Server.note),
    Recall: (range(1), Server.recall),
}
