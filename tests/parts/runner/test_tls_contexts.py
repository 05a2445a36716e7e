"""TLS contexts of outgoing connections: built off the event loop, and kept until authorities change."""

import os
import ssl
import threading
from pathlib import Path

import pytest
import trio

from daemon.net import tls_contexts
from daemon.net.tls_contexts import client_context
from tests.fakes.authority import Authority


@pytest.fixture(autouse=True)
def builders(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Clear the contexts of other tests, and record the thread that builds each context."""
    monkeypatch.setattr(tls_contexts, "_built", {})
    threads: list[int] = []
    real = ssl.create_default_context

    def build() -> ssl.SSLContext:
        threads.append(threading.get_ident())
        return real()

    monkeypatch.setattr(ssl, "create_default_context", build)
    return threads


async def test_concurrent_connections_share_one_context(builders: list[int]) -> None:
    found = []

    async def connect() -> None:
        found.append(await client_context(verify=True, protocol="http/1.1"))

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(connect)
    assert len(found) == 20
    assert len(set(map(id, found))) == len(builders) == 1
    assert threading.get_ident() not in builders


async def test_each_tls_configuration_has_its_own_context() -> None:
    ways = [(verify, protocol) for verify in (True, False) for protocol in ("http/1.1", "h2")]
    found = [await client_context(verify=verify, protocol=protocol) for verify, protocol in ways]
    again = [await client_context(verify=verify, protocol=protocol) for verify, protocol in ways]
    assert again == found
    assert len(set(map(id, found))) == len(ways)
    assert [context.verify_mode for context in found] == [
        *[ssl.CERT_REQUIRED] * 2,
        *[ssl.CERT_NONE] * 2,
    ]


@pytest.mark.parametrize("change", ["content", "file", "removed"])
async def test_changed_authorities_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    for home in (first, second):
        home.mkdir()
    trusted, other = Authority(first).file, Authority(second).file
    monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path / "none"))
    before = await client_context(verify=True, protocol="http/1.1")
    known = before.get_ca_certs(binary_form=True)
    if change == "content":
        trusted.write_bytes(other.read_bytes())
    elif change == "file":
        os.replace(other, trusted)
    else:
        trusted.unlink()
    after = (await client_context(verify=True, protocol="http/1.1")).get_ca_certs(binary_form=True)
    assert len(known) == 1
    assert after != known
