"""Listeners of the daemon: operators by peer credentials, and encryption."""

import grp
import os
import socket
import ssl
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path

import pytest
import trio

from daemon.acl.check import KNOWN, MANAGEMENT
from daemon.config.settings import Settings
from daemon.web import admission
from daemon.web.certificate_files import (
    CertificateValidity,
    ServerContext,
    remaining_seconds,
    report_validity,
    watch_validity,
)
from daemon.web.connections import listeners_at
from daemon.web.listeners import (
    ListenError,
    listen_here,
    load_certificate,
    open_listening_sockets,
    tls_context,
)
from daemon.web.reply import HandlerReply
from daemon.web.request import ReadRoute, Request
from daemon.web.server import open_web
from storage.errors import Invalid
from storage.read_pool import ReadSnapshot
from storage.records.base import SECOND
from storage.store import Store
from tests.fakes.authority import Authority
from tests.listeners import open_listeners
from tests.parts.api.requests import parts_of

NOBODY = 65534
IS_ROOT = os.geteuid() == 0


def who(request: Request, db: ReadSnapshot) -> HandlerReply:
    return HandlerReply(body={"Token": request.caller.token.accessor, "Address": request.address})


ROUTES = (ReadRoute("/who", who, KNOWN), ReadRoute("/all", who, MANAGEMENT))


@asynccontextmanager
async def serving(store: Store, **settings: object) -> AsyncIterator[int]:
    config = Settings(port=0, **settings)
    with open_listeners(config) as listeners:
        async with open_web(parts_of(store, config), ROUTES, (), listeners.places):
            yield listeners.port


@pytest.fixture
def home() -> Iterator[Path]:
    """Yield a directory that other users can pass through."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o711)
        yield Path(directory)


async def ask(
    stream: trio.SocketStream | trio.SSLStream[trio.SocketStream],
    path: str = "/who",
    **headers: str,
) -> str:
    lines = [f"GET {path} HTTP/1.1", "Host: localhost", "Connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    answer = b""
    with (
        trio.fail_after(10),
        suppress(trio.BrokenResourceError),
    ):  # the server closes the connection
        async with stream:
            await stream.send_all(("\r\n".join(lines) + "\r\n\r\n").encode())
            while piece := await stream.receive_some():
                answer += piece
    return answer.decode()


async def through_socket(path: Path, asked: str = "/all", **headers: str) -> str:
    return await ask(await trio.open_unix_socket(path), asked, **headers)


ASKING = """
import os, socket, sys
path, uid, gid, *more = sys.argv[1:]
os.setgroups([int(group) for group in more])
os.setgid(int(gid))
os.setuid(int(uid))
s = socket.socket(socket.AF_UNIX)
s.connect(path)
s.sendall(b"GET /all HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n\\r\\n")
answer = b""
while piece := s.recv(4096):
    answer += piece
