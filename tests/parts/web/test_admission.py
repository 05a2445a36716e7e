"""Too many connections, errors of accept, and heads that do not come."""

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from daemon.acl.lockout import AT_ONCE
from daemon.web.admission import PAUSE, accept
from daemon.web.fast_path import HEAD_TIMEOUT
from storage.store import Store
from tests.fakes.authority import Authority
from tests.parts.web.test_listeners import IS_ROOT, NOBODY, ask, home, serving

__all__ = ["home"]


# --- connections of one client ---


@contextmanager
def effective_user(uid: int) -> Iterator[None]:
    """Let the sockets that are made in this block belong to a user."""
    "localhost".encode("idna")  # what a connection needs is imported by root
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)


async def connect(port: int) -> trio.SocketStream:
    return await trio.open_tcp_stream("127.0.0.1", port)


@pytest.mark.skipif(not IS_ROOT, reason="only root can be another user")
async def test_user_with_too_many_connections_shuts_out_no_other_user(
    store: Store, home: Path
) -> None:
    async with serving(store, data_dir=home, connections_per_user=50) as port:
        with effective_user(NOBODY):
            held = [await connect(port) for _ in range(80)]
            await trio.testing.wait_all_tasks_blocked(0.05)
            refused = await ask(await connect(port), "/all")
        served = await ask(await connect(port))
        at_the_socket = await ask(await trio.open_unix_socket(home / "steward.sock"), "/all")
        for stream in held:
            await trio.aclose_forcefully(stream)
        await trio.testing.wait_all_tasks_blocked(0.05)
        with effective_user(NOBODY):
            again = await ask(await connect(port))
    assert refused.startswith("HTTP/1.1 429 ")
    assert (
        "user 65534 has 50 connections, which is its limit (connections_per_user = 50)" in refused
    )
    assert [served[:12], at_the_socket[:12], again[:12]] == ["HTTP/1.1 200"] * 3


@pytest.mark.skipif(not IS_ROOT, reason="only root can be another user")
async def test_wrong_tokens_of_one_user_turn_away_no_other_user(store: Store, home: Path) -> None:
    async with serving(store, data_dir=home) as port:

        async def guess() -> str:
            return (await ask(await connect(port), X_Service_Token="unknown"))[:12]

        with effective_user(NOBODY):
            guesses = [await guess() for _ in range(AT_ONCE + 20)]
        other = await guess()
    assert guesses[0] == "HTTP/1.1 403"
    assert guesses[-1] == "HTTP/1.1 429"
    assert other == "HTTP/1.1 403"


async def test_tasks_take_no_connections_of_the_port(store: Store, home: Path) -> None:
    async with serving(store, data_dir=home, connections_per_user=2) as port:
        held = [await trio.open_unix_socket(home / "tasks.sock") for _ in range(2)]
        await trio.testing.wait_all_tasks_blocked(0.05)
        refused = await ask(await trio.open_unix_socket(home / "tasks.sock"))
        served = await ask(await connect(port))
        for stream in held:
            await trio.aclose_forcefully(stream)
    assert refused.startswith("HTTP/1.1 429 ")
    assert served.startswith("HTTP/1.1 200 ")


# --- errors of accept ---


class Failing(trio.abc.Listener[trio.SocketStream]):
    """A listener that fails before it accepts a connection."""

    def __init__(self, number: int, times: int, stream: trio.SocketStream) -> None:
        self._number, self.left, self._stream = number, times, stream

    async def accept(self) -> trio.SocketStream:
        if self.left > 0:
            self.left -= 1
            raise OSError(self._number, os.strerror(self._number))
        if self.left == 0:
            self.left = -1
            return self._stream
        await trio.sleep_forever()
        raise AssertionError

    async def aclose(self) -> None:
        raise NotImplementedError


@pytest.mark.parametrize(
    "number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EIO, errno.EPERM]
)
async def test_errors_of_accept_end_nothing_and_are_logged_once_a_minute(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    ours, theirs = socket.socketpair()
    served = trio.Event()

    async def serve(stream: object) -> None:
        served.set()

    times = int(150 / PAUSE)
    began = trio.current_time()
    with theirs:
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(accept, Failing(number, times, stream), serve, nursery)
            await served.wait()
            nursery.cancel_scope.cancel()
        assert theirs.recv(1) == b""  # the connection was closed when it was served
    assert trio.current_time() - began == pytest.approx(150)
    assert len(caplog.records) == 3
    assert all(os.strerror(number) in one.getMessage() for one in caplog.records)
    assert not any(one.exc_info for one in caplog.records)


# --- heads ---

BEGINNING = b"GET /who HTTP/1.1\r\nHost: localhost\r\nX: "


async def seconds_until_closed(stream: trio.SocketStream, clock: trio.testing.MockClock) -> int:
    """Send a byte each second, and return after how many seconds the connection was closed."""
    for second in range(200):
        await trio.testing.wait_all_tasks_blocked(0.01)
        with trio.move_on_after(0.5) as waiting:
            clock.autojump_threshold = 0.01
            try:
                if await stream.receive_some() == b"":
                    return second
            except trio.BrokenResourceError:
                return second
            finally:
                clock.autojump_threshold = float("inf")
        assert waiting.cancelled_caught
        clock.jump(0.5)
        try:
            await stream.send_all(b"y")
        except trio.BrokenResourceError:
            return second + 1
    raise AssertionError("the connection stays open")


@pytest.mark.parametrize("lean", [True, False])
@pytest.mark.parametrize("asked", [False, True], ids=["first", "later"])
async def test_head_that_drips_ends_its_connection(
    store: Store, home: Path, mock_clock: trio.testing.MockClock, lean: bool, asked: bool
) -> None:
    async with serving(store, data_dir=home, lean_door=lean) as port, await connect(port) as stream:
        if asked:
            await stream.send_all(b"GET /who HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 200 ")
            await trio.testing.wait_all_tasks_blocked(0.01)
            mock_clock.jump(60)
        await stream.send_all(BEGINNING)
        assert abs(await seconds_until_closed(stream, mock_clock) - HEAD_TIMEOUT) <= 1


@pytest.mark.parametrize("is_encrypted", [False, True])
async def test_client_that_says_nothing_ends_its_connection(
    store: Store, home: Path, mock_clock: trio.testing.MockClock, is_encrypted: bool
) -> None:
    certificate, key = Authority(home).certify("daemon")
    settings = {"tls_cert": certificate, "tls_key": key} if is_encrypted else {}
    async with serving(store, data_dir=home, **settings) as port, await connect(port) as stream:
        await trio.testing.wait_all_tasks_blocked(0.01)
        mock_clock.jump(HEAD_TIMEOUT + 1)
        with trio.fail_after(5):
            assert await stream.receive_some() == b""
