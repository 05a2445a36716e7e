"""The connection limit of each client, and the definition of a client."""

import errno
import os
import resource
import socket
from contextlib import ExitStack
from typing import Any

import pytest

from daemon.config.settings import Settings
from daemon.web import admission
from daemon.web.admission import (
    MAX_CONNECTIONS,
    Admission,
    Client,
    Connected,
    Share,
    TooMany,
    most_connections,
    most_rejected,
)

OURS = "10.0.0.1"


def connection(theirs: str, ours: str = OURS) -> Connected:
    """Return a connection from an address."""
    family = socket.AF_INET6 if ":" in theirs else socket.AF_INET
    return Connected(-1, family, (theirs, 40_000), (ours, 4646))


class Clients:
    """Connections to one listener that stay open."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self.open = ExitStack()

    def connect(self, *args: str, times: int = 1) -> None:
        for _ in range(times):
            (client,) = self._admission.clients([connection(*args)])
            assert client is not None
            self.open.callback(self._admission.disconnect, self._admission.enter(client))


def clients(share: Share = Share.PORT, *, has_hosts: bool = False, **settings: Any) -> Clients:
    return Clients(Admission(Settings(**settings), share, has_hosts=has_hosts))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("10.9.8.7", "10.9.8.7"),
        ("10.9.8.7", "::ffff:10.9.8.7"),
        ("2001:db8:1:2:aaaa::1", "2001:db8:1:2:bbbb::2"),
    ],
)
def test_address_has_a_limit_of_a_hundred_connections(first: str, second: str) -> None:
    many = clients()
    many.connect(first, times=99)
    many.connect(second)
    with pytest.raises(
        TooMany, match=r"has 100 connections, which is its limit \(connections_per_"
    ):
        many.connect(second)
    many.connect("10.9.8.8", times=100)
    many.open.close()
    many.connect(first, times=100)


@pytest.mark.parametrize(
    ("settings", "most"),
    [
        ({"connections_per_address": 7}, 7),
        ({"connections_per_address": 0}, MAX_CONNECTIONS // 2),
        ({"trusted_proxies": ["10.9.0.0/16"]}, 2000),
        ({"trusted_proxies": ["10.9.0.0/16"], "connections_per_user": 5}, 5),
        ({"has_hosts": True}, 2000),
    ],
)
def test_settings_change_the_limit_of_an_address(settings: Any, most: int) -> None:
    many = clients(**settings)
    many.connect("10.9.8.7", times=most)
    with pytest.raises(TooMany, match=f" {most} connections"):
        many.connect("10.9.8.7")


@pytest.mark.parametrize("addresses", [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), (OURS, OURS)])
def test_users_of_this_host_are_counted_separately(
    monkeypatch: pytest.MonkeyPatch, addresses: tuple[str, str]
) -> None:
    uid: int | None = 1000
    monkeypatch.setattr(admission, "owners", lambda _, pairs: [uid for _ in pairs])
    many = clients()
    many.connect(*addresses, times=2000)
    with pytest.raises(TooMany, match=r"user 1000 has 2000 .*\(connections_per_user = 2000\)"):
        many.connect(*addresses)
    uid = 1001
    many.connect(*addresses, times=2000)
    uid = None
    many.connect(*addresses, times=2000)
    with pytest.raises(TooMany, match="this host has 2000 "):
        many.connect(*addresses)


@pytest.mark.parametrize(
    ("descriptors", "connections", "rejected"),
    [
        (1024, [512, 128, 64], [64, 16, 8]),
        (20_000, [8192, 2500, 1250], [3058, 312, 156]),
        (65_536, [8192, 8192, 4096], [8192, 1024, 512]),
        (16, [8, 2, 1], [1, 1, 1]),
    ],
)
def test_listeners_have_shares_of_the_descriptors(
    monkeypatch: pytest.MonkeyPatch, descriptors: int, connections: list[int], rejected: list[int]
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (descriptors, descriptors))
    assert [most_connections(share) for share in Share] == connections
    assert [most_rejected(share) for share in Share] == rejected
    assert sum(connections) + sum(rejected) <= descriptors * 7 / 8


def test_no_client_exceeds_half_of_a_listener(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (128, 128))
    many = clients()
    many.connect("10.9.8.7", times=32)
    with pytest.raises(TooMany, match=r"10\.9\.8\.7 has 32 "):
        many.connect("10.9.8.7")
    many.connect("10.9.8.8", times=32)
    with pytest.raises(TooMany, match="the daemon has 64 connections"):
        many.connect("10.9.8.9")


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_user_of_a_connection_is_read_from_the_kernel(family: int) -> None:
    host = "::1" if family == socket.AF_INET6 else "127.0.0.1"
    with socket.socket(family) as listener:
        listener.bind((host, 0))
        listener.listen()
        client = socket.socket(family)
        client.connect(listener.getsockname())
        accepted, _ = listener.accept()
        with accepted:
            pair = accepted.getpeername(), accepted.getsockname()
            assert admission.owners(family, [pair]) == [os.getuid()]
            client.close()
            assert admission.owners(family, [pair]) == [None]


def test_answers_to_an_earlier_message_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, earlier = admission._kernel(), list[bytes]()

    class Late:
        """The kernel's socket, which still has the answers to the previous message."""

        def send(self, questions: bytes) -> int:
            self._stale = earlier[:]
            earlier.clear()
            return kernel.send(questions)

        def recv(self, size: int) -> bytes:
            if self._stale:
                return self._stale.pop(0)
            earlier.append(kernel.recv(size))
            return earlier[-1]

    late = Late()
    monkeypatch.setattr(admission, "_kernel", lambda: late)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        with client:
            pair = client.getsockname(), listener.getsockname()
            closed = ("127.0.0.1", 1), listener.getsockname()
            assert admission.owners(socket.AF_INET, [closed]) == [None]
            assert admission.owners(socket.AF_INET, [pair]) == [os.getuid()]
            assert admission.owners(socket.AF_INET, [closed, pair]) == [None, os.getuid()]


