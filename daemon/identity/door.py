"""The way to the login methods. They are opened when there is one: most daemons never have one."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING

import trio

from storage.queries import mounts
from storage.queries import tokens as stored_tokens
from storage.readers import Snapshot
from storage.records.identity import Mount
from storage.store import Store

if TYPE_CHECKING:
    from daemon.identity.methods import Methods


class Door:
    """Opens the login methods when they are first asked for. Made by `open_door`."""

    def __init__(self) -> None:
        self.knocked, self._opened = trio.Event(), trio.Event()
        self._methods: list[Methods] = []

    async def methods(self) -> "Methods":
        """Return the login methods, opened if need be."""
        self.knocked.set()
        await self._opened.wait()
        return self._methods[0]

    def token_ages(self) -> dict[str, float]:
        """Return for each mount the seconds since the oldest of its access tokens was fetched."""
        return self._methods[0].credentials.ages() if self._methods else {}

    def forget(self, mount: Mount) -> None:
        """Let go of what the cloud gave a mount that is gone."""
        for methods in self._methods:
            methods.forget(mount)

    def open(self, methods: "Methods") -> None:
        """Let everybody in."""
        self._methods.append(methods)
        self._opened.set()


@asynccontextmanager
async def open_door(
    store: Store, opening: Callable[[], AbstractAsyncContextManager["Methods"]]
) -> AsyncIterator[Door]:
    """Give the way to the login methods, which `opening` opens: at once if they have work to do."""
    door = Door()

    async def attend() -> None:
        await door.knocked.wait()
        async with opening() as methods:
            door.open(methods)
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(attend)
        if store.read(_have_work):
            await door.methods()
        yield door
        nursery.cancel_scope.cancel()


def _have_work(db: Snapshot) -> bool:
    """Tell whether there is a mount, or one that is gone has issued tokens, which may have to end."""
    return bool(mounts.every(db) or stored_tokens.issuers(db))
