import socket
import ssl
import threading
from collections.abc import Iterator

import pytest

from daemon.cli.core.http_client import (
    ApiClient,
    DaemonUnreachable,
    HttpConnection,
    RequestRejected,
    _reason,
    _tls_context,
    parse_address,
)
from storage.errors import Invalid
from tests.parts.cli.conftest import FakeDaemon, Told


def refused_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


def asking(**settings: str) -> ApiClient:
    return ApiClient(HttpConnection(**settings))


def test_an_answer_has_a_body_and_an_index(fake: FakeDaemon, client: ApiClient) -> None:
    fake.tell("/v1/jobs", [{"ID": "a"}])
    answer = client.read("/v1/jobs")
    assert (answer.decode(list[dict[str, str]]), answer.index) == ([{"ID": "a"}], 7)


def test_many_requests_share_a_connection(fake: FakeDaemon, client: ApiClient) -> None:
    fake.tell("/v1/jobs", [])
    fake.tell("/v1/jobs", {}, method="POST")
    client.read("/v1/jobs")
    client.send("POST", "/v1/jobs", {})
    client.read("/v1/jobs")
    assert len({seen.connection for seen in fake.seen}) == 1


def test_read_is_repeated_after_a_reused_connection_was_closed(
    fake: FakeDaemon, client: ApiClient
) -> None:
    fake.tell("/v1/jobs", Told(b"[]"), Told(hang_up=True), Told(b"[1]"))
    client.read("/v1/jobs")
    assert client.read("/v1/jobs").body == b"[1]"
    assert len({seen.connection for seen in fake.seen}) == 2


def test_a_change_is_never_sent_twice(fake: FakeDaemon, client: ApiClient) -> None:
    fake.tell("/v1/jobs", [])
    fake.tell("/v1/jobs", Told(hang_up=True), method="POST")
    client.read("/v1/jobs")
    with pytest.raises(
        DaemonUnreachable, match="it closed the connection; check whether it still runs"
    ):
        client.send("POST", "/v1/jobs", {})
    assert [seen.method for seen in fake.seen] == ["GET", "POST"]


def test_wait_requests_a_newer_index(fake: FakeDaemon, client: ApiClient) -> None:
    fake.tell("/v1/jobs", [])
    client.newer("/v1/jobs", 41, prefix="a")
    client.newer("/v1/jobs", 0)
    first, second = [seen.query for seen in fake.seen]
    assert first == {"prefix": "a", "index": "41", "wait": "60s"}
    assert second["index"] == "1"  # 0 would not wait


def test_request_has_token_namespace_and_region(fake: FakeDaemon) -> None:
    fake.tell("/proxied/v1/jobs", [])
    address = f"{fake.address}/proxied/"
    settings = {"token": "secret", "namespace": "ops", "region": "eu", "http_auth": "me:pw"}
    with asking(address=address, **settings) as client:
        client.read("/v1/jobs", purge=True, empty="")
    seen = fake.seen[0]
    assert seen.query == {"namespace": "ops", "region": "eu", "purge": "true"}
    assert seen.headers["x-service-token"] == seen.headers["x-nomad-token"] == "secret"
    assert seen.headers["authorization"] == "Basic bWU6cHc="


def test_namespace_of_the_request_has_precedence(fake: FakeDaemon) -> None:
    fake.tell("/v1/jobs", [])
    with asking(address=fake.address, namespace="ops") as client:
        client.read("/v1/jobs", namespace="dev")
    assert fake.seen[0].query == {"namespace": "dev"}


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (Told(b"job not found", 404), "job not found"),
        (Told(b"2 errors occurred:\n\t* a\n\n", 500), "a"),
        (
            Told(
                b"1 error occurred:\n\t* Task group g validation failed: 2 errors occurred:\n\t* a\n\t* b\n",
                500,
            ),
            "- Task group g: a\n- Task group g: b",
        ),
        (
            Told(b'Invalid namespace "a b": 1 error occurred:\n\t* invalid name\n\n', 500),
            'Invalid namespace "a b": invalid name',
        ),
        (
            Told(b"RPC Error:: 400,1 error occurred:\n\t* TTL must be short\n\n", 400),
            "TTL must be short",
        ),
        (Told(b'RPC Error:: 400,invalid path "a b"', 400), 'invalid path "a b"'),
        (
            Told(b"internal error: see the daemon's log", 500),
            "internal error: see the daemon's log (status 500)",
        ),
        (Told(b"", 502), "Bad Gateway (status 502)"),
        (
            Told(b"Permission denied", 403),
            "Permission denied; use --token or STEWARD_TOKEN to pass a token with this permission",
        ),
        (
            Told(b'job "a" is denied: policy "p" (hard-mandatory): too high', 403),
            'job "a" is denied: policy "p" (hard-mandatory): too high',
        ),
        (
            Told(b'job "a" is denied: policy "p" (soft-mandatory): too high', 403),
            'job "a" is denied: policy "p" (soft-mandatory): too high; '
            "with policy-override, a token may use --policy-override",
        ),
        (Told(b"Temporary Redirect", 307), "Temporary Redirect (status 307)"),
    ],
)
def test_daemon_error_is_reported_unchanged(
    fake: FakeDaemon, client: ApiClient, told: Told, words: str
) -> None:
    fake.tell("/v1/job/x", told)
    with pytest.raises(RequestRejected) as caught:
        client.read("/v1/job/x")
    assert str(caught.value) == words
    assert caught.value.status == told.status


