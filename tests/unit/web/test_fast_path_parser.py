"""Requests that the fast path accepts: only those that every parser reads alike."""

from typing import Any

import h11
import httptools
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from daemon.web.fast_path import SimpleRequest, parse_simple_request

GET = b"GET /v1/job/a HTTP/1.1\r\nHost: b\r\n"
POST = b"POST /v1/job/a HTTP/1.1\r\nHost: b\r\n"


def test_request_is_parsed() -> None:
    assert parse_simple_request(GET + b"X-Nomad-Token:  c d \r\n\r\n") == SimpleRequest(
        method="GET",
        target=b"/v1/job/a",
        headers={"host": "b", "x-nomad-token": "c d"},
        body=b"",
        missing=0,
    )


def test_body_is_parsed() -> None:
    simple_request = parse_simple_request(POST + b"Content-Length: 4\r\n\r\nbody")
    assert simple_request is not None
    assert (simple_request.body, simple_request.missing) == (b"body", 0)


@pytest.mark.parametrize("come", range(4))
def test_missing_bytes_of_a_body_are_counted(come: int) -> None:
    simple_request = parse_simple_request(POST + b"Content-Length: 4\r\n\r\n" + b"body"[:come])
    assert simple_request is not None
    assert simple_request.missing == 4 - come


class Disagreeing(httptools.HttpRequestParser):
    """A parser whose length of a body differs from the length in the header."""

    def __init__(self, events: Any) -> None:
        super().__init__(events)
        self.events = events

    def feed_data(self, data: bytes) -> None:
        super().feed_data(data)
        self.events.body = self.events.body[:-1]


def test_body_with_another_framing_is_left_to_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    data = POST + b"Content-Length: 4\r\n\r\nbody"
    assert parse_simple_request(data)
    monkeypatch.setattr(httptools, "HttpRequestParser", Disagreeing)
    assert parse_simple_request(data) is None


LEFT = [
    b"",
    b"GET /v1/job/a HTTP/1.1\r\n",
    GET,
    b"\r\n" + GET + b"\r\n",
    # more than one request, or other data after it
    GET + b"\r\n" + GET + b"\r\n",
    GET + b"\r\n\r\n",
    GET + b"Content-Length: 0\r\n\r\nx",
    POST + b"\r\nbody",
    POST + b"Content-Length: 3\r\n\r\nbody",
    # lengths
    POST + b"Content-Length: 4\r\nContent-Length: 4\r\n\r\nbody",
    POST + b"Content-Length: 4\r\nContent-Length: 0\r\n\r\nbody",
    POST + b"Content-Length: 4, 4\r\n\r\nbody",
    POST + b"Content-Length: +4\r\n\r\nbody",
    POST + b"Content-Length: -4\r\n\r\nbody",
    POST + b"Content-Length: 0x4\r\n\r\nbody",
    POST + b"Content-Length: 4 4\r\n\r\nbody",
    POST + b"Content-Length:\r\n\r\n",
    POST + b"Content-Length: 100000\r\n\r\n",
    POST + b"Content-Length: 18446744073709551620\r\n\r\nbody",
    POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    POST + b"Transfer-Encoding: identity\r\n\r\n",
    POST + b"Transfer-Encoding:\r\n\r\n",
    POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    POST + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    # lines
    GET + b"X: a\r\n b\r\n\r\n",
    GET + b"X: a\r\n\tContent-Length: 5\r\n\r\n",
    GET + b" X: a\r\n\r\n",
    GET + b"X: a\nY: b\r\n\r\n",
    GET + b"X: a\rY: b\r\n\r\n",
    b"GET /v1/job/a HTTP/1.1\nHost: b\n\n",
    GET.replace(b"\r\n", b"\n") + b"\r\n\r\n",
    GET + b"\n\n",
    # names and values
    GET + b"X : a\r\n\r\n",
    GET + b"Content-Length : 0\r\n\r\n",
    GET + b": a\r\n\r\n",
    GET + b"X\r\n\r\n",
    GET + b"X(a): b\r\n\r\n",
    GET + b"X\x00: a\r\n\r\n",
    GET + b"X: a\x00b\r\n\r\n",
    GET + b"X: a\x0bb\r\n\r\n",
    GET + b"X: a\x7fb\r\n\r\n",
    GET + b"X: \xc3\xa9\r\n\r\n",
    GET + b"\xc3\xa9: a\r\n\r\n",
    # Host headers, and repeated headers
    b"GET /v1/job/a HTTP/1.1\r\nX: b\r\n\r\n",
    b"GET /v1/job/a HTTP/1.1\r\n\r\n",
    GET + b"Host: c\r\n\r\n",
    GET + b"HOST: b\r\n\r\n",
    GET + b"X-Nomad-Token: a\r\nX-Nomad-Token: b\r\n\r\n",
    # targets, methods, versions
    b"GET http://b/v1/job/a HTTP/1.1\r\nHost: b\r\n\r\n",
    b"GET b:80 HTTP/1.1\r\nHost: b\r\n\r\n",
    b"GET * HTTP/1.1\r\nHost: b\r\n\r\n",
    b"GET /a b HTTP/1.1\r\nHost: b\r\n\r\n",
    b"GET /a\tb HTTP/1.1\r\nHost: b\r\n\r\n",
    b"GET /\xc3\xa9 HTTP/1.1\r\nHost: b\r\n\r\n",
    b"GET /\x00 HTTP/1.1\r\nHost: b\r\n\r\n",
    b"GET  /a HTTP/1.1\r\nHost: b\r\n\r\n",
    b"GET /a  HTTP/1.1\r\nHost: b\r\n\r\n",
    b"get /a HTTP/1.1\r\nHost: b\r\n\r\n",
    b"HEAD /a HTTP/1.1\r\nHost: b\r\n\r\n",
    b"LIST /a HTTP/1.1\r\nHost: b\r\n\r\n",
    b"CONNECT /a HTTP/1.1\r\nHost: b\r\n\r\n",
    b"GET /a HTTP/1.0\r\nHost: b\r\n\r\n",
    b"GET /a HTTP/1.2\r\nHost: b\r\n\r\n",
    b"GET /a HTTP/2.0\r\nHost: b\r\n\r\n",
    b"GET /a\r\nHost: b\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    # other protocols, and requests that need a response before the body
    GET + b"Upgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
    GET + b"Upgrade: h2c\r\n\r\n",
    GET + b"Connection: Upgrade, HTTP2-Settings\r\n\r\n",
    GET + b"Connection: close, X\r\n\r\n",
    GET + b"TE: trailers\r\n\r\n",
    POST + b"Trailer: X\r\nContent-Length: 4\r\n\r\nbody",
    POST + b"Expect: 100-continue\r\nContent-Length: 4\r\n\r\n",
    # too long
    GET + b"X: " + b"x" * 9000 + b"\r\n\r\n",
    b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: b\r\n\r\n",
]


