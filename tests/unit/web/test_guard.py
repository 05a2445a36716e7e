"""The guard rejects requests that a cross-origin web page could have sent."""

import pytest

from daemon.config.settings import Settings
from daemon.web.request_guard import RequestGuard, TrustedProxies


def refused(method: str = "GET", bind: str = "127.0.0.1", **headers: str) -> int | None:
    guard = RequestGuard(Settings(bind=bind, host_names=["steward.lan"]), "machine")
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    reply = guard.refusal(method, named)
    return reply.status if reply else None


@pytest.mark.parametrize(
    "host",
    ["localhost:4646", "127.0.0.1", "127.0.0.1:80", "[::1]:4646", "MACHINE:1", "steward.lan"],
)
def test_local_host_names_are_accepted(host: str) -> None:
    assert refused(host=host) is None


def test_case_of_a_host_name_in_the_settings_does_not_matter() -> None:
    guard = RequestGuard(Settings(host_names=["Steward.LAN"]), "machine")
    assert guard.refusal("GET", {"host": "steward.lan"}) is None
    assert guard.refusal("GET", {"host": "STEWARD.lan"}) is None


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "GZIP", "identity, gzip", "br"])
def test_compressed_body_is_refused(encoding: str) -> None:
    assert refused("POST", content_encoding=encoding) == 415


@pytest.mark.parametrize("encoding", ["", "identity", " Identity "])
def test_body_without_compression_is_accepted(encoding: str) -> None:
    assert refused("POST", content_encoding=encoding) is None


@pytest.mark.parametrize("host", ["evil.example", "evil.example:4646", "10.0.0.1", "[::2]:1"])
def test_other_host_names_are_refused(host: str) -> None:
    assert refused(host=host) == 421


@pytest.mark.parametrize(
    "host",
    [
        "",
        " ",
        ":4646",
        "127.0.0.1:4646@evil.example",
        "evil.example@127.0.0.1",
        "localhost:x",
        "localhost:",
        "localhost:123456",
        "localhost:80:80",
        "localhost, evil.example",
        "localhost/evil",
        "[::1",
        "[::1]evil",
        "[::1]:4646@evil.example",
        "::1",
        "[localhost]",
        "localhost\u0661",
    ],
)
def test_malformed_host_header_is_refused(host: str) -> None:
    assert refused(host=host) == 421


def test_wildcard_daemon_accepts_every_address_but_no_unknown_name() -> None:
    everywhere = "0.0.0.0"  # noqa: S104 - nothing is bound here
    assert refused(bind=everywhere, host="10.0.0.1:4646") is None
    assert refused(bind=everywhere, host="evil.example") == 421


def test_http_1_0_client_without_a_host_header_is_accepted() -> None:
    assert refused() is None


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost:9999"])
def test_cross_origin_write_is_refused(origin: str) -> None:
    assert refused("POST", host="localhost:4646", origin=origin) == 403


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_cross_site_read_is_refused_only_if_it_has_an_effect(site: str) -> None:
    guard = RequestGuard(Settings(), "machine")
    headers = {"host": "localhost:4646", "sec-fetch-site": site}
    assert guard.refusal("GET", headers) is None
    refusal = guard.refusal("GET", headers, has_effect=True)
    assert refusal is not None
    assert refusal.status == 403
    assert guard.refusal("GET", {"host": "localhost:4646"}, has_effect=True) is None


def test_same_origin_write_is_accepted() -> None:
    headers = {"origin": "http://localhost:4646", "sec_fetch_site": "same-origin"}
    assert refused("POST", host="localhost:4646", **headers) is None


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_write_marked_as_cross_site_by_a_browser_is_refused(site: str) -> None:
    assert refused("DELETE", host="localhost:4646", sec_fetch_site=site) == 403


def test_cross_origin_page_cannot_open_a_websocket() -> None:
    headers = {"upgrade": "websocket", "origin": "http://evil.example"}
    assert refused("GET", host="localhost:4646", **headers) == 403


def test_program_without_browser_headers_can_write() -> None:
    assert refused("POST", host="localhost:4646") is None


@pytest.mark.parametrize(
    ("address", "forwarded", "client"),
    [
        ("10.0.0.1", "", "10.0.0.1"),
        ("10.0.0.1", "1.2.3.4", "1.2.3.4"),
        ("10.0.0.1", "6.6.6.6, 1.2.3.4", "1.2.3.4"),
        ("10.0.0.1", "1.2.3.4, 10.0.0.2", "1.2.3.4"),
        ("10.0.0.1", "1.2.3.4:5678", "1.2.3.4"),
        ("10.0.0.1", "[2001:db8::1]:5678", "2001:db8::1"),
        ("10.0.0.1", "2001:db8::1", "2001:db8::1"),
        ("10.0.0.1", "unknown", "10.0.0.1"),
        ("10.0.0.1", "1.2.3.4, unknown", "10.0.0.1"),
        ("10.0.0.1", "10.0.0.2", "10.0.0.2"),
        ("9.9.9.9", "1.2.3.4", "9.9.9.9"),
        ("", "1.2.3.4", ""),
    ],
)
def test_client_is_the_nearest_address_that_is_no_trusted_proxy(
    address: str, forwarded: str, client: str
) -> None:
    assert TrustedProxies(["10.0.0.0/8"]).client(address, forwarded) == client