def test_stopped_daemon_is_reported_with_a_fix() -> None:
    address = refused_address()
    with asking(address=address) as client, pytest.raises(DaemonUnreachable) as caught:
        client.read("/v1/jobs")
    assert str(caught.value) == (
        f'cannot reach the daemon at {address}: nothing listens there; start it with "steward '
        'agent", or name another address with --address or STEWARD_ADDR'
    )


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (Told(b"<html>"), "the response to GET /v1/jobs does not come from a Steward daemon"),
        (Told(b'{"ID": 3}'), "Expected `array`, got `object`"),
    ],
)
def test_response_of_another_server_is_recognized(
    fake: FakeDaemon, client: ApiClient, told: Told, words: str
) -> None:
    fake.tell("/v1/jobs", told)
    with pytest.raises(DaemonUnreachable, match=words):
        client.fetch("/v1/jobs", list[str])


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_a_web_page_of_a_proxy_is_no_success(
    fake: FakeDaemon, client: ApiClient, method: str
) -> None:
    page = Told(b"<html>sign in</html>", kind="text/html; charset=utf-8")
    fake.tell("/v1/system/gc", page, method=method)
    fake.tell("/v1/openapi", page, method=method)
    with pytest.raises(DaemonUnreachable, match=f"answers {method} /v1/system/gc with a web page"):
        client.call(method, "/v1/system/gc", None)
    assert client.call(method, "/v1/openapi", None).body == page.body


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"address": "http://[::1"}, "Invalid IPv6 URL; write it as http://HOST:PORT"),
        ({"address": f"http://{'a' * 300}"}, "a label that is empty or too long"),
        ({"address": "http://a b"}, "needs %XX"),
    ],
)
def test_settings_that_no_request_can_have_are_named(settings: dict[str, str], words: str) -> None:
    with pytest.raises((Invalid, DaemonUnreachable), match=words):
        asking(**settings).read("/v1/jobs")


def test_a_token_that_no_header_can_have_is_not_shown(fake: FakeDaemon) -> None:
    with (
        asking(address=fake.address, token="\u2603") as client,
        pytest.raises(Invalid, match="the token contains a line break or another invalid char"),
    ):
        client.read("/v1/jobs")


def test_a_path_that_no_request_can_have_is_named(client: ApiClient) -> None:
    with pytest.raises(Invalid, match="needs %XX"):
        client.read("/v1/job/a b")


