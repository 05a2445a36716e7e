"""Processes of Steward, forked from one process that has imported its modules.

    python -m tests.forks SOCKET

Imports take nine tenths of the start time. A forked process has the arguments, environment,
directory, standard streams, umask, session, signals and exit status of an executed one
(`tests/test_forks.py`). It differs in its parent, in `cmdline` and `environ` in `/proc`, in the
modules in its memory, and in the hash seed and the first signing key, which the processes of a
server share. Tests that observe these, or the launcher, privileges or a first start, use the
executable.
"""

import atexit
import gc
import importlib
import io
import json
import os
import pkgutil
import resource
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from typing import IO

import msgspec
import trio

ROOT = Path(__file__).parent.parent
PROGRAM = "daemon"  # the module that `steward` executes
PIPE, DEVNULL, STDOUT = subprocess.PIPE, subprocess.DEVNULL, subprocess.STDOUT
Stream = int | IO[bytes] | None  # as for `subprocess`; None: the stream of this process
_NUMBER = struct.Struct("i")
_ORDER = b"1"  # sent with a descriptor of a connection, which carries the order
# An interpreter or its C library reads these once, before the order arrives.
_READ_AT_START = ("PYTHON", "LC_", "LANG", "LD_", "MALLOC_", "GLIBC_", "OPENSSL_", "TZ")
_SPACES = ("net", "mnt", "user", "uts", "ipc", "pid_for_children")
_NOT_FLUSHED = 120  # exit status of an interpreter that cannot write its last output
_IMPORTED_LATE = ("encodings.idna", "encodings.unicode_escape", "httpx", "importlib.readers")
_OWN_SIGNALS = {signal.SIGPIPE, signal.SIGXFSZ}  # ignored by every interpreter


class ExecutableNeeded(Exception):
    """A forked process would differ from an executed one."""


# ---- the side of the tests ---------------------------------------------------------------------


class Child:
    """A forked process. Its exit status arrives from the server, which is its parent."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        answer, (self._descriptor, *_), _, _ = socket.recv_fds(connection, _NUMBER.size, 1)
        (self.pid,) = _NUMBER.unpack(answer)
        self._status: int | None = None

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when the process has ended."""
        return self._connection.fileno()

    def send_signal(self, number: int) -> None:
        if self._status is None:
            with suppress(ProcessLookupError):  # the process has just ended
                signal.pidfd_send_signal(self._descriptor, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def poll(self) -> int | None:
        """Return the exit status of the process, or None if it still runs."""
        if self._status is None:
            ready = select.poll()  # unlike `select`, it accepts descriptors above 1023
            ready.register(self._connection, select.POLLIN)
            if not ready.poll(0):
                return None
        return self.wait()

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status of the process, or the negated signal number.

        Raises `TimeoutError`.
        """
        if self._status is None:
            self._connection.settimeout(timeout)
            (self._status,) = _NUMBER.unpack(self._connection.recv(_NUMBER.size))
            self._connection.close()
            os.close(self._descriptor)
        return self._status


class ForkServer:
    """The process that forks the other processes.

    It ends when this end of its channel is closed.
    """

    def __init__(self, *words: str, env: Mapping[str, str]) -> None:
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._fixed = _fixed(env)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *words, str(theirs.fileno())],
                cwd=ROOT,
                env=env,
                pass_fds=[theirs.fileno()],
                stdin=DEVNULL,
                stdout=DEVNULL,
            )

    def close(self) -> None:
        self._orders.close()
        self._process.wait()

    def start(
        self,
        words: Sequence[str],
        env: Mapping[str, str],
        streams: Sequence[int] = (0, 1, 2),
        *,
        module: str = PROGRAM,
        own_session: bool = False,
    ) -> Child:
        """Fork a process that runs like `python -m MODULE WORDS`, and return it.

        Raises `ExecutableNeeded`.
        """
        _compare(self._fixed, _fixed(env))
        order = {
            "module": module,
            "words": [*words],
            "environment": dict(env),
            "directory": os.getcwd(),
            "own_session": own_session,
            "status": _signals_and_umask(),
        }
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                socket.send_fds(self._orders, [_ORDER], [theirs.fileno(), *streams])
            ours.sendall(json.dumps(order).encode())
            ours.shutdown(socket.SHUT_WR)
            return Child(ours)
        except BaseException:
            ours.close()
            raise


def begin(
    words: Sequence[str], *, env: Mapping[str, str], stderr: int = 2, module: str = PROGRAM
) -> tuple[Child, IO[bytes]]:
    """Fork a process with these arguments; return the process and its standard output."""
    reading, writing = os.pipe()
    output = os.fdopen(reading, "rb")
    try:
        return server().start(words, env, (0, writing, stderr), module=module), output
    except BaseException:
        output.close()
        raise
    finally:
        os.close(writing)


_beginning = threading.Lock()  # scenarios run in threads


def server() -> ForkServer:
    """Return the server of all tests of this process; its first call starts it."""
    with _beginning:
        return _server()


@cache
def _server() -> ForkServer:
    # The server outlives the current test. So it must not inherit changes that a test made to this
    # process.
    _compare(_FIXED, _fixed(_VARIABLES))
    found = ForkServer("tests.forks", env=_VARIABLES)
    atexit.register(found.close)
    return found


def environment(**more: str) -> Mapping[str, str]:
    """Return the environment of a program under test, without Steward's settings."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("STEWARD_", "NOMAD_", "VAULT_", "BAO_"))
    }
    return {**kept, **more}