print(answer.decode())
"""


async def as_user(
    path: Path, *, uid: int = NOBODY, gid: int = NOBODY, more: Sequence[int] = ()
) -> str:
    """Send a request as another user; return an empty string if that user cannot connect.

    The running program changes its user, because only root may be able to read its Python.
    """
    result = await trio.run_process(
        [sys.executable, "-I", "-c", ASKING, str(path), *map(str, (uid, gid, *more))],
        capture_stdout=True,
        capture_stderr=True,
        check=False,
    )
    return result.stdout.decode()


# ---- the operators' socket -----------------------------------------------------------------


@pytest.mark.skipif(not IS_ROOT, reason="needs root")
async def test_root_needs_no_token_on_the_socket(store: Store, home: Path) -> None:
    async with serving(store, data_dir=home):
        answer = await through_socket(home / "steward.sock")
    assert answer.startswith("HTTP/1.1 200")
    assert '"Token":"user-0"' in answer


async def test_every_client_of_the_port_needs_a_token(store: Store, home: Path) -> None:
    async with serving(store, data_dir=home) as port:
        answer = await ask(await trio.open_tcp_stream("127.0.0.1", port), "/all")
    assert answer.startswith("HTTP/1.1 403")


async def test_unknown_token_on_the_socket_is_refused_despite_the_users_rights(
    store: Store, home: Path
) -> None:
    async with serving(store, data_dir=home):
        answer = await through_socket(home / "steward.sock", "/who", X_Service_Token="unknown")
    assert answer.startswith("HTTP/1.1 403")


@pytest.mark.skipif(not IS_ROOT, reason="needs root, to act as other users")
async def test_other_users_cannot_connect_to_the_operator_socket(store: Store, home: Path) -> None:
    async with serving(store, data_dir=home):
        assert await as_user(home / "steward.sock") == ""


@pytest.mark.skipif(not IS_ROOT, reason="needs root, to act as other users")
@pytest.mark.parametrize("groups", [{"gid": 1}, {"more": [1]}], ids=["first", "further"])
async def test_members_of_the_group_are_operators(
    store: Store, home: Path, groups: dict[str, object]
) -> None:
    group = grp.getgrgid(1).gr_name
    async with serving(store, data_dir=home, operator_group=group):
        answer = await as_user(home / "steward.sock", **groups)
        stranger = await as_user(home / "steward.sock")
    assert '"Token":"user-65534"' in answer
    assert stranger == ""


@pytest.mark.skipif(not IS_ROOT, reason="needs root, to act as other users")
async def test_every_client_of_the_task_socket_needs_a_token(store: Store, home: Path) -> None:
    async with serving(store, data_dir=home):
        assert (await as_user(home / "tasks.sock")).startswith("HTTP/1.1 403")
        assert (await through_socket(home / "tasks.sock")).startswith("HTTP/1.1 403")


async def test_an_unknown_group_is_named(store: Store, home: Path) -> None:
    with pytest.raises(Invalid, match="operator_group = 'nobody-knows-it'"):
        async with serving(store, data_dir=home, operator_group="nobody-knows-it"):
            pass


async def test_socket_can_be_disabled(store: Store, home: Path) -> None:
    async with serving(store, data_dir=home, socket="none"):
        assert not (home / "steward.sock").exists()


def test_socket_is_removed_at_the_end(home: Path) -> None:
    with listen_here(home / "s"):
        assert (home / "s").stat().st_mode & 0o777 == 0o600
    assert not (home / "s").exists()


def test_socket_left_by_a_crash_is_replaced(home: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(home / "s"))
    with listen_here(home / "s"):
        assert (home / "s").is_socket()


def test_socket_of_another_daemon_is_not_removed(home: Path) -> None:
    with listen_here(home / "s"):
        with pytest.raises(ListenError, match="another daemon listens"), listen_here(home / "s"):
            pass
        assert (home / "s").is_socket()


def test_file_that_is_no_socket_is_not_removed(home: Path) -> None:
    (home / "s").write_text("precious")
    with pytest.raises(ListenError), listen_here(home / "s"):
        pass
    assert (home / "s").read_text() == "precious"


def test_path_can_exceed_the_kernel_limit_of_socket_addresses(home: Path) -> None:
    deep = home / ("d" * 100) / ("e" * 100) / "s"
    with listen_here(deep):
        assert deep.is_socket()


# ---- encryption --------------------------------------------------------------------------------


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


async def encrypted(port: int, context: ssl.SSLContext) -> str:
    stream = await trio.open_ssl_over_tcp_stream(
        "localhost", port, https_compatible=True, ssl_context=context
    )
    return await ask(stream)


async def test_connections_are_encrypted_if_a_certificate_is_configured(
    store: Store, home: Path, authority: Authority
) -> None:
    certificate, key = authority.certify("daemon")
    async with serving(store, data_dir=home, tls_cert=certificate, tls_key=key) as port:
        assert (await encrypted(port, authority.client())).startswith("HTTP/1.1 200")
        plain = await trio.open_tcp_stream("127.0.0.1", port)
        assert "200" not in await ask(plain)


async def test_client_certificates_can_be_required(
    store: Store, home: Path, authority: Authority
) -> None:
    certificate, key = authority.certify("daemon")
    settings = {"tls_cert": certificate, "tls_key": key, "tls_client_ca": authority.file}
    async with serving(store, data_dir=home, **settings) as port:
        known = authority.client(*authority.certify("client"))
        assert (await encrypted(port, known)).startswith("HTTP/1.1 200")
        assert await encrypted(port, authority.client()) == ""


async def test_a_client_whose_certificate_was_revoked_is_refused(
    store: Store, home: Path, authority: Authority
) -> None:
    certificate, key = authority.certify("daemon")
    lost, kept = authority.certify("lost"), authority.certify("kept")
    authority.revoke(lost[0])
    settings = {"tls_cert": certificate, "tls_key": key, "tls_client_ca": authority.file}
    async with serving(store, data_dir=home, **settings) as port:
        assert (await encrypted(port, authority.client(*kept))).startswith("HTTP/1.1 200")
        assert await encrypted(port, authority.client(*lost)) == ""


async def test_revocation_takes_effect_without_a_restart(
    store: Store, home: Path, authority: Authority
) -> None:
    certificate, key = authority.certify("daemon")
    client = authority.certify("client")
    known = authority.client(*client)
    config = Settings(
        port=0, data_dir=home, tls_cert=certificate, tls_key=key, tls_client_ca=authority.file
    )
    with open_listeners(config) as listeners:
        async with open_web(parts_of(store, config), ROUTES, (), listeners.places):
            assert (await encrypted(listeners.port, known)).startswith("HTTP/1.1 200")
            authority.revoke(client[0])
            listeners.reload(config)
            assert await encrypted(listeners.port, known) == ""


async def shown_certificate(port: int, context: ssl.SSLContext) -> object:
    stream = await trio.open_ssl_over_tcp_stream(
        "localhost", port, https_compatible=True, ssl_context=context
    )
    async with stream:
        await stream.do_handshake()
        return stream.getpeercert()["serialNumber"]


async def test_renewed_certificate_is_reloaded_without_a_restart(
    store: Store, home: Path, authority: Authority
) -> None:
    certificate, key = authority.certify("daemon")
    config = Settings(port=0, data_dir=home, tls_cert=certificate, tls_key=key)
    with open_listeners(config) as listeners:
        async with open_web(parts_of(store, config), ROUTES, (), listeners.places):
            before = await shown_certificate(listeners.port, authority.client())
            authority.certify("daemon")
            listeners.reload(config)
            after = await shown_certificate(listeners.port, authority.client())
            assert before != after
            key.write_text("nonsense")
            with pytest.raises(Invalid):
                listeners.reload(config)
            assert await shown_certificate(listeners.port, authority.client()) == after


async def test_old_tls_versions_are_refused(store: Store, home: Path, authority: Authority) -> None:
    certificate, key = authority.certify("daemon")
    context = tls_context(Settings(tls_cert=certificate, tls_key=key))
    assert context is not None
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2


def certificate_of(config: Settings) -> tuple[tuple[CertificateValidity, ...], ServerContext]:
    context = tls_context(config)
    assert context is not None
    return context.validity, context


@pytest.mark.parametrize(
    ("days", "words"),
    [
        ((-3, -1), "the certificate expired at "),
        ((1, 3), "the certificate is not valid before "),
        ((-80, 10), "the certificate expires at "),
        ((-1, 90), ""),
        ((-0.5, 6), ""),  # short-lived certificates are renewed late
    ],
)
def test_certificate_that_clients_refuse_now_or_soon_is_logged(
    authority: Authority,
    days: tuple[float, float],
    words: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    certificate, key = authority.certify("daemon", days)
    _, context = certificate_of(Settings(tls_cert=certificate, tls_key=key))
    report_validity([context, context], time.time_ns())
    messages = [record.getMessage() for record in caplog.records]
    assert [words in text and str(certificate) in text for text in messages] == [True] * bool(words)


def test_expired_certificate_of_the_chain_is_named_as_such(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    """Clients can still trust the daemon, through another certificate of the authority."""
    certificate, key = authority.certify("daemon", (-1, 90))
    chain, _ = authority.certify("between", (-3, -1))
    certificate.write_bytes(certificate.read_bytes() + chain.read_bytes())
    _, context = certificate_of(Settings(tls_cert=certificate, tls_key=key))
    report_validity([context], time.time_ns())
    (record,) = caplog.records
    assert ": certificate 2 of the chain expired at " in record.getMessage()


def test_remaining_seconds_are_those_of_the_first_certificate_that_expires(
    authority: Authority,
) -> None:
    certificate, key = authority.certify("daemon", (-1, 90))
    own = authority.certify("wrappers", (-3, -1))
    chain, _ = authority.certify("between", (-1, 2))
    certificate.write_bytes(certificate.read_bytes() + chain.read_bytes())
    config = Settings(
        tls_cert=certificate, tls_key=key, wrapper_tls_cert=own[0], wrapper_tls_key=own[1]
    )
    contexts = [certificate_of(config)[1], certificate_of(config.of_wrappers)[1]]
    found = remaining_seconds(contexts, time.time_ns())
    days = {setting: seconds / 86400 for setting, seconds in found.items()}
    assert days == pytest.approx({"tls_cert": 2, "wrapper_tls_cert": -1}, abs=0.01)


def test_certificate_with_the_older_mark_of_pem_is_accepted(authority: Authority) -> None:
    certificate, key = authority.certify("daemon", (-1, 90))
    certificate.write_text(certificate.read_text().replace(" CERTIFICATE", " X509 CERTIFICATE"))
    validity, _ = certificate_of(Settings(tls_cert=certificate, tls_key=key))
    assert len(validity) == 1


async def test_certificate_is_checked_once_a_day(
    authority: Authority,
    caplog: pytest.LogCaptureFixture,
    autojump_clock: trio.testing.MockClock,
) -> None:
    certificate, key = authority.certify("daemon", (-1, 40))
    _, context = certificate_of(Settings(tls_cert=certificate, tls_key=key))
    began = time.time_ns()

    class Later:
        def now(self) -> int:
            return began + int(trio.current_time() * SECOND)

    with trio.move_on_after(timedelta(days=43).total_seconds()):
        await watch_validity([context], Later())
    texts = [record.getMessage() for record in caplog.records]
    assert "expires at" in texts[0]
    assert "expired at" in texts[-1]
    assert 15 <= len(texts) <= 18


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("tls_cert", "nonsense", "contains no certificate in PEM format"),
        ("tls_key", "nonsense", "contains no private key in PEM format"),
        ("tls_key", "-----BEGIN ENCRYPTED PRIVATE KEY-----", "a passphrase protects it"),
        ("tls_cert", "-----BEGIN CERTIFICATE-----\n", "one file is damaged"),
        ("tls_client_ca", "nonsense", "contains no valid certificate in PEM format"),
    ],
)
def test_file_with_unusable_content_is_named_with_the_reason(
    tmp_path: Path, authority: Authority, name: str, content: str, words: str
) -> None:
    certificate, key = authority.certify("daemon")
    bad = tmp_path / "bad.pem"
    bad.write_text(content)
    given = {"tls_cert": certificate, "tls_key": key, name: bad}
    with pytest.raises(Invalid, match=words) as error:
        tls_context(Settings(**given))
    assert f"{name} = '{bad}'" in str(error.value)
    assert "_ssl.c" not in str(error.value)


@pytest.mark.parametrize("name", ["wrapper_tls_cert", "wrapper_tls_key"])
def test_setting_of_the_listener_for_cluster_hosts_is_named(
    tmp_path: Path, authority: Authority, name: str
) -> None:
    certificate, key = authority.certify("daemon")
    own, own_key = authority.certify("wrappers")
    missing = tmp_path / "missing.pem"
    pairs = {"tls_cert": certificate, "tls_key": key}
    given = {**pairs, "wrapper_tls_cert": own, "wrapper_tls_key": own_key, name: missing}
    with pytest.raises(Invalid, match=f"^cannot read {name} = '{missing}': No such file"):
        tls_context(Settings(**given).of_wrappers)


def test_key_of_another_certificate_is_reported(authority: Authority) -> None:
    certificate, _ = authority.certify("daemon")
    _, key = authority.certify("other")
    with pytest.raises(Invalid, match="the key belongs to another certificate"):
        tls_context(Settings(tls_cert=certificate, tls_key=key))


def test_invalid_authority_file_does_not_change_the_certificate(authority: Authority) -> None:
    certificate, key = authority.certify("daemon")
    config = Settings(tls_cert=certificate, tls_key=key, tls_client_ca=authority.file)
    before, context = certificate_of(config)
    authority.certify("daemon", (-1, 50))
    authority.file.write_text("nonsense")
    with pytest.raises(Invalid, match="tls_client_ca"):
        load_certificate(context, config)
    assert context.validity == before


def test_reload_renews_the_certificate_of_public_documents(
    authority: Authority, home: Path
) -> None:
    certificate, key = authority.certify("daemon")
    config = Settings(
        port=0,
        data_dir=home,
        tls_cert=certificate,
        tls_key=key,
        issuer_bind="127.0.0.1",
        issuer_port=0,
    )
    with open_listening_sockets(config) as sockets:
        assert sockets.public_context is not None
        authority.certify("daemon", (-1, 50))
        listeners_at(sockets).reload(config)
        renewed, _ = certificate_of(config)
        assert sockets.public_context.validity == renewed


async def test_http_client_of_an_encrypted_port_learns_the_reason(
    store: Store, home: Path, authority: Authority
) -> None:
    certificate, key = authority.certify("daemon")
    async with serving(store, data_dir=home, tls_cert=certificate, tls_key=key) as port:
        answer = await ask(await trio.open_tcp_stream("127.0.0.1", port))
    assert answer.startswith("HTTP/1.1 400 ")
    assert "Client sent an HTTP request to an HTTPS server" in answer


def raw_alert(port: int, context: ssl.SSLContext) -> str:
    """Return OpenSSL's name of the error that a client gets from the daemon."""
    with (
        socket.create_connection(("localhost", port), timeout=10) as plain,
        pytest.raises(ssl.SSLError) as error,
        context.wrap_socket(plain, server_hostname="localhost") as encrypted,
    ):
        encrypted.recv(1)
    return error.value.reason


