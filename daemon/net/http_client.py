"""A small HTTP client: one request per connection, with h11, the server's parser.

A client library would take longer to import than most requests take. This client resolves a name
once and can reject the address before it connects. A second lookup with another result (DNS
rebinding) is therefore impossible. A server is not trusted: a single read can return thousands of
tiny events, so other tasks run after each event.
"""

import os
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from urllib.parse import SplitResult, urlsplit

import h11
import msgspec
import trio

from storage import request_context
from storage.errors import leaf_errors

_CHUNK = 64 * 1024
_MOST_INTERIM = 16  # informational responses before the final one
_PORTS = {"http": 80, "https": 443}

Permit = Callable[[str, int], None]
Stream = trio.SocketStream | trio.SSLStream[trio.SocketStream]
Header = tuple[str, str]


class HttpError(Exception):
    """The request got no valid response; the message is for users."""


class HttpResponse(msgspec.Struct, frozen=True):
    """The head of a response, and its body as a stream."""

    status: int
    headers: dict[str, str]  # names in lower case
    body: AsyncIterator[bytes]


def allow_all(address: str, port: int) -> None:
    """Permit every address."""


@asynccontextmanager
async def send_request(
    url: str,
    *,
    method: str = "GET",
    headers: Sequence[Header] = (),
    body: bytes = b"",
    verify: bool = True,
    authority_pem: str = "",
    known_as: str = "",
    permit: Permit = allow_all,
    dial: Callable[[], Awaitable[Stream]] | None = None,
) -> AsyncIterator[HttpResponse]:
    """Send a request and yield its response for the duration of the block. Raises `HttpError`.

    `dial` replaces the connection to the URL's host. `permit` raises an exception for a forbidden
    address, and that exception propagates. `known_as` is the expected name in the certificate, by
    default the host of the URL. `authority_pem` contains the trusted CA certificates. If it is
    empty, the CA certificates of this host are trusted.
    """
    target = _target(url)
    try:
        if dial:
            stream: Stream = await dial()
        else:
            stream = await connect(
                target.hostname or "",
                target.port or _PORTS[target.scheme],
                tls=target.scheme == "https",
                permit=permit,
                verify=verify,
                authority_pem=authority_pem,
                known_as=known_as,
            )
        async with stream:
            protocol = h11.Connection(h11.CLIENT)
            await stream.send_all(_request(protocol, target, method, headers, body))
            head = await _head(stream, protocol)
            async with aclosing(_body(stream, protocol)) as chunks:
                yield HttpResponse(head.status_code, _names(head), chunks)
    except (OSError, trio.BrokenResourceError, h11.ProtocolError, UnicodeError) as error:
        raise HttpError(reason(error)) from error


def _target(url: str) -> SplitResult:
    try:
        target = urlsplit(url)
        port = target.port
    except ValueError as error:
        raise HttpError(f"{url!r} is not an address: {error}") from error
    if target.scheme not in _PORTS or not target.hostname or port == 0:
        raise HttpError(f"{url!r} is not an http:// or https:// URL")
    return target


async def connect(
    host: str,
    port: int,
    *,
    tls: bool,
    permit: Permit = allow_all,
    verify: bool = True,
    authority_pem: str = "",
    known_as: str = "",
    protocol: str = "http/1.1",
) -> Stream:
    """Connect to the first reachable address of a name. Raises `HttpError`.

    The arguments are those of `send_request`; `protocol` is the ALPN protocol for TLS. Exceptions
    of `permit` propagate.
    """
    context = None
    if tls:
        # Imported late, because few connections use TLS.
        from daemon.net.tls_contexts import client_context

        try:
            context = await client_context(
                verify=verify, protocol=protocol, authority_pem=authority_pem
            )
        except ssl.SSLError as error:
            raise HttpError(f"the CA certificates cannot be read: {reason(error)}") from error
    try:
        stream = await _connect(host, port, permit)
    except (OSError, UnicodeError) as error:
        raise HttpError(reason(error)) from error
    if context is None:
        return stream
    name = known_as or host
    try:
        return trio.SSLStream(stream, context, server_hostname=name, https_compatible=True)
    # An invalid server name: a leading dot, a zero byte, or too long.
    except (ValueError, TypeError, ssl.SSLError) as error:
        await trio.aclose_forcefully(stream)
        raise HttpError(f"{name!r} is not a valid server name: {error}") from error


async def _connect(host: str, port: int, permit: Permit) -> trio.SocketStream:
    """Connect to the first reachable address of a name. Raises `OSError`."""
    resolved = await trio.socket.getaddrinfo(host, port, type=trio.socket.SOCK_STREAM)
    addresses = list(dict.fromkeys(str(address[0]) for *_, address in resolved))
    for address in addresses:
        permit(address, port)
    *first_addresses, last = addresses
    for address in first_addresses:
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
    names_given = {name.lower() for name, _ in headers}
    usual = {
        "host": target.netloc.rpartition("@")[2],
        "user-agent": "steward",
        "connection": "close",
    }
    # The called programs continue the trace of this work.
    if trace := request_context.traceparent():
        usual["traceparent"] = trace
    if body:
        usual["content-length"] = str(len(body))
    path = f"{target.path or '/'}?{target.query}" if target.query else target.path or "/"
    request = h11.Request(
        method=method,
        target=path,
        headers=[
            *((name, text) for name, text in usual.items() if name not in names_given),
            *headers,
        ],
    )
    events: list[h11.Event] = [
        request,
        *([h11.Data(data=body)] if body else []),
        h11.EndOfMessage(),
    ]
    return b"".join(protocol.send(event) or b"" for event in events)


async def _head(stream: Stream, protocol: h11.Connection) -> h11.Response:
    interim = 0
    while interim <= _MOST_INTERIM:
        event = protocol.next_event()
        if event is h11.NEED_DATA:
            protocol.receive_data(bytes(await stream.receive_some(_CHUNK)))
        elif isinstance(event, h11.Response):
            return event
        elif not isinstance(event, h11.InformationalResponse):
            raise h11.RemoteProtocolError("the connection was closed before an answer came")
        else:
            interim += 1
    raise h11.RemoteProtocolError(f"more than {_MOST_INTERIM} informational responses came")


async def _body(stream: Stream, protocol: h11.Connection) -> AsyncGenerator[bytes, None]:
    while True:
        event = protocol.next_event()
        if event is h11.NEED_DATA:
            protocol.receive_data(bytes(await stream.receive_some(_CHUNK)))
        elif isinstance(event, h11.Data):
            await trio.lowlevel.checkpoint()
            yield bytes(event.data)
        else:
            return


def _names(head: h11.Response) -> dict[str, str]:
    return {name.decode("latin-1").lower(): text.decode("latin-1") for name, text in head.headers}


def _unconnected(error: BaseException) -> str:
    """Return the reason for a failed connection, without the words that Python adds."""
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    return reason(error)


def reason(error: BaseException) -> str:
    """Return the reason for an error, as shown to users."""
    cause = error.__cause__ or error
    if isinstance(cause, BaseExceptionGroup):  # one error for each address that was tried
        return "; ".join(dict.fromkeys(map(_unconnected, leaf_errors(cause))))
    return str(cause) or type(cause).__name__
