"""The question of the gRPC health checking protocol, version 1, over one connection of HTTP/2.

https://github.com/grpc/grpc/blob/master/doc/health-checking.md: `grpc.health.v1.Health/Check` takes
the name of a service and gives whether it is SERVING. Two messages of one field each need no
library for messages, and the protocol of the wire is the one that the server has anyway.
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

from daemon.runner import http
from daemon.runner.http import HTTPFailed, Stream

_PATH = "/grpc.health.v1.Health/Check"
_CHUNK = 64 * 1024
_MOST = 4096  # bytes of an answer; a good one has seven
_PREFIX = 5  # bytes before a message: whether it is compressed, and its length
_FIELD = b"\x08"  # the first field of a message, a number
_NAMES = {0: "UNKNOWN", 1: "SERVING", 2: "NOT_SERVING", 3: "SERVICE_UNKNOWN"}
SERVING = "SERVING"


async def ask_health(
    address: str,
    port: int,
    service: str,
    *,
    tls: bool,
    verify: bool,
    known_as: str,
    permit: http.Permit,
) -> str:
    """Return what a server says of a service, in the protocol's words. Raises `HTTPFailed`."""
    host = f"[{address}]" if ":" in address else address
    try:
        stream = await http.connect(
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
            await conversation.ask(f"{host}:{port}", "https" if tls else "http", service)
            return await conversation.answer()
    except (OSError, trio.BrokenResourceError, ProtocolError, UnicodeError) as error:
        raise HTTPFailed(http.reason(error)) from error


class _Conversation:
    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        config = H2Configuration(client_side=True, header_encoding="utf-8")
        self._protocol = H2Connection(config=config)
        self._heads: dict[str, str] = {}
        self._body = b""

    async def ask(self, authority: str, scheme: str, service: str) -> None:
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
        self._protocol.send_data(number, _question(service), end_stream=True)
        await self._stream.send_all(self._protocol.data_to_send())

    async def answer(self) -> str:
        while True:
            data = bytes(await self._stream.receive_some(_CHUNK))
            if not data:
                raise HTTPFailed("the connection was closed before an answer came")
            for event in self._protocol.receive_data(data):
                if self._is_over(event):
                    return _status(self._heads, self._body)
            await self._stream.send_all(self._protocol.data_to_send())

    def _is_over(self, event: Event) -> bool:
        """Take up what has come; tell whether that was all."""
        match event:
            case ResponseReceived() | TrailersReceived():
                self._heads |= {str(name): str(text) for name, text in event.headers}
            case DataReceived():
                self._body += event.data
            case StreamReset() | ConnectionTerminated():
                raise HTTPFailed(f"the server ended the call with code {event.error_code}")
            case StreamEnded():
                return True
        if len(self._body) > _MOST:
            raise HTTPFailed(f"the answer has more than {_MOST} bytes")
        return False


def _question(service: str) -> bytes:
    name = service.encode()
    message = b"\x0a" + _varint(len(name)) + name if name else b""
    return b"\x00" + len(message).to_bytes(4, "big") + message


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def _status(heads: dict[str, str], body: bytes) -> str:
    """Return what an answer says. Raises `HTTPFailed` for one that says something else."""
    if heads.get(":status") != "200":
        raise HTTPFailed(f"the server answered with status {heads.get(':status')}")
    code, said = heads.get("grpc-status", "none"), unquote(heads.get("grpc-message", ""))
    if code != "0":
        raise HTTPFailed(f"the call failed with status {code}: {said}".removesuffix(": "))
    message = body[_PREFIX:]
    if not body or body[0] or (message and (message[:1] != _FIELD or len(message) != 2)):
        raise HTTPFailed("the answer is not one of the health checking protocol")
    number = message[1] if message else 0
    return _NAMES.get(number, str(number))
