"""An exec session in a container, over one connection to podman.

Without a terminal, podman prefixes each chunk with eight bytes, which contain the stream number and
the length of the chunk. Podman cannot kill a session. The driver therefore asks podman for the
process ID of the command on the host, and kills the process itself.
"""

import os
import signal
import struct
from collections.abc import Sequence

import h11
import msgspec
import trio

from daemon.runner.core.driver import StartFailed
from daemon.runner.drivers.podman.api import PodmanClient, PodmanFailed

_HEAD = struct.Struct(">B3xL")
_STREAMS = {1: "stdout", 2: "stderr"}
_CHUNK = 32 * 1024
_MOST_PIECE = 1 << 20  # bytes of a chunk: podman sends some kilobytes
_AGAIN = 0.01  # seconds between two polls for the start or end of a command
_BEGINS_WITHIN = 2.0  # seconds from podman's response to the start of the command
_SWITCHED, _OK = 101, 200


class PodmanSession:
    """An exec session in a container."""

    def __init__(
        self,
        podman: PodmanClient,
        command: str,
        stream: trio.SocketStream,
        early: bytes,
        *,
        tty: bool,
    ) -> None:
        self._podman, self._command = podman, command
        self._stream, self._early, self._tty = stream, early, tty
        names = ("stdout",) if tty else ("stdout", "stderr")
        opened = {name: trio.open_memory_channel[bytes](0) for name in names}
        self._senders = {name: ends[0] for name, ends in opened.items()}
        self._receivers = {name: ends[1] for name, ends in opened.items()}
        self._resize, self._sizes = trio.open_memory_channel[tuple[int, int]](8)
        self._process: int | None = None
        self._code: int | None = None

    @property
    def outputs(self) -> Sequence[str]:
        """Return the names of the outputs."""
        return list(self._receivers)

    async def read(self, output: str) -> bytes:
        """Return the next output of the command; empty at the end."""
        try:
            return await self._receivers[output].receive()
        except trio.EndOfChannel:
            return b""

    async def write(self, data: bytes) -> None:
        """Write input to the command; a closed input is ignored."""
        try:
            await self._stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return

    async def end_input(self) -> None:
        """Close the input of the command."""
        if self._tty:
            await self.write(b"\x04")
            return
        try:
            await self._stream.send_eof()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return

    def resize(self, height: int, width: int) -> None:
        """Set the size of the terminal."""
        if self._tty:
            try:
                self._resize.send_nowait((height & 0xFFFF, width & 0xFFFF))
            except trio.WouldBlock:
                return  # a later size follows while a window is being resized

    async def wait(self) -> int:
        """Wait until the command has ended and its output was read; return the exit status."""
        if self._code is None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._follow_sizes)
                nursery.start_soon(self._know_process)
                await self._share()
                nursery.cancel_scope.cancel()
            self._code = await self._status()
        return self._code

    async def _share(self) -> None:
        """Distribute received chunks to the readers of their streams."""
        try:
            if self._tty:
                while data := await self._receive(_CHUNK):
                    await self._senders["stdout"].send(data)
                return
            while len(head := await self._exactly(_HEAD.size)) == _HEAD.size:
                stream, size = _HEAD.unpack(head)
                if size > _MOST_PIECE:
                    return
                data = await self._exactly(size)
                if data and (name := _STREAMS.get(stream)):
                    await self._senders[name].send(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return
        finally:
            for sender in self._senders.values():
                sender.close()

    async def _exactly(self, size: int) -> bytes:
        """Return exactly `size` bytes, or fewer at the end."""
        data = b""
        while len(data) < size and (more := await self._receive(size - len(data))):
            data += more
        return data

    async def _receive(self, most: int) -> bytes:
        if self._early:
            data, self._early = self._early[:most], self._early[most:]
            return data
        return bytes(await self._stream.receive_some(most))

    async def _follow_sizes(self) -> None:
        async for height, width in self._sizes:
            try:
                await self._podman.resize(self._command, height, width)
            except PodmanFailed:
                continue

    async def _know_process(self) -> None:
        """Wait until the command has started, and open a pidfd of its process if possible."""
        while self._process is None:
            try:
                command_state = await self._podman.command(self._command)
            except PodmanFailed:
                return
            if command_state.running and command_state.pid:
                try:
                    self._process = os.pidfd_open(command_state.pid)
                except OSError:
                    return
                continue
            await trio.sleep(_AGAIN)

    async def _status(self) -> int:
        """Return the exit status of a command whose streams are closed."""
        try:
            # Podman reports the end of a command only on request.
            while (command_state := await self._podman.command(self._command)).running:  # noqa: ASYNC110
                await trio.sleep(_AGAIN)
        except PodmanFailed:  # the container was removed, with the command
            return 128 + signal.SIGKILL
        return command_state.exit_code

    async def kill(self) -> None:
        """Kill the command unless it has ended."""
        if self._code is None and self._process is not None:
            try:
                signal.pidfd_send_signal(self._process, signal.SIGKILL)
            except OSError:
                return

    async def close(self) -> None:
        """Kill the command unless it has ended, and close the connection."""
        if self._code is None:
            # A command that is about to start would otherwise run without a client.
            with trio.move_on_after(_BEGINS_WITHIN, shield=True):
                await self._know_process()
        await self.kill()
        if self._process is not None:
            os.close(self._process)
            self._process = None
        for sender in self._senders.values():
            sender.close()
        for receiver in self._receivers.values():
            receiver.close()
        self._resize.close()
        await trio.aclose_forcefully(self._stream)


async def open_session(
    podman: PodmanClient, name: str, settings: dict[str, object], *, tty: bool
) -> PodmanSession:
    """Run a command in a container. Raises `StartFailed`."""
    try:
        command = await podman.prepare(name, settings)
        stream, early = await _attach(podman, command, tty=tty)
    except (PodmanFailed, OSError, trio.BrokenResourceError, h11.ProtocolError) as error:
        raise StartFailed(f"failed to start command: {error}") from error
    return PodmanSession(podman, command, stream, early, tty=tty)


async def _attach(
    podman: PodmanClient, command: str, *, tty: bool
) -> tuple[trio.SocketStream, bytes]:
    """Start a command; return the connection and the bytes after the response head.

    Raises `PodmanFailed`, `OSError`, `trio.BrokenResourceError` or `h11.ProtocolError`.
    """
    stream = await podman.dial()
    try:
        body = msgspec.json.encode({"Detach": False, "Tty": tty})
        protocol = h11.Connection(h11.CLIENT)
        request = h11.Request(
            method="POST",
            target=podman.start_path(command),
            headers=[
                ("host", "podman"),
                ("content-type", "application/json"),
                ("content-length", str(len(body))),
                ("connection", "Upgrade"),
                ("upgrade", "tcp"),
            ],
        )
        for event in (request, h11.Data(data=body), h11.EndOfMessage()):
            await stream.send_all(protocol.send(event) or b"")
        return stream, await _switched(stream, protocol)
    except BaseException:  # also when cancelled: no caller has the stream
        await trio.aclose_forcefully(stream)
        raise


async def _switched(stream: trio.SocketStream, protocol: h11.Connection) -> bytes:
    """Return the bytes received after the head that upgrades the connection."""
    while (event := protocol.next_event()) is h11.NEED_DATA:
        protocol.receive_data(bytes(await stream.receive_some(_CHUNK)))
    if not isinstance(event, h11.InformationalResponse | h11.Response):
        raise h11.RemoteProtocolError("podman closed the connection before it answered")
    if event.status_code not in {_SWITCHED, _OK}:
        raise PodmanFailed(f"podman: status {event.status_code}", event.status_code)
    return bytes(protocol.trailing_data[0])
