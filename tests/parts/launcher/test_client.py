"""The launcher's client: concurrent requests, cancelled callers, and a launcher that ends."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from daemon.launcher.channel import Refusal, pair, receive, send
from daemon.launcher.client import (
    _PLACES_OF_CLIENTS,
    Impatience,
    Launcher,
    LauncherGone,
    send_hello,
)
from daemon.launcher.messages import (
    MOST_OPEN,
    EndedAttempt,
    FinishAttempt,
    ListClaims,
    NumberedReply,
    NumberedRequest,
    OperationFailed,
    ProcessStarted,
    RemoveVolume,
    StartTask,
    TaskCommand,
)
from tests import launchers
from tests.parts.launcher.conftest import ALLOCATION, Place, ordered

START = StartTask(allocation=ALLOCATION, task="main", attempt=0, group="-", is_logged=True)
FINISH = FinishAttempt(allocation=ALLOCATION, task="main", attempt=0)
ENDED = EndedAttempt(claim=b"", at=0, status=0)
TRUE = ordered("/bin/true")


@pytest.fixture
def files() -> Iterator[tuple[int, ...]]:
    """Yield the descriptors of three different files."""
    opened = tuple(os.memfd_create(name) for name in "abc")
    yield opened
    for item in opened:
        os.close(item)


async def begun(launcher: Launcher, order: TaskCommand = TRUE) -> tuple[int, int]:
    """Start an attempt; return its process ID and a descriptor of its process."""
    found = await launcher.start(START, order)
    assert found is not None
    return found


class Fake:
    """The other end of a channel, controlled by the test."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel

    async def question(self) -> NumberedRequest:
        await trio.lowlevel.wait_readable(self.channel)
        data, descriptors = receive(self.channel)
        for descriptor in descriptors:
            os.close(descriptor)
        return msgspec.msgpack.decode(data, type=NumberedRequest)

    def answer(self, number: int, body: Any, *descriptors: int) -> None:
        reply = NumberedReply(number=number, descriptors=len(descriptors), body=body)
        send(self.channel, msgspec.msgpack.encode(reply), descriptors)


@contextmanager
def faked() -> Iterator[tuple[Launcher, Fake]]:
    ours, theirs = pair()
    with ours, theirs:
        yield Launcher(ours), Fake(theirs)


def open_descriptors() -> list[str]:
    return sorted(os.listdir("/proc/self/fd"))


async def test_start_returns_a_descriptor_that_signals_the_exit(
    tmp_path: Path, place: Place
) -> None:
    async with launchers.open_launcher(tmp_path) as launcher:
        words = ("/bin/sh", "-c", 'echo "$1 $ONE"', "sh", "\udcff")
        pid, watched = await begun(launcher, ordered(*words, env={b"ONE": b"\xfe"}))
        await trio.lowlevel.wait_readable(watched)
        os.close(watched)
    assert pid > 1
    assert place.out.read_bytes() == b"\xff \xfe\n"


@pytest.mark.parametrize(
    ("words", "error", "text"),
    [
        (["/none/such"], Refusal, "could not be found"),
        (["/bin/echo", "x" * 5_000_000], OSError, "Argument list too long"),
        (["/bin/echo", "a\0b"], ValueError, "null byte"),
    ],
)
async def test_refusal_is_raised(
    tmp_path: Path, place: Place, words: list[str], error: type[Exception], text: str
) -> None:
    async with launchers.open_launcher(tmp_path) as launcher:
        before = open_descriptors()
        with pytest.raises(error, match=text):
            await launcher.start(START, ordered(*words))
        assert open_descriptors() == before


async def test_responses_are_accepted_in_any_order(files: tuple[int, ...]) -> None:
    found: list[tuple[int, int]] = []
    with faked() as (launcher, fake):

        async def start() -> None:
            pid, watched = await begun(launcher)
            found.append((pid, os.fstat(watched).st_ino))
            os.close(watched)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(launcher.run, trio.CancelScope())
            nursery.start_soon(start)
            nursery.start_soon(start)
            numbers = [(await fake.question()).number for _ in range(2)]
            for number in reversed(numbers):
                fake.answer(number, ProcessStarted(pid=number + 100), files[number])
            while len(found) < 2:
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
    inodes = [os.fstat(files[number]).st_ino for number in numbers]
    assert sorted(found) == [
        (number + 100, inode) for number, inode in sorted(zip(numbers, inodes, strict=True))
    ]


async def test_late_response_to_a_cancelled_caller_leaks_no_descriptor(
    files: tuple[int, ...], tmp_path: Path
) -> None:
    with faked() as (launcher, fake):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(launcher.run, trio.CancelScope())
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as callers:
                    callers.start_soon(launcher.finish, FINISH)
                    number = (await fake.question()).number
                    before = open_descriptors()
                    scope.cancel()
            fake.answer(number, ENDED, *files)
            await trio.testing.wait_all_tasks_blocked()
            assert open_descriptors() == before
            nursery.cancel_scope.cancel()


async def test_start_completes_when_its_caller_is_cancelled(
    files: tuple[int, ...],
) -> None:
    with faked() as (launcher, fake):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(launcher.run, trio.CancelScope())
            with trio.CancelScope() as scope:
                scope.cancel()
                nursery.start_soon(_answer_once, fake, files[0])
                pid, watched = await begun(launcher)
            os.close(watched)
            assert pid == 7
            nursery.cancel_scope.cancel()


async def _answer_once(fake: Fake, descriptor: int) -> None:
    fake.answer((await fake.question()).number, ProcessStarted(pid=7), descriptor)


