"""Listeners of the daemon: operators by peer credentials, and encryption."""

import grp
import os
import socket
import ssl
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import trio

from daemon.acl.check import KNOWN, MANAGEMENT
from daemon.config.settings import Settings
from daemon.web import admission
from daemon.web.listeners import ListenError, listen_here, tls_context
from daemon.web.reply import HandlerReply
from daemon.web.request import ReadRoute, Request
from daemon.web.server import open_web
from storage.errors import Invalid
from storage.read_pool import ReadSnapshot
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