class Forked:
    """A forked process under Trio, with the interface of `trio.Process`."""

    def __init__(self, child: Child, ends: Mapping[int, int]) -> None:
        self._child, self.pid = child, child.pid
        self.send_signal, self.kill = child.send_signal, child.kill
        streams = {number: trio.lowlevel.FdStream(end) for number, end in ends.items()}
        self.stdin, self.stdout, self.stderr = (streams.get(number) for number in range(3))
        self._waiting = trio.Lock()

    @property
    def returncode(self) -> int | None:
        return self._child.poll()

    async def wait(self) -> int:
        """Wait for the process; return its exit status, or the negated signal number."""
        async with self._waiting:
            if self._child.poll() is None:
                await trio.lowlevel.wait_readable(self._child)
        return self._child.wait()

    async def aclose(self) -> None:
        """Kill the process, reap it, and close the pipes."""
        with trio.CancelScope(shield=True):
            self.kill()
            await self.wait()
            for stream in (self.stdin, self.stdout, self.stderr):
                if stream is not None:
                    await stream.aclose()


async def open_process(
    words: Sequence[str],
    *,
    env: Mapping[str, str],
    stdin: Stream = None,
    stdout: Stream = None,
    stderr: Stream = None,
    own_session: bool = False,
    origin: Callable[[], ForkServer] = server,
) -> Forked:
    """Fork a process of Steward with these arguments, variables and standard streams."""
    ends: dict[int, int] = {}
    with ExitStack() as stack:
        streams: list[int] = []
        for number, given in enumerate((stdin, stdout, stderr)):
            match given:
                case None:
                    streams.append(number)
                case subprocess.PIPE:
                    reading, writing = os.pipe()
                    own, other = (writing, reading) if number == 0 else (reading, writing)
                    ends[number] = own
                    streams.append(other)
                    stack.callback(os.close, other)
                case subprocess.DEVNULL:
                    streams.append(os.open(os.devnull, os.O_RDWR))
                    stack.callback(os.close, streams[-1])
                case subprocess.STDOUT:
                    streams.append(streams[1])
                case int():
                    streams.append(given)
                case _:
                    streams.append(given.fileno())

        def start() -> Child:
            return origin().start(words, env, streams, own_session=own_session)

        try:
            child = await trio.to_thread.run_sync(start)
        except BaseException:
            for end in ends.values():
                os.close(end)
            raise
    return Forked(child, ends)


