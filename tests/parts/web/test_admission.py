"""Too many connections, errors of accept, and heads that do not arrive."""

import errno
import os
import socket
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
import trio
import trio.testing

from daemon.acl import lockout
from daemon.acl.lockout import AT_ONCE
from daemon.config.settings import Settings
from daemon.web import admission
from daemon.web.admission import PAUSE, Acceptor, Address, Admission, Serve, Share
from daemon.web.fast_path import HEAD_TIMEOUT
from storage.records.base import MINUTE
from storage.store import Store
from tests.fakes.authority import Authority
from tests.parts.web.test_listeners import IS_ROOT, NOBODY, ask, home, serving

__all__ = ["home"]


# --- connections of one client ---


@contextmanager
def effective_user(uid: int) -> Iterator[None]:
    """Let the sockets that are created in this block belong to a user."""
    "localhost".encode("idna")  # import the codec as root
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)


async def connect(port: int) -> trio.SocketStream:
    return await trio.open_tcp_stream("127.0.0.1", port)


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], trio.Event]:
    """Return a function that returns an event for the end of this many more connections."""
    waiting = list[tuple[int, trio.Event]]()
    number = 0
    leave = Admission.disconnect

    def noted(self: Admission, client: str) -> None:
        nonlocal number
        leave(self, client)
        number += 1
        for most, event in waiting:
            if number >= most:
                event.set()

    def after(more: int) -> trio.Event:
        waiting.append((number + more, trio.Event()))
        return waiting[-1][1]

    monkeypatch.setattr(Admission, "disconnect", noted)
    return after


@pytest.mark.skipif(not IS_ROOT, reason="only root can be another user")
async def test_user_with_too_many_connections_blocks_no_other_user(
    store: Store,
    home: Path,
    left: Callable[[int], trio.Event],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admission, "_LINGER", 60.0)
    async with serving(store, data_dir=home, connections_per_user=50) as port:
        with effective_user(NOBODY):
            held = [await connect(port) for _ in range(80)]
            refused = await ask(await connect(port), "/all")
        served = await ask(await connect(port))
        at_the_socket = await ask(await trio.open_unix_socket(home / "steward.sock"), "/all")
        one_has_ended = left(3)  # the two answered requests may count
        for stream in held:
            await trio.aclose_forcefully(stream)
        with trio.fail_after(60):
            await one_has_ended.wait()
        with effective_user(NOBODY):
            again = await ask(await connect(port))
    assert refused.startswith("HTTP/1.1 429 ")
    assert (
        "user 65534 has 50 connections, which is its limit (connections_per_user = 50)" in refused
    )
    assert [served[:12], at_the_socket[:12], again[:12]] == ["HTTP/1.1 200"] * 3


@pytest.mark.skipif(not IS_ROOT, reason="only root can be another user")
async def test_wrong_tokens_of_one_user_lock_out_no_other_user(
    store: Store, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lockout, "REGAINED", MINUTE)
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
        refused = await ask(await trio.open_unix_socket(home / "tasks.sock"))
        served = await ask(await connect(port))
        for stream in held:
            await trio.aclose_forcefully(stream)
    assert refused.startswith("HTTP/1.1 429 ")
    assert served.startswith("HTTP/1.1 200 ")


# --- errors of accept ---


class Failing:
    """A listening socket that fails before it accepts a connection."""

    def __init__(self, number: int, times: int, connected: socket.socket) -> None:
        self._number, self._left, self._connected = number, times, connected
        self.family = connected.family

    def _accept(self) -> tuple[int, str]:
        self._left -= 1
        if self._left >= 0:
            raise OSError(self._number, os.strerror(self._number))
        if self._left == -1:
            return self._connected.detach(), ""
        raise BlockingIOError


def acceptor(listening: object, serve: Serve) -> Acceptor:
    limits = Admission(Settings(), Share.PORT)
    return Acceptor(cast("Any", listening), limits, serve, lambda stream: stream)


@pytest.mark.parametrize(
    "number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EIO, errno.EPERM]
)
async def test_accept_errors_are_logged_once_a_minute_without_stopping(
    autojump_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
) -> None:
    ours, theirs = socket.socketpair()
    served = trio.Event()

    async def serve(stream: object, client: str) -> None:
        served.set()

    async def readable(_: object) -> None:
        await trio.lowlevel.checkpoint()
        if served.is_set():
            await trio.sleep_forever()

    monkeypatch.setattr(trio.lowlevel, "wait_readable", readable)
    times = int(150 / PAUSE)
    began = trio.current_time()
    with theirs:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(acceptor(Failing(number, times, ours), serve).run, nursery)
            await served.wait()
            nursery.cancel_scope.cancel()
        assert theirs.recv(1) == b""  # the connection was closed when it was served
    assert trio.current_time() - began == pytest.approx(150)
    assert len(caplog.records) == 3
    assert all(os.strerror(number) in record.getMessage() for record in caplog.records)
    assert not any(record.exc_info for record in caplog.records)


