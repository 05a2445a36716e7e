"""The HTTP server, imported and started by the first connection that needs it.

Hypercorn, Quart and the packages that they import take about 14 MiB and a third of the time of a
start. Most daemons answer most requests by the fast path. So the first connection that the fast
path does not serve imports these packages. That connection waits, and the loop serves others.

A thread imports the packages, so the event loop waits only for single calls into C, such as the
loading of a module's bytecode. After each package, the thread checks whether its connection was
cancelled, so the shutdown of the daemon does not wait for the other packages. The next connection
continues the import. After an error, the connection gets the reason, and the next connection tries
again.

An upgrade may replace the packages while the daemon runs. Modules of different versions must not be
mixed, so the daemon then refuses the import until it is restarted.
"""

import logging
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

import msgspec
import trio

from daemon.app.context import AppContext
from daemon.web.admission import LogRateLimiter
from daemon.web.dispatcher import Dispatcher
from daemon.web.fast_path import Handover
from daemon.web.listeners import PeerAddress
from daemon.web.reply import TEXT
from daemon.web.send import Stream, send_with_timeout
from daemon.web.turns import ConnectionTurns
from storage import garbage

if TYPE_CHECKING:
    from daemon.web.asgi_app import FrameworkServer

log = logging.getLogger("steward.web")

CLOSING = 2  # seconds for running requests at the shutdown
SERVER = "daemon.web.asgi_app"
# The imports in their order. Each module needs the modules before it, so that the imports between
# two checks are short.
STEPS = (
    *("h11", "wsproto", "hpack", "h2.connection", "asyncio", "email.message", "http.client"),
    *("hypercorn.config", "hypercorn.trio", "werkzeug.wrappers", "werkzeug.routing", "jinja2"),
    *("importlib.metadata", "click", "flask", "quart", "quart_trio", "daemon.web.http_connection"),
    SERVER,
)
_OWN = __name__.partition(".")[0]
_STANDARD = sys.stdlib_module_names
_LINGER = 1.0  # seconds in which the rest of a request is read and discarded


class PackagesReplaced(ImportError):
    """The packages on the disk are not those that the daemon was started with."""


class _File(msgspec.Struct, frozen=True):
    """The identity of a file. A package manager creates a new file for each file that it installs."""

    device: int
    inode: int
    changed: int
    size: int


class InstalledPackages:
    """The packages that are imported late, as they were when the daemon started."""

    def __init__(self, modules: Sequence[str] = STEPS) -> None:
        """Find the packages of `modules`. Raises `ImportError` if a package is missing."""
        names = dict.fromkeys(name.partition(".")[0] for name in modules)
        self._files = {name: _file_of(name) for name in names if name not in _STANDARD}
        self._found = {file: _identity(file) for file in self._files.values()}

    def check(self) -> None:
        """Check that the packages were not replaced. Raises `PackagesReplaced`."""
        for name, file in self._files.items():
            if _identity(file) != self._found[file]:
                raise PackagesReplaced(
                    f"the files of {name} were replaced after the start of the daemon: restart it"
                )


def _file_of(name: str) -> str:
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(
            f"the package {name} is not installed: install Steward again", name=name
        )
    return spec.origin


def _identity(file: str) -> _File | None:
    with suppress(OSError):  # the file was removed
        stat = os.stat(file)
        return _File(stat.st_dev, stat.st_ino, stat.st_mtime_ns, stat.st_size)
    return None


def import_steps(steps: Sequence[str], check: Callable[[], None]) -> None:
    """Import modules, with a call of `check` before and after each of them."""
    check()
    for name in steps:
        import_module(name)
        check()


class LateHttpServer:
    """The HTTP server of some listeners, which starts when a connection needs it."""

    def __init__(
        self, parts: AppContext, dispatcher: Dispatcher, closing: trio.Event, most: int
    ) -> None:
        """`most` limits the bytes of a body. Raises `ImportError` if a package is missing."""
        self._parts, self._dispatcher, self._closing, self._most = parts, dispatcher, closing, most
        self._packages = InstalledPackages()
        self._starting = trio.Lock()
        self._server: FrameworkServer | None = None
        self._nursery: trio.Nursery  # set before the first connection
        self._is_terminated = False
        self._faults = LogRateLimiter("the HTTP server cannot be imported")

    def use(self, nursery: trio.Nursery) -> None:
        """Run the tasks of the server in `nursery`, from its start to `shut_down`."""
        self._nursery = nursery

    async def terminate(self) -> None:
        """Close idle connections, and the others after their response."""
        self._is_terminated = True
        if self._server is not None:
            await self._server.terminate()

    async def shut_down(self) -> None:
        """Stop the server, if it was started, after the last connection has ended."""
        if self._server is not None:
            await self._server.stop()

    async def serve(
        self,
        stream: Stream,
        peer: PeerAddress | None,
        client: str,
        handover: Handover,
        turns: ConnectionTurns,
    ) -> None:
        """Serve one connection of a client until it ends; start the server if it does not run."""
        server = self._server
        if server is None:
            began = trio.current_time()
            try:
                server = await self._started()
            except Exception as error:
                # Such as a missing file, or too many open files. Only this connection fails.
                self._faults.warn(repr, error)
                await _refuse(stream, error)
                return
            # The client did not cause this wait.
            until = handover.until + trio.current_time() - began
            handover = msgspec.structs.replace(handover, until=until)
        await server.serve(stream, peer, client, handover, turns)

    async def _started(self) -> "FrameworkServer":
        async with self._starting:
            if self._server is not None:
                return self._server
            if SERVER not in sys.modules:
                # A collection among the many new objects would hold all threads for 5 ms.
                await garbage.in_thread(partial(import_steps, STEPS, self._check))
            from daemon.web.asgi_app import FrameworkServer

            server = FrameworkServer(
                self._parts, self._dispatcher, self._closing, self._most, grace=CLOSING
            )
            with trio.CancelScope(shield=True):  # short, and a part of the server must not remain
                await server.start(self._nursery)
                if self._is_terminated:
                    await server.terminate()
            self._server = server
            return server

    def _check(self) -> None:
        """End the import if its connection was cancelled, or if the packages were replaced."""
        trio.from_thread.check_cancelled()
        self._packages.check()


async def _refuse(stream: Stream, error: Exception) -> None:
    """Answer a request with the reason why there is no HTTP server, and close the connection."""
    body = f"the HTTP server cannot be imported: {error or type(error).__name__}\n".encode()
    head = (
        "HTTP/1.1 500 Internal Server Error\r\n"
        f"content-type: {TEXT}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    # the client has disconnected
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        await send_with_timeout(stream, head.encode() + body)
        if isinstance(stream, trio.SocketStream):
            with suppress(OSError):  # the client has disconnected
                stream.socket.shutdown(trio.socket.SHUT_WR)
        # If the connection were closed with unread data, the client would lose the response.
        with trio.move_on_after(_LINGER):
            while await stream.receive_some():
                pass
