"""Clients that disconnect during their response."""

import socket
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import pytest
import trio
import trio.testing

from daemon.web.send import DisconnectWatcher


@pytest.fixture
async def departures() -> AsyncIterator[DisconnectWatcher]:
    async with trio.open_nursery() as nursery:
        looked_at = DisconnectWatcher()
        nursery.start_soon(looked_at.run)
        yield looked_at
        nursery.cancel_scope.cancel()


@contextmanager
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Yield the daemon's end of a connection, and its client's."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as theirs,
        server.accept()[0] as ours,
    ):
        yield ours, theirs


@pytest.mark.parametrize("unread", [0, 1])
async def test_reset_cancels_the_request(departures: DisconnectWatcher, unread: int) -> None:
    with pair() as (ours, theirs):
        ours.send(b"x" * unread)  # closing with unread data resets the connection
        scope = trio.CancelScope()
        with trio.fail_after(5), scope, departures.cancelling(ours.fileno(), scope):
            theirs.close()
            await trio.sleep_forever()
        assert scope.cancelled_caught


async def test_many_tasks_are_distinguished(departures: DisconnectWatcher) -> None:
    with pair() as (ours, theirs), pair() as (others, _):
        scopes = [trio.CancelScope(), trio.CancelScope()]
        with (
            departures.cancelling(ours.fileno(), scopes[0]),
            departures.cancelling(others.fileno(), scopes[1]),
        ):
            theirs.shutdown(socket.SHUT_WR)
            await trio.testing.wait_all_tasks_blocked()
            assert [scope.cancel_called for scope in scopes] == [True, False]


async def test_client_that_sent_more_data_is_still_connected(departures: DisconnectWatcher) -> None:
    with pair() as (ours, theirs):
        scope = trio.CancelScope()
        with departures.cancelling(ours.fileno(), scope):
            theirs.send(b"more")
            theirs.shutdown(socket.SHUT_WR)
            await trio.testing.wait_all_tasks_blocked()
        assert not scope.cancel_called


async def test_reset_cancels_the_request_despite_unread_data(departures: DisconnectWatcher) -> None:
    with pair() as (ours, theirs):
        theirs.send(b"more")
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        scope = trio.CancelScope()
        with departures.cancelling(ours.fileno(), scope):
            theirs.close()
            await trio.testing.wait_all_tasks_blocked()
        assert scope.cancel_called


async def test_connection_closed_by_other_code_is_removed(
    departures: DisconnectWatcher,
) -> None:
    with pair() as (ours, theirs), ours.dup():  # the kernel still reports the duplicate
        scope = trio.CancelScope()
        with departures.cancelling(ours.fileno(), scope):
            ours.close()
            theirs.shutdown(socket.SHUT_WR)
            await trio.testing.wait_all_tasks_blocked()
        assert scope.cancel_called
        theirs.close()
        await trio.testing.wait_all_tasks_blocked()


async def test_late_end_has_no_effect(departures: DisconnectWatcher) -> None:
    with pair() as (ours, theirs):
        scope, next_one = trio.CancelScope(), trio.CancelScope()
        with departures.cancelling(ours.fileno(), scope):
            pass
        theirs.close()
        await trio.testing.wait_all_tasks_blocked()
        assert not scope.cancel_called
        with trio.fail_after(5), next_one, departures.cancelling(ours.fileno(), next_one):
            await trio.sleep_forever()
        assert next_one.cancelled_caught


async def test_connection_can_be_closed_in_between(departures: DisconnectWatcher) -> None:
    with pair() as (ours, _), departures.cancelling(ours.fileno(), trio.CancelScope()):
        ours.close()