@pytest.fixture
def gibberish() -> Iterator[str]:
    """The address of a server that does not speak HTTP."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.sendall(b"220 mail.example ready\r\n")
                peer.recv(1000)

        thread = threading.Thread(target=greet)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


def test_client_that_does_not_speak_http_is_recognized(gibberish: str) -> None:
    with (
        asking(address=gibberish) as client,
        pytest.raises(DaemonUnreachable, match="not speak HTTP"),
    ):
        client.read("/v1/jobs")


def test_https_address_of_a_plain_listener_is_recognized(gibberish: str) -> None:
    with (
        asking(address=f"https://{gibberish}") as client,
        pytest.raises(
            DaemonUnreachable, match=r"TLS failed .*; check whether the address needs http"
        ),
    ):
        client.read("/v1/jobs")


def test_missing_certificates_are_named() -> None:
    with (
        asking(address="https://127.0.0.1:1", ca_cert="/no/such.pem") as client,
        pytest.raises(Invalid, match=r"cannot use the certificates in /no/such\.pem"),
    ):
        client.read("/v1/jobs")


def test_stream_yields_its_chunks_on_arrival(fake: FakeDaemon, client: ApiClient) -> None:
    fake.tell("/v1/client/fs/logs/a", Told(pieces=(b"one\n", b"two\n")))
    with client.stream("/v1/client/fs/logs/a", follow=True) as pieces:
        assert b"".join(pieces) == b"one\ntwo\n"


def test_refused_stream_has_a_reason(fake: FakeDaemon, client: ApiClient) -> None:
    fake.tell("/v1/client/fs/logs/a", Told(b'unknown task name "x"', 400))
    refused = pytest.raises(RequestRejected, match='unknown task name "x"')
    with refused, client.stream("/v1/client/fs/logs/a"):
        pass


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("http://127.0.0.1:4646", ("http", "127.0.0.1", 4646)),
        ("https://steward.example:8443/base", ("https", "steward.example", 8443)),
        ("localhost:4646", ("http", "localhost", 4646)),
        ("http://[::1]:4646", ("http", "::1", 4646)),
        ("http://host", ("http", "host", None)),
    ],
)
def test_an_address_has_a_scheme_a_host_and_a_port(
    address: str, place: tuple[str, str, int | None]
) -> None:
    parts = parse_address(address)
    assert (parts.scheme, parts.hostname, parts.port) == place


@pytest.mark.parametrize(
    ("address", "complaint"),
    [
        ("ftp://host:1", "ftp is not supported; write it as http://HOST:PORT"),
        ("unix://run/steward.sock", "no absolute path"),
        ("http://:4646", "no host; write it as"),
        ("http://host:abc", "the port is not a number; write it as"),
        ("http://host:0", "the port must be from 1 to 65535; write it as"),
        ("http://host:99999", "the port must be from 1 to 65535; write it as"),
        ("http://host:-1", "the port must be from 1 to 65535; write it as"),
        ("", "no host"),
    ],
)
def test_invalid_address_is_refused_with_the_correct_form(address: str, complaint: str) -> None:
    with pytest.raises(Invalid) as caught:
        parse_address(address)
    assert complaint in str(caught.value)
    assert repr(address) in str(caught.value)


def test_certificates_are_verified_unless_disabled() -> None:
    strict = _tls_context(HttpConnection(address="https://x"))
    lax = _tls_context(HttpConnection(address="https://x", tls_skip_verify=True))
    assert (strict.verify_mode, strict.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert (lax.verify_mode, lax.check_hostname) == (ssl.CERT_NONE, False)


@pytest.mark.parametrize(
    ("code", "message", "remedy"),
    [
        (10, "certificate has expired", "renew the expired certificate"),
        (9, "certificate is not yet valid", "check the clocks"),
        (62, "Hostname mismatch, certificate is not valid for 'a'.", "--tls-server-name"),
        (64, "IP address mismatch", "--tls-server-name"),
        (23, "certificate revoked", "replace its certificate"),
        (18, "self-signed certificate", "--ca-cert or STEWARD_CACERT"),
        (20, "unable to get local issuer certificate", "--ca-cert or STEWARD_CACERT"),
        (66, "EE certificate key too weak", "replace the certificate of the daemon"),
    ],
)
def test_remedy_fits_the_reason_why_a_certificate_is_not_trusted(
    code: int, message: str, remedy: str
) -> None:
    error = ssl.SSLCertVerificationError()
    error.verify_code, error.verify_message = code, message
    reason, found = _reason(error)
    assert message.rstrip(".") in reason
    assert remedy in found


@pytest.mark.parametrize(
    ("name", "words", "remedy"),
    [
        ("TLSV13_ALERT_CERTIFICATE_REQUIRED", "(certificate required)", "--client-cert"),
        ("SSLV3_ALERT_CERTIFICATE_EXPIRED", "(certificate expired)", "--client-cert"),
        ("TLSV1_ALERT_UNKNOWN_CA", "(unknown ca)", "--client-cert"),
        ("SSLV3_ALERT_HANDSHAKE_FAILURE", "TLS failed", "check the log of the daemon"),
        ("WRONG_VERSION_NUMBER", "(wrong version number)", "http://"),
    ],
)
def test_remedy_fits_the_alert_of_the_daemon(name: str, words: str, remedy: str) -> None:
    error = ssl.SSLError()
    error.reason = name
    reason, found = _reason(error)
    assert words in reason
    assert remedy in found
