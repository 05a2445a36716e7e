"""Messages to the service manager, and detection of a part that hangs."""

import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

from daemon.config.settings import Settings
from daemon.process.health import check_health
from daemon.process.systemd import ServiceManager, inherited_sockets, run_watchdog
from storage.read_pool import ReadSnapshot
from storage.store import Store
from tests.listeners import open_listeners
from tests.time_limits import HAPPENS_WITHIN


@pytest.fixture
def ears(tmp_path: Path) -> Iterator[socket.socket]:
    """A socket that receives the messages to the service manager."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
        one.bind(str(tmp_path / "notify"))
        one.setblocking(False)
        yield one


def heard(ears: socket.socket) -> list[str]:
    found = []
    try:
        while True:
            found.append(ears.recv(4096).decode())
    except BlockingIOError:
        return found


def manager(tmp_path: Path, **more: str) -> ServiceManager:
    return ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "notify"), **more})


def test_states_of_the_daemon_are_reported_to_systemd(ears: socket.socket, tmp_path: Path) -> None:
    service_manager = manager(tmp_path)
    service_manager.ready("answers at http://x")
    service_manager.reloading()
    service_manager.stopping()
    ready, reloading, stopping = heard(ears)
    assert ready == "READY=1\nSTATUS=answers at http://x"
    assert reloading.startswith("RELOADING=1\nMONOTONIC_USEC=")
    assert stopping.startswith("STOPPING=1\n")


def test_abstract_socket_name_is_accepted() -> None:
    name = f"steward-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ears:
        ears.bind(f"\0{name}")
        ears.setblocking(False)
        ServiceManager({"NOTIFY_SOCKET": f"@{name}"}).send_watchdog()
        assert heard(ears) == ["WATCHDOG=1"]


def test_without_systemd_no_state_is_reported(tmp_path: Path) -> None:
    ServiceManager({}).ready("fine")
    manager(tmp_path).ready("its socket is gone")


@pytest.mark.parametrize(
    ("environment", "patience"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 30),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 30),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
    ],
)
def test_watchdog_interval_is_read(environment: dict[str, str], patience: float | None) -> None:
    assert ServiceManager(environment).patience == patience


async def test_watchdog_signals_follow_health_checks_and_stop_after_a_hang(
    ears: socket.socket, tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    told, examined = manager(tmp_path, WATCHDOG_USEC="30000000"), 0

    async def hang_the_third_time() -> None:
        nonlocal examined
        examined += 1
        if examined == 3:
            await trio.sleep_forever()

    with trio.move_on_after(300):
        await run_watchdog(told, hang_the_third_time)
    assert heard(ears) == ["WATCHDOG=1"] * 2


async def test_without_a_watchdog_no_check_runs(tmp_path: Path) -> None:
    async def never() -> None:
        raise AssertionError

    await run_watchdog(manager(tmp_path), never)


async def answering(tmp_path: Path, nursery: trio.Nursery) -> Path:
    """Open a socket that answers any request, like that of the daemon."""
    path = tmp_path / "tasks.sock"
    listener = trio.socket.socket(trio.socket.AF_UNIX)
    await listener.bind(str(path))
    listener.listen()

    async def answer(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some()
            await stream.send_all(b"HTTP/1.1 200 \r\n\r\n")

    nursery.start_soon(trio.serve_listeners, answer, [trio.SocketListener(listener)])
    return path


async def test_working_parts_pass_the_check(store: Store, tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        await check_health(store, await answering(tmp_path, nursery))
        nursery.cancel_scope.cancel()


async def test_watchdog_check_of_a_closed_port_does_not_hang(store: Store, tmp_path: Path) -> None:
    await check_health(store, tmp_path / "nobody listens here")


async def hangs(store: Store, listening: Path) -> bool:
    """Return whether a health check waits forever."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(check_health, store, listening)
        await trio.testing.wait_all_tasks_blocked(0.2)
        waits = bool(nursery.child_tasks)
        nursery.cancel_scope.cancel()
    return waits


async def test_unresponsive_listeners_are_detected(store: Store, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(tmp_path / "mute"))
        mute.listen()
        assert await hangs(store, tmp_path / "mute")


async def test_unresponsive_writer_is_detected(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(work: object, **_: object) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(store._writer, "submit", hang)
    assert await hangs(store, tmp_path / "nobody listens here")


# ---- a socket that the manager holds -------------------------------------------------------------


def given(held: socket.socket, **more: str) -> list[socket.socket]:
    """Return the inherited sockets if this socket is the first of them."""
    environment = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1", **more}
    return inherited_sockets(environment, first=os.dup(held.fileno()))


def test_inherited_sockets_are_used_and_not_passed_on() -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        (one,) = given(held)
        with one:
            assert one.getsockname() == held.getsockname()
            assert not one.get_inheritable()


@pytest.mark.parametrize("other", [{"LISTEN_PID": "1"}, {"LISTEN_FDS": ""}, {"LISTEN_FDS": "-1"}])
def test_sockets_of_other_processes_are_not_used(other: dict[str, str]) -> None:
    assert (
        inherited_sockets({"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1", **other}, first=900)
        == []
    )


async def test_clients_wait_at_an_inherited_socket_for_the_next_daemon(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        config = Settings(data_dir=tmp_path, port=port, socket="none")
        with open_listeners(config, given(held)) as listeners:
            assert listeners.port == port
        with socket.create_connection(("127.0.0.1", port)) as early:  # between two daemons
            with open_listeners(config, given(held)) as listeners:
                await trio.lowlevel.wait_readable(listeners.places[0].listener)
                connected, _ = listeners.places[0].listener.accept()
                with connected:
                    connected.sendall(b"here")
            assert early.recv(4) == b"here"


async def test_inherited_socket_with_another_address_gets_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        config = Settings(data_dir=tmp_path, port=0, socket="none")
        with open_listeners(config, given(held)) as listeners:
            assert listeners.port != held.getsockname()[1]
    assert "ignored the passed socket" in caplog.text


async def test_busy_readers_are_not_treated_as_unresponsive(store: Store, tmp_path: Path) -> None:
    first, others = threading.Event(), threading.Event()

    def waiting(event: threading.Event) -> Callable[[ReadSnapshot], bool]:
        return lambda _: event.wait(HAPPENS_WITHIN)

    examined = trio.Event()

    async def examining() -> None:
        await check_health(store, tmp_path / "nobody listens here")
        examined.set()

    async with trio.open_nursery() as nursery:
        for event in (first, others, others, others):
            nursery.start_soon(store.read_long, waiting(event))
            await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(examining)
        await trio.testing.wait_all_tasks_blocked()
        assert not examined.is_set()
        first.set()  # one read ends; others are running, and this one is still queued
        with trio.fail_after(HAPPENS_WITHIN):
            await examined.wait()
        assert not others.is_set()
        others.set()
