"""Lazy opening of the login methods, because most daemons have none."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING

import trio

from daemon.fences import Fences
from storage.queries import mounts
from storage.queries import tokens as stored_tokens
from storage.read_pool import ReadSnapshot
from storage.records.identity import Mount
from storage.store import Store

if TYPE_CHECKING:
    from daemon.identity.methods import LoginMethods


class LazyMethods:
    """Opens the login methods at their first use. `open_door` creates it."""

    def __init__(self) -> None:
        self.knocked, self._opened = trio.Event(), trio.Event()
        self._methods: list[LoginMethods] = []

    async def methods(self) -> "LoginMethods":
        """Return the login methods; open them if needed."""
        self.knocked.set()
        await self._opened.wait()
        return self._methods[0]

    def token_ages(self) -> dict[str, float]:
        """Return for each mount the seconds since the oldest of its access tokens was fetched."""
        return self._methods[0].credentials.ages() if self._methods else {}

    def forget(self, mount: Mount) -> None:
        """Drop the cloud data of a deleted mount."""
        for methods in self._methods:
            methods.forget(mount)

    def open(self, methods: "LoginMethods") -> None:
        """Open the login methods for requests."""
        self._methods[:] = [methods]  # others may have been opened before, and have failed
        self._opened.set()


@asynccontextmanager
async def open_door(
    store: Store,
    opening: Callable[[], AbstractAsyncContextManager["LoginMethods"]],
    fences: Fences,
) -> AsyncIterator[LazyMethods]:
    """Yield access to the login methods; open them immediately if they have work to do."""
    door = LazyMethods()

    async def attend() -> None:
        await door.knocked.wait()
        async with opening() as methods:
            door.open(methods)
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(fences.keep_running, "login methods", attend)
        if store.read(_have_work):
            await door.methods()
        yield door
        nursery.cancel_scope.cancel()


def _have_work(db: ReadSnapshot) -> bool:
    """Return whether there is a mount, or a deleted one with tokens to revoke."""
    return mounts.is_any(db) or bool(stored_tokens.issuers(db))