# --- very many connections at once ---


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=1000) as found:
        found.setblocking(False)
        yield found


def connected_to(listening: socket.socket, number: int) -> list[socket.socket]:
    return [socket.create_connection(listening.getsockname()) for _ in range(number)]


class Queue:
    """A listening socket with connections that have arrived."""

    family = socket.AF_INET

    def __init__(self, listening: socket.socket, number: int) -> None:
        self.theirs, ours = list[socket.socket](), list[socket.socket]()
        self.getsockname = listening.getsockname
        listening.setblocking(True)
        for _ in range(number):
            self.theirs += connected_to(listening, 1)
            ours.append(listening.accept()[0])
        self.waiting = deque(ours)

    def _accept(self) -> tuple[int, tuple[str, int]]:
        if not self.waiting:
            raise BlockingIOError
        connected = self.waiting.popleft()
        address: tuple[str, int] = connected.getpeername()
        return connected.detach(), address

    def close(self) -> None:
        for item in (*self.theirs, *self.waiting):
            item.close()


@contextmanager
def queue(
    listening: socket.socket, number: int, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Queue]:
    found = Queue(listening, number)

    async def readable(_: object) -> None:
        await trio.lowlevel.checkpoint()
        if not found.waiting:
            await trio.sleep_forever()

    monkeypatch.setattr(trio.lowlevel, "wait_readable", readable)
    try:
        yield found
    finally:
        found.close()


async def test_connections_are_accepted_before_rejected_ones_are_closed(
    listening: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    with queue(listening, 301, monkeypatch) as waiting:
        *many, last = waiting.theirs
        users = {item.getsockname()[1]: 1 for item in waiting.theirs}
        users[last.getsockname()[1]] = 2
        served, closed_before = list[str](), list[int]()

        def owners(_: int, pairs: Sequence[tuple[Address, Address]]) -> list[int]:
            closed_before.extend([sum(is_closed(item) for item in many)] * len(pairs))
            return [users[theirs[1]] for theirs, _ in pairs]

        monkeypatch.setattr(admission, "owners", owners)
        monkeypatch.setattr(admission, "_BATCH", 50)
        monkeypatch.setattr(admission, "_SLICE", 10**12)
        monkeypatch.setattr(admission, "_MAX_LINGERING", 0)

        async def serve(stream: object, client: str) -> None:
            served.append(client)
            await trio.sleep_forever()

        limits = Admission(Settings(connections_per_user=3), Share.PORT)
        one = Acceptor(cast("Any", waiting), limits, serve, lambda stream: stream)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.run, nursery)
            await trio.testing.wait_all_tasks_blocked()
            assert sorted(served) == ["user 1"] * 3 + ["user 2"]
            assert closed_before == [0] * 301
            assert sum(is_closed(each) for each in many) == 297
            nursery.cancel_scope.cancel()


async def test_rejected_connections_are_closed_at_the_end(
    listening: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "owners", lambda _, pairs: [1] * len(pairs))
    monkeypatch.setattr(admission, "_MAX_LINGERING", 0)
    monkeypatch.setattr(admission, "_close", lambda rejected: None)  # no time to close them

    async def serve(stream: object, client: str) -> None:
        await trio.sleep_forever()

    with queue(listening, 5, monkeypatch) as waiting:
        limits = Admission(Settings(connections_per_user=1), Share.PORT)
        one = Acceptor(cast("Any", waiting), limits, serve, lambda stream: stream)
        async with trio.open_nursery() as nursery:
            accepting = trio.CancelScope()

            async def accept() -> None:
                with accepting:
                    await one.run(nursery)

            nursery.start_soon(accept)
            while waiting.waiting:
                await trio.lowlevel.checkpoint()
            assert [is_closed(theirs) for theirs in waiting.theirs] == [False] * 5
            accepting.cancel()
            await trio.testing.wait_all_tasks_blocked()
            assert [is_closed(theirs) for theirs in waiting.theirs] == [False] + [True] * 4
            nursery.cancel_scope.cancel()


def is_closed(theirs: socket.socket) -> bool:
    """Return whether the daemon has closed the other end without sending data."""
    try:
        return theirs.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False


@pytest.mark.parametrize(("explains", "number"), [(True, 5), (False, 0)])
async def test_few_rejected_clients_of_a_batch_get_a_reason(
    listening: socket.socket, monkeypatch: pytest.MonkeyPatch, explains: bool, number: int
) -> None:
    monkeypatch.setattr(admission, "owners", lambda _, pairs: [1] * len(pairs))
    monkeypatch.setattr(admission, "_SLICE", 10**12)
    monkeypatch.setattr(admission, "_MAX_LINGERING", 5)
    monkeypatch.setattr(admission, "_LINGER", float("inf"))

    async def serve(stream: object, client: str) -> None:
        await trio.sleep_forever()

    with queue(listening, 21, monkeypatch) as waiting:
        limits = Admission(Settings(connections_per_user=1), Share.PORT)
        one = Acceptor(
            cast("Any", waiting), limits, serve, lambda stream: stream, explains=explains
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.run, nursery)
            await trio.testing.wait_all_tasks_blocked()
            rejected = waiting.theirs[1:]
            assert sum(not is_closed(theirs) for theirs in rejected) == number
            answers = [theirs.recv(12) for theirs in rejected]
            nursery.cancel_scope.cancel()
    assert answers == [b"HTTP/1.1 429"] * number + [b""] * (20 - number)


