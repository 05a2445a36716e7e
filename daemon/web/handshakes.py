"""TLS connections that send the reason of a failed handshake to the client.

Trio closes such a connection without a word. The client then sees only a closed connection, as
after a crash of the daemon.
"""

import ssl
from contextlib import suppress

import trio

from daemon.web.admission import LogRateLimiter
from daemon.web.send import send_now

_LINGER = 1.0  # seconds in which the client can read the reason
_PLAIN = b"Client sent an HTTP request to an HTTPS server. Use https:// in the address.\n"
_PLAIN_HEAD = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\n"
    b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(_PLAIN)
)
_MISSING = "PEER_DID_NOT_RETURN_A_CERTIFICATE"
# Beginning and parts of OpenSSL's names for the alerts of a client that rejects a certificate.
_FROM_THE_CLIENT = "_ALERT_"
_OF_CERTIFICATES = ("CERTIFICATE", "UNKNOWN_CA")


class HandshakeLog:
    """The log of failed handshakes. It names the reason at most once a minute."""

    def __init__(self) -> None:
        self._refused = LogRateLimiter("a client was refused because of its certificate")
        self._distrusted = LogRateLimiter("a client refused the certificate of the daemon")

    def report(self, error: ssl.SSLError) -> None:
        """Log a failed handshake, if a certificate is the reason."""
        name = error.reason or ""
        if isinstance(error, ssl.SSLCertVerificationError):
            self._refused.warn(str, error.verify_message)
        elif name == _MISSING:
            self._refused.warn(str, "it has none; tls_client_ca requires one")
        elif _FROM_THE_CLIENT in name and any(part in name for part in _OF_CERTIFICATES):
            self._distrusted.warn(str, name.partition(_FROM_THE_CLIENT)[2].lower())


async def complete_handshake(
    stream: trio.SSLStream[trio.SocketStream], within: float, failures: HandshakeLog
) -> bool:
    """Complete the handshake within some seconds; return whether the connection can be used.

    If the handshake fails, send the reason to the client.
    """
    try:
        with trio.fail_after(within):
            await stream.do_handshake()
    except trio.TooSlowError:
        return False
    except trio.BrokenResourceError as error:
        if isinstance(error.__cause__, ssl.SSLError):
            failures.report(error.__cause__)
            await _explain(stream, error.__cause__)
        return False
    return True


async def _explain(stream: trio.SSLStream[trio.SocketStream], error: ssl.SSLError) -> None:
    """Send the reason, and read for a short time, because unread data resets a connection.

    A client that does not use TLS gets a response of HTTP. Other clients get an alert of TLS, which
    OpenSSL has written and Trio does not send.
    """
    alert = bytes(stream._outgoing.read())  # noqa: SLF001  # Trio has no public way to the alert
    reason = _PLAIN_HEAD + _PLAIN if error.reason == "HTTP_REQUEST" else alert
    if not reason:
        return
    transport = stream.transport_stream
    # A client that has gone needs no reason.
    with trio.move_on_after(_LINGER), suppress(trio.BrokenResourceError):
        send_now(transport, reason)
        await transport.send_eof()
        while await transport.receive_some(4096):
            pass