@pytest.mark.parametrize("days", [None, (-3, -1)])
async def test_client_without_a_valid_certificate_gets_an_alert(
    store: Store,
    home: Path,
    authority: Authority,
    days: tuple[float, float] | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    certificate, key = authority.certify("daemon")
    own = authority.certify("client", days) if days else ()
    settings = {"tls_cert": certificate, "tls_key": key, "tls_client_ca": authority.file}
    async with serving(store, data_dir=home, **settings) as port:
        alert = await trio.to_thread.run_sync(raw_alert, port, authority.client(*own))
    expected = "EXPIRED" if days else "REQUIRED"
    assert alert.endswith(f"ALERT_CERTIFICATE_{expected}")
    assert "a client was refused because of its certificate" in caplog.text


async def test_client_that_refuses_the_certificate_is_logged(
    store: Store, home: Path, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    certificate, key = authority.certify("daemon", (-3, -1))
    async with serving(store, data_dir=home, tls_cert=certificate, tls_key=key) as port:
        with pytest.raises(trio.BrokenResourceError):
            await encrypted_once(port, authority.client())
        await trio.testing.wait_all_tasks_blocked(0.05)
    assert "a client refused the certificate of the daemon" in caplog.text


async def encrypted_once(port: int, context: ssl.SSLContext) -> None:
    plain = await trio.open_tcp_stream("localhost", port)
    stream = trio.SSLStream(plain, context, server_hostname="localhost", https_compatible=True)
    try:
        await stream.do_handshake()
    except trio.BrokenResourceError:
        await plain.send_all(stream._outgoing.read())  # Trio does not send the alert itself
        await plain.send_eof()
        await plain.receive_some()
        raise
    finally:
        await trio.aclose_forcefully(plain)


@pytest.mark.parametrize("name", ["tls_cert", "tls_key", "tls_client_ca"])
def test_unusable_certificate_file_is_named(
    tmp_path: Path, authority: Authority, name: str
) -> None:
    certificate, key = authority.certify("daemon")
    given = {"tls_cert": certificate, "tls_key": key, name: tmp_path / "nothing.pem"}
    with pytest.raises(Invalid, match=r"nothing\.pem"):
        tls_context(Settings(**given))


# ---- bounds ------------------------------------------------------------------------------------


async def test_number_of_connections_is_limited(
    store: Store, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "MAX_CONNECTIONS", 4)
    async with serving(store, data_dir=home) as port:
        idle = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(2)]
        await trio.testing.wait_all_tasks_blocked(0.05)
        refused = await ask(await trio.open_tcp_stream("127.0.0.1", port))
        assert refused.startswith("HTTP/1.1 429 ")
        assert "\r\nRetry-After: 1\r\n" in refused
        assert f"user {os.getuid()} has 2 connections, which is its limit" in refused
        await idle.pop().aclose()
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert (await ask(await trio.open_tcp_stream("127.0.0.1", port))).startswith("HTTP/1.1 2")
        await idle.pop().aclose()


# ---- proxies -----------------------------------------------------------------------------------


async def test_address_from_a_trusted_proxy_is_used(store: Store, home: Path) -> None:
    async with serving(store, data_dir=home, trusted_proxies=["127.0.0.0/8"]) as port:
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        answer = await ask(stream, X_Forwarded_For="6.6.6.6, 10.1.2.3")
    assert '"Address":"10.1.2.3"' in answer


async def test_forwarded_header_does_not_change_the_address(store: Store, home: Path) -> None:
    async with serving(store, data_dir=home) as port:
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        answer = await ask(stream, X_Forwarded_For="10.1.2.3")
    assert '"Address":"127.0.0.1"' in answer
