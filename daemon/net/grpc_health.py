"""A client for the gRPC health checking protocol, version 1, on one HTTP/2 connection.

https://github.com/grpc/grpc/blob/master/doc/health-checking.md: `grpc.health.v1.Health/Check` takes
a service name and returns whether the service is SERVING. The two messages have one field each, so
no protobuf library is needed. The HTTP/2 library is already a dependency of the server.
"""

from urllib.parse import unquote

import trio
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.exceptions import ProtocolError

from daemon.net import http_client
from daemon.net.http_client import HttpError, Stream

_PATH = "/grpc.health.v1.Health/Check"
# The frames of a chunk are parsed in 2 ms, even if they are empty.
_CHUNK = 1024
_MOST_RECEIVED = 64 * 1024  # bytes of all frames; a valid response has some hundred
_MOST = 4096  # bytes of the message in a response; a valid one has seven
_PREFIX = 5  # bytes before a message: a compression flag and the length
_FIELD = b"\x08"  # tag of field 1, a varint
_NAMES = {0: "UNKNOWN", 1: "SERVING", 2: "NOT_SERVING", 3: "SERVICE_UNKNOWN"}
SERVING = "SERVING"


async def check_health(
    address: str,
    port: int,
    service: str,
    *,
    tls: bool,
    verify: bool,
    known_as: str,
    permit: http_client.Permit,
) -> str:
    """Return the status of a service as the protocol names it. Raises `HttpError`.

    `known_as` is the expected name in the certificate, which is checked unless `verify` is false.
    """
    host = f"[{address}]" if ":" in address else address
    try:
        stream = await http_client.connect(
            address,
            port,
            tls=tls,
            permit=permit,
            verify=verify,
            known_as=known_as,
            protocol="h2",
        )
        async with stream:
            conversation = _Conversation(stream)
            await conversation.check(f"{host}:{port}", "https" if tls else "http", service)
            return await conversation.answer()
    except (OSError, trio.BrokenResourceError, ProtocolError, UnicodeError) as error:
        raise HttpError(http_client.reason(error)) from error


class _Conversation:
    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        config = H2Configuration(client_side=True, header_encoding="utf-8")
        self._protocol = H2Connection(config=config)
        self._heads: dict[str, str] = {}
        self._body = b""

    async def check(self, authority: str, scheme: str, service: str) -> None:
        headers = [
            (":method", "POST"),
            (":scheme", scheme),
            (":authority", authority),
            (":path", _PATH),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("user-agent", "steward"),
        ]
        self._protocol.initiate_connection()
        number = self._protocol.get_next_available_stream_id()
        self._protocol.send_headers(number, headers)
        self._protocol.send_data(number, _health_request(service), end_stream=True)
        await self._stream.send_all(self._protocol.data_to_send())

    async def answer(self) -> str:
        received = 0
        while received <= _MOST_RECEIVED:
            data = bytes(await self._stream.receive_some(_CHUNK))
            received += len(data)
            if not data:
                raise HttpError("the connection was closed before an answer came")
            for event in self._protocol.receive_data(data):
                if self._is_over(event):
                    return _status(self._heads, self._body)
            await self._stream.send_all(self._protocol.data_to_send())
        raise HttpError(f"the server sent more than {_MOST_RECEIVED} bytes")

    def _is_over(self, event: Event) -> bool:
        """Handle an event; return whether the response is complete."""
        match event:
            case ResponseReceived() | TrailersReceived():
                self._heads |= {str(name): str(text) for name, text in event.headers}
            case DataReceived():
                self._body += event.data
            case StreamReset() | ConnectionTerminated():
                raise HttpError(f"the server ended the call with code {event.error_code}")
            case StreamEnded():
                return True
        if len(self._body) > _MOST:
            raise HttpError(f"the answer has more than {_MOST} bytes")
        return False


def _health_request(service: str) -> bytes:
    name = service.encode()
    message = b"\x0a" + _varint(len(name)) + name if name else b""
    return b"\x00" + len(message).to_bytes(4, "big") + message


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])


def _status(heads: dict[str, str], body: bytes) -> str:
    """Return the status in a response. Raises `HttpError` for an invalid response."""
    if heads.get(":status") != "200":
        raise HttpError(f"the server answered with status {heads.get(':status')}")
    code, reason = heads.get("grpc-status", "none"), unquote(heads.get("grpc-message", ""))
    if code != "0":
        raise HttpError(f"the call failed with status {code}: {reason}".removesuffix(": "))
    message = body[_PREFIX:]
    if not body or body[0] or (message and (message[:1] != _FIELD or len(message) != 2)):
        raise HttpError("the answer does not follow the health checking protocol")
    number = message[1] if message else 0
    return _NAMES.get(number, str(number))
