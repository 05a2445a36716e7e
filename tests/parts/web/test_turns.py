"""Many requests of one client at the same time delay no other client."""

import socket
import struct
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from daemon.acl.check import KNOWN
from daemon.config.settings import Settings
from daemon.web import turns as turns_module
from daemon.web.reply import HandlerReply
from daemon.web.request import ReadRoute, Request
from daemon.web.server import open_web
from daemon.web.turns import SLICE, ConnectionTurns, Turns, resume, resume_after
from storage.read_pool import ReadSnapshot
from storage.store import Store
from storage.watch import TopicSet
from tests.listeners import open_listeners
from tests.parts.api.requests import parts_of
from tests.parts.web.test_admission import connect, left
from tests.step_timing import check_steps

__all__ = ["left"]
MANY = 400  # requests at the same time
# Nanoseconds of CPU time. Without turns, 400 requests take 60 ms on the fast path, and 300 ms in the
# HTTP server.
MOST = {"/light": 12_000_000, "/missing": 40_000_000}
_RESET = struct.pack("ii", 1, 0)  # a linger time of zero
WORK = SLICE // 2  # nanoseconds of CPU time of a request


def burn() -> None:
    until = time.thread_time_ns() + WORK
    while time.thread_time_ns() < until:
        pass


@asynccontextmanager
async def given_turns() -> AsyncIterator[tuple[Turns, trio.Nursery]]:
    turns = Turns()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(turns.run)
        await trio.testing.wait_all_tasks_blocked()
        yield turns, nursery
        nursery.cancel_scope.cancel()


# --- turns ---


async def test_clients_take_turns() -> None:
    served = list[str]()
    begun, ended = trio.Event(), trio.Event()

    async def request(turns: Turns, client: str) -> None:
        await turns.take(client)
        burn()
        served.append(client)
        if len(served) == 10:
            begun.set()
        if len(served) == MANY + 2:
            ended.set()

    async with given_turns() as (turns, nursery):
        for _ in range(MANY):
            nursery.start_soon(request, turns, "busy")
        await begun.wait()
        before = len(served)
        for client in ("one", "two"):
            nursery.start_soon(request, turns, client)
        await ended.wait()
    assert max(served.index("one"), served.index("two")) < before + 12


async def test_each_waiting_request_gets_a_turn() -> None:
    served = set[int]()
    ended = trio.Event()

    async def request(turns: Turns, number: int) -> None:
        await turns.take("one")
        burn()
        served.add(number)
        if len(served) == MANY:
            ended.set()

    async with given_turns() as (turns, nursery):
        await turns.take("one", later=2**62)  # the round has no time left
        for number in range(MANY):
            nursery.start_soon(request, turns, number)
        with trio.fail_after(30):
            await ended.wait()


async def test_cancelled_request_gives_up_its_turn() -> None:
    async with given_turns() as (turns, _):
        with trio.CancelScope() as scope:
            await turns.take("one", later=2**62)
            scope.cancel()
            await turns.take("one")
        assert scope.cancelled_caught
        with trio.fail_after(10):
            await turns.take("one")


async def test_request_is_served_while_other_work_uses_each_round() -> None:
    served = trio.Event()

    async def other_work() -> None:
        while not served.is_set():
            burn()
            burn()
            burn()
            await trio.lowlevel.checkpoint()

    async with given_turns() as (turns, nursery):
        for _ in range(3):
            nursery.start_soon(other_work)
        with trio.fail_after(10):
            for _ in range(20):
                await turns.take("one")
        served.set()


async def test_change_during_a_cancellation_is_ignored() -> None:
    async with given_turns() as (turns, nursery):
        watch, scope = TopicSet().watch(["a"]), trio.CancelScope()

        async def wait() -> None:
            with scope:
                await turns.take_after("one", watch)

        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        scope.cancel()
        watch.wake()  # before the task runs
        await trio.testing.wait_all_tasks_blocked()
        assert scope.cancelled_caught
        with trio.fail_after(10):
            await turns.take("one")


@pytest.mark.parametrize("has_changed", [None, True, False])
async def test_continued_request_waits_for_its_turn(has_changed: bool | None) -> None:
    """`has_changed` is None for a request that waits for no change."""
    turns, change, served = Turns(), TopicSet().watch(["a"]), trio.Event()

    async def continued() -> None:
        ConnectionTurns(turns, "one").use()
        await (resume() if has_changed is None else resume_after(change))
        served.set()

    async with trio.open_nursery() as nursery:
        if has_changed:
            change.wake()
        nursery.start_soon(continued)
        await trio.testing.wait_all_tasks_blocked()
        if has_changed is False:
            change.wake()
            await trio.testing.wait_all_tasks_blocked()
        assert not served.is_set()  # no task gives turns yet
        nursery.start_soon(turns.run)
        with trio.fail_after(10):
            await served.wait()
        nursery.cancel_scope.cancel()


async def test_task_that_was_woken_too_late_waits_before_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turns, served = Turns(), list[int]()

    async def request(number: int) -> None:
        await turns.take("one")
        served.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(request, number)
            await trio.testing.wait_all_tasks_blocked()
        with monkeypatch.context() as unsure:
            unsure.setattr(turns_module, "_SURE", 0)
            unsure.setattr(turns_module, "_WOKEN", 1)
            turns._give()  # the round has no time left
            await trio.testing.wait_all_tasks_blocked()
        assert served == []
        monkeypatch.setattr(turns_module, "_WOKEN", 1)
        for _ in range(3):
            turns._give()
            await trio.testing.wait_all_tasks_blocked()
    assert served == [0, 1, 2]