def test_few_messages_ask_for_the_users_of_many_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel, number, sent = admission._kernel(), 150, list[int]()

    class Counting:
        def send(self, questions: bytes) -> int:
            sent.append(len(questions))
            return kernel.send(questions)

        def recv(self, size: int) -> bytes:
            return kernel.recv(size)

    with ExitStack() as opened:
        listener = opened.enter_context(socket.create_server(("127.0.0.1", 0), backlog=200))
        pairs = []
        for index in range(number):
            client = opened.enter_context(socket.create_connection(listener.getsockname()))
            pairs.append((client.getsockname(), listener.getsockname()))
            if index % 3 == 0:
                client.close()
        monkeypatch.setattr(admission, "_kernel", Counting)
        found = admission.owners(socket.AF_INET, pairs)
    assert found == [None if index % 3 == 0 else os.getuid() for index in range(number)]
    assert len(sent) == 3


def test_address_of_this_end_is_read_if_the_socket_listens_at_all_addresses() -> None:
    with (
        socket.create_server(("0.0.0.0", 0)) as listener,  # noqa: S104  # as in a configuration
        socket.create_connection(("127.0.0.2", listener.getsockname()[1])) as theirs,
    ):
        listener.setblocking(False)
        (connected,), error = admission._accepted(listener)
        assert error is None
        assert connected.local == theirs.getpeername()
        assert connected.peer == theirs.getsockname()
        with connected.take() as ours:
            assert not ours.getblocking()
            assert Admission(Settings(), Share.PORT).clients([connected]) == [
                Client(f"user {os.getuid()}", is_single=False)
            ]


class Broken:
    """A socket for queries to the kernel. All its operations fail."""

    def __init__(self) -> None:
        self.is_open = True

    def send(self, _: bytes) -> int:
        raise OSError(errno.ENOBUFS, "no buffers")

    def close(self) -> None:
        self.is_open = False


def test_failed_query_closes_its_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    opened, at_exit = list[Broken](), list[Any]()

    def connect(*_: object) -> Broken:
        opened.append(Broken())
        return opened[-1]

    monkeypatch.setattr(admission.atexit, "register", at_exit.append)
    monkeypatch.setattr(admission.atexit, "unregister", at_exit.remove)
    admission._kernel.cache_clear()
    with monkeypatch.context() as patched:
        patched.setattr(socket, "socket", connect)
        for _ in range(3):
            pair = ("127.0.0.1", 1), ("127.0.0.1", 2)
            assert admission.owners(socket.AF_INET, [pair]) == [None]
    assert [item.is_open for item in opened] == [False] * 3
    assert not at_exit
