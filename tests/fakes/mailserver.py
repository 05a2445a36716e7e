"""A strict mail server on loopback: it accepts only messages that conform to RFC 5321."""

import base64
import re
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import cast

import msgspec
import trio

_LONGEST_LINE = 1000  # including the line end
_PATH = r"<([A-Za-z0-9.+_-]+@[A-Za-z0-9.-]+)>"
Stream = trio.SocketStream | trio.SSLStream[trio.SocketStream]


class Letter(msgspec.Struct, frozen=True):
    """An accepted mail, with its envelope, its encryption and the user that logged in."""

    sender: str
    to: tuple[str, ...]
    data: bytes
    is_encrypted: bool
    user: str

    @property
    def mail(self) -> EmailMessage:
        return cast("EmailMessage", message_from_bytes(self.data, policy=policy.default))


class MailServer:
    """Received mails. `answers` replaces the reply to a command; `silent_at` suppresses it."""

    def __init__(
        self, port: int, context: ssl.SSLContext | None, logins: dict[str, str], *, is_wrapped: bool
    ) -> None:
        self.port = port
        self.letters: list[Letter] = []
        self.faults: list[str] = []
        self.answers: dict[str, str] = {}
        self.silent_at = ""
        self.reached = trio.Event()
        self._context, self._logins, self._is_wrapped = context, logins, is_wrapped

    async def serve(self, stream: trio.SocketStream) -> None:
        talk = _Talk(self, stream)
        if self._is_wrapped:
            assert self._context is not None
            await talk.encrypt(self._context)
        await talk.run(self._context, self._logins)


class _Talk:
    def __init__(self, server: MailServer, stream: trio.SocketStream) -> None:
        self._server, self._stream = server, cast("Stream", stream)
        self._plain = stream
        self._buffer = b""
        self._is_encrypted = False
        self._greeted, self._user, self._sender = False, "", ""
        self._to: list[str] = []

    async def encrypt(self, context: ssl.SSLContext) -> None:
        assert not self._buffer, "bytes before the handshake"
        wrapped = trio.SSLStream(self._plain, context, server_side=True)
        await wrapped.do_handshake()
        self._stream, self._is_encrypted = wrapped, True
        self._greeted, self._user = False, ""

    async def run(self, context: ssl.SSLContext | None, logins: dict[str, str]) -> None:
        await self._say("220 strict.example ESMTP")
        while (line := await self._line()) is not None:
            verb = line.partition(" ")[0].upper()
            if verb == self._server.silent_at:
                self._server.reached.set()
                await trio.sleep_forever()
            if verb in self._server.answers:
                await self._say(self._server.answers[verb])
                continue
            if verb == "STARTTLS" and context and not self._is_encrypted:
                await self._say("220 go ahead")
                await self.encrypt(context)
            elif verb == "QUIT":
                await self._say("221 bye")
                return
            elif verb == "DATA" and self._to:
                await self._say("354 end with a point")
                await self._data()
            else:
                await self._say(self._answer(verb, line, context, logins))

    def _answer(
        self, verb: str, line: str, context: ssl.SSLContext | None, logins: dict[str, str]
    ) -> str:
        if verb == "EHLO" and re.fullmatch(r"EHLO [A-Za-z0-9.-]+", line, re.IGNORECASE):
            self._greeted = True
            offers = ["strict.example"]
            offers += ["STARTTLS"] if context and not self._is_encrypted else []
            offers += ["AUTH PLAIN"] if logins and self._is_encrypted else []
            return "\r\n".join([*(f"250-{offer}" for offer in offers), "250 8BITMIME"])
        if not self._greeted:
            return self._fault(f"503 {verb} before EHLO")
        if verb == "AUTH":
            return self._login(line, logins)
        if logins and not self._user:
            return "530 5.7.0 authentication required"
        if match := re.fullmatch(rf"MAIL FROM:{_PATH}( SIZE=\d+)?", line, re.IGNORECASE):
            self._sender, self._to = match[1], []
            return "250 sender ok"
        if (match := re.fullmatch(rf"RCPT TO:{_PATH}", line, re.IGNORECASE)) and self._sender:
            if match[1].startswith("nobody@"):
                return "550 5.1.1 no such user"
            self._to.append(match[1])
            return "250 recipient ok"
        return self._fault(f"500 not understood: {line!r}")

    def _login(self, line: str, logins: dict[str, str]) -> str:
        if not self._is_encrypted:
            return self._fault("538 a password over an open connection")
        _, user, password = base64.b64decode(line.split(" ")[2]).decode().split("\0")
        if logins.get(user) != password:
            return "535 5.7.8 wrong password"
        self._user = user
        return "235 welcome"

    async def _data(self) -> None:
        lines = []
        while (line := await self._line()) != ".":
            assert line is not None
            lines.append(line.removeprefix("."))
        data = "\r\n".join(lines).encode() + b"\r\n"
        head = data.partition(b"\r\n\r\n")[0]
        if not head.isascii():
            self._fault("header with other characters than ASCII")
        letter = Letter(self._sender, tuple(self._to), data, self._is_encrypted, self._user)
        self._server.letters.append(letter)
        await self._say("250 2.0.0 queued as 4711")

    def _fault(self, text: str) -> str:
        self._server.faults.append(text)
        return text

    async def _line(self) -> str | None:
        while b"\r\n" not in self._buffer:
            piece = await self._stream.receive_some(65536)
            if not piece:
                return None
            self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\r\n")
        if b"\n" in line or b"\r" in line or b"\0" in line or len(line) > _LONGEST_LINE - 2:
            self._fault(f"500 a line of {len(line)} bytes, or with a bare CR or LF")
        return line.decode()

    async def _say(self, text: str) -> None:
        await self._stream.send_all(text.encode() + b"\r\n")


@asynccontextmanager
async def open_mail_server(
    *,
    certificate: tuple[str, str] | None = None,
    logins: dict[str, str] | None = None,
    is_wrapped: bool = False,
) -> AsyncIterator[MailServer]:
    """Listen on a free port while the block runs; with a certificate, offer or require TLS."""
    context = None
    if certificate:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*certificate)
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listener.socket.getsockname()[1]
        server = MailServer(port, context, logins or {}, is_wrapped=is_wrapped)

        async def answer(stream: trio.SocketStream) -> None:
            async with stream:
                with suppress(
                    trio.BrokenResourceError, ssl.SSLError
                ):  # the client has disconnected
                    await server.serve(stream)

        nursery.start_soon(trio.serve_listeners, answer, [listener])
        yield server
        nursery.cancel_scope.cancel()
