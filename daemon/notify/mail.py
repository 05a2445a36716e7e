"""Send messages as e-mail over SMTP, with encryption and a login if the receiver requires them.

`smtplib` runs in a thread, and the sender waits for it. The sender opens the connection to a
permitted address. When the attempt times out, the sender shuts the connection down, and the thread
returns. Rules: RFC 5321 (SMTP), RFC 3207 (STARTTLS), RFC 4954 (AUTH), RFC 5322 (headers), RFC 3834
(automatic responses).
"""

import os
import smtplib
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime

import msgspec
import trio

from daemon.config.notify_receivers import server_of
from daemon.net.egress_policy import EgressDenied
from daemon.net.http_client import HttpError, Permit, connect
from daemon.notify import words
from daemon.notify.channels import DeliveryFailed
from daemon.notify.message import Batch
from storage.errors import Invalid
from storage.records.base import SECOND
from storage.records.notification import Encryption, Receiver

_ANSWERS_WITHIN = 15.0  # seconds per response; the whole attempt has a separate limit
_MOST_ANSWERED = 256 * 1024  # bytes of all responses of one connection
_GOOD = 250
_OTHER_CHARACTERS = "#<>[]()\\\"',;:@ \t"


class Mail(msgspec.Struct, frozen=True, kw_only=True):
    """A message with its envelope."""

    sender: str
    to: tuple[str, ...]
    data: bytes


def compose(batch: Batch, receiver: Receiver, now: int) -> Mail:
    """Return the mail for a batch; `now` is the time of the attempt in nanoseconds.

    Control characters are removed from header values, and the library rejects any that remain.
    """
    mail = EmailMessage(policy=SMTP)
    mail["From"] = receiver.sender
    mail["To"] = ", ".join(receiver.to)
    mail["Subject"] = f"[{words.line(batch.node_name)}] {words.subject(batch)}"
    mail["Date"] = format_datetime(datetime.fromtimestamp(now // SECOND, UTC))
    mail["Message-ID"] = f"<{_atom(batch.id)}@{_atom(batch.node_name) or 'steward'}>"
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content(words.text(batch), charset="utf-8", cte="quoted-printable")
    return Mail(sender=receiver.sender, to=tuple(receiver.to), data=mail.as_bytes())


def _atom(text: str) -> str:
    ascii_text = words.line(text).encode("ascii", "ignore").decode()
    return "".join(character for character in ascii_text if character not in _OTHER_CHARACTERS)


async def send(
    mail: Mail, receiver: Receiver, password: str, node_name: str, permit: Permit
) -> str:
    """Send a mail; return the server's response. Raises `DeliveryFailed`.

    `node_name` is this host's name in the greeting.
    """
    try:
        host, port = server_of(receiver.server)
        stream = await connect(host, port, tls=False, permit=permit)
    except (HttpError, EgressDenied, Invalid) as error:
        raise DeliveryFailed(str(error)) from error
    assert isinstance(stream, trio.SocketStream)  # noqa: S101  # the connection is not encrypted yet
    own = socket.socket(fileno=os.dup(stream.socket.fileno()))
    own.settimeout(_ANSWERS_WITHIN)
    session = _Talk(own, host, mail, receiver, password, _atom(node_name) or "localhost")
    async with stream, _shut_down_when_cancelled(stream):
        outcome = await trio.to_thread.run_sync(session.run)
    if isinstance(outcome, DeliveryFailed):
        raise outcome
    return outcome


@asynccontextmanager
async def _shut_down_when_cancelled(stream: trio.SocketStream) -> AsyncIterator[None]:
    """Close the connection when the block is cancelled, which unblocks the thread that uses it."""

    async def watch() -> None:
        try:
            await trio.sleep_forever()
        finally:
            with suppress(OSError):  # the server has closed the connection
                stream.socket.shutdown(socket.SHUT_RDWR)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        yield
        nursery.cancel_scope.cancel()


class _LimitedReader:
    """Reads lines from a mail server. After a limit of bytes, it reports the end of the file.

    `smtplib` stores all lines of a response, and a hostile server could send lines without end.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._file = connection.makefile("rb")
        self._left = _MOST_ANSWERED

    def readline(self, most: int) -> bytes:
        """Return the next line."""
        line = self._file.readline(most)
        self._left -= len(line)
        return line if self._left >= 0 else b""

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class _Client(smtplib.SMTP):
    """A client on an existing connection."""

    def __init__(self, connection: socket.socket, host: str, greeting_name: str) -> None:
        self._connection = connection
        # The port is only used in messages; the connection exists already.
        super().__init__(host, 25, local_hostname=greeting_name)

    def getreply(self) -> tuple[int, bytes]:
        """Return a response. Raises `SMTPResponseException` for a response that is too long."""
        if self.file is None and self.sock is not None:
            self.file = _LimitedReader(self.sock)
        return super().getreply()

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        return self._connection


class _Talk:
    """An SMTP session with a mail server, in a thread."""

    def __init__(
        self,
        connection: socket.socket,
        host: str,
        mail: Mail,
        receiver: Receiver,
        password: str,
        greeting_name: str,
    ) -> None:
        self._connection, self._host, self._mail = connection, host, mail
        self._receiver, self._password, self._greeting_name = receiver, password, greeting_name

    def run(self) -> str | DeliveryFailed:
        """Return the server's response, or the reason why the mail was not sent."""
        try:
            return self._send()
        except DeliveryFailed as problem:
            return problem
        except ssl.SSLError as error:
            return DeliveryFailed(f"the connection cannot be encrypted: {error}")
        except smtplib.SMTPNotSupportedError as error:
            return DeliveryFailed(f"the mail server does not support the request: {error}")
        except smtplib.SMTPResponseException as error:
            return _refused(error.smtp_code, error.smtp_error)
        except (OSError, smtplib.SMTPException, ValueError) as error:
            return DeliveryFailed(f"the connection failed: {error}")
        finally:
            self._connection.close()

    def _send(self) -> str:
        is_wrapped = self._receiver.tls == Encryption.TLS
        connection = self._encrypted() if is_wrapped else self._connection
        with _Client(connection, self._host, self._greeting_name) as client:
            if self._receiver.tls == Encryption.STARTTLS:
                # Raises if the server does not offer TLS, so nothing is sent unencrypted.
                client.starttls(context=self._context())
            client.ehlo_or_helo_if_needed()
            if self._receiver.user:
                client.login(self._receiver.user, self._password)
            return self._deliver(client)

    def _deliver(self, client: smtplib.SMTP) -> str:
        _check(client.mail(self._mail.sender))
        refused = []
        for address in self._mail.to:
            code, reply = client.rcpt(address)
            if code not in (250, 251):
                refused.append((code, reply))
        if len(refused) == len(self._mail.to):
            raise _refused(*refused[0])
        code, reply = client.data(self._mail.data)
        _check((code, reply))
        lost = f"; {len(refused)} of {len(self._mail.to)} addresses refused" if refused else ""
        return f"{code} {words.line(reply.decode(errors='replace'))}{lost}"

    def _encrypted(self) -> ssl.SSLSocket:
        return self._context().wrap_socket(self._connection, server_hostname=self._host)

    def _context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self._receiver.ca_file or None)


def _check(answer: tuple[int, bytes]) -> None:
    if answer[0] != _GOOD:
        raise _refused(*answer)


def _refused(code: int, reply: bytes | str) -> DeliveryFailed:
    text = reply.decode(errors="replace") if isinstance(reply, bytes) else reply
    return DeliveryFailed(f"the mail server answered with {code}", answer=words.line(text)[:300])