async def test_request_needs_no_turn_while_the_round_has_time() -> None:
    turns = Turns()  # no task gives turns
    turns._round.until = time.thread_time_ns() + 3600 * 1_000_000_000
    with trio.fail_after(10):
        await turns.take("one")


async def test_task_without_a_connection_needs_no_turn() -> None:
    change = TopicSet().watch(["a"])
    change.wake()
    with trio.fail_after(10):
        await resume()
        await resume_after(change)


# --- the daemon ---


class _LongestRound(trio.abc.Instrument):
    """The longest time between two looks for input, as CPU time of the loop in nanoseconds."""

    def __init__(self) -> None:
        self.longest, self._begun = 0, time.thread_time_ns()

    def after_io_wait(self, _timeout: float) -> None:
        self._begun = time.thread_time_ns()

    def before_io_wait(self, _timeout: float) -> None:
        self.longest = max(self.longest, time.thread_time_ns() - self._begun)


def light(request: Request, db: ReadSnapshot) -> HandlerReply:
    return HandlerReply(body={})


@asynccontextmanager
async def serving(store: Store, home: Path, *routes: ReadRoute) -> AsyncIterator[int]:
    config = Settings(port=0, data_dir=home, client_cpu_percent=0)
    with open_listeners(config) as listeners:
        async with open_web(parts_of(store, config, asks=False), routes, (), listeners.places):
            yield listeners.port


@contextmanager
def connected(port: int) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        yield [
            stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(MANY)
        ]


async def received(connections: Iterable[socket.socket]) -> int:
    """Return the longest round in which each connection receives data."""
    measure = _LongestRound()
    await trio.lowlevel.checkpoint()  # the round of this test's own work ends
    trio.lowlevel.add_instrument(measure)
    for connection in connections:
        await trio.lowlevel.wait_readable(connection)
        assert connection.recv(64 * 1024).startswith(b"HTTP/1.1 ")
    trio.lowlevel.remove_instrument(measure)
    return measure.longest


@pytest.mark.parametrize("path", MOST)
async def test_many_requests_at_the_same_time_leave_time_for_others(
    store: Store, tmp_path: Path, path: str
) -> None:
    async with serving(store, tmp_path, ReadRoute("/light", light, KNOWN)) as port:
        with connected(port) as connections:
            await trio.testing.wait_all_tasks_blocked()

            async def answered() -> int:
                for connection in connections:
                    connection.send(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
                return await received(connections)

            await answered()  # modules are imported
            await check_steps(answered, MOST[path], 3, path)


async def test_change_that_many_requests_wait_for_leaves_time_for_others(
    store: Store, tmp_path: Path
) -> None:
    index = 1

    def shown(request: Request, db: ReadSnapshot) -> HandlerReply:
        return HandlerReply(body={}, index=index)

    route = ReadRoute("/shown", shown, KNOWN, watch=("shown/",))
    async with serving(store, tmp_path, route) as port:
        with connected(port) as connections:

            async def answered() -> int:
                nonlocal index
                for connection in connections:
                    connection.send(
                        f"GET /shown?index={index} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
                    )
                await trio.testing.wait_all_tasks_blocked()
                index += 1
                store._topics.publish(["shown/1"])
                return await received(connections)

            await answered()  # modules are imported
            await check_steps(answered, MOST["/light"], 3, "/shown")


@pytest.mark.parametrize("path", [*MOST, "/shown?index=1"])
async def test_many_disconnects_at_the_same_time_leave_time_for_others(
    store: Store, tmp_path: Path, left: Callable[[int], trio.Event], path: str
) -> None:
    def shown(request: Request, db: ReadSnapshot) -> HandlerReply:
        return HandlerReply(body={}, index=1)

    routes = [
        ReadRoute("/light", light, KNOWN),
        ReadRoute("/shown", shown, KNOWN, watch=("shown/",)),
    ]
    async with serving(store, tmp_path, *routes) as port:

        async def closed() -> int:
            with connected(port) as connections:
                for connection in connections:
                    connection.send(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
                if "?" in path:
                    await trio.testing.wait_all_tasks_blocked()
                else:
                    await received(connections)
                ended = left(MANY)
            measure = _LongestRound()
            await trio.lowlevel.checkpoint()  # the round of this test's own work ends
            trio.lowlevel.add_instrument(measure)
            await ended.wait()
            trio.lowlevel.remove_instrument(measure)
            return measure.longest

        await closed()  # modules are imported
        await check_steps(closed, MOST["/light"], 3, path)


async def test_requests_that_a_disconnected_client_sent_in_advance_are_dropped(
    store: Store, tmp_path: Path, left: Callable[[int], trio.Event]
) -> None:
    served = 0

    def leave(request: Request, db: ReadSnapshot) -> HandlerReply:
        nonlocal served
        served += 1
        if served == 1:
            stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            stream.socket.close()
        return HandlerReply(body={})

    async with serving(store, tmp_path, ReadRoute("/leave", leave, KNOWN)) as port:
        ended = left(1)
        stream = await connect(port)
        await stream.send_all(b"GET /leave HTTP/1.1\r\nHost: localhost\r\n\r\n" * 200)
        with trio.fail_after(20):
            await ended.wait()
    assert served <= 3
