"""The executable under a service manager: readiness, watchdog messages, a reload, and the end."""

import math
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from tests.service.daemon import open_steward
from tests.time_limits import HAPPENS_WITHIN


class Ears:
    """The messages to a service manager."""

    def __init__(self) -> None:
        # The channel has no limit, because the daemon drops messages when the socket is full.
        self._send, self._heard = trio.open_memory_channel[str](math.inf)

    async def listen(self, way: trio.socket.SocketType) -> None:
        while True:
            await self._send.send((await way.recv(4096)).decode())

    async def until(self, beginning: str) -> str:
        """Return the next message with this beginning."""
        with trio.fail_after(HAPPENS_WITHIN):
            while not (told := await self._heard.receive()).startswith(beginning):
                pass
            return told


@asynccontextmanager
async def open_ears(path: Path) -> AsyncIterator[Ears]:
    ears = Ears()
    with trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_DGRAM) as way:
        await way.bind(str(path))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ears.listen, way)
            yield ears
            nursery.cancel_scope.cancel()


async def test_service_manager_is_notified_of_start_watchdog_reload_and_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    monkeypatch.setenv("WATCHDOG_USEC", "1000000")
    async with open_ears(tmp_path / "notify") as ears:
        async with open_steward(tmp_path, "--dev", executed=True) as steward:
            assert steward.address in await ears.until("READY=1")
            await ears.until("WATCHDOG=1")
            await ears.until("WATCHDOG=1")
            os.kill(steward.pid, signal.SIGHUP)
            await ears.until("RELOADING=1")
            await ears.until("READY=1")
        await ears.until("STOPPING=1")
