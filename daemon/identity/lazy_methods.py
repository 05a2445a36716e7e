"""Lazy opening of the login methods, because most daemons have none."""

import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

import trio

from daemon.fences import LOOP, Fences
from storage.errors import Unavailable
from storage.queries import mounts
from storage.queries import tokens as stored_tokens
from storage.read_pool import ReadSnapshot
from storage.store import Store

if TYPE_CHECKING:
    from daemon.identity.methods import LoginMethods


OPENS_WITHIN = 5.0  # seconds; a fence repeats a failed attempt after 1 s
_NAME = "login methods"

_log = logging.getLogger("steward.identity")


class LazyMethods:
    """Opens the login methods at their first use. Made by `open_door`."""

    def __init__(self, fences: Fences) -> None:
        self._fences = fences
        self.knocked, self._opened = trio.Event(), trio.Event()
        self._methods: list[LoginMethods] = []

    async def methods(self) -> "LoginMethods":
        """Return the login methods; open them if needed.

        Raises `Unavailable` if they are not open after `OPENS_WITHIN`.
        """
        self.knocked.set()
        with trio.move_on_after(OPENS_WITHIN):
            await self._opened.wait()
        if not self._methods:
            raise Unavailable(f"the login methods cannot be opened: {self._failure_reason()}")
        return self._methods[0]

    def _failure_reason(self) -> str:
        """Return why the methods are not open: the last failure, or the time waited so far."""
        fault = self._fences.of(LOOP, _NAME)
        return fault.reason if fault else f"they were not open after {OPENS_WITHIN:.0f} s"

    def token_ages(self) -> dict[str, float]:
        """Return the age of the oldest access token of each mount, in seconds."""
        return self._methods[0].token_ages() if self._methods else {}

    def directory_key_ages(self) -> dict[str, float]:
        """Return the age of the directory keys of each mount in use, in seconds."""
        return self._methods[0].directories.ages() if self._methods else {}

    def forget(self, accessor: str) -> None:
        """Drop the cloud data of a deleted mount."""
        for methods in self._methods:
            methods.forget(accessor)

    @contextmanager
    def open(self, methods: "LoginMethods") -> Iterator[None]:
        """Open the login methods for requests while the block runs."""
        self._methods = [methods]
        self._opened.set()
        try:
            yield
        finally:
            self._methods, self._opened = [], trio.Event()


@asynccontextmanager
async def open_door(
    store: Store,
    opening: Callable[[], AbstractAsyncContextManager["LoginMethods"]],
    fences: Fences,
) -> AsyncIterator[LazyMethods]:
    """Yield access to the login methods.

    If there are mounts, or tokens to revoke, open the methods first. Wait for them for at most
    `OPENS_WITHIN` seconds, because the daemon can run jobs without them.
    """
    door = LazyMethods(fences)

    async def attend() -> None:
        await door.knocked.wait()
        async with opening() as methods:
            with door.open(methods):
                await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(fences.keep_running, _NAME, attend)
        if store.read(_have_work):
            try:
                await door.methods()
            except Unavailable as error:
                _log.error("%s; the daemon starts without them and retries", error)
        yield door
        nursery.cancel_scope.cancel()


def _have_work(db: ReadSnapshot) -> bool:
    """Return whether there is a mount, or a deleted mount with tokens to revoke."""
    return mounts.is_any(db) or bool(stored_tokens.issuers(db))