@pytest.mark.parametrize("data", LEFT)
def test_complex_request_goes_to_the_framework(data: bytes) -> None:
    assert parse_simple_request(data) is None


def by_h11(data: bytes) -> tuple[bytes, bytes, dict[str, str], bytes, bytes]:
    """Return method, target, headers, body and the remaining bytes, as Hypercorn reads them."""
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(data)
    request = connection.next_event()
    assert isinstance(request, h11.Request)
    body = b""
    while isinstance(event := connection.next_event(), h11.Data):
        body += event.data
    assert isinstance(event, h11.EndOfMessage)
    headers = {name.decode(): value.decode() for name, value in request.headers}
    return request.method, request.target, headers, body, connection.trailing_data[0]


# Pieces of requests, to be combined in any order. Some combinations are valid requests.
PIECES = st.sampled_from(
    [
        *(
            b"GET ",
            b"POST ",
            b"/a",
            b"/a?b=%20#c",
            b" HTTP/1.1",
            b"\r\n",
            b"\r\n\r\n",
            b"\n",
            b"\r",
        ),
        *(b"Host: b\r\n", b"Content-Length: 4\r\n", b"Content-Length: ", b"0", b"4", b": ", b","),
        *(b"Transfer-Encoding: chunked\r\n", b"Connection: close\r\n", b"body", b"X: ", b"x"),
        *(b"Connection: keep-alive\r\n", b" ", b"\t", b"\x00", b"\xff", b"_", b":"),
    ]
)
BEGUN = st.sampled_from([GET, POST, POST + b"Content-Length: 4\r\n", GET + b"X-Y:\t a \t\r\n", b""])


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """Return bytes that are a request, or nearly."""
    data = bytearray(draw(BEGUN) + b"".join(draw(st.lists(PIECES, max_size=5))))
    data += draw(st.sampled_from([b"\r\n", b"\r\nbody", b"\r\nbodybody", b""]))
    for _ in range(draw(st.integers(0, 2))):
        if data:
            data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data)


@given(requests())
@example(POST + b"Content-Length: 4\r\n\r\nbody")
@example(POST + b"content-length:\t0004 \r\n\r\nbody")
@example(GET + b"Cookie: a=b;\t c\r\nX-Empty:\r\n\r\n")
@example(b"GET //a#b?c HTTP/1.1\r\nHost:\r\n\r\n")
def test_fast_path_and_framework_read_a_simple_request_alike(data: bytes) -> None:
    simple_request = parse_simple_request(data)
    if simple_request is None or simple_request.missing:
        return
    assert by_h11(data) == (
        simple_request.method.encode(),
        simple_request.target,
        simple_request.headers,
        simple_request.body,
        b"",
    )