async def test_a_client_with_many_new_connections_delays_no_other(
    listening: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "_BATCH", 200)
    with queue(listening, 200, monkeypatch) as waiting:
        last = waiting.theirs[-1].getsockname()

        def owners(_: int, pairs: Sequence[tuple[Address, Address]]) -> list[int]:
            return [2 if theirs == last else 1 for theirs, _ in pairs]

        monkeypatch.setattr(admission, "owners", owners)
        monkeypatch.setattr(admission, "_SLICE", 10**12)
        served = list[str]()

        async def serve(stream: object, client: str) -> None:
            served.append(client)
            await trio.sleep_forever()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(acceptor(waiting, serve).run, nursery)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
    assert len(served) == 200
    assert served.index("user 2") < admission._BEGIN


async def test_few_quickly_disconnecting_clients_get_a_reason_per_second(
    listening: socket.socket,
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: trio.testing.MockClock,
) -> None:
    monkeypatch.setattr(admission, "_MAX_LINGERING", 2)
    limits = Admission(Settings(), Share.PORT)
    explained = list[bool]()
    for _ in range(3):
        for _ in range(4):
            (theirs,) = connected_to(listening, 1)
            listening.setblocking(True)
            ours, _ = listening.accept()
            explained.append(limits.may_explain())
            with theirs, ours:
                theirs.shutdown(socket.SHUT_WR)
                ours.setblocking(False)
                if explained[-1]:
                    await limits.explain(ours, "too many")
        await trio.sleep(1)
    assert explained == [True, True, False, False] * 3


async def test_other_tasks_run_between_two_batches(
    listening: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = connected_to(listening, 10)
    monkeypatch.setattr(admission, "_BATCH", 3)
    accepted, rounds = list[int](), list[int]()

    async def serve(stream: object, client: str) -> None:
        accepted.append(1)
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(acceptor(listening, serve).run, nursery)
        while len(accepted) < 10:
            await trio.lowlevel.checkpoint()
            rounds.append(len(accepted))
        nursery.cancel_scope.cancel()
    assert max(after - before for before, after in pairwise(rounds)) <= 2 * 3
    for item in many:
        item.close()


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
async def test_slowly_sent_head_ends_its_connection(
    store: Store, home: Path, mock_clock: trio.testing.MockClock, lean: bool, asked: bool
) -> None:
    # A Unix socket, because bytes arrive there before `send_all` returns.
    async with (
        serving(store, data_dir=home, lean_door=lean),
        await trio.open_unix_socket(home / "steward.sock") as stream,
    ):
        if asked:
            await stream.send_all(b"GET /who HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 200 ")
            await trio.testing.wait_all_tasks_blocked(0.01)
            mock_clock.jump(60)
        await stream.send_all(BEGINNING)
        assert abs(await seconds_until_closed(stream, mock_clock) - HEAD_TIMEOUT) <= 1


@pytest.mark.parametrize("is_encrypted", [False, True])
async def test_silent_client_is_disconnected(
    store: Store,
    home: Path,
    mock_clock: trio.testing.MockClock,
    monkeypatch: pytest.MonkeyPatch,
    is_encrypted: bool,
) -> None:
    accepted = trio.Event()
    enter = Admission.enter

    def noted(self: Admission, connected: socket.socket) -> str:
        accepted.set()
        return enter(self, connected)

    monkeypatch.setattr(Admission, "enter", noted)
    certificate, key = Authority(home).certify("daemon")
    settings = {"tls_cert": certificate, "tls_key": key} if is_encrypted else {}
    async with serving(store, data_dir=home, **settings) as port, await connect(port) as stream:
        await accepted.wait()
        await trio.testing.wait_all_tasks_blocked(0.01)
        mock_clock.jump(HEAD_TIMEOUT + 1)
        assert await stream.receive_some() == b""


@pytest.mark.parametrize("is_encrypted", [False, True])
async def test_rejected_client_of_an_encrypted_port_receives_no_plain_text(
    store: Store, home: Path, is_encrypted: bool
) -> None:
    certificate, key = Authority(home).certify("daemon")
    settings = {"tls_cert": certificate, "tls_key": key} if is_encrypted else {}
    async with (
        serving(store, data_dir=home, connections_per_user=1, **settings) as port,
        await connect(port),
        await connect(port) as rejected,
    ):
        with trio.fail_after(60):
            assert await rejected.receive_some(8) == (b"" if is_encrypted else b"HTTP/1.1")
