"""Responses that no server of this API sends: for each, the library raises an error."""

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import trio
from steward_client import (
    ApiError,
    Client,
    Event,
    InvalidResponse,
    NotFound,
    Retry,
    Unreachable,
    transport,
)

from tests.fakes.authority import Authority

Work = Callable[[Client], Awaitable[object]]


def client(
    body: bytes, status: int = 200, headers: dict[str, str] | None = None, **options: object
) -> Client:
    def handler(_: httpx.Request) -> httpx.Response:
        return httpx.Response(status, content=body, headers=headers)

    return Client("http://server", transport=httpx.MockTransport(handler), **options)


async def follow(opened: Client) -> list[bytes]:
    return [piece async for piece in opened.logs("a", "main")]


async def listen(opened: Client) -> list[Event]:
    return [event async for event in opened.events()]


@asynccontextmanager
async def refusing_server(authority: Authority) -> AsyncIterator[str]:
    """Yield the address of a TLS server that refuses each request, and just closes the connection."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.certify("server"))
    refusal = b"HTTP/1.1 404 Not Found\r\nContent-Length: 7\r\n\r\nunknown"

    async def refuse(stream: trio.SSLStream[trio.SocketStream]) -> None:
        await stream.receive_some(65536)
        await stream.send_all(refusal)
        await trio.aclose_forcefully(stream)

    async with trio.open_nursery() as nursery:
        [listener] = await trio.open_ssl_over_tcp_listeners(0, context, host="127.0.0.1")
        port = listener.transport_listener.socket.getsockname()[1]
        nursery.start_soon(trio.serve_listeners, refuse, [listener])
        yield f"https://localhost:{port}"
        nursery.cancel_scope.cancel()


async def test_refused_exec_session_over_tls_has_the_reason(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with (
        refusing_server(authority) as address,
        Client(address, verify=authority.client()) as opened,
    ):
        with pytest.raises(NotFound, match="unknown"):
            await opened.exec_run("a", ["/bin/true"], task="main")


async def execute(opened: Client) -> object:
    return await opened.exec_run("a", ["/bin/true"], task="main")


@pytest.mark.parametrize(
    "work",
    [
        lambda opened: opened.jobs(),
        lambda opened: opened.stop("a"),
        lambda opened: follow(opened),
        lambda opened: listen(opened),
        execute,
    ],
    ids=["read", "write", "logs", "events", "exec"],
)
async def test_untrusted_certificate_is_reported_at_once(work: Work, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    trusting = Authority(tmp_path / "other").client()
    async with (
        refusing_server(Authority(tmp_path)) as address,
        Client(address, verify=trusting) as opened,
    ):
        with (
            trio.fail_after(5),
            pytest.raises(Unreachable, match="certificate is not trusted: ") as error,
        ):
            await work(opened)
    assert "_ssl.c" not in str(error.value)


REDIRECT = {"Location": "http://elsewhere/"}


@pytest.mark.parametrize(
    "work",
    [
        lambda opened: opened.delete_variable("a"),
        lambda opened: opened.output("a", "main"),
        lambda opened: opened.read_file("a", "/x"),
        lambda opened: opened.jobs(),
        follow,
        listen,
    ],
)
async def test_redirect_is_an_error(work: Work) -> None:
    async with client(b"", 302, REDIRECT) as opened:
        with pytest.raises(ApiError, match="status 302"):
            await work(opened)


@pytest.mark.parametrize("body", [b"\xff", b"[" * 100_000, b'"\xff"', b"{", b"7"])
@pytest.mark.parametrize(
    "work",
    [
        lambda opened: opened.jobs(),
        lambda opened: opened.job("a"),
        lambda opened: opened.parse(""),
        lambda opened: opened.deployment("a"),
    ],
)
async def test_body_that_is_not_of_the_api_is_an_invalid_response(body: bytes, work: Work) -> None:
    async with client(body) as opened:
        with pytest.raises(InvalidResponse):
            await work(opened)


async def test_deep_error_is_shown_as_its_text() -> None:
    async with client(b'{"errors": ' + b"[" * 100_000, 400) as opened:
        with pytest.raises(ApiError, match="status 400"):
            await opened.jobs()


@pytest.mark.parametrize("number", ["nan", "-1", "-inf", "inf", "1e999", "x", ""])
async def test_impossible_numbers_of_headers_are_ignored(
    number: str, autojump_clock: trio.abc.Clock
) -> None:
    async with client(b"[]", 200, {"X-Nomad-Index": number}) as opened:
        assert (await opened.request("GET", "/v1/jobs")).index == 0
    headers = {"Retry-After": number}
    async with client(b"busy", 503, headers, retry=Retry(within=1)) as opened:
        with pytest.raises(Unreachable, match="busy"):
            await opened.jobs()


async def test_page_that_names_itself_as_the_next_is_refused() -> None:
    async with client(b"[]", 200, {"X-Nomad-NextToken": "x"}) as opened:
        with trio.fail_after(5), pytest.raises(InvalidResponse, match="same page token twice"):
            await opened.jobs()


@pytest.mark.parametrize(
    ("body", "words"),
    [(b'{"Data": "' + b"A" * 4000, "more than 1000"), (b"[" * 900 * 100, "nested too deeply")],
)
async def test_frame_of_a_log_without_an_end_is_refused(
    body: bytes, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("steward_client.logs.LONGEST_PIECE", 1000)
    async with client(body) as opened:
        with pytest.raises(InvalidResponse, match=words):
            await follow(opened)


async def test_line_of_a_stream_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "LONGEST_PIECE", 1000)
    async with client(b"A" * 4000) as opened:
        with pytest.raises(InvalidResponse, match="more than 1000"):
            await listen(opened)


async def test_event_with_another_payload_is_an_invalid_response() -> None:
    event = Event(topic="Job", payload={"Job": {"ID": 7}})
    with pytest.raises(InvalidResponse):
        _ = event.job
    frame = b'{"Index": 1, "Events": [{"Topic": "Gap", "Index": 1, "Payload": {"Gap": 7}}]}\n'
    async with client(frame) as opened:
        with pytest.raises(InvalidResponse):
            await listen(opened)


@pytest.mark.parametrize("token", ["abc\n", "a b", "é", "a\r\nX-Other: b"])
def test_token_that_no_header_can_contain_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(ValueError, match="the token contains") as error:
        Client("http://server", token=token)
    assert token not in str(error.value)


@pytest.mark.parametrize("port", ["99999", "0", "x", "-1"])
def test_address_with_an_impossible_port_is_refused(port: str) -> None:
    with pytest.raises(ValueError, match="is not http://HOST:PORT"):
        Client(f"http://server:{port}")


async def test_path_cannot_change_the_host_that_receives_the_token() -> None:
    seen: list[str] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request.url.host)
        return httpx.Response(200, content=b"[]")

    transport = httpx.MockTransport(handler)
    async with Client("http://server", token="secret", transport=transport) as opened:
        for path in ("@elsewhere/v1/jobs", ".elsewhere/v1/jobs", "v1/jobs", ""):
            with pytest.raises(ValueError, match="does not start with /"):
                await opened.request("GET", path)
        await opened.request("GET", "/v1/jobs")
    assert seen == ["server"]


async def test_command_that_is_a_text_is_refused() -> None:
    async with client(b"") as opened:
        with pytest.raises(TypeError, match="pass a list"):
            await opened.exec_run("a", "/bin/ls", task="main")