async def test_open_requests_do_not_exceed_the_protocol_limit(tmp_path: Path) -> None:
    with faked() as (launcher, fake):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(launcher.run, trio.CancelScope())
            for _ in range(MOST_OPEN + 5):
                nursery.start_soon(launcher.finish, FINISH)
                nursery.start_soon(_finish_for_a_client, launcher)
            numbers = [(await fake.question()).number for _ in range(MOST_OPEN)]
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(BlockingIOError):
                fake.channel.recv(1, socket.MSG_DONTWAIT)
            fake.answer(numbers[3], ENDED)
            assert (await fake.question()).number not in numbers
            nursery.cancel_scope.cancel()


async def _finish_for_a_client(launcher: Launcher) -> None:
    with Impatience():
        await launcher.finish(FINISH)


class Steps(trio.abc.Instrument):
    """Counts how often Trio runs a task, which is selected by the name of its function."""

    def __init__(self, name: str) -> None:
        self._name, self.count = name, 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += task.name.endswith(self._name)


async def test_request_with_a_free_place_waits_only_for_its_answer(tmp_path: Path) -> None:
    steps = Steps("Launcher.finish")
    with faked() as (launcher, fake):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(launcher.run, trio.CancelScope())
            trio.lowlevel.add_instrument(steps)
            async with trio.open_nursery() as callers:
                callers.start_soon(launcher.finish, FINISH)
                fake.answer((await fake.question()).number, ENDED)
            trio.lowlevel.remove_instrument(steps)
            nursery.cancel_scope.cancel()
    assert steps.count == 2  # the request, and its answer


async def test_cancelled_caller_sends_no_request(tmp_path: Path) -> None:
    with faked() as (launcher, fake):
        with trio.CancelScope() as scope:
            scope.cancel()
            await launcher.finish(FINISH)
        with pytest.raises(BlockingIOError):
            fake.channel.recv(1, socket.MSG_DONTWAIT)


async def test_client_does_not_wait_for_a_thousand_starts(tmp_path: Path) -> None:
    with faked() as (launcher, fake):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(launcher.run, trio.CancelScope())
            for _ in range(1000):
                nursery.start_soon(launcher.finish, FINISH)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(launcher.claims, ListClaims(allocation=ALLOCATION))
            with Impatience():
                nursery.start_soon(launcher.claims, ListClaims(allocation=ALLOCATION))
            await trio.testing.wait_all_tasks_blocked()
            sent = [(await fake.question()).body for _ in range(MOST_OPEN - _PLACES_OF_CLIENTS + 1)]
            assert [body for body in sent if isinstance(body, ListClaims)] == [sent[-1]]
            nursery.cancel_scope.cancel()


async def test_slow_requests_of_clients_leave_the_places_of_short_ones(tmp_path: Path) -> None:
    with faked() as (launcher, fake):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(launcher.run, trio.CancelScope())
            with Impatience():
                for _ in range(_PLACES_OF_CLIENTS):
                    nursery.start_soon(launcher._request, RemoveVolume(volume=ALLOCATION))
                nursery.start_soon(launcher._ping)
            sent = [(await fake.question()).body for _ in range(_PLACES_OF_CLIENTS + 1)]
            assert any(isinstance(body, ListClaims) for body in sent)
            nursery.cancel_scope.cancel()


async def test_end_of_the_launcher_passes_through_exception_handlers(tmp_path: Path) -> None:
    contained: list[Exception] = []
    with faked() as (launcher, fake):

        async def ask() -> None:
            try:
                await launcher.finish(FINISH)
            except Exception as error:
                contained.append(error)

        with pytest.RaisesGroup(LauncherGone, LauncherGone):  # of the reader and of the caller
            async with trio.open_nursery() as nursery:
                nursery.start_soon(launcher.run, trio.CancelScope())
                nursery.start_soon(ask)
                await fake.question()
                fake.channel.close()
    assert contained == []


def test_greeting_of_an_ended_launcher_passes_through_exception_handlers(tmp_path: Path) -> None:
    ours, theirs = pair()
    theirs.close()
    with ours, pytest.raises(LauncherGone):
        send_hello(ours, tmp_path, launchers.EVERYTHING)


def test_greeting_without_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with launchers.begin() as channel, pytest.raises(FileExistsError):
        send_hello(channel, tmp_path / "file", launchers.EVERYTHING)


@pytest.mark.parametrize("allocation", [f"{ALLOCATION}.removed", "..", ""])
async def test_malformed_request_is_refused_without_stopping_the_launcher(
    tmp_path: Path, place: Place, allocation: str
) -> None:
    async with launchers.open_launcher(tmp_path) as launcher:
        for _ in range(MOST_OPEN + 1):  # no descriptor stays open
            with pytest.raises(ValueError, match="Expected"):
                await launcher.finish(FinishAttempt(allocation=allocation, task="main", attempt=0))
        _, watched = await begun(launcher)
        os.close(watched)


async def test_system_error_has_its_number(tmp_path: Path) -> None:
    with faked() as (launcher, fake):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(launcher.run, trio.CancelScope())
            nursery.start_soon(_refuse_once, fake)
            with pytest.raises(PermissionError):
                await launcher.finish(FINISH)
            nursery.cancel_scope.cancel()


async def _refuse_once(fake: Fake) -> None:
    fake.answer((await fake.question()).number, OperationFailed(number=1, text="no"))


async def test_responses_are_read_until_the_last_start_of_a_cancelled_daemon(
    tmp_path: Path, place: Place
) -> None:
    with trio.CancelScope() as scope:
        async with launchers.open_launcher(tmp_path) as launcher:
            scope.cancel()
            _, watched = await begun(launcher)
            os.close(watched)