async def run_process(
    words: Sequence[str], *, env: Mapping[str, str], stdin: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    """Run a command of Steward to its end; return its status and its output."""
    process = await open_process(words, env=env, stdin=PIPE, stdout=PIPE, stderr=PIPE)
    try:
        said = {1: b"", 2: b""}

        async def feed() -> None:
            assert process.stdin is not None
            with suppress(trio.BrokenResourceError):  # the process reads no further input
                await process.stdin.send_all(stdin)
            await process.stdin.aclose()

        async def read(number: int, pipe: trio.lowlevel.FdStream | None) -> None:
            assert pipe is not None
            async for piece in pipe:
                said[number] += piece

        async with trio.open_nursery() as nursery:
            nursery.start_soon(feed)
            nursery.start_soon(read, 1, process.stdout)
            nursery.start_soon(read, 2, process.stderr)
            status = await process.wait()
    finally:
        await process.aclose()
    return subprocess.CompletedProcess([*words], status, said[1], said[2])


def _fixed(env: Mapping[str, str]) -> dict[str, object]:
    """Return the properties of this thread that a forked process cannot take over."""
    limits = [name for name in dir(resource) if name.startswith("RLIMIT_")]
    return {
        **{f"the {one} namespace": os.readlink(f"/proc/thread-self/ns/{one}") for one in _SPACES},
        **{name: resource.getrlimit(getattr(resource, name)) for name in limits},
        "the user": (os.getresuid(), os.getresgid(), os.getgroups()),
        "the variables of the interpreter": {
            name: value for name, value in env.items() if name.startswith(_READ_AT_START)
        },
    }


def _compare(expected: Mapping[str, object], found: Mapping[str, object]) -> None:
    """Raise `ExecutableNeeded` if these properties differ."""
    if different := [name for name, value in found.items() if expected[name] != value]:
        raise ExecutableNeeded(f"only the executable follows {', '.join(different)}")


_VARIABLES = environment()  # as it was before the first test
_FIXED = _fixed(_VARIABLES)


def _signals_and_umask() -> dict[str, int]:
    """Return the umask, and the blocked and ignored signals of this thread as bits."""
    shown = dict(
        line.split(":\t", 1)
        for line in Path("/proc/thread-self/status").read_text().splitlines()
        if line.startswith(("Umask", "SigBlk", "SigIgn"))
    )
    return {
        "umask": int(shown["Umask"], 8),
        "blocked": int(shown["SigBlk"], 16),
        "ignored": int(shown["SigIgn"], 16),
    }


# ---- the side of the server --------------------------------------------------------------------


def main() -> None:
    import_program()
    share_first_key()
    prepare_types()
    serve(int(sys.argv[1]))


def import_program() -> None:
    """Import all modules of Steward but its entry point, which each process executes.

    Some modules of other packages are only imported when they are needed.
    """
    for name in _IMPORTED_LATE:
        importlib.import_module(name)
    package = importlib.import_module(PROGRAM)
    for one in pkgutil.walk_packages(package.__path__, f"{PROGRAM}."):
        if not one.name.endswith(".__main__"):
            importlib.import_module(one.name)


def share_first_key() -> None:
    """Generate one signing key, which is the first key of each forked process.

    A daemon with a new store generates a key, which takes a fifth of the CPU time of its start.
    """
    from daemon.identity import keypair

    generate = keypair.generate
    first = [generate()]
    keypair.generate = lambda: first.pop() if first else generate()


def prepare_types() -> None:
    """Prepare the decoders of all records, because msgspec caches its analysis of the types."""
    found: list[type[msgspec.Struct]] = [msgspec.Struct]
    for one in found:
        found += one.__subclasses__()
        with suppress(TypeError, NameError):  # a type that cannot be decoded
            msgspec.json.Decoder(one)


def serve(descriptor: int) -> None:
    """Fork a process for each order on the socket.

    Return, in the server only, when the other side closes the socket; a forked process never
    returns.
    """
    gc.collect()
    gc.freeze()  # the children copy fewer pages
    with socket.socket(fileno=descriptor) as orders:
        orders.setblocking(True)
        connection = _fork_for_orders(orders)
    if connection is not None:
        module = _become(connection)
        _end(_execute(module))


def _fork_for_orders(orders: socket.socket) -> socket.socket | None:
    """Execute orders until the other side disconnects.

    In a forked child, return its connection.
    """
    waiting = select.poll()
    waiting.register(orders, select.POLLIN)
    children: dict[int, tuple[int, socket.socket]] = {}
    while True:
        for descriptor, _ in waiting.poll():
            if descriptor != orders.fileno():
                waiting.unregister(descriptor)
                _report(descriptor, *children.pop(descriptor))
                continue
            order, descriptors, _, _ = socket.recv_fds(orders, len(_ORDER), 4)
            if not order:
                return None
            connection, streams = socket.socket(fileno=descriptors[0]), descriptors[1:]
            pid = os.fork()
            if pid == 0:
                for _, other in children.values():
                    other.detach()
                orders.detach()
                _take_over(streams, connection.fileno())
                return connection
            for item in streams:
                os.close(item)
            own = os.pidfd_open(pid)
            with suppress(OSError):  # the test has ended
                socket.send_fds(connection, [_NUMBER.pack(pid)], [own])
            children[own] = pid, connection
            waiting.register(own, select.POLLIN)


def _report(descriptor: int, pid: int, connection: socket.socket) -> None:
    """Reap a child, and report its exit status to the test."""
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.close(descriptor)
    with connection, suppress(OSError):  # the test has ended
        connection.sendall(_NUMBER.pack(status))


def _take_over(streams: list[int], kept: int) -> None:
    """Install the standard streams, and close all other descriptors except `kept`."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.closerange(3, kept)
    os.closerange(kept + 1, os.sysconf("SC_OPEN_MAX"))


def _become(connection: socket.socket) -> str:
    """Read an order from the connection, and apply its process state; return its module."""
    with connection, connection.makefile("rb") as stream:
        order = json.load(stream)
    status = order["status"]
    if order["own_session"]:
        os.setsid()
    os.umask(status["umask"])
    os.chdir(order["directory"])
    os.environ.clear()
    os.environ.update(order["environment"])
    for number in signal.valid_signals() - _OWN_SIGNALS:
        if status["ignored"] >> (number - 1) & 1:
            signal.signal(number, signal.SIG_IGN)
    blocked = {one for one in signal.valid_signals() if status["blocked"] >> (one - 1) & 1}
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = _standard_stream(number, getattr(sys, name))
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    sys.path[0] = order["directory"]
    sys.orig_argv = [sys.executable, "-m", order["module"], *order["words"]]
    sys.argv = ["-m", *order["words"]]
    return str(order["module"])


def _execute(module: str) -> int:
    """Run a module as the main program; return the exit status, as the interpreter derives it."""
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        print(error.code, file=sys.stderr)  # noqa: T201  # as the interpreter does
        return 1
    except KeyboardInterrupt:
        sys.excepthook(*sys.exc_info())
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def _end(status: int) -> None:
    """End like the interpreter, but without freeing the modules, which would take long."""
    threading._shutdown()
    atexit._run_exitfuncs()
    gc.collect()  # objects that were neither closed nor awaited report themselves
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            traceback.print_exc()
            status = _NOT_FLUSHED
    os._exit(status & 0xFF)


def _standard_stream(number: int, like: io.TextIOWrapper) -> io.TextIOWrapper:
    """Return a standard stream as the interpreter opens it at its start."""
    is_buffered = number == 0 or not like.write_through
    raw = open(number, "wb" if number else "rb", -1 if is_buffered else 0, closefd=False)  # noqa: SIM115  # as long as the process
    stream = io.TextIOWrapper(
        raw,
        encoding=like.encoding,
        errors=like.errors,
        newline="\n",
        line_buffering=not like.write_through and (number == 2 or raw.isatty()),
        write_through=like.write_through,
    )
    stream.mode = "w" if number else "r"
    return stream


if __name__ == "__main__":
    main()
