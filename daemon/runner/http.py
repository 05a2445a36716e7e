"""A small HTTP client: one request on one connection, with the parser that the server uses.

A client library would cost more to import than most requests take, and connect where it likes. Here
an address is looked up once and may be refused before anything connects to it, so that no name can
lead elsewhere between the question and the connection.
"""

import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from urllib.parse import SplitResult, urlsplit

import h11
import msgspec
import trio

_CHUNK = 64 * 1024
_PORTS = {"http": 80, "https": 443}

Permit = Callable[[str, int], None]
Stream = trio.SocketStream | trio.SSLStream[trio.SocketStream]
Header = tuple[str, str]


class HTTPFailed(Exception):
    """No answer, or none that can be understood; the words are for people."""


class Reply(msgspec.Struct, frozen=True):
    """The head of an answer, and its body as it arrives."""

    status: int
    headers: dict[str, str]  # names in small letters
    body: AsyncIterator[bytes]


def allow_all(address: str, port: int) -> None:
    """Permit every address."""


@asynccontextmanager
async def ask(
    url: str,
    *,
    method: str = "GET",
    headers: Sequence[Header] = (),
    body: bytes = b"",
    verify: bool = True,
    known_as: str = "",
    permit: Permit = allow_all,
    socket: str = "",
) -> AsyncIterator[Reply]:
    """Send a request and give its answer while the block runs. Raises `HTTPFailed`.

    With a `socket` of this machine that is connected to, whatever the address names.

    `permit` raises what it likes for an address that must not be connected to; `known_as` is the
    name that its certificate must have, if not the one in the address.
    """
    target = _target(url)
    try:
        if socket:
            stream: Stream = await trio.open_unix_socket(socket)
        else:
            stream = await connect(
                target.hostname or "",
                target.port or _PORTS[target.scheme],
                tls=target.scheme == "https",
                permit=permit,
                verify=verify,
                known_as=known_as,
            )
        async with stream:
            protocol = h11.Connection(h11.CLIENT)
            await stream.send_all(_request(protocol, target, method, headers, body))
            head = await _head(stream, protocol)
            async with aclosing(_body(stream, protocol)) as pieces:
                yield Reply(head.status_code, _names(head), pieces)
    except (OSError, trio.BrokenResourceError, h11.ProtocolError, UnicodeError) as error:
        raise HTTPFailed(reason(error)) from error


def _target(url: str) -> SplitResult:
    try:
        target = urlsplit(url)
        port = target.port
    except ValueError as error:
        raise HTTPFailed(f"{url!r} is not an address: {error}") from error
    if target.scheme not in _PORTS or not target.hostname or port == 0:
        raise HTTPFailed(f"{url!r} is not an address that begins with http:// or https://")
    return target


async def connect(
    host: str,
    port: int,
    *,
    tls: bool,
    permit: Permit = allow_all,
    verify: bool = True,
    known_as: str = "",
    protocol: str = "http/1.1",
) -> Stream:
    """Connect to the first address of a name that can be reached. Raises `HTTPFailed`.

    What `permit` raises goes through.
    """
    context = None
    if tls:
        from daemon.runner.tls_contexts import client_context  # few connections are encrypted

        context = await client_context(verify=verify, protocol=protocol)
    try:
        stream = await _reach(host, port, permit)
    except (OSError, UnicodeError) as error:
        raise HTTPFailed(reason(error)) from error
    if context is None:
        return stream
    name = known_as or host
    try:
        return trio.SSLStream(stream, context, server_hostname=name, https_compatible=True)
    except (ValueError, TypeError, ssl.SSLError) as error:  # a dot in front, a zero, too long
        await trio.aclose_forcefully(stream)
        raise HTTPFailed(f"{name!r} cannot be the name of a server: {error}") from error


async def _reach(host: str, port: int, permit: Permit) -> trio.SocketStream:
    """Connect to the first address of a name that can be reached. Raises `OSError`."""
    found = await trio.socket.getaddrinfo(host, port, type=trio.socket.SOCK_STREAM)
    addresses = list(dict.fromkeys(str(address[0]) for *_, address in found))
    for address in addresses:
        permit(address, port)
    *others, last = addresses
    for address in others:
        try:
            return await trio.open_tcp_stream(address, port)
        except OSError:
            continue
    return await trio.open_tcp_stream(last, port)


def _request(
    protocol: h11.Connection,
    target: SplitResult,
    method: str,
    headers: Sequence[Header],
    body: bytes,
) -> bytes:
    given = {name.lower() for name, _ in headers}
    usual = {
        "host": target.netloc.rpartition("@")[2],
        "user-agent": "steward",
        "connection": "close",
    }
    if body:
        usual["content-length"] = str(len(body))
    path = f"{target.path or '/'}?{target.query}" if target.query else target.path or "/"
    request = h11.Request(
        method=method,
        target=path,
        headers=[*((name, text) for name, text in usual.items() if name not in given), *headers],
    )
    events: list[h11.Event] = [
        request,
        *([h11.Data(data=body)] if body else []),
        h11.EndOfMessage(),
    ]
    return b"".join(protocol.send(event) or b"" for event in events)


async def _head(stream: Stream, protocol: h11.Connection) -> h11.Response:
    while True:
        event = protocol.next_event()
        if event is h11.NEED_DATA:
            protocol.receive_data(bytes(await stream.receive_some(_CHUNK)))
        elif isinstance(event, h11.Response):
            return event
        elif not isinstance(event, h11.InformationalResponse):
            raise h11.RemoteProtocolError("the connection was closed before an answer came")


async def _body(stream: Stream, protocol: h11.Connection) -> AsyncGenerator[bytes, None]:
    while True:
        event = protocol.next_event()
        if event is h11.NEED_DATA:
            protocol.receive_data(bytes(await stream.receive_some(_CHUNK)))
        elif isinstance(event, h11.Data):
            yield bytes(event.data)
        else:
            return


def _names(head: h11.Response) -> dict[str, str]:
    return {name.decode("latin-1").lower(): text.decode("latin-1") for name, text in head.headers}


def reason(error: BaseException) -> str:
    """Return what went wrong, for people."""
    cause = error.__cause__ or error
    return str(cause) or type(cause).__name__
