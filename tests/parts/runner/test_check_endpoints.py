"""Checks of TLS endpoints, and of endpoints that hang, send invalid data or redirect."""

import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from daemon.net import egress_policy, grpc_health, tls_contexts
from daemon.net.http_client import allow_all, send_request
from daemon.runner.services.checks import CheckRunner, run_check
from storage.records.base import SECOND
from storage.records.service import CheckStatus
from tests.fakes.authority import Authority
from tests.parts.runner.endpoints import Health, Serve, listening, message, nothing_runs, probe
from tests.time_limits import HAPPENS_WITHIN

SUCCESS, FAILURE = CheckStatus.SUCCESS, CheckStatus.FAILURE
WELL = b"HTTP/1.1 200 x\r\nContent-Length: 0\r\n\r\n"


def answering(*pieces: bytes) -> Callable[[trio.abc.Stream], Any]:
    async def serve(stream: trio.abc.Stream) -> None:
        async with stream:
            await stream.receive_some()
            with suppress(trio.BrokenResourceError):  # the check has read enough and closed
                for piece in pieces:
                    await stream.send_all(piece)

    return serve


# ---- encryption --------------------------------------------------------------------------------------


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def encrypted(
    authority: Authority, serve: Callable[[trio.abc.Stream], Any], protocol: str = "http/1.1"
) -> Serve:
    """Return a TLS server with a certificate for `localhost` and no other name."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.certify("server"))
    context.set_alpn_protocols([protocol])

    async def accept(stream: trio.SocketStream) -> None:
        secure = trio.SSLStream(stream, context, server_side=True, https_compatible=True)
        try:
            await serve(secure)
        except trio.BrokenResourceError:  # the client refused the certificate
            await trio.aclose_forcefully(secure)

    return accept


OF_NOBODY = "certificate verify failed: unable to get local issuer certificate"


@pytest.mark.parametrize(
    ("fields", "known", "found", "words"),
    [
        ({}, False, FAILURE, OF_NOBODY),
        ({"tls_server_name": "localhost"}, False, FAILURE, OF_NOBODY),
        ({"tls_skip_verify": True}, False, SUCCESS, ""),
        ({}, True, FAILURE, "certificate is not valid for '127.0.0.1'"),
        ({"tls_server_name": "localhost"}, True, SUCCESS, ""),
        ({"tls_server_name": "web.example"}, True, FAILURE, "not valid for 'web.example'"),
        ({"tls_server_name": "web.example", "tls_skip_verify": True}, True, SUCCESS, ""),
        ({"tls_server_name": ".example"}, True, FAILURE, "'.example' is not a valid server name"),
        ({"tls_server_name": "a\0b"}, True, FAILURE, "'a\\x00b' is not a valid server name"),
        ({"tls_server_name": "x" * 64}, True, FAILURE, "nomad: "),
    ],
)
@pytest.mark.parametrize("kind", ["http", "grpc"])
async def test_certificate_is_verified_as_configured_in_the_check(
    authority: Authority,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    fields: Any,
    known: bool,
    found: CheckStatus,
    words: str,
) -> None:
    if known:
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    servers = {
        "http": encrypted(authority, answering(WELL)),
        "grpc": encrypted(authority, Health(message(1)).serve, "h2"),
    }
    asked = {"protocol": "https", "grpc_use_tls": True, **fields}
    async with listening(servers[kind]) as port:
        status, _, said = await run_check(probe(kind, port, **asked), nothing_runs, allow_all)
    assert (status, words in said) == (found, True), said


async def test_ten_https_checks_build_one_context_in_a_thread(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    built, build = list[int](), tls_contexts._build

    def noted(verify: bool, protocol: str) -> ssl.SSLContext:
        built.append(threading.get_ident())
        return build(verify, protocol)

    monkeypatch.setattr(tls_contexts, "_built", {})
    monkeypatch.setattr(tls_contexts, "_build", noted)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    async with listening(encrypted(authority, answering(WELL))) as port:
        asked = probe("http", port, protocol="https", tls_server_name="localhost")
        found = [await run_check(asked, nothing_runs, allow_all) for _ in range(10)]
    assert found == [(SUCCESS, 200, "nomad: http ok")] * 10
    assert len(built) == 1
    assert built[0] != threading.get_ident()


async def test_headers_are_sent_to_an_https_endpoint(authority: Authority) -> None:
    heard = []

    async def serve(stream: trio.abc.Stream) -> None:
        async with stream:
            heard.append(bytes(await stream.receive_some()))
            await stream.send_all(WELL)

    headers = {"Host": ["web.example"], "Authorization": ["Bearer x"], "X-None": None}
    fields = {"protocol": "https", "tls_skip_verify": True, "header": headers, "path": "/health"}
    async with listening(encrypted(authority, serve)) as port:
        found = await run_check(probe("http", port, **fields), nothing_runs, allow_all)
    assert found == (SUCCESS, 200, "nomad: http ok")
    head, *lines = heard[0].decode().split("\r\n")
    assert head == "GET /health HTTP/1.1"
    assert {"Host: web.example", "Authorization: Bearer x"} <= set(lines)


async def test_endpoint_without_tls_is_unhealthy() -> None:
    async with listening(answering(WELL)) as port:
        asked = probe("http", port, protocol="https", tls_skip_verify=True)
        status, code, said = await run_check(asked, nothing_runs, allow_all)
    assert (status, code) == (FAILURE, 0)
    assert said.startswith("nomad: ")


# ---- endpoints that hang or send invalid data ----------------------------------------------------------


@pytest.mark.parametrize(
    "pieces",
    [
        (),
        (b"SSH-2.0-x\r\n",),
        (b"HTTP/1.1 200",),
        (b"HTTP/1.1 99999 x\r\n\r\n",),
        (b"HTTP/1.1 200 x\r\nX: " + b"y" * 200_000,),
        (b"HTTP/1.1 500 x\r\nContent-Length: 9999999\r\n\r\nlie",),
        (b"HTTP/1.1 500 x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",),
        (b"HTTP/1.1 500 x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",),
    ],
)
async def test_tls_endpoint_can_send_any_response(pieces: tuple[bytes, ...]) -> None:
    async with listening(answering(*pieces)) as port:
        status, _, said = await run_check(probe("http", port), nothing_runs, allow_all)
    assert status == FAILURE
    assert said.startswith("nomad: ")


async def test_endless_response_is_truncated() -> None:
    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some()
            try:
                await stream.send_all(b"HTTP/1.1 503 x\r\n\r\n")
                while True:
                    await stream.send_all(b"x" * 65536)
            except trio.BrokenResourceError:
                return

    async with listening(serve) as port:
        found = await run_check(probe("http", port), nothing_runs, allow_all)
    assert found == (FAILURE, 503, "x" * 3072)


@pytest.mark.parametrize("kind", ["http", "grpc"])
@pytest.mark.parametrize("says", [b"", b"HTTP/1.1 100 x\r\n\r\n"])
async def test_unresponsive_endpoint_fails_on_time_and_delays_no_other_check(
    kind: str, says: bytes
) -> None:
    found = trio.Event()

    async def hang(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.send_all(says)
            await trio.sleep_forever()

    def changed() -> None:
        if {result.status for result in checks.results} == {SUCCESS, FAILURE}:
            found.set()

    checks = CheckRunner("a", lambda: 0, changed, print, nothing_runs, allow_all)
    async with (
        listening(hang) as silent,
        listening(answering(WELL)) as well,
        trio.open_nursery() as nursery,
    ):
        asked = [probe(kind, silent, timeout=SECOND // 10), probe("http", well)]
        named = [msgspec.structs.replace(one, id=str(n)) for n, one in enumerate(asked)]
        checks.follow(named, nursery)
        await found.wait()
        nursery.cancel_scope.cancel()
    first, second = checks.results
    assert (first.status, second.status) == (FAILURE, SUCCESS)
    assert first.output.startswith("nomad: ")


# ---- redirects -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("health", "/health"),
        ("@evil.example/", "/@evil.example/"),
        (":1/", "/:1/"),
        ("//evil.example/x", "//evil.example/x"),
        ("/a b", "/a%20b"),
        ("/ü?x=%41&y=a+b", "/%C3%BC?x=%41&y=a+b"),
        ("/x#y", "/x%23y"),
        ("/x\r\nEvil: y", "/x%0D%0AEvil:%20y"),
    ],
)
async def test_check_path_cannot_change_the_endpoint(path: str, asked: str) -> None:
    heard = []

    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            heard.append(bytes(await stream.receive_some()).decode())
            await stream.send_all(WELL)

    async with listening(serve) as port:
        found = await run_check(probe("http", port, path=path), nothing_runs, allow_all)
    assert found == (SUCCESS, 200, "nomad: http ok")
    assert [line.split("\r\n")[0] for line in heard] == [f"GET {asked} HTTP/1.1"]


async def test_check_does_not_follow_redirects() -> None:
    asked = []

    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            asked.append(await stream.receive_some())
            await stream.send_all(
                b"HTTP/1.1 302 x\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n"
            )

    async with listening(serve) as port:
        found = await run_check(probe("http", port), nothing_runs, allow_all)
    assert found == (SUCCESS, 302, "nomad: http ok")
    assert len(asked) == 1


@pytest.mark.parametrize("kind", ["http", "tcp", "grpc"])
@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("169.254.169.254", "169.254.169.254 is the cloud's metadata service"),
        ("::ffff:169.254.169.254", "is the cloud's metadata service"),
        ("64:ff9b::a9fe:a9fe", "is the cloud's metadata service"),
        ("168.63.129.16", "is the cloud's metadata service"),
        ("100.100.100.200", "is the cloud's metadata service"),
        ("127.0.0.1", "127.0.0.1:4646 is the daemon itself"),
        ("0.0.0.0", "nomad: 0.0.0.0"),  # noqa: S104  # not bound
        ("a..b", "nomad: "),
        ("x" * 64, "nomad: "),
        ("a\0b", "nomad: "),
    ],
)
async def test_check_does_not_connect_to_a_forbidden_address(
    kind: str, address: str, words: str
) -> None:
    permit = partial(egress_policy.check, own_ports=frozenset({4646}))
    asked = msgspec.structs.replace(probe(kind, 4646), address=address)
    status, _, said = await run_check(asked, nothing_runs, permit)
    assert (status, words in said) == (FAILURE, True), said


# ---- hostile servers ---------------------------------------------------------------------------------


async def longest_turn(work: Callable[[Callable[[], None]], Any]) -> int:
    """Return the most steps that `work` counts while no other task runs."""
    steps = longest = 0

    def step() -> None:
        nonlocal steps
        steps += 1

    async def watch() -> None:
        nonlocal longest
        before = steps
        while True:
            await trio.lowlevel.checkpoint()
            longest, before = max(longest, steps - before), steps

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        await work(step)
        nursery.cancel_scope.cancel()
    return longest


async def test_tiny_chunks_of_a_response_do_not_hold_the_daemon() -> None:
    head = b"HTTP/1.1 500 x\r\nTransfer-Encoding: chunked\r\n\r\n"

    async def read(step: Callable[[], None]) -> None:
        async with send_request(f"http://127.0.0.1:{port}") as answer:
            async for _ in answer.body:
                step()

    async with listening(answering(head + b"1\r\nx\r\n" * 5000 + b"0\r\n\r\n")) as port:
        assert await longest_turn(read) <= 2


async def test_endless_informational_responses_end_a_request() -> None:
    async with listening(answering(b"HTTP/1.1 102 x\r\n\r\n" * 5000, WELL)) as port:
        with trio.fail_after(HAPPENS_WITHIN):
            found = await run_check(probe("http", port), nothing_runs, allow_all)
    words = "nomad: more than 16 informational responses came"
    assert found == (FAILURE, 0, words)


async def test_some_informational_responses_are_skipped() -> None:
    async with listening(answering(b"HTTP/1.1 103 x\r\n\r\n" * 16, WELL)) as port:
        found = await run_check(probe("http", port), nothing_runs, allow_all)
    assert found[0] == SUCCESS


EMPTY_SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"


async def test_empty_frames_do_not_hold_the_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(step: Callable[[], None]) -> None:
        heed = grpc_health._Conversation._is_over

        def counted(self: Any, event: Any) -> bool:
            step()
            return heed(self, event)

        monkeypatch.setattr(grpc_health._Conversation, "_is_over", counted)
        found = await run_check(probe("grpc", port), nothing_runs, allow_all)
        assert found == (FAILURE, 0, "nomad: the server sent more than 65536 bytes")

    async with listening(answering(*[EMPTY_SETTINGS * 5000] * 10)) as port:
        with trio.fail_after(HAPPENS_WITHIN):
            assert await longest_turn(check) <= 2 * 1024 // len(EMPTY_SETTINGS)
